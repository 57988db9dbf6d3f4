//! The time of a training on this device: the engine's quote, or a few steps of a model that is too
//! small for one.

use std::ops::ControlFlow;
use std::time::Instant;

use florin_learning::engine::{TrainError, TrainingStep};
use florin_learning::model::ModelSpec;
use florin_learning::{Dataset, Engine, Training};

/// Measured steps of a small model, after one that is not measured.
const MEASURED_STEPS: u64 = 4;

/// Seconds of a training on all rows, from measured steps; `None` for a program, which is not
/// started for a measurement.
///
/// # Errors
/// [`TrainError`].
pub(super) fn training_seconds(
    engine: &mut dyn Engine,
    model: &ModelSpec,
    data: &Dataset,
    how: &Training,
) -> Result<Option<f64>, TrainError> {
    if model.is_trainer() {
        return Ok(None);
    }
    if let Some(quote) = engine.quote(model, data, how)? {
        return Ok(Some(quote.steps as f64 * quote.step_seconds_most));
    }
    let start = vec![0.0; model.parameters()];
    let (mut since, mut measured, mut seconds) = (Instant::now(), 0_u64, 0.0_f64);
    let mut note = |step: TrainingStep| {
        let now = Instant::now();
        if step.step > 1 {
            measured += 1;
            seconds += (now - since).as_secs_f64();
        }
        since = now;
        match measured < MEASURED_STEPS {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    };
    let begun = Instant::now();
    match engine.train(model, &start, data, how, 0, &mut note) {
        Ok(_) | Err(TrainError::Stopped { .. }) => {}
        Err(error) => return Err(error),
    }
    let steps = how.steps(data.rows()) as f64;
    // A training of one step is all measured.
    let step = if measured > 0 { seconds / measured as f64 } else { begun.elapsed().as_secs_f64() };
    Ok(Some(steps * step))
}

#[cfg(test)]
mod tests {
    use florin_learning::{EngineKind, engine};
    use florin_protocol::RoundNumber;

    use super::*;
    use crate::testing;

    #[test]
    fn a_small_model_has_a_time_by_a_few_of_its_steps() {
        let mut engine = engine(EngineKind::Reference, 1).unwrap();
        let spec = testing::spec();
        let how = florin_work::training(&spec, RoundNumber::FIRST);
        let model = florin_work::task_model(&spec, None);
        for rows in [1, 400] {
            let data = testing::rows(rows, 1);
            let found = training_seconds(&mut *engine, &model, &data, &how).unwrap().unwrap();
            assert!(found > 0.0 && found.is_finite(), "{found}");
        }
    }
}
