//! Members of a cohort for whose commits a round did not wait, and when they would have committed.
//!
//! A laboratory records the time. In a market it is the arrival of a commit that was refused because
//! the cohort was full; or the end of the training, later by the usual delay of a commit. Of a member
//! without any of them only a lower bound is known: it had not committed when the commits were closed.

use std::collections::BTreeSet;

use super::path::PhaseMessages;
use super::round::{MemberMessages, TracedRound};

/// A member whose commit did not count, in nanoseconds after the offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpareMember<'a> {
    /// The member.
    pub(crate) member: &'a str,
    /// When its commit would have arrived.
    pub(crate) commit: i64,
    /// Whether this is a lower bound.
    pub(crate) is_lower_bound: bool,
    /// The duration of its upload.
    pub(crate) upload: i64,
}

/// The members of the cohort whose commits did not count, except those that had finished and sent
/// none. `all` are the rounds of the trace.
pub(crate) fn spare_members<'a>(
    round: &'a TracedRound,
    all: &[TracedRound],
) -> Vec<SpareMember<'a>> {
    let phase = PhaseMessages::of_commits(round);
    let counted = phase.arrivals.iter().take(phase.need);
    let counted: BTreeSet<&str> = counted.map(|(_, member)| *member).collect();
    let Some(closed) = end_of_commits(round, &phase) else { return Vec::new() };
    let delays = commit_delays(round);
    let (delay, longest) = (median(&delays).unwrap_or(0), delays.last().copied().unwrap_or(0));
    let spare = |member: &'a String| {
        if let Some(times) = round.spares.get(member) {
            let (commit, upload) = (times.commit.max(closed - round.start), times.upload);
            return Some(SpareMember { member, commit, is_lower_bound: false, upload });
        }
        let times = round.members.get(member).cloned().unwrap_or_default();
        // A commit can also have arrived after the end of its phase without a refusal in the trace.
        let arrived = times.commit_refused.or(times.commit_arrived);
        let (at, is_lower_bound) = match (arrived, round.trained.get(member)) {
            (Some(arrived), _) => (arrived, false),
            // Of an unknown clock only durations are right.
            (None, Some(trained)) if round.one_way.contains(member) => {
                let read = times.offer_read.unwrap_or(round.start);
                ((trained - read).saturating_add(round.start).saturating_add(delay), true)
            }
            // The training failed: it had ended, and no commit followed.
            (None, Some(trained)) if trained.saturating_add(longest) < closed => return None,
            (None, Some(trained)) => (trained.saturating_add(delay), false),
            (None, None) => (closed, true),
        };
        let upload = usual_upload(round, all, member);
        Some(SpareMember { member, commit: at.max(closed) - round.start, is_lower_bound, upload })
    };
    round
        .cohort
        .iter()
        .filter(|member| !counted.contains(member.as_str()))
        .filter_map(spare)
        .collect()
}

/// The moment after which another commit had no effect: that of the last one that was needed, or
/// the deadline. `None` if the trace has neither.
fn end_of_commits(round: &TracedRound, phase: &PhaseMessages<'_>) -> Option<i64> {
    let deadline = || Some(round.start.saturating_add(round.commits.deadline?).saturating_add(1));
    match phase.last() {
        Some((at, _)) => Some(at),
        None => Some(deadline()?.max(round.commit_end)),
    }
}

/// The usual time of a member's upload: its own in other rounds, or the median of the round.
pub(super) fn usual_upload(round: &TracedRound, all: &[TracedRound], member: &str) -> i64 {
    own_upload(round, all, member).unwrap_or_else(|| median_upload(round))
}

/// The times from the ends of trainings to the arrivals of their commits, the shortest first.
fn commit_delays(round: &TracedRound) -> Vec<i64> {
    let delay = |(at, member): (i64, &str)| Some((at - round.trained.get(member)?).max(0));
    sorted(round.commit_arrivals().into_iter().filter_map(delay))
}

/// The median time from the request to the arrival of a member's updates in other rounds.
fn own_upload(round: &TracedRound, all: &[TracedRound], member: &str) -> Option<i64> {
    let same_task = all.iter().filter(|other| other.task == round.task);
    median(&sorted(same_task.filter_map(|other| upload(other, other.members.get(member)?))))
}

/// The same for all members in one round; 0 without any.
fn median_upload(round: &TracedRound) -> i64 {
    let uploads = round.members.values().filter_map(|times| upload(round, times));
    median(&sorted(uploads)).unwrap_or(0)
}

fn upload(round: &TracedRound, times: &MemberMessages) -> Option<i64> {
    let arrived = times.update_arrived.filter(|at| *at <= round.reveal_end)?;
    Some((arrived - round.commit_end).max(0))
}

fn sorted(times: impl Iterator<Item = i64>) -> Vec<i64> {
    let mut times: Vec<i64> = times.collect();
    times.sort_unstable();
    times
}

fn median(sorted: &[i64]) -> Option<i64> {
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}
