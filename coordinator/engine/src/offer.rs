//! Opens a round: waits for enough participants, selects the cohort, and issues the offer.
//!
//! An account that enrolled when the seed of the next cohort was known already could have searched
//! for an address that is drawn. Such newcomers are drawn only for places that the others leave.

use alloc::boxed::Box;
use alloc::vec::Vec;

use florin_protocol::{
    Address, Candidate, Candidates, Canonical, Digest, EarlierUpdates, Offer, Report, RoundScope,
    SelectionReason, Standing, TaskEnd, TaskHistory, Timestamp, WaitingStatus, commit_deadline_ms,
    first_cohort_seed, select_cohort,
};

use super::enrol::last_start;
use super::state::{RunningRound, TaskStage, TaskState};

impl TaskState {
    /// Participants with a sufficient bond, ascending.
    fn bonded(&self) -> impl Iterator<Item = Address> + '_ {
        let smallest = self.spec.budget.bond_min;
        self.enrolled.iter().filter(move |(_, bond)| **bond >= smallest).map(|(who, _)| *who)
    }

    /// Participants that can be selected for the next round, ascending.
    fn selectable(&self) -> impl Iterator<Item = Address> + '_ {
        let round = self.current_round();
        let free = self.bonded().filter(|who| !self.is_busy(*who));
        free.filter(move |who| match self.sitting_out.get(who) {
            None => true,
            Some(from) => from.is_some_and(|from| from <= round),
        })
    }

    /// Participants that sit out the next round, ascending. They are selected only if the round
    /// could not start without them.
    fn reserve(&self) -> impl Iterator<Item = Address> + '_ {
        let round = self.current_round();
        let free = self.bonded().filter(|who| !self.is_busy(*who));
        free.filter(move |who| {
            self.sitting_out.get(who).is_some_and(|from| from.is_some_and(|from| from > round))
        })
    }

    /// The time at which waiting for participants ends: a round opens, or the task ends.
    pub(super) fn enrolling_deadline(&self, target_until: Timestamp) -> Timestamp {
        let over = self.latest_wait(target_until).saturating_add_ms(1);
        if self.has_enough_participants(target_until, target_until) {
            over.min(target_until)
        } else {
            over
        }
    }

    /// The latest time at which the task still waits for participants: `stall_ms` after the time
    /// from which `cohort_min` of them are enough, and never too late for a round before the task
    /// expires.
    fn latest_wait(&self, target_until: Timestamp) -> Timestamp {
        let over = last_start(&self.spec);
        match self.spec.rounds.stall_ms {
            0 => over,
            stall => over.min(target_until.saturating_add_ms(stall)),
        }
    }

    /// The participants that the task waits for, if it waits for any.
    pub(super) fn waiting_status(&self, now: Timestamp) -> Option<WaitingStatus> {
        let TaskStage::Enrolling { target_until } = self.stage else {
            return None;
        };
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let bonded = self.bonded().count();
        let (eligible, needed) = self.eligible_and_needed(now, target_until);
        Some(WaitingStatus {
            needed,
            eligible: count(eligible),
            bond_too_small: count(self.enrolled.len().saturating_sub(bonded)),
            inactive: count(bonded.saturating_sub(eligible)),
            target_until,
            ends: self.latest_wait(target_until),
        })
    }

    /// Before `target_until` a round needs its target number of participants, afterwards the
    /// minimum.
    fn has_enough_participants(&self, now: Timestamp, target_until: Timestamp) -> bool {
        let (there, needed) = self.eligible_and_needed(now, target_until);
        usize::try_from(needed).is_ok_and(|needed| there >= needed)
    }

    /// The number of participants that can be selected now, and the number that a round needs now.
    fn eligible_and_needed(&self, now: Timestamp, target_until: Timestamp) -> (usize, u32) {
        let rounds = &self.spec.rounds;
        if now < target_until {
            (self.selectable().count(), rounds.cohort_target)
        } else {
            (self.selectable().count().saturating_add(self.reserve().count()), rounds.cohort_min)
        }
    }

    /// Whether the task waits for participants and has enough of them.
    pub(super) fn opens_now(&self, now: Timestamp) -> bool {
        let TaskStage::Enrolling { target_until } = self.stage else { return false };
        let is_in_time = self.end.is_none() && now <= last_start(&self.spec);
        is_in_time && self.has_enough_participants(now, target_until)
    }

    /// Opens the next round if the task is waiting for participants and has enough of them.
    pub(super) fn open_if_ready(&mut self, now: Timestamp) {
        let TaskStage::Enrolling { target_until } = self.stage else {
            return;
        };
        if let Some(why) = self.end {
            self.end_task(why, now);
        } else if now > last_start(&self.spec) {
            self.end_task(TaskEnd::Expired, now);
        } else if self.has_enough_participants(now, target_until) {
            self.open_round(now);
        } else if now > self.latest_wait(target_until) {
            self.end_task(TaskEnd::Stalled, now);
        }
    }

    /// After a reported round: starts the next one, or ends the task.
    pub(super) fn next_round(&mut self, now: Timestamp) {
        let limit = self.spec.rounds.abandoned_max;
        let is_abandoned = limit > 0 && self.abandoned_in_a_row >= limit;
        let ends = match self.end {
            Some(why) => Some(why),
            None if self.current_round().0 > self.spec.rounds.count => Some(TaskEnd::Completed),
            None if is_abandoned => Some(TaskEnd::RoundsAbandoned),
            None => None,
        };
        if let Some(why) = ends {
            self.end_task(why, now);
            return;
        }
        self.stage = TaskStage::Enrolling { target_until: now };
        self.open_if_ready(now);
    }

    /// Ends the task. If earlier rounds withheld pay that stands out, a last report without updates
    /// pays it first.
    pub(super) fn end_task(&mut self, why: TaskEnd, now: Timestamp) {
        self.end.get_or_insert(why);
        if !self.settle_withheld(why, now) {
            self.begin_closing(why);
        }
    }

    /// Ends the task: no more rounds start, and a running round is dropped. Rows drawn for a
    /// dropped round are not marked as used, because no later round needs rows.
    pub(super) fn begin_closing(&mut self, why: TaskEnd) {
        self.end.get_or_insert(why);
        self.stage = TaskStage::Closing;
        self.exposed.clear();
        self.quotes.clear();
        self.shared.clear();
        self.history = TaskHistory::default();
        self.earlier = EarlierUpdates::default();
    }

    fn open_round(&mut self, now: Timestamp) {
        let round = self.current_round();
        let last = self.rounds_in_memory.last_key_value().map(|(_, past)| past);
        let previous = last.map_or(Digest(self.id.0), |past| past.digest);
        let before = last.map(|past| &past.report);
        let Ok(pool) = self.spec.pool_for_round(round, before) else {
            // More was paid than deposited, which the pay rule makes impossible. If it happens,
            // nothing more is paid.
            self.begin_closing(TaskEnd::Fault);
            return;
        };
        let candidates = self.candidates();
        let rules = &self.spec.rounds;
        let (cohort, reasons): (Vec<Address>, Vec<SelectionReason>) =
            select_cohort(rules, round, &candidates, &self.history)
                .into_iter()
                .map(|selected| (selected.account, selected.reason))
                .unzip();
        let train_ms = commit_deadline_ms(rules, round, &candidates, &self.history, &cohort);
        let commit_by = now.saturating_add_ms(train_ms);
        self.sitting_out.retain(|who, _| cohort.binary_search(who).is_err());
        let offer = Offer {
            scope: RoundScope { market: self.spec.market, task: self.id, round },
            base_model: before.map_or(self.spec.base_model, |report| report.model),
            previous_report: previous,
            cohort,
            reasons,
            candidates: candidates.digest(),
            opened: now,
            commit_by,
            reveal_by: commit_by.saturating_add_ms(self.spec.rounds.reveal_ms),
            pool,
        };
        self.stage = TaskStage::Committing(Box::new(RunningRound::new(offer, candidates)));
    }

    /// Every enrolled participant and its standing for the next round.
    fn candidates(&self) -> Candidates {
        let candidate = |who: &Address| {
            let quote_ms = self.quotes.get(who).copied().unwrap_or_default();
            let standing = self.standing_among(*who, self.own_standing(*who));
            (*who, Candidate { standing, quote_ms })
        };
        let accounts = self.enrolled.keys().map(candidate).collect();
        Candidates { seed: self.cohort_seed_now(), accounts }
    }

    /// The standing of an enrolled participant, without regard to other tasks.
    pub(super) fn own_standing(&self, who: Address) -> Standing {
        let (round, smallest) = (self.current_round(), self.spec.budget.bond_min);
        let bond = self.enrolled.get(&who).copied().unwrap_or_default();
        match self.sitting_out.get(&who) {
            _ if bond < smallest => Standing::BondTooSmall,
            Some(None) => Standing::Absent,
            Some(Some(from)) if *from > round => Standing::Reserve,
            _ if self.cohort_seed.is_some() && self.newcomers.contains(&who) => Standing::Newcomer,
            _ => Standing::Eligible,
        }
    }

    /// The seed of the next cohort.
    fn cohort_seed_now(&self) -> Digest {
        self.cohort_seed.unwrap_or_else(|| {
            let enrolled: Vec<Address> = self.enrolled.keys().copied().collect();
            first_cohort_seed(self.id, self.holdout.unwrap_or_default(), &enrolled)
        })
    }

    /// Records a new enrolment. From the end of a round's commits on, its salts may be known.
    pub(super) fn add_newcomer(&mut self, account: Address) {
        self.newcomers.insert(account);
        if matches!(self.stage, TaskStage::Revealing(_) | TaskStage::Valuing(_)) {
            self.enrolled_after_commits.insert(account);
        }
    }

    /// The salts of a round with an accepted update seed the next cohort. Accounts that enrolled
    /// before its commits closed could not know them.
    pub(super) fn fix_cohort_seed(&mut self, report: &Report) {
        let late = core::mem::take(&mut self.enrolled_after_commits);
        if !report.entries.is_empty() {
            self.cohort_seed = Some(report.holdout.seed);
            self.newcomers = late;
        }
    }

    /// Applies the deadline that is due at `now`.
    pub(super) fn tick(&mut self, now: Timestamp) {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        match self.stage {
            TaskStage::AwaitingBlobs if now > self.spec.expires => {
                self.begin_closing(TaskEnd::Expired);
            }
            TaskStage::AwaitingBlobs => self.begin_closing(TaskEnd::BlobsMissing),
            TaskStage::Enrolling { .. } => self.open_if_ready(now),
            TaskStage::Committing(_) => self.close_commits(now),
            TaskStage::Revealing(_) => self.close_reveals(now),
            TaskStage::Valuing(_) => self.order_due(now),
            TaskStage::Settling | TaskStage::Closing | TaskStage::Done => {}
        }
    }
}
