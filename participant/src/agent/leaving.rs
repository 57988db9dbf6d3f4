//! Leaves a task before its end: requests the bond back, waits until the ledger releases it, and
//! claims the pay of the last rounds, which is final by then.

use std::time::Duration;

use florin_ledger::{Ledger, LedgerError};
use florin_protocol::{TaskId, WalletSigner};

use super::claiming::{BondStatus, ClaimError, claim_pay, withdraw_bond};
use super::task_folder::TaskFolder;
use super::{AgentError, ParticipantConfig, retrying_event};
use crate::client::Client;
use crate::event::ParticipantEvent;
use crate::retry::{resume_transactions, retry_with_backoff};
use crate::shutdown::Shutdown;

/// Requests the bond of a task back and waits for it, or until shutdown is requested; then claims
/// what the task owes. The same call continues where an earlier one ended.
///
/// # Errors
/// [`AgentError`].
pub fn leave_task(
    config: &ParticipantConfig,
    (client, ledger, wallet): (&Client, &dyn Ledger, &dyn WalletSigner),
    shutdown: &Shutdown,
    on_event: &mut dyn FnMut(&ParticipantEvent),
) -> Result<BondStatus, AgentError> {
    let task = config.task;
    let mut announced = None;
    let bond = loop {
        let bond = retry_with_backoff(
            config.backoff,
            shutdown,
            |error: &LedgerError| {
                on_event(&retrying_event(error));
                resume_transactions(ledger, wallet);
            },
            || withdraw_bond(ledger, wallet, task),
        )?;
        let BondStatus::Locked(until) = bond else { break bond };
        if announced != Some(until) {
            on_event(&ParticipantEvent::BondLocked { until });
            announced = Some(until);
        }
        let left = until.ms_since(ledger.now()?).clamp(1, config.poll_ms.max(1));
        shutdown.wait(Duration::from_millis(left));
        if shutdown.is_requested() {
            return Ok(bond);
        }
    };
    if let BondStatus::Returned(amount) = bond {
        TaskFolder::new(&config.folder, task).bond_record().returned(amount)?;
        on_event(&ParticipantEvent::BondReturned { amount });
    }
    claim_last(config, (client, ledger, wallet), shutdown, on_event)?;
    Ok(bond)
}

fn claim_last(
    config: &ParticipantConfig,
    (client, ledger, wallet): (&Client, &dyn Ledger, &dyn WalletSigner),
    shutdown: &Shutdown,
    on_event: &mut dyn FnMut(&ParticipantEvent),
) -> Result<(), AgentError> {
    let task: TaskId = config.task;
    let drawn = retry_with_backoff(
        config.backoff,
        shutdown,
        |error: &ClaimError| on_event(&retrying_event(error)),
        || claim_pay(client, ledger, wallet, task, wallet.address()),
    );
    match drawn {
        Ok(drawn) if drawn.paid.is_zero() => {}
        Ok(drawn) => on_event(&ParticipantEvent::Claimed { task, drawn }),
        // `florin claim` is another occasion.
        Err(error) => on_event(&retrying_event(&error)),
    }
    Ok(())
}
