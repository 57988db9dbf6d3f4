//! A training in segments has the bits of the whole training, on the reference engine.

use std::ops::ControlFlow;
use std::path::Path;

use crate::checkpoint::TrainingState;
use crate::data::{DataSource, Dataset, load};
use crate::engine::{
    InputError, TrainError, TrainedSegment, Trainer, TrainingSegment, TrainingStep,
};
use crate::graph::{
    BufferPolicy, GraphDeclaration, GraphForm, GraphLoss, GraphModel, read_archive, split,
};
use crate::model::ModelSpec;
use crate::reference::Reference;
use crate::training::{Betas, Optimizer, Training};

const SEED: u64 = 7;

struct Task {
    model: ModelSpec,
    start: Vec<f32>,
    rows: Dataset,
}

/// 45 rows: the last batch of an epoch is smaller.
fn rows(classes: usize) -> Dataset {
    let digits = load(&DataSource::Digits).unwrap().slice(0..45).unwrap();
    let labels = digits.labels().iter().map(|label| label % classes as u32).collect();
    Dataset::new(digits.features().to_vec(), labels, digits.width(), classes).unwrap()
}

fn dense(model: ModelSpec) -> Task {
    Task { start: model.init(3).as_slice().to_vec(), model, rows: rows(10) }
}

fn graph(name: &str) -> Task {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/graphs");
    let (graph, weights) = read_archive(&folder.join(format!("{name}.pt2"))).unwrap();
    let parts = split(&graph, &weights, &["*".to_owned()], BufferPolicy::Average).unwrap();
    let declared = GraphDeclaration {
        form: GraphForm::Operators,
        digest: [0; 32],
        inputs: parts.inputs,
        outputs: 3,
        targets: 0,
        loss: GraphLoss::CrossEntropy { label_smoothing: 0.0 },
        tensors: parts.tensors.clone(),
    };
    let model = GraphModel::load(declared, &parts.graph, parts.frozen.as_deref()).unwrap();
    Task { model: ModelSpec::Graph(Box::new(model)), start: parts.initial, rows: rows(3) }
}

fn how(optimizer: Optimizer, momentum: f64) -> Training {
    Training { momentum, optimizer, fedprox: Some(0.1), ..Training::sgd(3, 10, 0.01) }
}

fn train(
    task: &Task,
    how: &Training,
    (from, to): (&TrainingState, u64),
    is_traced: bool,
) -> Result<TrainedSegment, TrainError> {
    let Task { model, start, rows: data } = task;
    let segment = TrainingSegment { model, start, data, how, seed: SEED, from, to, is_traced };
    Reference::new().train_segment(&segment, &mut |_| ControlFlow::Continue(()))
}

#[test]
fn segments_have_the_bits_of_the_whole_training() {
    let betas = Betas { beta1: 0.9, beta2: 0.99 };
    let mlp = || dense(ModelSpec::Mlp { inputs: 64, hidden: vec![6], classes: 10 });
    let table = [
        ("plain", mlp(), Training::sgd(3, 10, 0.01)),
        ("momentum", mlp(), how(Optimizer::Sgd, 0.5)),
        ("adam", mlp(), how(Optimizer::AdamW(betas), 0.0)),
        ("batch statistics", graph("resnet"), how(Optimizer::Sgd, 0.5)),
        ("dropout", graph("vit"), how(Optimizer::Adam(betas), 0.0)),
    ];
    for (name, task, how) in table {
        let steps = how.steps(task.rows.rows());
        assert_eq!(steps, 15);
        let go_on = &mut |_: TrainingStep| ControlFlow::Continue(());
        let whole = Reference::new()
            .train(&task.model, &task.start, &task.rows, &how, SEED, go_on)
            .unwrap();
        let initial = TrainingState::initial(&task.start, &how);
        let at_once = train(&task, &how, (&initial, steps), true).unwrap();
        assert!(at_once.end.params() == whole.params, "{name}");
        assert_eq!(at_once.end.mean_loss().to_bits(), whole.mean_loss.to_bits(), "{name}");
        assert_eq!(at_once.trace.last(), Some(&at_once.end.digest()), "{name}");
        assert_eq!(at_once.trace.len() as u64, steps);
        // In the middle of an epoch, at its end, and behind it; each from bytes.
        let mut state = initial;
        for to in [1, 3, 5, 6, 11, steps] {
            let bytes = state.to_bytes().unwrap();
            let from = TrainingState::from_bytes(&bytes, task.start.len(), &how).unwrap();
            let trained = train(&task, &how, (&from, to), false).unwrap();
            assert_eq!(trained.end.digest(), at_once.trace[to as usize - 1], "{name} at {to}");
            state = trained.end;
        }
    }
}

#[test]
fn what_is_no_segment_of_a_training_is_refused() {
    let task = dense(ModelSpec::Softmax { inputs: 64, classes: 10 });
    let how = how(Optimizer::Sgd, 0.0);
    let initial = TrainingState::initial(&task.start, &how);
    for to in [0, 16] {
        let error = train(&task, &how, (&initial, to), false).unwrap_err();
        assert_eq!(error, InputError::Steps { from: 0, to, steps: 15 }.into());
    }
    let momentum = Training { momentum: 0.5, ..how };
    assert!(matches!(train(&task, &momentum, (&initial, 1), false), Err(TrainError::State(_))));
    let wild = Training { learning_rate: 100.0, weight_decay: 1.0, fedprox: Some(100.0), ..how };
    let error = train(&task, &wild, (&initial, 15), false).unwrap_err();
    assert!(matches!(error, TrainError::Diverged { .. }), "{error}");
    let Task { model, start, rows: data } = &task;
    let segment = TrainingSegment {
        model,
        start,
        data,
        how: &how,
        seed: SEED,
        from: &initial,
        to: 3,
        is_traced: false,
    };
    let stopped = Reference::new().train_segment(&segment, &mut |_| ControlFlow::Break(()));
    assert_eq!(stopped.unwrap_err(), TrainError::Stopped { step: 1 });
}
