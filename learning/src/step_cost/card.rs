//! The card of a device: measured seconds of each kind of work.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::fit::fit;
use super::power::PowerMeasurement;
use super::suite::{SuiteCase, cases};
use super::work::{StepWork, WORK_KINDS};
use crate::data::{Dataset, DatasetError};
use crate::energy::EnergyMeter;
use crate::engine::{Engine, TrainError, TrainingStep};
use crate::graph::GraphError;
use crate::model::ModelSpec;
use crate::training::Training;

/// The format of a card.
const VERSION: u32 = 2;
/// Steps of a measurement, at least and at most.
const STEPS: std::ops::RangeInclusive<usize> = 8..=200;
/// The time of a measurement after its least steps.
const MEASUREMENT: Duration = Duration::from_millis(500);
/// Standard deviations of the band of a prediction, to each side.
const BAND: f64 = 3.0;

/// Measured speeds of a device, for one number of threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceCard {
    /// The format: 2.
    pub version: u32,
    /// The engine, with its version and device.
    pub engine: String,
    /// Threads of an operation.
    pub threads: u32,
    /// Seconds for one unit of each kind of work.
    pub seconds: BTreeMap<String, f64>,
    /// Root mean square of the relative errors on the suite's steps.
    pub error: f64,
    /// Steps of the suite.
    pub points: u32,
    /// Watts of the machine; `None` if no counter was readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<MeasuredPower>,
}

/// Mean watts of a machine, by its own counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredPower {
    /// The counters, for people.
    pub source: String,
    /// Watts before the suite, with all other programs of the machine.
    pub idle_watts: f64,
    /// Watts while the suite's steps ran.
    pub training_watts: f64,
}

/// Joules of a time on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TrainingJoules {
    /// All joules of the machine.
    pub all: f64,
    /// Those beyond an idle machine's; none if it was not less busy before the suite.
    pub beyond_idle: f64,
}

impl MeasuredPower {
    /// The joules of a training that takes `seconds`.
    #[must_use]
    pub fn joules(&self, seconds: f64) -> TrainingJoules {
        TrainingJoules {
            all: self.training_watts * seconds,
            beyond_idle: (self.training_watts - self.idle_watts).max(0.0) * seconds,
        }
    }
}

/// A predicted time of a step, in seconds, with its band of three standard deviations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StepSeconds {
    /// The prediction.
    pub seconds: f64,
    /// The lower end of the band.
    pub least: f64,
    /// The upper end.
    pub most: f64,
}

/// A device cannot be measured, or a card cannot be used.
#[derive(Debug, Error)]
pub enum CardError {
    /// A step of the suite failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A graph of the suite, or of a prediction, is refused.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// Rows of the suite are refused.
    #[error(transparent)]
    Data(#[from] DatasetError),
    /// A card is of another version, or lacks a kind of work.
    #[error("the card is not one of this version: {why}; measure the device again")]
    Invalid {
        /// The reason.
        why: String,
    },
}

impl DeviceCard {
    /// The time of a step with this work.
    ///
    /// # Errors
    /// [`CardError::Invalid`] for a card of another version, and for numbers that are no times.
    pub fn predict(&self, work: &StepWork) -> Result<StepSeconds, CardError> {
        let invalid = |why: String| CardError::Invalid { why };
        if self.version != VERSION {
            return Err(invalid(format!("its version is {}, not {VERSION}", self.version)));
        }
        let mut seconds = 0.0;
        for (kind, amount) in WORK_KINDS.iter().zip(work.amounts) {
            let of_one = self.seconds.get(*kind).copied();
            let of_one = of_one.filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
            seconds +=
                amount * of_one.ok_or_else(|| invalid(format!("it has no time of {kind}")))?;
        }
        let band = BAND * self.error;
        Ok(StepSeconds {
            seconds,
            least: seconds * (1.0 - band).max(0.0),
            most: seconds * (1.0 + band),
        })
    }
}

/// Measures a device by the steps of the suite, and its watts if there is a `meter`. `progress` is called with
/// the steps that are measured and all of them; it takes about half a minute.
///
/// # Errors
/// [`CardError`] if a step fails.
pub fn measure(
    engine: &mut dyn Engine,
    threads: u32,
    meter: Option<&mut EnergyMeter>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<DeviceCard, CardError> {
    let mut power = meter.and_then(PowerMeasurement::begin);
    let cases = cases();
    let all: usize = cases.iter().map(|case| case.batches.len()).sum();
    let (mut rows, mut times) = (Vec::new(), Vec::new());
    for case in &cases {
        let (model, start) = case.model()?;
        let model = ModelSpec::Graph(Box::new(model));
        for &batch in &case.batches {
            progress(rows.len(), all);
            let sizes = case.graph.free_sizes(batch.into());
            let how = case.training(batch);
            let work = StepWork::of(&case.graph, &sizes, |_| true)?.with_optimizer(&how);
            rows.push(work.amounts);
            let data = data(case, batch)?;
            let mut steps = || step_seconds(engine, &model, &start, &data, &how);
            times.push(match &mut power {
                Some(power) => power.during(steps)?,
                None => steps()?,
            });
        }
    }
    progress(all, all);
    let found = fit(&rows, &times);
    let error = relative_error(&rows, &times, &found);
    let seconds = WORK_KINDS.iter().map(|kind| (*kind).to_owned()).zip(found).collect();
    Ok(DeviceCard {
        version: VERSION,
        engine: engine.name().to_owned(),
        threads,
        seconds,
        error,
        points: rows.len() as u32,
        power: power.and_then(PowerMeasurement::end),
    })
}

/// Root mean square of the relative errors of a fit.
fn relative_error<const N: usize>(rows: &[[f64; N]], times: &[f64], found: &[f64; N]) -> f64 {
    let errors = rows.iter().zip(times).map(|(row, time)| {
        let predicted: f64 = row.iter().zip(found).map(|(amount, one)| amount * one).sum();
        (predicted / time - 1.0).powi(2)
    });
    (errors.sum::<f64>() / rows.len() as f64).sqrt()
}

/// Rows of one batch.
pub(super) fn data(case: &SuiteCase, batch: u32) -> Result<Dataset, DatasetError> {
    let rows = batch as usize;
    let number = |at: usize| match case.is_text {
        true => (at * 7 % 32) as f32,
        false => (at % 13) as f32 * 0.1 - 0.6,
    };
    let numbers = (0..rows * case.inputs).map(number).collect();
    let classes = if case.is_text { 1 } else { 32 };
    let labels = (0..rows).map(|row| (row % classes) as u32).collect();
    Dataset::new(numbers, labels, case.inputs, classes)
}

/// Seconds of a step of `how` on rows of one batch: the mean of the fastest quarter of several, which other
/// programs disturb least.
///
/// # Errors
/// [`TrainError`] if a step fails.
pub fn step_seconds(
    engine: &mut dyn Engine,
    model: &ModelSpec,
    start: &[f32],
    data: &Dataset,
    how: &Training,
) -> Result<f64, TrainError> {
    let how = Training { epochs: *STEPS.end() as u32 + 1, ..how.clone() };
    let (mut ends, begun) = (Vec::new(), Instant::now());
    let mut go_on = |_: TrainingStep| {
        ends.push(Instant::now());
        let is_enough = ends.len() > *STEPS.start() && begun.elapsed() >= MEASUREMENT;
        match is_enough || ends.len() > *STEPS.end() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    match engine.train(model, start, data, &how, 1, &mut go_on) {
        Ok(_) | Err(TrainError::Stopped { .. }) => {}
        Err(error) => return Err(error),
    }
    let mut times: Vec<f64> =
        ends.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    times.truncate(times.len().div_ceil(4));
    Ok(times.iter().sum::<f64>() / times.len().max(1) as f64)
}

#[cfg(test)]
mod tests;
