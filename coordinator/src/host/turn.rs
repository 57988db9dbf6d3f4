//! One batch of the engine's thread, without the thread: due deadlines and requests are applied and
//! made durable with one fsync; only then are replies and effects released.
//!
//! The actor runs batches on a real clock. The fault simulator runs the same batches in virtual
//! time on disks that fail.

use std::sync::Arc;

use florin_protocol::{
    Address, Digest, ErrorCode, MarketId, Rejection, RoundNumber, TaskId, Timestamp, WorkResult,
};

use super::Written;
use super::keeper::{self, with_fold};
use super::valuer::{agrees, judge};
use florin_engine::{Effect, Engine, Event, Verdict};
use florin_store::{AppendError, Journal, OpenError, Record, Volume};

/// A write request to the engine.
#[derive(Clone, Debug)]
pub enum Asked {
    /// An event.
    Write(Box<Event>),
    /// The result of the coordinator's own computation of a round. The engine compares the
    /// providers' work records with it.
    Valued {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
        /// The computed result.
        result: Box<WorkResult>,
    },
}

/// The outcome of a batch. All of it is durable.
#[derive(Debug)]
pub struct Turn {
    /// The time at which the batch was applied.
    pub now: Timestamp,
    /// One reply for each request, in order.
    pub answers: Vec<Result<Written, Rejection>>,
    /// Effects to dispatch now.
    pub effects: Vec<Effect>,
    /// Tasks whose view changed.
    pub changed: Vec<TaskId>,
    /// How the caller continues.
    pub next: Next,
    /// Why the journal accepts no records; `None` if it does.
    pub refusal: Option<String>,
}

/// How the caller continues after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Continue.
    GoOn,
    /// Retry later: the journal accepts no records for now.
    Stuck,
    /// Stop: the durable state could not be read back, so the engine's state is unknown.
    Stop,
}

/// Makes a batch's records durable: [`Journal::append`], plus the host's measurements around it.
pub type Append<'a> = dyn FnMut(&mut Journal, &[Record]) -> Result<(), AppendError> + 'a;

/// The engine and its journal.
#[derive(Debug)]
pub struct Core {
    engine: Engine,
    journal: Journal,
}

/// Events that are applied but not durable yet.
#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    effects: Vec<Effect>,
    changed: Vec<TaskId>,
    answers: Vec<Result<Written, Rejection>>,
}

/// Applies one record of a journal to an engine.
pub(super) fn replay(engine: &mut Engine, record: &Record) -> Result<(), String> {
    match engine.apply(&record.event, record.now) {
        Ok(applied) if applied.verdict == Verdict::New => Ok(()),
        Ok(_) => Err("it changes nothing".to_owned()),
        Err(rejection) => Err(rejection.to_string()),
    }
}

impl Core {
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
        let (engine, journal) = keeper::open(volume, owner, market, coordinator)?;
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
    pub fn read_back(&self) -> Result<Engine, OpenError> {
        let (market, coordinator) = (self.engine.market(), self.engine.coordinator());
        with_fold(market, coordinator, |fold| self.journal.read_back(fold))
    }

    /// Applies the deadlines due at `now` and the requests, makes them durable with one `append`,
    /// and returns the replies. If the append fails, the batch has no effect and every reply is a
    /// rejection.
    pub fn turn(&mut self, asked: Vec<Asked>, now: Timestamp, append: &mut Append<'_>) -> Turn {
        let now = now.max(self.engine.state().now);
        let mut batch = Batch::default();
        let room = self.journal.check_room();
        let why = room.as_ref().err().map(ToString::to_string);
        let room = room.map_err(|error| refusal(&error));
        if room.is_ok() {
            // Usually no deadline is due: then the tick is a repeat and leaves no record.
            let _ = self.take(Event::Tick, now, &mut batch);
        }
        for asked in asked {
            let event = self.event_of(asked);
            let taken = room.clone().and_then(|()| self.take(event, now, &mut batch));
            batch.answers.push(taken);
        }
        self.commit(batch, now, why, append)
    }

    fn event_of(&self, asked: Asked) -> Event {
        match asked {
            Asked::Write(event) => self.judged(*event),
            Asked::Valued { task, round, result } => {
                let (paid, wrong) = judge(&result, self.engine.open_records(task));
                Event::Valued { task, round, result, paid, wrong }
            }
        }
    }

    /// Compares a work record at once with the coordinator's own result, if that is already known.
    fn judged(&self, event: Event) -> Event {
        let Event::WorkRecorded { record, .. } = event else {
            return event;
        };
        let ours = self.engine.held_result(record.body.order);
        let agrees = ours.map(|ours| agrees(ours, &record.body));
        Event::WorkRecorded { record, agrees }
    }

    fn take(
        &mut self,
        event: Event,
        now: Timestamp,
        batch: &mut Batch,
    ) -> Result<Written, Rejection> {
        let applied = self.engine.apply(&event, now)?;
        if applied.verdict == Verdict::New {
            batch.records.push(Record { now, event });
            batch.effects.extend(applied.effects);
            batch.changed.extend(applied.changed);
        }
        Ok(Written { now, verdict: applied.verdict })
    }

    fn commit(
        &mut self,
        mut batch: Batch,
        now: Timestamp,
        mut refused: Option<String>,
        append: &mut Append<'_>,
    ) -> Turn {
        let mut next = if refused.is_none() { Next::GoOn } else { Next::Stuck };
        if !batch.records.is_empty()
            && let Err(error) = append(&mut self.journal, &batch.records)
        {
            tracing::error!(%error, "the journal accepts no records");
            let rejection = refusal(&error);
            for answer in &mut batch.answers {
                *answer = Err(rejection.clone());
            }
            refused = Some(error.to_string());
            batch.effects.clear();
            batch.changed.clear();
            next = self.forget();
        }
        let Batch { effects, changed, answers, .. } = batch;
        Turn { now, answers, effects, changed, next, refusal: refused }
    }

    /// Rolls back events that are applied but not durable: rebuilds the engine from the journal.
    fn forget(&mut self) -> Next {
        match self.read_back() {
            Ok(engine) => {
                self.engine = engine;
                Next::Stuck
            }
            Err(error) => {
                tracing::error!(%error, "the journal cannot be read back: the coordinator stops");
                Next::Stop
            }
        }
    }
}

fn refusal(error: &AppendError) -> Rejection {
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
