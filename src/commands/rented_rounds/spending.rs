//! The cost of rented rounds: its limit, and the sum of their orders.

use florin_compute::{Phase, RecordedLease};
use florin_learning::Engine;
use florin_ledger::lease_task;
use florin_participant::Transient;
use florin_protocol::Amount;
use serde_json::{Value, json};

use super::record::{RENT_LIMIT, RentedOrders};
use super::{RentedTask, Renter};
use crate::cli::Participate;
use crate::commands::participate::state_folder;
use crate::failure::Failure;
use crate::show;

impl RentedTask {
    /// The most that the order of a round locks; the least such amount while the number of rows is unknown.
    fn escrow(&self, rows: Option<usize>) -> anyhow::Result<Amount> {
        let batch = u64::from(self.training.batch.max(1));
        let steps = rows
            .map(|rows| (rows as u64).div_ceil(batch).saturating_mul(self.training.epochs.into()));
        self.rounds.escrow(&self.file, steps)
    }

    /// Refuses a limit on spending that pays for no order, before anything is bonded.
    ///
    /// # Errors
    /// `RENT_LIMIT`, and those of the file.
    pub(super) fn check_limit(
        &self,
        arguments: &Participate,
        rows: Option<usize>,
    ) -> anyhow::Result<()> {
        let (least, most) = (self.escrow(rows)?, self.rounds.spend_max);
        // A lower limit also ends a participation whose open orders go on.
        let folder = state_folder(arguments.state.as_deref(), &arguments.wallet.wallet);
        if most >= least || RentedOrders::is_recorded(&folder) {
            return Ok(());
        }
        let message = format!(
            "spend_max = {most} pays for no order: each locks at least {least} FLN, order.price_max = {} and its audits. \
             Raise spend_max, or lower order.price_max or audit.fee",
            self.rounds.price_max()
        );
        Err(Failure::input(RENT_LIMIT, message).into())
    }

    /// The part of the offer that an agent does not know: the rent of all rounds.
    ///
    /// # Errors
    /// Those of the file.
    pub(super) fn offer(&self, rows: Option<usize>) -> anyhow::Result<String> {
        Ok(format!(
            "rent: at most {} FLN for the orders of all rounds (spend_max), of which an order locks at least {} FLN; it \
             is paid besides the bond",
            self.rounds.spend_max,
            self.escrow(rows)?
        ))
    }
}

/// The orders of a participation over all its runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) struct RentSummary {
    pub(super) orders: usize,
    /// Orders whose end is unknown: each costs its escrow until then.
    pub(super) open: usize,
    pub(super) cost: Amount,
}

impl RentSummary {
    /// For people.
    pub(in crate::commands) fn facts(&self) -> [(&'static str, String); 2] {
        let orders = match self.open {
            0 => self.orders.to_string(),
            open => format!("{}, of which {open} are open", self.orders),
        };
        [("orders", orders), ("rent", format!("{} FLN", show::fln(self.cost)))]
    }

    /// For programs: the cost in base units.
    pub(in crate::commands) fn to_json(self) -> Value {
        json!({ "orders": self.orders, "open": self.open, "cost": show::units(self.cost) })
    }
}

/// The orders of a participation that has ended; `None` without `--rent`, and if they are not known. Their engine has
/// their record until here.
pub(in crate::commands) fn spent(
    task: Option<&RentedTask>,
    arguments: &Participate,
    (renter, engine): (Renter<'_>, Box<dyn Engine + '_>),
) -> Option<RentSummary> {
    task?;
    drop(engine);
    let folder = state_folder(arguments.state.as_deref(), &arguments.wallet.wallet);
    let summed = RentedOrders::open(&folder).and_then(|mut orders| {
        // An order whose end is not known now counts with its escrow.
        if let Err(error) = reconcile(&mut orders, renter) {
            tracing::warn!(error = format!("{error:#}"), "ends of rented orders are not known");
        }
        Ok(orders.summary()?)
    });
    // The participation has ended well: its summary is printed in any case.
    summed
        .inspect_err(|error| tracing::warn!(error = format!("{error:#}"), "the rent is not known"))
        .ok()
}

/// Records the ends of orders of earlier runs. An order whose escrow was never opened cost nothing.
///
/// # Errors
/// Those of the state folder, of the coordinator and of the ledger.
pub(super) fn reconcile(orders: &mut RentedOrders, renter: Renter<'_>) -> anyhow::Result<()> {
    let Renter { market, ledger, .. } = renter;
    for order in orders.open_orders() {
        let id = order.id();
        let escrow = ledger.task(lease_task(&order))?;
        let view = match market.order(id) {
            Err(error) if error.is_transient() => return Err(error.into()),
            Err(_) if escrow.is_none() => {
                orders.end(id, None)?;
                continue;
            }
            // Forgotten, or not opened yet: it counts in full.
            Err(_) => continue,
            Ok(view) => view,
        };
        if view.refused.is_some() {
            orders.end(id, None)?;
        } else if view.phase == Phase::Over {
            let lease = market.recorded_lease(&view)?;
            orders.end(id, lease.as_ref().map(RecordedLease::lease))?;
        }
    }
    Ok(())
}
