//! The draw: no row is drawn twice in a round or again in a later one, and all subsets are equally
//! likely.

use std::collections::BTreeSet;

use super::*;
use crate::amount::Amount;
use crate::id::{ChainId, MarketId, RoundNumber, TaskId};
use proptest::prelude::*;

fn holdout(rows: u32, rows_per_round: u32) -> Holdout {
    Holdout { root: Digest([1; 32]), rows, rows_per_round }
}

fn seed(n: u64) -> Digest {
    Digest(*blake3::hash(&n.to_le_bytes()).as_bytes())
}

fn scope(round: u32) -> RoundScope {
    let market = MarketId { chain: ChainId(1), genesis: Digest([1; 32]) };
    RoundScope { market, task: TaskId([2; 32]), round: RoundNumber(round) }
}

fn entry(sender: u8, salt: u8) -> UpdateEntry {
    UpdateEntry {
        sender: Address([sender; 20]),
        header: Digest([9; 32]),
        update: Digest([9; 32]),
        salt: Digest([salt; 32]),
        rows_declared: 1,
        rows_counted: 1,
        commit_position: 1,
        bond: Amount::ZERO,
        staleness: 0,
    }
}

proptest! {
    /// A failing case prints its inputs, including the seed.
    #[test]
    fn no_row_is_drawn_twice_over_all_rounds(
        rows_per_round in 2u32..20, rounds in 1u32..12, spare in 0u32..9, from in any::<u64>(),
    ) {
        let holdout = holdout(rows_per_round * rounds + spare, rows_per_round);
        let mut exposed = Vec::new();
        for round in 0..rounds {
            let drawn = draw_rows(&holdout, &exposed, seed(from ^ u64::from(round))).unwrap();
            prop_assert_eq!(drawn.len(), rows_per_round as usize);
            prop_assert!(drawn.is_sorted_by(|a, b| a < b));
            prop_assert!(drawn.iter().all(|row| *row < holdout.rows && !exposed.contains(row)));
            exposed.extend(drawn);
        }
        let all: BTreeSet<u32> = exposed.iter().copied().collect();
        prop_assert_eq!(all.len(), exposed.len());
        if spare < rows_per_round {
            let left = spare as usize;
            let error = draw_rows(&holdout, &exposed, seed(from)).unwrap_err();
            prop_assert_eq!(error, DrawError::TooFewRows { left, rows_per_round });
        }
    }

    #[test]
    fn duplicates_and_order_of_exposed_rows_do_not_matter(from in any::<u64>()) {
        let holdout = holdout(20, 5);
        let drawn = draw_rows(&holdout, &[1, 4, 9, 16], seed(from)).unwrap();
        prop_assert_eq!(draw_rows(&holdout, &[16, 4, 4, 9, 1, 1], seed(from)).unwrap(), drawn);
    }
}

#[test]
fn every_set_of_rows_is_equally_likely() {
    // 2 of {0, 1, 3, 4, 5}: ten sets, 1,000 expected of each in 10,000; five standard deviations
    // are 150.
    let holdout = holdout(6, 2);
    let mut times = std::collections::BTreeMap::new();
    for n in 0..10_000 {
        *times.entry(draw_rows(&holdout, &[2], seed(n)).unwrap()).or_insert(0u32) += 1;
    }
    assert_eq!(times.len(), 10, "seeds 0..10000: {times:?}");
    assert!(times.values().all(|n| (850..=1_150).contains(n)), "seeds 0..10000: {times:?}");
}

#[test]
fn rejection_sampling_is_uniform_for_any_range() {
    // Three quarters of 2⁶⁴: without rejection the first third would occur twice as often.
    let range = 3 << 62;
    let low = (0..3_000).filter(|n| Blake3Rng::new(seed(*n)).below(range) < range / 3).count();
    // 1,000 expected; five standard deviations are 130. Without rejection 1,500.
    assert!((870..=1_130).contains(&low), "seeds 0..3000: {low}");
}

#[test]
fn an_exposed_row_outside_the_holdout_is_an_error() {
    let error = draw_rows(&holdout(6, 2), &[6], seed(0)).unwrap_err();
    assert_eq!(error, DrawError::RowOutOfRange { row: 6, rows: 6 });
}

#[test]
fn the_seed_depends_on_round_commits_senders_and_salts() {
    let commits = [(Address([1; 20]), Digest([2; 32])), (Address([3; 20]), Digest([4; 32]))];
    let entries = [entry(1, 5), entry(3, 6)];
    let base = round_seed(scope(1), &commits, &entries);
    let others = [
        round_seed(scope(2), &commits, &entries),
        round_seed(scope(1), &commits[..1], &entries),
        round_seed(scope(1), &commits, &entries[..1]),
        round_seed(scope(1), &commits, &[entry(1, 5), entry(3, 7)]),
        round_seed(scope(1), &commits, &[entry(1, 5), entry(4, 6)]),
    ];
    let all: BTreeSet<Digest> = others.into_iter().chain([base]).collect();
    assert_eq!(all.len(), 6);
}

#[test]
fn the_seed_ignores_fields_that_a_sender_can_choose_at_reveal() {
    let first = [entry(1, 5)];
    // The header's digest covers its expiry and its rows, which no commitment fixes.
    let later = [UpdateEntry { header: Digest([8; 32]), rows_declared: 7, ..first[0].clone() }];
    assert_eq!(round_seed(scope(1), &[], &first), round_seed(scope(1), &[], &later));
}
