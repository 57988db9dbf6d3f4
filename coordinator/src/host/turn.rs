//! One turn of the engine's thread, without the thread: what is due and what was asked is applied, made durable with one
//! fsync, and only then answered, and only then do effects leave.
//!
//! The actor runs turns by a real clock; the laboratory runs the same turns under virtual time, on disks that fail.

use std::sync::Arc;

use florin_protocol::{Address, Code, Digest, Market, Rejection, Round, TaskId, Tick, WorkResult};

use super::Written;
use super::keeper::{self, with_fold};
use super::valuer::{agrees, judge};
use florin_engine::{Effect, Engine, Event, Verdict};
use florin_store::{AppendError, Journal, OpenError, Record, Volume};

/// Something that the engine is told.
#[derive(Clone, Debug)]
pub enum Asked {
    /// An event.
    Write(Box<Event>),
    /// What the coordinator's own computation of a round came to; the providers' records are held against it.
    Valued {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
        /// What came out.
        result: Box<WorkResult>,
    },
}

/// What a turn came to. Everything in it is durable.
#[derive(Debug)]
pub struct Turn {
    /// The moment at which it was.
    pub now: Tick,
    /// What became of everything asked, in its order.
    pub answers: Vec<Result<Written, Rejection>>,
    /// What is to be seen to from now on.
    pub effects: Vec<Effect>,
    /// Tasks whose view changed.
    pub changed: Vec<TaskId>,
    /// What to do next.
    pub next: Next,
    /// Why the journal takes nothing, if it does not.
    pub refusal: Option<String>,
}

/// What to do after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Everything is well.
    GoOn,
    /// The journal takes nothing for now.
    Stuck,
    /// What is durable could not be read back: nobody knows what this engine may say.
    Stop,
}

/// How a turn's records are made durable: [`Journal::append`], and whatever its host measures around it.
pub type Append<'a> = dyn FnMut(&mut Journal, &[Record]) -> Result<(), AppendError> + 'a;

/// The engine and its journal.
#[derive(Debug)]
pub struct Core {
    engine: Engine,
    journal: Journal,
}

/// What is applied and not durable yet.
#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    effects: Vec<Effect>,
    changed: Vec<TaskId>,
    answers: Vec<Result<Written, Rejection>>,
}

/// Takes one record of a journal into an engine.
pub(super) fn replay(engine: &mut Engine, record: &Record) -> Result<(), String> {
    match engine.apply(&record.event, record.now) {
        Ok(applied) if applied.verdict == Verdict::New => Ok(()),
        Ok(_) => Err("it changes nothing".to_owned()),
        Err(rejection) => Err(rejection.to_string()),
    }
}

impl Core {
    /// Reads journal and snapshots of a folder, making them where there are none.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        volume: &Arc<dyn Volume>,
        owner: Digest,
        market: Market,
        coordinator: Address,
    ) -> Result<Self, OpenError> {
        let (engine, journal) = keeper::open(volume, owner, market, coordinator)?;
        Ok(Self { engine, journal })
    }

    /// The engine. Between two turns it knows only what is durable.
    #[must_use]
    pub const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The journal.
    #[must_use]
    pub const fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Engine and journal, for a snapshot or a cut.
    pub const fn parts(&mut self) -> (&Engine, &mut Journal) {
        (&self.engine, &mut self.journal)
    }

    /// The engine that the journal's durable records come to.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn read_back(&self) -> Result<Engine, OpenError> {
        let (market, coordinator) = (self.engine.market(), self.engine.coordinator());
        with_fold(market, coordinator, |fold| self.journal.read_back(fold))
    }

    /// Takes what is due at `now` and what is asked, makes it durable with one `append`, and says what to answer. Where
    /// nothing can be made durable nothing has happened, and everybody is told so.
    pub fn turn(&mut self, asked: Vec<Asked>, now: Tick, append: &mut Append<'_>) -> Turn {
        let now = now.max(self.engine.state().now);
        let mut batch = Batch::default();
        let room = self.journal.check_room();
        let why = room.as_ref().err().map(ToString::to_string);
        let room = room.map_err(|error| refusal(&error));
        if room.is_ok() {
            // Nothing is due most of the time; then it is a repeat and leaves no record.
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

    /// A record that comes when there is a result is held against it at once.
    fn judged(&self, event: Event) -> Event {
        let Event::WorkRecorded { record, .. } = event else {
            return event;
        };
        let ours = self.engine.held_result(record.body.order);
        let agrees = ours.map(|ours| agrees(ours, &record.body));
        Event::WorkRecorded { record, agrees }
    }

    fn take(&mut self, event: Event, now: Tick, batch: &mut Batch) -> Result<Written, Rejection> {
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
        now: Tick,
        mut refused: Option<String>,
        append: &mut Append<'_>,
    ) -> Turn {
        let mut next = if refused.is_none() { Next::GoOn } else { Next::Stuck };
        if !batch.records.is_empty()
            && let Err(error) = append(&mut self.journal, &batch.records)
        {
            tracing::error!(%error, "the journal takes nothing");
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

    /// Forgets what was applied but is not durable: the engine becomes what the journal says.
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
            let message = "the coordinator's disk is full; nothing was taken: try again later";
            Rejection::new(Code::StorageFull, message)
        }
        AppendError::Failed(_) | AppendError::Broken(_) => {
            let message = "the coordinator cannot write its journal; nothing was taken";
            Rejection::new(Code::Internal, message)
        }
    }
}
