//! A process killed at any request of a round, before the request reaches the coordinator or before
//! its response arrives, resumes after a restart, and all final balances are the same as without
//! the kill.
//!
//! `FLORIN_TEST_KILLS=all` tries every request of every process. Otherwise a few are drawn at
//! random, with the seed in `FLORIN_TEST_KILLS` or, by default, the current time.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use florin_participant::ParticipantEvent;
use florin_protocol::{Amount, TaskId, TaskPhase, blob_digest};

use crate::support::market::digits_graph;
use crate::support::process::{free_port, rank, until};
use crate::support::tripwire::{KillPoint, Tripwire};
use crate::support::{On, Process, TestMarket, TestPlan};

/// Number of random cases per process, in synchronous rounds and in others.
const DRAWN: usize = 3;
const DRAWN_OTHERS: usize = 1;

/// The process to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Participant,
    Provider,
    Coordinator,
    /// The coordinator, at a request of one participant.
    CoordinatorOfParticipant,
}

/// How rounds run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RoundMode {
    Synchronous,
    /// Every two updates make a version.
    Buffered,
    /// One of the participants is a silo of two processes, whose pay is split.
    Silo,
}

/// The result of a round.
struct Ended {
    balances: BTreeMap<&'static str, (Amount, Amount)>,
    /// The requests that passed the tripwire.
    requests: Vec<String>,
    /// The request at which the process was killed.
    killed_at: Option<String>,
}

fn plan(mode: RoundMode) -> TestPlan {
    let mut plan = TestPlan::honest(On::Embedded, 1);
    plan.participants.truncate(2);
    plan.target = 2;
    if mode == RoundMode::Silo {
        plan.graph = Some(digits_graph());
        plan.others = vec!["deb"];
    }
    plan
}

/// One round of two participants and a provider. The requests of the victim pass a tripwire; if the
/// victim is the coordinator, all requests do.
struct WatchedRound {
    victim: Victim,
    // Declared before the market, so that processes are stopped before its folder is removed.
    all: Vec<Process>,
    /// The second process of a silo. Its head is the participant.
    second: Option<Process>,
    /// The port at which both meet.
    port: u16,
    market: TestMarket,
    task: TaskId,
    wire: Tripwire,
    revived: bool,
}

impl WatchedRound {
    fn open(victim: Victim, mode: RoundMode) -> Self {
        let market = TestMarket::open(plan(mode));
        if mode == RoundMode::Buffered {
            market.make_buffered(2, 2, 8);
        }
        let (task, wire) = (market.publish(), Tripwire::before(market.address()));
        let mut round = Self {
            victim,
            market,
            task,
            wire,
            all: Vec::new(),
            second: None,
            port: free_port(),
            revived: false,
        };
        if mode == RoundMode::Silo {
            round.start_second();
        }
        round
    }

    /// Ann's account is a silo: Ann and Deb share its pay, and a second process computes half of its steps.
    fn start_second(&mut self) {
        let share = |name, share| format!("{}={share}", self.market.account(name));
        let (ann, deb, task) = (share("ann", "0.4"), share("deb", "0.6"), self.task.to_string());
        let call = ["silo", "split", "--task", &task, "--member", &ann, "--member", &deb];
        self.market.run_command_as("ann", &call).expect(0);
        self.second = Some(self.rank("second", &self.market.url, 1));
    }

    /// A process of the silo.
    fn rank(&self, name: &str, url: &str, number: usize) -> Process {
        let mut call = self.market.participant_call(url, self.task, "ann");
        call.extend(["--rank-interface", "lo"].map(str::to_owned));
        Process::start_in(self.market.folder(), name, &call, &rank(number, 2, self.port))
    }

    /// Starts Ann: a participant, or the head of the silo.
    fn ann(&self, url: &str) -> Process {
        match self.second {
            None => self.market.participant_through(url, self.task, "ann"),
            Some(_) => self.rank("ann", url, 0),
        }
    }

    /// The URL at which a process reaches the coordinator.
    fn url(&self, of: Victim) -> String {
        let watched = match self.victim {
            Victim::Coordinator => true,
            Victim::CoordinatorOfParticipant => of == Victim::Participant,
            victim => of == victim,
        };
        if watched { self.wire.url.clone() } else { self.market.url.clone() }
    }

    fn play(mut self, trip: Option<(usize, KillPoint)>) -> Ended {
        let set = |wire: &Tripwire, who: &Process| {
            if let Some((nth, when)) = trip {
                wire.arm(who.id(), nth, when);
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
            self.restart_victim();
            self.all[0].log().contains(ParticipantEvent::READY_PREFIX).then_some(())
        });
        let url = self.url(Victim::Participant);
        self.all.push(self.ann(&url));
        match self.victim {
            Victim::Participant => set(&self.wire, &self.all[1]),
            Victim::CoordinatorOfParticipant => set(&self.wire, &self.market.coordinator),
            Victim::Provider | Victim::Coordinator => {}
        }
        let url = if self.victim == Victim::Coordinator { &url } else { &self.market.url };
        self.all.push(self.market.participant_through(url, self.task, "ben"));
        until("all processes exit", || {
            self.restart_victim();
            (!self.all.iter_mut().any(Process::runs)).then_some(())
        });
        self.restart_victim();
        self.all.iter_mut().chain(&mut self.second).for_each(Process::finish);
        self.ended()
    }

    /// Restarts the victim, once it has been killed.
    fn restart_victim(&mut self) {
        if self.revived || self.wire.triggered().is_none() {
            return;
        }
        self.revived = true;
        match self.victim {
            Victim::Coordinator | Victim::CoordinatorOfParticipant => {
                self.market.restart_coordinator();
            }
            Victim::Provider => self.all[0].restart(),
            // A launcher starts all processes of a silo again.
            Victim::Participant => {
                self.all[1].restart();
                self.second.iter_mut().for_each(Process::restart);
            }
        }
    }

    fn ended(self) -> Ended {
        let (market, task) = (&self.market, self.task);
        assert_eq!(market.view(task).phase, TaskPhase::Done);
        assert_eq!(market.report(task, 1).entries.len(), 2, "no update is missing");
        let balances = market.balances(task);
        Ended { balances, requests: self.wire.passed(), killed_at: self.wire.triggered() }
    }
}

/// The cases to try: each request, with a kill before or after it.
fn cases(victim: Victim, mode: RoundMode, requests: usize) -> Vec<(usize, KillPoint)> {
    let both = |nth| [(nth, KillPoint::BeforeRequest), (nth, KillPoint::AfterResponse)];
    let all: Vec<_> = (0..requests).flat_map(both).collect();
    let wanted = std::env::var("FLORIN_TEST_KILLS").unwrap_or_default();
    if wanted == "all" {
        return all;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed: u64 = wanted.parse().unwrap_or(now);
    eprintln!("use FLORIN_TEST_KILLS={seed} to repeat this run");
    let drawn = match mode {
        RoundMode::Synchronous => DRAWN,
        RoundMode::Buffered | RoundMode::Silo => DRAWN_OTHERS,
    };
    // One case from each part of the round.
    let part = all.len() / drawn;
    let draw = |n: usize| {
        let digest = blob_digest(format!("{seed} {victim:?} {mode:?} {n}").as_bytes()).0;
        let drawn = u64::from_le_bytes(*digest.first_chunk().unwrap());
        all[n * part + usize::try_from(drawn).unwrap() % part]
    };
    (0..drawn).map(draw).collect()
}

/// All final balances without a kill.
static UNDISTURBED: LazyLock<BTreeMap<&'static str, (Amount, Amount)>> =
    LazyLock::new(|| undisturbed(RoundMode::Synchronous));
static UNDISTURBED_BUFFERED: LazyLock<BTreeMap<&'static str, (Amount, Amount)>> =
    LazyLock::new(|| undisturbed(RoundMode::Buffered));
static UNDISTURBED_SILO: LazyLock<BTreeMap<&'static str, (Amount, Amount)>> =
    LazyLock::new(|| undisturbed(RoundMode::Silo));

fn undisturbed(mode: RoundMode) -> BTreeMap<&'static str, (Amount, Amount)> {
    WatchedRound::open(Victim::Participant, mode).play(None).balances
}

/// Kills each victim in some cases, most of which happen.
fn check_kills(victims: &[Victim], mode: RoundMode) {
    let counts: Vec<[usize; 2]> = victims.iter().map(|victim| kill(*victim, mode)).collect();
    let [sprung, cases] = [0, 1].map(|at| counts.iter().map(|count| count[at]).sum::<usize>());
    // A slow machine polls more often, so that a late request may not exist in every run.
    assert!(2 * sprung >= cases, "only {sprung} of {cases} kills happened");
}

/// Returns how many kills happened, of how many cases.
fn kill(victim: Victim, mode: RoundMode) -> [usize; 2] {
    let expected = match mode {
        RoundMode::Synchronous => &*UNDISTURBED,
        RoundMode::Buffered => &*UNDISTURBED_BUFFERED,
        RoundMode::Silo => &*UNDISTURBED_SILO,
    };
    let undisturbed = WatchedRound::open(victim, mode).play(None);
    assert_eq!(undisturbed.balances, *expected, "two rounds of the same plan have equal balances");
    eprintln!("{victim:?}, {mode:?}: {:?}", undisturbed.requests);
    let cases = cases(victim, mode, undisturbed.requests.len());
    let mut sprung = 0;
    for case in &cases {
        eprintln!("{victim:?} at {case:?}");
        let ended = WatchedRound::open(victim, mode).play(Some(*case));
        eprintln!("  killed at {:?}", ended.killed_at);
        assert_eq!(ended.balances, *expected, "{victim:?} at {case:?}: {:?}", ended.killed_at);
        sprung += usize::from(ended.killed_at.is_some());
    }
    [sprung, cases.len()]
}

#[test]
fn a_participant_killed_at_any_request_is_paid_once() {
    check_kills(&[Victim::Participant], RoundMode::Synchronous);
}

#[test]
fn a_provider_killed_at_any_request_is_paid_once() {
    check_kills(&[Victim::Provider], RoundMode::Synchronous);
}

#[test]
fn a_coordinator_killed_at_any_request_pays_once() {
    check_kills(&[Victim::Coordinator], RoundMode::Synchronous);
}

#[test]
fn any_process_killed_at_any_request_of_a_buffered_version_is_paid_once() {
    check_kills(&[Victim::Participant, Victim::Provider, Victim::Coordinator], RoundMode::Buffered);
}

#[test]
fn any_process_killed_at_any_request_of_a_silo_round_pays_its_members_once() {
    check_kills(&[Victim::Participant, Victim::Provider, Victim::Coordinator], RoundMode::Silo);
    let of = |name| UNDISTURBED_SILO[name].0;
    assert!(of("deb") > "50".parse().unwrap(), "Deb has a part of the pay: {}", of("deb"));
}

/// A process that starts waits for the coordinator at each of its requests, not only at the first.
#[test]
fn a_coordinator_killed_while_a_participant_enrols_is_waited_for() {
    let victim = Victim::CoordinatorOfParticipant;
    let undisturbed = WatchedRound::open(victim, RoundMode::Synchronous).play(None).requests;
    let enrols = |request: &String| request.starts_with("POST") && request.ends_with("/enrol");
    let last = undisturbed.iter().position(enrols).expect("the participant enrolled");
    for nth in 0..=last {
        let ended = WatchedRound::open(victim, RoundMode::Synchronous)
            .play(Some((nth, KillPoint::BeforeRequest)));
        eprintln!("killed at {:?}", ended.killed_at);
        assert!(ended.killed_at.is_some());
        assert_eq!(ended.balances, *UNDISTURBED, "killed at {:?}", ended.killed_at);
    }
}
