//! The orders of rented rounds on disk: an interrupted round goes on with its order, and the limit on spending holds
//! over all runs.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;
use florin_compute::{ComputeOrder, Lease};
use florin_participant::write_atomically;
use florin_protocol::{Amount, AmountError, Digest};
use serde::{Deserialize, Serialize};

use super::RentSummary;
use crate::failure::Failure;

/// The code of an order beyond the limit on spending.
pub(super) const RENT_LIMIT: &str = "RENT_LIMIT";
/// The file in the state folder.
const FILE: &str = "rented.json";
/// Its lock.
const LOCK: &str = "rented.lock";
/// Most orders of a record: those of the rounds of a task, each with all its attempts.
const ORDERS_MAX: usize = 100_000;

/// An order that trained a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RentedOrder {
    pub(super) order: ComputeOrder,
    /// Whether its lease is over, or there was none.
    pub(super) is_over: bool,
    /// Its cost: the escrow, and after the lease the pay of other accounts and the own bond, if it was lost.
    pub(super) cost: Amount,
}

/// All orders of a participation.
#[derive(Debug)]
pub(super) struct RentedOrders {
    path: PathBuf,
    orders: Vec<RentedOrder>,
    /// One process has the record at a time.
    _lock: File,
}

impl RentedOrders {
    /// Reads the record of a folder; empty without one.
    ///
    /// # Errors
    /// `RENT_IN_USE` while another process has it.
    pub(super) fn open(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(FILE);
        let shown = || path.display().to_string();
        let lock = File::create(folder.join(LOCK)).with_context(shown)?;
        if lock.try_lock().is_err() {
            let message = format!(
                "another process rents trainings with the state folder {}: one wallet takes part in one task with --rent \
                 at a time",
                folder.display()
            );
            return Err(Failure::negative("RENT_IN_USE", message).into());
        }
        let orders = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(shown)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error).with_context(shown),
        };
        Ok(Self { path, orders, _lock: lock })
    }

    /// The order of a job, from an earlier run.
    pub(super) fn of_job(&self, job: Digest, attempt: u64) -> Option<&ComputeOrder> {
        let own = |rented: &&RentedOrder| (rented.order.job, rented.order.nonce) == (job, attempt);
        self.orders.iter().find(own).map(|rented| &rented.order)
    }

    /// The orders whose end is not recorded.
    pub(super) fn open_orders(&self) -> Vec<ComputeOrder> {
        let open = self.orders.iter().filter(|rented| !rented.is_over);
        open.map(|rented| rented.order.clone()).collect()
    }

    /// Whether a folder has a record of orders.
    pub(super) fn is_recorded(folder: &Path) -> bool {
        folder.join(FILE).exists()
    }

    /// The cost of all orders.
    pub(super) fn spent(&self) -> Result<Amount, AmountError> {
        Amount::total(self.orders.iter().map(|rented| rented.cost))
    }

    /// Their number and their cost.
    ///
    /// # Errors
    /// [`AmountError::Overflow`].
    pub(super) fn summary(&self) -> Result<RentSummary, AmountError> {
        let open = self.orders.iter().filter(|rented| !rented.is_over).count();
        Ok(RentSummary { orders: self.orders.len(), open, cost: self.spent()? })
    }

    /// Records an order before its escrow is locked.
    ///
    /// # Errors
    /// `RENT_LIMIT` if all orders would cost more than a limit.
    pub(super) fn add(&mut self, order: &ComputeOrder, limit: Amount) -> anyhow::Result<()> {
        let cost = order.escrow()?;
        let all = self.spent()?.plus(cost)?;
        if all > limit || self.orders.len() >= ORDERS_MAX {
            let spent = self.spent()?;
            let message = format!(
                "an order of {cost} FLN is beyond spend_max = {limit}: orders have cost {spent} FLN, with open ones. \
                 Raise spend_max, or end the participation"
            );
            return Err(Failure::negative(RENT_LIMIT, message).into());
        }
        self.orders.push(RentedOrder { order: order.clone(), cost, is_over: false });
        self.write()
    }

    /// Records the end of a lease with its cost, or of an order without one.
    pub(super) fn end(&mut self, id: Digest, lease: Option<&Lease>) -> anyhow::Result<()> {
        let Some(own) = self.orders.iter_mut().find(|rented| rented.order.id() == id) else {
            return Ok(());
        };
        let renter = own.order.renter;
        let totals = lease.map(|lease| lease.books().totals()).unwrap_or_default();
        let others = totals.iter().filter(|(account, _)| **account != renter);
        let lost = totals.get(&renter).map_or(Amount::ZERO, |totals| totals.debited);
        own.cost = Amount::total(others.map(|(_, totals)| totals.paid).chain([lost]))?;
        own.is_over = true;
        self.write()
    }

    fn write(&self) -> anyhow::Result<()> {
        Ok(write_atomically(&self.path, &serde_json::to_vec(&self.orders)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_counts_open_orders_and_paid_ones_over_all_runs() {
        let folder = tempfile::tempdir().unwrap();
        let order = |nonce| ComputeOrder { nonce, ..ComputeOrder::example() };
        let escrow = order(1).escrow().unwrap();
        let limit = escrow.plus(escrow).unwrap();
        let mut orders = RentedOrders::open(folder.path()).unwrap();
        orders.add(&order(1), limit).unwrap();
        orders.add(&order(2), limit).unwrap();
        let refused = orders.add(&order(3), limit).unwrap_err();
        assert_eq!(crate::failure::classify(&refused).0, "RENT_LIMIT");
        // An order that found no provider costs nothing.
        orders.end(order(1).id(), None).unwrap();
        let second = RentedOrders::open(folder.path()).unwrap_err();
        assert_eq!(crate::failure::classify(&second).0, "RENT_IN_USE");
        drop(orders);
        let mut again = RentedOrders::open(folder.path()).unwrap();
        assert_eq!(again.open_orders(), [order(2)]);
        let summary = RentSummary { orders: 2, open: 1, cost: escrow };
        assert_eq!((again.spent(), again.summary()), (Ok(escrow), Ok(summary)));
        assert_eq!(again.of_job(order(2).job, 2), Some(&order(2)));
        assert_eq!(again.of_job(order(2).job, 4), None);
        again.add(&order(3), limit).unwrap();
        assert_eq!(again.open_orders().len(), 2);
    }
}
