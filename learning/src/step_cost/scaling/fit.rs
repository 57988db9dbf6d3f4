//! The fit of a model to measured steps, and its errors.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::descent::{Observation, minimise};
use super::{Nodes, PARAMETERS, ScalingParameters, ScalingSample, StepScaling};

/// Samples of a fit, at most.
pub const SAMPLES_MAX: usize = 16_384;
/// Samples of a fit, at least. Each further parameter that the samples show needs one more.
pub const SAMPLES_MIN: usize = 2;
/// Seconds of a measured step, at least: its products stay in the range of a float.
pub const SECONDS_MIN: f64 = 1e-9;
/// Seconds of a measured step, at most.
pub const SECONDS_MAX: f64 = 1e9;

/// The errors of predicted steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PredictionError {
    /// The median of the relative errors, in percent of the measured time.
    pub median_percent: f64,
    /// The relative error that 90 % of the samples do not exceed, in percent of the measured time.
    pub ninetieth_percent: f64,
    /// The root mean squared logarithmic error: of `ln predicted − ln measured`.
    pub rmsle: f64,
}

/// A model with its errors on the samples to which it was fitted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FittedScaling {
    /// The model.
    pub scaling: StepScaling,
    /// Its errors.
    pub error: PredictionError,
    /// Samples of the fit.
    pub samples: usize,
    /// Replicas of the largest sample on one node. Predictions beyond it are extrapolations.
    pub local_replicas_max: u32,
    /// Replicas of the largest sample on several nodes, or 0. At 0 the model has no cost of a
    /// network.
    pub remote_replicas_max: u32,
}

/// Samples do not determine a model.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum ScalingError {
    /// There are fewer samples than parameters.
    #[error("there are {found} samples, but these need at least {least}: measure more steps")]
    TooFewSamples {
        /// Samples.
        found: usize,
        /// The least valid number: one for each parameter that the samples show.
        least: usize,
    },
    /// There are more samples than [`SAMPLES_MAX`].
    #[error("there are {found} samples, but at most {SAMPLES_MAX} are valid: send fewer")]
    TooManySamples {
        /// Samples.
        found: usize,
    },
    /// A step has no time, or one outside the range of a step.
    #[error(
        "sample {sample} has {seconds} seconds, but {SECONDS_MIN:e} to {SECONDS_MAX:e} are valid"
    )]
    InvalidSeconds {
        /// The sample's place, from 0.
        sample: usize,
        /// Its seconds.
        seconds: f64,
    },
    /// A replica has no rows.
    #[error("sample {sample} has 0 rows for each replica, but at least 1 is valid")]
    NoRows {
        /// The sample's place, from 0.
        sample: usize,
    },
    /// A job has fewer replicas than nodes.
    #[error("sample {sample} has {replicas} replicas, but its nodes need at least {least}")]
    TooFewReplicas {
        /// The sample's place, from 0.
        sample: usize,
        /// Its replicas.
        replicas: u32,
        /// The least valid number.
        least: u32,
    },
    /// The time of a row cannot be separated from the time of a step.
    #[error("all samples have {rows} rows for each replica: measure a second number of rows")]
    OneRowCount {
        /// The rows.
        rows: u64,
    },
}

impl StepScaling {
    /// The errors on measured steps, for instance on steps to which the model was not fitted.
    ///
    /// # Errors
    /// [`ScalingError`] for no samples, too many, and for samples that [`fit`] rejects as well.
    pub fn error(&self, samples: &[ScalingSample]) -> Result<PredictionError, ScalingError> {
        check(samples)?;
        if samples.is_empty() {
            return Err(ScalingError::TooFewSamples { found: 0, least: 1 });
        }
        let ratios: Vec<f64> =
            samples.iter().map(|sample| self.predict(sample) / sample.step_seconds).collect();
        let mut percents: Vec<f64> = ratios.iter().map(|ratio| (ratio - 1.0).abs() * 1e2).collect();
        percents.sort_by(f64::total_cmp);
        let percentile = |of_100: usize| percents[(percents.len() * of_100).div_ceil(100) - 1];
        let squares: f64 = ratios.iter().map(|ratio| ratio.ln().powi(2)).sum();
        Ok(PredictionError {
            median_percent: percentile(50),
            ninetieth_percent: percentile(90),
            rmsle: (squares / ratios.len() as f64).sqrt(),
        })
    }
}

/// The model with the least root mean squared logarithmic error that descents from a few fixed
/// starts find. The same samples in the same order give the same model. A parameter that no sample
/// shows is 0, as in the source; an unseen overlap is [`OVERLAP_MIN`](super::OVERLAP_MIN).
///
/// # Errors
/// [`ScalingError`] for samples that are invalid, or too few to determine the model.
pub fn fit(samples: &[ScalingSample]) -> Result<FittedScaling, ScalingError> {
    check(samples)?;
    let free = shown(samples);
    let least = free.iter().filter(|is_free| **is_free).count().max(SAMPLES_MIN);
    if samples.len() < least {
        return Err(ScalingError::TooFewSamples { found: samples.len(), least });
    }
    let rows = samples[0].rows;
    if samples.iter().all(|sample| sample.rows == rows) {
        return Err(ScalingError::OneRowCount { rows });
    }
    let observations: Vec<Observation> = samples.iter().map(Observation::from).collect();
    let found = minimise(&observations, free);
    let scaling = StepScaling { parameters: ScalingParameters::from_array(found) };
    let error = scaling.error(samples)?;
    let largest = |nodes: Nodes| {
        let of_nodes = samples.iter().filter(|sample| sample.nodes == nodes);
        of_nodes.map(|sample| sample.replicas).max().unwrap_or(0)
    };
    Ok(FittedScaling {
        scaling,
        error,
        samples: samples.len(),
        local_replicas_max: largest(Nodes::One),
        remote_replicas_max: largest(Nodes::Several),
    })
}

fn check(samples: &[ScalingSample]) -> Result<(), ScalingError> {
    if samples.len() > SAMPLES_MAX {
        return Err(ScalingError::TooManySamples { found: samples.len() });
    }
    for (sample, of) in samples.iter().enumerate() {
        let ScalingSample { rows, replicas, nodes, step_seconds: seconds } = *of;
        if !(SECONDS_MIN..=SECONDS_MAX).contains(&seconds) {
            return Err(ScalingError::InvalidSeconds { sample, seconds });
        }
        if rows == 0 {
            return Err(ScalingError::NoRows { sample });
        }
        let least = if nodes == Nodes::One { 1 } else { 2 };
        if replicas < least {
            return Err(ScalingError::TooFewReplicas { sample, replicas, least });
        }
    }
    Ok(())
}

/// The parameters that the samples show: an average needs a sample of its kind of nodes, its growth
/// needs a second number of replicas, and the overlap needs any average.
fn shown(samples: &[ScalingSample]) -> [bool; PARAMETERS] {
    let replicas = |nodes: Nodes| {
        let averaged = samples.iter().filter(move |of| of.nodes == nodes && of.replicas > 1);
        averaged.map(|sample| sample.replicas)
    };
    let has_any = |nodes: Nodes| replicas(nodes).next().is_some();
    let grows = |nodes: Nodes| replicas(nodes).min() != replicas(nodes).max();
    let (local, remote) = (has_any(Nodes::One), has_any(Nodes::Several));
    let (local_grows, remote_grows) = (grows(Nodes::One), grows(Nodes::Several));
    [true, true, local, local_grows, remote, remote_grows, local || remote]
}
