//! Claims: collect the pay that a task owes, and withdraw the bond.

use std::path::Path;
use std::time::Duration;

use florin_ledger::{Claim, ClaimOutcome, Ledger, LedgerError, Refusal};
use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{
    Address, Amount, ClaimProof, Digest, ErrorCode, TaskId, Timestamp, WalletSigner, claim_tree,
    merkle,
};

use super::task_folder::stored_reports;
use super::{Agent, AgentError};
use crate::atomic_file::FileError;
use crate::claim_summary::ClaimSummary;
use crate::client::{Client, ClientError};
use crate::event::ParticipantEvent;

/// Errors of a claim.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The coordinator's proof does not lead to the ledger's root.
    #[error(
        "task {task}: the coordinator's proof of {} FLN paid and {} FLN debited does not lead to \
         the final root on the ledger",
        totals.paid,
        totals.debited
    )]
    InvalidProof {
        /// The task.
        task: TaskId,
        /// The cumulative totals that the proof claims.
        totals: ClaimTotals,
    },
    /// The proof belongs to another final root than the ledger's: a settlement has just become
    /// final.
    #[error(
        "task {task}: the coordinator's proof has root {proof_root}, but the ledger's final root is \
         {ledger_root}: a settlement has just become final; try again"
    )]
    NotCurrent {
        /// The task.
        task: TaskId,
        /// The root of the coordinator's proof.
        proof_root: Digest,
        /// The ledger's final root.
        ledger_root: Digest,
    },
    /// The data folder has no report with the ledger's final root.
    #[error(
        "task {task}: no stored report has the ledger's final root {root}: this participation \
         ended before that round was reported. Name the state folder of a participant that has its \
         report, or ask the coordinator for a proof (without --from-state)"
    )]
    ReportMissing {
        /// The task.
        task: TaskId,
        /// The ledger's final root.
        root: Digest,
    },
    /// The data folder.
    #[error(transparent)]
    File(#[from] FileError),
    /// The coordinator.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl ClaimError {
    /// The stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidProof { .. } => "INVALID_PROOF",
            Self::NotCurrent { .. } => "PROOF_NOT_CURRENT",
            Self::ReportMissing { .. } => "REPORT_MISSING",
            Self::File(error) => error.code(),
            Self::Client(error) => error.code(),
            Self::Ledger(error) => crate::ledger_code(error),
        }
    }
}

impl crate::retry::Transient for ClaimError {
    fn is_transient(&self) -> bool {
        match self {
            Self::InvalidProof { .. } | Self::ReportMissing { .. } | Self::File(_) => false,
            Self::NotCurrent { .. } => true,
            Self::Client(error) => error.is_transient(),
            Self::Ledger(error) => error.is_transient(),
        }
    }
}

/// Submits the Merkle proof of `account`'s cumulative totals, if it covers anything that is not
/// claimed yet: the ledger pays what it owes, and takes outstanding debits from the bond. `by`
/// signs and sends the transaction; the tokens always go to `account`. May be called whenever a
/// settlement is final: while the task runs and after its end. Idempotent.
///
/// # Errors
/// [`ClaimError`]. [`LedgerError::Unavailable`] and [`ClaimError::NotCurrent`] are transient: call
/// again.
pub fn claim(
    client: &Client,
    ledger: &dyn Ledger,
    by: &dyn WalletSigner,
    task: TaskId,
    account: Address,
) -> Result<ClaimSummary, ClaimError> {
    fetch_and_claim(client, ledger, by, (task, account), is_new)
}

/// Whether there is pay to collect, or a debit to apply.
fn is_new(now: ClaimTotals, before: ClaimTotals) -> bool {
    now.paid > before.paid || now.debited > before.debited
}

/// As [`claim`], with a proof from the reports in a participant's data folder: the coordinator is
/// not asked. The reports need no signature, because the ledger's final root decides which of them
/// holds.
///
/// # Errors
/// As [`claim`]; [`ClaimError::ReportMissing`] if no stored report has the ledger's final root.
pub fn claim_from_reports(
    ledger: &dyn Ledger,
    by: &dyn WalletSigner,
    (task, account): (TaskId, Address),
    folder: &Path,
) -> Result<ClaimSummary, ClaimError> {
    let Some(state) = ledger.task(task)? else {
        return Err(LedgerError::Refused(Refusal::UnknownTask(task)).into());
    };
    let root = state.root;
    if root == Digest::default() {
        return Ok(ClaimSummary::default());
    }
    let missing = || ClaimError::ReportMissing { task, root };
    let reports = stored_reports(folder, task)?;
    let report = reports.iter().find(|report| report.root == root).ok_or_else(missing)?;
    let totals = report.account_totals.get(&account).map(|account| account.claim_totals());
    let totals = totals.transpose().map_err(|_| missing())?.unwrap_or_default();
    if totals.is_zero() {
        return Ok(ClaimSummary::default());
    }
    // A report whose totals do not lead to its root is not the one that was settled.
    let tree = claim_tree(&report.account_totals).map_err(|_| missing())?;
    let proof = tree.proof(account, totals).filter(|_| tree.root() == root).ok_or_else(missing)?;
    let proof = ClaimProof { round: report.scope.round, totals, root, proof };
    submit_claim(ledger, by, (task, account), proof, is_new)
}

/// Claims only if pay is owed. A claim that would only take debits from the bond is left to the
/// coordinator, which submits it in any case.
///
/// # Errors
/// As [`claim`].
pub(crate) fn claim_pay(
    client: &Client,
    ledger: &dyn Ledger,
    by: &dyn WalletSigner,
    task: TaskId,
    account: Address,
) -> Result<ClaimSummary, ClaimError> {
    fetch_and_claim(client, ledger, by, (task, account), |now, before| now.paid > before.paid)
}

fn fetch_and_claim(
    client: &Client,
    ledger: &dyn Ledger,
    by: &dyn WalletSigner,
    (task, account): (TaskId, Address),
    should_claim: impl Fn(ClaimTotals, ClaimTotals) -> bool,
) -> Result<ClaimSummary, ClaimError> {
    let proof = match client.proof(task, account) {
        // No settlement is final yet, so nothing is owed.
        Err(ClientError::Rejected(rejection)) if rejection.code == ErrorCode::NotYetPublic => {
            return Ok(ClaimSummary::default());
        }
        other => other?,
    };
    submit_claim(ledger, by, (task, account), proof, should_claim)
}

/// Claims the unclaimed pay that a proof covers. The agent does the same while a task runs and at
/// its end.
///
/// # Errors
/// As [`claim`].
pub fn claim_with_proof(
    ledger: &dyn Ledger,
    by: &dyn WalletSigner,
    task: TaskId,
    proof: ClaimProof,
) -> Result<ClaimSummary, ClaimError> {
    submit_claim(ledger, by, (task, by.address()), proof, |now, before| now.paid > before.paid)
}

fn submit_claim(
    ledger: &dyn Ledger,
    by: &dyn WalletSigner,
    (task, account): (TaskId, Address),
    proof: ClaimProof,
    should_claim: impl Fn(ClaimTotals, ClaimTotals) -> bool,
) -> Result<ClaimSummary, ClaimError> {
    let totals = proof.totals;
    let nothing = ClaimSummary { totals, ..ClaimSummary::default() };
    if !should_claim(totals, ledger.claimed_totals(task, account)?) {
        return Ok(nothing);
    }
    let root = ledger.task(task)?.map(|state| state.root).unwrap_or_default();
    if root != proof.root {
        return Err(ClaimError::NotCurrent { task, proof_root: proof.root, ledger_root: root });
    }
    if !merkle::verify(root, account, totals, &proof.proof) {
        return Err(ClaimError::InvalidProof { task, totals });
    }
    let claim = Claim { task, account, totals, proof: proof.proof };
    match ledger.claim(by, &claim) {
        Ok(ClaimOutcome { paid, taken }) => Ok(ClaimSummary { paid, taken, totals }),
        // Another account sent the claim, or an earlier attempt was included after all.
        Err(LedgerError::Refused(Refusal::NothingToClaim)) => Ok(nothing),
        // Another settlement became final after the root was read.
        Err(LedgerError::Refused(Refusal::InvalidProof)) => {
            let held = ledger.task(task)?.map(|state| state.root).unwrap_or_default();
            match held == root {
                true => Err(ClaimError::InvalidProof { task, totals }),
                false => Err(ClaimError::NotCurrent { task, proof_root: root, ledger_root: held }),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// The state of a bond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BondStatus {
    /// No withdrawal was requested.
    NotRequested,
    /// There is no bond.
    None,
    /// The bond is back in the wallet.
    Returned(Amount),
    /// Withdrawal is requested; the bond stays locked and at risk until then.
    Locked(Timestamp),
}

/// Requests the withdrawal of the bond, and withdraws it if the ledger allows that already. A
/// closed task needs no request. In either case the bond stays locked until the last posted
/// settlement is final and the time to prove its debits is over. Repeated calls continue where the
/// last one ended.
///
/// # Errors
/// [`LedgerError`].
pub fn withdraw_bond(
    ledger: &dyn Ledger,
    by: &dyn WalletSigner,
    task: TaskId,
) -> Result<BondStatus, LedgerError> {
    let account = by.address();
    let there = ledger.bond_of(task, account)?;
    if there.amount.is_zero() {
        return Ok(BondStatus::None);
    }
    let closed = ledger.task(task)?.is_some_and(|state| state.closed);
    if there.release.is_none() && !closed {
        ledger.unbond(by, task)?;
    }
    match ledger.withdraw_bond(by, task) {
        Ok(amount) => Ok(BondStatus::Returned(amount)),
        Err(LedgerError::Refused(Refusal::TooEarly { at, .. })) => Ok(BondStatus::Locked(at)),
        // An earlier attempt was included after all.
        Err(LedgerError::Refused(Refusal::NotFound(_)))
            if ledger.bond_of(task, account)?.amount.is_zero() =>
        {
            Ok(BondStatus::Returned(there.amount))
        }
        Err(error) => Err(error),
    }
}

impl Agent<'_, '_> {
    /// Claims what is final, while the task goes on. A failure is emitted as an event and does not
    /// end the participation: there are later occasions, the last one at the end of the task.
    pub(super) fn claim_during_task(&mut self, finalised: u32) {
        self.finalised_at_claim = finalised;
        let (client, ledger) = (self.context.client, self.context.ledger);
        match claim_pay(client, ledger, self.context.wallet, self.config.task, self.me) {
            Ok(drawn) if drawn.paid.is_zero() => {}
            Ok(drawn) => self.record_claim(drawn),
            Err(error) => self.emit(&super::retrying_event(&error)),
        }
    }

    fn record_claim(&mut self, drawn: ClaimSummary) {
        self.claimed = self.claimed.plus(drawn.paid).unwrap_or(self.claimed);
        self.emit(&ParticipantEvent::Claimed { task: self.config.task, drawn });
    }

    /// Claims all pay that the task still owes.
    pub(super) fn claim_remaining(&mut self) -> Result<(), AgentError> {
        let (client, ledger) = (self.context.client, self.context.ledger);
        let (wallet, task, me) = (self.context.wallet, self.config.task, self.me);
        let on_event = &mut self.on_event;
        let drawn = super::retry_with_backoff(
            self.config.backoff,
            self.shutdown,
            |error: &ClaimError| {
                on_event(&super::retrying_event(error));
                if matches!(error, ClaimError::Ledger(_)) {
                    crate::retry::resume_transactions(ledger, wallet);
                }
            },
            || claim_pay(client, ledger, wallet, task, me),
        );
        let drawn = drawn.map_err(|error| match error {
            ClaimError::Client(error) => error.into(),
            ClaimError::Ledger(error) => AgentError::from(error),
            ClaimError::File(error) => error.into(),
            error @ (ClaimError::InvalidProof { .. }
            | ClaimError::NotCurrent { .. }
            | ClaimError::ReportMissing { .. }) => {
                AgentError::InvalidTask { task, why: error.to_string() }
            }
        })?;
        if !drawn.totals.paid.is_zero() {
            self.record_claim(drawn);
        }
        Ok(())
    }

    /// Withdraws the bond from the task. While it is locked, waits for it, or until shutdown is
    /// requested.
    pub(super) fn withdraw_bond_when_released(&mut self) -> Result<BondStatus, AgentError> {
        let (ledger, wallet, task) = (self.context.ledger, self.context.wallet, self.config.task);
        let mut announced = None;
        loop {
            let bond = self.with_ledger(|| withdraw_bond(ledger, wallet, task))?;
            let BondStatus::Locked(until) = bond else {
                if let BondStatus::Returned(amount) = bond {
                    self.record_returned_bond(amount)?;
                }
                return Ok(bond);
            };
            if announced != Some(until) {
                self.emit(&ParticipantEvent::BondLocked { until });
                announced = Some(until);
            }
            let left = until.ms_since(self.with_ledger(|| ledger.now())?);
            self.shutdown.wait(Duration::from_millis(left.clamp(1, self.config.poll_ms.max(1))));
            if self.shutdown.is_requested() {
                return Ok(bond);
            }
        }
    }
}
