//! Steps that are larger than the memory: their admission, and their run by a plan.
//!
//! ```text
//! two steps on few rows ─▶ trace ─▶ admission ─▶ plan
//! step:  forward pass ─▶ buffers leave ─▶ file, memory of a GPU's host, or nothing
//!        backward pass ◀─ buffers return, or are computed again
//! ```

mod host_store;
mod record;
mod run;
mod store;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tch::{Device, Tensor};

use super::net::{GradientStream, GraphFailure, GraphNet};
use crate::engine::{BackendError, TrainError};
use crate::graph::{BothObservers, RunMode, RunObserver};
use crate::memory::{
    Admission, MemoryError, MemoryNews, MemoryPlan, MemoryQuote, MemoryRates, MemorySettings,
    Recompute, SavedRule, admit, quote_memory,
};
use crate::torch::ENGINE;
use crate::torch::batches::Rows;
use crate::torch::dispatch::ReturnMemory;
use crate::torch::memory::{FREE_MEMORY_DIVISOR, available_bytes};
use crate::torch::side_stream::gpu_of;
use crate::torch::tape::Tape;
use host_store::HostPlaces;
use record::{Recorded, record, ways};
use run::{Mover, PlannedStep, Recomputer};

/// The share of a memory, as its inverse, that a static estimate must exceed for steps to be recorded:
/// the estimate may be half too low.
pub(super) const ESTIMATE_DIVISOR: u64 = 4;
/// Gradients of the parameters that a backward pass has at once, at most, without those of its parts.
const GRADIENT_COPIES: u64 = 2;

/// The memory of the steps of a training.
pub(super) struct StepMemory<'n> {
    plans: Option<StepPlans<'n>>,
    /// Most rows of a part of a batch.
    pub(super) rows_max: usize,
}

/// Plans by the rows of a step.
struct StepPlans<'n> {
    net: &'n GraphNet<'n>,
    recorded: Recorded,
    again: Vec<Recompute>,
    rates: MemoryRates,
    bytes: u64,
    settings: MemorySettings,
    /// Of a GPU's buffers.
    places: Option<HostPlaces>,
    steps: BTreeMap<usize, Option<PlannedTape<'n>>>,
    _scarce: Option<ReturnMemory>,
}

/// A plan with its tape.
struct PlannedTape<'n> {
    tape: Tape<'n>,
    step: Arc<PlannedStep<'n>>,
}

/// The bounds of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepLimit<'a> {
    /// Rows of the largest step.
    pub(super) rows: usize,
    /// Rows of all steps.
    pub(super) all_rows: &'a BTreeSet<usize>,
    /// Bytes of its tensors.
    pub(super) bytes: u64,
    /// Bytes that a recording may take, if that is more.
    pub(super) free: u64,
    /// Whether a batch can be computed in parts.
    pub(super) can_split: bool,
    pub(super) settings: &'a MemorySettings,
}

impl<'n> StepMemory<'n> {
    /// Steps with all tensors in the memory, in parts of some rows at most.
    pub(super) fn in_parts(rows_max: usize) -> Self {
        Self { plans: None, rows_max }
    }

    /// The bytes of the tensors of the last step on some rows at once, if it had a plan.
    pub(super) fn planned_bytes(&self, rows: usize) -> Option<u64> {
        let planned = self.plans.as_ref()?.steps.get(&rows)?.as_ref()?;
        Some(planned.tape.peak())
    }

    /// Admits steps to a memory. `sample` has rows of the training; the parameters in `views` stay as they
    /// are.
    ///
    /// # Errors
    /// [`MemoryError`] if a step does not fit by any plan, [`BackendError`] if the engine fails.
    pub(super) fn admit(
        net: &'n GraphNet<'n>,
        views: &[Tensor],
        sample: &Rows,
        limit: StepLimit<'_>,
    ) -> Result<Self, TrainError> {
        let StepLimit { rows, all_rows, bytes, free, can_split, settings } = limit;
        let left = bytes.saturating_sub(GRADIENT_COPIES * net.parameter_bytes());
        if net.program.rows_within(left / ESTIMATE_DIVISOR, rows) == rows {
            return Ok(Self::in_parts(usize::MAX));
        }
        let all = rows as u32;
        let Some(recorded) = record(net, views, sample, all, bytes.max(free))? else {
            // Parts by the estimate are all that can be done, also where the memory depends on the numbers.
            let within = if can_split { net.program.rows_within(bytes, rows) } else { usize::MAX };
            return Ok(Self::in_parts(within));
        };
        let needed = recorded.trace.peak(all);
        let within = recorded.rows_within(bytes, all);
        if within == all {
            return Ok(Self::in_parts(usize::MAX));
        }
        if can_split && within > 0 {
            (settings.notify)(&MemoryNews::Parts { rows: within, needed, limit: bytes });
            return Ok(Self::in_parts(within as usize));
        }
        let part = if can_split { 1 } else { rows };
        let recorded = match can_split {
            // One row may be computed by other kernels than several.
            true => record(net, views, sample, 1, bytes.max(free))?.unwrap_or(recorded),
            false => recorded,
        };
        let backend = |why| BackendError { engine: ENGINE, why };
        let again = ways(&recorded, part as u32);
        let (settings, steps) = (settings.clone(), BTreeMap::new());
        let _scarce = (net.device == Device::Cpu).then(ReturnMemory::start);
        let rates = store::rates(net.device, &settings.folder).map_err(backend)?;
        let places = gpu_of(net.device).map(HostPlaces::new);
        let mut plans =
            StepPlans { net, recorded, again, rates, bytes, settings, places, steps, _scarce };
        plans.make(part)?;
        // A plan that fails later would fail a round.
        for &rows in all_rows.iter().filter(|&&rows| rows < part) {
            plans.make(rows)?;
        }
        plans.tell(part);
        Ok(Self { plans: Some(plans), rows_max: part })
    }

    /// As [`GraphNet::observed_gradient`] in a training. A step by a plan begins when the observer would
    /// let a forward pass end.
    pub(super) fn gradient(
        &mut self,
        net: &GraphNet<'_>,
        views: &[Tensor],
        rows: &Rows,
        scale: f64,
        slots: &[Tensor],
        observer: &mut dyn RunObserver,
    ) -> Result<Tensor, GraphFailure> {
        let Some(planned) = self.planned(rows)? else {
            return net.observed_gradient(views, rows, RunMode::Training, scale, slots, observer);
        };
        observer.end_forward()?;
        planned.gradient(net, views, rows, scale, slots, observer)
    }

    /// As [`GraphNet::streamed_gradient`]. A step by a plan gives all tensors at its end.
    pub(super) fn streamed_gradient(
        &mut self,
        net: &GraphNet<'_>,
        views: &[Tensor],
        rows: &Rows,
        scale: f64,
        slots: &[Tensor],
        stream: GradientStream<'_>,
    ) -> Result<Tensor, GraphFailure> {
        if self.planned(rows)?.is_none() {
            return net.streamed_gradient(views, rows, scale, slots, stream);
        }
        let losses = self.gradient(net, views, rows, scale, slots, stream.observer)?;
        stream.sink.forward_done(&losses)?;
        for tensor in 0..slots.len() {
            stream.sink.tensor_done(tensor)?;
        }
        Ok(losses)
    }

    /// The plan of a step on some rows, if it needs one.
    fn planned(&mut self, rows: &Rows) -> Result<Option<&PlannedTape<'n>>, BackendError> {
        let Some(plans) = &mut self.plans else { return Ok(None) };
        let made = plans.make(rows.len());
        made.map_err(|error| BackendError { engine: ENGINE, why: error.to_string() })?;
        Ok(plans.steps.get(&rows.len()).and_then(Option::as_ref))
    }
}

/// Predicts the bytes of the tensors of a step on `rows` rows at once, from steps on fewer; `None` if they
/// depend on the numbers.
pub(super) fn predicted_bytes(
    net: &GraphNet<'_>,
    views: &[Tensor],
    sample: &Rows,
    rows: u32,
    free: u64,
) -> Result<Option<u64>, BackendError> {
    let recorded = record(net, views, sample, rows, free)?;
    Ok(recorded.map(|recorded| recorded.trace.peak(rows)))
}

/// Predicts the memory of a step on `rows` rows, with its plans for smaller ones by this machine's folder
/// for temporary files; `None` if it depends on the numbers.
pub(super) fn predicted_memory(
    net: &GraphNet<'_>,
    views: &[Tensor],
    sample: &Rows,
    rows: u32,
    free: u64,
) -> Result<Option<MemoryQuote>, BackendError> {
    let Some(recorded) = record(net, views, sample, rows, free)? else { return Ok(None) };
    let rates = store::rates(net.device, &MemorySettings::default().folder);
    let rates = rates.map_err(|why| BackendError { engine: ENGINE, why })?;
    Ok(Some(quote_memory(&recorded.trace, rows, rates, &ways(&recorded, rows))))
}

impl StepPlans<'_> {
    /// Makes the plan of a step on some rows, unless there is one.
    fn make(&mut self, rows: usize) -> Result<(), TrainError> {
        if self.steps.contains_key(&rows) {
            return Ok(());
        }
        let Self { net, recorded, again, rates, bytes, settings, places, steps, .. } = self;
        let own = rows as u32;
        let planned = match admit(&recorded.trace, own, (0, *bytes), *rates, again) {
            Admission::Fits { .. } => None,
            Admission::FitsByPlan(plan) => {
                if let Some(places) = places {
                    check_host(places, &plan, own)?;
                }
                let made = PlannedTape::new(net, recorded, *plan, (settings, places.as_ref()));
                Some(made.map_err(|why| BackendError { engine: ENGINE, why })?)
            }
            Admission::TooLarge { needed, .. } => {
                let error = MemoryError { rows: own, needed, limit: *bytes, is_host: false };
                return Err(error.into());
            }
        };
        steps.insert(rows, planned);
        Ok(())
    }

    /// Reports the plan of a step.
    fn tell(&self, rows: usize) {
        let Some(Some(planned)) = self.steps.get(&rows) else { return };
        let plan = planned.step.plan();
        (self.settings.notify)(&MemoryNews::Plan {
            rows: rows as u32,
            needed: self.recorded.trace.peak(rows as u32),
            limit: self.bytes,
            offloaded: plan.bytes(SavedRule::Offload),
            recomputed: plan.bytes(SavedRule::Recompute),
            slow_down: plan.slow_down,
        });
    }
}

impl<'n> PlannedTape<'n> {
    fn new(
        net: &'n GraphNet<'n>,
        recorded: &Recorded,
        plan: MemoryPlan,
        (settings, places): (&MemorySettings, Option<&HostPlaces>),
    ) -> Result<Self, String> {
        let store = store::open(places, &settings.folder)?;
        let recomputer = Recomputer {
            interpreter: &net.interpreter,
            precision: net.precision,
            device: net.device,
            recipes: recorded.recipes.clone(),
        };
        let step = Arc::new(PlannedStep::new(recomputer, plan, store));
        let tape = run::tape(net.device, &step).map_err(|error| error.why)?;
        Ok(Self { tape, step })
    }

    fn gradient(
        &self,
        net: &GraphNet<'_>,
        views: &[Tensor],
        rows: &Rows,
        scale: f64,
        slots: &[Tensor],
        observer: &mut dyn RunObserver,
    ) -> Result<Tensor, GraphFailure> {
        let Self { tape, step } = self;
        tape.restart();
        let recording = tape.record(true)?;
        let mut both = BothObservers(observer, &mut Mover::new(tape, step));
        let found = net.observed_gradient(views, rows, RunMode::Training, scale, slots, &mut both);
        step.end();
        drop(recording);
        match step.take_failure() {
            Some(why) => Err(BackendError { engine: ENGINE, why }.into()),
            None => found,
        }
    }
}

/// Checks that the host has room for tensors that leave a GPU.
fn check_host(places: &HostPlaces, plan: &MemoryPlan, rows: u32) -> Result<(), MemoryError> {
    let leaving = plan.buffers.iter().enumerate();
    let leaving = leaving.filter(|(_, buffer)| buffer.rule == SavedRule::Offload);
    let needed = places.missing(leaving.map(|(at, buffer)| (at, buffer.bytes)));
    let limit = available_bytes().unwrap_or(u64::MAX) / FREE_MEMORY_DIVISOR;
    match needed <= limit {
        true => Ok(()),
        false => Err(MemoryError { rows, needed, limit, is_host: true }),
    }
}

impl Recorded {
    /// The most rows, at most `rows`, whose step has at most `bytes` bytes; 0 if none fits.
    fn rows_within(&self, bytes: u64, rows: u32) -> u32 {
        let (mut fits, mut exceeds) = (0, rows + 1);
        while exceeds - fits > 1 {
            let middle = fits.midpoint(exceeds);
            match self.trace.peak(middle) <= bytes {
                true => fits = middle,
                false => exceeds = middle,
            }
        }
        fits
    }
}
