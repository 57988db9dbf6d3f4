//! The class of bits of an order and its longest step: as its file states them, or from this machine.

use std::path::Path;
use std::time::Instant;

use florin_compute::ComputeOrder;
use florin_learning::Engine;
use florin_protocol::{Address, ChainId, Digest, MarketId, Rejection};
use florin_work::{LeasedTraining, compute_class};

use crate::cli::EngineArg;
use crate::compose;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::rent::{OrderFacts, doubts};
use crate::task_file::order::{ClassAndStep, OrderDraft, OrderParties};

/// The longest step is this multiple of a step on this machine.
const STEP_FACTOR: u64 = 4;
/// Steps that are measured, at most, after as many to warm up.
const MEASURED_STEPS_MAX: u32 = 4;
/// The longest step of the order by which a step is measured, in microseconds.
const UNMEASURED_US: u64 = 1_000_000;

/// Parties of an order that is only checked.
pub(super) const fn unknown_parties() -> OrderParties {
    let market = MarketId { chain: ChainId(0), genesis: Digest([0; 32]) };
    OrderParties { market, renter: Address([1; 20]) }
}

/// The class and the longest step of an order.
///
/// # Errors
/// `CLASS_MISSING` if this machine has no class, and those of the engine.
pub(in crate::commands) fn class_and_step(
    draft: &OrderDraft,
    file: &Path,
    engine: EngineArg,
) -> anyhow::Result<ClassAndStep> {
    let (class, step_us_max) = draft.stated();
    if let (Some(class), Some(step_us_max)) = (class, step_us_max) {
        return Ok(ClassAndStep { class, step_us_max });
    }
    let mut engine = compose::engine(engine)?;
    let Some(own) = compute_class(&*engine) else {
        let message = format!(
            "the {} engine on this machine has no class of bits: install libtorch (`florin doctor`), \
             or write order.class and order.step_max into the file",
            engine.name()
        );
        return Err(Failure::input("CLASS_MISSING", message).into());
    };
    let step_us_max = match step_us_max {
        Some(stated) => stated,
        None => {
            let order = draft.order(
                file,
                &unknown_parties(),
                ClassAndStep { class: own, step_us_max: UNMEASURED_US },
                None,
            )?;
            let training = load(draft, &order)?;
            let steps = MEASURED_STEPS_MAX;
            let step =
                Progress::during("measuring a step", || measure(&training, &mut *engine, steps));
            step?.saturating_mul(STEP_FACTOR).max(1)
        }
    };
    Ok(ClassAndStep { class: class.unwrap_or(own), step_us_max })
}

/// Doubts about an order that was loaded. A stated longest step is compared with one on this machine, if it has the
/// class of the order.
///
/// # Errors
/// Those of the engine.
pub(super) fn doubts_about(
    draft: &OrderDraft,
    order: &ComputeOrder,
    training: &LeasedTraining,
    engine: EngineArg,
) -> anyhow::Result<Vec<String>> {
    let mut step_us = None;
    // The first state of a rest is at the coordinator.
    if draft.stated().1.is_some() && order.first_segment == 0 {
        let mut engine = compose::engine(engine)?;
        if compute_class(&*engine) == Some(order.class) {
            let shown = Progress::start("measuring a step");
            let mut measured = measure(training, &mut *engine, 1)?;
            if measured > order.step_us_max {
                // Other work of the machine may have delayed it.
                measured = measured.min(measure(training, &mut *engine, MEASURED_STEPS_MAX)?);
            }
            drop(shown);
            step_us = Some(measured);
        }
    }
    let (virtual_workers, batch) = (draft.job.virtual_workers, draft.job.training.batch);
    let (challenge_ms, state_ms) = (draft.challenge_ms, draft.job.state_ms());
    Ok(doubts(order, OrderFacts { challenge_ms, virtual_workers, batch, state_ms, step_us }))
}

/// The training of an order, which a job that no provider can train does not have.
///
/// # Errors
/// `INVALID_ORDER`.
pub(super) fn load(draft: &OrderDraft, order: &ComputeOrder) -> anyhow::Result<LeasedTraining> {
    let read = |digest, _| Ok::<_, Rejection>(draft.blob(digest).cloned().unwrap_or_default());
    let training = LeasedTraining::load(order, &draft.job, read);
    let invalid = |rejection: Rejection| Failure::input("INVALID_ORDER", rejection.message);
    Ok(training.map_err(invalid)?)
}

/// Microseconds of a step on this machine, of at most `steps` steps after as many to warm up.
fn measure(training: &LeasedTraining, engine: &mut dyn Engine, steps: u32) -> anyhow::Result<u64> {
    let first = training.first();
    let end = training.state_in_segment(engine, &first, steps)?;
    let began = Instant::now();
    training.state_in_segment(engine, &first, steps)?;
    let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    Ok(us.div_ceil(end.step().max(1)))
}
