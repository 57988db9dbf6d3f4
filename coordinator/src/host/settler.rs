//! The ledger thread: posts settlements, sees them through their window, closes tasks. What the ledger has is asked for
//! before anything is repeated.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use florin_ledger::{Ledger, LedgerError, Refusal, Settlement, SettlementStatus};
use florin_protocol::{Code, PayoutId, Report, Round, Signer, TaskId};

use super::Mailbox;
use super::delayed::{Delayed, Job};
use crate::engine::Event;

/// Pause before a refused transaction is tried again: a refusal is a fact about the ledger that only somebody else can
/// change.
const REFUSED_WAIT: Duration = Duration::from_secs(60);
/// Pause while too many settlements wait for their windows.
const LIMIT_WAIT: Duration = Duration::from_secs(5);
/// Longest sleep while a challenge window is open; then the ledger's clock is asked again.
const WINDOW_WAIT_MAX: Duration = Duration::from_secs(300);

/// Something to be done on the ledger.
#[derive(Clone, Debug)]
pub(super) enum LedgerJob {
    Post(Settlement),
    Finalize { task: TaskId, round: Round, payout: PayoutId },
    Close { task: TaskId },
}

/// The settlement that a report states. The same report gives the same settlement, whenever it is asked for.
#[must_use]
pub fn settlement(report: &Report, digest: florin_protocol::Digest) -> Settlement {
    let debits = report.lines.iter().filter(|line| !line.debit.is_zero());
    Settlement {
        task: report.scope.task,
        payout: report.payout,
        round: report.scope.round,
        report: digest,
        root: report.root,
        data_total: report.data_total,
        infrastructure_total: report.infrastructure_total,
        debits: debits.map(|line| (line.account, line.debit)).collect(),
    }
}

/// How a job went.
enum Step {
    Done(Box<Event>),
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
    while let Some(job) = jobs.next() {
        match step(&job.what, ledger.as_ref(), wallet.as_ref()) {
            Ok(Step::Wait(wait)) => jobs.later(job, wait),
            Ok(Step::Done(event)) => tell(mailbox, &mut jobs, job, *event),
            Err(LedgerError::Unavailable(why)) => {
                tracing::warn!(job = ?job.what, why, "the ledger does not answer; trying again");
                jobs.again(job);
            }
            Err(error) => {
                tracing::error!(job = ?job.what, %error, "the ledger refuses what the round came to");
                jobs.later(job, REFUSED_WAIT);
            }
        }
    }
}

fn tell(mailbox: &Mailbox, jobs: &mut Delayed<LedgerJob>, job: Job<LedgerJob>, event: Event) {
    match mailbox.write(event) {
        Err(rejection) if matches!(rejection.code, Code::StorageFull | Code::Internal) => {
            // Asked again, the ledger gives the same answer.
            jobs.again(job);
        }
        Err(rejection) => tracing::warn!(job = ?job.what, %rejection, "nobody waits for this"),
        Ok(_) => {}
    }
}

fn step(job: &LedgerJob, ledger: &dyn Ledger, wallet: &dyn Signer) -> Result<Step, LedgerError> {
    match job {
        LedgerJob::Post(settlement) => post(settlement, ledger, wallet),
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
    }
}

fn post(
    settlement: &Settlement,
    ledger: &dyn Ledger,
    wallet: &dyn Signer,
) -> Result<Step, LedgerError> {
    let (task, round) = (settlement.task, settlement.round);
    match ledger.post(wallet, settlement) {
        Ok(_) => Ok(done(Event::SettlementPosted { task, round })),
        Err(LedgerError::Refused(Refusal::TaskClosed(_))) => closed(task, ledger),
        // Too many settlements wait for their windows: one of them will be final.
        Err(LedgerError::Refused(Refusal::Limit(_))) => Ok(Step::Wait(LIMIT_WAIT)),
        Err(error) => Err(error),
    }
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
        return Ok(Step::Wait(Duration::from_millis(left).min(WINDOW_WAIT_MAX)));
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
        SettlementStatus::Unknown => {
            tracing::error!(%task, %round, "the arbiter cancelled the settlement: the task ends");
            Some(done(Event::SettlementCancelled { task, round }))
        }
        SettlementStatus::Pending => None,
    })
}

/// Somebody else closed the task, as anybody may after its expiry.
fn closed(task: TaskId, ledger: &dyn Ledger) -> Result<Step, LedgerError> {
    let refund = ledger.task(task)?.map(|state| state.refunded).unwrap_or_default();
    Ok(done(Event::Closed { task, refund }))
}
