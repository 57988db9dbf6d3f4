//! The ledger thread: posts settlements, sees them through their window, proves their debits, closes tasks. What the
//! ledger has is asked for before anything is repeated.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use florin_ledger::{Ledger, LedgerError, Refusal, Settlement, SettlementStatus};
use florin_protocol::{Code, PayoutId, Round, Signer, TaskId};

use super::Mailbox;
use super::delayed::{Again, Delayed, Job};
use super::prover::{Debits, Proven};
use florin_engine::Event;

/// Pause before a refused transaction is tried again: a refusal is a fact about the ledger that only somebody else can
/// change.
pub const REFUSED_WAIT: Duration = Duration::from_secs(60);
/// Pause while too many settlements wait for their windows.
const LIMIT_WAIT: Duration = Duration::from_secs(5);
/// Pause between two looks at a settlement in its challenge window: for so long at most a round can run that is built
/// on a settlement which the arbiter has cancelled.
const WATCH_WAIT: Duration = Duration::from_secs(2);

/// Something to be done on the ledger.
#[derive(Clone, Debug)]
pub enum LedgerJob {
    /// Post a settlement.
    Post {
        /// Which.
        settlement: Settlement,
        /// The settlement that this one is built on, unless that is known to be final.
        before: Option<(Round, PayoutId)>,
    },
    /// See a settlement through its window.
    Finalize {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
        /// Its name.
        payout: PayoutId,
    },
    /// Close a task.
    Close {
        /// Which.
        task: TaskId,
    },
    /// Prove debits.
    Prove(Debits),
}

/// As the log names it.
impl fmt::Display for LedgerJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Post { settlement: Settlement { task, round, .. }, .. } => {
                write!(f, "post round {round} of task {task}")
            }
            Self::Finalize { task, round, .. } => {
                write!(f, "make round {round} of task {task} final")
            }
            Self::Close { task } => write!(f, "close task {task}"),
            Self::Prove(debits) => write!(f, "prove the debits of task {}", debits.task()),
        }
    }
}

/// How a job went.
#[derive(Clone, Debug)]
pub enum Step {
    /// It is done, and the engine is to be told so.
    Done(Box<Event>),
    /// It goes on after this pause.
    Wait(Duration),
}

fn done(event: Event) -> Step {
    Step::Done(Box::new(event))
}

/// The ledger thread.
pub(super) fn work(
    jobs: Receiver<LedgerJob>,
    ledger: &Arc<dyn Ledger>,
    wallet: &Arc<dyn Signer>,
    mailbox: &Mailbox,
) {
    let mut jobs = Delayed::new(jobs);
    resume(ledger.as_ref(), wallet.as_ref());
    while let Some(mut job) = jobs.next() {
        match step(&mut job.what, ledger.as_ref(), wallet.as_ref()) {
            Ok(Step::Wait(wait)) => jobs.later(job, wait),
            Ok(Step::Done(event)) => tell(mailbox, &mut jobs, job, *event),
            Err(LedgerError::Unavailable(why)) => {
                tracing::warn!(job = %job.what, why, "the ledger does not answer; trying again");
                jobs.again(job, &Again::Waits(why));
                resume(ledger.as_ref(), wallet.as_ref());
            }
            Err(error) => {
                tracing::error!(job = %job.what, %error, "the ledger refuses what the round came to");
                jobs.later(job, REFUSED_WAIT);
            }
        }
    }
}

/// What was sent and not seen through, or undone since, comes before what is asked for next.
fn resume(ledger: &dyn Ledger, wallet: &dyn Signer) {
    if let Err(error) = ledger.resume(wallet) {
        tracing::warn!(%error, "what was sent to the ledger earlier is not seen through yet");
    }
}

fn tell(mailbox: &Mailbox, jobs: &mut Delayed<LedgerJob>, job: Job<LedgerJob>, event: Event) {
    match mailbox.write(event) {
        Err(rejection) if matches!(rejection.code, Code::StorageFull | Code::Internal) => {
            // Asked again, the ledger gives the same answer.
            jobs.again(job, &Again::Waits(rejection.message));
        }
        Err(rejection) => tracing::warn!(job = %job.what, %rejection, "nobody waits for this"),
        Ok(_) => {}
    }
}

/// Does what can be done of a job now. What the ledger has is asked for before anything is repeated, so that any step may
/// be done again.
///
/// # Errors
/// [`LedgerError`].
pub fn step(
    job: &mut LedgerJob,
    ledger: &dyn Ledger,
    wallet: &dyn Signer,
) -> Result<Step, LedgerError> {
    match job {
        LedgerJob::Post { settlement, before } => post(settlement, *before, ledger, wallet),
        LedgerJob::Finalize { task, round, payout } => {
            finalize(*task, *round, *payout, ledger, wallet)
        }
        LedgerJob::Close { task } => match ledger.close(wallet, *task) {
            Ok(refund) => Ok(done(Event::Closed { task: *task, refund })),
            Err(LedgerError::Refused(Refusal::TaskClosed(_))) => closed(*task, ledger),
            Err(LedgerError::Refused(Refusal::Pending(_))) => {
                Ok(Step::Wait(Duration::from_secs(1)))
            }
            Err(error) => Err(error),
        },
        LedgerJob::Prove(debits) => Ok(match debits.prove_some(ledger, wallet)? {
            Proven::All => done(Event::DebitsProven { task: debits.task(), round: debits.round() }),
            Proven::Some => Step::Wait(Duration::ZERO),
            Proven::NotNow => {
                // The round's settlement may have to be made final once more: a chain can be reorganised.
                ledger.finalize(wallet, debits.task())?;
                Step::Wait(WATCH_WAIT)
            }
        }),
    }
}

fn post(
    settlement: &Settlement,
    before: Option<(Round, PayoutId)>,
    ledger: &dyn Ledger,
    wallet: &dyn Signer,
) -> Result<Step, LedgerError> {
    let (task, round) = (settlement.task, settlement.round);
    if let Some(cancelled) = cancelled(task, before, ledger)? {
        return Ok(cancelled);
    }
    match ledger.post(wallet, settlement) {
        Ok(_) => Ok(done(Event::SettlementPosted { task, round })),
        Err(LedgerError::Refused(refusal)) => match refusal {
            Refusal::TaskClosed(_) => closed(task, ledger),
            // Too many settlements wait for their windows: one of them will be final.
            Refusal::Limit(_) => Ok(Step::Wait(LIMIT_WAIT)),
            Refusal::BadSettlement { .. } | Refusal::ConflictingSettlement(_) => {
                // The one before may have been cancelled just now.
                if let Some(cancelled) = cancelled(task, before, ledger)? {
                    return Ok(cancelled);
                }
                tracing::error!(%task, %round, %refusal, "never to be settled: the task ends");
                Ok(done(Event::SettlementRefused { task, round }))
            }
            other => Err(other.into()),
        },
        Err(error) => Err(error),
    }
}

/// What there is to tell if the settlement does not stand any more.
fn cancelled(
    task: TaskId,
    settlement: Option<(Round, PayoutId)>,
    ledger: &dyn Ledger,
) -> Result<Option<Step>, LedgerError> {
    let Some((round, payout)) = settlement else {
        return Ok(None);
    };
    let status = ledger.settlement(task, payout)?;
    Ok((status == SettlementStatus::Unknown).then(|| gone(task, round)))
}

fn gone(task: TaskId, round: Round) -> Step {
    tracing::error!(%task, %round, "the settlement does not stand on the ledger: the task ends");
    done(Event::SettlementCancelled { task, round })
}

fn finalize(
    task: TaskId,
    round: Round,
    payout: PayoutId,
    ledger: &dyn Ledger,
    wallet: &dyn Signer,
) -> Result<Step, LedgerError> {
    if let Some(decided) = decided(task, round, payout, ledger)? {
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
        return Ok(Step::Wait(Duration::from_millis(left).min(WATCH_WAIT)));
    }
    ledger.finalize(wallet, task)?;
    Ok(decided(task, round, payout, ledger)?.unwrap_or(Step::Wait(Duration::from_millis(10))))
}

fn decided(
    task: TaskId,
    round: Round,
    payout: PayoutId,
    ledger: &dyn Ledger,
) -> Result<Option<Step>, LedgerError> {
    Ok(match ledger.settlement(task, payout)? {
        SettlementStatus::Final => Some(done(Event::SettlementFinal { task, round })),
        SettlementStatus::Unknown => Some(gone(task, round)),
        SettlementStatus::Pending => None,
    })
}

/// Somebody else closed the task, as anybody may after its expiry.
fn closed(task: TaskId, ledger: &dyn Ledger) -> Result<Step, LedgerError> {
    let refund = ledger.task(task)?.map(|state| state.refunded).unwrap_or_default();
    Ok(done(Event::Closed { task, refund }))
}
