//! The accountant against published and independent numbers, and the training against an observer.

use std::ops::ControlFlow;

use super::*;
use crate::data::Dataset;
use crate::engine::{TrainError, TrainedModel};
use crate::training::EPOCHS_MAX;
use crate::{ModelSpec, Reference, RowGradient, Trainer, Training, TrainingStep};

const SEED: [u8; 32] = [9; 32];

fn delta(value: f64) -> Delta {
    Delta::try_from(value).unwrap()
}

fn privacy(clip_micro: u64, noise_micro: u64) -> RowPrivacy {
    RowPrivacy::try_from(ClipAndNoise { clip_micro, noise_micro }).unwrap()
}

fn loss_of(steps: &[PrivateSteps]) -> PrivacyLoss {
    let mut loss = PrivacyLoss::default();
    steps.iter().for_each(|steps| loss.add(steps));
    loss
}

#[test]
fn clip_noise_and_delta_out_of_bounds_are_refused() {
    let table = [
        (0, 1_000_000, Err(PrivacyError::Clip)),
        (CLIP_MICRO_MAX + 1, 1_000_000, Err(PrivacyError::Clip)),
        (u64::MAX, 1_000_000, Err(PrivacyError::Clip)),
        (1_000_000, 0, Err(PrivacyError::Noise)),
        (1_000_000, NOISE_MICRO_MIN - 1, Err(PrivacyError::Noise)),
        (1_000_000, NOISE_MICRO_MAX + 1, Err(PrivacyError::Noise)),
        (1_000_000, u64::MAX, Err(PrivacyError::Noise)),
        (1, NOISE_MICRO_MIN, Ok(104_858)),
        (CLIP_MICRO_MAX, NOISE_MICRO_MAX, Ok(1_000 << 20)),
    ];
    for (clip_micro, noise_micro, expected) in table {
        let made = RowPrivacy::try_from(ClipAndNoise { clip_micro, noise_micro });
        assert_eq!(made.map(RowPrivacy::noise_units), expected, "{clip_micro} {noise_micro}");
    }
    for wrong in [0.0, -1e-5, 1.0, f64::NAN, f64::INFINITY] {
        assert!(Delta::try_from(wrong).is_err(), "{wrong}");
    }
}

/// Columns: rows, batch, noise, steps, δ; ε by dp-accounting 0.6.0 of Google: `RdpAccountant` with
/// the orders 2 to 256, and `PLDAccountant`, which is tight. The first line is the example of the
/// tutorial of TensorFlow Privacy, the second one that of Abadi et al. 2016, which states 1.26.
#[test]
fn epsilon_agrees_with_another_accountant_and_is_never_below_the_tight_one() {
    let table: [(u64, u64, u64, u64, f64, f64, f64); 8] = [
        (60_000, 256, 1_100_000, 14_063, 1e-5, 2.597_079_5, 2.381_778_8),
        (100, 1, 4_000_000, 10_000, 1e-5, 1.035_490_1, 0.946_999_3),
        (4, 1, 2_000_000, 200, 1e-5, 10.382_449_4, 9.556_777_1),
        (110, 32, 2_000_000, 40, 1e-5, 5.147_102_9, 4.651_577_5),
        (1, 1, 3_000_000, 10, 1e-5, 5.030_506_1, 4.652_984_6),
        (40, 65_536, 600_000, 1, 1e-5, 8.643_417_2, 8.003_691_1),
        (2, 1, 800_000, 20, 1e-6, 25.710_619_4, 23.761_458_8),
        (1_000, 1, 500_000, 100, 1e-6, 4.758_395_3, 3.144_507_1),
    ];
    for (rows, batch, noise_micro, steps, delta_value, theirs, tight) in table {
        let steps = PrivateSteps { rows, batch, steps, noise_micro };
        let epsilon = loss_of(&[steps]).epsilon(delta(delta_value));
        assert!(epsilon >= tight, "{steps:?}: {epsilon} is below the true {tight}");
        assert!(epsilon <= theirs + 1e-6, "{steps:?}: {epsilon}, but {theirs} holds");
        assert!(epsilon > 0.9 * theirs, "{steps:?}: {epsilon} {theirs}");
    }
}

/// The normal distribution function, by integration of its density with Simpson's rule.
fn normal_below(x: f64) -> f64 {
    const PARTS: usize = 20_000;
    let (from, density) = (-40.0, |y: f64| (-y * y / 2.0).exp());
    let width = (x - from) / PARTS as f64;
    let weight = |part: usize| match part {
        0 | PARTS => 1.0,
        part if part % 2 == 1 => 4.0,
        _ => 2.0,
    };
    let sum: f64 = (0..=PARTS).map(|part| weight(part) * density(from + width * part as f64)).sum();
    sum * width / 3.0 / (2.0 * std::f64::consts::PI).sqrt()
}

#[test]
fn without_sampling_epsilon_is_above_the_analytic_gaussian_mechanism() {
    // Balle and Wang 2018, theorem 8: T steps with noise s are one with noise s / √T.
    for (noise_micro, steps) in [(600_000, 1), (3_000_000, 10), (20_000_000, 40), (1_000_000, 3)] {
        let part = PrivateSteps { rows: 40, batch: 40, steps, noise_micro };
        let epsilon = loss_of(&[part]).epsilon(delta(1e-5));
        let noise = noise_micro as f64 / 1e6 / (steps as f64).sqrt();
        let true_delta = normal_below(0.5 / noise - epsilon * noise)
            - epsilon.exp() * normal_below(-0.5 / noise - epsilon * noise);
        assert!(true_delta <= 1e-5, "{part:?}: ε {epsilon} has δ {true_delta}");
        assert!(true_delta > 1e-8, "{part:?}: ε {epsilon} is far from tight: {true_delta}");
    }
}

/// The cumulants by summing over the probabilities of the discrete Gaussian itself, in both
/// directions and at fractional orders.
#[test]
fn cumulants_bound_those_of_the_sampled_discrete_gaussian() {
    // A row of norm 16 units, and noise of 16, 32 and 12 units.
    for (noise_micro, rate) in [(1_000_000, 0.25_f64), (2_000_000, 0.5), (750_000, 0.1)] {
        let (shift, deviation) = (16_i64, 16.0 * noise_micro as f64 / 1e6);
        let log_weight = |y: i64| -((y * y) as f64) / (2.0 * deviation * deviation);
        let total = (-2_000..2_000).map(|y| log_weight(y).exp()).sum::<f64>().ln();
        let without = |y: i64| log_weight(y) - total;
        let with = |y: i64| {
            let (inside, out) = (without(y - shift) + rate.ln(), without(y) + (1.0 - rate).ln());
            inside.max(out) + (-(inside - out).abs()).exp().ln_1p()
        };
        let rows = 1_000;
        let steps = PrivateSteps { rows, batch: (rate * 1e3) as u64, steps: 1, noise_micro };
        let loss = loss_of(&[steps]);
        for order in [1.5_f64, 2.0, 2.25, 3.0, 5.5, 8.0] {
            let cumulant = |p: &dyn Fn(i64) -> f64, q: &dyn Fn(i64) -> f64| {
                let term = |y: i64| (p(y) * order + q(y) * (1.0 - order)).exp();
                (-2_000..2_000).map(term).sum::<f64>().ln()
            };
            let (more, less) = (cumulant(&with, &without), cumulant(&without, &with));
            let bound = loss.cumulant_at(order);
            assert!(bound >= more - 1e-9, "{steps:?} at {order}: {bound} {more}");
            assert!(bound >= less - 1e-9, "{steps:?} at {order}: {bound} {less}");
            if order.fract() == 0.0 {
                assert!((bound - more).abs() < 1e-6, "{steps:?} at {order}: {bound} {more}");
            }
        }
    }
}

#[test]
fn epsilon_grows_with_every_step_and_never_with_noise() {
    let base = PrivateSteps { rows: 100, batch: 10, steps: 50, noise_micro: 1_000_000 };
    let epsilon = |steps: &[PrivateSteps]| loss_of(steps).epsilon(delta(1e-5));
    assert_eq!(epsilon(&[]), 0.0);
    let once = epsilon(&[base]);
    assert!(epsilon(&[base, base]) > once);
    assert_eq!(epsilon(&[base, base]), epsilon(&[PrivateSteps { steps: 100, ..base }]));
    assert!(epsilon(&[PrivateSteps { batch: 20, ..base }]) > once);
    assert!(epsilon(&[PrivateSteps { noise_micro: 2_000_000, ..base }]) < once);
    assert!(loss_of(&[base]).epsilon(delta(1e-7)) > once);
    // A task that asks for as many steps as it can.
    let most = u64::from(EPOCHS_MAX) * (1 << 32);
    let burnt = PrivateSteps { rows: 1 << 32, batch: 1, steps: most, noise_micro: NOISE_MICRO_MIN };
    let all = PrivateSteps { rows: 1, batch: 1, ..burnt };
    assert!(epsilon(&[burnt]) > 1e3 && epsilon(&[all]) > 1e13, "{}", epsilon(&[all]));
}

const MODEL: ModelSpec = ModelSpec::Softmax { inputs: 2, classes: 2 };
const CLIP: u64 = 1_000_000;

fn how(epochs: u32, batch: u32) -> Training {
    Training::sgd(epochs, batch, 1.0)
}

fn train(
    trainer: &mut impl Trainer,
    data: &Dataset,
    how: &Training,
    privacy: RowPrivacy,
    seed: &[u8; 32],
) -> Result<TrainedModel, TrainError> {
    let start = [0.0; 6];
    let training = PrivateTraining { model: &MODEL, start: &start, data, how, privacy, seed };
    train_privately(trainer, &training, &mut |_| ControlFlow::Continue(()))
}

#[test]
fn a_private_training_repeats_from_its_seed_and_follows_the_gradient_below_the_noise() {
    let data = Dataset::new(vec![0.5, 0.0, 0.0, 0.5], vec![0, 1], 2, 2).unwrap();
    let run = |seed: u8, noise| {
        let privacy = privacy(CLIP, noise);
        train(&mut Reference::new(), &data, &how(2, 1), privacy, &[seed; 32]).unwrap()
    };
    assert_eq!(run(1, CLIP), run(1, CLIP));
    assert_ne!(run(1, CLIP).params, run(2, CLIP).params);
    assert_eq!(run(1, CLIP).steps, 4);
    // Over many rows the noise on their sum is small: the step is that of the plain training.
    let rows = 4_000;
    let features = (0..rows).flat_map(|row| [(row % 2) as f32 * 0.5, 0.25]).collect();
    let many = Dataset::new(features, (0..rows).map(|row| row % 2).collect(), 2, 2).unwrap();
    let how = how(1, rows);
    let private =
        train(&mut Reference::new(), &many, &how, privacy(CLIP, NOISE_MICRO_MIN), &SEED).unwrap();
    let plain = Reference::new()
        .train(&MODEL, &[0.0; 6], &many, &how, 1, &mut |_| ControlFlow::Continue(()))
        .unwrap();
    for (private, plain) in private.params.iter().zip(&plain.params) {
        assert!((private - plain).abs() < 2e-4, "{private} {plain}");
    }
    assert!((private.mean_loss - plain.mean_loss).abs() < 1e-5);
}

/// An engine whose gradients of row 0 are not finite.
struct Broken(Reference, f32);

impl Trainer for Broken {
    fn train(
        &mut self,
        _: &ModelSpec,
        _: &[f32],
        _: &Dataset,
        _: &Training,
        _: u64,
        _: &mut dyn FnMut(TrainingStep) -> ControlFlow<()>,
    ) -> Result<TrainedModel, TrainError> {
        unreachable!("a private training uses gradients of rows only")
    }

    fn row_gradients(
        &mut self,
        model: &ModelSpec,
        params: &[f32],
        data: &Dataset,
        rows: &[usize],
        look: &mut dyn FnMut(RowGradient<'_>),
    ) -> Result<(), TrainError> {
        let spoilt = vec![self.1; params.len()];
        for &row in rows {
            match row {
                0 => look(RowGradient { loss: f64::NAN, gradient: &spoilt }),
                row => self.0.row_gradients(model, params, data, &[row], look)?,
            }
        }
        Ok(())
    }
}

#[test]
fn a_row_without_a_finite_gradient_counts_as_absent() {
    let data = Dataset::new(vec![0.5, 0.0, 0.0, 0.5], vec![0, 1], 2, 2).unwrap();
    let with = |spoilt| {
        let mut engine = Broken(Reference::new(), spoilt);
        train(&mut engine, &data, &how(2, 2), privacy(CLIP, CLIP), &SEED).unwrap().params
    };
    let absent = with(0.0);
    for spoilt in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert_eq!(with(spoilt), absent, "{spoilt}");
    }
    assert_ne!(with(1.0), absent);
}

/// An observer that has all rows but one, and the gradient of that one, decides from the update
/// whether the row took part. No test may be better than ε and δ allow.
#[test]
fn an_observer_of_the_update_is_no_better_than_epsilon_allows() {
    const RUNS: u32 = 4_000;
    let epochs = how(1, 2);
    for noise in [500_000, 1_000_000] {
        let setting = privacy(CLIP, noise);
        // Row 0 has a long gradient, which is clipped; in the other world it is zero.
        let data = Dataset::new(vec![30.0, 0.0, 0.0, 0.1], vec![0, 1], 2, 2).unwrap();
        let seen = |spoilt: Option<f32>, world: u8| -> Vec<f64> {
            let run = |run: u32| {
                let mut seed = [world; 32];
                seed[..4].copy_from_slice(&run.to_le_bytes());
                let trained = match spoilt {
                    Some(value) => {
                        train(&mut Broken(Reference::new(), value), &data, &epochs, setting, &seed)
                    }
                    None => train(&mut Reference::new(), &data, &epochs, setting, &seed),
                };
                let params = trained.unwrap().params;
                // The clipped gradient of row 0 is along the first inputs of both classes.
                f64::from(params[0] - params[2])
            };
            (0..RUNS).map(run).collect()
        };
        let (with, without) = (seen(None, 1), seen(Some(0.0), 2));
        let steps = PrivateSteps { rows: 2, batch: 2, steps: epochs.steps(2), noise_micro: noise };
        let epsilon = loss_of(&[steps]).epsilon(delta(1e-5));
        let mut best = f64::NEG_INFINITY;
        for threshold in (-40..=40).map(|at| f64::from(at) / 10.0) {
            for sign in [1.0, -1.0] {
                let share = |values: &[f64]| {
                    let hits = values.iter().filter(|value| **value * sign > threshold).count();
                    hits as f64 / f64::from(RUNS)
                };
                // Four standard deviations towards caution.
                let error = |share: f64| 4.0 * (share * (1.0 - share) / f64::from(RUNS)).sqrt();
                let (hit, miss) = (share(&with), share(&without));
                let (hit, miss) = (hit - error(hit), miss + error(miss) + 4.0 / f64::from(RUNS));
                best = best.max((hit - 1e-5).max(1e-9).ln() - miss.ln());
            }
        }
        assert!(best <= epsilon, "seed 1 and 2: observed {best}, stated {epsilon}");
        // The test has power: an accountant that states a quarter of ε would fail.
        assert!(best > epsilon / 5.0, "observed {best}, stated {epsilon}");
    }
}
