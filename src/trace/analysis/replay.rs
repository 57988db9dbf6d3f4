//! Repeats a round of a trace with other members or another deadline, and predicts its duration.
//!
//! Each message takes as long after the start of its phase as it did, and each phase ends by its
//! rule: after enough messages, or at its deadline. The valuation takes as long as in rounds with as
//! many updates, where the trace has one; otherwise as long as it did.

use std::collections::BTreeSet;

use super::path::PhaseMessages;
use super::round::TracedRound;

/// A change of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplayChange {
    /// The member that does not take part.
    pub(crate) without: Option<String>,
    /// The deadline of the commits, in nanoseconds after the offer. The deadline of the updates
    /// moves with it.
    pub(crate) deadline: Option<i64>,
}

/// A predicted round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PredictedRound {
    /// Its duration in nanoseconds.
    pub(crate) duration: i64,
    /// The members whose updates arrive.
    pub(crate) members: Vec<String>,
}

/// Predicts a round with a change. `all` are the rounds of the trace.
pub(crate) fn replay(
    round: &TracedRound,
    all: &[TracedRound],
    change: &ReplayChange,
) -> PredictedRound {
    let without = change.without.as_deref();
    let commits = PhaseMessages::of_commits(round);
    let deadline = change.deadline.or(round.commits.deadline);
    let cohort = round.cohort.iter().filter(|member| Some(member.as_str()) != without).count();
    let need = commits.need.min(cohort);
    let (commit_time, committed) = phase(&commits, need, deadline, without);
    let mut updates = PhaseMessages::of_updates(round);
    let upload_time = match (round.commits.deadline, round.updates.deadline) {
        (Some(commits), Some(updates)) => deadline.map(|by| by + (updates - commits)),
        _ => None,
    };
    let until = upload_time.map(|by| (by - commit_time).max(0));
    let committed: BTreeSet<&str> = committed.into_iter().collect();
    updates.arrivals.retain(|(_, member)| committed.contains(member));
    let (update_time, members) = phase(&updates, committed.len(), until, None);
    let value_time = match members.len() == round.update_arrivals().len() {
        true => round.value_end - round.reveal_end,
        false => value_time(round, all, members.len()),
    };
    let settle_time = round.end - round.value_end;
    PredictedRound {
        duration: [update_time, value_time, settle_time]
            .into_iter()
            .fold(commit_time, i64::saturating_add),
        members: members.into_iter().map(str::to_owned).collect(),
    }
}

/// The duration of a phase, and the members whose messages arrive in it.
fn phase<'a>(
    phase: &PhaseMessages<'a>,
    need: usize,
    deadline: Option<i64>,
    without: Option<&str>,
) -> (i64, Vec<&'a str>) {
    let tail = phase.last().map_or(0, |(last, _)| phase.end - last);
    let in_time = phase.arrivals.iter().map(|(at, member)| (at - phase.start, *member));
    let in_time = in_time.filter(|(at, member)| {
        Some(*member) != without && deadline.is_none_or(|deadline| *at <= deadline)
    });
    let arrived: Vec<_> = in_time.take(need).collect();
    let members = arrived.iter().map(|(_, member)| *member).collect();
    let last = arrived.last().map_or(0, |(at, _)| *at);
    let time = match deadline {
        Some(deadline) if arrived.len() < need => deadline,
        // Without a deadline in the trace the phase is as long as it was.
        None if arrived.len() < need => phase.end - phase.start - tail,
        _ => last,
    };
    (time.saturating_add(tail), members)
}

/// The median time of the valuation of other rounds with this number of updates; of this round if
/// there is none.
fn value_time(round: &TracedRound, all: &[TracedRound], updates: usize) -> i64 {
    let alike = all
        .iter()
        .filter(|other| other.task == round.task && other.update_arrivals().len() == updates);
    let mut times: Vec<i64> = alike.map(|other| other.value_end - other.reveal_end).collect();
    times.sort_unstable();
    let median = times.get(times.len().saturating_sub(1) / 2).copied();
    median.unwrap_or(round.value_end - round.reveal_end)
}
