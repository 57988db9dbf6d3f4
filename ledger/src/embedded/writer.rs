//! The single writer: collects concurrent submissions into one block and makes it durable before it
//! acknowledges them (group commit).

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};

use florin_protocol::{NodeSigner, Signed, Timestamp};

use crate::api::{LedgerError, Refusal, TxId};
use crate::embedded::block::{BlockHeader, ChainHead, sign_block, transactions_digest};
use crate::embedded::ledger_file::AcknowledgedBlock;
use crate::embedded::replay::RecentOutcomes;
use crate::embedded::store::Store;
use crate::embedded::{ChainError, LedgerClock};
use crate::limits::{BLOCK_BYTES_MAX, BLOCK_TRANSACTIONS_MAX, QUEUE_MAX};
use crate::state::{
    AppliedTransaction, ApplyError, Changes, Draft, LedgerState, TableRows, changes_digest,
};
use crate::transaction::{SignedTransaction, TransactionOutcome, VerifiedTransaction};

/// The published state that readers see: only durable changes.
#[derive(Debug)]
pub(crate) struct PublishedState {
    pub(crate) state: LedgerState,
    pub(crate) head: ChainHead,
    pub(crate) recent: RecentOutcomes,
    /// The reason why the writer is poisoned, after a failure.
    pub(crate) poisoned: Option<PoisonReason>,
}

/// The reason why a chain accepts no transactions until it is opened again.
#[derive(Clone, Debug)]
pub(crate) enum PoisonReason {
    /// The disk failed: it is unknown whether the last block is durable.
    Storage(String),
    /// The account balances are inconsistent.
    Inconsistent(String),
}

impl PoisonReason {
    pub(crate) fn error(&self) -> LedgerError {
        match self {
            Self::Storage(what) => LedgerError::Unavailable(what.clone()),
            Self::Inconsistent(what) => LedgerError::Corrupt(what.clone()),
        }
    }
}

/// The results of a submission, in its order.
pub(crate) type SubmissionResults = Vec<Result<TransactionOutcome, Refusal>>;

/// Transactions for one block, and the channel for their results.
pub(crate) struct WriteJob {
    transactions: Vec<VerifiedTransaction>,
    reply: SyncSender<Result<SubmissionResults, LedgerError>>,
}

impl WriteJob {
    fn bytes(&self) -> usize {
        self.transactions.iter().fold(0usize, |sum, t| sum.saturating_add(t.bytes()))
    }
}

/// Writes blocks: the only code that changes a chain.
pub(crate) struct Writer {
    pub(crate) store: Arc<Store>,
    pub(crate) published: Arc<RwLock<PublishedState>>,
    pub(crate) operator: NodeSigner,
    pub(crate) clock: LedgerClock,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("operator", &self.operator).finish_non_exhaustive()
    }
}

/// A block that is executed and not durable yet.
struct PreparedBlock {
    answers: SubmissionResults,
    outcomes: Vec<(TxId, TransactionOutcome)>,
    accepted: Vec<SignedTransaction>,
    changes: Changes,
    rows: Vec<TableRows>,
    head: ChainHead,
    time: Timestamp,
}

impl Writer {
    /// Executes transactions as one block. Transactions that are refused or change nothing are left
    /// out; if none remains, no block is written.
    pub(crate) fn write(
        &self,
        transactions: Vec<VerifiedTransaction>,
    ) -> Result<SubmissionResults, LedgerError> {
        let decided = self.prepare_block(transactions)?;
        if decided.accepted.is_empty() {
            return Ok(decided.answers);
        }
        self.commit_block(decided).inspect_err(|error| {
            let halt = match error {
                LedgerError::Corrupt(what) => PoisonReason::Inconsistent(what.clone()),
                LedgerError::Unavailable(what) => PoisonReason::Storage(what.clone()),
                other => PoisonReason::Storage(other.to_string()),
            };
            self.poison(halt);
        })
    }

    /// Executes every transaction on top of the previous ones, without changing the published
    /// state.
    fn prepare_block(
        &self,
        transactions: Vec<VerifiedTransaction>,
    ) -> Result<PreparedBlock, LedgerError> {
        let live = self.published.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(halt) = &live.poisoned {
            return Err(halt.error());
        }
        let time = (self.clock)().max(live.head.time);
        let mut draft = Draft::new(&live.state);
        let mut answers = Vec::with_capacity(transactions.len());
        let (mut outcomes, mut accepted) = (Vec::new(), Vec::new());
        for checked in transactions {
            match draft.apply(checked.transaction(), time) {
                Ok(AppliedTransaction { outcome, changed, .. }) => {
                    answers.push(Ok(outcome));
                    if changed {
                        outcomes.push((checked.id(), outcome));
                        accepted.push(checked.into_signed());
                    }
                }
                Err(ApplyError::Refused(refusal)) => answers.push(Err(refusal)),
                Err(ApplyError::Inconsistent(what)) => {
                    drop(live);
                    self.poison(PoisonReason::Inconsistent(what.clone()));
                    return Err(LedgerError::Corrupt(what));
                }
            }
        }
        let changes = draft.into_changes();
        let rows = changes.rows().map_err(ChainError::from)?;
        Ok(PreparedBlock { answers, outcomes, accepted, changes, rows, head: live.head, time })
    }

    /// Signs and commits the block, publishes its state, and records it as acknowledged.
    fn commit_block(&self, decided: PreparedBlock) -> Result<SubmissionResults, LedgerError> {
        let PreparedBlock { answers, outcomes, accepted, changes, rows, head, time } = decided;
        let number = head.number.checked_add(1).ok_or_else(|| {
            LedgerError::Corrupt("the chain has used all of its block numbers".to_owned())
        })?;
        let bytes = borsh::to_vec(&accepted).map_err(ChainError::from)?;
        let header = BlockHeader {
            number,
            parent: head.digest,
            time,
            transactions: transactions_digest(&bytes),
            changes: changes_digest(&rows),
        };
        let sealed = sign_block(header, &bytes, |header| {
            let Signed { signature, .. } = self.operator.sign(*header);
            signature
        });
        let head = ChainHead::from_header(&sealed.header);
        self.store.commit(number, &sealed.bytes, &rows)?;
        {
            let mut live = self.published.write().unwrap_or_else(PoisonError::into_inner);
            live.state.merge(changes);
            live.head = head;
            live.recent.add(outcomes);
        }
        self.store.record_acknowledged(AcknowledgedBlock { number, digest: head.digest })?;
        Ok(answers)
    }

    /// Poisons the writer; the first reason stays.
    fn poison(&self, halt: PoisonReason) {
        tracing::error!(?halt, "the ledger accepts no transactions until it is opened again");
        let mut live = self.published.write().unwrap_or_else(PoisonError::into_inner);
        live.poisoned.get_or_insert(halt);
    }

    /// Processes jobs until every sender is dropped. All jobs that are queued when a block begins
    /// become part of it: callers that arrive together share one commit, and no job waits for later
    /// ones.
    fn run(&self, jobs: &Receiver<WriteJob>) {
        let mut waiting: Option<WriteJob> = None;
        while let Some(first) = waiting.take().or_else(|| jobs.recv().ok()) {
            let mut count = first.transactions.len();
            let mut bytes = first.bytes();
            let mut gathered = vec![first];
            while count < BLOCK_TRANSACTIONS_MAX {
                let Ok(next) = jobs.try_recv() else { break };
                count = count.saturating_add(next.transactions.len());
                bytes = bytes.saturating_add(next.bytes());
                if count > BLOCK_TRANSACTIONS_MAX || bytes > BLOCK_BYTES_MAX {
                    waiting = Some(next);
                    break;
                }
                gathered.push(next);
            }
            self.write_batch(gathered);
        }
    }

    /// Writes one block for the jobs and sends each its results.
    fn write_batch(&self, jobs: Vec<WriteJob>) {
        let mut transactions = Vec::new();
        let mut replies = Vec::with_capacity(jobs.len());
        for job in jobs {
            replies.push((job.transactions.len(), job.reply));
            transactions.extend(job.transactions);
        }
        let mut result = self.write(transactions).map(Vec::into_iter);
        for (count, reply) in replies {
            let answer = match &mut result {
                Ok(answers) => Ok(answers.by_ref().take(count).collect()),
                Err(LedgerError::Corrupt(what)) => Err(LedgerError::Corrupt(what.clone())),
                Err(LedgerError::Unavailable(what)) => Err(LedgerError::Unavailable(what.clone())),
                Err(other) => Err(LedgerError::Unavailable(other.to_string())),
            };
            // A caller that has stopped waiting can query the transaction's status.
            _ = reply.send(answer);
        }
    }
}

/// The writer's thread and its queue. Dropping it waits until the thread has processed the queued
/// jobs.
#[derive(Debug)]
pub(crate) struct WriterQueue {
    jobs: Option<SyncSender<WriteJob>>,
    thread: Option<JoinHandle<()>>,
}

impl WriterQueue {
    pub(crate) fn start(writer: Writer) -> Result<Self, ChainError> {
        let (jobs, receiver) = sync_channel(QUEUE_MAX);
        let thread = thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || writer.run(&receiver))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Queues transactions, at most one block's worth, and waits for the results.
    pub(crate) fn submit(
        &self,
        transactions: Vec<VerifiedTransaction>,
    ) -> Result<SubmissionResults, LedgerError> {
        self.send(transactions)?.recv().map_err(|_| writer_stopped())?
    }

    /// Queues transactions, at most one block's worth. The results arrive on the returned channel.
    pub(crate) fn send(
        &self,
        transactions: Vec<VerifiedTransaction>,
    ) -> Result<Receiver<Result<SubmissionResults, LedgerError>>, LedgerError> {
        let (reply, answers) = sync_channel(1);
        let jobs = self.jobs.as_ref().ok_or_else(writer_stopped)?;
        jobs.send(WriteJob { transactions, reply }).map_err(|_| writer_stopped())?;
        Ok(answers)
    }
}

/// The error for callers after the writer's thread has ended.
pub(crate) fn writer_stopped() -> LedgerError {
    LedgerError::Unavailable("the ledger's writer has stopped: restart the coordinator".to_owned())
}

impl Drop for WriterQueue {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // The thread has reported its panic already.
            _ = thread.join();
        }
    }
}
