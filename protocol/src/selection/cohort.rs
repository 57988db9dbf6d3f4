//! The draw of a round's cohort: a sample of the eligible participants by a seed that neither their
//! addresses nor the coordinator's clock can be fitted to.
//!
//! A participant chooses its address, so a seed that is known before it enrols lets it search for
//! an address that will be drawn. From the first round with an accepted update on, the seed is that
//! of a round's row draw ([`crate::round_seed`]): it follows from salts that were secret until the
//! reveals. Before, it follows from the holdout, whose rows only buyer and coordinator have, and
//! from all enrolled addresses.

use crate::id::{Address, Digest, RoundNumber, TaskId};

/// The seed of a cohort before the first round with an accepted update. `holdout` is the digest of
/// all rows in canonical form, which the task's root commits to. `enrolled` is ascending.
#[must_use]
pub fn first_cohort_seed(task: TaskId, holdout: Digest, enrolled: &[Address]) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 first cohort");
    hasher.update(&task.0);
    hasher.update(&holdout.0);
    hasher.update(&u64::try_from(enrolled.len()).unwrap_or(u64::MAX).to_le_bytes());
    for account in enrolled {
        hasher.update(&account.0);
    }
    Digest(*hasher.finalize().as_bytes())
}

/// Samples `asked` of the eligible participants without replacement. Each participant has a ticket:
/// a hash of the seed, the round and its address. The smallest tickets are drawn. Returns the
/// addresses in ascending order.
#[must_use]
pub fn draw_cohort(
    seed: Digest,
    round: RoundNumber,
    eligible: impl Iterator<Item = Address>,
    asked: usize,
) -> Vec<Address> {
    let ticket = |who: &Address| {
        let mut hasher = blake3::Hasher::new_derive_key("florin v1 cohort");
        hasher.update(&seed.0);
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
            let cohort = draw_cohort(Digest([7; 32]), RoundNumber(round), all.iter().copied(), 10);
            assert_eq!(cohort.len(), 10);
            assert!(cohort.is_sorted());
            cohort.iter().for_each(|who| times[usize::from(who.0[0])] += 1);
        }
        // The expected count is 20; the bounds are 4.2 standard deviations.
        assert!(times.iter().all(|n| (2..=38).contains(n)), "{times:?}");
        let again = draw_cohort(Digest([7; 32]), RoundNumber(1), all.iter().rev().copied(), 10);
        assert_eq!(again, draw_cohort(Digest([7; 32]), RoundNumber(1), all.iter().copied(), 10));
    }

    #[test]
    fn every_input_enters_the_first_seed() {
        let (task, holdout) = (TaskId([1; 32]), Digest([2; 32]));
        let [one, two] = [[3; 20], [4; 20]].map(Address);
        let seeds = [
            first_cohort_seed(task, holdout, &[one, two]),
            first_cohort_seed(TaskId([9; 32]), holdout, &[one, two]),
            first_cohort_seed(task, Digest([9; 32]), &[one, two]),
            first_cohort_seed(task, holdout, &[one]),
            first_cohort_seed(task, holdout, &[one, Address([9; 20])]),
        ];
        for (i, seed) in seeds.iter().enumerate() {
            assert!(!seeds[..i].contains(seed), "{i}");
        }
    }
}
