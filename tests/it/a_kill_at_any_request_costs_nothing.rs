//! Whoever is killed at any request of a round, before the coordinator has heard it or when it has answered and nobody has
//! heard that, goes on when it is started again; everybody ends with what they had without it.
//!
//! `FLORIN_KILLS=all` tries each request of each of them; otherwise a few are drawn, by the seed in `FLORIN_KILLS` or, where
//! there is none, by the time of day.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use florin_participant::Event;
use florin_protocol::{Amount, Phase, TaskId, blob_digest};

use crate::support::process::until;
use crate::support::tripwire::{Tripwire, When};
use crate::support::{On, Plan, Process, TestMarket};

/// Cases that are drawn for each of them.
const DRAWN: usize = 3;

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Participant,
    Provider,
    Coordinator,
}

/// What a round came to.
struct Ended {
    balances: BTreeMap<&'static str, (Amount, Amount)>,
    /// The requests that passed the tripwire.
    requests: Vec<String>,
    /// The one at which somebody was killed.
    sprung: Option<String>,
}

fn plan() -> Plan {
    let mut plan = Plan::honest(On::Embedded, 1);
    plan.participants.truncate(2);
    plan.target = 2;
    plan
}

/// One round of two participants and a provider. The victim's requests, or everybody's where it is the coordinator, pass
/// a tripwire.
struct Round {
    victim: Victim,
    // Before the market, so that processes end before its folder goes.
    all: Vec<Process>,
    market: TestMarket,
    task: TaskId,
    wire: Tripwire,
    revived: bool,
}

impl Round {
    fn open(victim: Victim) -> Self {
        let market = TestMarket::open(plan());
        let (task, wire) = (market.publish(), Tripwire::before(market.address()));
        Self { victim, market, task, wire, all: Vec::new(), revived: false }
    }

    /// How one of them comes to the coordinator.
    fn url(&self, of: Victim) -> String {
        let watched = [of, Victim::Coordinator].contains(&self.victim);
        if watched { self.wire.url.clone() } else { self.market.url.clone() }
    }

    fn play(mut self, trip: Option<(usize, When)>) -> Ended {
        let set = |wire: &Tripwire, who: &Process| {
            if let Some((nth, when)) = trip {
                wire.set(who.id(), nth, when);
            }
        };
        if self.victim == Victim::Coordinator {
            set(&self.wire, &self.market.coordinator);
        }
        self.all.push(self.market.provider_through(&self.url(Victim::Provider), self.task));
        if self.victim == Victim::Provider {
            set(&self.wire, &self.all[0]);
        }
        until("the provider is ready", || {
            self.revive();
            self.all[0].said().contains(Event::READY).then_some(())
        });
        let url = self.url(Victim::Participant);
        self.all.push(self.market.participant_through(&url, self.task, "ann"));
        if self.victim == Victim::Participant {
            set(&self.wire, &self.all[1]);
        }
        let url = if self.victim == Victim::Coordinator { &url } else { &self.market.url };
        self.all.push(self.market.participant_through(url, self.task, "ben"));
        until("everybody's end", || {
            self.revive();
            (!self.all.iter_mut().any(Process::runs)).then_some(())
        });
        self.revive();
        self.all.iter_mut().for_each(Process::finish);
        self.ended()
    }

    /// Starts the victim again, once it is killed.
    fn revive(&mut self) {
        if self.revived || self.wire.sprung().is_none() {
            return;
        }
        self.revived = true;
        match self.victim {
            Victim::Coordinator => self.market.restart_coordinator(),
            Victim::Provider => self.all[0].restart(),
            Victim::Participant => self.all[1].restart(),
        }
    }

    fn ended(self) -> Ended {
        let (market, task) = (&self.market, self.task);
        assert_eq!(market.view(task).phase, Phase::Done);
        assert_eq!(market.report(task, 1).entries.len(), 2, "nobody missed the round");
        let balances = market.balances(task);
        Ended { balances, requests: self.wire.passed(), sprung: self.wire.sprung() }
    }
}

/// The cases to try out of all: each request, and before or after it.
fn cases(victim: Victim, requests: usize) -> Vec<(usize, When)> {
    let both = |nth| [(nth, When::Before), (nth, When::Answered)];
    let all: Vec<_> = (0..requests).flat_map(both).collect();
    let wanted = std::env::var("FLORIN_KILLS").unwrap_or_default();
    if wanted == "all" {
        return all;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed: u64 = wanted.parse().unwrap_or(now);
    eprintln!("FLORIN_KILLS={seed} repeats this");
    // One out of each part of the round.
    let part = all.len() / DRAWN;
    let draw = |n: usize| {
        let digest = blob_digest(format!("{seed} {victim:?} {n}").as_bytes()).0;
        let drawn = u64::from_le_bytes(*digest.first_chunk().unwrap());
        all[n * part + usize::try_from(drawn).unwrap() % part]
    };
    (0..DRAWN).map(draw).collect()
}

/// What everybody holds when nobody is killed.
static UNDISTURBED: LazyLock<BTreeMap<&'static str, (Amount, Amount)>> =
    LazyLock::new(|| Round::open(Victim::Participant).play(None).balances);

fn a_kill_costs_nothing(victim: Victim) {
    let undisturbed = Round::open(victim).play(None);
    assert_eq!(undisturbed.balances, *UNDISTURBED, "two rounds of one plan come to the same");
    eprintln!("{victim:?}: {:?}", undisturbed.requests);
    let cases = cases(victim, undisturbed.requests.len());
    let mut sprung = 0;
    for case in &cases {
        eprintln!("{victim:?} at {case:?}");
        let ended = Round::open(victim).play(Some(*case));
        eprintln!("  killed at {:?}", ended.sprung);
        assert_eq!(ended.balances, *UNDISTURBED, "{victim:?} at {case:?}: {:?}", ended.sprung);
        sprung += usize::from(ended.sprung.is_some());
    }
    // Who waits asks more often on a slow machine, so that the last requests may not come.
    assert!(2 * sprung >= cases.len(), "{sprung} of {} were killed", cases.len());
}

#[test]
fn a_participant_killed_at_any_request_is_paid_once() {
    a_kill_costs_nothing(Victim::Participant);
}

#[test]
fn a_provider_killed_at_any_request_is_paid_once() {
    a_kill_costs_nothing(Victim::Provider);
}

#[test]
fn a_coordinator_killed_at_any_request_pays_once() {
    a_kill_costs_nothing(Victim::Coordinator);
}
