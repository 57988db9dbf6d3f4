//! Each refusal names the key, its value and what is valid.

use florin_protocol::Micro;
use florin_sim::quote::{Power, QuotePlan, Spread};

use super::*;

const LEARNABLE: LabelCheck =
    LabelCheck { rows: 900, accuracy: 0.9, trained_accuracy: 1.0, chance: 0.1, majority: 0.12 };

fn spec(floor_share: u64, holdout_rows: u32) -> TaskSpec {
    let mut spec = TaskSpec::example();
    spec.budget.floor_share = Micro(floor_share);
    spec.budget.confidence_z = Micro(4_000_000);
    (spec.holdout.rows, spec.holdout.rows_per_round) = (holdout_rows, 25);
    spec
}

/// A quote whose honest scores reach `ratio` standard errors, with this median of honest pay.
fn quote_with(ratio: f64, earned: i128) -> Quote {
    let spec = TaskSpec::example();
    let plan = QuotePlan::new(&spec, &florin_work::model_spec(&spec.model)).unwrap();
    let spread = |value| Spread { low: value, median: value, high: value };
    Quote {
        plan,
        honest: spread(earned),
        noise: spread(0),
        wrong_labels: spread(0),
        data_spent: spread(0),
        infrastructure_spent: spread(0),
        accuracy_before: spread(0),
        accuracy: spread(0),
        loss_before: spread(0),
        loss: spread(0),
        void_rounds: spread(0),
        power: Power {
            score: 0.01,
            row_deviation: 0.5,
            ratio,
            round: 3,
            confidence_z: 4.0,
            payable_percent: 0,
            rows_per_round: 25,
        },
        labels: Some(LEARNABLE),
    }
}

/// The code, the key with its value, and what is valid.
fn refused(found: Option<QuoteFinding>) -> (&'static str, String, String) {
    match found {
        Some(QuoteFinding::Refused(Refusal { code, key, value, expected })) => {
            (code, format!("{key} = {value}"), expected)
        }
        other => panic!("not refused: {other:?}"),
    }
}

fn warned(found: Option<QuoteFinding>) -> &'static str {
    match found {
        Some(QuoteFinding::Warned(code, _)) => code,
        other => panic!("no warning: {other:?}"),
    }
}

#[test]
fn too_few_rows_per_round_are_refused_with_the_number_that_suffices() {
    // 25 · (5.645 / 2)² = 199.2 rows in each of ten rounds.
    let (code, key, expected) = refused(pay(&spec(200_000, 2_000), &quote_with(2.0, 0)));
    assert_eq!((code, key.as_str()), ("PAY_IMPOSSIBLE", "holdout.rows_per_round = 25"));
    for part in ["reach 2.0 standard errors", "requires 4", "at least about 200 rows", "up to 2.0"]
    {
        assert!(expected.contains(part), "{expected:?} lacks {part:?}");
    }
    assert!(!expected.contains("floor_share"), "{expected}");
}

#[test]
fn a_confidence_threshold_that_the_holdout_cannot_reach_is_refused() {
    let (code, key, expected) = refused(pay(&spec(200_000, 1_999), &quote_with(2.0, 0)));
    assert_eq!((code, key.as_str()), ("PAY_IMPOSSIBLE", "budget.confidence_z = 4"));
    for part in ["Use up to 2.0", "about 200 rows in each of 10 rounds", "the holdout has 1999"] {
        assert!(expected.contains(part), "{expected:?} lacks {part:?}");
    }
    let (_, key, expected) = refused(pay(&spec(200_000, 1_999), &quote_with(0.01, 0)));
    assert_eq!(key, "budget.confidence_z = 4");
    assert!(expected.contains("no number of rows suffices"), "{expected}");
}

#[test]
fn impossible_pay_is_refused_unless_the_floor_pays() {
    let (code, _, expected) = refused(pay(&spec(0, 2_000), &quote_with(2.0, 1)));
    assert_eq!(code, "PAY_IMPOSSIBLE");
    assert!(expected.contains("budget.floor_share = 0"), "{expected}");
    assert_eq!(refused(pay(&spec(99_999, 2_000), &quote_with(2.0, 1))).0, "PAY_IMPOSSIBLE");
    assert_eq!(warned(pay(&spec(100_000, 2_000), &quote_with(2.0, 1))), "PAY_UNLIKELY");
    assert_eq!(warned(pay(&spec(0, 2_000), &quote_with(3.0, 1))), "PAY_UNLIKELY");
    assert!(pay(&spec(0, 2_000), &quote_with(4.0, 1)).is_none());
}

#[test]
fn updates_that_do_not_improve_the_model_are_refused() {
    let (code, key, _) = refused(pay(&spec(200_000, 2_000), &quote_with(0.0, 1)));
    assert_eq!((code, key.as_str()), ("NO_IMPROVEMENT", "training.learning_rate = 0.1"));
    let (code, key, expected) = refused(Some(QuoteFinding::Refused(diverges(&spec(0, 100), 7))));
    assert_eq!((code, key.as_str()), ("TRAINING_DIVERGES", "training.learning_rate = 0.1"));
    assert!(expected.contains("step 7"), "{expected}");
}

#[test]
fn random_labels_are_refused_and_uncertain_ones_reported() {
    let spec = spec(200_000, 900);
    let with = |rows, accuracy, trained_accuracy| {
        labels(&spec, &LabelCheck { rows, accuracy, trained_accuracy, ..LEARNABLE })
    };
    let (code, key, expected) = refused(with(900, 0.101, 1.0));
    assert_eq!((code, key.as_str()), ("LABELS_RANDOM", "holdout.source = 900 rows"));
    for part in ["10.1 % of the other half", "chance 10.0 %", "most frequent label is 12.0 %"] {
        assert!(expected.contains(part), "{expected:?} lacks {part:?}");
    }
    assert_eq!(refused(with(900, 0.101, 0.1)).0, "NO_IMPROVEMENT");
    assert_eq!(warned(with(30, 0.101, 1.0)), "LABELS_UNCERTAIN");
    assert!(with(900, 0.9, 1.0).is_none());
}

#[test]
fn a_minimum_of_noise_warns_that_the_quote_has_none() {
    let mut spec = spec(0, 750);
    assert!(noise(&spec).is_none());
    spec.training.noise_min = Micro(1_350_000);
    assert_eq!(warned(noise(&spec)), "NOISE_NOT_SIMULATED");
}
