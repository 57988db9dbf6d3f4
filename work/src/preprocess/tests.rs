//! Small vectors with hand-computed results, and the property that splitting an update never gains.

use florin_contribution::SeededRng;
use florin_protocol::{Address, Amount, Digest};
use proptest::prelude::*;

use super::*;

const ALL_RULES: PreprocessingRules = PreprocessingRules::DEFAULT;

fn entry(n: u8, rows: u64, order: u32) -> UpdateEntry {
    UpdateEntry {
        sender: Address([n; 20]),
        header: Digest([0; 32]),
        update: Digest([0; 32]),
        salt: Digest([0; 32]),
        rows_declared: rows,
        rows_counted: rows,
        bond: Amount::ZERO,
        commit_position: order,
        staleness: 0,
    }
}

/// Public vectors that are global model deltas only.
fn with_global_deltas(steps: Vec<Vec<f32>>) -> PublicHistory {
    PublicHistory { global_deltas: steps.into(), senders: Vec::new(), updates: vec![].into() }
}

fn only_global_deltas(steps: std::ops::Range<usize>) -> PublicVectors<'static> {
    PublicVectors {
        updates: steps.end..steps.end,
        global_deltas: steps,
        same_sender: &[],
        vectors: &[],
    }
}

#[test]
fn the_median_norm_is_weighted_by_rows_and_ignores_zeros() {
    assert_eq!(median_norm(&[(1.0, 10), (2.0, 10), (3.0, 10)]), Some(2.0));
    // A member with most of the rows determines the median, however many other members there are.
    assert_eq!(median_norm(&[(1.0, 1), (1.0, 1), (1.0, 1), (5.0, 10)]), Some(5.0));
    // Idle members and members without rows do not lower it.
    assert_eq!(median_norm(&[(0.0, 90), (4.0, 10), (0.1, 0)]), Some(4.0));
    // Of two equal weights the smaller norm: a larger duplicate gains nothing.
    assert_eq!(median_norm(&[(1.0, 5), (3.0, 5)]), Some(1.0));
    assert_eq!(median_norm(&[(0.0, 5)]), None);
    assert_eq!(median_norm(&[(1.0, u64::MAX), (2.0, u64::MAX)]), Some(1.0));
}

#[test]
fn updates_are_rescaled_to_the_median_norm_and_scaled_up_at_most_twice() {
    let entries = [entry(1, 10, 1), entry(2, 10, 2), entry(3, 10, 3)];
    let deltas = vec![vec![3.0, 4.0], vec![0.0, 20.0], vec![4.0, 0.0]];
    let held = preprocess(
        ALL_RULES,
        StalenessWeight::Equal,
        &entries,
        deltas.into(),
        &with_global_deltas(vec![]),
    );
    assert_eq!(held.norm_factors, [Micro::ONE, Micro(250_000), Micro(1_250_000)]);
    assert_eq!(held.deltas.slices(), [vec![3.0, 4.0], vec![0.0, 5.0], vec![5.0, 0.0]]);
    assert_eq!(held.rows, [10, 10, 10]);
    // One third, rounded down to millionths.
    assert_eq!(norm_factor(1.0, 3.0), Micro(333_333));
    // A zero norm stays zero, and a tiny norm is scaled up by two at most.
    assert_eq!(norm_factor(1.0, 0.0), Micro::ONE);
    assert_eq!(norm_factor(1.0, 0.5), Micro(2_000_000));
    assert_eq!(norm_factor(1.0, f64::MIN_POSITIVE), Micro(2_000_000));
    let mut one = [3.0];
    rescale(&mut one, Micro(333_333));
    assert_eq!(one, [0.999_999]);
}

#[test]
fn a_copy_of_any_norm_is_rejected_in_favour_of_the_earliest_commit() {
    // The second sender committed first.
    let entries = [entry(1, 10, 2), entry(2, 30, 1), entry(3, 10, 3)];
    let deltas = vec![vec![9.0, 12.0], vec![3.0, 4.0], vec![-4.0, 3.0]];
    let held = preprocess(
        ALL_RULES,
        StalenessWeight::Equal,
        &entries,
        deltas.into(),
        &with_global_deltas(vec![]),
    );
    let repeat =
        DuplicateMatch { source: DuplicateSource::SameRound(Address([2; 20])), cosine: Micro::ONE };
    assert_eq!(held.duplicates, [Some(repeat), None, None]);
    assert_eq!(held.deltas.slices(), [vec![0.0, 0.0], vec![3.0, 4.0], vec![-4.0, 3.0]]);
    assert_eq!(held.rows, [0, 30, 10]);
}

#[test]
fn replays_of_a_global_model_delta_are_rejected() {
    let entries = [entry(1, 10, 1), entry(2, 10, 2)];
    let deltas = vec![vec![0.5, 0.5], vec![1.0, 0.0]];
    let held = preprocess(
        ALL_RULES,
        StalenessWeight::Equal,
        &entries,
        deltas.clone().into(),
        &with_global_deltas(vec![vec![2.0, 2.0]]),
    );
    let repeat = DuplicateMatch {
        source: DuplicateSource::GlobalDeltas,
        cosine: Micro(held.duplicates[0].unwrap().cosine.0),
    };
    assert_eq!(held.duplicates, [Some(repeat), None]);
    assert!(repeat.cosine >= Micro(999_999));
    // A negated delta and a combination of deltas are replays too.
    let back = preprocess(
        ALL_RULES,
        StalenessWeight::Equal,
        &entries,
        deltas.into(),
        &with_global_deltas(vec![vec![-2.0, -2.0]]),
    );
    assert_eq!(back.duplicates[0].map(|repeat| repeat.source), Some(DuplicateSource::GlobalDeltas));
}

#[test]
fn weights_are_capped_at_a_multiple_of_the_lower_median() {
    let weights = |cap: u16, sent: &[(u64, f32)]| {
        let entries: Vec<UpdateEntry> =
            (1..).zip(sent).map(|(n, (rows, _))| entry(n, *rows, n.into())).collect();
        let deltas: Vec<Vec<f32>> = sent.iter().map(|(_, value)| vec![*value]).collect();
        let rules = PreprocessingRules { weight_cap: cap, ..PreprocessingRules::NONE };
        preprocess(
            rules,
            StalenessWeight::Equal,
            &entries,
            deltas.into(),
            &with_global_deltas(vec![]),
        )
        .rows
    };
    let cohort = [(10, 1.0), (20, 1.0), (90, 1.0), (1_000, 1.0)];
    assert_eq!(weights(3, &cohort), [10, 20, 60, 60], "the lower median is 20");
    assert_eq!(weights(1, &cohort), [10, 20, 20, 20]);
    assert_eq!(weights(0, &cohort), [10, 20, 90, 1_000], "0 sets no limit");
    // Neither an update that changes nothing nor one without rows moves the median.
    assert_eq!(weights(3, &[(0, 1.0), (1, 0.0), (20, 1.0), (90, -1.0)]), [0, 0, 20, 60]);
    assert_eq!(weights(3, &[(90, 0.0)]), [0]);
    assert_eq!(weights(u16::MAX, &[(u64::MAX, 1.0)]), [u64::MAX]);
}

#[test]
fn disabled_preprocessing_changes_nothing() {
    let rules = PreprocessingRules::NONE;
    let entries = [entry(1, 10, 1), entry(2, 10, 2)];
    let deltas = vec![vec![3.0, 4.0], vec![30.0, 40.0]];
    let held = preprocess(
        rules,
        StalenessWeight::Equal,
        &entries,
        deltas.clone().into(),
        &with_global_deltas(vec![vec![3.0, 4.0]]),
    );
    assert_eq!((held.deltas.slices(), &held.rows), (vec![&*deltas[0], &*deltas[1]], &vec![10, 10]));
    assert_eq!((held.norm_factors, held.duplicates), (vec![Micro::ONE; 2], vec![None; 2]));
}

#[test]
fn idle_members_are_not_duplicates() {
    let entries = [entry(1, 10, 1), entry(2, 10, 2), entry(3, 10, 3)];
    let held = preprocess(
        ALL_RULES,
        StalenessWeight::Equal,
        &entries,
        vec![vec![0.0; 2]; 3].into(),
        &with_global_deltas(vec![vec![0.0; 2]]),
    );
    assert_eq!(held.duplicates, [None; 3]);
    assert_eq!(held.rows, [0; 3], "an update that changes nothing has no weight");
}

/// Members share the first axis and have one own axis each; own parts are orthogonal.
fn similar_updates(own: f32) -> Vec<Vec<f32>> {
    let axis = |i: usize| {
        let mut vector = vec![0.0; 400];
        (vector[0], vector[i]) = (1.0, own);
        vector
    };
    (1..=5).map(axis).collect()
}

#[test]
fn a_common_direction_is_not_an_own_part() {
    let updates = similar_updates(0.1);
    let slices: Vec<&[f32]> = updates.iter().map(Vec::as_slice).collect();
    let gram = Gram::new(&slices);
    let found = similarity(&gram, &gram, &[10; 5], (1, 0));
    // Nearly the same direction, 1 / 1.01, but the own parts agree no more than by chance.
    assert!((found.cosine() - 1.0 / 1.01).abs() < 1e-6, "{found:?}");
    assert!(found.own_part_cosine().unwrap().abs() < 1e-6, "{found:?}");
    assert!(!found.is_copy());
}

#[test]
fn a_copy_among_similar_updates_shares_the_own_part_of_its_original() {
    let mut updates = similar_updates(0.1);
    updates[1] = updates[0].clone();
    // Noise on its own axis, a thirtieth of the norm.
    updates[1][15] = 0.033;
    let slices: Vec<&[f32]> = updates.iter().map(Vec::as_slice).collect();
    let gram = Gram::new(&slices);
    let found = similarity(&gram, &gram, &[10; 5], (1, 0));
    assert!(found.own_part_cosine().unwrap() > COPY_OWN_PART_MIN, "{found:?}");
    assert!(found.residual_agreement().unwrap() < 1e-3, "{found:?}");
    assert!(found.is_copy());
}

#[test]
fn a_linear_combination_of_global_model_deltas_is_rejected() {
    let seed = 7;
    let mut draw = SeededRng::new(seed, 0);
    let common = random_unit_vector(&mut draw);
    let steps: Vec<Vec<f32>> = (0..3)
        .map(|_| common.iter().zip(random_unit_vector(&mut draw)).map(|(c, d)| c + d).collect())
        .collect();
    let mixed = |by: [f32; 3]| -> Vec<f32> {
        (0..common.len()).map(|i| (0..3).map(|k| by[k] * steps[k][i]).sum()).collect()
    };
    let mut updates = correlated_updates(&mut draw, &common, 5);
    updates[2] = mixed([0.0, 0.0, 1.0]);
    updates[3] = mixed([0.2, 0.5, 0.4]);
    updates[4] = mixed([-0.3, 0.0, 0.1]);
    let slices: Vec<&[f32]> = updates.iter().chain(&steps).map(Vec::as_slice).collect();
    let found =
        find_duplicates(&Gram::new(&slices), &[10; 5], &[1, 2, 3, 4, 5], &only_global_deltas(5..8));
    let of: Vec<Option<usize>> = found.iter().map(|found| found.map(|found| found.index)).collect();
    assert_eq!(of, [None, None, Some(5), Some(5), Some(5)], "seed {seed}");
}

#[test]
fn a_small_model_is_compared_with_one_global_delta_only() {
    // Two deltas span the whole space of two parameters.
    let entries = [entry(1, 10, 1), entry(2, 10, 2)];
    let deltas = vec![vec![0.3, 1.0], vec![1.0, 0.2]];
    let held = preprocess(
        ALL_RULES,
        StalenessWeight::Equal,
        &entries,
        deltas.into(),
        &with_global_deltas(vec![vec![1.0, 0.0], vec![0.0, 1.0]]),
    );
    assert_eq!(held.duplicates, [None, None]);
}

/// `count` vectors of ten thousand numbers: a common direction plus independent own parts of a
/// fifth of the norm.
fn correlated_updates(draw: &mut SeededRng, common: &[f32], count: usize) -> Vec<Vec<f32>> {
    let mut one = || -> Vec<f32> {
        let own = random_unit_vector(draw);
        common.iter().zip(&own).map(|(common, own)| common + 0.2 * own).collect()
    };
    (0..count).map(|_| one()).collect()
}

/// A random vector of about unit norm.
fn random_unit_vector(draw: &mut SeededRng) -> Vec<f32> {
    (0..10_000).map(|_| (draw.uniform() as f32 - 0.5) * 12_f32.sqrt() / 100.0).collect()
}

#[test]
fn similar_members_among_different_ones_are_not_duplicates() {
    let seed = 5;
    let mut draw = SeededRng::new(seed, 0);
    let common = random_unit_vector(&mut draw);
    // Number of similar members, number of different ones (with a cosine of about 0.3 to all of the
    // similar ones), and the different ones' rows relative to the others'.
    for (near, far, rows) in [(2, 0, 1), (2, 1, 1), (2, 2, 1), (4, 1, 1), (4, 1, 20), (5, 3, 50)] {
        let mut updates = correlated_updates(&mut draw, &common, near);
        for _ in 0..far {
            let aside = random_unit_vector(&mut draw);
            let other = common.iter().zip(&aside).map(|(common, aside)| 0.3 * common + aside);
            updates.push(other.collect());
        }
        let slices: Vec<&[f32]> = updates.iter().map(Vec::as_slice).collect();
        let rows: Vec<u64> =
            (0..near + far).map(|i| if i < near { 10 } else { 10 * rows }).collect();
        let orders: Vec<u32> = (0..rows.len() as u32).collect();
        let found = find_duplicates(&Gram::new(&slices), &rows, &orders, &only_global_deltas(0..0));
        assert_eq!(found, vec![None; near + far], "{near} similar, {far} others, seed {seed}");
    }
}

#[test]
fn in_a_small_model_only_an_equal_update_is_a_copy() {
    // Honest members with very many rows send nearly equal vectors.
    let updates =
        [vec![1.0_f32, 2.0, 3.0, 4.0], vec![1.001, 2.0, 3.0, 4.001], vec![2.002, 4.0, 6.0, 8.002]];
    let slices: Vec<&[f32]> = updates.iter().map(Vec::as_slice).collect();
    let gram = Gram::new(&slices);
    assert!(gram.cosine(1, 0) > SAME_COSINE);
    let found = find_duplicates(&gram, &[10; 3], &[1, 2, 3], &only_global_deltas(0..0));
    assert_eq!(
        found.iter().map(|found| found.map(|found| found.index)).collect::<Vec<_>>(),
        [None, None, Some(1)]
    );
}

#[test]
fn a_copy_plus_a_global_model_delta_is_a_copy() {
    let seed = 6;
    let mut draw = SeededRng::new(seed, 0);
    let common = random_unit_vector(&mut draw);
    let mut updates = correlated_updates(&mut draw, &common, 5);
    // The other members also move a little in the delta's direction.
    let step: Vec<f32> =
        common.iter().zip(random_unit_vector(&mut draw)).map(|(c, d)| c + d).collect();
    for update in &mut updates[1..4] {
        update.iter_mut().zip(&step).for_each(|(update, step)| *update += 0.1 * step);
    }
    updates[4] = updates[0].iter().zip(&step).map(|(copy, step)| copy + 0.15 * step).collect();
    let mut slices: Vec<&[f32]> = updates.iter().map(Vec::as_slice).collect();
    slices.push(&step);
    let gram = Gram::new(&slices);
    let found = find_duplicates(&gram, &[10; 5], &[1, 2, 3, 4, 5], &only_global_deltas(5..6));
    assert_eq!(found[4].map(|found| found.index), Some(0), "seed {seed}");
    assert_eq!(found[..4], [None; 4]);
    // Without the global model delta the mixture looks like independent work.
    assert!(!similarity(&gram, &gram, &[10; 5], (4, 0)).is_copy());
}

#[test]
fn copies_of_another_members_earlier_update_are_rejected() {
    let seed = 9;
    let mut draw = SeededRng::new(seed, 0);
    let common = random_unit_vector(&mut draw);
    let last = correlated_updates(&mut draw, &common, 2);
    // All members have also moved in a shared direction.
    let step = random_unit_vector(&mut draw);
    let mut updates = correlated_updates(&mut draw, &common, 6);
    // The first member's update is similar to its earlier one; the second copies an earlier update.
    updates[..2].clone_from_slice(&last);
    for update in updates.iter_mut().enumerate().filter(|(at, _)| *at != 1).map(|(_, of)| of) {
        update.iter_mut().zip(&step).for_each(|(update, step)| *update += 0.05 * step);
    }
    // The others copy the first member's earlier update: unchanged, and under noise.
    updates[4].clone_from(&last[0]);
    let noise = random_unit_vector(&mut draw);
    updates[5] = last[0].iter().zip(&noise).map(|(copy, noise)| copy + 0.15 * noise).collect();
    let entries: Vec<UpdateEntry> = (1..=6).map(|n| entry(n, 10, u32::from(n))).collect();
    let senders = vec![Address([1; 20]), Address([9; 20])];
    let known = PublicHistory { senders, updates: last.into(), ..with_global_deltas(vec![]) };
    let held =
        preprocess(ALL_RULES, StalenessWeight::Equal, &entries, updates.clone().into(), &known);
    let of: Vec<Option<DuplicateSource>> =
        held.duplicates.iter().map(|found| found.map(|f| f.source)).collect();
    let first = Some(DuplicateSource::EarlierRound(Address([1; 20])));
    assert_eq!(
        of,
        [None, Some(DuplicateSource::EarlierRound(Address([9; 20]))), None, None, first, first],
        "seed {seed}"
    );
    // A member that repeats its own update is not a copier; and if the task accepts duplicates,
    // none is.
    let known = PublicHistory { senders: vec![Address([1; 20]), Address([2; 20])], ..known };
    let held =
        preprocess(ALL_RULES, StalenessWeight::Equal, &entries, updates.clone().into(), &known);
    assert_eq!(held.duplicates[..4], [None; 4], "seed {seed}");
    let rules = PreprocessingRules { near_duplicates: DuplicatePolicy::Accept, ..ALL_RULES };
    assert_eq!(
        preprocess(rules, StalenessWeight::Equal, &entries, updates.into(), &known).duplicates,
        [None; 6]
    );
}

/// The match of each of six members. All share a common direction; `sent` returns the updates of
/// earlier rounds, and `now` modifies those of this one.
fn matches_of(
    seed: u64,
    sent: impl Fn(&[Vec<f32>], &[f32]) -> Vec<(u8, Vec<f32>)>,
    now: impl Fn(&mut [Vec<f32>], &[f32]),
) -> Vec<Option<DuplicateSource>> {
    let mut draw = SeededRng::new(seed, 0);
    let common = random_unit_vector(&mut draw);
    let mut updates = correlated_updates(&mut draw, &common, 6);
    let noise = random_unit_vector(&mut draw);
    let (senders, earlier): (Vec<u8>, Vec<Vec<f32>>) = sent(&updates, &noise).into_iter().unzip();
    now(&mut updates, &noise);
    // The last member commits first.
    let entries: Vec<UpdateEntry> = (1..=6).map(|n| entry(n, 10, u32::from(7 - n))).collect();
    let senders = senders.into_iter().map(|n| Address([n; 20])).collect();
    let known = PublicHistory { senders, updates: earlier.into(), ..with_global_deltas(vec![]) };
    let held = preprocess(ALL_RULES, StalenessWeight::Equal, &entries, updates.into(), &known);
    held.duplicates.iter().map(|found| found.map(|found| found.source)).collect()
}

fn add_noise(noise: &[f32], update: &[f32]) -> Vec<f32> {
    update.iter().zip(noise).map(|(update, noise)| update + 0.15 * noise).collect()
}

/// How a copier disguises a copy.
type Disguise = fn(&[f32], &[f32]) -> Vec<f32>;

const DISGUISES: [Disguise; 2] = [|_, update| update.to_vec(), add_noise];

#[test]
fn a_copy_sent_in_an_unproductive_round_does_not_make_its_original_sender_a_copier() {
    let seed = 11;
    let last = |n: u8| Some(DuplicateSource::EarlierRound(Address([n; 20])));
    for hide in DISGUISES {
        // The first member sent it, then the ninth, in a round that rejected no copies. Now the
        // first sends a similar update, and the second repeats the ninth's.
        let both =
            |all: &[Vec<f32>], noise: &[f32]| vec![(1, all[0].clone()), (9, hide(noise, &all[0]))];
        let again = |all: &mut [Vec<f32>], noise: &[f32]| all[1] = hide(noise, &all[0]);
        assert_eq!(
            matches_of(seed, both, again),
            [None, last(1), None, None, None, None],
            "seed {seed}"
        );
        // The later sender is the copier, even if it sends the update twice.
        let swapped =
            |all: &[Vec<f32>], noise: &[f32]| vec![(9, all[0].clone()), (1, hide(noise, &all[0]))];
        assert_eq!(matches_of(seed, swapped, |_, _| ())[0], last(9), "seed {seed}");
    }
}

#[test]
fn committing_a_members_earlier_update_first_does_not_make_that_member_a_copier() {
    let seed = 12;
    let last = |n: u8| Some(DuplicateSource::EarlierRound(Address([n; 20])));
    for hide in DISGUISES {
        let sent = |all: &[Vec<f32>], _: &[f32]| vec![(1, all[0].clone())];
        // The sixth commits before the first.
        let again = |all: &mut [Vec<f32>], noise: &[f32]| all[5] = hide(noise, &all[0]);
        let found = matches_of(seed, sent, again);
        assert_eq!(found, [None, None, None, None, None, last(1)], "seed {seed}");
    }
    // Without an earlier update the earliest commit is the original.
    let found = matches_of(seed, |_, _| Vec::new(), |all, _| all[5] = all[0].clone());
    assert_eq!(found[0], Some(DuplicateSource::SameRound(Address([6; 20]))), "seed {seed}");
}

#[test]
fn without_similar_witnesses_only_an_equal_update_is_a_copy() {
    let updates = [vec![1.0, 0.0, 0.0], vec![1.0, 0.1, 0.0], vec![0.0, 0.0, 1.0_f32]];
    let slices: Vec<&[f32]> = updates.iter().map(Vec::as_slice).collect();
    let gram = Gram::new(&slices);
    let found = similarity(&gram, &gram, &[10; 3], (1, 0));
    assert!(found.cosine() > COPY_COSINE_MIN && found.own_part_cosine().is_none(), "{found:?}");
    assert!(!found.is_copy());
}

proptest! {
    /// Σ pᵢ⟨Δᵢ, g⟩ over the identities of one participant, for a direction g of the loss: pay is
    /// linear in it.
    #[test]
    fn splitting_an_update_among_identities_of_one_bond_never_gains(
        own in prop::collection::vec(-1.0_f32..1.0, 8),
        others in prop::collection::vec(prop::collection::vec(-1.0_f32..1.0, 8), 3),
        parts in 2_u64..6,
        lengths in prop::collection::vec(0.2_f32..3.0, 6),
    ) {
        let square: f32 = own.iter().map(|v| v * v).sum();
        prop_assume!(square > 0.01);
        // Updates similar to another member's are subject to the near-duplicate rules.
        let mut vectors: Vec<&[f32]> = others.iter().map(Vec::as_slice).collect();
        vectors.push(&own);
        let gram = Gram::new(&vectors);
        prop_assume!((0..3).all(|k| gram.cosine(k, 3) < 0.8));
        let rows = 60;
        let alone = |split: bool| {
            let pieces = if split { parts } else { 1 };
            let mut deltas = others.clone();
            let mut entries: Vec<UpdateEntry> =
                (0..3).map(|n| entry(n + 1, rows, u32::from(n) + 1)).collect();
            for piece in 0..pieces {
                let share = rows * (piece + 1) / pieces - rows * piece / pieces;
                let by = if split { lengths[piece as usize] } else { 3.0 };
                deltas.push(own.iter().map(|v| v * by).collect());
                entries.push(entry(piece as u8 + 10, share, piece as u32 + 10));
            }
            let held = preprocess(ALL_RULES, StalenessWeight::Equal, &entries, deltas.into(), &with_global_deltas(vec![]));
            let total: u64 = held.rows.iter().sum();
            let towards = |at: usize| {
                let along: f32 = held.deltas.row(at).iter().zip(&own).map(|(a, b)| a * b).sum();
                f64::from(along) * held.rows[at] as f64 / total as f64
            };
            (3..held.rows.len()).map(towards).sum::<f64>()
        };
        prop_assert!(alone(true) <= alone(false) * (1.0 + 1e-4) + 1e-9);
    }
}
