//! A training in segments has the bits of the whole training.

use std::ops::ControlFlow;

use super::tests::{ALL, GraphTask, go_on, is_random, models};
use crate::checkpoint::{StateError, TrainingState};
use crate::engine::{InputError, TrainError, TrainedSegment, Trainer, TrainingSegment};
use crate::graph::BufferPolicy;
use crate::torch::{Torch, TorchDevice};
use crate::training::{Betas, Execution, Optimizer, Precision, Training};

const SEED: u64 = 7;

fn how(optimizer: Optimizer, momentum: f64) -> Training {
    let execution = Execution { virtual_workers: Some(4), ..Execution::default() };
    Training { momentum, optimizer, fedprox: Some(0.1), execution, ..Training::sgd(2, 6, 0.01) }
}

fn task(model: &str) -> GraphTask {
    let buffers = match model {
        "resnet" => BufferPolicy::Average,
        _ => BufferPolicy::Freeze,
    };
    let mut task = GraphTask::load(model, ALL, buffers);
    let own = task.rows.rows();
    // The last batch of an epoch is smaller.
    let rows: Vec<usize> = (0..20).map(|row| row * 7 % own).collect();
    task.rows = task.rows.subset(&rows).unwrap();
    task
}

fn segment<'a>(
    task: &'a GraphTask,
    how: &'a Training,
    from: &'a TrainingState,
    to: u64,
) -> TrainingSegment<'a> {
    let GraphTask { model, start, rows: data, .. } = task;
    TrainingSegment { model, start, data, how, seed: SEED, from, to, is_traced: false }
}

fn train(segment: &TrainingSegment<'_>) -> Result<TrainedSegment, TrainError> {
    Torch::new(TorchDevice::Cpu, 2).unwrap().train_segment(segment, &mut go_on)
}

#[test]
fn segments_have_the_bits_of_the_whole_training() {
    let betas = Betas { beta1: 0.9, beta2: 0.99 };
    let table = [
        // Batch statistics; attention; dropout.
        ("resnet", how(Optimizer::Sgd, 0.5)),
        ("gpt", how(Optimizer::AdamW(betas), 0.0)),
        ("vit", how(Optimizer::Adam(betas), 0.0)),
        ("mlp", how(Optimizer::Sgd, 0.0)),
    ];
    assert!(models().iter().any(|model| is_random(model)));
    for (model, how) in table {
        let task = task(model);
        let steps = how.steps(task.rows.rows());
        let mut engine = Torch::new(TorchDevice::Cpu, 1).unwrap();
        let whole =
            engine.train(&task.model, &task.start, &task.rows, &how, SEED, &mut go_on).unwrap();
        let initial = TrainingState::initial(&task.start, &how);
        let traced = TrainingSegment { is_traced: true, ..segment(&task, &how, &initial, steps) };
        let at_once = train(&traced).unwrap();
        assert!(at_once.end.params() == whole.params, "{model}");
        assert_eq!(at_once.end.mean_loss().to_bits(), whole.mean_loss.to_bits(), "{model}");
        assert_eq!(at_once.trace.len() as u64, steps);
        assert_eq!(at_once.trace.last(), Some(&at_once.end.digest()));

        // Each segment on an engine of its own, from bytes.
        let mut state = initial;
        for to in [1, 3, 4, 6, steps] {
            let from =
                TrainingState::from_bytes(&state.to_bytes().unwrap(), task.start.len(), &how);
            let trained = train(&segment(&task, &how, &from.unwrap(), to)).unwrap();
            assert_eq!(trained.end.digest(), at_once.trace[to as usize - 1], "{model} at {to}");
            assert!(trained.trace.is_empty());
            state = trained.end;
        }
    }
}

#[test]
fn what_is_no_segment_of_a_training_is_refused() {
    let (task, how) = (task("mlp"), how(Optimizer::Sgd, 0.0));
    let initial = TrainingState::initial(&task.start, &how);
    let steps = how.steps(task.rows.rows());
    let refused = |how: &Training, from: &TrainingState, to| {
        train(&segment(&task, how, from, to)).unwrap_err()
    };
    for to in [0, steps + 1] {
        let expected = InputError::Steps { from: 0, to, steps };
        assert_eq!(refused(&how, &initial, to), expected.into());
    }
    let momentum = Training { momentum: 0.5, ..how };
    assert!(matches!(refused(&momentum, &initial, 1), TrainError::State(StateError { .. })));
    let short = TrainingState::initial(&task.start[1..], &how);
    assert!(matches!(refused(&how, &short, 1), TrainError::State(StateError { .. })));
    let alone = Training { execution: Execution::default(), ..how };
    let error = refused(&alone, &initial, 1);
    assert!(error.to_string().contains("virtual workers"), "{error}");
    let execution = Execution { precision: Precision::Bf16, ..how.execution };
    let half = Training { execution, ..how };
    assert!(matches!(
        refused(&half, &initial, 1),
        TrainError::Input(InputError::Precision { precision: Precision::Bf16, .. })
    ));
    // A caller that stops it gets no end.
    let mut engine = Torch::new(TorchDevice::Cpu, 1).unwrap();
    let stopped = engine
        .train_segment(&segment(&task, &how, &initial, 3), &mut |_| ControlFlow::Break(()))
        .unwrap_err();
    assert_eq!(stopped, TrainError::Stopped { step: 1 });
}
