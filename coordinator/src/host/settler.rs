//! The ledger thread: posts settlements and deposits the bond that covers them, finalises them after
//! their challenge window, proves their debits, closes tasks and withdraws the bond. Before it repeats a transaction it reads the ledger's state, so every
//! step is idempotent.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use florin_ledger::{Ledger, LedgerError, Refusal, Settlement, SettlementStatus};
use florin_protocol::{ErrorCode, RoundNumber, SettlementId, TaskId, WalletSigner};

use super::EngineSender;
use super::bond;
use super::prover::{ProofProgress, UnprovenDebits};
use super::retry_queue::{RetryJob, RetryQueue, RetryReason};
use crate::trace;
use florin_engine::Event;

/// Pause before a refused transaction is retried: only another account's transaction can change the
/// ledger's state that caused the refusal.
pub const REFUSED_RETRY_PAUSE: Duration = Duration::from_secs(60);
/// Pause while too many settlements are in their challenge windows.
const LIMIT_RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Polling interval for a settlement in its challenge window: the longest time for which a round
/// can run on top of a settlement that the arbiter has cancelled.
pub const CHALLENGE_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// A job of the ledger thread.
#[derive(Clone, Debug)]
pub enum LedgerJob {
    /// Post a settlement.
    Post {
        /// The settlement.
        settlement: Settlement,
        /// The preceding settlement, unless that is known to be final.
        predecessor: Option<(RoundNumber, SettlementId)>,
    },
    /// Finalise a settlement after its challenge window.
    Finalize {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
        /// The settlement's payout id.
        payout: SettlementId,
    },
    /// Close a task.
    Close {
        /// The task.
        task: TaskId,
    },
    /// Prove debits.
    Prove(UnprovenDebits),
    /// Withdraw the coordinator's bond from a closed task.
    ReturnBond {
        /// The task.
        task: TaskId,
    },
}

/// The job's name in the log.
impl fmt::Display for LedgerJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Post { settlement: Settlement { task, round, .. }, .. } => {
                write!(f, "post round {round} of task {task}")
            }
            Self::Finalize { task, round, .. } => {
                write!(f, "finalise round {round} of task {task}")
            }
            Self::Close { task } => write!(f, "close task {task}"),
            Self::Prove(debits) => write!(f, "prove the debits of task {}", debits.task()),
            Self::ReturnBond { task } => write!(f, "withdraw the bond from task {task}"),
        }
    }
}

impl LedgerJob {
    /// The span of one call.
    fn span(&self) -> tracing::Span {
        match self {
            Self::Post { settlement: Settlement { task, round, .. }, .. } => {
                trace::ledger_call("post", *task, Some(*round))
            }
            Self::Finalize { task, round, .. } => {
                trace::ledger_call("finalize", *task, Some(*round))
            }
            Self::Prove(debits) => trace::ledger_call("prove", debits.task(), Some(debits.round())),
            Self::Close { task } => trace::ledger_call("close", *task, None),
            Self::ReturnBond { task } => trace::ledger_call("return-bond", *task, None),
        }
    }
}

/// The progress of a job.
#[derive(Clone, Debug)]
pub enum JobProgress {
    /// The job is done: send this event to the engine.
    Done(Box<Event>),
    /// The job continues after this pause.
    Wait(Duration),
}

pub(super) fn done(event: Event) -> JobProgress {
    JobProgress::Done(Box::new(event))
}

/// The ledger thread.
pub(super) fn run(
    jobs: Receiver<LedgerJob>,
    ledger: &Arc<dyn Ledger>,
    wallet: &Arc<dyn WalletSigner>,
    mailbox: &EngineSender,
) {
    let mut jobs = RetryQueue::new(jobs);
    resume(ledger.as_ref(), wallet.as_ref());
    while let Some(mut job) = jobs.next() {
        let call = job.job.span();
        match call.in_scope(|| advance(&mut job.job, ledger.as_ref(), wallet.as_ref())) {
            Ok(JobProgress::Wait(wait)) => jobs.requeue_after(job, wait),
            Ok(JobProgress::Done(event)) => send_result(mailbox, &mut jobs, job, *event),
            Err(LedgerError::Unavailable(why)) => {
                tracing::warn!(job = %job.job, reason = why, "the ledger does not respond: will retry");
                jobs.retry(job, &RetryReason::Transient(why));
                resume(ledger.as_ref(), wallet.as_ref());
            }
            Err(error) => {
                tracing::error!(job = %job.job, %error, "refused by the ledger: will retry");
                jobs.requeue_after(job, REFUSED_RETRY_PAUSE);
            }
        }
    }
}

/// Confirms transactions that were sent before, and resends those that a reorganisation removed,
/// before the next job.
fn resume(ledger: &dyn Ledger, wallet: &dyn WalletSigner) {
    if let Err(error) = ledger.resume(wallet) {
        tracing::warn!(%error, "earlier ledger transactions are not confirmed yet");
    }
}

fn send_result(
    mailbox: &EngineSender,
    jobs: &mut RetryQueue<LedgerJob>,
    job: RetryJob<LedgerJob>,
    event: Event,
) {
    match mailbox.write(event) {
        Err(rejection)
            if matches!(rejection.code, ErrorCode::StorageFull | ErrorCode::Internal) =>
        {
            // The job is idempotent: a retry gets the same result from the ledger.
            jobs.retry(job, &RetryReason::Transient(rejection.message));
        }
        Err(rejection) => tracing::warn!(job = %job.job, %rejection, "the result is obsolete"),
        Ok(_) => {}
    }
}

/// Advances a job as far as possible now. It reads the ledger's state before it repeats a
/// transaction, so any step is idempotent.
///
/// # Errors
/// [`LedgerError`].
pub fn advance(
    job: &mut LedgerJob,
    ledger: &dyn Ledger,
    wallet: &dyn WalletSigner,
) -> Result<JobProgress, LedgerError> {
    match job {
        LedgerJob::Post { settlement, predecessor: before } => {
            post(settlement, *before, ledger, wallet)
        }
        LedgerJob::Finalize { task, round, payout } => {
            finalize(*task, *round, *payout, ledger, wallet)
        }
        LedgerJob::Close { task } => match ledger.close(wallet, *task) {
            Ok(refund) => Ok(done(Event::TaskClosed { task: *task, refund })),
            Err(LedgerError::Refused(Refusal::TaskClosed(_))) => task_closed(*task, ledger),
            Err(LedgerError::Refused(Refusal::SettlementsPending(_))) => {
                Ok(JobProgress::Wait(Duration::from_secs(1)))
            }
            Err(LedgerError::Refused(Refusal::TooEarly { .. })) => {
                announce_close(*task, ledger, wallet)
            }
            Err(error) => Err(error),
        },
        LedgerJob::ReturnBond { task } => bond::withdraw(*task, ledger, wallet),
        LedgerJob::Prove(debits) => Ok(match debits.prove_next(ledger, wallet)? {
            ProofProgress::All => {
                done(Event::DebitsProven { task: debits.task(), round: debits.round() })
            }
            ProofProgress::Some => JobProgress::Wait(Duration::ZERO),
            ProofProgress::RootMismatch => {
                // After a chain reorganisation the round's settlement may need finalising again.
                ledger.finalize(wallet, debits.task())?;
                JobProgress::Wait(CHALLENGE_POLL_INTERVAL)
            }
        }),
    }
}

/// Announces the close of a task that ends before its last round, or waits for the announced moment.
/// An objection withdraws the announcement, which is then repeated: after the task's expiry the close
/// needs none.
fn announce_close(
    task: TaskId,
    ledger: &dyn Ledger,
    wallet: &dyn WalletSigner,
) -> Result<JobProgress, LedgerError> {
    let closes_at = ledger.task(task)?.and_then(|state| state.closes_at);
    let Some(closes_at) = closes_at else {
        return match ledger.announce_close(wallet, task) {
            Ok(_) => {
                tracing::info!(%task, "announced the close; it follows after the challenge window");
                Ok(JobProgress::Wait(CHALLENGE_POLL_INTERVAL))
            }
            Err(LedgerError::Refused(Refusal::SettlementsPending(_))) => {
                ledger.finalize(wallet, task)?;
                Ok(JobProgress::Wait(CHALLENGE_POLL_INTERVAL))
            }
            Err(LedgerError::Refused(Refusal::TaskClosed(_))) => task_closed(task, ledger),
            Err(error) => Err(error),
        };
    };
    let left = closes_at.ms_since(ledger.now()?).saturating_add(1);
    Ok(JobProgress::Wait(Duration::from_millis(left).min(CHALLENGE_POLL_INTERVAL)))
}

fn post(
    settlement: &Settlement,
    before: Option<(RoundNumber, SettlementId)>,
    ledger: &dyn Ledger,
    wallet: &dyn WalletSigner,
) -> Result<JobProgress, LedgerError> {
    let (task, round) = (settlement.task, settlement.round);
    if let Some(cancelled) = check_cancelled(task, before, ledger)? {
        return Ok(cancelled);
    }
    match ledger.post(wallet, settlement) {
        Ok(_) => Ok(done(Event::SettlementPosted { task, round })),
        Err(LedgerError::Refused(refusal)) => match refusal {
            Refusal::TaskClosed(_) => task_closed(task, ledger),
            // The coordinator's bond does not cover the settlement.
            Refusal::TooSmall { .. } => bond::deposit_for(settlement, ledger, wallet),
            // Too many settlements are in their challenge windows: one of them will become final.
            Refusal::LimitExceeded(_) => Ok(JobProgress::Wait(LIMIT_RETRY_PAUSE)),
            Refusal::InvalidSettlement { .. } | Refusal::ConflictingSettlement(_) => {
                // The preceding settlement may have been cancelled just now.
                if let Some(cancelled) = check_cancelled(task, before, ledger)? {
                    return Ok(cancelled);
                }
                tracing::error!(%task, %round, %refusal, "cannot be settled: ending the task");
                Ok(done(Event::SettlementRejected { task, round }))
            }
            other => Err(other.into()),
        },
        Err(error) => Err(error),
    }
}

/// Returns the cancellation event if the ledger does not hold the settlement any more.
fn check_cancelled(
    task: TaskId,
    settlement: Option<(RoundNumber, SettlementId)>,
    ledger: &dyn Ledger,
) -> Result<Option<JobProgress>, LedgerError> {
    let Some((round, payout)) = settlement else {
        return Ok(None);
    };
    let status = ledger.settlement_status(task, payout)?;
    Ok((status == SettlementStatus::Unknown).then(|| settlement_cancelled(task, round)))
}

fn settlement_cancelled(task: TaskId, round: RoundNumber) -> JobProgress {
    tracing::error!(%task, %round, "the ledger has cancelled the settlement: ending the task");
    done(Event::SettlementCancelled { task, round })
}

fn finalize(
    task: TaskId,
    round: RoundNumber,
    payout: SettlementId,
    ledger: &dyn Ledger,
    wallet: &dyn WalletSigner,
) -> Result<JobProgress, LedgerError> {
    if let Some(decided) = final_or_cancelled(task, round, payout, ledger)? {
        return Ok(decided);
    }
    let now = ledger.now()?;
    let state = ledger.task(task)?;
    let pending = state.iter().flat_map(|state| &state.pending);
    let window = pending.filter(|p| p.settlement.payout == payout).map(|p| p.final_at).max();
    if let Some(final_at) = window
        && now <= final_at
    {
        let left = final_at.ms_since(now).saturating_add(1);
        return Ok(JobProgress::Wait(Duration::from_millis(left).min(CHALLENGE_POLL_INTERVAL)));
    }
    ledger.finalize(wallet, task)?;
    Ok(final_or_cancelled(task, round, payout, ledger)?
        .unwrap_or(JobProgress::Wait(Duration::from_millis(10))))
}

fn final_or_cancelled(
    task: TaskId,
    round: RoundNumber,
    payout: SettlementId,
    ledger: &dyn Ledger,
) -> Result<Option<JobProgress>, LedgerError> {
    Ok(match ledger.settlement_status(task, payout)? {
        SettlementStatus::Final => Some(done(Event::SettlementFinal { task, round })),
        SettlementStatus::Unknown => Some(settlement_cancelled(task, round)),
        SettlementStatus::Pending => None,
    })
}

/// Another account has closed the task, as any account may after its expiry.
fn task_closed(task: TaskId, ledger: &dyn Ledger) -> Result<JobProgress, LedgerError> {
    let refund = ledger.task(task)?.map(|state| state.refunded).unwrap_or_default();
    Ok(done(Event::TaskClosed { task, refund }))
}
