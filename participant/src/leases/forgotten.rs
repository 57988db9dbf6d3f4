//! Orders of the data folder that the coordinator no longer lists: their pay and their bonds follow
//! from the stored claim and from the ledger alone.

use std::time::{Duration, Instant};

use florin_protocol::{Amount, Digest, TaskId};

use super::LeaseDaemon;
use super::error::LeaseServeError;
use super::event::LeaseEvent;
use crate::agent::{BondStatus, ClaimError, claim_with_proof, withdraw_bond};

/// Time between two looks at the orders that are no longer listed, in milliseconds.
const FORGOTTEN_POLL_MS: u64 = 30_000;

impl LeaseDaemon<'_, '_> {
    /// Claims the pay and withdraws the bonds of orders that are no longer listed. An error is
    /// announced, and the next look tries again.
    pub(super) fn settle_forgotten(&mut self) -> Result<(), LeaseServeError> {
        if self.forgotten_at.is_some_and(|at| Instant::now() < at) {
            return Ok(());
        }
        self.forgotten_at = Instant::now().checked_add(Duration::from_millis(FORGOTTEN_POLL_MS));
        let stored = self.store.orders()?.into_iter();
        let forgotten = stored.filter(|id| !self.orders.contains_key(id));
        for id in forgotten.collect::<Vec<_>>() {
            if let Err(error) = self.settle_stored(id) {
                let (code, why) = (error.code(), error.to_string());
                self.emit(&LeaseEvent::OrderRetrying { order: id, code, why });
            }
        }
        Ok(())
    }

    fn settle_stored(&mut self, id: Digest) -> Result<(), LeaseServeError> {
        let (ledger, wallet, task) = (self.context.ledger, self.context.wallet, TaskId(id.0));
        let folder = self.store.order(id);
        let mut is_paid = true;
        if let Some(proof) = folder.claim()? {
            match claim_with_proof(ledger, wallet, task, proof) {
                Ok(drawn) if drawn.paid.is_zero() => {}
                Ok(drawn) => self.count_pay(id, drawn.paid),
                Err(ClaimError::NotCurrent { .. }) => {
                    is_paid = ledger.task(task)?.is_none_or(|state| state.closed);
                }
                Err(error) => return Err(error.into()),
            }
        }
        match withdraw_bond(ledger, wallet, task)? {
            BondStatus::Returned(amount) => self.count_return(id, amount),
            BondStatus::Locked(_) => return Ok(()),
            BondStatus::None | BondStatus::NotRequested => {}
        }
        match is_paid {
            true => Ok(folder.remove()?),
            false => Ok(()),
        }
    }

    /// Counts and announces claimed pay.
    pub(super) fn count_pay(&mut self, order: Digest, amount: Amount) {
        self.summary.paid = self.summary.paid.plus(amount).unwrap_or(self.summary.paid);
        self.emit(&LeaseEvent::Paid { order, amount });
    }

    /// Counts and announces a bond that is back.
    pub(super) fn count_return(&mut self, order: Digest, amount: Amount) {
        self.summary.returned = self.summary.returned.plus(amount).unwrap_or(self.summary.returned);
        self.emit(&LeaseEvent::BondReturned { order, amount });
    }
}
