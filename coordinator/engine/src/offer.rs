//! Opens a round: waits for enough participants, selects the cohort by a fair random sample, and
//! issues the offer.

use alloc::boxed::Box;
use alloc::vec::Vec;

use florin_protocol::{
    Address, Digest, EarlierUpdates, Offer, RoundNumber, RoundScope, TaskEnd, Timestamp,
    WaitingStatus,
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
        self.bonded().filter(move |who| match self.sitting_out.get(who) {
            None => true,
            Some(from) => from.is_some_and(|from| from <= round),
        })
    }

    /// Participants that sit out the next round, ascending. They are selected only if the round
    /// could not start without them.
    fn reserve(&self) -> impl Iterator<Item = Address> + '_ {
        let round = self.current_round();
        self.bonded().filter(move |who| {
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

    /// Opens the next round if the task is waiting for participants and has enough of them.
    pub(super) fn open_if_ready(&mut self, now: Timestamp) {
        let TaskStage::Enrolling { target_until } = self.stage else {
            return;
        };
        if let Some(why) = self.end {
            self.begin_closing(why);
        } else if now > last_start(&self.spec) {
            self.begin_closing(TaskEnd::Expired);
        } else if self.has_enough_participants(now, target_until) {
            self.open_round(now);
        } else if now > self.latest_wait(target_until) {
            self.begin_closing(TaskEnd::Stalled);
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
            self.begin_closing(why);
            return;
        }
        self.stage = TaskStage::Enrolling { target_until: now };
        self.open_if_ready(now);
    }

    /// Ends the task: no more rounds start, and a running round is dropped. Rows drawn for a
    /// dropped round are not marked as used, because no later round needs rows.
    pub(super) fn begin_closing(&mut self, why: TaskEnd) {
        self.end.get_or_insert(why);
        self.stage = TaskStage::Closing;
        self.exposed.clear();
        self.earlier = EarlierUpdates::default();
    }

    fn open_round(&mut self, now: Timestamp) {
        let round = self.current_round();
        let last = self.rounds_in_memory.last_key_value().map(|(_, past)| past);
        let previous = last.map_or(Digest(self.id.0), |past| past.digest);
        let before = last.map(|past| &past.report);
        let commit_by = now.saturating_add_ms(self.spec.rounds.train_ms);
        let Ok(pool) = self.spec.pool_for_round(round, before) else {
            // More was paid than deposited, which the pay rule makes impossible. If it happens,
            // nothing more is paid.
            self.begin_closing(TaskEnd::Fault);
            return;
        };
        let cohort = self.cohort(previous, round);
        self.sitting_out.retain(|who, _| cohort.binary_search(who).is_err());
        let offer = Offer {
            scope: RoundScope { market: self.spec.market, task: self.id, round },
            base_model: before.map_or(self.spec.base_model, |report| report.model),
            previous_report: previous,
            cohort,
            opened: now,
            commit_by,
            reveal_by: commit_by.saturating_add_ms(self.spec.rounds.reveal_ms),
            pool,
        };
        self.stage = TaskStage::Committing(Box::new(RunningRound::new(offer)));
    }

    /// Selects the cohort of a round, ascending.
    fn cohort(&self, previous: Digest, round: RoundNumber) -> Vec<Address> {
        let size = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        let asked = size(self.spec.rounds.selection_size());
        let mut cohort = sample_cohort(previous, round, self.selectable(), asked);
        if cohort.len() < size(self.spec.rounds.cohort_min) {
            let more = asked.saturating_sub(cohort.len());
            cohort.extend(sample_cohort(previous, round, self.reserve(), more));
            cohort.sort_unstable();
        }
        cohort
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
            TaskStage::Committing(_) => self.commits_due(now),
            TaskStage::Revealing(_) => self.close_reveals(now),
            TaskStage::Valuing(_) => self.order_due(now),
            TaskStage::Settling | TaskStage::Closing | TaskStage::Done => {}
        }
    }
}

/// Samples `asked` of the eligible participants without replacement. Each participant has a ticket:
/// the hash of the previous report, the round and its address. The smallest tickets win. Returns
/// the addresses in ascending order.
fn sample_cohort(
    previous: Digest,
    round: RoundNumber,
    eligible: impl Iterator<Item = Address>,
    asked: usize,
) -> Vec<Address> {
    let ticket = |who: &Address| {
        let mut hasher = blake3::Hasher::new_derive_key("florin v1 cohort");
        hasher.update(&previous.0);
        hasher.update(&round.0.to_le_bytes());
        hasher.update(&who.0);
        *hasher.finalize().as_bytes()
    };
    let mut tickets: Vec<([u8; 32], Address)> = eligible.map(|who| (ticket(&who), who)).collect();
    tickets.sort_unstable();
    let mut cohort: Vec<Address> = tickets.into_iter().take(asked).map(|(_, who)| who).collect();
    cohort.sort_unstable();
    cohort
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cohort_sampling_is_fair_sorted_and_different_each_round() {
        let all: Vec<Address> = (0..100u8).map(|i| Address([i; 20])).collect();
        let mut times = [0u32; 100];
        for round in 1..=200 {
            let cohort =
                sample_cohort(Digest([7; 32]), RoundNumber(round), all.iter().copied(), 10);
            assert_eq!(cohort.len(), 10);
            assert!(cohort.is_sorted());
            cohort.iter().for_each(|who| times[usize::from(who.0[0])] += 1);
        }
        // The expected count is 20; the bounds are 4.2 standard deviations.
        assert!(times.iter().all(|n| (2..=38).contains(n)), "{times:?}");
        let again = sample_cohort(Digest([7; 32]), RoundNumber(1), all.iter().rev().copied(), 10);
        assert_eq!(again, sample_cohort(Digest([7; 32]), RoundNumber(1), all.iter().copied(), 10));
    }
}
