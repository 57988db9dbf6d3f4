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
    let (mut work, mut waits) = (0, BTreeMap::new());
    let mut wait = |party: Party, time: i64| {
        if time > 0 {
            *waits.entry(party).or_insert(0) += time;
        }
    };
    for phase in [PhaseMessages::of_commits(round), PhaseMessages::of_updates(round)] {
        let times = PhaseTimes::new(&phase, &path);
        let all = (times.end.min(round.end) - phase.start).max(0);
        work += (all.min((times.alone - phase.start).max(0)) - times.idle_work(&phase)).max(0);
        for (party, time) in times.waits(&phase) {
            wait(party, time);
        }
    }
    for step in &path {
        let provider = matches!(&step.party, Party::Sender(_)) && step.from >= round.reveal_end;
        if provider || !is_member(&step.party) {
            wait(step.party.clone(), step.to - step.from);
        }
    }
    RoundTimes { path, work, waits }
}

/// The end of a phase and the steps of its last member.
struct PhaseTimes<'a> {
    /// The last message, or the deadline.
    end: i64,
    /// From here on the round waits for one member alone; the end if it never has others.
    alone: i64,
    /// Whether one message ends the phase, so that its member has no others to be later than.
    is_single: bool,
    steps: Vec<&'a PathStep>,
}

impl<'a> PhaseTimes<'a> {
    fn new(phase: &PhaseMessages<'_>, path: &'a [PathStep]) -> Self {
        let end = phase.last().map_or(phase.end, |(at, _)| at);
        // The others have arrived: the round waits for this one alone.
        let others = phase.arrivals.iter().rev().find(|(at, _)| *at < end);
        let is_single = phase.need == 1 && phase.last().is_some();
        let alone = match is_single {
            true => end,
            false => others.map_or(phase.start, |(at, _)| *at).max(phase.start),
        };
        let in_phase = path.iter().filter(|step| step.from < end && step.to > phase.start);
        let steps = in_phase.filter(|step| is_member(&step.party)).collect();
        Self { end, alone, is_single, steps }
    }

    /// The time within the phase for which the member waited for its producer.
    fn without_rows(&self, phase: &PhaseMessages<'_>) -> i64 {
        let steps = self.steps.iter().filter(|step| matches!(step.party, Party::Producer(_)));
        steps.map(|step| step.to.min(self.end) - step.from.max(phase.start)).sum()
    }

    /// The part of the work of all members that was none: of a single member, its wait for rows.
    fn idle_work(&self, phase: &PhaseMessages<'_>) -> i64 {
        if self.is_single { self.without_rows(phase) } else { 0 }
    }

    /// The waits for the member, as far as others do not need the time as well.
    fn waits(&self, phase: &PhaseMessages<'_>) -> Vec<(Party, i64)> {
        // A late reading delays the work after it, wherever in the phase it is.
        let late: i64 = self.steps.iter().filter_map(|step| late_reading(step)).sum();
        let late = late.min(self.end - self.alone).max(0);
        let (mut waits, mut own, mut producer) = (Vec::new(), BTreeMap::new(), None);
        for step in &self.steps {
            let from = step.from.max(self.alone + late);
            let time = (step.to.min(self.end) - from).max(0);
            match &step.party {
                Party::Receiver(_) => waits.push((step.party.clone(), late)),
                Party::Sender(member) | Party::Transfer(member) | Party::Producer(member) => {
                    *own.entry(member.clone()).or_insert(0) += time;
                    if matches!(step.party, Party::Producer(_)) {
                        producer = Some(member.clone());
                    }
                }
                _ => {}
            }
        }
        // So does a wait for rows. A member without others has no other wait.
        if let Some(member) = producer {
            let own = own.entry(member.clone()).or_insert(0);
            let without_rows = self.without_rows(phase);
            let time = if self.is_single { without_rows } else { without_rows.min(*own) };
            *own -= time;
            waits.push((Party::Producer(member), time));
        }
        waits.extend(own.into_iter().map(|(member, time)| (Party::Sender(member), time)));
        waits
    }
}

const fn is_member(party: &Party) -> bool {
    match party {
        Party::Sender(_) | Party::Receiver(_) | Party::Producer(_) | Party::Transfer(_) => true,
        Party::Coordinator | Party::Disk | Party::Ledger => false,
    }
}

const fn late_reading(step: &PathStep) -> Option<i64> {
    match step.party {
        Party::Receiver(_) => Some(step.to - step.from),
        _ => None,
    }
}
