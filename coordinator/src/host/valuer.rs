//! The valuation threads: the coordinator's own valuation and aggregation of rounds. The only file
//! that calls [`florin_work`] for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use florin_learning::{Engine, ScratchSpace};
use florin_protocol::{
    Digest, Rejection, RoundNumber, Signed, TaskId, TaskSpec, WorkOrder, WorkRecord,
};
use florin_work::{EarlierUpdateBlobs, ValuationInputs, ValuationOutput, WorkError};

use super::Mailbox;
use super::delayed::{Again, Delayed};
use super::lanes::Lane;
use florin_engine::Event;
use florin_store::{BlobError, Blobs};

/// Attempts at a computation that fails for no reason in its inputs, before the round is abandoned.
pub const TRIES_MAX: u32 = 5;

/// Executes work orders.
pub trait Valuer: Send {
    /// Values and aggregates a round from its blobs on the rows drawn for it. It returns the new
    /// model without storing it.
    ///
    /// # Errors
    /// [`ValuerError`].
    fn carry_out(
        &mut self,
        order: &WorkOrder,
        drawn: &[u32],
        spec: &TaskSpec,
        blobs: &Blobs,
    ) -> Result<ValuationOutput, ValuerError>;
}

/// Why a work order cannot be executed.
#[derive(Debug, thiserror::Error)]
pub enum ValuerError {
    /// The updates cannot be valued or aggregated: a property of the inputs, the same on every
    /// machine.
    #[error("the round cannot be valued: {0}")]
    CannotBeValued(String),
    /// There is no scratch space, or a read failed: the caller retries without a limit.
    #[error("the valuation waits for scratch space or a readable disk: {0}")]
    NoRoom(String),
    /// A fault of this machine; another attempt may succeed.
    #[error("the valuation failed: {0}")]
    Fault(String),
}

impl From<BlobError> for ValuerError {
    fn from(error: BlobError) -> Self {
        match Again::from(error) {
            Again::Failed(why) => Self::Fault(why),
            Again::Waits(why) => Self::NoRoom(why),
        }
    }
}

/// The default valuer: [`florin_work::value_and_aggregate`] on a learning engine.
pub struct WorkValuer {
    engine: Box<dyn Engine>,
    room: ScratchSpace,
}

impl WorkValuer {
    /// Creates a valuer on `engine`; `room` is the scratch space for a round's decoded updates.
    #[must_use]
    pub fn new(engine: Box<dyn Engine>, room: ScratchSpace) -> Self {
        Self { engine, room }
    }
}

impl Valuer for WorkValuer {
    fn carry_out(
        &mut self,
        order: &WorkOrder,
        drawn: &[u32],
        spec: &TaskSpec,
        blobs: &Blobs,
    ) -> Result<ValuationOutput, ValuerError> {
        let base = blobs.read(order.base_model)?;
        let shown = blobs.read(order.disclosed_rows)?;
        let previous = order.previous_models.iter().map(|digest| blobs.map(*digest));
        let previous = previous.collect::<Result<Vec<_>, _>>()?;
        let updates = order.entries.iter().map(|entry| blobs.map(entry.update));
        let updates = updates.collect::<Result<Vec<_>, _>>()?;
        let last = order.earlier_updates.iter().map(|(_, digest)| blobs.map(*digest));
        let last = last.collect::<Result<Vec<_>, _>>()?;
        let inputs = ValuationInputs {
            spec,
            base: &base,
            row_indices: drawn,
            disclosed_rows: &shown,
            entries: &order.entries,
            updates: &updates,
            previous_models: &previous,
            earlier_updates: EarlierUpdateBlobs { ids: &order.earlier_updates, bytes: &last },
            scratch_space: &self.room,
        };
        florin_work::value_and_aggregate(&inputs, self.engine.as_mut()).map_err(|error| match error
        {
            WorkError::Valuation(_) | WorkError::Aggregation(_) | WorkError::Loss(_) => {
                ValuerError::CannotBeValued(error.to_string())
            }
            WorkError::ScratchSpace(_) => ValuerError::NoRoom(error.to_string()),
            _ => ValuerError::Fault(error.to_string()),
        })
    }
}

/// The first record that agrees with the coordinator's own result, and the wrong records before it.
/// Records after the first match are not compared.
pub(super) fn judge(
    ours: &florin_protocol::WorkResult,
    records: &[(Digest, Signed<WorkRecord>)],
) -> (Option<Digest>, Vec<Digest>) {
    let mut wrong = Vec::new();
    for (digest, record) in records {
        if agrees(ours, &record.body) {
            return (Some(*digest), wrong);
        }
        wrong.push(*digest);
    }
    (None, wrong)
}

/// Whether a record agrees with the coordinator's own result; logs the mismatch if not.
pub(super) fn agrees(ours: &florin_protocol::WorkResult, record: &WorkRecord) -> bool {
    let difference = florin_work::compare_results(ours, &record.result).err();
    if let Some(difference) = &difference {
        let provider = record.provider;
        tracing::warn!(%provider, %difference, "a work record is wrong and earns no pay");
    }
    difference.is_none()
}

/// One round to value.
#[derive(Clone, Debug)]
pub struct ValueJob {
    /// The task.
    pub task: TaskId,
    /// The round.
    pub round: RoundNumber,
    /// The task's specification.
    pub spec: TaskSpec,
    /// The work order.
    pub order: WorkOrder,
    /// The indices of the rows drawn for the round.
    pub drawn: Vec<u32>,
}

/// A valuation thread.
pub(super) fn work(
    jobs: Lane<ValueJob>,
    mut valuer: Box<dyn Valuer>,
    blobs: &Arc<Blobs>,
    mailbox: &Mailbox,
) {
    let mut jobs = Delayed::new(jobs);
    while let Some(job) = jobs.next() {
        let what = &job.what;
        match carry_out(what, job.failures, valuer.as_mut(), blobs, mailbox) {
            Ok(()) => {}
            Err(why) => {
                tracing::error!(
                    task = %what.task, round = %what.round, %why, "valuation failed: will retry"
                );
                jobs.again(job, &why);
            }
        }
    }
}

fn carry_out(
    job: &ValueJob,
    failures: u32,
    valuer: &mut dyn Valuer,
    blobs: &Blobs,
    mailbox: &Mailbox,
) -> Result<(), Again> {
    let (task, round) = (job.task, job.round);
    let give_up = |why: String| {
        tracing::error!(%task, %round, %why, "abandoning the round");
        told(mailbox.write(Event::ValuationFailed { task, round }).map(|_| ()))
    };
    // A panic of the valuer fails this round only.
    let tried = AssertUnwindSafe(|| valuer.carry_out(&job.order, &job.drawn, &job.spec, blobs));
    let tried = catch_unwind(tried)
        .unwrap_or_else(|_| Err(ValuerError::Fault("the valuation panicked".to_owned())));
    match tried {
        Ok(outcome) => {
            // The model is durable before the report that references it.
            blobs.put(&outcome.model)?;
            match mailbox.valued(task, round, outcome.result) {
                Err(refused) if refused.code == florin_protocol::ErrorCode::WorkResultMismatch => {
                    give_up(refused.to_string())
                }
                answer => told(answer),
            }
        }
        Err(ValuerError::CannotBeValued(why)) => give_up(why),
        Err(ValuerError::Fault(why)) if failures + 1 >= TRIES_MAX => give_up(why),
        Err(ValuerError::NoRoom(why)) => Err(Again::Waits(why)),
        Err(error) => Err(Again::Failed(error.to_string())),
    }
}

/// Decides from the engine's reply whether to retry: a journal failure is transient; any other
/// rejection is final, because the engine does not need the event any more.
pub(super) fn told(answer: Result<(), Rejection>) -> Result<(), Again> {
    use florin_protocol::ErrorCode::{Internal, StorageFull};
    match answer {
        Err(rejection) if matches!(rejection.code, StorageFull | Internal) => {
            Err(Again::Waits(rejection.to_string()))
        }
        _ => Ok(()),
    }
}
