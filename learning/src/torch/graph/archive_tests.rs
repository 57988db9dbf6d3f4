//! Models that are hard to read, to write back or to evaluate.

use std::fs::File;
use std::io::{Cursor, ErrorKind};
use std::path::PathBuf;

use safetensors::SafeTensors;

use crate::engine::{Evaluator, Trainer};
use crate::graph::{
    BufferPolicy, GraphDeclaration, GraphError, GraphForm, GraphLoss, GraphModel, GraphParts,
    RewriteError, read_archive, read_archive_from, split, write_archive,
};
use crate::model::ModelSpec;
use crate::torch::{Torch, TorchDevice};
use crate::{Dataset, Training, TrainingStep};

fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/data/archives")).join(name)
}

fn parts(name: &str, buffers: BufferPolicy) -> Result<GraphParts, GraphError> {
    let (graph, weights) = read_archive(&path(&format!("{name}.pt2"))).unwrap();
    split(&graph, &weights, &["*".to_owned()], buffers)
}

fn load(parts: GraphParts, outputs: usize, loss: GraphLoss) -> Result<ModelSpec, GraphError> {
    let GraphParts { graph, tensors, frozen, inputs, .. } = parts;
    let declaration = GraphDeclaration {
        form: GraphForm::Operators,
        digest: [1; 32],
        inputs,
        targets: 0,
        outputs,
        loss,
        tensors,
    };
    let model = GraphModel::load(declaration, &graph, frozen.as_deref())?;
    Ok(ModelSpec::Graph(Box::new(model)))
}

const CLASSES: GraphLoss = GraphLoss::CrossEntropy { label_smoothing: 0.0 };

/// Weights with strides of their own, and two in one storage, are written to their places.
#[test]
fn trained_weights_are_written_where_they_were_read() {
    for name in ["channels_last", "shared", "tied"] {
        let file = path(&format!("{name}.pt2"));
        let parts = parts(name, BufferPolicy::Refuse).unwrap();
        let values: Vec<f32> = (0..parts.initial.len()).map(|at| at as f32 + 0.5).collect();
        let mut written = Cursor::new(Vec::new());
        write_archive(File::open(&file).unwrap(), &parts.tensors, &values, &mut written).unwrap();
        let (graph, weights) = read_archive_from(written).unwrap();
        let again = split(&graph, &weights, &["*".to_owned()], BufferPolicy::Refuse).unwrap();
        assert_eq!((&again.tensors, &again.graph), (&parts.tensors, &parts.graph), "{name}");
        assert_eq!(again.initial, values, "{name}");
    }
}

/// A disk that becomes full is no defect of the source.
#[test]
fn a_failed_write_of_an_archive_is_an_error_of_the_output() {
    let file = path("shared.pt2");
    let parts = parts("shared", BufferPolicy::Refuse).unwrap();
    let write = |room: &mut [u8]| {
        let source = File::open(&file).unwrap();
        write_archive(source, &parts.tensors, &parts.initial, Cursor::new(room))
    };
    for room in [0, 100, 2_000] {
        match write(&mut vec![0; room]) {
            Err(RewriteError::Output(error)) => assert_eq!(error.kind(), ErrorKind::WriteZero),
            other => panic!("{room}: {other:?}"),
        }
    }
    assert!(write(&mut vec![0; 1 << 20]).is_ok());
}

/// A tied weight has two names, of which the graph takes one.
#[test]
fn a_tied_weight_travels_once() {
    let parts = parts("tied", BufferPolicy::Refuse).unwrap();
    let weights = parts.tensors.iter().filter(|tensor| tensor.name.ends_with("weight"));
    assert_eq!(weights.count(), 1, "{:?}", parts.tensors);
}

#[test]
fn changes_through_a_view_and_lasting_randomness_are_refused() {
    for (name, part) in [("alias", "in place"), ("random", "randn_like draws random numbers")] {
        let parts = parts(name, BufferPolicy::Refuse).unwrap();
        let error = load(parts, 4, CLASSES).unwrap_err();
        assert_eq!(error.code(), "MODEL_UNSUPPORTED");
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// The adapters of peft: the pattern takes exactly the matrices B, everything else is frozen, and a step
/// ends where PyTorch's ends that trains B alone. On another processor than the one that wrote the
/// file the last bits may differ.
#[test]
fn the_matrices_b_of_peft_train_alone() {
    let (graph, weights) = read_archive(&path("lora.pt2")).unwrap();
    let parts = split(&graph, &weights, &["*lora_B*".to_owned()], BufferPolicy::Refuse).unwrap();
    let all = graph.inputs.iter().filter_map(|input| input.role.name());
    let of_b: Vec<&str> = all.clone().filter(|name| name.contains("lora_B")).collect();
    let travelling: Vec<&str> = parts.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(of_b.len(), 2);
    assert_eq!(travelling, of_b);
    let frozen = SafeTensors::deserialize(parts.frozen.as_deref().unwrap()).unwrap();
    let of_a = all.filter(|name| name.contains("lora_A"));
    assert_eq!(of_a.filter(|name| frozen.tensor(name).is_ok()).count(), 2);
    let computed = std::fs::read(path("lora.safetensors")).unwrap();
    let computed = SafeTensors::deserialize(&computed).unwrap();
    let numbers = |name: &str| -> Vec<f32> {
        let words = computed.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec();
        words.into_iter().map(f32::from_le_bytes).collect()
    };
    let start = parts.initial.clone();
    let expected: Vec<f32> =
        parts.tensors.iter().flat_map(|tensor| numbers(&tensor.name)).collect();
    let loss = GraphLoss::TokenCrossEntropy { label_smoothing: 0.0 };
    let model = load(parts, 17, loss).unwrap();
    let rows = Dataset::new(numbers("tokens"), vec![0; 4], 6, 1).unwrap();
    let mut loss = 0.0;
    let go_on = &mut |step: TrainingStep| {
        loss = step.loss;
        std::ops::ControlFlow::Continue(())
    };
    let how = Training::sgd(1, 4, 0.5);
    let mut engine = Torch::new(TorchDevice::Auto, 1).unwrap();
    let trained = engine.train(&model, &start, &rows, &how, 1, go_on).unwrap();
    assert!((loss - f64::from(numbers("loss")[0])).abs() < 1e-5);
    for ((found, expected), start) in trained.params.iter().zip(&expected).zip(&start) {
        assert!((found - expected).abs() < 1e-5 && found != start, "{found} {expected}");
    }
}

/// An operator that refuses a value costs the row its largest loss, not the round its valuation.
#[test]
fn a_refused_value_has_the_largest_loss() {
    const BOUND: f64 = 3.0;
    let parts = parts("probability", BufferPolicy::Refuse).unwrap();
    let model = load(parts, 1, GraphLoss::Output { bound: BOUND }).unwrap();
    let mut engine = Torch::new(TorchDevice::Auto, 1).unwrap();
    // The probabilities are near 0, 1/2 and 1; twice the last one is none.
    let numbers = vec![-9.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 9.0, 1.0, 0.0, 0.0];
    let rows = Dataset::new(numbers, vec![0; 3], 4, 1).unwrap();
    let usual = engine.row_losses(&model, &[1.0], &rows).unwrap();
    assert!(usual.iter().all(|loss| *loss < BOUND), "{usual:?}");
    let losses = engine.row_losses(&model, &[1.5], &rows).unwrap();
    assert_eq!(losses[2], BOUND);
    assert!(losses[..2].iter().all(|loss| *loss < BOUND), "{losses:?}");
    let (mean, gradient) = engine.gradient(&model, &[1.5], &rows).unwrap();
    assert!((mean - losses.iter().sum::<f64>() / 3.0).abs() < 1e-12);
    assert!(gradient[0].is_finite() && gradient[0] != 0.0);
    let lost = engine.row_losses(&model, &[f64::from(f32::MAX)], &rows).unwrap();
    assert_eq!(lost, [BOUND; 3]);
    assert_eq!(engine.correct_predictions(&model, &[1.5], &rows).unwrap(), 0);
}

/// A GPU that meets a refused value serves the process no more: such graphs are evaluated on the CPU.
#[test]
fn graphs_that_refuse_values_by_their_parameters_are_known() {
    let refuses = |model: &ModelSpec| match model {
        ModelSpec::Graph(model) => model.program().unwrap().refuses_values,
        _ => unreachable!(),
    };
    let probability = parts("probability", BufferPolicy::Refuse).unwrap();
    assert!(refuses(&load(probability, 1, GraphLoss::Output { bound: 1.0 }).unwrap()));
    let tied = parts("tied", BufferPolicy::Refuse).unwrap();
    assert!(!refuses(&load(tied, 4, CLASSES).unwrap()));
}

/// Statistics that training changes in place have memory of their own.
#[test]
fn instance_norm_trains_its_statistics_or_uses_them() {
    let rows: Vec<f32> = (0..5 * 16).map(|at| ((at * 7) % 11) as f32 / 11.0).collect();
    let rows = Dataset::new(rows, vec![0, 1, 2, 0, 1], 16, 3).unwrap();
    let how = Training { momentum: 0.9, ..Training::sgd(2, 2, 0.05) };
    for (policy, travels) in [(BufferPolicy::Average, true), (BufferPolicy::Freeze, false)] {
        let parts = parts("instance_norm", policy).unwrap();
        let start = parts.initial.clone();
        let has_statistics = parts.tensors.iter().any(|tensor| tensor.name.contains("running"));
        assert_eq!(has_statistics, travels);
        let model = load(parts, 3, CLASSES).unwrap();
        let go_on = &mut |_: TrainingStep| std::ops::ControlFlow::Continue(());
        let mut engine = Torch::new(TorchDevice::Auto, 1).unwrap();
        let trained = engine.train(&model, &start, &rows, &how, 1, go_on).unwrap();
        assert_ne!(trained.params, start);
    }
}
