//! Graphs as models of a task: training, losses and derivatives, on models that PyTorch exported.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use safetensors::SafeTensors;

use super::*;
use crate::engine::{Evaluator, TrainedModel, Trainer, TrainingStep};
use crate::graph::{
    Argument, BufferPolicy, GraphDeclaration, GraphForm, GraphParts, Operation, read_archive, split,
};
use crate::memory::{MemoryNews, MemorySettings};
use crate::model::ModelSpec;
use crate::torch::TorchDevice;
use crate::training::{Betas, Execution, Optimizer, Precision, Training};

pub(crate) const ALL: &str = "*";

fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/data/graphs")).join(name)
}

fn parts(name: &str, trainable: &str, buffers: BufferPolicy) -> GraphParts {
    let (graph, weights) = read_archive(&path(&format!("{name}.pt2"))).unwrap();
    split(&graph, &weights, &[trainable.to_owned()], buffers).unwrap()
}

/// A model, its initial parameters, and rows with what PyTorch computed.
pub(crate) struct GraphTask {
    pub(crate) model: ModelSpec,
    pub(crate) start: Vec<f32>,
    pub(crate) rows: Dataset,
    expected: Vec<u8>,
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let bytes = file.tensor(name).unwrap().data().to_vec();
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn integers(file: &SafeTensors<'_>, name: &str) -> Vec<i64> {
    let bytes = file.tensor(name).unwrap().data().to_vec();
    bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
}

impl GraphTask {
    pub(crate) fn load(name: &str, trainable: &str, buffers: BufferPolicy) -> Self {
        let parts = parts(name, trainable, buffers);
        let expected = std::fs::read(path(&format!("{name}.safetensors"))).unwrap();
        let file = SafeTensors::deserialize(&expected).unwrap();
        let input = match file.tensor("input").unwrap().dtype() {
            safetensors::Dtype::I64 => {
                integers(&file, "input").iter().map(|&token| token as f32).collect()
            }
            _ => floats(&file, "input"),
        };
        let labels = integers(&file, "labels");
        let rows = file.tensor("labels").unwrap().shape()[0];
        // Models of tokens have a label for each token.
        let targets = if labels.len() == rows { 0 } else { labels.len() / rows };
        let loss = match targets {
            0 => GraphLoss::CrossEntropy { label_smoothing: 0.0 },
            _ => GraphLoss::TokenCrossEntropy { label_smoothing: 0.0 },
        };
        let (graph, _) = read_archive(&path(&format!("{name}.pt2"))).unwrap();
        let cost = crate::graph::graph_cost(&graph, &[2], u64::MAX).unwrap();
        let outputs = *cost.outputs[0].sizes.last().unwrap() as usize;
        let GraphParts { graph, tensors, initial, frozen, inputs } = parts;
        let declaration = GraphDeclaration {
            form: GraphForm::Operators,
            digest: [1; 32],
            inputs,
            targets,
            outputs,
            loss,
            tensors,
        };
        let model = GraphModel::load(declaration, &graph, frozen.as_deref()).unwrap();
        let mut numbers = Vec::new();
        for row in 0..rows {
            numbers.extend_from_slice(&input[row * inputs..(row + 1) * inputs]);
            let own = &labels[row * targets..(row + 1) * targets];
            numbers.extend(own.iter().map(|&label| label as f32));
        }
        let classes = model.classes();
        let labels = match targets {
            0 => labels.iter().map(|&label| label as u32).collect(),
            _ => vec![0; rows],
        };
        let rows = Dataset::new(numbers, labels, inputs + targets, classes).unwrap();
        Self { model: ModelSpec::Graph(Box::new(model)), start: initial, rows, expected }
    }

    pub(crate) fn wide(&self) -> Vec<f64> {
        self.start.iter().map(|&number| number.into()).collect()
    }
}

pub(crate) fn models() -> Vec<String> {
    let files = std::fs::read_dir(path("")).unwrap().map(|file| file.unwrap().path());
    let models = files.filter(|file| file.extension().is_some_and(|end| end == "pt2"));
    let mut names: Vec<String> =
        models.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort_unstable();
    names
}

pub(super) fn engine() -> Torch {
    Torch::new(TorchDevice::Auto, 1).unwrap()
}

pub(super) fn training(epochs: u32) -> Training {
    Training::sgd(epochs, 5, 0.05)
}

pub(in crate::torch) fn go_on(_: TrainingStep) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Whether a model draws random numbers in training: with the rows in another order it draws others.
pub(in crate::torch) fn is_random(name: &str) -> bool {
    let (graph, _) = read_archive(&path(&format!("{name}.pt2"))).unwrap();
    graph.nodes.iter().any(|node| {
        let Operation::Aten(operator) = &node.operation else { return false };
        let is_dropped = |(name, argument): &(String, Argument)| match argument {
            Argument::Float(bits) => name.starts_with("dropout") && *bits != 0,
            _ => false,
        };
        operator.starts_with("dropout")
            || operator.starts_with("bernoulli")
            || operator == "rand"
            || node.arguments.iter().any(is_dropped)
    })
}

/// A training of ten steps, the prefix of the parameters after it in the files, and the most by which
/// rounding moves them.
pub(super) fn optimizers() -> [(&'static str, Training, f32); 3] {
    let adam = Betas { beta1: 0.8, beta2: 0.95 };
    let adamw = Betas { beta1: 0.9, beta2: 0.999 };
    let by = |optimizer, weight_decay| Training {
        optimizer,
        weight_decay,
        ..Training::sgd(10, 5, 0.01)
    };
    [
        ("after", training(10), 2e-5),
        ("adam", by(Optimizer::Adam(adam), 0.01), 1e-4),
        ("adamw", by(Optimizer::AdamW(adamw), 0.1), 1e-4),
    ]
}

#[test]
fn a_training_of_ten_steps_ends_where_pytorch_ends() {
    let mut compared = [0; 3];
    for name in models().iter().filter(|name| !is_random(name)) {
        let case = GraphTask::load(name, ALL, BufferPolicy::Average);
        let file = SafeTensors::deserialize(&case.expected).unwrap();
        for ((prefix, how, most), compared) in optimizers().iter().zip(&mut compared) {
            let mut far = 0.0_f32;
            // The files have parameters only, and those of Adam for some models.
            if !file.names().iter().any(|tensor| tensor.starts_with(&format!("{prefix}."))) {
                continue;
            }
            let trained =
                engine().train(&case.model, &case.start, &case.rows, how, 7, &mut go_on).unwrap();
            let mut from = 0;
            for tensor in case.model.tensors() {
                let found = &trained.params[from..from + tensor.elements()];
                from += tensor.elements();
                let after = format!("{prefix}.{}", tensor.name);
                if file.tensor(&after).is_err() {
                    continue;
                }
                let slopes = floats(&file, &format!("gradient.{}", tensor.name));
                for ((found, expected), slope) in
                    found.iter().zip(floats(&file, &after)).zip(slopes)
                {
                    // Adam makes a step of rounding errors where the gradient is zero, as that of a
                    // bias before batch norm is.
                    if slope.abs() < 1e-6 && *prefix != "after" {
                        continue;
                    }
                    let away = (found - expected).abs();
                    assert!(away < *most, "{name} {after}: {found} {expected}");
                    far = far.max((found - expected).abs());
                }
            }
            println!("{name} {prefix}: at most {far:e} from PyTorch");
            *compared += 1;
        }
    }
    assert!(compared[0] >= 8 && compared[1] == 4 && compared[2] == 4, "{compared:?}");
}

/// With less memory than a batch takes, gradients are sums of those of its parts; a batch that batch norm
/// normalises is not split, but its tensors leave the memory and return.
#[test]
fn a_batch_that_exceeds_the_memory_is_computed_in_parts() {
    let mut parts = 0;
    for name in models().iter().filter(|name| !is_random(name)) {
        let case = GraphTask::load(name, ALL, BufferPolicy::Average);
        let has_statistics = case.model.tensors().iter().any(|it| it.name.contains("running_"));
        let news = Arc::new(Mutex::new(Vec::new()));
        let train = |memory_bytes| {
            let news = news.clone();
            let notify = Arc::new(move |one: &MemoryNews| news.lock().unwrap().push(one.clone()));
            let settings = MemorySettings { notify, ..MemorySettings::default() };
            let execution = Execution { memory_bytes, ..Execution::default() };
            let how = Training { execution, ..training(4) };
            let mut engine = engine().with_memory(settings);
            engine.train(&case.model, &case.start, &case.rows, &how, 7, &mut go_on)
        };
        let whole = train(None).unwrap();
        // The error states the least memory of a step of the smallest parts.
        let least = match train(Some(1)) {
            Err(TrainError::Memory(error)) => error.needed,
            other => panic!("{name}: {other:?}"),
        };
        let split = train(Some(least + least / 8)).unwrap();
        let news = news.lock().unwrap();
        println!("{name}: {news:?}");
        let pairs = whole.params.iter().zip(&split.params);
        let far = pairs.fold(0.0_f32, |far, (a, b)| far.max((a - b).abs()));
        assert!(far < 1e-5, "{name}: {far}");
        assert!((whole.mean_loss - split.mean_loss).abs() < 1e-5, "{name}");
        if has_statistics {
            assert_eq!(whole, split, "{name}");
        } else if whole != split {
            let is_small = |one: &MemoryNews| {
                matches!(one, MemoryNews::Parts { .. } | MemoryNews::Plan { rows: 1, .. })
            };
            // A model whose memory depends on the numbers has parts by an estimate, without news.
            assert!(news.iter().all(is_small), "{name}: {news:?}");
            parts += 1;
        }
    }
    assert!(parts >= 3, "{parts} models were computed in parts");
}

#[test]
fn products_of_16_bits_train_like_those_of_32() {
    // Without dropout, which draws other numbers for another type on a GPU.
    for name in ["softmax", "mixer", "llama", "convnext", "resnet"] {
        let case = GraphTask::load(name, ALL, BufferPolicy::Average);
        let train = |precision| {
            let execution = Execution { precision, ..Execution::default() };
            let how = Training { execution, ..training(10) };
            let mut go_on = go_on;
            engine().train(&case.model, &case.start, &case.rows, &how, 7, &mut go_on).unwrap()
        };
        let whole = train(Precision::F32);
        let moved = |trained: &TrainedModel| -> Vec<f32> {
            trained.params.iter().zip(&case.start).map(|(end, start)| end - start).collect()
        };
        let norm = |of: &[f32]| of.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        for precision in [Precision::Bf16, Precision::F16] {
            let short = train(precision);
            let away: Vec<f32> =
                moved(&short).iter().zip(moved(&whole)).map(|(a, b)| a - b).collect();
            let share = norm(&away) / norm(&moved(&whole));
            println!("{name} {precision}: {share:.4} of the update away from f32");
            assert_ne!(short.params, whole.params, "{name} {precision}");
            assert!(share < 0.1, "{name} {precision}: {share}");
        }
        assert_eq!(train(Precision::F32), whole, "autocast has ended");
    }
}

#[test]
fn trainings_with_random_numbers_repeat_from_their_seed() {
    let random: Vec<String> = models().into_iter().filter(|name| is_random(name)).collect();
    assert!(random.len() >= 4, "{random:?}");
    for name in random {
        let case = GraphTask::load(&name, ALL, BufferPolicy::Average);
        let how = training(3);
        let run = |seed| {
            engine().train(&case.model, &case.start, &case.rows, &how, seed, &mut go_on).unwrap()
        };
        assert_eq!(run(3), run(3), "{name}");
        assert_ne!(run(3), run(4), "{name}");
    }
}

#[test]
fn gradients_and_derivatives_are_those_of_differences() {
    for name in models() {
        let case = GraphTask::load(&name, ALL, BufferPolicy::Average);
        let (model, rows, base) = (&case.model, &case.rows, case.wide());
        let mut engine = engine();
        let direction: Vec<f32> =
            (0..base.len()).map(|at| ((at * 7 + 3) % 11) as f32 / 11.0 - 0.4).collect();
        let moved = |step: f64| -> Vec<f64> {
            base.iter().zip(&direction).map(|(base, d)| base + step * f64::from(*d)).collect()
        };
        const STEP: f64 = 1e-6;
        let after = engine.row_losses(model, &moved(STEP), rows).unwrap();
        let before = engine.row_losses(model, &moved(-STEP), rows).unwrap();
        let slopes = engine.row_directional_derivatives(model, &base, &[&direction], rows).unwrap();
        for ((after, before), slope) in after.iter().zip(&before).zip(&slopes[0]) {
            let difference = (after - before) / (2.0 * STEP);
            let away = (difference - slope).abs();
            assert!(away < 1e-5 * (1.0 + slope.abs()), "{name}: {difference} {slope}");
        }
        let (loss, gradient) = engine.gradient(model, &base, rows).unwrap();
        let losses = engine.row_losses(model, &base, rows).unwrap();
        assert!((loss - mean(&losses)).abs() < 1e-12, "{name}");
        let product: f64 = gradient.iter().zip(&direction).map(|(g, d)| g * f64::from(*d)).sum();
        assert!((product - mean(&slopes[0])).abs() < 1e-9, "{name}");
        let total = vec![0.0; base.len()];
        let way = ParameterSegment { model, base: &case.start, total: &total };
        let places = [false, true].map(|gradient| SegmentPoint { t: 0.5, gradient });
        let groups = [0..2, 2..rows.rows()];
        let mut sums = vec![0.0; base.len()];
        let mut found = Vec::new();
        let mut look = |_: usize, place: usize, numbers: &[f64]| match place {
            0 => found.extend_from_slice(numbers),
            _ => sums.iter_mut().zip(numbers).for_each(|(sum, own)| *sum += own),
        };
        engine.evaluate_on_segment(way, &places, rows, &groups, &mut look).unwrap();
        for (found, loss) in found.iter().zip(&losses) {
            assert!((found - loss).abs() < 1e-12, "{name}");
        }
        for (sum, gradient) in sums.iter().zip(&gradient) {
            assert!((sum / rows.rows() as f64 - gradient).abs() < 1e-9, "{name}");
        }
    }
}

/// On a machine with a GPU it compares the GPU with the CPU, otherwise threads with one thread.
#[test]
fn evaluations_agree_across_devices_within_the_tolerance_of_a_round() {
    // A tenth of the tolerance of scores, 10 nano-nats.
    const TOLERANCE: f64 = 1e-9;
    let mut plain = Torch::new(TorchDevice::Cpu, 1).unwrap();
    let mut other = Torch::new(TorchDevice::Auto, 2).unwrap();
    let mut largest = (0.0_f64, 0.0_f64);
    for name in models() {
        let (mut losses_away, mut slopes_away) = (0.0_f64, 0.0_f64);
        let case = GraphTask::load(&name, ALL, BufferPolicy::Average);
        let (model, rows, base) = (&case.model, &case.rows, case.wide());
        let losses = [&mut plain, &mut other].map(|e| e.row_losses(model, &base, rows).unwrap());
        for (one, two) in losses[0].iter().zip(&losses[1]) {
            losses_away = losses_away.max((one - two).abs());
        }
        let slopes = [&mut plain, &mut other].map(|e| e.gradient(model, &base, rows).unwrap().1);
        for (one, two) in slopes[0].iter().zip(&slopes[1]) {
            slopes_away = slopes_away.max((one - two).abs());
        }
        println!("{name}: losses differ by up to {losses_away:e}, gradients by {slopes_away:e}");
        largest = (largest.0.max(losses_away), largest.1.max(slopes_away));
    }
    println!("{}: at most {:e} and {:e}", crate::Engine::name(&other), largest.0, largest.1);
    assert!(largest.0 < TOLERANCE && largest.1 < TOLERANCE);
}

#[test]
fn usual_models_refuse_no_values_by_their_parameters() {
    let refuses = |name: &String| {
        let task = GraphTask::load(name, ALL, BufferPolicy::Average);
        let ModelSpec::Graph(model) = &task.model else { unreachable!() };
        model.program().unwrap().refuses_values
    };
    let found: Vec<String> = models().into_iter().filter(refuses).collect();
    // A router decides the order of its rows.
    assert_eq!(found, ["mixture"]);
}

#[test]
fn only_the_tensors_that_travel_are_trained() {
    let all = GraphTask::load("gpt", ALL, BufferPolicy::Refuse);
    let head = GraphTask::load("gpt", "*mlp*", BufferPolicy::Refuse);
    assert!(head.start.len() < all.start.len());
    assert!(head.model.tensors().iter().all(|tensor| tensor.name.contains("mlp")));
    let mut engine = engine();
    let of = |case: &GraphTask, engine: &mut Torch| {
        engine.row_losses(&case.model, &case.wide(), &case.rows).unwrap()
    };
    assert_eq!(of(&all, &mut engine), of(&head, &mut engine));
    let how = training(2);
    let trained = engine.train(&head.model, &head.start, &head.rows, &how, 1, &mut go_on).unwrap();
    assert_ne!(trained.params, head.start);
}

#[test]
fn statistics_travel_or_stay() {
    let travelling = GraphTask::load("resnet", ALL, BufferPolicy::Average);
    let is_statistic = |tensor: &crate::TensorSpec| tensor.name.contains("running_");
    assert!(travelling.model.tensors().iter().any(is_statistic));
    let frozen = GraphTask::load("resnet", ALL, BufferPolicy::Freeze);
    assert!(!frozen.model.tensors().iter().any(is_statistic));
    let (graph, weights) = read_archive(&path("resnet.pt2")).unwrap();
    let refused = split(&graph, &weights, &[ALL.to_owned()], BufferPolicy::Refuse).unwrap_err();
    assert!(refused.to_string().contains("running_mean"), "{refused}");
    // In evaluation both are the same function.
    let mut engine = engine();
    let losses = |case: &GraphTask, engine: &mut Torch| {
        engine.row_losses(&case.model, &case.wide(), &case.rows).unwrap()
    };
    assert_eq!(losses(&travelling, &mut engine), losses(&frozen, &mut engine));
    // A training changes the statistics that travel, decay and proximal term do not.
    let how = Training { weight_decay: 0.5, fedprox: Some(3.0), ..training(1) };
    let plain = training(1);
    let train = |case: &GraphTask, how: &Training, engine: &mut Torch| {
        engine.train(&case.model, &case.start, &case.rows, how, 1, &mut go_on).unwrap().params
    };
    let (one, other) =
        (train(&travelling, &how, &mut engine), train(&travelling, &plain, &mut engine));
    let mut from = 0;
    for tensor in travelling.model.tensors() {
        let range = from..from + tensor.elements();
        from = range.end;
        if is_statistic(&tensor) {
            assert_ne!(one[range.clone()], travelling.start[range.clone()], "{}", tensor.name);
            assert_eq!(one[range.clone()], other[range], "{}", tensor.name);
        }
    }
    let gradient = |case: &GraphTask| {
        let mut look = |_: RowGradient<'_>| {};
        Torch::new(TorchDevice::Auto, 1).unwrap().row_gradients(
            &case.model,
            &case.start,
            &case.rows,
            &[0],
            &mut look,
        )
    };
    let error = gradient(&travelling).unwrap_err().to_string();
    assert!(error.contains("buffers = \"freeze\""), "{error}");
    gradient(&frozen).unwrap();
}

#[test]
fn a_model_without_its_graph_is_refused() {
    let case = GraphTask::load("mlp", ALL, BufferPolicy::Refuse);
    let ModelSpec::Graph(model) = &case.model else { unreachable!() };
    let bare = ModelSpec::Graph(Box::new(GraphModel::new(model.declaration().clone())));
    assert_eq!(bare, case.model);
    let error = engine().row_losses(&bare, &case.wide(), &case.rows).unwrap_err().to_string();
    assert!(error.contains("is not loaded"), "{error}");
}

/// A hostile update can make any operator return NaN: the rows count with the largest loss.
#[test]
fn losses_that_are_not_numbers_are_the_largest() {
    let case = GraphTask::load("resnet", ALL, BufferPolicy::Average);
    let wild: Vec<f64> = case.start.iter().map(|value| f64::from(*value) * -1e200).collect();
    let mut engine = engine();
    let losses = engine.row_losses(&case.model, &wild, &case.rows).unwrap();
    let most = crate::BoundedLoss::new(3).largest();
    assert!(losses.iter().all(|loss| (0.0..=most + 1e-12).contains(loss)), "{losses:?}");
    let (_, gradient) = engine.gradient(&case.model, &wild, &case.rows).unwrap();
    assert!(gradient.iter().all(|slope| slope.is_finite()));
}

mod losses {
    use tch::{Kind, Tensor};

    use super::super::loss::{Targets, row_losses};
    use crate::graph::GraphLoss;
    use crate::loss::{BoundedLoss, RowLoss};

    fn evaluate(loss: GraphLoss, form: RowLoss, output: &[f64], numbers: &[f64]) -> Vec<f64> {
        let rows = 2;
        let output = Tensor::from_slice(output).view([rows, -1]);
        let labels = Tensor::from_slice(&[1_i64, 0]);
        let numbers = match numbers {
            [] => Tensor::zeros([rows, 0], (Kind::Double, tch::Device::Cpu)),
            numbers => Tensor::from_slice(numbers).view([rows, -1]),
        };
        let tokens = Tensor::zeros([rows, 0], (Kind::Double, tch::Device::Cpu));
        let targets = Targets { labels: &labels, numbers: &numbers, tokens: &tokens };
        Vec::try_from(row_losses(loss, form, &output, &targets).unwrap()).unwrap()
    }

    fn close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        }
    }

    #[test]
    fn differences_are_bounded_in_an_evaluation_only() {
        let (bound, delta) = (4.0, 1.0);
        let (output, numbers) = ([1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, -1.0]);
        for (loss, plain) in [
            (GraphLoss::Squared { bound }, [2.5, 5.0]),
            (GraphLoss::Absolute { bound }, [1.5, 2.0]),
            // 1/2 and 2 − 1/2; 3 − 1/2 and 1/2.
            (GraphLoss::Huber { delta, bound }, [1.0, 1.5]),
        ] {
            close(&evaluate(loss, RowLoss::CrossEntropy, &output, &numbers), &plain);
            let bounded = plain.map(|loss| bound * (loss / bound).tanh());
            close(&evaluate(loss, RowLoss::Bounded, &output, &numbers), &bounded);
        }
        let own = GraphLoss::Output { bound };
        close(&evaluate(own, RowLoss::CrossEntropy, &[1e9, -2.0], &[]), &[1e9, -2.0]);
        close(&evaluate(own, RowLoss::Bounded, &[1e9, f64::NAN], &[]), &[bound, bound]);
    }

    #[test]
    fn binary_targets_have_the_cross_entropy_of_two_classes() {
        let (output, numbers) = ([0.0, 2.0_f64.ln(), -40.0, 40.0], [1.0, 1.0, 0.0, 1.0]);
        let plain = [(2.0_f64.ln() + 1.5_f64.ln()) / 2.0, 0.0];
        close(&evaluate(GraphLoss::Binary, RowLoss::CrossEntropy, &output, &numbers), &plain);
        let two = |entropy: f64| BoundedLoss::new(2).of_cross_entropy(entropy).0;
        let bounded = [(two(2.0_f64.ln()) + two(1.5_f64.ln())) / 2.0, 0.0];
        close(&evaluate(GraphLoss::Binary, RowLoss::Bounded, &output, &numbers), &bounded);
    }

    #[test]
    fn smoothing_is_of_the_training() {
        let loss = GraphLoss::CrossEntropy { label_smoothing: 0.25 };
        let output = [0.0, 3.0_f64.ln(), 0.0, 0.0];
        // Probabilities 1/4, 3/4 and 1/2, 1/2.
        let (own, spread) = (-(0.75_f64).ln(), -(0.75_f64.ln() + 0.25_f64.ln()) / 2.0);
        let plain = [0.75 * own + 0.25 * spread, 2.0_f64.ln()];
        close(&evaluate(loss, RowLoss::CrossEntropy, &output, &[]), &plain);
        let two = |entropy: f64| BoundedLoss::new(2).of_cross_entropy(entropy).0;
        let bounded = [two(own), two(2.0_f64.ln())];
        close(&evaluate(loss, RowLoss::Bounded, &output, &[]), &bounded);
    }

    #[test]
    fn tokens_predict_the_next_or_their_target_without_the_negative() {
        let loss = GraphLoss::TokenCrossEntropy { label_smoothing: 0.0 };
        // One row of three tokens of two classes, with probabilities of class 1: 3/4, 1/2, 1/4.
        let three = 3.0_f64.ln();
        let output = Tensor::from_slice(&[0.0, three, 0.0, 0.0, three, 0.0]).view([1, 3, 2]);
        let none = Tensor::zeros([1, 0], (Kind::Double, tch::Device::Cpu));
        let labels = Tensor::from_slice(&[0_i64]);
        let tokens = Tensor::from_slice(&[0.0, 1.0, 0.0]).view([1, 3]);
        let next = Targets { labels: &labels, numbers: &none, tokens: &tokens };
        let found = row_losses(loss, RowLoss::CrossEntropy, &output, &next).unwrap();
        let expected = (-(0.75_f64.ln()) - 0.5_f64.ln()) / 2.0;
        close(&Vec::<f64>::try_from(found).unwrap(), &[expected]);
        let numbers = Tensor::from_slice(&[-100.0, 1.0, 0.0]).view([1, 3]);
        let own = Targets { labels: &labels, numbers: &numbers, tokens: &tokens };
        let found = row_losses(loss, RowLoss::CrossEntropy, &output, &own).unwrap();
        let expected = (-(0.5_f64.ln()) - 0.75_f64.ln()) / 2.0;
        close(&Vec::<f64>::try_from(found).unwrap(), &[expected]);
        let left_out = Tensor::from_slice(&[-1.0, -1.0, -1.0]).view([1, 3]);
        let own = Targets { labels: &labels, numbers: &left_out, tokens: &tokens };
        let found = row_losses(loss, RowLoss::Bounded, &output, &own).unwrap();
        close(&Vec::<f64>::try_from(found).unwrap(), &[0.0]);
    }
}

#[test]
fn graphs_train_to_the_same_bits_on_gathered_batches_and_in_parts() {
    for name in ["vit", "gpt"] {
        let task = GraphTask::load(name, ALL, BufferPolicy::Refuse);
        let part = Execution { memory_bytes: Some(20_000), ..Execution::default() };
        for how in [training(2), Training { execution: part, ..training(2) }] {
            let [resident, gathered] = [usize::MAX, 0].map(|most| {
                let mut engine = Torch { resident_bytes_max: most, ..engine() };
                let trained =
                    engine.train(&task.model, &task.start, &task.rows, &how, 3, &mut go_on);
                trained.unwrap()
            });
            assert_eq!(resident, gathered, "{name}");
        }
    }
}
