//! The reference engine against hand-computed numbers and finite differences.

use super::*;
use crate::data::{DataSource, load};
use crate::engine::InputError;
use crate::rng::epoch_order;
use crate::training::{Betas, Optimizer};

fn go(_: TrainingStep) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn plain(epochs: u32, batch: u32, learning_rate: f64) -> Training {
    Training::sgd(epochs, batch, learning_rate)
}

/// One feature, two classes: logits are `w·x + b`.
fn tiny() -> (ModelSpec, Dataset) {
    let model = ModelSpec::Softmax { inputs: 1, classes: 2 };
    (model, Dataset::new(vec![2.0, 1.0], vec![0, 1], 1, 2).unwrap())
}

#[test]
fn softmax_of_two_rows_matches_hand_computed_values() {
    let (model, data) = tiny();
    let mut engine = Reference::new();
    // Two classes: ε = ¼, and the loss is −ln(¾·p + ¼).
    let bounded = |p: f64| -libm::log(0.75 * p + 0.25);
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-15, "{a} {b}");
    // All zero: the classes are equally likely, the loss is −ln ⅝, its derivative with respect to
    // the cross-entropy ⅜ ÷ ⅝ = 0.6, and the logit gradients are ±½ · 0.6.
    let zero = [0.0; 4];
    let losses = engine.row_losses(&model, &zero, &data).unwrap();
    losses.iter().for_each(|loss| near(*loss, bounded(0.5)));
    let (loss, gradient) = engine.gradient(&model, &zero, &data).unwrap();
    near(loss, bounded(0.5));
    // Row 0 (x = 2, label 0) has (−0.3, 0.3), row 1 (x = 1, label 1) has (0.3, −0.3); halved by the
    // mean.
    gradient.iter().zip([-0.15, 0.15, 0.0, 0.0]).for_each(|(got, right)| near(*got, right));
    // Along the weight of class 0: row 0 gives −0.3·2, row 1 gives 0.3·1.
    let slopes =
        engine.row_directional_derivatives(&model, &zero, &[&[1.0, 0.0, 0.0, 0.0]], &data).unwrap();
    slopes[0].iter().zip([-0.6, 0.3]).for_each(|(got, right)| near(*got, right));
    // Of equal logits the first counts: row 0 is correct, row 1 is not.
    assert_eq!(engine.correct_predictions(&model, &zero, &data).unwrap(), 1);
    // Logits (3x, 0): row 0 predicts its label with 1 ÷ (1 + e⁻⁶), row 1 with 1 ÷ (1 + e³).
    let losses = engine.row_losses(&model, &[3.0, 0.0, 0.0, 0.0], &data).unwrap();
    near(losses[0], bounded(1.0 / (1.0 + libm::exp(-6.0))));
    near(losses[1], bounded(1.0 / (1.0 + libm::exp(3.0))));
    // Large logits do not overflow, and no row loses more than 2 ln 2.
    let losses = engine.row_losses(&model, &[1e6, 0.0, 0.0, 0.0], &data).unwrap();
    assert_eq!(losses[0], 0.0);
    near(losses[1], 2.0 * 2.0_f64.ln());
}

#[test]
fn one_training_step_matches_hand_computed_values() {
    let (model, data) = tiny();
    let train = |how: &Training, start: [f32; 4]| {
        Reference::new().train(&model, &start, &data, how, 0, &mut go).unwrap()
    };
    let step = train(&plain(1, 2, 0.5), [0.0; 4]);
    assert_eq!(step.params, [0.125, -0.125, 0.0, 0.0]);
    assert_eq!((step.steps, step.mean_loss), (1, f64::from(2.0_f32).ln()));
    // ‖g‖ = 0.25·√2; clipped to half of that, the step is half as long.
    let clipped = Training { clip_gradient: Some(0.125 * 2.0_f64.sqrt()), ..plain(1, 2, 0.5) };
    let clipped = train(&clipped, [0.0; 4]);
    assert!((clipped.params[0] - 0.0625).abs() < 1e-8 && clipped.params[2] == 0.0);
    // Weight decay moves the biases, equal and without gradient, from 1 to 1 − 0.5·0.1.
    let decayed = Training { weight_decay: 0.1, ..plain(1, 2, 0.5) };
    let decayed = train(&decayed, [0.0, 0.0, 1.0, 1.0]);
    assert!((decayed.params[2] - 0.95).abs() < 1e-7 && (decayed.params[0] - 0.125).abs() < 1e-7);
}

#[test]
fn momentum_and_fedprox_change_the_second_step_only() {
    let (model, data) = tiny();
    let train = |how: &Training| {
        Reference::new().train(&model, &[0.0; 4], &data, how, 0, &mut go).unwrap().params
    };
    let one = train(&plain(1, 2, 0.5));
    let two = train(&plain(2, 2, 0.5));
    assert_eq!(train(&Training { momentum: 0.5, fedprox: Some(0.5), ..plain(1, 2, 0.5) }), one);
    // Two steps with momentum m: the second adds m times the first.
    let heavy = train(&Training { momentum: 0.5, ..plain(2, 2, 0.5) });
    // FedProx μ: the second step's gradient grows by μ·(w − w₀), which is μ times the first
    // step.
    let held = train(&Training { fedprox: Some(0.5), ..plain(2, 2, 0.5) });
    for at in 0..4 {
        assert!((heavy[at] - (two[at] + 0.5 * one[at])).abs() < 1e-7);
        assert!((held[at] - (two[at] - 0.5 * 0.5 * one[at])).abs() < 1e-7);
    }
}

/// After one step Adam's moments are g and g² without their biases, so that each parameter moves by the
/// learning rate against the sign of its gradient.
#[test]
fn adam_moves_by_the_learning_rate_and_adamw_decays_apart_from_it() {
    let (model, data) = tiny();
    let betas = Betas { beta1: 0.9, beta2: 0.999 };
    let train = |how: &Training, start: [f32; 4]| {
        Reference::new().train(&model, &start, &data, how, 0, &mut go).unwrap().params
    };
    let near = |found: &[f32], right: [f32; 4]| {
        found.iter().zip(right).for_each(|(a, b)| assert!((a - b).abs() < 1e-6, "{found:?}"));
    };
    let adam = Training { optimizer: Optimizer::Adam(betas), ..plain(1, 2, 0.01) };
    near(&train(&adam, [0.0; 4]), [0.01, -0.01, 0.0, 0.0]);
    // The penalty of a bias is its whole gradient.
    let penalty = Training { weight_decay: 0.1, ..adam };
    near(&train(&penalty, [0.0, 0.0, 1.0, 1.0]), [0.01, -0.01, 0.99, 0.99]);
    let decay = Training { optimizer: Optimizer::AdamW(betas), ..penalty };
    near(&train(&decay, [0.0, 0.0, 1.0, 1.0]), [0.01, -0.01, 0.999, 0.999]);
    // The second step, by hand: the gradient of the first weight is −0.25 at first.
    let two = train(&Training { epochs: 2, ..adam }, [0.0; 4]);
    let second = {
        let one = train(&adam, [0.0; 4]);
        let wide: Vec<f64> = one.iter().map(|value| f64::from(*value)).collect();
        let [p, q] = [2.0, 1.0].map(|x: f64| {
            let difference = (wide[0] - wide[1]) * x;
            1.0 / (1.0 + libm::exp(-difference))
        });
        (-(1.0 - p) * 2.0 + q) / 2.0
    };
    let m = 0.9 * (0.1 * -0.25) + 0.1 * second;
    let s = 0.999 * (0.001 * 0.0625) + 0.001 * second * second;
    let step = 0.01 * (m / (1.0 - 0.81)) / ((s / (1.0 - 0.999 * 0.999)).sqrt() + 1e-8);
    assert!((f64::from(two[0]) - (0.01 - step)).abs() < 1e-6, "{two:?} {step}");
}

/// A model with two hidden layers, parameters away from the kinks of ReLU, and a few digits.
fn small_net() -> (ModelSpec, Vec<f64>, Dataset) {
    let model = ModelSpec::Mlp { inputs: 64, hidden: vec![7, 5], classes: 10 };
    let mut params = model.init(11).into_vec();
    params.iter_mut().enumerate().for_each(|(at, value)| *value += 0.01 * (at % 7) as f32);
    let data = load(&DataSource::Digits).unwrap().slice(0..300).unwrap();
    (model, params.into_iter().map(f64::from).collect(), data)
}

#[test]
fn the_gradient_matches_finite_differences() {
    let (model, params, data) = small_net();
    let mut engine = Reference::new();
    let (loss, gradient) = engine.gradient(&model, &params, &data).unwrap();
    assert_eq!(loss, mean(&engine.row_losses(&model, &params, &data).unwrap()));
    let mut loss_at = |at: usize, shift: f64| {
        let mut moved = params.clone();
        moved[at] += shift;
        mean(&engine.row_losses(&model, &moved, &data).unwrap())
    };
    let step = 1e-6;
    for at in (0..params.len()).step_by(13) {
        let difference = (loss_at(at, step) - loss_at(at, -step)) / (2.0 * step);
        let error = (difference - gradient[at]).abs();
        assert!(error < 1e-7, "parameter {at}: {difference} and {}", gradient[at]);
    }
}

#[test]
fn directional_derivatives_match_finite_differences_and_the_gradient() {
    let (model, params, data) = small_net();
    let mut engine = Reference::new();
    let direction: Vec<f32> = model.init(12).into_vec();
    let other: Vec<f32> = model.init(13).into_vec();
    let slopes =
        engine.row_directional_derivatives(&model, &params, &[&direction, &other], &data).unwrap();
    let mut losses_at = |shift: f64| {
        let moved: Vec<f64> =
            params.iter().zip(&direction).map(|(p, &d)| p + shift * f64::from(d)).collect();
        engine.row_losses(&model, &moved, &data).unwrap()
    };
    let step = 1e-6;
    let (ahead, behind) = (losses_at(step), losses_at(-step));
    for (row, slope) in slopes[0].iter().enumerate() {
        let difference = (ahead[row] - behind[row]) / (2.0 * step);
        assert!((difference - slope).abs() < 1e-6, "row {row}: {difference} and {slope}");
    }
    let (_, gradient) = engine.gradient(&model, &params, &data).unwrap();
    for (slopes, direction) in slopes.iter().zip([&direction, &other]) {
        let along: f64 = gradient.iter().zip(direction).map(|(g, &d)| g * f64::from(d)).sum();
        assert!((mean(slopes) - along).abs() < 1e-12, "{} and {along}", mean(slopes));
    }
}

#[test]
fn training_learns_the_digits_and_repeats_from_its_seed() {
    let digits = load(&DataSource::Digits).unwrap();
    let (learn, test) = (digits.slice(0..1400).unwrap(), digits.slice(1400..1797).unwrap());
    let model = ModelSpec::Mlp { inputs: 64, hidden: vec![32], classes: 10 };
    let how = Training { momentum: 0.9, ..plain(8, 32, 0.05) };
    let start = model.init(1).into_vec();
    let mut seen = 0;
    let mut train = |seed| {
        let mut count = |step: TrainingStep| {
            seen = step.step;
            ControlFlow::Continue(())
        };
        Reference::new().train(&model, &start, &learn, &how, seed, &mut count).unwrap()
    };
    let first = train(5);
    assert_eq!(first, train(5));
    assert_ne!(first.params, train(6).params);
    assert_eq!((first.steps, seen), (8 * 44, 8 * 44));
    let params: Vec<f64> = first.params.iter().map(|&value| value.into()).collect();
    let correct = Reference::new().correct_predictions(&model, &params, &test).unwrap();
    assert!(correct * 100 > test.rows() * 88, "{correct} of {}", test.rows());
}

#[test]
fn invalid_training_input_is_refused_with_a_message() {
    let (model, data) = tiny();
    let mut engine = Reference::new();
    let mut refusal = |model: &ModelSpec, start: &[f32], data: &Dataset, how: &Training| {
        engine.train(model, start, data, how, 0, &mut go).unwrap_err().to_string()
    };
    let how = plain(1, 2, 0.5);
    let cnn = ModelSpec::Cnn {
        channels: 1,
        height: 8,
        width: 8,
        filters: [1, 1],
        hidden: 1,
        classes: 10,
    };
    let digits = load(&DataSource::Digits).unwrap();
    let start = vec![0.0; cnn.parameters()];
    let table = [
        (refusal(&cnn, &start, &digits, &how), "the reference engine does not support cnn 1x8x8"),
        (refusal(&model, &[0.0; 3], &data, &how), "3 numbers; the model has 4 parameters"),
        (refusal(&model, &[f32::NAN; 4], &data, &how), "the start: number 0 is not finite"),
        (refusal(&model, &[0.0; 4], &digits, &how), "the data has 64 features per row"),
        (refusal(&model, &[0.0; 4], &data.slice(0..0).unwrap(), &how), "the data has no rows"),
        (refusal(&model, &[0.0; 4], &data, &plain(0, 2, 0.5)), "epochs is 0"),
    ];
    for (message, expected) in table {
        assert!(message.contains(expected), "{message}");
    }
    let short =
        engine.row_directional_derivatives(&model, &[0.0; 4], &[&[0.0; 4], &[0.0; 2]], &data);
    assert_eq!(
        short,
        Err(EvalError::Input(InputError::Length {
            what: "direction 1".into(),
            expected: 4,
            got: 2
        }))
    );
}

#[test]
fn divergence_and_a_stop_request_end_training() {
    let (model, data) = tiny();
    let mut engine = Reference::new();
    let wild = Dataset::new(vec![1e30, -1e30], vec![0, 0], 1, 2).unwrap();
    let error = engine.train(&model, &[0.0; 4], &wild, &plain(50, 1, 100.0), 0, &mut go);
    assert!(matches!(error, Err(TrainError::Diverged { .. })), "{error:?}");
    let mut stop = |step: TrainingStep| {
        if step.step == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let stopped = engine.train(&model, &[0.0; 4], &data, &plain(9, 2, 0.1), 0, &mut stop);
    assert_eq!(stopped, Err(TrainError::Stopped { step: 3 }));
}

/// Reference implementation of a network in `f32`: the activations of every layer for one row, with
/// sums in index order.
fn activations(model: &ModelSpec, params: &[f32], row: &[f32]) -> Vec<Vec<f32>> {
    let (mut all, mut from) = (vec![row.to_vec()], 0);
    let layers = model.dense();
    for (at, layer) in layers.iter().enumerate() {
        let biases = from + layer.inputs * layer.outputs;
        let mut next = Vec::new();
        for output in 0..layer.outputs {
            let mut sum = params[biases + output];
            for (input, value) in all[at].iter().enumerate() {
                sum += params[from + output * layer.inputs + input] * value;
            }
            next.push(if sum < 0.0 && at + 1 < layers.len() { 0.0 } else { sum });
        }
        all.push(next);
        from = biases + layer.outputs;
    }
    all
}

/// The derivative of a row's loss with respect to its logits, divided by `rows`.
fn pulls(logits: &[f32], label: u32, rows: usize) -> Vec<f32> {
    let largest = logits.iter().fold(logits[0], |a, &b| if b > a { b } else { a });
    let weights: Vec<f32> = logits.iter().map(|logit| libm::expf(logit - largest)).collect();
    let mut total = 0.0;
    weights.iter().for_each(|weight| total += weight);
    let mut pulls: Vec<f32> = weights.iter().map(|weight| weight / total).collect();
    pulls[label as usize] -= 1.0;
    pulls.iter().map(|pull| pull * (1.0 / rows as f32)).collect()
}

/// One step on all rows, by the reference implementation.
fn plain_step(
    model: &ModelSpec,
    start: &[f32],
    data: &Dataset,
    order: &[usize],
    rate: f32,
) -> Vec<f32> {
    let mut gradient = vec![0.0; start.len()];
    for &row in order {
        let taken = activations(model, start, data.row(row));
        let mut pull = pulls(taken.last().unwrap(), data.labels()[row], order.len());
        let mut end = start.len();
        for (layer, taken) in model.dense().iter().zip(&taken).rev() {
            let biases = end - layer.outputs;
            let from = biases - layer.inputs * layer.outputs;
            let mut earlier = vec![0.0; layer.inputs];
            for output in 0..layer.outputs {
                gradient[biases + output] += pull[output];
                for input in 0..layer.inputs {
                    let at = from + output * layer.inputs + input;
                    gradient[at] += taken[input] * pull[output];
                    earlier[input] += pull[output] * start[at];
                }
            }
            for (earlier, taken) in earlier.iter_mut().zip(taken) {
                if *taken <= 0.0 {
                    *earlier = 0.0;
                }
            }
            (pull, end) = (earlier, from);
        }
    }
    start.iter().zip(&gradient).map(|(w, g)| w - rate * g).collect()
}

#[test]
fn a_step_has_the_bits_of_the_reference_for_any_batch_size() {
    let digits = load(&DataSource::Digits).unwrap();
    for hidden in [vec![], vec![19], vec![7, 5]] {
        let model = match hidden.len() {
            0 => ModelSpec::Softmax { inputs: 64, classes: 10 },
            _ => ModelSpec::Mlp { inputs: 64, hidden, classes: 10 },
        };
        let start = model.init(3).into_vec();
        for rows in [1, 2, 15, 16, 17, 40] {
            let data = digits.slice(50..50 + rows).unwrap();
            let order = epoch_order(rows, 4, 0);
            let expected = plain_step(&model, &start, &data, &order, 0.1);
            let how = plain(1, 64, 0.1);
            // A gradient that is never clipped uses the other code path.
            let written = Training { clip_gradient: Some(1e6), ..how.clone() };
            for how in [how, written] {
                let got = Reference::new().train(&model, &start, &data, &how, 4, &mut go).unwrap();
                let same =
                    got.params.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{model}, {rows} rows, {how:?}");
            }
        }
    }
}

#[test]
fn row_results_depend_neither_on_other_rows_nor_on_threads() {
    let (model, params, data) = small_net();
    let directions: Vec<Vec<f32>> = (0..13).map(|seed| model.init(40 + seed).into_vec()).collect();
    let directions: Vec<&[f32]> = directions.iter().map(Vec::as_slice).collect();
    let mut engine = Reference::new();
    let losses = engine.row_losses(&model, &params, &data).unwrap();
    let other: Vec<f64> = params.iter().map(|value| value * 0.5).collect();
    let models = [params.as_slice(), &other];
    let slopes =
        engine.row_directional_derivatives_at(&model, &models, &directions, &data).unwrap();
    for threads in [2, 3, 16] {
        let mut engine = Reference::with_threads(threads);
        assert!(engine.threads_for(13, data.rows(), &model) > 1);
        let again =
            engine.row_directional_derivatives_at(&model, &models, &directions, &data).unwrap();
        assert_eq!(again, slopes, "{threads} threads");
    }
    for rows in [3..4, 5..40, 250..300] {
        let part = data.slice(rows.clone()).unwrap();
        assert_eq!(engine.row_losses(&model, &params, &part).unwrap(), losses[rows.clone()]);
        let own = engine.row_directional_derivatives(&model, &other, &directions, &part).unwrap();
        for (own, whole) in own.iter().zip(&slopes[1]) {
            assert_eq!(own, &whole[rows.clone()]);
        }
    }
}

#[test]
fn the_gradients_of_rows_average_to_the_step_of_a_training() {
    let digits = load(&DataSource::Digits).unwrap().slice(0..20).unwrap();
    let model = ModelSpec::Mlp { inputs: 64, hidden: vec![8], classes: 10 };
    let start = model.init(3).into_vec();
    let all: Vec<usize> = (0..20).collect();
    let (mut sum, mut losses) = (vec![0.0; start.len()], Vec::new());
    let mut engine = Reference::new();
    engine
        .row_gradients(&model, &start, &digits, &all, &mut |row| {
            sum.iter_mut().zip(row.gradient).for_each(|(sum, own)| *sum += f64::from(*own) / 20.0);
            losses.push(row.loss);
        })
        .unwrap();
    let trained = engine.train(&model, &start, &digits, &plain(1, 20, 0.5), 1, &mut go).unwrap();
    for ((after, before), gradient) in trained.params.iter().zip(&start).zip(&sum) {
        assert!((f64::from(before - after) - 0.5 * gradient).abs() < 1e-6);
    }
    assert!((trained.mean_loss - mean(&losses)).abs() < 1e-6);
    let error = engine.row_gradients(&model, &start, &digits, &[20], &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("the data has 20 rows"), "{error}");
}
