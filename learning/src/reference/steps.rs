//! The steps of a training on the reference engine: all of them, or a segment of them with the same bits.

use crate::augmentation::TrainingRows;
use crate::checkpoint::{StateNumbers, TrainingState};
use crate::engine::{TrainError, TrainingProgress, TrainingStep, mean};
use crate::rng::epoch_order;
use crate::segment_record::SegmentRecord;
use crate::training::Training;

/// A batch of a training.
pub(super) struct TrainingBatch<'a> {
    /// The step, from 1.
    pub(super) step: u64,
    pub(super) epoch: u32,
    pub(super) rows: &'a [usize],
}

/// The state of a training, which changes with each batch.
pub(super) trait Stepping {
    /// Takes a step, and returns the loss of each row before it.
    fn take(&mut self, batch: TrainingBatch<'_>) -> Result<Vec<f64>, TrainError>;

    /// The parameters, and what the optimizer carries.
    fn tensors(&self) -> Vec<Vec<f32>>;
}

/// The segment of a training that is computed alone: the state before it, and the record of those after.
pub(super) struct Segment<'a> {
    pub(super) from: &'a TrainingState,
    pub(super) record: &'a mut SegmentRecord,
}

/// Takes all steps of a training, or those of a segment. Returns the mean loss over the last epoch that
/// ended.
pub(super) fn take_steps(
    seen: &TrainingRows<'_>,
    how: &Training,
    mut segment: Option<Segment<'_>>,
    progress: TrainingProgress<'_>,
    stepping: &mut dyn Stepping,
) -> Result<f64, TrainError> {
    let count = seen.data.rows();
    let steps = how.steps(count);
    let from = segment.as_ref().map_or_else(StateNumbers::default, |own| own.from.numbers);
    let (mut sum, mut mean_loss) = (f64::from_bits(from.sum), f64::from_bits(from.mean_loss));
    let each_epoch = count.div_ceil(how.batch as usize) as u64;
    let (first, mut skipped) = (from.step / each_epoch, (from.step % each_epoch) as usize);
    let mut step = from.step;
    for epoch in u32::try_from(first).unwrap_or(u32::MAX)..how.epochs {
        let order = epoch_order(count, seen.seed, epoch);
        for rows in order.chunks(how.batch as usize).skip(std::mem::take(&mut skipped)) {
            step += 1;
            let losses = stepping.take(TrainingBatch { step, epoch, rows })?;
            let loss = mean(&losses);
            if !loss.is_finite() {
                return Err(TrainError::Diverged { step });
            }
            losses.iter().for_each(|loss| sum += loss);
            if step.is_multiple_of(each_epoch) {
                (mean_loss, sum) = (sum / count as f64, 0.0);
            }
            if progress(TrainingStep { step, steps, loss }).is_break() {
                return Err(TrainError::Stopped { step });
            }
            if let Some(Segment { record, .. }) = &mut segment {
                record.stepped(step, || {
                    let (sum, mean_loss) = (sum.to_bits(), mean_loss.to_bits());
                    let numbers = StateNumbers { step, sum, mean_loss, scale: from.scale };
                    finite(TrainingState { numbers, tensors: stepping.tensors() })
                })?;
                if record.is_complete() {
                    return Ok(mean_loss);
                }
            }
        }
    }
    Ok(mean_loss)
}

/// A step has diverged if a number of the state after it is not finite.
fn finite(state: TrainingState) -> Result<TrainingState, TrainError> {
    match state.tensors.iter().flatten().all(|number| number.is_finite()) {
        true => Ok(state),
        false => Err(TrainError::Diverged { step: state.step() }),
    }
}
