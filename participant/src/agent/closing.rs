//! A close that the coordinator announces before the task expires: a participant with a receipt for
//! an update of a round that is not settled objects, and sends nothing more to the task.

use std::path::Path;
use std::time::{Duration, Instant};

use florin_ledger::{Ledger, LedgerError, Objection, Refusal};
use florin_protocol::{Amount, RoundNumber, TaskId, Timestamp, UploadReceipt, WalletSigner};

use super::Agent;
use super::task_folder::TaskFolder;
use crate::atomic_file::FileError;
use crate::event::ParticipantEvent;

/// Longest time between two looks at the ledger.
const LOOK_MS_MAX: u64 = 10_000;
/// A challenge window has at least this many looks.
const LOOKS_PER_WINDOW: u64 = 8;

/// The errors of an objection.
#[derive(Debug, thiserror::Error)]
pub enum ObjectionError {
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The stored receipts.
    #[error(transparent)]
    File(#[from] FileError),
}

/// An objection that the ledger accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptedObjection {
    /// The round of the receipt.
    pub round: RoundNumber,
    /// The coordinator's bond, which went to the treasury.
    pub taken: Amount,
}

/// Objects to an announced close with a receipt that a participation stored in `folder`, if one is
/// for a round after the last final one. `None` if no close is announced, or no receipt objects.
///
/// # Errors
/// [`ObjectionError`].
pub fn object_from_receipts(
    ledger: &dyn Ledger,
    by: &dyn WalletSigner,
    task: TaskId,
    folder: &Path,
) -> Result<Option<AcceptedObjection>, ObjectionError> {
    object(ledger, by, task, &TaskFolder::new(folder, task)).map(|(_, accepted)| accepted)
}

/// As [`object_from_receipts`]; also returns the moment of the announced close.
fn object(
    ledger: &dyn Ledger,
    by: &dyn WalletSigner,
    task: TaskId,
    store: &TaskFolder,
) -> Result<(Option<Timestamp>, Option<AcceptedObjection>), ObjectionError> {
    let Some(state) = ledger.task(task)? else { return Ok((None, None)) };
    if state.closes_at.is_none() || state.closed {
        return Ok((None, None));
    }
    let settled = state.round.unwrap_or(RoundNumber(0));
    let receipts = if store.exists() { store.upload_receipts()? } else { Vec::new() };
    let open = |receipt: &&UploadReceipt| {
        receipt.receipt.body.scope.round > settled
            && receipt.verify_wallet(state.terms.coordinator).is_ok()
    };
    let Some(receipt) = receipts.iter().find(open) else { return Ok((state.closes_at, None)) };
    let objection = Objection {
        receipt: receipt.receipt.body.for_ledger(),
        signature: receipt.wallet_signature,
    };
    let round = objection.receipt.round;
    match ledger.object(by, &objection) {
        Ok(taken) => Ok((state.closes_at, Some(AcceptedObjection { round, taken }))),
        // Another account has objected, or a settlement was posted.
        Err(LedgerError::Refused(
            Refusal::NotFound(_) | Refusal::SettlementsPending(_) | Refusal::TaskClosed(_),
        )) => Ok((None, None)),
        Err(error) => Err(error.into()),
    }
}

/// When the agent has looked for an announced close, and what it has seen.
#[derive(Debug, Default)]
pub(super) struct CloseWatch {
    looked: Option<Instant>,
    announced: Option<Timestamp>,
}

impl Agent<'_, '_> {
    /// Looks at the ledger for an announced close, not more often than the window requires, and
    /// objects. Returns whether a close is announced. A coordinator that is its own arbiter
    /// announces nothing.
    ///
    /// # Errors
    /// [`FileError`] of the stored receipts.
    pub(super) fn watch_for_close(&mut self) -> Result<bool, FileError> {
        if self.spec.arbiter == self.spec.coordinator {
            return Ok(false);
        }
        let pause = (self.spec.budget.challenge_ms / LOOKS_PER_WINDOW).min(LOOK_MS_MAX);
        let pause = Duration::from_millis(pause);
        let before = self.close_watch.announced;
        if self.close_watch.looked.is_some_and(|looked| looked.elapsed() < pause) {
            return Ok(before.is_some());
        }
        self.close_watch.looked = Some(Instant::now());
        let (ledger, wallet, task) = (self.context.ledger, self.context.wallet, self.config.task);
        let (announced, objected) = match object(ledger, wallet, task, &self.store) {
            Ok(found) => found,
            Err(ObjectionError::File(error)) => return Err(error),
            // The next look repeats it.
            Err(ObjectionError::Ledger(error)) => {
                self.emit(&super::retrying_event(&error));
                return Ok(before.is_some());
            }
        };
        if let (Some(at), None) = (announced, before) {
            self.emit(&ParticipantEvent::CloseAnnounced { at });
        }
        if let Some(AcceptedObjection { round, taken }) = objected {
            self.emit(&ParticipantEvent::CloseObjected { round, taken });
        }
        // The objection has withdrawn the announcement.
        self.close_watch.announced = announced.filter(|_| objected.is_none());
        Ok(self.close_watch.announced.is_some())
    }
}
