//! Proves debits: after a final round the coordinator submits a claim for every account that the
//! round debited, so that the ledger takes each reported debit while the bond is still locked.
//!
//! Before each claim the prover reads the amount that is already proven. So a crash between two
//! claims, a claim whose reply was lost and another account's claim all lead to the same state.

use std::fmt;

use florin_ledger::{Claim, ClaimOutcome, Ledger, LedgerError, Refusal};
use florin_protocol::{Address, RoundNumber, TaskId, WalletSigner};

use florin_engine::ProofTree;
use florin_engine::state::FinalTotals;

/// Debits per step; then other jobs of the ledger thread get their turn.
const DEBITS_PER_STEP: usize = 32;

/// Debits to prove from one round's final account totals.
#[derive(Clone)]
pub struct UnprovenDebits {
    final_totals: FinalTotals,
    /// Accounts whose debits are not known to be proven, in descending order.
    accounts: Vec<Address>,
}

/// The progress of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProofProgress {
    /// Every debit is proven.
    All,
    /// Some debits are left.
    Some,
    /// The ledger's last final root differs from this round's. If it is a later round's root, that
    /// round's debits include these.
    RootMismatch,
}

impl fmt::Debug for UnprovenDebits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Debits");
        shown.field("task", &self.task()).field("round", &self.round());
        shown.field("left", &self.accounts.len()).finish_non_exhaustive()
    }
}

impl UnprovenDebits {
    /// The debits of these accounts, from the last final account totals.
    pub(super) fn new(final_totals: FinalTotals, mut accounts: Vec<Address>) -> Self {
        accounts.reverse();
        Self { final_totals, accounts }
    }

    pub(super) const fn task(&self) -> TaskId {
        self.final_totals.task
    }

    pub(super) const fn round(&self) -> RoundNumber {
        self.final_totals.round
    }

    /// Proves the next debits, at most [`DEBITS_PER_STEP`].
    pub(super) fn prove_next(
        &mut self,
        ledger: &dyn Ledger,
        by: &dyn WalletSigner,
    ) -> Result<ProofProgress, LedgerError> {
        let mut tree = None;
        for _ in 0..DEBITS_PER_STEP {
            let Some(account) = self.accounts.last().copied() else {
                return Ok(ProofProgress::All);
            };
            if !self.prove(account, &mut tree, ledger, by)? {
                return Ok(ProofProgress::RootMismatch);
            }
            self.accounts.pop();
        }
        Ok(ProofProgress::Some)
    }

    /// Proves one debit; returns whether the account is finished. Builds the tree on first use.
    fn prove(
        &self,
        account: Address,
        tree: &mut Option<ProofTree>,
        ledger: &dyn Ledger,
        by: &dyn WalletSigner,
    ) -> Result<bool, LedgerError> {
        let (task, round) = (self.task(), self.round());
        let debited = self.final_totals.accounts.get(&account).map(|standing| standing.debited);
        if ledger.claimed_totals(task, account)?.debited >= debited.unwrap_or_default() {
            return Ok(true);
        }
        let found = match tree
            .take()
            .map_or_else(|| ProofTree::from_final_totals(&self.final_totals), Ok)
        {
            Ok(built) => tree.insert(built).proof(account),
            // Cannot happen: the same totals produced the report's root.
            Err(error) => {
                tracing::error!(%task, %round, %error, "dropping debits that cannot be proven");
                return Ok(true);
            }
        };
        let claim = Claim { task, account, totals: found.totals, proof: found.proof };
        match ledger.claim(by, &claim) {
            Ok(ClaimOutcome { paid, taken }) => {
                tracing::info!(%task, %round, %account, %taken, %paid, "debit proven");
                Ok(true)
            }
            // Another account has claimed first.
            Err(LedgerError::Refused(Refusal::NothingToClaim)) => Ok(true),
            Err(LedgerError::Refused(
                refusal @ (Refusal::InvalidProof | Refusal::InvalidSettlement { .. }),
            )) => {
                let root = ledger.task(task)?.map(|state| state.root);
                if root != Some(self.final_totals.root) {
                    return Ok(false);
                }
                // No retry can succeed, and the buyer's refund must not wait for this debit.
                tracing::error!(%task, %round, %account, %refusal, "dropping a refused debit");
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}
