//! The actor thread that owns the engine and its journal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use florin_protocol::{TaskId, Timestamp};
use tokio::sync::{mpsc, oneshot, watch};

use super::archive::ArchiveJob;
use super::batch::{BatchOutcome, EngineRequest, JournaledEngine, NextStep};
use super::checkpoint::{BackupPoint, CheckpointError};
use super::discloser::DisclosureJob;
use super::jobs::EffectJob;
use super::settler::LedgerJob;
use super::snapshotter::Snapshotter;
use super::valuer::ValuationJob;
use super::{
    Clock, Command, EngineQuery, JournalMetrics, LedgerCopier, Sequences, WriteReplySender,
};
use crate::identity::Identity;
use crate::trace::{self, TracedPhases};
use florin_engine::Effect;
use florin_store::group_commit::GroupCommit;

/// Most commands that share one fsync.
const BATCH_MAX: usize = 256;
/// Longest sleep between two readings of the clock, which may jump.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Pause before due deadlines are retried while the journal accepts no records.
const JOURNAL_RETRY_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Actor {
    pub(super) core: JournaledEngine,
    pub(super) snapshotter: Snapshotter,
    pub(super) ledger_copier: Option<LedgerCopier>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) changes: watch::Sender<Sequences>,
    pub(super) valuation_jobs: Sender<ValuationJob>,
    pub(super) disclosure_jobs: Sender<DisclosureJob>,
    pub(super) archive_jobs: Sender<ArchiveJob>,
    pub(super) ledger: Sender<LedgerJob>,
    pub(super) journal_metrics: JournalMetrics,
    pub(super) traced: TracedPhases,
}

/// A batch of commands, sorted by kind; each kind keeps its order.
#[derive(Default)]
struct CommandBatch {
    requests: Vec<EngineRequest>,
    reply_senders: Vec<WriteReplySender>,
    queries: Vec<EngineQuery>,
    checkpoints: Vec<oneshot::Sender<Result<BackupPoint, CheckpointError>>>,
    stop: bool,
}

impl CommandBatch {
    fn from_commands(commands: &mut Vec<Command>) -> Self {
        let mut batch = Self::default();
        for command in commands.drain(..) {
            match command {
                Command::Write(asked, answer) => {
                    batch.requests.push(asked);
                    batch.reply_senders.push(answer);
                }
                Command::Query(question) => batch.queries.push(question),
                Command::Checkpoint(answer) => batch.checkpoints.push(answer),
                Command::Wake => {}
                Command::Stop => batch.stop = true,
            }
        }
        batch
    }
}

/// Drains further commands up to the size of a batch.
fn drain_queue(queue: &mut mpsc::Receiver<Command>, commands: &mut Vec<Command>) {
    while commands.len() < BATCH_MAX
        && let Ok(next) = queue.try_recv()
    {
        commands.push(next);
    }
}

/// Closes the queue, and drops what is in it and what its senders are about to write into it, so that
/// each of them learns that no answer comes. Dropping the receiver alone would leave a command that
/// is written at this moment in the queue, and its sender, which waits for an answer, would keep the
/// queue alive.
async fn drop_rest<T>(mut queue: mpsc::Receiver<T>) {
    queue.close();
    while queue.recv().await.is_some() {}
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
        let outstanding = self.core.engine().pending_effects();
        self.dispatch(&outstanding);
        let mut commands = Vec::with_capacity(BATCH_MAX);
        let (mut least, mut gather) = (Duration::ZERO, GroupCommit::default());
        loop {
            let sleep = self.until_deadline().max(least);
            tokio::select! {
                biased;
                taken = queue.recv_many(&mut commands, BATCH_MAX) => {
                    if taken == 0 {
                        break;
                    }
                    if commands.len() < BATCH_MAX {
                        gather.wait();
                    }
                    drain_queue(&mut queue, &mut commands);
                }
                () = tokio::time::sleep(sleep) => {}
            }
            let asked = commands.iter().filter(|one| matches!(one, Command::Write(..))).count();
            gather.note_batch(asked);
            least = match self.run_batch(&mut commands) {
                NextStep::Continue => Duration::ZERO,
                NextStep::RetryLater => JOURNAL_RETRY_PAUSE,
                NextStep::Stop => break,
            };
        }
        drop_rest(queue).await;
    }

    fn until_deadline(&self) -> Duration {
        let now = self.clock.now();
        let deadline = self.core.engine().next_deadline();
        let left = deadline.map(|at| Duration::from_millis(at.ms_since(now)));
        left.unwrap_or(SLEEP_MAX).min(SLEEP_MAX)
    }

    /// Applies due deadlines and queued commands, makes them durable, then replies.
    fn run_batch(&mut self, commands: &mut Vec<Command>) -> NextStep {
        let now = self.clock.now();
        let mut batch = CommandBatch::from_commands(commands);
        let turn = self.commit_batch(std::mem::take(&mut batch.requests), now);
        self.journal_metrics.set_error(turn.journal_error.as_deref());
        let next = if batch.stop { NextStep::Stop } else { turn.next };
        if turn.next == NextStep::Continue {
            let (engine, journal) = self.core.parts();
            self.snapshotter.snapshot_if_due(journal, engine);
        }
        self.dispatch(&turn.effects);
        self.announce(&turn.changed_tasks);
        for (answer, result) in batch.reply_senders.into_iter().zip(turn.replies) {
            // The receiver is gone if the client has disconnected.
            let _ = answer.send(result);
        }
        // An engine that could not be rebuilt from the journal contains state that is not durable:
        // drop the queries, so that their clients receive "stopping".
        let questions = if turn.next == NextStep::Stop { Vec::new() } else { batch.queries };
        for question in questions {
            question(self.core.engine(), turn.now);
        }
        for cut in batch.checkpoints {
            let _ = cut.send(self.checkpoint());
        }
        next
    }

    fn commit_batch(&mut self, asked: Vec<EngineRequest>, now: Timestamp) -> BatchOutcome {
        let vitals = &self.journal_metrics;
        self.core.commit_batch(asked, now, &mut |journal, records| {
            let _span = trace::append(records.len()).entered();
            let begun = Instant::now();
            let appended = journal.append(records);
            match &appended {
                Ok(()) => vitals.record_commit(records.len(), begun.elapsed()),
                Err(_) => {
                    vitals.failed_batches.inc();
                }
            }
            appended
        })
    }

    /// The point in time of a backup. No event, reply or effect passes while this runs.
    fn checkpoint(&mut self) -> Result<BackupPoint, CheckpointError> {
        let (engine, journal) = self.core.parts();
        let at = journal.rotate_segment()?;
        let identity = Identity { market: engine.market(), coordinator: engine.coordinator() };
        let chain = self.ledger_copier.as_ref().map(|copier| copier()).transpose()?;
        Ok(BackupPoint { identity, at, running: true, chain, leases: None })
    }

    fn announce(&mut self, changed: &[TaskId]) {
        if changed.is_empty() {
            return;
        }
        let tasks = &self.core.engine().state().tasks;
        for (id, task) in changed.iter().filter_map(|id| Some((*id, tasks.get(id)?))) {
            self.traced.note(id, task);
        }
        let now = changed.iter().filter_map(|id| tasks.get(id).map(|task| (*id, task.sequence)));
        self.changes.send_modify(|known| known.extend(now));
    }

    fn dispatch(&self, effects: &[Effect]) {
        for effect in effects {
            // A later event of the same batch may have made the effect obsolete.
            let Some(job) = EffectJob::from_effect(self.core.engine(), *effect) else { continue };
            let is_there = match job {
                EffectJob::Disclose(job) => self.disclosure_jobs.send(*job).is_ok(),
                EffectJob::Value(job) => self.valuation_jobs.send(*job).is_ok(),
                EffectJob::Archive(job) => self.archive_jobs.send(*job).is_ok(),
                EffectJob::Ledger(job) => self.ledger.send(*job).is_ok(),
            };
            if !is_there {
                tracing::error!(?effect, "the worker thread for this effect has ended");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_that_is_written_during_the_stop_gets_no_answer_and_does_not_wait() {
        let (commands, queue) = mpsc::channel::<oneshot::Sender<()>>(2);
        let (answer, late) = oneshot::channel();
        // The place in the queue is taken before the stop, and filled after it.
        let place = commands.clone().reserve_owned().await.unwrap();
        let stop = tokio::spawn(drop_rest(queue));
        commands.closed().await;
        let sender = place.send(answer);
        let waited = tokio::time::timeout(Duration::from_secs(60), late).await;
        assert!(waited.expect("the sender waits for ever").is_err());
        stop.await.unwrap();
        drop(sender);
    }
}
