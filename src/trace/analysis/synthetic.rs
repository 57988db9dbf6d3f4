//! Random markets in virtual time that write the events of a trace, and the tests that compare the
//! analysis with what was planted.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Map, Value, json};

use super::clocks;
use super::delays::delays;
use super::path::{Party, PathStep, latencies};
use super::producers::producer_waits;
use super::read::{ProcessTrace, TracedEvent};
use super::replay::{NotPredicted, ReplayChange, replay};
use super::round::{MILLISECOND, TracedRound, rounds};
use super::waits::{RoundTimes, round_times};
use crate::trace::record::EventKind;

const MS: i64 = MILLISECOND;
/// The planted delay.
const PLANTED: i64 = 300 * MS;
/// The first moment of a market.
const START: i64 = 1_800_000_000_000 * MS;
/// The least number of updates of a round.
const LEAST: usize = 2;
const TASK: &str = "3fa9c1d2";

/// The party that a planted delay stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stalled {
    Sender(usize),
    Receiver(usize),
    Producer(usize),
    Coordinator,
    Disk,
    Ledger,
}

/// A market with its own times for each member.
struct Market {
    seed: u64,
    members: usize,
    rounds: u64,
    planted: Option<(u64, Stalled)>,
    without: Option<usize>,
    /// Members that are invited beyond those that a round needs.
    over: usize,
}

impl Market {
    fn random(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let (members, rounds) = (rng.random_range(3..9), rng.random_range(4..10));
        Self { seed, members, rounds, planted: None, without: None, over: 0 }
    }

    /// Random numbers of one member in one round, the same with and without other members.
    fn draws(&self, member: usize, round: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed ^ (member as u64 + 1) << 32 ^ round << 48)
    }

    fn stall(&self, round: u64, party: Stalled) -> i64 {
        if self.planted == Some((round, party)) { PLANTED } else { 0 }
    }

    fn account(member: usize) -> String {
        format!("0x{member:040x}")
    }

    /// Plays all rounds and returns the files, each by a clock of its own.
    fn play(&self) -> Vec<ProcessTrace> {
        let mut files = Files::new(self);
        let mut now = START;
        for round in 1..=self.rounds {
            now = self.round(&mut files, round, now);
        }
        files.phase("done", self.rounds, now, 0);
        files.all
    }

    fn round(&self, files: &mut Files, round: u64, start: i64) -> i64 {
        let all: Vec<usize> = (0..self.members).filter(|at| Some(*at) != self.without).collect();
        let mut own = self.draws(1_000, round);
        let need = all.len().min(self.members - self.over);
        files.phase("commit", round, start, need);
        let (mut commits, mut uploads) = (Vec::new(), BTreeMap::new());
        for member in &all {
            let mut rng = self.draws(*member, round);
            files.message(None, EventKind::FlowStart, "offer", round, *member, start);
            let read = start
                + rng.random_range(MS..2 * MS)
                + self.stall(round, Stalled::Receiver(*member));
            files.message(Some(*member), EventKind::FlowEnd, "offer", round, *member, read);
            // Members differ by a factor of up to 2, and their rounds by up to 40 ms.
            let usual = 500 + 60 * (*member as i64 * 7 % 9);
            let work = (usual + rng.random_range(0..40)) * MS
                + self.stall(round, Stalled::Sender(*member));
            let rows = self.stall(round, Stalled::Producer(*member));
            if rows > 0 {
                files.span(Some(*member), "wait for rows", round, read, read + rows);
            }
            let read = read + rows;
            files.span(Some(*member), "train", round, read, read + work);
            // As long as the training, and beside it: of no account for the round.
            files.span(Some(*member), "wait for trainer", round, read, read + work);
            let sent = read + work;
            let arrived = sent + rng.random_range(MS..2 * MS);
            commits.push((arrived, sent, *member));
            let upload = [0; 3].map(|_| rng.random_range(MS..4 * MS));
            uploads.insert(*member, upload);
        }
        commits.sort_unstable();
        for (place, (arrived, sent, member)) in commits.iter().enumerate() {
            // Of those that are not needed, every second one reads that it is too late.
            if place < need || member % 2 == 0 {
                files.message(Some(*member), EventKind::FlowStart, "commit", round, *member, *sent);
                files.message(None, EventKind::FlowEnd, "commit", round, *member, *arrived);
            }
            if place >= need {
                uploads.remove(member);
                if member % 2 == 0 {
                    files.refusal(round, *member, arrived + MS);
                }
            }
        }
        let last = commits[need - 1].0;
        let closed = self.journal(files, &mut own, round, last);
        files.phase("reveal", round, closed, need);
        let mut last = closed;
        for (member, [read, prepare, upload]) in uploads {
            files.message(None, EventKind::FlowStart, "reveal", round, member, closed);
            let read = closed + read;
            files.message(Some(member), EventKind::FlowEnd, "reveal", round, member, read);
            let sent = read + prepare;
            files.message(Some(member), EventKind::FlowStart, "update", round, member, sent);
            files.message(None, EventKind::FlowEnd, "update", round, member, sent + upload);
            last = last.max(sent + upload);
        }
        let closed = last + own.random_range(MS..3 * MS);
        files.phase("value", round, closed, 0);
        let valued =
            closed + own.random_range(50..70) * MS + self.stall(round, Stalled::Coordinator);
        files.span(None, "value", round, closed, valued);
        files.phase("settle", round, valued, 0);
        let posted = valued + own.random_range(5..9) * MS + self.stall(round, Stalled::Ledger);
        files.span(None, "ledger", round, valued, posted);
        posted
    }

    fn journal(&self, files: &mut Files, own: &mut StdRng, round: u64, from: i64) -> i64 {
        let to = from + own.random_range(MS..3 * MS) + self.stall(round, Stalled::Disk);
        files.span(None, "journal", round, from, to);
        to + own.random_range(0..MS)
    }
}

/// The files of a market: the coordinator's first, then one for each member.
struct Files {
    all: Vec<ProcessTrace>,
    skews: Vec<i64>,
}

impl Files {
    fn new(market: &Market) -> Self {
        let mut rng = StdRng::seed_from_u64(market.seed ^ 0xC10C);
        let role = |role: &str, member| ProcessTrace {
            role: role.to_owned(),
            member,
            ..ProcessTrace::default()
        };
        let members = (0..market.members).map(|at| role("participant", Some(Market::account(at))));
        let all: Vec<_> = std::iter::once(role("coordinator", None)).chain(members).collect();
        let skew = |at| if at == 0 { 0 } else { rng.random_range(-5_000..5_000) * MS };
        let skews = (0..all.len()).map(skew).collect();
        Self { all, skews }
    }

    fn push(&mut self, member: Option<usize>, mut event: TracedEvent) {
        let file = member.map_or(0, |at| at + 1);
        event.at += self.skews[file];
        self.all[file].events.push(event);
        self.all[file].events.sort_by_key(|event| event.at);
    }

    fn event(name: &str, kind: EventKind, at: i64, fields: &Value) -> TracedEvent {
        let fields = fields.as_object().cloned().unwrap_or_else(Map::new);
        TracedEvent { name: name.to_owned(), kind, at, location: 1, fields }
    }

    fn phase(&mut self, phase: &str, round: u64, at: i64, need: usize) {
        let by_ms = BTreeMap::from([("commit", 600_000), ("reveal", 1_200_000)]);
        let by_ms = by_ms.get(phase).copied().unwrap_or(0);
        let fields = json!({ "phase": phase, "task": TASK, "round": round, "need": need, "by_ms": by_ms,
                "least": LEAST });
        self.push(None, Self::event(phase, EventKind::Begin, at, &fields));
    }

    fn message(
        &mut self,
        by: Option<usize>,
        end: EventKind,
        kind: &str,
        round: u64,
        member: usize,
        at: i64,
    ) {
        let member = Market::account(member);
        let fields = json!({ "kind": kind, "task": TASK, "round": round, "member": member });
        self.push(by, Self::event(kind, end, at, &fields));
    }

    /// The commit of a member is refused.
    fn refusal(&mut self, round: u64, member: usize, at: i64) {
        let member = Market::account(member);
        let fields = json!({ "kind": "commit", "task": TASK, "round": round, "member": member });
        self.push(None, Self::event("refused", EventKind::Instant, at, &fields));
    }

    fn span(&mut self, by: Option<usize>, name: &str, round: u64, from: i64, to: i64) {
        let kind = EventKind::Complete((to - from) as u64);
        let fields = json!({ "task": TASK, "round": round });
        self.push(by, Self::event(name, kind, from, &fields));
    }
}

fn analyse(mut files: Vec<ProcessTrace>) -> (Vec<TracedRound>, Vec<RoundTimes>) {
    clocks::align(&mut files);
    let rounds = rounds(&files);
    let usual = latencies(&rounds);
    let times = rounds.iter().map(|round| round_times(round, &usual)).collect();
    (rounds, times)
}

#[test]
fn a_delay_of_300_ms_is_blamed_on_its_party_in_100_of_100_cases() {
    for seed in 0..100 {
        let mut market = Market::random(seed);
        let mut rng = StdRng::seed_from_u64(seed ^ 0xDE1A);
        let member = rng.random_range(0..market.members);
        let round = rng.random_range(1..=market.rounds);
        let parties = [
            Stalled::Sender(member),
            Stalled::Receiver(member),
            Stalled::Producer(member),
            Stalled::Coordinator,
            Stalled::Disk,
            Stalled::Ledger,
        ];
        let party = parties[seed as usize % parties.len()];
        market.planted = Some((round, party));
        let (rounds, times) = analyse(market.play());
        assert_eq!(rounds.len() as u64, market.rounds, "seed {seed}");
        let found = delays(&rounds, &times);
        let blamed = &found[round as usize - 1][0];
        let expected = match party {
            Stalled::Sender(member) => Party::Sender(Market::account(member)),
            Stalled::Receiver(member) => Party::Receiver(Market::account(member)),
            Stalled::Producer(member) => Party::Producer(Market::account(member)),
            Stalled::Coordinator => Party::Coordinator,
            Stalled::Disk => Party::Disk,
            Stalled::Ledger => Party::Ledger,
        };
        assert_eq!(blamed.party, expected, "seed {seed}, {party:?} in round {round}");
        assert!((blamed.excess - PLANTED).abs() < 50 * MS, "seed {seed}: {blamed:?}");
        for (at, others) in found.iter().enumerate().filter(|(at, _)| *at + 1 != round as usize) {
            let worst = others.iter().map(|delay| delay.excess).max().unwrap_or(0);
            assert!(worst < PLANTED / 2, "seed {seed}, round {}: {others:?}", at + 1);
        }
    }
}

#[test]
fn a_wait_for_rows_is_the_producers_and_a_blocked_producer_is_the_trainers() {
    let mut market = Market::random(3);
    market.members = 4;
    // Number 1 is the slowest, and the round waits for its rows too.
    market.planted = Some((2, Stalled::Producer(1)));
    let (rounds, times) = analyse(market.play());
    let (slow, planted) = (Market::account(1), &times[1].waits);
    assert_eq!(planted.get(&Party::Producer(slow.clone())), Some(&PLANTED), "{planted:?}");
    let on_path = |step: &&PathStep| step.party == Party::Producer(slow.clone());
    let step = times[1].path.iter().find(on_path).unwrap();
    assert_eq!((step.name.as_str(), step.to - step.from), ("wait for rows", PLANTED));
    for (at, round) in rounds.iter().enumerate() {
        let waits = producer_waits(round);
        assert_eq!(waits.len(), 4, "{waits:?}");
        let of = waits.iter().find(|waits| waits.member == slow).unwrap();
        assert_eq!(of.for_rows, if at == 1 { PLANTED } else { 0 });
        assert!(of.for_trainer > 900 * MS && of.for_trainer < 1_000 * MS, "{of:?}");
    }
    // Alone, the member and its producer are all that the round waits for.
    let alone = Market { members: 1, planted: Some((2, Stalled::Producer(0))), ..market };
    let (_, times) = analyse(alone.play());
    let waited = times[1].waits.get(&Party::Producer(Market::account(0)));
    assert_eq!(waited, Some(&PLANTED), "{:?}", times[1].waits);
}

#[test]
fn a_member_that_is_always_late_is_the_late_sender_of_every_round() {
    for seed in 0..50 {
        let mut market = Market::random(seed);
        market.members = 4;
        let (rounds, times) = analyse(market.play());
        // By its usual time, the slowest of four members is number 1: 920 ms, 60 ms after the next.
        let late = Party::Sender(Market::account(1));
        for (round, times) in rounds.iter().zip(&times) {
            let worst = times.waits.iter().filter(|(party, _)| matches!(party, Party::Sender(_)));
            let worst = worst.max_by_key(|(_, wait)| **wait).unwrap();
            assert_eq!(worst.0, &late, "seed {seed}, round {}: {:?}", round.number, times.waits);
        }
    }
}

#[test]
fn path_and_causes_add_up_to_the_duration_of_the_round() {
    for seed in 0..50 {
        let (rounds, times) = analyse(Market::random(seed).play());
        for (round, times) in rounds.iter().zip(&times) {
            let parts: i64 = times.waits.values().sum();
            assert_eq!(times.work + parts, round.duration(), "seed {seed}: {times:?}");
            let mut at = round.start;
            for step in &times.path {
                assert_eq!((step.from, step.to > step.from), (at, true), "seed {seed}: {step:?}");
                at = step.to;
            }
            assert_eq!(at, round.end, "seed {seed}: {times:?}");
        }
    }
}

#[test]
fn damaged_traces_are_analysed_without_a_panic() {
    for seed in 0..300 {
        let mut files = Market::random(seed).play();
        let mut rng = StdRng::seed_from_u64(seed ^ 0xBAD);
        for file in &mut files {
            file.events.retain(|_| rng.random_range(0..10) > 0);
            for event in &mut file.events {
                match rng.random_range(0..30) {
                    0 => event.at = super::read::clamp_time(rng.random()),
                    1 => event.kind = EventKind::Complete(rng.random()),
                    2 => drop(event.fields.insert("by_ms".to_owned(), json!(u64::MAX))),
                    3 => drop(event.fields.insert("need".to_owned(), json!(rng.random::<u64>()))),
                    4 => drop(event.fields.insert("phase".to_owned(), json!("settle"))),
                    5 => drop(event.fields.insert("round".to_owned(), json!("one"))),
                    _ => {}
                }
            }
            file.events.sort_by_key(|event| event.at);
        }
        let (rounds, times) = analyse(files);
        delays(&rounds, &times);
        for round in &rounds {
            let without = round.cohort.first().cloned();
            let deadline = Some(rng.random_range(0..i64::MAX / 4));
            let _ = replay(round, &rounds, &ReplayChange { without, deadline });
        }
    }
}

#[test]
fn a_replay_without_a_member_predicts_the_round_within_5_percent() {
    for seed in 0..100 {
        let mut market = Market::random(seed);
        let member = seed as usize % market.members;
        let (before, _) = analyse(market.play());
        market.without = Some(member);
        let (after, _) = analyse(market.play());
        let change = ReplayChange { without: Some(Market::account(member)), deadline: None };
        for (old, new) in before.iter().zip(&after) {
            let predicted = replay(old, &before, &change).unwrap();
            let error = (predicted.duration - new.duration()).abs();
            assert!(error * 20 <= new.duration(), "seed {seed}: {predicted:?} for {new:?}");
            assert_eq!(predicted.members.len() + 1, old.members.len());
            assert!(!predicted.is_abandoned && !predicted.is_lower_bound, "{predicted:?}");
            let same = replay(old, &before, &ReplayChange::default()).unwrap();
            assert_eq!(same.duration, old.duration());
        }
    }
}

#[test]
fn a_member_that_was_not_needed_replaces_the_missing_one_within_5_percent() {
    for seed in 0..100 {
        let mut market = Market::random(seed);
        market.members = 5 + seed as usize % 4;
        market.over = 1 + seed as usize % 2;
        let member = seed as usize % market.members;
        let (before, _) = analyse(market.play());
        market.without = Some(member);
        let (after, _) = analyse(market.play());
        let change = ReplayChange { without: Some(Market::account(member)), deadline: None };
        for (old, new) in before.iter().zip(&after) {
            let predicted = replay(old, &before, &change).unwrap();
            let error = (predicted.duration - new.duration()).abs();
            assert!(error * 20 <= new.duration(), "seed {seed}: {predicted:?} for {new:?}");
            let mut members = predicted.members.clone();
            members.sort();
            let of_new: Vec<&str> = new.update_arrivals().into_iter().map(|(_, one)| one).collect();
            assert_eq!(members, BTreeSet::from_iter(of_new).into_iter().collect::<Vec<_>>());
            // A member that is needed in no round sends nothing, so that its clock is unknown.
            let is_sender = |member: &String| before.iter().all(|of| !of.one_way.contains(member));
            assert!(!predicted.is_lower_bound || !members.iter().all(is_sender), "{predicted:?}");
            let same = replay(old, &before, &ReplayChange::default()).unwrap();
            assert_eq!(same.duration, old.duration());
        }
    }
}

#[test]
fn a_replay_that_needs_a_member_without_a_known_time_is_a_lower_bound() {
    let market = Market { members: 4, over: 1, ..Market::random(5) };
    let mut files = market.play();
    // Member 1 is the slowest, and the round does not wait for it. Its own trace is missing.
    files.remove(2);
    let (rounds, _) = analyse(files);
    let without = Some(Market::account(0));
    let predicted = replay(&rounds[0], &rounds, &ReplayChange { without, deadline: None }).unwrap();
    assert!(predicted.is_lower_bound && !predicted.is_abandoned, "{predicted:?}");
    assert!((predicted.duration - rounds[0].duration()).abs() < 20 * MS, "{predicted:?}");
    let same = replay(&rounds[0], &rounds, &ReplayChange::default()).unwrap();
    assert_eq!((same.duration, same.is_lower_bound), (rounds[0].duration(), false));
}

#[test]
fn a_round_with_late_updates_is_not_predicted() {
    let (mut rounds, _) = analyse(Market::random(5).play());
    rounds[1].continuing = 1;
    let refused = replay(&rounds[1], &rounds, &ReplayChange::default());
    assert_eq!(refused, Err(NotPredicted::LateUpdates));
    assert!(replay(&rounds[0], &rounds, &ReplayChange::default()).is_ok());
}

#[test]
fn a_round_with_too_few_updates_is_abandoned_without_a_valuation() {
    let (rounds, _) = analyse(Market { members: 4, ..Market::random(7) }.play());
    let round = &rounds[0];
    // Members 0 to 3 take at least 500, 920, 800 and 680 ms.
    for (deadline, remain) in [(400 * MS, 0), (600 * MS, 1)] {
        let change = ReplayChange { without: None, deadline: Some(deadline) };
        let predicted = replay(round, &rounds, &change).unwrap();
        assert!(predicted.is_abandoned, "{predicted:?}");
        assert_eq!(predicted.members.len(), remain);
        let rest = predicted.duration - deadline;
        let settle = round.end - round.value_end;
        assert!((settle..settle + 10 * MS).contains(&rest), "no valuation: {predicted:?}");
    }
}

#[test]
fn a_replay_with_a_deadline_leaves_out_the_members_that_miss_it() {
    let (rounds, _) = analyse(Market { members: 4, ..Market::random(7) }.play());
    let change = ReplayChange { without: None, deadline: Some(800 * MS) };
    let predicted = replay(&rounds[0], &rounds, &change).unwrap();
    // Members 0 to 3 take at least 500, 920, 800 and 680 ms.
    assert_eq!(predicted.members, [Market::account(0), Market::account(3)].map(String::from));
    let change = ReplayChange { deadline: Some(5_000 * MS), ..change };
    let late = replay(&rounds[0], &rounds, &change).unwrap();
    assert_eq!(late.duration, rounds[0].duration());
    assert!(predicted.duration < late.duration);
}

#[test]
fn a_refused_commit_has_not_arrived() {
    let market = Market::random(3);
    let (member, account) = (1, Market::account(1));
    let mut files = Files { all: market.play(), skews: vec![0; market.members + 1] };
    let arrival = |files: &Files| {
        let (rounds, _) = analyse(files.all.clone());
        rounds[0].members[&account].commit_arrived
    };
    let arrived = arrival(&files).unwrap();
    let whole = files.all.clone();
    files.refusal(1, member, arrived + MS);
    assert_eq!(arrival(&files), None);
    // A commit after it counts.
    files.message(None, EventKind::FlowEnd, "commit", 1, member, arrived + 2 * MS);
    assert_eq!(arrival(&files), Some(arrived + 2 * MS));
    // A second commit that is refused leaves the first one.
    files.all = whole;
    files.message(None, EventKind::FlowEnd, "commit", 1, member, arrived + 2 * MS);
    files.refusal(1, member, arrived + 3 * MS);
    assert_eq!(arrival(&files), Some(arrived));
}

#[test]
fn a_coordinator_that_starts_again_loses_no_round() {
    for seed in 0..100 {
        let mut files = Market::random(seed).play();
        let whole = rounds(&aligned(files.clone()));
        let mut rng = StdRng::seed_from_u64(seed ^ 0x2E57);
        let events = &files[0].events;
        let cut = rng.random_range(1..events.len());
        let phase = events[..cut].iter().rev().find(|event| event.kind == EventKind::Begin);
        let mut repeated = phase.cloned().unwrap();
        repeated.at = events[cut].at;
        let mut later = files[0].events.split_off(cut);
        // It announces the phase again, unless that ends at the same moment.
        if seed % 2 == 0 {
            later.insert(0, repeated);
        }
        let again = ProcessTrace { events: later, ..files[0].clone() };
        // The later process has the name that is read first.
        files.insert(0, again);
        let found = rounds(&aligned(files));
        assert_eq!(found.len(), whole.len(), "seed {seed}, cut {cut}");
        for (found, whole) in found.iter().zip(&whole) {
            let ends = |round: &TracedRound| {
                [round.start, round.commit_end, round.reveal_end, round.value_end, round.end]
            };
            assert_eq!(ends(found), ends(whole), "seed {seed}, round {}", whole.number);
            assert_eq!(
                (found.updates, found.commits),
                (whole.updates, whole.commits),
                "seed {seed}"
            );
        }
    }
}

fn aligned(mut files: Vec<ProcessTrace>) -> Vec<ProcessTrace> {
    clocks::align(&mut files);
    files
}
