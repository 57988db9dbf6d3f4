//! The coordinator's own computation of a round's work: the only file that calls [`florin_work`] for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use florin_learning::{Engine, Room};
use florin_protocol::{Digest, Rejection, Round, Signed, TaskId, TaskSpec, WorkOrder, WorkRecord};
use florin_work::{Inputs, LastUpdates, Outcome, WorkError};

use super::Mailbox;
use super::delayed::{Again, Delayed};
use super::lanes::Lane;
use florin_engine::Event;
use florin_store::{BlobError, Blobs};

/// Tries of a computation that fails for no reason in its inputs, before the round is abandoned.
pub const TRIES_MAX: u32 = 5;

/// Carries out work orders.
pub trait Valuer: Send {
    /// Values and aggregates a round from its blobs, by the rows drawn for it. The model that comes out is not kept here.
    ///
    /// # Errors
    /// [`ValuerError`].
    fn carry_out(
        &mut self,
        order: &WorkOrder,
        drawn: &[u32],
        spec: &TaskSpec,
        blobs: &Blobs,
    ) -> Result<Outcome, ValuerError>;
}

/// Why an order could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum ValuerError {
    /// The updates combine to nothing that could be valued: true for everybody who tries.
    #[error("the round cannot be valued: {0}")]
    CannotBeValued(String),
    /// There is no room to work in, or the disk does not let it read: tried again until that is over.
    #[error("the valuation waits for room: {0}")]
    NoRoom(String),
    /// Something failed here; another try may work.
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

/// The valuer that everybody has: [`florin_work::carry_out`] on a learning engine.
pub struct WorkValuer {
    engine: Box<dyn Engine>,
    room: Room,
}

impl WorkValuer {
    /// On this engine; the decoded updates of a round lie in this room.
    #[must_use]
    pub fn new(engine: Box<dyn Engine>, room: Room) -> Self {
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
    ) -> Result<Outcome, ValuerError> {
        let base = blobs.read(order.base_model)?;
        let shown = blobs.read(order.holdout)?;
        let previous = order.previous.iter().map(|digest| blobs.map(*digest));
        let previous = previous.collect::<Result<Vec<_>, _>>()?;
        let updates = order.entries.iter().map(|entry| blobs.map(entry.update));
        let updates = updates.collect::<Result<Vec<_>, _>>()?;
        let last = order.last_updates.iter().map(|(_, digest)| blobs.map(*digest));
        let last = last.collect::<Result<Vec<_>, _>>()?;
        let inputs = Inputs {
            spec,
            base: &base,
            drawn,
            holdout: &shown,
            entries: &order.entries,
            updates: &updates,
            previous: &previous,
            last: LastUpdates { named: &order.last_updates, bytes: &last },
            room: &self.room,
        };
        florin_work::carry_out(&inputs, self.engine.as_mut()).map_err(|error| match error {
            WorkError::Valuation(_) | WorkError::Aggregation(_) | WorkError::Loss(_) => {
                ValuerError::CannotBeValued(error.to_string())
            }
            WorkError::Room(_) => ValuerError::NoRoom(error.to_string()),
            _ => ValuerError::Fault(error.to_string()),
        })
    }
}

/// The first record that agrees with our own result, and those before it that do not. Records after it are neither.
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

/// Whether a record agrees with our own result.
pub(super) fn agrees(ours: &florin_protocol::WorkResult, record: &WorkRecord) -> bool {
    let difference = florin_work::agree(ours, &record.result).err();
    if let Some(difference) = &difference {
        let provider = record.provider;
        tracing::warn!(%provider, %difference, "a work record is wrong and not paid");
    }
    difference.is_none()
}

/// One round to be computed.
#[derive(Clone, Debug)]
pub struct ValueJob {
    /// The task.
    pub task: TaskId,
    /// The round.
    pub round: Round,
    /// What the task asks for.
    pub spec: TaskSpec,
    /// What is to be done.
    pub order: WorkOrder,
    /// The rows that judge it.
    pub drawn: Vec<u32>,
}

/// The valuation thread.
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
                tracing::error!(task = %what.task, round = %what.round, %why, "valuation");
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
        tracing::error!(%task, %round, %why, "the round is abandoned");
        told(mailbox.write(Event::ValuationFailed { task, round }).map(|_| ()))
    };
    // A round that makes the valuer panic is that round's failure, and nobody else's.
    let tried = AssertUnwindSafe(|| valuer.carry_out(&job.order, &job.drawn, &job.spec, blobs));
    let tried = catch_unwind(tried)
        .unwrap_or_else(|_| Err(ValuerError::Fault("the valuation panicked".to_owned())));
    match tried {
        Ok(outcome) => {
            // Durable before the report that names it.
            blobs.put(&outcome.model)?;
            match mailbox.valued(task, round, outcome.result) {
                Err(refused) if refused.code == florin_protocol::Code::WorkWrong => {
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

/// An answer the journal could not take is asked for again; one the engine does not want any more is settled.
pub(super) fn told(answer: Result<(), Rejection>) -> Result<(), Again> {
    use florin_protocol::Code::{Internal, StorageFull};
    match answer {
        Err(rejection) if matches!(rejection.code, StorageFull | Internal) => {
            Err(Again::Waits(rejection.to_string()))
        }
        _ => Ok(()),
    }
}
