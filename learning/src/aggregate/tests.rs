//! Each rule against its reference implementation, by hand, and against hostile input.

use proptest::prelude::*;

use super::*;

const RULES: [AggregationRule; 5] = [
    AggregationRule::Mean,
    AggregationRule::Median,
    AggregationRule::TrimmedMean { trim_permille: 200 },
    AggregationRule::Krum { byzantine: 1, selected: 2 },
    AggregationRule::NormClippedMean,
];

/// Reference implementation of the rules: one coordinate after another, without blocks and threads.
fn reference_rule(rule: AggregationRule, updates: &[(u64, &[f32])]) -> Vec<f32> {
    let counted: Vec<(u64, &[f32])> =
        updates.iter().copied().filter(|&(weight, _)| weight > 0).collect();
    let total: f64 = counted.iter().map(|&(weight, _)| weight as f64).sum();
    let norm =
        |delta: &[f32]| delta.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    let middle = |values: &[f64]| {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
    };
    let chosen: Vec<(f64, &[f32])> = match rule {
        AggregationRule::Krum { byzantine, selected } => {
            reference_krum(&counted, byzantine as usize, selected as usize)
        }
        AggregationRule::NormClippedMean => {
            let norms: Vec<f64> = counted.iter().map(|(_, delta)| norm(delta)).collect();
            let most = middle(&norms);
            let scale = |delta| if norm(delta) > most { most / norm(delta) } else { 1.0 };
            counted.iter().map(|&(weight, delta)| (weight as f64 * scale(delta), delta)).collect()
        }
        _ => counted.iter().map(|&(weight, delta)| (weight as f64, delta)).collect(),
    };
    let total = match rule {
        AggregationRule::Krum { .. } => chosen.iter().map(|(weight, _)| weight).sum(),
        _ => total,
    };
    let coordinate = |at: usize| {
        let mut column: Vec<f64> = chosen.iter().map(|(_, delta)| delta[at].into()).collect();
        column.sort_by(f64::total_cmp);
        match rule {
            AggregationRule::Median => middle(&column),
            AggregationRule::TrimmedMean { trim_permille } => {
                let trim = column.len() * usize::from(trim_permille) / 1000;
                let trimmed = &column[trim..column.len() - trim];
                trimmed.iter().sum::<f64>() / trimmed.len() as f64
            }
            _ => {
                let weighted = chosen.iter().map(|(weight, delta)| weight * f64::from(delta[at]));
                weighted.sum::<f64>() / total
            }
        }
    };
    (0..updates[0].1.len()).map(|at| coordinate(at) as f32).collect()
}

fn reference_krum<'a>(
    updates: &[(u64, &'a [f32])],
    byzantine: usize,
    keep: usize,
) -> Vec<(f64, &'a [f32])> {
    let distance = |a: &[f32], b: &[f32]| {
        a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum::<f64>()
    };
    let mut scored: Vec<(f64, usize)> = (0..updates.len())
        .map(|own| {
            let others = (0..updates.len()).filter(|&other| other != own);
            let mut near: Vec<f64> =
                others.map(|other| distance(updates[own].1, updates[other].1)).collect();
            near.sort_by(f64::total_cmp);
            (near[..updates.len() - byzantine - 2].iter().sum(), own)
        })
        .collect();
    scored.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut selected: Vec<usize> = scored[..keep].iter().map(|&(_, own)| own).collect();
    selected.sort_unstable();
    selected.into_iter().map(|own| (updates[own].0 as f64, updates[own].1)).collect()
}

fn refs(updates: &[(u64, Vec<f32>)]) -> Vec<(u64, &[f32])> {
    updates.iter().map(|(weight, delta)| (*weight, delta.as_slice())).collect()
}

/// Five to twelve updates of one length, some with weight zero, with lengths near multiples of the
/// blocks.
fn updates_strategy() -> impl Strategy<Value = Vec<(u64, Vec<f32>)>> {
    let length = prop_oneof![1_usize..10, 60_usize..70, 4090_usize..4102];
    (length, 5_usize..12, any::<u64>()).prop_map(|(length, count, seed)| {
        let mut state = seed | 1;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        (0..count)
            .map(|at| {
                let weight = if at < 5 { 1 + next() % 1000 } else { next() % 3 };
                let delta = (0..length).map(|_| next() as f32 / 1e9 - 1.0).collect();
                (weight, delta)
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_rule_matches_its_reference_with_any_threads(updates in updates_strategy()) {
        let updates = refs(&updates);
        for rule in RULES {
            let one = aggregate_on(rule, &updates, 1).unwrap();
            let expected = reference_rule(rule, &updates);
            for (at, (got, expected)) in one.iter().zip(&expected).enumerate() {
                let near = (got - expected).abs() <= 1e-6 * expected.abs().max(1e-3);
                prop_assert!(near, "{:?} at {}: {} and {}", rule, at, got, expected);
            }
            for threads in [0, 2, 3, 7] {
                prop_assert_eq!(&one, &aggregate_on(rule, &updates, threads).unwrap());
            }
        }
    }

    #[test]
    fn the_mean_and_the_streaming_mean_have_the_bits_of_the_reference(
        updates in updates_strategy(),
    ) {
        let updates = refs(&updates);
        let mean = aggregate(AggregationRule::Mean, &updates).unwrap();
        prop_assert_eq!(&mean, &reference_rule(AggregationRule::Mean, &updates));
        let mut stream = MeanAccumulator::new(updates[0].1.len());
        for (weight, delta) in &updates {
            stream.add(*weight, delta).unwrap();
        }
        prop_assert_eq!(&mean, &stream.finish().unwrap());
    }

    #[test]
    fn an_update_of_weight_zero_changes_no_bit(
        updates in updates_strategy(), at in 0_usize..5, scale in -1e30_f32..1e30,
    ) {
        let hostile: Vec<f32> = updates[0].1.iter().map(|value| value * scale).collect();
        let alone = refs(&updates);
        let mut with = alone.clone();
        with.insert(at, (0, &hostile));
        for rule in RULES {
            let bits = |values: Vec<f32>| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(
                bits(aggregate(rule, &alone).unwrap()),
                bits(aggregate(rule, &with).unwrap())
            );
        }
    }
}

#[test]
fn small_cases_match_hand_computed_values() {
    let updates = [(1, vec![1.0, -4.0]), (3, vec![5.0, 0.0]), (4, vec![2.0, 8.0])];
    let updates = refs(&updates);
    assert_eq!(aggregate(AggregationRule::Mean, &updates).unwrap(), [3.0, 3.5]);
    assert_eq!(aggregate(AggregationRule::Median, &updates).unwrap(), [2.0, 0.0]);
    assert_eq!(aggregate(AggregationRule::Median, &updates[..2]).unwrap(), [3.0, -2.0]);
    let trimmed = AggregationRule::TrimmedMean { trim_permille: 334 };
    assert_eq!(aggregate(trimmed, &updates).unwrap(), [2.0, 0.0]);
    // Norms 3, 4 and 20: the median is 4, so the last update is scaled to a fifth.
    let updates = [(1, vec![3.0, 0.0]), (1, vec![0.0, 4.0]), (2, vec![20.0, 0.0])];
    assert_eq!(aggregate(AggregationRule::NormClippedMean, &refs(&updates)).unwrap(), [2.75, 1.0]);
}

#[test]
fn the_mean_adds_in_the_order_of_the_updates() {
    // In order: ((10³⁰ + 1) − 10³⁰) + 1 = 1, because the first 1 is lost to rounding. In another
    // order, 0 or 2.
    let updates = [1e30, 1.0, -1e30, 1.0].map(|value| (1, vec![value; 5000]));
    let updates = refs(&updates);
    assert_eq!(aggregate_on(AggregationRule::Mean, &updates, 2).unwrap(), vec![0.25; 5000]);
    let mut stream = MeanAccumulator::new(5000);
    for (weight, delta) in updates {
        stream.add(weight, delta).unwrap();
    }
    assert_eq!(stream.finish().unwrap(), vec![0.25; 5000]);
}

#[test]
fn one_hostile_update_has_little_effect_on_robust_rules() {
    let mut updates: Vec<(u64, Vec<f32>)> =
        (0..9).map(|at| (1, vec![1.0 + at as f32 / 100.0; 3])).collect();
    updates.push((1, vec![-1e6; 3]));
    for rule in RULES {
        let moved = aggregate(rule, &refs(&updates)).unwrap();
        let near = moved.iter().all(|value| (0.75..1.1).contains(value));
        assert_eq!(near, rule != AggregationRule::Mean, "{rule:?}: {moved:?}");
    }
}

#[test]
fn invalid_updates_are_refused() {
    let good = vec![1.0, 2.0];
    let with = |bad: Vec<f32>, weight| {
        let mut updates = vec![(1, good.clone()); 5];
        updates.push((weight, bad));
        updates
    };
    for rule in RULES {
        let refuse = |updates: &[(u64, Vec<f32>)]| aggregate(rule, &refs(updates)).unwrap_err();
        assert_eq!(refuse(&[]), AggregateError::Empty);
        assert_eq!(refuse(&[(1, vec![])]), AggregateError::NoNumbers);
        assert_eq!(refuse(&[(0, vec![1.0]), (0, vec![1.0])]), AggregateError::ZeroTotalWeight);
        let differ = AggregateError::LengthsDiffer { update: 5, expected: 2, got: 1 };
        assert_eq!(refuse(&with(vec![1.0], 1)), differ);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for weight in [0, 1, u64::MAX] {
                let place = AggregateError::NotFinite { update: 5, number: 1 };
                assert_eq!(refuse(&with(vec![0.0, bad], weight)), place, "{rule:?}");
            }
        }
    }
    let few = [(1, good.clone()), (1, good.clone()), (1, good.clone()), (0, good.clone())];
    let krum = AggregationRule::Krum { byzantine: 1, selected: 1 };
    assert_eq!(aggregate(krum, &refs(&few)), Err(AggregateError::TooFew { needed: 5, got: 3 }));
    assert!(AggregationRule::TrimmedMean { trim_permille: 500 }.check().is_err());
    assert!(AggregationRule::Krum { byzantine: 0, selected: 0 }.check().is_err());
}

#[test]
fn extreme_weights_and_numbers_stay_finite() {
    let updates = vec![(u64::MAX, vec![f32::MAX, f32::MIN]); 9];
    for rule in RULES {
        let all = aggregate(rule, &refs(&updates)).unwrap();
        assert_eq!(all, [f32::MAX, f32::MIN], "{rule:?}");
    }
}

#[test]
fn a_refused_update_does_not_change_the_streaming_mean() {
    let mut stream = MeanAccumulator::new(2);
    stream.add(1, &[1.0, 2.0]).unwrap();
    let place = AggregateError::NotFinite { update: 1, number: 1 };
    assert_eq!(stream.add(5, &[9.0, f32::NAN]), Err(place));
    assert!(stream.add(5, &[9.0]).is_err());
    stream.add(1, &[3.0, 4.0]).unwrap();
    assert_eq!(stream.finish().unwrap(), [2.0, 3.0]);
    assert_eq!(MeanAccumulator::new(2).finish(), Err(AggregateError::Empty));
}
