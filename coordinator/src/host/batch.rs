//! One batch of the engine's thread, without the thread: due deadlines and requests are applied and
//! made durable with one fsync; only then are replies and effects released.
//!
//! The actor runs batches on a real clock. The fault simulator runs the same batches in virtual
//! time on disks that fail.

use std::sync::Arc;

use florin_protocol::{
    Address, Digest, ErrorCode, MarketId, Rejection, RoundNumber, TaskId, Timestamp, WorkResult,
};

use super::WriteAck;
use super::snapshotter::{self, with_replay_target};
use super::valuer::{RecordMatch, is_same_result, match_records, record_agrees};
use florin_engine::state::ReceivedRecord;
use florin_engine::{Effect, Engine, Event, EventStatus};
use florin_store::{AppendError, Journal, JournalEntry, OpenError, Volume};

/// A write request to the engine.
#[derive(Clone, Debug)]
pub enum EngineRequest {
    /// An event.
    Write(Box<Event>),
    /// The result of the coordinator's own computation of a round. The engine compares the
    /// providers' work records with it.
    OwnResult {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
        /// The result.
        result: Box<WorkResult>,
        /// Where it comes from.
        source: ResultSource,
    },
}

/// Where the result of a round comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultSource {
    /// The coordinator computed all of it, and then accepted the transcript of this record, if of any.
    Computed(Option<Digest>),
    /// It replayed the transcript of this record. Another record that contradicts it is no wrong one before the
    /// coordinator has computed the round.
    Transcript(Digest),
}

impl ResultSource {
    /// The record whose transcript was accepted: it is paid before those without one.
    const fn proven(self) -> Option<Digest> {
        match self {
            Self::Computed(proven) => proven,
            Self::Transcript(proven) => Some(proven),
        }
    }
}

/// The outcome of a batch. All of it is durable.
#[derive(Debug)]
pub struct BatchOutcome {
    /// The time at which the batch was applied.
    pub now: Timestamp,
    /// One reply for each request, in order.
    pub replies: Vec<Result<WriteAck, Rejection>>,
    /// Effects to dispatch now.
    pub effects: Vec<Effect>,
    /// Tasks whose view changed.
    pub changed_tasks: Vec<TaskId>,
    /// How the caller continues.
    pub next: NextStep,
    /// Why the journal accepts no records; `None` if it does.
    pub journal_error: Option<String>,
}

/// How the caller continues after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Continue.
    Continue,
    /// Retry later: the journal accepts no records for now.
    RetryLater,
    /// Stop: the durable state could not be read back, so the engine's state is unknown.
    Stop,
}

/// Makes a batch's records durable: [`Journal::append`], plus the host's measurements around it.
pub type AppendFn<'a> = dyn FnMut(&mut Journal, &[JournalEntry]) -> Result<(), AppendError> + 'a;

/// The engine and its journal.
#[derive(Debug)]
pub struct JournaledEngine {
    engine: Engine,
    journal: Journal,
}

/// Events that are applied but not durable yet.
#[derive(Default)]
struct UncommittedBatch {
    records: Vec<JournalEntry>,
    effects: Vec<Effect>,
    changed_tasks: Vec<TaskId>,
    replies: Vec<Result<WriteAck, Rejection>>,
}

impl JournaledEngine {
    /// Recovers the engine from the journal and snapshots on a volume; creates them if absent.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        volume: &Arc<dyn Volume>,
        owner: Digest,
        market: MarketId,
        coordinator: Address,
    ) -> Result<Self, OpenError> {
        let (engine, journal) = snapshotter::open(volume, owner, market, coordinator)?;
        Ok(Self { engine, journal })
    }

    /// The engine. Between two batches its state is durable.
    #[must_use]
    pub const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The journal.
    #[must_use]
    pub const fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Engine and journal, for a snapshot or a backup.
    pub const fn parts(&mut self) -> (&Engine, &mut Journal) {
        (&self.engine, &mut self.journal)
    }

    /// Rebuilds an engine from the journal's durable records.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn replay_durable(&self) -> Result<Engine, OpenError> {
        let (market, coordinator) = (self.engine.market(), self.engine.coordinator());
        with_replay_target(market, coordinator, |fold| self.journal.replay_durable(fold))
    }

    /// Applies the deadlines due at `now` and the requests, makes them durable with one `append`,
    /// and returns the replies. If the append fails, the batch has no effect and every reply is a
    /// rejection.
    pub fn commit_batch(
        &mut self,
        asked: Vec<EngineRequest>,
        now: Timestamp,
        append: &mut AppendFn<'_>,
    ) -> BatchOutcome {
        let now = now.max(self.engine.state().now);
        let mut batch = UncommittedBatch::default();
        let room = self.journal.check_room();
        let why = room.as_ref().err().map(ToString::to_string);
        let room = room.map_err(|error| append_rejection(&error));
        if room.is_ok() {
            // Usually no deadline is due: then the tick is a repeat and leaves no record.
            let _ = self.apply(Event::Tick, now, &mut batch);
        }
        for asked in asked {
            let event = room.clone().and_then(|()| self.to_event(asked));
            let taken = event.and_then(|event| self.apply(event, now, &mut batch));
            batch.replies.push(taken);
        }
        self.commit(batch, now, why, append)
    }

    fn to_event(&self, asked: EngineRequest) -> Result<Event, Rejection> {
        Ok(match asked {
            EngineRequest::Write(event) => self.with_agreement(*event),
            EngineRequest::OwnResult { task, round, result, source } => {
                let records = self.engine.open_records(task);
                let agrees = |record: &ReceivedRecord| is_same_result(&result, &record.signed.body);
                let is_replayed = matches!(source, ResultSource::Transcript(_));
                if is_replayed && !records.iter().all(agrees) {
                    let message = "a record contradicts the transcript: compute the round";
                    return Err(Rejection::new(ErrorCode::ConflictingMessage, message));
                }
                let RecordMatch { paid, wrong_records } =
                    match_records(&result, records, source.proven());
                Event::RoundValued { task, round, result, paid, wrong_records }
            }
        })
    }

    /// Compares a work record at once with the coordinator's own result, if that is already known.
    fn with_agreement(&self, event: Event) -> Event {
        let Event::WorkRecordReceived { record, .. } = event else {
            return event;
        };
        let ours = self.engine.own_result(record.body.order);
        let agrees = ours.map(|ours| record_agrees(ours, &record.body));
        Event::WorkRecordReceived { record, agrees }
    }

    fn apply(
        &mut self,
        event: Event,
        now: Timestamp,
        batch: &mut UncommittedBatch,
    ) -> Result<WriteAck, Rejection> {
        let applied = self.engine.apply(&event, now)?;
        if applied.status == EventStatus::New {
            batch.records.push(JournalEntry { now, event });
            batch.effects.extend(applied.effects);
            batch.changed_tasks.extend(applied.changed_tasks);
        }
        Ok(WriteAck { now, verdict: applied.status })
    }

    fn commit(
        &mut self,
        mut batch: UncommittedBatch,
        now: Timestamp,
        mut refused: Option<String>,
        append: &mut AppendFn<'_>,
    ) -> BatchOutcome {
        let mut next = if refused.is_none() { NextStep::Continue } else { NextStep::RetryLater };
        if !batch.records.is_empty()
            && let Err(error) = append(&mut self.journal, &batch.records)
        {
            tracing::error!(%error, "the journal accepts no records");
            let rejection = append_rejection(&error);
            for answer in &mut batch.replies {
                *answer = Err(rejection.clone());
            }
            refused = Some(error.to_string());
            batch.effects.clear();
            batch.changed_tasks.clear();
            next = self.roll_back();
        }
        let UncommittedBatch { effects, changed_tasks: changed, replies: answers, .. } = batch;
        BatchOutcome {
            now,
            replies: answers,
            effects,
            changed_tasks: changed,
            next,
            journal_error: refused,
        }
    }

    /// Rolls back events that are applied but not durable: rebuilds the engine from the journal.
    fn roll_back(&mut self) -> NextStep {
        match self.replay_durable() {
            Ok(engine) => {
                self.engine = engine;
                NextStep::RetryLater
            }
            Err(error) => {
                tracing::error!(%error, "the journal cannot be read back: the coordinator stops");
                NextStep::Stop
            }
        }
    }
}

fn append_rejection(error: &AppendError) -> Rejection {
    match error {
        AppendError::Full(_) => {
            let message =
                "the coordinator's disk is full; the request had no effect: try again later";
            Rejection::new(ErrorCode::StorageFull, message)
        }
        AppendError::Failed(_) | AppendError::Broken(_) => {
            let message = "the coordinator cannot write its journal; the request had no effect";
            Rejection::new(ErrorCode::Internal, message)
        }
    }
}
