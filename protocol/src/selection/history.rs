//! The history of a task's participants: a fold over the reports of earlier rounds.

use std::collections::{BTreeMap, BTreeSet};

use borsh::{BorshDeserialize, BorshSerialize};

use super::attendance::Attendance;
use crate::class_effects::SHARE_PARTS;
use crate::id::{Address, RoundNumber};
use crate::message::{AbandonReason, MissingReason, RoundOutcome};
use crate::report::{Report, RoundTimes};
use crate::staleness::StalenessRule;
use crate::time::Timestamp;

/// Rounds whose losses the trend looks back on, in each of its two halves.
const TREND_ROUNDS: usize = 5;
/// The weight of a new observation in a smoothed value: one part of this many.
const SMOOTHING: u64 = 4;
/// Parts of a smoothed share for each part of a reported one.
const SHARE_SCALE: u16 = 256;
/// A trend is stalled if the newer half of the rounds improved the model by less than one part of
/// this many of the older half's improvement.
const STALLED_PART: u64 = 8;

/// A participant's part in a task's earlier rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct MemberHistory {
    /// Number of rounds in which it was selected.
    pub selected: u32,
    /// Number of its accepted updates.
    pub delivered: u32,
    /// Number of rounds in which it was selected and sent no update that was accepted, although
    /// the commits were open until their deadline.
    pub failed: u32,
    /// The number of the last round in which it was selected; 0 if there is none.
    pub last_selected: u32,
    /// Smoothed time from an offer to its commit, in milliseconds; 0 if it never committed.
    pub commit_ms: u64,
    /// Sum of the rows that counted.
    pub rows: u64,
    /// Smoothed score of an update, in nano-nats.
    pub score_nano: i64,
    /// Smoothed standard error of these scores, in nano-nats.
    pub error_nano: u64,
    /// The training that goes on after the last round, if it may still deliver its update.
    pub ongoing: Option<OngoingTraining>,
}

/// A training that was not over when its round's commits ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct OngoingTraining {
    /// The round that selected the participant.
    pub since: RoundNumber,
    /// When that round opened.
    pub began: Timestamp,
    /// Number of versions of the model since.
    pub versions: u32,
}

/// The history of a task's participants and of its model.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct TaskHistory {
    members: BTreeMap<Address, MemberHistory>,
    /// Improvements of the last rounds, oldest first: at most two halves of a trend.
    improvements: Vec<u64>,
    /// Whether the last round was abandoned with too few updates.
    too_few_updates: bool,
    attendance: Attendance,
    classes: ClassHistory,
}

/// Shares with fewer parts in all are ignored: their update improved too little to show its classes.
const PARTS_MIN: u16 = 128;

/// The model's loss on each class, and the classes that the updates of each participant improve.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct ClassHistory {
    /// Smoothed losses, in nano-nats; 0 for a class of which no round had a row.
    losses: Vec<u64>,
    /// Smoothed shares, in parts of [`ClassHistory::WHOLE`].
    shares: BTreeMap<Address, Vec<u16>>,
}

impl ClassHistory {
    /// All shares of a participant together have at most this many parts.
    pub const WHOLE: u16 = SHARE_PARTS.saturating_mul(SHARE_SCALE);

    /// The smoothed loss on each class, in nano-nats; empty before the first round that has them.
    #[must_use]
    pub fn losses(&self) -> &[u64] {
        &self.losses
    }

    /// The share of each class in what the participant's updates improve; `None` before the first.
    #[must_use]
    pub fn shares(&self, account: Address) -> Option<&[u16]> {
        self.shares.get(&account).map(Vec::as_slice)
    }

    fn add_round(&mut self, report: &Report) {
        let effects = report.valuation.as_ref().map(|valuation| &valuation.evidence.class_effects);
        let Some(Some(effects)) = effects else { return };
        self.losses.resize(effects.losses_nano.len(), 0);
        for (known, new) in self.losses.iter_mut().zip(&effects.losses_nano) {
            let Some(new) = new else { continue };
            *known = if *known == 0 { *new } else { smooth(*known, *new) };
        }
        for (entry, shares) in report.entries.iter().zip(&effects.shares) {
            let parts = shares.iter().fold(0_u16, |sum, share| sum.saturating_add((*share).into()));
            if parts < PARTS_MIN {
                continue;
            }
            let new = shares.iter().map(|share| u16::from(*share).saturating_mul(SHARE_SCALE));
            match self.shares.get_mut(&entry.sender) {
                Some(known) => {
                    known.iter_mut().zip(new).for_each(|(known, new)| *known = known.midpoint(new))
                }
                None => {
                    self.shares.insert(entry.sender, new.collect());
                }
            }
        }
    }
}

impl TaskHistory {
    /// The history of a participant: all zeros before its first selection.
    #[must_use]
    pub fn member(&self, account: Address) -> MemberHistory {
        self.members.get(&account).copied().unwrap_or_default()
    }

    /// Whether the newer half of the last ten rounds improved the model much less than the older.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        let sum = |part: &[u64]| part.iter().fold(0_u64, |sum, one| sum.saturating_add(*one));
        let Some((older, newer)) = self.improvements.split_at_checked(TREND_ROUNDS) else {
            return false;
        };
        newer.len() == TREND_ROUNDS && sum(newer).saturating_mul(STALLED_PART) < sum(older)
    }

    /// The classes of the participants' data.
    #[must_use]
    pub const fn classes(&self) -> &ClassHistory {
        &self.classes
    }

    /// Whether the last round was abandoned with too few updates.
    #[must_use]
    pub const fn had_too_few_updates(&self) -> bool {
        self.too_few_updates
    }

    /// How many participants to ask so that `wanted` commit, by the part of earlier cohorts that did.
    #[must_use]
    pub(super) fn asked_for(&self, wanted: u32) -> u64 {
        self.attendance.asked_for(wanted)
    }

    /// The participants whose trainings go on, ascending.
    pub fn continuing(&self) -> impl Iterator<Item = Address> + '_ {
        self.members
            .iter()
            .filter(|(_, member)| member.ongoing.is_some())
            .map(|(account, _)| *account)
    }

    /// The staleness of an update that the participant sends in the round after this history.
    #[must_use]
    pub fn staleness(&self, account: Address) -> u32 {
        let ongoing = self.members.get(&account).and_then(|member| member.ongoing);
        ongoing.map_or(0, |ongoing| ongoing.versions)
    }

    /// Whether a participant of the round that runs after this history may still deliver in the next
    /// one, if it sends no commit in `round`.
    #[must_use]
    pub fn may_continue(&self, rule: StalenessRule, account: Address, round: RoundNumber) -> bool {
        let ongoing = self.members.get(&account).and_then(|member| member.ongoing);
        let since = ongoing.map_or(round, |ongoing| ongoing.since);
        round.0.saturating_sub(since.0) < rule.rounds
    }

    /// Adds a reported round. Its cohort is all senders and all that are missing.
    pub fn add_round(&mut self, rule: StalenessRule, report: &Report) {
        let began = report.times.opened;
        let senders = report.entries.iter().map(|entry| entry.sender);
        let cohort: BTreeSet<Address> =
            senders.chain(report.missing.iter().map(|(account, _)| *account)).collect();
        for (account, member) in &mut self.members {
            if !cohort.contains(account) {
                member.ongoing = None;
            }
        }
        if !rule.admits_late() {
            self.attendance.add_round(report, cohort.len());
        }
        for account in cohort {
            let member = self.members.entry(account).or_default();
            if member.ongoing.is_none() {
                member.selected = member.selected.saturating_add(1);
                member.last_selected = report.scope.round.0;
                let since = report.scope.round;
                member.ongoing = Some(OngoingTraining { since, began, versions: 0 });
            }
        }
        self.add_commits(report);
        self.add_updates(report);
        self.add_missing(rule, report);
        self.add_improvement(report);
        self.classes.add_round(report);
    }

    fn add_commits(&mut self, report: &Report) {
        for ((account, _), at) in report.commits.iter().zip(&report.times.commits) {
            let member = self.members.entry(*account).or_default();
            let began = member.ongoing.take().map_or(report.times.opened, |ongoing| ongoing.began);
            let taken = at.ms_since(began).max(1);
            member.commit_ms = match member.commit_ms {
                0 => taken,
                known => smooth(known, taken),
            };
        }
    }

    fn add_updates(&mut self, report: &Report) {
        for entry in &report.entries {
            let member = self.members.entry(entry.sender).or_default();
            member.delivered = member.delivered.saturating_add(1);
            member.rows = member.rows.saturating_add(entry.rows_counted);
            let Some(score) = report.score(entry.sender) else { continue };
            // Earlier updates may be of rounds without scores.
            let is_first = member.score_nano == 0 && member.error_nano == 0;
            (member.score_nano, member.error_nano) = if is_first {
                (score.score_nano, score.error_nano)
            } else {
                (
                    smooth_signed(member.score_nano, score.score_nano),
                    smooth(member.error_nano, score.error_nano),
                )
            };
        }
    }

    /// A participant without a commit when commits closed early was slower than the others: that is
    /// no failure, and its time is at least this long. With too few commits no update was asked for,
    /// so that none is missing. Where late updates count, a training may go on for the rounds of the
    /// rule, and fails after them.
    fn add_missing(&mut self, rule: StalenessRule, report: &Report) {
        let RoundTimes { opened, commit_by, commits_closed: closed, .. } = report.times;
        let closed_early = closed < commit_by;
        let needed = match report.outcome {
            RoundOutcome::Abandoned(AbandonReason::TooFewUpdates { needed, .. }) => Some(needed),
            _ => None,
        };
        self.too_few_updates = needed.is_some();
        let commits = u32::try_from(report.commits.len()).unwrap_or(u32::MAX);
        let had_no_reveals = needed.is_some_and(|needed| commits < needed);
        for (account, reason) in &report.missing {
            let goes_on = *reason == MissingReason::NoCommit
                && self.may_continue(rule, *account, report.scope.round);
            let member = self.members.entry(*account).or_default();
            let began = member.ongoing.map_or(opened, |ongoing| ongoing.began);
            if *reason == MissingReason::NoCommit {
                member.commit_ms = member.commit_ms.max(closed.min(commit_by).ms_since(began));
                if goes_on {
                    if let Some(ongoing) = &mut member.ongoing {
                        let more = u32::from(report.model != report.base_model);
                        ongoing.versions = ongoing.versions.saturating_add(more);
                    }
                    continue;
                }
            }
            member.ongoing = None;
            let is_excused = match reason {
                MissingReason::NoCommit => closed_early && !rule.admits_late(),
                MissingReason::NoReveal => had_no_reveals,
                MissingReason::Rejected(_) => false,
            };
            if !is_excused {
                member.failed = member.failed.saturating_add(1);
            }
        }
    }

    fn add_improvement(&mut self, report: &Report) {
        let gained = match &report.valuation {
            Some(valuation) if report.is_productive() => {
                u64::try_from(valuation.total_nano).unwrap_or_default()
            }
            _ => 0,
        };
        self.push_improvement(gained);
    }

    pub(super) fn push_improvement(&mut self, gained: u64) {
        if self.improvements.len() >= TREND_ROUNDS.saturating_mul(2) {
            self.improvements.remove(0);
        }
        self.improvements.push(gained);
    }

    #[cfg(test)]
    pub(super) fn with_classes(
        self,
        losses: Vec<u64>,
        shares: BTreeMap<Address, Vec<u16>>,
    ) -> Self {
        Self { classes: ClassHistory { losses, shares }, ..self }
    }

    #[cfg(test)]
    pub(super) fn from_members(members: BTreeMap<Address, MemberHistory>) -> Self {
        Self { members, ..Self::default() }
    }
}

/// A smoothed value after a new observation, rounded down.
fn smooth(known: u64, new: u64) -> u64 {
    let sum = u128::from(known)
        .saturating_mul(u128::from(SMOOTHING.saturating_sub(1)))
        .saturating_add(new.into());
    let mean = sum.checked_div(SMOOTHING.into()).unwrap_or_default();
    u64::try_from(mean).unwrap_or(u64::MAX)
}

/// The same for a signed value, rounded towards zero.
fn smooth_signed(known: i64, new: i64) -> i64 {
    let parts = i128::from(SMOOTHING);
    let sum = i128::from(known).saturating_mul(parts.saturating_sub(1)).saturating_add(new.into());
    i64::try_from(sum.checked_div(parts).unwrap_or_default()).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "late_tests.rs"]
mod tests;
