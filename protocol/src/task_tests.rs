//! Validation of task specifications.

use super::*;
use crate::id::ChainId;
use crate::training::Optimizer;

pub(crate) fn spec() -> TaskSpec {
    let amount = |text: &str| text.parse::<Amount>().unwrap();
    let micro = |text: &str| text.parse::<Micro>().unwrap();
    let example = TaskSpec::example();
    TaskSpec {
        market: MarketId { chain: ChainId(7_700), genesis: Digest([1; 32]) },
        buyer: Address([2; 20]),
        coordinator: Address([3; 20]),
        arbiter: Address([4; 20]),
        name: "handwritten digits".to_owned(),
        salt: 5,
        model: ModelArchitecture::Mlp { inputs: 64, hidden: vec![32], classes: 10 },
        base_model: Digest([6; 32]),
        holdout: Holdout { root: Digest([7; 32]), rows: 360, rows_per_round: 36 },
        training: Training { momentum: micro("0.9"), ..example.training },
        rounds: RoundRules {
            cohort_min: 3,
            cohort_target: 8,
            delta_norm_max: micro("5"),
            ..example.rounds
        },
        budget: Budget {
            data: amount("1000"),
            infrastructure: amount("100"),
            per_nat_max: amount("500"),
            bond_min: amount("20"),
            bond_per_row: amount("0.1"),
            debit_max: amount("10"),
            stake_min: amount("50"),
            per_unit: amount("1"),
            challenge_ms: 500,
            unbond_ms: 63_500,
            ..example.budget
        },
        expires: Timestamp(1_000_000),
        ..example
    }
}

/// A change that makes the specification invalid, and the key that the error must name.
type InvalidSetting = (&'static str, fn(&mut TaskSpec));

const INVALID_SETTINGS: &[InvalidSetting] = &[
    ("arbiter", |s| s.arbiter = Address::default()),
    ("budget.challenge_ms", |s| s.budget.challenge_ms = 0),
    ("version", |s| s.version = 2),
    ("name", |s| s.name = " ".to_owned()),
    ("name", |s| s.name = "x".repeat(NAME_BYTES_MAX + 1)),
    ("name", |s| s.name = "a\u{1b}[31m".to_owned()),
    ("model", |s| s.model = ModelArchitecture::Mlp { inputs: 64, hidden: vec![], classes: 10 }),
    ("model", |s| s.model = ModelArchitecture::Mlp { inputs: 64, hidden: vec![0], classes: 10 }),
    ("model", |s| s.model = ModelArchitecture::Softmax { inputs: 64, classes: 1 }),
    ("model", |s| {
        s.model = ModelArchitecture::Mlp { inputs: 65_536, hidden: vec![65_536], classes: 10 }
    }),
    ("data.width", |s| s.data.width = 63),
    ("data.classes", |s| s.data.classes = 9),
    ("holdout.rows", |s| s.holdout.rows = 0),
    ("holdout.rows", |s| s.holdout.root = Digest::default()),
    ("holdout.rows", |s| s.holdout.rows = u32::MAX),
    ("holdout.rows_per_round", |s| s.holdout.rows_per_round = 1),
    ("holdout.rows_per_round", |s| s.holdout.rows_per_round = 37),
    ("holdout.rows_per_round", |s| s.holdout.rows = 359),
    ("holdout.rows_per_round", |s| {
        s.holdout = Holdout { rows: 700_000, rows_per_round: 65_536, ..s.holdout.clone() };
        s.model = ModelArchitecture::Softmax { inputs: 8_192, classes: 10 };
        s.data.width = 8_192;
    }),
    ("training.epochs", |s| s.training.epochs = 0),
    ("training.batch", |s| s.training.batch = 0),
    ("training.learning_rate", |s| s.training.learning_rate = Micro::ZERO),
    ("training.warmup_steps", |s| s.training.warmup_steps = 1_000_001),
    ("training.betas", |s| {
        s.training.optimizer = Optimizer::Adam { beta1: Micro::ONE, beta2: Micro::ZERO };
    }),
    ("training.betas", |s| {
        s.training.optimizer = Optimizer::AdamW { beta1: Micro::ZERO, beta2: Micro::ONE };
    }),
    ("training.momentum", |s| {
        s.training.optimizer = Optimizer::AdamW { beta1: Micro::ZERO, beta2: Micro::ZERO };
    }),
    ("training.momentum", |s| s.training.momentum = Micro::ONE),
    ("training.weight_decay", |s| s.training.weight_decay = Micro(1_000_001)),
    ("rounds.count", |s| s.rounds.count = 0),
    ("rounds.cohort_min", |s| s.rounds.cohort_min = 0),
    ("rounds.cohort_target", |s| s.rounds.cohort_target = 2),
    ("rounds.over_selection", |s| s.rounds.over_selection = u32::MAX),
    ("rounds.delta_norm_max", |s| s.rounds.delta_norm_max = Micro::ZERO),
    ("rounds.format.permille", |s| s.rounds.format = UpdateFormat::TopK { permille: 0 }),
    ("rounds.format.permille", |s| s.rounds.format = UpdateFormat::TopK { permille: 501 }),
    ("rounds.train_ms", |s| s.rounds.train_ms = 0),
    ("rounds.enrol_ms", |s| s.rounds.enrol_ms = u64::MAX),
    ("rounds.stall_ms", |s| s.rounds.stall_ms = u64::MAX),
    ("rounds.abandoned_max", |s| s.rounds.abandoned_max = u32::MAX),
    ("rounds.aggregation.trim", |s| {
        s.rounds.aggregation = Aggregation::TrimmedMean { trim: Micro(500_000) };
    }),
    ("rounds.aggregation.byzantine", |s| {
        s.rounds.aggregation = Aggregation::Krum { byzantine: 1 };
    }),
    ("estimator.nodes", |s| s.estimator = Estimator::Path { nodes: 0, cross_check_pairs: 1 }),
    ("estimator.nodes", |s| s.estimator = Estimator::Path { nodes: 9, cross_check_pairs: 1 }),
    ("estimator.cross_check_pairs", |s| {
        s.estimator = Estimator::Path { nodes: 3, cross_check_pairs: 17 }
    }),
    ("budget.data", |s| s.budget.data = Amount::from_units(9_999_999_999_999_999)),
    ("budget.per_nat_max", |s| s.budget.per_nat_max = Amount::ZERO),
    ("budget.confidence_z", |s| s.budget.confidence_z = Micro(4_000_001)),
    ("budget.bond_min", |s| s.budget.bond_min = Amount::from_units(1)),
    ("budget.bond_per_row", |s| s.budget.bond_per_row = Amount::ZERO),
    ("budget.unbond_ms", |s| s.budget.unbond_ms = 63_499),
    ("members.accounts", |s| {
        s.admission = Admission::AllowList { accounts: vec![Address([1; 20]); 3] };
    }),
    ("members.accounts", |s| {
        let accounts = [3, 2, 1].map(|n| Address([n; 20])).to_vec();
        s.admission = Admission::AllowList { accounts };
    }),
    ("members.accounts", |s| {
        s.admission = Admission::AllowList { accounts: vec![Address([1; 20]), Address([2; 20])] };
    }),
    ("members.accounts", |s| {
        let account = |n: u32| {
            let mut bytes = [0; 20];
            bytes[..4].copy_from_slice(&n.to_be_bytes());
            Address(bytes)
        };
        s.admission = Admission::AllowList { accounts: (0..1_001).map(account).collect() };
    }),
    ("arbiter", |s| s.arbiter = s.buyer),
];

#[test]
fn a_valid_task_is_accepted() {
    spec().check().unwrap();
}

#[test]
fn every_invalid_setting_is_refused_by_its_key() {
    for (key, change) in INVALID_SETTINGS {
        let mut spec = spec();
        change(&mut spec);
        let error = spec.check().expect_err(key);
        assert_eq!(error.key, *key, "{error}");
        assert!(!error.expected.is_empty() && !error.value.is_empty(), "{error:?}");
    }
}

#[test]
fn a_holdout_too_small_for_all_rounds_names_valid_values() {
    let mut spec = spec();
    spec.holdout.rows_per_round = 40;
    let error = spec.check().unwrap_err();
    assert_eq!((error.key, error.value.as_str()), ("holdout.rows_per_round", "40"));
    assert!(error.expected.contains("10 rounds take 400 rows"), "{error}");
    assert!(
        error.expected.contains("the holdout has 360") && error.expected.contains("at most 36")
    );
    spec.rounds.count = 9;
    spec.check().unwrap();
}

#[test]
fn the_task_id_depends_on_every_setting() {
    let id = spec().id();
    for (key, change) in INVALID_SETTINGS {
        let mut spec = spec();
        change(&mut spec);
        assert_ne!(spec.id(), id, "{key}");
    }
}

#[test]
fn parameter_counts_match_the_architectures() {
    for (model, parameters) in [
        (ModelArchitecture::Softmax { inputs: 64, classes: 10 }, 650),
        (ModelArchitecture::Mlp { inputs: 64, hidden: vec![128], classes: 10 }, 9_610),
        (
            ModelArchitecture::Cnn {
                channels: 1,
                height: 8,
                width: 8,
                filters: [4, 8],
                hidden: 16,
                classes: 10,
            },
            40 + 296 + 528 + 170,
        ),
    ] {
        assert_eq!(model.parameters(), Some(parameters), "{model:?}");
    }
}

#[test]
fn the_initial_parameters_follow_from_everything_but_the_model_itself() {
    let spec = TaskSpec::example();
    let seed = spec.model_seed();
    let other_model = TaskSpec { base_model: Digest([9; 32]), ..spec.clone() };
    assert_eq!(other_model.model_seed(), seed);
    type SpecChange = fn(&mut TaskSpec);
    let changes: [SpecChange; 5] = [
        |spec| spec.salt ^= 1,
        |spec| spec.buyer = Address([9; 20]),
        |spec| spec.name.push('2'),
        |spec| spec.expires = Timestamp(spec.expires.0 ^ 1),
        |spec| spec.budget.data = Amount::from_units(spec.budget.data.units() + 1),
    ];
    for change in changes {
        let mut changed = spec.clone();
        change(&mut changed);
        assert_ne!(changed.model_seed(), seed);
    }
}
