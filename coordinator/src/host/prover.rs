//! Proving debits: the coordinator claims for everybody whom a final round debited, so that what the report says is
//! taken while the bonds cannot leave.
//!
//! What is proven already is asked for before it is proven, so that a crash between two claims, a claim whose answer was
//! lost and somebody else's claim all come to the same.

use std::fmt;

use florin_ledger::{Claim, Claimed, Ledger, LedgerError, Refusal};
use florin_protocol::{Address, Round, Signer, TaskId};

use florin_engine::ProofTree;
use florin_engine::state::Standings;

/// Debits that are looked at before other jobs have their turn.
const AT_ONCE: usize = 32;

/// Debits to be proven by one round's final standings.
#[derive(Clone)]
pub struct Debits {
    standings: Standings,
    /// Whose are not known to be proven, descending.
    accounts: Vec<Address>,
}

/// How far it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proven {
    /// All of them.
    All,
    /// Not all of them yet.
    Some,
    /// The ledger's last final root is another one. Where that is a later round's, its own debits cover these.
    NotNow,
}

impl fmt::Debug for Debits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Debits");
        shown.field("task", &self.task()).field("round", &self.round());
        shown.field("left", &self.accounts.len()).finish_non_exhaustive()
    }
}

impl Debits {
    /// The debits of these accounts, by the last final standings.
    pub(super) fn of(standings: Standings, mut accounts: Vec<Address>) -> Self {
        accounts.reverse();
        Self { standings, accounts }
    }

    pub(super) const fn task(&self) -> TaskId {
        self.standings.task
    }

    pub(super) const fn round(&self) -> Round {
        self.standings.round
    }

    /// Proves some of those that are left.
    pub(super) fn prove_some(
        &mut self,
        ledger: &dyn Ledger,
        by: &dyn Signer,
    ) -> Result<Proven, LedgerError> {
        let mut tree = None;
        for _ in 0..AT_ONCE {
            let Some(account) = self.accounts.last().copied() else {
                return Ok(Proven::All);
            };
            if !self.prove(account, &mut tree, ledger, by)? {
                return Ok(Proven::NotNow);
            }
            self.accounts.pop();
        }
        Ok(Proven::Some)
    }

    /// Proves one, and says whether there is nothing left to do for it. The tree is built when it is first needed.
    fn prove(
        &self,
        account: Address,
        tree: &mut Option<ProofTree>,
        ledger: &dyn Ledger,
        by: &dyn Signer,
    ) -> Result<bool, LedgerError> {
        let (task, round) = (self.task(), self.round());
        let debited = self.standings.of.get(&account).map(|standing| standing.debited);
        if ledger.claimed(task, account)?.debited >= debited.unwrap_or_default() {
            return Ok(true);
        }
        let found = match tree.take().map_or_else(|| ProofTree::of_final(&self.standings), Ok) {
            Ok(built) => tree.insert(built).proof(account),
            // The same totals made the report's root.
            Err(error) => {
                tracing::error!(%task, %round, %error, "debits that cannot be proven are dropped");
                return Ok(true);
            }
        };
        let claim = Claim { task, account, totals: found.totals, proof: found.proof };
        match ledger.claim(by, &claim) {
            Ok(Claimed { paid, taken }) => {
                tracing::info!(%task, %round, %account, %taken, %paid, "a debit is proven");
                Ok(true)
            }
            // Somebody else was faster.
            Err(LedgerError::Refused(Refusal::NothingToClaim)) => Ok(true),
            Err(LedgerError::Refused(
                refusal @ (Refusal::BadProof | Refusal::BadSettlement { .. }),
            )) => {
                let root = ledger.task(task)?.map(|state| state.root);
                if root != Some(self.standings.root) {
                    return Ok(false);
                }
                // No retry changes that, and the buyer's refund shall not wait for it.
                tracing::error!(%task, %round, %account, %refusal, "a debit is never to be proven");
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}
