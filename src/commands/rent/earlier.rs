//! Earlier orders of a renter with the nonce of an order file: the one that the file means, and others.

use std::path::Path;

use florin_compute::ComputeOrder;
use florin_ledger::{Ledger, lease_task};
use florin_protocol::Digest;

use super::stored;
use crate::market::MarketConnection;
use crate::task_file::order::{ClassAndStep, OrderDraft, OrderParties, OrderRest};

/// The parts of an order, except for its class and its longest step, which may be measured.
#[derive(Clone, Copy)]
pub(super) struct OrderSource<'a> {
    pub(super) file: &'a Path,
    pub(super) draft: &'a OrderDraft,
    pub(super) parties: &'a OrderParties,
    pub(super) rest: Option<&'a OrderRest>,
}

impl OrderSource<'_> {
    /// Whether the file makes this order, with its class and its longest step where the file states none.
    fn makes(&self, order: &ComputeOrder) -> bool {
        let (class, step_us_max) = self.draft.stated();
        let machine = ClassAndStep {
            class: class.unwrap_or(order.class),
            step_us_max: step_us_max.unwrap_or(order.step_us_max),
        };
        let made = self.draft.order(self.file, self.parties, machine, self.rest);
        made.is_ok_and(|made| made == *order)
    }
}

/// The earlier orders of one renter on one market.
#[derive(Debug, Default)]
pub(super) struct EarlierOrders {
    /// Those that were stored next to the file, the newest first.
    stored: Vec<ComputeOrder>,
    /// Those that the coordinator lists.
    listed: Vec<ComputeOrder>,
}

impl EarlierOrders {
    /// Reads the records of the file and the market's list.
    ///
    /// # Errors
    /// `ORDER_RECORD_INVALID`, and those of the files and of the request.
    pub(super) fn find(market: &MarketConnection, source: OrderSource<'_>) -> anyhow::Result<Self> {
        let OrderParties { market: id, renter } = *source.parties;
        let is_own = |order: &ComputeOrder| order.market == id && order.renter == renter;
        let mut stored = stored::read_all(source.file, source.rest)?;
        stored.retain(is_own);
        let listed = market.orders()?.into_iter().map(|view| view.order).filter(is_own).collect();
        Ok(Self { stored, listed })
    }

    /// The earlier order that the file means: a stored one, or with a copy of the file a listed one with an escrow.
    ///
    /// # Errors
    /// Those of the ledger.
    pub(super) fn resumed(
        &self,
        source: OrderSource<'_>,
        ledger: impl FnOnce() -> anyhow::Result<Box<dyn Ledger>>,
    ) -> anyhow::Result<Option<ComputeOrder>> {
        if let Some(order) = self.stored.iter().find(|order| source.makes(order)) {
            return Ok(Some(order.clone()));
        }
        let Some(order) = self.listed.iter().find(|order| source.makes(order)) else {
            return Ok(None);
        };
        let escrow = ledger()?.task(lease_task(order))?;
        Ok(escrow.is_some().then(|| order.clone()))
    }

    /// Other orders with the nonce of an order and an escrow: of the same file, or of the same training.
    ///
    /// # Errors
    /// Those of the ledger.
    pub(super) fn others(
        &self,
        order: &ComputeOrder,
        ledger: &dyn Ledger,
    ) -> anyhow::Result<Vec<Digest>> {
        let same_job = self.listed.iter().filter(|listed| listed.job == order.job);
        let same_nonce = |other: &&ComputeOrder| other.nonce == order.nonce;
        let mut others = Vec::new();
        for other in self.stored.iter().chain(same_job).filter(same_nonce) {
            let id = other.id();
            if id != order.id()
                && !others.contains(&id)
                && ledger.task(lease_task(other))?.is_some()
            {
                others.push(id);
            }
        }
        Ok(others)
    }
}
