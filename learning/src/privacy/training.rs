//! The descent on clipped gradients of rows with noise.

use std::ops::ControlFlow;

use rand_chacha::ChaCha20Rng;

use super::discrete_gaussian::discrete_gaussian;
use super::{PrivateSteps, RowPrivacy, UNITS_PER_CLIP};
use crate::data::Dataset;
use crate::descent::Descent;
use crate::engine::{TrainError, TrainedModel, Trainer, TrainingStep, check_training, mean};
use crate::model::ModelSpec;
use crate::params::first_not_finite;
use crate::rng::below;
use crate::training::Training;

/// Attempts to bring a clipped gradient below the limit that rounding exceeded.
const SHRINK_ATTEMPTS_MAX: u32 = 8;

/// The arguments of a private training.
#[derive(Debug, Clone, Copy)]
pub struct PrivateTraining<'a> {
    /// The model.
    pub model: &'a ModelSpec,
    /// Its parameters before the training.
    pub start: &'a [f32],
    /// The rows to protect.
    pub data: &'a Dataset,
    /// The hyperparameters. `batch` is the mean number of rows that a step draws; `clip_gradient`
    /// and the other rules apply to the gradient with its noise.
    pub how: &'a Training,
    /// Clip and noise.
    pub privacy: RowPrivacy,
    /// The seed of sampling and noise. It must be secret, and different for every other argument:
    /// the difference of two updates with equal noise has none.
    pub seed: &'a [u8; 32],
}

impl PrivateTraining<'_> {
    /// The steps that this training takes, for the accountant. They do not depend on the values of
    /// the rows.
    pub fn steps(&self) -> PrivateSteps {
        let rows = self.data.rows();
        PrivateSteps {
            rows: rows as u64,
            batch: self.how.batch.into(),
            steps: self.how.steps(rows),
            noise_micro: self.privacy.settings().noise_micro,
        }
    }
}

/// Trains with clipped gradients and noise. The same arguments on the same machine give the same
/// bits. `loss` of the progress and `mean_loss` of the result have no noise: they are for the owner
/// of the rows only.
///
/// # Errors
/// As [`Trainer::train`]. Whether a training diverges depends on the rows only through gradients
/// with noise.
pub fn train_privately(
    trainer: &mut (impl Trainer + ?Sized),
    training: &PrivateTraining<'_>,
    progress: &mut dyn FnMut(TrainingStep) -> ControlFlow<()>,
) -> Result<TrainedModel, TrainError> {
    let PrivateTraining { model, start, data, how, privacy, seed } = *training;
    check_training(model, start, data, how)?;
    let mut rng = florin_random::chacha20_of_secret(seed);
    let mut params = start.to_vec();
    let batch = (how.batch as usize).min(data.rows());
    let steps = how.steps(data.rows());
    let mut descent = Descent::new(start, how, steps);
    let mut epoch_losses = Vec::new();
    for step in 1..=steps {
        let rows = draw_rows(&mut rng, data.rows(), batch);
        let mut sums = ClippedSums::new(params.len(), privacy);
        let mut losses = Vec::with_capacity(rows.len());
        data.will_need(&rows);
        trainer.row_gradients(model, &params, data, &rows, &mut |row| {
            sums.add(row.gradient);
            losses.push(row.loss);
        })?;
        let mut gradient = sums.into_gradient(&mut rng, batch);
        descent.step(&mut params, &mut gradient);
        let loss = mean(&losses);
        if (step - 1) % (steps / u64::from(how.epochs)).max(1) == 0 {
            epoch_losses.clear();
        }
        epoch_losses.append(&mut losses);
        if progress(TrainingStep { step, steps, loss }).is_break() {
            return Err(TrainError::Stopped { step });
        }
    }
    if first_not_finite(&params).is_some() {
        return Err(TrainError::Diverged { step: steps });
    }
    Ok(TrainedModel { params, steps, mean_loss: mean(&epoch_losses) })
}

/// Draws each of the rows with probability `batch / rows`, exactly and independently.
fn draw_rows(rng: &mut ChaCha20Rng, rows: usize, batch: usize) -> Vec<usize> {
    (0..rows).filter(|_| below(rng, rows as u64) < batch as u64).collect()
}

/// The sum of clipped gradients, in units of `clip / UNITS_PER_CLIP`. At most 2³² rows of at most
/// 2²⁰ units each, and the noise, fit into 64 bits.
struct ClippedSums {
    privacy: RowPrivacy,
    sums: Vec<i64>,
}

impl ClippedSums {
    fn new(parameters: usize, privacy: RowPrivacy) -> Self {
        Self { privacy, sums: vec![0; parameters] }
    }

    /// Adds the clipped gradient of a row; nothing if it is not finite.
    fn add(&mut self, gradient: &[f32]) {
        if let Some(units) = clip_to_units(gradient, self.privacy.clip()) {
            self.sums.iter_mut().zip(units).for_each(|(sum, units)| *sum += i64::from(units));
        }
    }

    /// The mean gradient of a batch, with noise.
    fn into_gradient(self, rng: &mut ChaCha20Rng, batch: usize) -> Vec<f32> {
        let (clip, deviation) = (self.privacy.clip(), self.privacy.noise_units());
        let unit = clip / UNITS_PER_CLIP as f64 / batch as f64;
        let noisy = |sum: i64, noise: i64| (sum + noise) as f64 * unit;
        self.sums
            .into_iter()
            .map(|sum| noisy(sum, discrete_gaussian(rng, deviation)) as f32)
            .collect()
    }
}

/// The gradient in units, shortened to a norm of at most [`UNITS_PER_CLIP`]. `None` if it is not
/// finite.
fn clip_to_units(gradient: &[f32], clip: f64) -> Option<Vec<i32>> {
    let norm = gradient.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    if !norm.is_finite() {
        return None;
    }
    to_units(gradient, UNITS_PER_CLIP as f64 / norm.max(clip))
}

/// The gradient times a scale, rounded towards zero. The scale is lowered until the norm is at most
/// [`UNITS_PER_CLIP`], if rounding errors made it too large; `None` if they cannot be the cause.
fn to_units(gradient: &[f32], mut scale: f64) -> Option<Vec<i32>> {
    for _ in 0..SHRINK_ATTEMPTS_MAX {
        // A conversion rounds towards zero, and a number beyond the range becomes its end.
        let units: Vec<i32> =
            gradient.iter().map(|&value| (f64::from(value) * scale) as i32).collect();
        if squared_norm(&units) <= u128::from(UNITS_PER_CLIP).pow(2) {
            return Some(units);
        }
        scale *= 1.0 - 1e-9;
    }
    None
}

fn squared_norm(units: &[i32]) -> u128 {
    units.iter().map(|&units| u128::from(units.unsigned_abs()).pow(2)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_clipped_gradient_is_longer_than_the_clip() {
        let long = UNITS_PER_CLIP as i32;
        let tiny = f32::from_bits(1);
        type Case<'a> = (&'a [f32], f64, Option<Vec<i32>>);
        let cases: [Case<'_>; 9] = [
            (&[0.0, 0.0], 1.0, Some(vec![0, 0])),
            (&[0.5, -0.25], 1.0, Some(vec![long / 2, -long / 4])),
            (&[1.0, 0.0], 1.0, Some(vec![long, 0])),
            (&[-1e30, 0.0], 1.0, Some(vec![-long, 0])),
            (&[f32::MAX, 0.0], 1e-6, Some(vec![long, 0])),
            (&[tiny, -tiny], 1.0, Some(vec![0, 0])),
            (&[f32::NAN, 1.0], 1.0, None),
            (&[f32::INFINITY, 1.0], 1.0, None),
            (&[1.0, f32::NEG_INFINITY], 1.0, None),
        ];
        for (gradient, clip, expected) in cases {
            assert_eq!(clip_to_units(gradient, clip), expected, "{gradient:?} {clip}");
        }
        // A scale that is too large by rounding is lowered, and one that is wrong gives nothing.
        assert_eq!(to_units(&[1.0], UNITS_PER_CLIP as f64 + 1.0), Some(vec![long]));
        assert_eq!(to_units(&[1.0], UNITS_PER_CLIP as f64 + 2.0), None);
        assert_eq!(to_units(&[1.0, 1.0], UNITS_PER_CLIP as f64), None);
        // Rows of many lengths: the integer norm is the proof, not the rounded one.
        let mut rng = florin_random::chacha20_of_secret(&[3; 32]);
        for length in 1..300_usize {
            let gradient: Vec<f32> =
                (0..length).map(|_| crate::rng::uniform(&mut rng) as f32 * 1e3 - 500.0).collect();
            let units = clip_to_units(&gradient, 0.7).unwrap();
            let squared = squared_norm(&units);
            assert!(squared <= u128::from(UNITS_PER_CLIP).pow(2), "{length}");
            // Rounding towards zero loses less than one unit for each number.
            let lost = (UNITS_PER_CLIP as f64 - (squared as f64).sqrt()) / (length as f64).sqrt();
            assert!(lost < 1.01 || length == 1, "{length}: {lost}");
        }
    }

    #[test]
    fn a_row_is_drawn_independently_with_the_share_of_the_batch() {
        let mut rng = florin_random::chacha20_of_secret(&[4; 32]);
        assert_eq!(draw_rows(&mut rng, 5, 5), [0, 1, 2, 3, 4]);
        let (mut first, mut both, mut sizes) = (0, 0, Vec::new());
        for _ in 0..20_000 {
            let rows = draw_rows(&mut rng, 10, 3);
            first += u32::from(rows.contains(&0));
            both += u32::from(rows.contains(&0) && rows.contains(&9));
            sizes.push(rows.len());
        }
        assert!((5_700..6_300).contains(&first), "0.3: {first}");
        assert!((1_650..1_950).contains(&both), "0.09: {both}");
        assert!(sizes.contains(&0) && sizes.contains(&7), "the number of rows varies");
    }
}
