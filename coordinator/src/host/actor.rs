//! The one thread that owns engine and journal.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use florin_protocol::{Code, Rejection, TaskId, Tick};
use tokio::sync::{mpsc, oneshot, watch};

use super::archive::KeepJob;
use super::discloser::ShowJob;
use super::keeper::{Keeper, with_fold};
use super::lanes::Lanes;
use super::prover::Debits;
use super::settler::{LedgerJob, settlement};
use super::valuer::{ValueJob, agrees, judge};
use super::{Answer, Clock, Command, Copier, Question, Sequences, Vitals, Written};
use crate::backup::{BackupError, Moment};
use crate::engine::{Effect, Engine, Event, Verdict};
use crate::identity::Identity;
use crate::store::{AppendError, Journal, Record};

/// Commands that share one fsync.
const BATCH_MAX: usize = 256;
/// Longest sleep without a look at the clock, which may have jumped.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Pause before what is due is tried again while the journal takes nothing.
const STUCK_WAIT: Duration = Duration::from_secs(1);

pub(super) struct Actor {
    pub(super) engine: Engine,
    pub(super) journal: Journal,
    pub(super) keeper: Keeper,
    pub(super) copier: Option<Copier>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) changes: watch::Sender<Sequences>,
    pub(super) values: Lanes<ValueJob>,
    pub(super) shows: Sender<ShowJob>,
    pub(super) keeps: Sender<KeepJob>,
    pub(super) ledger: Sender<LedgerJob>,
    pub(super) vitals: Vitals,
}

/// What a batch came to, before and while it is made durable.
#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    effects: Vec<Effect>,
    changed: Vec<TaskId>,
    answers: Vec<(Answer, Result<Written, Rejection>)>,
    questions: Vec<Question>,
    cuts: Vec<oneshot::Sender<Result<Moment, BackupError>>>,
    stop: bool,
}

/// What to do after a batch.
enum Next {
    GoOn,
    /// The journal takes nothing for now.
    Stuck,
    Stop,
}

/// Takes one record of a journal into an engine.
pub(super) fn replay(engine: &mut Engine, record: &Record) -> Result<(), String> {
    match engine.apply(&record.event, record.now) {
        Ok(applied) if applied.verdict == Verdict::New => Ok(()),
        Ok(_) => Err("it changes nothing".to_owned()),
        Err(rejection) => Err(rejection.to_string()),
    }
}

impl Actor {
    pub(super) fn run(mut self, queue: mpsc::Receiver<Command>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        match runtime {
            Ok(runtime) => runtime.block_on(self.serve(queue)),
            Err(error) => tracing::error!(%error, "the engine's thread has no timer"),
        }
    }

    async fn serve(&mut self, mut queue: mpsc::Receiver<Command>) {
        let outstanding = self.engine.outstanding();
        self.dispatch(&outstanding);
        let mut commands = Vec::with_capacity(BATCH_MAX);
        let mut least = Duration::ZERO;
        loop {
            let sleep = self.until_deadline().max(least);
            tokio::select! {
                biased;
                taken = queue.recv_many(&mut commands, BATCH_MAX) => {
                    if taken == 0 {
                        return;
                    }
                }
                () = tokio::time::sleep(sleep) => {}
            }
            least = match self.batch(&mut commands) {
                Next::GoOn => Duration::ZERO,
                Next::Stuck => STUCK_WAIT,
                Next::Stop => return,
            };
        }
    }

    fn until_deadline(&self) -> Duration {
        let now = self.clock.now();
        let left = self.engine.next_deadline().map(|at| Duration::from_millis(at.ms_since(now)));
        left.unwrap_or(SLEEP_MAX).min(SLEEP_MAX)
    }

    /// Takes what is due and what is queued, makes it durable, answers.
    fn batch(&mut self, commands: &mut Vec<Command>) -> Next {
        let now = self.clock.now().max(self.engine.state().now);
        let mut batch = Batch::default();
        let room = self.journal.check_room();
        self.vitals.refused(room.as_ref().err());
        let room = room.map_err(|error| refusal(&error));
        if room.is_ok() {
            // Nothing is due most of the time; then it is a repeat and leaves no record.
            let _ = self.take(Event::Tick, now, &mut batch);
        }
        for command in commands.drain(..) {
            match command {
                Command::Write(event, answer) => {
                    let event = self.judged(*event);
                    let taken = room.clone().and_then(|()| self.take(event, now, &mut batch));
                    batch.answers.push((answer, taken));
                }
                Command::Valued { task, round, result, answer } => {
                    let (paid, wrong) = judge(&result, self.engine.open_records(task));
                    let event = Event::Valued { task, round, result, paid, wrong };
                    let taken = room.clone().and_then(|()| self.take(event, now, &mut batch));
                    batch.answers.push((answer, taken));
                }
                Command::Read(question) => batch.questions.push(question),
                Command::Cut(answer) => batch.cuts.push(answer),
                Command::Wake => {}
                Command::Stop => batch.stop = true,
            }
        }
        self.commit(batch, now, room.is_ok())
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

    fn commit(&mut self, mut batch: Batch, now: Tick, room: bool) -> Next {
        let mut next = if room { Next::GoOn } else { Next::Stuck };
        if !batch.records.is_empty()
            && let Err(error) = self.append(&batch.records)
        {
            tracing::error!(%error, "the journal takes nothing");
            let refused = refusal(&error);
            for (_, answer) in &mut batch.answers {
                *answer = Err(refused.clone());
            }
            batch.effects.clear();
            batch.changed.clear();
            next = self.forget();
        }
        if matches!(next, Next::GoOn) {
            self.keeper.see(&mut self.journal, &self.engine);
        }
        self.dispatch(&batch.effects);
        self.announce(&batch.changed);
        for (answer, result) in batch.answers {
            // Nobody listens any more if the connection is gone.
            let _ = answer.send(result);
        }
        for question in batch.questions {
            question(&self.engine, now);
        }
        for cut in batch.cuts {
            let _ = cut.send(self.cut());
        }
        if batch.stop { Next::Stop } else { next }
    }

    fn append(&mut self, records: &[Record]) -> Result<(), AppendError> {
        let begun = Instant::now();
        let appended = self.journal.append(records);
        match &appended {
            Ok(()) => self.vitals.committed(records.len(), begun.elapsed()),
            Err(error) => {
                self.vitals.failed.inc();
                self.vitals.refused(Some(error));
            }
        }
        appended
    }

    /// The moment that a backup is of: nothing is told, posted or written while this runs.
    fn cut(&mut self) -> Result<Moment, BackupError> {
        let at = self.journal.cut().map_err(|error| BackupError::Journal(error.to_string()))?;
        let chain = self.copier.as_ref().map(|copier| copier()).transpose()?;
        let (market, coordinator) = (self.engine.market(), self.engine.coordinator());
        let identity = Identity { market, coordinator };
        Ok(Moment { identity, at, running: true, chain })
    }

    /// Forgets what was applied but is not durable: the engine becomes what the journal says.
    fn forget(&mut self) -> Next {
        let (market, coordinator) = (self.engine.market(), self.engine.coordinator());
        match with_fold(market, coordinator, |fold| self.journal.read_back(fold)) {
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

    fn announce(&self, changed: &[TaskId]) {
        if changed.is_empty() {
            return;
        }
        let tasks = &self.engine.state().tasks;
        let now = changed.iter().filter_map(|id| tasks.get(id).map(|task| (*id, task.sequence)));
        self.changes.send_modify(|known| known.extend(now));
    }

    fn dispatch(&self, effects: &[Effect]) {
        for effect in effects {
            // An effect can be overtaken by a later event of its own batch: then there is nothing to do.
            if self.start(*effect) == Some(false) {
                tracing::error!(?effect, "the thread that sees to it is gone");
            }
        }
    }

    /// Hands an effect to its thread, and says whether that is there; `None` if nobody wants the effect any more.
    fn start(&self, effect: Effect) -> Option<bool> {
        let tasks = &self.engine.state().tasks;
        let job = match effect {
            Effect::Disclose { task, round } => {
                let state = tasks.get(&task)?;
                let (spec, holdout) = (state.spec.clone(), state.holdout?);
                let drawn = state.running()?.drawn.clone();
                let job = ShowJob { task, round, spec, holdout, drawn };
                return Some(self.shows.send(job).is_ok());
            }
            Effect::Value { task, round } => {
                let state = tasks.get(&task)?;
                let running = state.running()?;
                let (order, drawn) = (running.order.clone()?, running.drawn.clone());
                let job = ValueJob { task, round, spec: state.spec.clone(), order, drawn };
                return Some(self.values.send(job));
            }
            Effect::Post { task, round } => {
                let state = tasks.get(&task)?;
                let past = state.past(round)?;
                let earlier = state.unsettled.range(..round).next_back();
                let before = earlier.and_then(|(round, _)| state.past(*round));
                let before = before.map(|past| (past.report.scope.round, past.report.payout));
                LedgerJob::Post { settlement: settlement(&past.report, past.digest), before }
            }
            Effect::Finalize { task, round } => {
                let payout = tasks.get(&task)?.past(round)?.report.payout;
                LedgerJob::Finalize { task, round, payout }
            }
            Effect::Close { task } => LedgerJob::Close { task },
            Effect::Prove { task, round } => {
                let state = tasks.get(&task)?;
                let standings = state.standings.clone().filter(|known| known.round == round)?;
                LedgerJob::Prove(Debits::of(standings, state.to_prove()))
            }
            Effect::Keep { task, round } => {
                let past = Box::new(tasks.get(&task)?.past(round)?.clone());
                return Some(self.keeps.send(KeepJob { task, round, past }).is_ok());
            }
        };
        Some(self.ledger.send(job).is_ok())
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
