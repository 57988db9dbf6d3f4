//! The measured time of a step of an order on this device.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use florin_compute::ComputeJob;
use florin_learning::Engine;
use florin_protocol::{Canonical, Digest};
use florin_work::{LeasedTraining, LeasedTrainingError, SegmentStart};

/// Longest measurement of a step, in milliseconds. A step that takes longer is measured once.
pub(super) const MEASURE_MS_MAX: u64 = 2_000;
/// Most shapes of jobs whose steps are remembered.
pub(super) const MEASURED_SHAPES_MAX: usize = 256;
/// Most samples of a measurement, of which the median counts.
const SAMPLES_MAX: usize = 5;

/// The shape of a job: jobs that differ in the seed alone have one, and one time of a step.
pub(super) fn job_shape(job: &ComputeJob) -> Digest {
    ComputeJob { seed: 0, ..job.clone() }.digest()
}

/// Remembers the microseconds of a step by the shape of its job.
pub(super) fn remember_step(measured: &mut BTreeMap<Digest, u64>, shape: Digest, us: u64) {
    if measured.len() >= MEASURED_SHAPES_MAX {
        measured.clear();
    }
    measured.insert(shape, us);
}

/// The limits of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredSteps {
    /// A step that takes more microseconds ends the measurement.
    pub(super) step_us_max: u64,
    /// Most steps of a sample.
    pub(super) steps_max: u32,
    /// Whether the engine has not trained yet: its first training also prepares it.
    pub(super) is_first: bool,
}

/// The microseconds of a step: the median of a few trainings of the first steps. Only one step is
/// trained if it takes longer than [`MeasuredSteps::step_us_max`].
///
/// # Errors
/// [`LeasedTrainingError`].
pub(super) fn measure_step(
    training: &LeasedTraining,
    engine: &mut dyn Engine,
    start: &SegmentStart,
    measured: MeasuredSteps,
) -> Result<u64, LeasedTrainingError> {
    let mut sample = |steps: u32| -> Result<u64, LeasedTrainingError> {
        let began = Instant::now();
        training.state_in_segment(engine, start, steps)?;
        let us = began.elapsed().as_micros().div_ceil(steps.max(1).into());
        Ok(u64::try_from(us).unwrap_or(u64::MAX).max(1))
    };
    let MeasuredSteps { step_us_max, steps_max, is_first } = measured;
    let (began, limit) = (Instant::now(), Duration::from_millis(MEASURE_MS_MAX));
    let mut rough = sample(1)?;
    if rough > step_us_max && is_first {
        rough = sample(1)?;
    }
    if rough > step_us_max {
        return Ok(rough);
    }
    let samples = u64::try_from(SAMPLES_MAX).unwrap_or(1);
    let share = MEASURE_MS_MAX.saturating_mul(1_000) / samples;
    let steps = u32::try_from(share / rough).unwrap_or(u32::MAX).clamp(1, steps_max.max(1));
    let mut times = Vec::new();
    while times.len() < SAMPLES_MAX && began.elapsed() < limit {
        times.push(sample(steps)?);
    }
    times.sort_unstable();
    Ok(times.get(times.len() / 2).copied().unwrap_or(rough))
}
