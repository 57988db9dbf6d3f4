//! Repeats a round of a trace with other members or another deadline, and predicts its duration.
//!
//! Each message takes as long after the start of its phase as it did, and each phase ends by its
//! rule: after enough messages, or at its deadline. A member of the cohort for whose commit the round
//! did not wait replaces one that is missing: [`super::spares`] has the time of its commit. The
//! valuation takes as long as in rounds with as many updates, where the trace has one; otherwise as
//! long as it did.

use std::collections::{BTreeMap, BTreeSet};

use super::path::PhaseMessages;
use super::round::TracedRound;
use super::spares::{SpareMember, spare_members, usual_upload};

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
    /// The members that remain: their updates arrive, or their commits if there are too few of them.
    pub(crate) members: Vec<String>,
    /// Whether these are fewer than the task's least: the round is given up, without a valuation.
    pub(crate) is_abandoned: bool,
    /// Whether the duration is a lower bound: the trace does not have the commit of a member that
    /// replaces another one, or the time of a valuation.
    pub(crate) is_lower_bound: bool,
}

/// Why a round is not predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotPredicted {
    /// Trainings in it began in an earlier round, whose duration changes as well.
    LateUpdates,
}

/// Predicts a round with a change. `all` are the rounds of the trace.
///
/// # Errors
/// [`NotPredicted`].
pub(crate) fn replay(
    round: &TracedRound,
    all: &[TracedRound],
    change: &ReplayChange,
) -> Result<PredictedRound, NotPredicted> {
    if round.continuing > 0 {
        return Err(NotPredicted::LateUpdates);
    }
    let deadline = change.deadline.or(round.commits.deadline);
    let commits = replay_commits(round, all, change, deadline);
    let (least, settle_time) = (round.least.max(1), round.end - round.value_end);
    if commits.members.len() < least {
        return Ok(PredictedRound {
            duration: commits.time.saturating_add(settle_time),
            members: commits.members.into_iter().map(str::to_owned).collect(),
            is_abandoned: true,
            is_lower_bound: commits.is_lower_bound,
        });
    }
    let upload_time = match (round.commits.deadline, round.updates.deadline) {
        (Some(commits), Some(updates)) => deadline.map(|by| by.saturating_add(updates - commits)),
        _ => None,
    };
    let until = upload_time.map(|by| by.saturating_sub(commits.time).max(0));
    let updates = replay_updates(round, all, &commits, until);
    let measured = round.update_arrivals().len();
    let value_time = match updates.members.len() {
        number if number < least => Some(0),
        number if number == measured && measured >= least => {
            Some(round.value_end - round.reveal_end)
        }
        number => value_time(round, all, number),
    };
    Ok(PredictedRound {
        duration: [updates.time, value_time.unwrap_or(0), settle_time]
            .into_iter()
            .fold(commits.time, i64::saturating_add),
        is_abandoned: updates.members.len() < least,
        is_lower_bound: commits.is_lower_bound || updates.is_lower_bound || value_time.is_none(),
        members: updates.members.into_iter().map(str::to_owned).collect(),
    })
}

/// A predicted phase.
struct PredictedPhase<'a> {
    time: i64,
    /// The members whose messages arrive in it.
    members: Vec<&'a str>,
    /// The durations of the uploads of members that sent no update in the trace.
    uploads: BTreeMap<&'a str, i64>,
    is_lower_bound: bool,
}

/// The phase of the commits, with those for which the round did not wait.
fn replay_commits<'a>(
    round: &'a TracedRound,
    all: &[TracedRound],
    change: &ReplayChange,
    deadline: Option<i64>,
) -> PredictedPhase<'a> {
    let without = change.without.as_deref();
    let phase = PhaseMessages::of_commits(round);
    let spares: Vec<SpareMember<'_>> = spare_members(round, all);
    let remain = round.cohort.iter().filter(|member| Some(member.as_str()) != without).count();
    let need = phase.need.min(remain);
    // Later ones had no effect, and are spares.
    let counted = phase.arrivals.iter().take(phase.need);
    let known = counted.map(|(at, member)| (at - phase.start, *member, None));
    let spare = spares.iter().map(|spare| (spare.commit, spare.member, Some(spare)));
    let mut arrivals: Vec<_> = known.chain(spare).collect();
    arrivals.retain(|(_, member, _)| Some(*member) != without);
    // At the same time, those that counted are first.
    arrivals.sort_by_key(|(at, member, spare)| (*at, spare.is_some(), *member));
    let times: Vec<_> = arrivals.iter().map(|(at, member, _)| (*at, *member)).collect();
    let (time, members) = end_of_phase(&phase, &times, need, deadline);
    let used = || arrivals.iter().take(members.len()).filter_map(|(.., spare)| *spare);
    PredictedPhase {
        time,
        uploads: used().map(|spare| (spare.member, spare.upload)).collect(),
        is_lower_bound: used().any(|spare| spare.is_lower_bound),
        members,
    }
}

/// The phase of the updates of the members that committed.
fn replay_updates<'a>(
    round: &'a TracedRound,
    all: &[TracedRound],
    commits: &PredictedPhase<'a>,
    until: Option<i64>,
) -> PredictedPhase<'a> {
    let phase = PhaseMessages::of_updates(round);
    let committed: BTreeSet<&str> = commits.members.iter().copied().collect();
    let known = phase.arrivals.iter().filter(|(_, member)| committed.contains(member));
    let known = known.map(|(at, member)| (at - phase.start, *member));
    let mut times: Vec<_> =
        known.chain(commits.uploads.iter().map(|(member, upload)| (*upload, *member))).collect();
    // A round that was given up in its first phase has no uploads.
    let is_guessed = round.reveal_end == round.commit_end;
    if is_guessed {
        let there: BTreeSet<&str> = times.iter().map(|(_, member)| *member).collect();
        let without = committed.iter().filter(|member| !there.contains(*member));
        times.extend(without.map(|member| (usual_upload(round, all, member), *member)));
    }
    times.sort_unstable();
    let (time, members) = end_of_phase(&phase, &times, commits.members.len(), until);
    PredictedPhase { time, members, uploads: BTreeMap::new(), is_lower_bound: is_guessed }
}

/// The duration of a phase in which messages arrive at these times after its start, and the members
/// whose messages arrive in it.
fn end_of_phase<'a>(
    phase: &PhaseMessages<'_>,
    arrivals: &[(i64, &'a str)],
    need: usize,
    deadline: Option<i64>,
) -> (i64, Vec<&'a str>) {
    let tail = phase.last().map_or(0, |(last, _)| phase.end - last);
    let in_time = arrivals.iter().filter(|(at, _)| deadline.is_none_or(|by| *at <= by));
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
/// there is none. `None` if this round had no valuation either.
fn value_time(round: &TracedRound, all: &[TracedRound], updates: usize) -> Option<i64> {
    let alike = all
        .iter()
        .filter(|other| other.task == round.task && other.update_arrivals().len() == updates);
    let mut times: Vec<i64> = alike.map(|other| other.value_end - other.reveal_end).collect();
    times.sort_unstable();
    let is_valued = round.update_arrivals().len() >= round.least.max(1);
    let own = is_valued.then_some(round.value_end - round.reveal_end);
    times.get(times.len().saturating_sub(1) / 2).copied().or(own)
}
