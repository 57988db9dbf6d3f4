//! Participants that several tasks of one coordinator share: which of them a task leaves to others
//! when it opens a round, and the task that goes first. After Venn (Liu et al., MLSys 2025): the
//! scarcest resource is served first.
//!
//! A participant may state how many rounds it works on at a time. One without room for another round
//! is [`Standing::Busy`](super::Standing) in all other tasks. One with room for a last round is
//! contended: a task that has more eligible participants than places leaves those to the tasks that
//! wait for them, or need them for their next round.
//!
//! A reservation takes no place from a task: it only decides which of more participants than places
//! can be selected. So a task opens no later, and selects no fewer, than without it.

use core::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::id::{Address, TaskId};

/// A task that waits for a round, or whose round runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedTask {
    /// The task.
    pub task: TaskId,
    /// Participants that its next round needs.
    pub needed: usize,
    /// Participants that its next round selects at most.
    pub places: usize,
    /// Participants that can be selected, with those that are busy.
    pub supply: usize,
    /// Participants that can be selected now, without those that work for its running round.
    pub free: BTreeSet<Address>,
    /// Participants that work for its running round: they can be selected for the next one.
    pub returning: usize,
    /// How long it has waited, or its round has run, in milliseconds.
    pub waited_ms: u64,
    /// The longest time of its rounds, in milliseconds.
    pub round_ms: u64,
}

impl SharedTask {
    /// Orders tasks by scarcity: the fewest participants for each that is needed come first; of equal
    /// tasks the one with the smaller id.
    #[must_use]
    pub fn by_scarcity(&self, other: &Self) -> Ordering {
        let parts = |supply: usize, needed: usize| {
            let wide = |number: usize| u128::try_from(number).unwrap_or(u128::MAX);
            wide(supply).saturating_mul(wide(needed))
        };
        parts(self.supply, other.needed)
            .cmp(&parts(other.supply, self.needed))
            .then(self.task.cmp(&other.task))
    }

    /// Whether participants may be reserved for this task while another one opens a round: it has
    /// enough of them, busy ones included, and has not waited longer than a round of either task. So
    /// a task without participants, or with endless rounds, holds none.
    fn may_reserve(&self, opening: &Self) -> bool {
        self.task != opening.task
            && self.supply >= self.needed
            && self.waited_ms <= self.round_ms.min(opening.round_ms)
    }
}

/// The eligible participants that a task leaves to others when it opens a round, each with the task
/// for which it is reserved. `contended` are those with room for one more round.
///
/// The others are served by scarcity. Each gets what its demand lacks without the contended
/// participants, at most; and all together get what the opening task has beyond its places.
#[must_use]
pub fn reserved_for_others(
    opening: &SharedTask,
    others: &[SharedTask],
    contended: &BTreeSet<Address>,
) -> BTreeMap<Address, TaskId> {
    let mut spare = opening.free.len().saturating_sub(opening.places);
    let mut rivals: Vec<&SharedTask> =
        others.iter().filter(|other| other.may_reserve(opening)).collect();
    rivals.sort_by(|one, other| one.by_scarcity(other));
    let mut reserved = BTreeMap::new();
    for rival in rivals {
        let at_risk = |who: &&Address| opening.free.contains(who) && contended.contains(who);
        let safe = rival.free.len().saturating_sub(rival.free.iter().filter(at_risk).count());
        let lack = rival.needed.saturating_sub(safe).saturating_sub(rival.returning).min(spare);
        let left = rival.free.iter().filter(at_risk).filter(|who| !reserved.contains_key(*who));
        let own: Vec<Address> = left.take(lack).copied().collect();
        spare = spare.saturating_sub(own.len());
        reserved.extend(own.into_iter().map(|who| (who, rival.task)));
    }
    reserved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(number: u8) -> Address {
        Address([number; 20])
    }

    fn task(number: u8, needed: usize, free: &[u8]) -> SharedTask {
        SharedTask {
            task: TaskId([number; 32]),
            needed,
            places: needed,
            supply: free.len(),
            free: free.iter().copied().map(account).collect(),
            returning: 0,
            waited_ms: 0,
            round_ms: 1_000,
        }
    }

    fn all() -> BTreeSet<Address> {
        (0..32).map(account).collect()
    }

    fn reserved(opening: &SharedTask, others: &[SharedTask]) -> Vec<(u8, u8)> {
        let found = reserved_for_others(opening, others, &all());
        found.into_iter().map(|(who, task)| (who.0[0], task.0[0])).collect()
    }

    #[test]
    fn a_task_with_many_participants_leaves_those_that_a_scarce_one_needs() {
        let many = task(1, 2, &[1, 2, 3, 4, 5, 6]);
        let scarce = task(2, 2, &[2, 4]);
        assert_eq!(reserved(&many, std::slice::from_ref(&scarce)), [(2, 2), (4, 2)]);
        // The scarce task takes its two, and leaves none.
        assert_eq!(reserved(&scarce, &[many]), []);
    }

    #[test]
    fn no_place_is_lost_and_the_scarcest_is_served_first() {
        let opening = task(1, 2, &[1, 2, 3]);
        let (less, more) = (task(2, 2, &[1, 2]), task(3, 2, &[1, 3, 9]));
        // One of three is spare: it goes to the task with two for two, not to that with three.
        assert_eq!(reserved(&opening, &[more.clone(), less.clone()]), [(1, 2)]);
        assert_eq!(reserved(&opening, &[more]), [(1, 3)]);
        let wide = SharedTask { places: 3, ..opening };
        assert_eq!(reserved(&wide, &[less]), [], "it fills all places");
    }

    #[test]
    fn only_what_a_demand_lacks_is_reserved() {
        let opening = task(1, 1, &[1, 2, 3, 4, 5]);
        // Two that the opening task cannot take are there already.
        assert_eq!(reserved(&opening, &[task(2, 3, &[2, 3, 8, 9])]), [(2, 2)]);
        // Two of three work for its running round, and return.
        let runs = SharedTask { returning: 2, supply: 5, ..task(2, 3, &[2, 3]) };
        assert_eq!(reserved(&opening, &[runs]), [(2, 2)]);
        let contended = BTreeSet::from([account(3)]);
        let rival = task(2, 2, &[2, 3]);
        let found = reserved_for_others(&opening, &[rival], &contended);
        assert_eq!(found.into_keys().collect::<Vec<_>>(), [account(3)]);
    }

    #[test]
    fn a_task_that_cannot_start_or_waits_long_holds_no_participant() {
        let opening = task(1, 1, &[1, 2, 3]);
        let empty = task(2, 5, &[2]);
        let late = SharedTask { waited_ms: 1_001, ..task(2, 1, &[2]) };
        let endless = SharedTask { waited_ms: 1_001, round_ms: u64::MAX, ..task(2, 1, &[2]) };
        assert_eq!(reserved(&opening, &[empty, late, endless, opening.clone()]), []);
        let busy = SharedTask { supply: 5, ..task(2, 5, &[2]) };
        assert_eq!(reserved(&opening, &[busy]), [(2, 2)]);
    }

    /// All cohorts of a size from a set.
    fn cohorts(from: &[Address], size: usize) -> Vec<BTreeSet<Address>> {
        (0..1_u32 << from.len())
            .filter(|mask| usize::try_from(mask.count_ones()) == Ok(size))
            .map(|mask| {
                let chosen = from.iter().enumerate().filter(|(at, _)| mask >> at & 1 == 1);
                chosen.map(|(_, who)| *who).collect()
            })
            .collect()
    }

    /// Rounds that start if `first` opens before `second`: the fewest over all cohorts that are not
    /// reserved, and the most over all cohorts.
    fn started(first: &SharedTask, second: &SharedTask) -> (usize, usize) {
        let reserved = reserved_for_others(first, std::slice::from_ref(second), &all());
        let count = |cohort: &BTreeSet<Address>| {
            let left = second.free.difference(cohort).count();
            1 + usize::from(left >= second.needed)
        };
        if first.free.len() < first.needed {
            let alone = usize::from(second.free.len() >= second.needed);
            return (alone, alone);
        }
        let any: Vec<Address> = first.free.iter().copied().collect();
        let size = first.places.min(any.len());
        let left: Vec<Address> =
            any.iter().copied().filter(|who| !reserved.contains_key(who)).collect();
        let fewest = cohorts(&left, size).iter().map(count).min().unwrap();
        (fewest, cohorts(&any, size).iter().map(count).max().unwrap())
    }

    #[test]
    fn any_cohort_with_reservations_starts_as_many_rounds_as_the_best_without() {
        const SEED: u64 = 22;
        println!("seed {SEED}");
        let mut state = SEED;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut gained = 0;
        for _ in 0..3_000 {
            let mut draw = |number: u8| {
                let mask = next(128);
                let free: Vec<u8> = (0..7).filter(|at| mask >> at & 1 == 1).collect();
                let needed = 1 + next(3) as usize;
                let places = needed + next(2) as usize;
                SharedTask { places, ..task(number, needed, &free) }
            };
            let (one, other) = (draw(1), draw(2));
            for (first, second) in [(&one, &other), (&other, &one)] {
                let (fewest, most) = started(first, second);
                assert_eq!(fewest, most, "{first:?} {second:?}");
                let reserved = reserved_for_others(first, std::slice::from_ref(second), &all());
                gained += reserved.len();
                let left = first.free.len() - reserved.len();
                assert!(left >= first.places.min(first.free.len()), "{first:?} {second:?}");
            }
        }
        assert!(gained > 500, "{gained} reservations are a test");
    }
}
