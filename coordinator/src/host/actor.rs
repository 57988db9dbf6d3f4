//! The actor thread that owns the engine and its journal.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use florin_protocol::{TaskId, Timestamp};
use tokio::sync::{mpsc, oneshot, watch};

use super::archive::KeepJob;
use super::discloser::ShowJob;
use super::jobs::Job;
use super::keeper::Keeper;
use super::lanes::Lanes;
use super::settler::LedgerJob;
use super::turn::{Asked, Core, Next, Turn};
use super::valuer::ValueJob;
use super::{Answer, Clock, Command, Copier, Question, Sequences, Vitals};
use crate::backup::{BackupError, Moment};
use crate::identity::Identity;
use florin_engine::Effect;
use florin_store::gather::Gather;

/// Most commands that share one fsync.
const BATCH_MAX: usize = 256;
/// Longest sleep between two readings of the clock, which may jump.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Pause before due deadlines are retried while the journal accepts no records.
const STUCK_WAIT: Duration = Duration::from_secs(1);

pub(super) struct Actor {
    pub(super) core: Core,
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

/// A batch of commands, sorted by kind; each kind keeps its order.
#[derive(Default)]
struct Batch {
    asked: Vec<Asked>,
    answers: Vec<Answer>,
    questions: Vec<Question>,
    cuts: Vec<oneshot::Sender<Result<Moment, BackupError>>>,
    stop: bool,
}

impl Batch {
    fn of(commands: &mut Vec<Command>) -> Self {
        let mut batch = Self::default();
        for command in commands.drain(..) {
            match command {
                Command::Ask(asked, answer) => {
                    batch.asked.push(asked);
                    batch.answers.push(answer);
                }
                Command::Read(question) => batch.questions.push(question),
                Command::Cut(answer) => batch.cuts.push(answer),
                Command::Wake => {}
                Command::Stop => batch.stop = true,
            }
        }
        batch
    }
}

/// Drains further commands up to the size of a batch.
fn take_more(queue: &mut mpsc::Receiver<Command>, commands: &mut Vec<Command>) {
    while commands.len() < BATCH_MAX
        && let Ok(next) = queue.try_recv()
    {
        commands.push(next);
    }
}

impl Actor {
    pub(super) fn run(mut self, queue: mpsc::Receiver<Command>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        match runtime {
            Ok(runtime) => runtime.block_on(self.serve(queue)),
            Err(error) => tracing::error!(%error, "the engine's thread cannot create a timer"),
        }
    }

    async fn serve(&mut self, mut queue: mpsc::Receiver<Command>) {
        let outstanding = self.core.engine().outstanding();
        self.dispatch(&outstanding);
        let mut commands = Vec::with_capacity(BATCH_MAX);
        let (mut least, mut gather) = (Duration::ZERO, Gather::default());
        loop {
            let sleep = self.until_deadline().max(least);
            tokio::select! {
                biased;
                taken = queue.recv_many(&mut commands, BATCH_MAX) => {
                    if taken == 0 {
                        return;
                    }
                    if commands.len() < BATCH_MAX {
                        gather.wait();
                    }
                    take_more(&mut queue, &mut commands);
                }
                () = tokio::time::sleep(sleep) => {}
            }
            let asked = commands.iter().filter(|one| matches!(one, Command::Ask(..))).count();
            gather.shared(asked);
            least = match self.batch(&mut commands) {
                Next::GoOn => Duration::ZERO,
                Next::Stuck => STUCK_WAIT,
                Next::Stop => return,
            };
        }
    }

    fn until_deadline(&self) -> Duration {
        let now = self.clock.now();
        let deadline = self.core.engine().next_deadline();
        let left = deadline.map(|at| Duration::from_millis(at.ms_since(now)));
        left.unwrap_or(SLEEP_MAX).min(SLEEP_MAX)
    }

    /// Applies due deadlines and queued commands, makes them durable, then replies.
    fn batch(&mut self, commands: &mut Vec<Command>) -> Next {
        let now = self.clock.now();
        let mut batch = Batch::of(commands);
        let turn = self.turn(std::mem::take(&mut batch.asked), now);
        self.vitals.refused(turn.refusal.as_deref());
        let next = if batch.stop { Next::Stop } else { turn.next };
        if turn.next == Next::GoOn {
            let (engine, journal) = self.core.parts();
            self.keeper.see(journal, engine);
        }
        self.dispatch(&turn.effects);
        self.announce(&turn.changed);
        for (answer, result) in batch.answers.into_iter().zip(turn.answers) {
            // The receiver is gone if the client has disconnected.
            let _ = answer.send(result);
        }
        // An engine that could not be rebuilt from the journal contains state that is not durable:
        // drop the queries, so that their clients receive "stopping".
        let questions = if turn.next == Next::Stop { Vec::new() } else { batch.questions };
        for question in questions {
            question(self.core.engine(), turn.now);
        }
        for cut in batch.cuts {
            let _ = cut.send(self.cut());
        }
        next
    }

    fn turn(&mut self, asked: Vec<Asked>, now: Timestamp) -> Turn {
        let vitals = &self.vitals;
        self.core.turn(asked, now, &mut |journal, records| {
            let begun = Instant::now();
            let appended = journal.append(records);
            match &appended {
                Ok(()) => vitals.committed(records.len(), begun.elapsed()),
                Err(_) => {
                    vitals.failed.inc();
                }
            }
            appended
        })
    }

    /// The point in time of a backup. No event, reply or effect passes while this runs.
    fn cut(&mut self) -> Result<Moment, BackupError> {
        let (engine, journal) = self.core.parts();
        let at = journal.cut().map_err(|error| BackupError::Journal(error.to_string()))?;
        let identity = Identity { market: engine.market(), coordinator: engine.coordinator() };
        let chain = self.copier.as_ref().map(|copier| copier()).transpose()?;
        Ok(Moment { identity, at, running: true, chain })
    }

    fn announce(&self, changed: &[TaskId]) {
        if changed.is_empty() {
            return;
        }
        let tasks = &self.core.engine().state().tasks;
        let now = changed.iter().filter_map(|id| tasks.get(id).map(|task| (*id, task.sequence)));
        self.changes.send_modify(|known| known.extend(now));
    }

    fn dispatch(&self, effects: &[Effect]) {
        for effect in effects {
            // A later event of the same batch may have made the effect obsolete.
            let Some(job) = Job::of(self.core.engine(), *effect) else { continue };
            let is_there = match job {
                Job::Show(job) => self.shows.send(*job).is_ok(),
                Job::Value(job) => self.values.send(*job),
                Job::Keep(job) => self.keeps.send(*job).is_ok(),
                Job::Ledger(job) => self.ledger.send(*job).is_ok(),
            };
            if !is_there {
                tracing::error!(?effect, "the worker thread for this effect has ended");
            }
        }
    }
}
