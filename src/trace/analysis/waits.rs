//! The time of a round by causes. Work of members that all others also need is no wait; a wait is
//! the time for which the round stands still for one party.

use std::collections::BTreeMap;

use super::path::{Latencies, Party, PathStep, PhaseMessages, critical_path};
use super::round::TracedRound;

/// The time of one round: the parts add up to its duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoundTimes {
    /// The critical path.
    pub(crate) path: Vec<PathStep>,
    /// Work and messages of members until the last but one message of each phase, in nanoseconds.
    pub(crate) work: i64,
    /// The waits, in nanoseconds for each party: after the last but one message the round waits for
    /// one sender, which is late. [`Party::Transfer`] has none.
    pub(crate) waits: BTreeMap<Party, i64>,
}

/// Sorts the time of a round by causes.
pub(crate) fn round_times(round: &TracedRound, latencies: &Latencies) -> RoundTimes {
    let path = critical_path(round, latencies);
    let phases = [PhaseMessages::of_commits(round), PhaseMessages::of_updates(round)];
    let (mut work, mut waits) = (0, BTreeMap::new());
    let mut wait = |party: Party, time: i64| {
        if time > 0 {
            *waits.entry(party).or_insert(0) += time;
        }
    };
    for phase in &phases {
        let end = phase.last().map_or(phase.end, |(at, _)| at);
        // The others have arrived: the round waits for this one alone.
        let others = phase.arrivals.iter().rev().find(|(at, _)| *at < end);
        let mut alone = others.map_or(phase.start, |(at, _)| *at).max(phase.start);
        if phase.need == 1 && phase.last().is_some() {
            alone = end;
        }
        let in_phase = path.iter().filter(|step| step.from < end && step.to > phase.start);
        let in_phase: Vec<_> = in_phase.filter(|step| is_member(&step.party)).collect();
        // A late reading delays the work after it, wherever in the phase it is.
        let late: i64 = in_phase.iter().filter_map(|step| late_reading(step)).sum();
        let late = late.min(end - alone).max(0);
        for step in &in_phase {
            match &step.party {
                Party::Receiver(member) => wait(Party::Receiver(member.clone()), late),
                Party::Sender(member) | Party::Transfer(member) => {
                    let from = step.from.max(alone + late);
                    wait(Party::Sender(member.clone()), step.to.min(end) - from);
                }
                _ => {}
            }
        }
        let all = end.min(round.end) - phase.start;
        work += all.max(0).min((alone - phase.start).max(0));
    }
    for step in &path {
        let provider = matches!(&step.party, Party::Sender(_)) && step.from >= round.reveal_end;
        if provider || !is_member(&step.party) {
            wait(step.party.clone(), step.to - step.from);
        }
    }
    RoundTimes { path, work, waits }
}

const fn is_member(party: &Party) -> bool {
    matches!(party, Party::Sender(_) | Party::Receiver(_) | Party::Transfer(_))
}

const fn late_reading(step: &PathStep) -> Option<i64> {
    match step.party {
        Party::Receiver(_) => Some(step.to - step.from),
        _ => None,
    }
}
