//! Task specifications with different settings.

use super::*;

pub(super) fn spec(model: ModelArchitecture, aggregation: Aggregation) -> TaskSpec {
    let example = TaskSpec::example();
    TaskSpec {
        market: market(),
        buyer: wallet(1).address(),
        coordinator: wallet(2).address(),
        arbiter: wallet(3).address(),
        name: "Ziffern, handgeschrieben – 手写数字".to_owned(),
        salt: u64::MAX,
        data: DataSchema {
            width: model.inputs().unwrap(),
            classes: model.classes(),
            encoding: None,
        },
        model,
        base_model: Digest([0x11; 32]),
        holdout: Holdout { root: Digest([0x22; 32]), rows: 360, rows_per_round: 36 },
        training: Training {
            epochs: 3,
            batch: 16,
            learning_rate: micro("0.05"),
            momentum: micro("0.9"),
            weight_decay: micro("0.0001"),
            clip_gradient: micro("5"),
            ..example.training
        },
        rounds: RoundRules {
            count: 10,
            cohort_min: 5,
            cohort_target: 8,
            over_selection: 2,
            selection: Selection { knob: SelectionKnob::Fast, explore: micro("0.1") },
            deadline: DeadlineRule::Predicted { quantile: micro("0.9"), slack: micro("1.5") },
            enrol_ms: 60_000,
            train_ms: 600_000,
            reveal_ms: 60_000,
            value_ms: 30_000,
            delta_norm_max: micro("12.5"),
            aggregation,
            preprocessing: PreprocessingRules::default(),
            baseline_epochs: 0,
            ..example.rounds
        },
        estimator: Estimator::Path { nodes: 3, cross_check_pairs: 1 },
        budget: Budget {
            data: fln("1000"),
            infrastructure: fln("100"),
            per_nat_max: fln("500"),
            bond_min: fln("20"),
            bond_per_row: fln("0.1"),
            debit_max: fln("10"),
            stake_min: fln("50"),
            per_unit: fln("0.25"),
            challenge_ms: 3_600_000,
            unbond_ms: 7_200_000,
            ..example.budget
        },
        expires: Timestamp(1_800_000_000_000),
        ..example
    }
}

/// Images, each cut out of a larger one.
fn images() -> RowEncoding {
    let channel = NumberEncoding {
        offset: "33.3".parse().unwrap(),
        factor: "0.0127".parse().unwrap(),
        fill: None,
    };
    let images = ImageEncoding { height: 8, width: 8, resize: Some(9), channels: vec![channel] };
    let features = FeatureEncoding::Images(images);
    RowEncoding { class_names: Vec::new(), features, target: None }
}

/// Columns of every kind, for four features and three classes.
fn columns() -> RowEncoding {
    let number = NumberEncoding {
        offset: "-4e-9".parse().unwrap(),
        factor: "0.25".parse().unwrap(),
        fill: Some("1500".parse().unwrap()),
    };
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let column = |name: &str, kind| ColumnEncoding { name: name.to_owned(), kind };
    RowEncoding {
        class_names: texts(&["rot", "grün", "蓝"]),
        features: FeatureEncoding::Columns(vec![
            column("mass", ColumnKind::Numeric { number, missing_indicator: true }),
            column("id", ColumnKind::Ignored),
            column("sex", ColumnKind::Categorical { categories: texts(&["f", "m"]) }),
        ]),
        target: None,
    }
}

/// Tasks of all models, with different aggregation rules and update formats.
pub(super) fn specs() -> [TaskSpec; 3] {
    let mlp = spec(
        ModelArchitecture::Mlp { inputs: 64, hidden: vec![64, 32], classes: 10 },
        Aggregation::Mean,
    );
    let mut cnn = spec(
        ModelArchitecture::Cnn {
            channels: 1,
            height: 8,
            width: 8,
            filters: [8, 16],
            hidden: 32,
            classes: 10,
        },
        Aggregation::TrimmedMean { trim: micro("0.1") },
    );
    cnn.rounds.format = UpdateFormat::Int8;
    cnn.rounds.staleness = StalenessRule { rounds: 1, weight: StalenessWeight::Equal };
    let accounts = [5u8, 6, 7, 8, 9].map(|n| Address([n; 20])).to_vec();
    cnn.admission = Admission::AllowList { accounts };
    cnn.data.encoding = Some(images());
    cnn.training.augmentation = Augmentation { flip: true, crop_padding: 2 };
    let betas = [Micro(900_000), Micro(999_000)];
    cnn.training.momentum = Micro::ZERO;
    cnn.training.optimizer = Optimizer::Adam { beta1: betas[0], beta2: betas[1] };
    cnn.training.schedule = Schedule::Linear;
    cnn.training.warmup_steps = 8;
    let mut softmax = spec(
        ModelArchitecture::Softmax { inputs: 4, classes: 3 },
        Aggregation::Krum { byzantine: 1 },
    );
    softmax.rounds.format = UpdateFormat::TopK { permille: 10 };
    softmax.rounds.stall_ms = 3_600_000;
    softmax.rounds.staleness = StalenessRule { rounds: 64, weight: StalenessWeight::Inverse };
    softmax.rounds.abandoned_max = 8;
    softmax.admission = Admission::Invitation;
    softmax.data.encoding = Some(columns());
    softmax.training.momentum = Micro::ZERO;
    softmax.training.optimizer = Optimizer::AdamW { beta1: betas[0], beta2: betas[1] };
    softmax.training.schedule = Schedule::Cosine;
    [mlp, cnn, softmax]
}
