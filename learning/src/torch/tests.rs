//! libtorch against the pure Rust engine, and against autograd for models that it does not support.

use super::*;
use crate::data::{DataSource, load};
use crate::engine::EVAL_CHUNK_ROWS;
use crate::reference::Reference;
use crate::training::{Betas, Optimizer, Schedule};

fn engine() -> Torch {
    Torch::new(TorchDevice::Cpu, 1).unwrap()
}

fn go(_: TrainingStep) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn digits(rows: usize) -> Dataset {
    load(&DataSource::Digits).unwrap().slice(0..rows).unwrap()
}

fn widened(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| value.into()).collect()
}

fn models() -> [ModelSpec; 3] {
    [
        ModelSpec::Softmax { inputs: 64, classes: 10 },
        ModelSpec::Mlp { inputs: 64, hidden: vec![33], classes: 10 },
        ModelSpec::Mlp { inputs: 64, hidden: vec![17, 9, 12], classes: 10 },
    ]
}

fn cnn() -> ModelSpec {
    ModelSpec::Cnn { channels: 1, height: 8, width: 8, filters: [4, 6], hidden: 16, classes: 10 }
}

fn everything() -> Training {
    Training {
        momentum: 0.9,
        weight_decay: 0.001,
        clip_gradient: Some(0.5),
        fedprox: Some(0.1),
        ..Training::sgd(2, 20, 0.1)
    }
}

/// The largest difference, relative to the largest number or to one.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let largest = a.iter().fold(1.0_f64, |most, value| most.max(value.abs()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / largest
}

#[test]
fn torch_evaluation_agrees_with_the_reference_to_1e_12() {
    let data = digits(EVAL_CHUNK_ROWS + 44);
    for model in models() {
        let params = widened(model.init(1).as_slice());
        let directions = [model.init(2).into_vec(), model.init(3).into_vec()];
        let directions = [directions[0].as_slice(), &directions[1]];
        let (mut torch, mut plain) = (engine(), Reference::new());

        let losses = torch.row_losses(&model, &params, &data).unwrap();
        assert!(apart(&losses, &plain.row_losses(&model, &params, &data).unwrap()) < 1e-12);
        let (loss, gradient) = torch.gradient(&model, &params, &data).unwrap();
        let (plain_loss, plain_gradient) = plain.gradient(&model, &params, &data).unwrap();
        assert!((loss - plain_loss).abs() < 1e-12, "{model}");
        assert!(apart(&gradient, &plain_gradient) < 1e-12, "{model}");
        let slopes =
            torch.row_directional_derivatives(&model, &params, &directions, &data).unwrap();
        let plain_slopes =
            plain.row_directional_derivatives(&model, &params, &directions, &data).unwrap();
        for (slopes, plain) in slopes.iter().zip(&plain_slopes) {
            assert!(apart(slopes, plain) < 1e-12, "{model}");
        }
        let correct = torch.correct_predictions(&model, &params, &data).unwrap();
        assert_eq!(correct, plain.correct_predictions(&model, &params, &data).unwrap());
        let nano = |values: &[f64]| mean(values).mul_add(1e9, 0.0).round() as i64;
        assert_eq!(nano(&losses), nano(&plain.row_losses(&model, &params, &data).unwrap()));
    }
}

#[test]
fn ten_training_steps_agree_with_the_reference_to_1e_5() {
    let data = digits(100);
    let plain_steps = Training {
        momentum: 0.0,
        weight_decay: 0.0,
        clip_gradient: None,
        fedprox: None,
        ..everything()
    };
    let betas = Betas { beta1: 0.8, beta2: 0.95 };
    let adam = Training {
        momentum: 0.0,
        learning_rate: 0.01,
        optimizer: Optimizer::Adam(betas),
        schedule: Schedule::Cosine,
        warmup_steps: 3,
        ..everything()
    };
    let adamw = Training {
        weight_decay: 0.1,
        optimizer: Optimizer::AdamW(betas),
        schedule: Schedule::Linear,
        ..adam
    };
    for model in models() {
        for how in [everything(), plain_steps.clone(), adam.clone(), adamw.clone()] {
            let start = model.init(4).into_vec();
            let by_torch = engine().train(&model, &start, &data, &how, 9, &mut go).unwrap();
            let by_hand = Reference::new().train(&model, &start, &data, &how, 9, &mut go).unwrap();
            assert_eq!((by_torch.steps, by_hand.steps), (10, 10));
            let far = apart(&widened(&by_torch.params), &widened(&by_hand.params));
            assert!(far < 1e-5, "{model}: {far}");
            assert!((by_torch.mean_loss - by_hand.mean_loss).abs() < 1e-5, "{model}");
            let moved = apart(&widened(&by_torch.params), &widened(&start));
            assert!(moved > 1e-2, "{model} barely changed: {moved}");
        }
    }
}

#[test]
fn training_twice_gives_the_same_bits() {
    let data = digits(400);
    for model in models().into_iter().chain([cnn()]) {
        let start = model.init(4).into_vec();
        let train =
            |seed| engine().train(&model, &start, &data, &everything(), seed, &mut go).unwrap();
        let first = train(1);
        let again = std::thread::scope(|scope| scope.spawn(|| train(1)).join().unwrap());
        assert_eq!(first, again, "{model}");
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&first.params), bits(&again.params), "{model}");
        let other =
            |seed| engine().train(&model, &start, &data, &everything(), seed, &mut go).unwrap();
        assert_ne!(first.params, other(2).params, "{model}");
    }
}

/// Derivatives by double differentiation: with `g(u) = ∇(u · losses)`, the derivative of row r
/// along `v` is `∂⟨g(u), v⟩ / ∂u_r`.
fn slopes_by_autograd(
    model: &ModelSpec,
    params: &[f64],
    along: &[f32],
    data: &Dataset,
) -> Vec<f64> {
    let torch = engine();
    let (features, labels) = torch.rows(data, 0..data.rows(), Kind::Double).unwrap();
    let flat = torch.to_tensor(params).unwrap();
    let net = TensorNet::new(model, &flat).unwrap().requires_grad().unwrap();
    let losses = {
        let logits = net.forward(&features).unwrap().logits;
        net::losses(&logits, &labels, RowLoss::Bounded).unwrap()
    };
    let weights = losses.detach().ones_like().set_requires_grad(true);
    let total = losses.dot(&weights);
    let gradients = Tensor::run_backward(&[total], &net.tensors(), true, true);
    let along = torch.to_tensor(along).unwrap().to_kind(Kind::Double);
    let along = TensorNet::new(model, &along).unwrap();
    let products = gradients.iter().zip(along.tensors()).map(|(g, v)| (g * v).sum(None));
    let sum = products.reduce(|a, b| a + b).unwrap();
    let slopes = Tensor::run_backward(&[sum], &[weights], false, false);
    to_vec(&slopes[0]).unwrap()
}

#[test]
fn forward_mode_derivatives_match_double_differentiation() {
    let data = digits(50);
    for model in models().into_iter().chain([cnn()]) {
        let params = widened(model.init(5).as_slice());
        let direction = model.init(6).into_vec();
        let carried =
            engine().row_directional_derivatives(&model, &params, &[&direction], &data).unwrap();
        let twice = slopes_by_autograd(&model, &params, &direction, &data);
        assert!(apart(&carried[0], &twice) < 1e-12, "{model}");
    }
}

#[test]
fn the_cnn_gradient_matches_finite_differences() {
    let (model, data) = (cnn(), digits(40));
    let params = widened(model.init(7).as_slice());
    let mut torch = engine();
    let (loss, gradient) = torch.gradient(&model, &params, &data).unwrap();
    assert_eq!(loss, mean(&torch.row_losses(&model, &params, &data).unwrap()));
    let mut loss_at = |at: usize, shift: f64| {
        let mut moved = params.clone();
        moved[at] += shift;
        mean(&torch.row_losses(&model, &moved, &data).unwrap())
    };
    for at in (0..params.len()).step_by(31) {
        let difference = (loss_at(at, 1e-6) - loss_at(at, -1e-6)) / 2e-6;
        assert!((difference - gradient[at]).abs() < 1e-7, "parameter {at}");
    }
}

#[test]
fn the_cnn_learns_the_digits() {
    let all = digits(1797);
    let (learn, test) = (all.slice(0..1400).unwrap(), all.slice(1400..1797).unwrap());
    let filters = [8, 16];
    let model =
        ModelSpec::Cnn { channels: 1, height: 8, width: 8, filters, hidden: 32, classes: 10 };
    let how = Training {
        epochs: 10,
        learning_rate: 0.02,
        clip_gradient: None,
        fedprox: None,
        ..everything()
    };
    let start = model.init(1).into_vec();
    let mut torch = engine();
    let trained = torch.train(&model, &start, &learn, &how, 1, &mut go).unwrap();
    let correct = torch.correct_predictions(&model, &widened(&trained.params), &test).unwrap();
    assert!(correct * 100 > test.rows() * 85, "{correct} of {}", test.rows());
}

#[test]
fn divergence_and_a_stop_request_end_training() {
    let model = ModelSpec::Softmax { inputs: 1, classes: 2 };
    let wild = Dataset::new(vec![1e30, -1e30], vec![0, 0], 1, 2).unwrap();
    let how = Training { epochs: 50, batch: 1, learning_rate: 100.0, ..everything() };
    let how = Training { clip_gradient: None, ..how };
    let error = engine().train(&model, &[0.0; 4], &wild, &how, 0, &mut go);
    assert!(matches!(error, Err(TrainError::Diverged { .. })), "{error:?}");
    let mut stop = |step: TrainingStep| {
        if step.step == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let data = digits(100);
    let model = &models()[0];
    let start = model.init(1).into_vec();
    let stopped = engine().train(model, &start, &data, &everything(), 0, &mut stop);
    assert_eq!(stopped, Err(TrainError::Stopped { step: 3 }));
}

#[test]
fn without_a_gpu_the_best_device_is_the_cpu_and_requesting_a_gpu_fails() {
    if probe().gpus > 0 {
        assert_eq!(Torch::new(TorchDevice::Gpu, 1).unwrap().name(), NAME_GPU);
        return;
    }
    assert_eq!(Torch::new(TorchDevice::Auto, 1).unwrap().name(), NAME_CPU);
    let error = Torch::new(TorchDevice::Gpu, 1).unwrap_err().to_string();
    assert!(error.contains("finds no GPU") && error.contains("libtorch_cuda.so"), "{error}");
}

fn row_gradients(engine: &mut dyn Trainer, model: &ModelSpec, rows: &[usize]) -> Vec<Vec<f64>> {
    let mut found = Vec::new();
    let mut look = |row: RowGradient<'_>| found.push(widened(row.gradient));
    let start = model.init(1).into_vec();
    engine.row_gradients(model, &start, &digits(8), rows, &mut look).unwrap();
    found
}

#[test]
fn torch_gradients_of_rows_agree_with_the_reference() {
    for model in models() {
        let torch = row_gradients(&mut engine(), &model, &[5, 0, 7]);
        let plain = row_gradients(&mut Reference::new(), &model, &[5, 0, 7]);
        for (torch, plain) in torch.iter().zip(&plain) {
            assert!(apart(torch, plain) < 1e-5, "{model}");
        }
    }
}

#[test]
fn gradients_of_rows_of_the_cnn_average_to_the_step_of_a_training() {
    let (model, data) = (cnn(), digits(8));
    let all: Vec<usize> = (0..8).collect();
    let gradients = row_gradients(&mut engine(), &model, &all);
    let start = model.init(1).into_vec();
    let how = Training { epochs: 1, batch: 8, momentum: 0.0, weight_decay: 0.0, ..everything() };
    let how = Training { clip_gradient: None, fedprox: None, learning_rate: 1.0, ..how };
    let trained = engine().train(&model, &start, &data, &how, 1, &mut go).unwrap();
    let step: Vec<f64> = start.iter().zip(&trained.params).map(|(a, b)| f64::from(a - b)).collect();
    let mean: Vec<f64> =
        (0..start.len()).map(|at| gradients.iter().map(|g| g[at]).sum::<f64>() / 8.0).collect();
    assert!(apart(&step, &mean) < 1e-5);
}
