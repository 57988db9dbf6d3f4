//! The earnings of an account in a market for compute: its parts in all orders, what each paid and cost it, and
//! what an hour of its devices earned.

use florin_compute::{LeaseOutcome, Listing, OrderMoney, covered_ms};
use florin_protocol::{Address, Amount, AmountError, Digest, Timestamp};
use serde_json::{Value, json};

use super::market_order::MarketOrder;
use super::statement::{AccountStatement, account_statement};
use crate::show;

const HOUR_MS: u128 = 3_600_000;

/// A sum that may be negative.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Net {
    pub(crate) gained: Amount,
    pub(crate) lost: Amount,
}

impl Net {
    /// The amount, and whether it is below zero.
    fn parts(self) -> (Amount, bool) {
        match self.gained.minus(self.lost) {
            Ok(gain) => (gain, false),
            Err(_) => (self.lost.minus(self.gained).unwrap_or_default(), true),
        }
    }

    /// The net of an hour, over a time in milliseconds; `None` without time. It is rounded towards zero.
    fn per_hour(self, ms: u64) -> Option<Self> {
        let (amount, is_loss) = self.parts();
        let per_hour = amount.mul_div_down(HOUR_MS, ms.into()).ok()?;
        Some(match is_loss {
            false => Self { gained: per_hour, lost: Amount::ZERO },
            true => Self { gained: Amount::ZERO, lost: per_hour },
        })
    }

    /// The amount in florins, with a sign if it is negative.
    pub(crate) fn fln(self) -> String {
        let (amount, is_loss) = self.parts();
        format!("{}{}", if is_loss { "−" } else { "" }, show::fln(amount))
    }

    /// The amount in base units, with a sign if it is negative.
    fn units(self) -> String {
        let (amount, is_loss) = self.parts();
        format!("{}{}", if is_loss { "-" } else { "" }, amount.units())
    }
}

/// The part of an account in an order.
#[derive(Debug, Clone)]
pub(crate) struct OrderEarnings {
    pub(crate) order: Digest,
    pub(crate) statement: AccountStatement,
    pub(crate) outcome: Option<LeaseOutcome>,
    /// The end in words.
    pub(crate) ended: Option<String>,
    /// The referee cancelled the settlement: nothing was paid or lost.
    pub(crate) is_cancelled: bool,
    /// From its stake to its last delivery, of a provider.
    pub(crate) ran: Option<(Timestamp, Timestamp)>,
    /// From the opening to the last record.
    period: (Timestamp, Timestamp),
}

/// All orders and listings of an account.
#[derive(Debug, Clone, Default)]
pub(crate) struct Earnings {
    /// The newest first.
    pub(crate) orders: Vec<OrderEarnings>,
    /// Pay less losses as a provider, an auditor or a bidder, and the fees of probes.
    pub(crate) net: Net,
    /// Fees of probes, and stakes of listings that leases contradicted.
    pub(crate) listings: Amount,
    /// The part of escrows that others were paid.
    pub(crate) spent: Amount,
    /// Milliseconds in which its devices computed leases; leases at the same time count once.
    pub(crate) computed_ms: u64,
    /// From the opening of its first order to the last record of all.
    pub(crate) period: Option<(Timestamp, Timestamp)>,
}

impl Earnings {
    /// The earnings of an account, from checked orders, the newest first, and its listings.
    ///
    /// # Errors
    /// [`AmountError`].
    pub(crate) fn of(
        account: Address,
        orders: &[MarketOrder],
        listings: &[Listing],
    ) -> Result<Self, AmountError> {
        let mut all = Self::default();
        for order in orders {
            let Some(history) = order.history.as_ref() else { continue };
            if !history.accounts().contains(&account) {
                continue;
            }
            let observed = history.observed();
            let provides = observed.award().is_some_and(|award| award.provider == account);
            all.add(OrderEarnings {
                order: order.id,
                statement: account_statement(history, account)?,
                outcome: history.lease().outcome(),
                ended: history.ended(),
                is_cancelled: order.money == OrderMoney::Cancelled,
                ran: observed.ran().filter(|_| provides),
                period: (observed.recorded().opening().opened, observed.recorded().last()),
            })?;
        }
        for listing in listings.iter().filter(|one| one.terms().provider == account) {
            let spent = listing_costs(listing)?;
            all.listings = all.listings.plus(spent)?;
            all.net.lost = all.net.lost.plus(spent)?;
        }
        let ran = all.orders.iter().filter_map(|order| order.ran).collect();
        all.computed_ms = covered_ms(ran);
        Ok(all)
    }

    fn add(&mut self, order: OrderEarnings) -> Result<(), AmountError> {
        let (from, to) = self.period.unwrap_or(order.period);
        self.period = Some((from.min(order.period.0), to.max(order.period.1)));
        if !order.is_cancelled {
            let statement = &order.statement;
            self.net.gained = self.net.gained.plus(statement.paid)?;
            self.net.lost = self.net.lost.plus(statement.lost)?;
            self.spent = self.spent.plus(statement.spent)?;
        }
        self.orders.push(order);
        Ok(())
    }

    /// Whether the account offered anything in an order, or listed devices: a renter alone has no earnings.
    pub(crate) fn has_services(&self) -> bool {
        let is_service = |role: &&'static str| !["renter", "referee"].contains(role);
        let mut roles = self.orders.iter().flat_map(|order| &order.statement.roles);
        !self.listings.is_zero() || roles.any(is_service)
    }

    /// The net of an hour in which its devices computed leases.
    pub(crate) fn per_computed_hour(&self) -> Option<Net> {
        self.net.per_hour(self.computed_ms)
    }

    /// The net of an hour since its first order.
    pub(crate) fn per_hour(&self) -> Option<Net> {
        let (from, to) = self.period?;
        self.net.per_hour(to.ms_since(from))
    }

    /// The earnings as JSON, with amounts in base units.
    pub(crate) fn to_json(&self, account: Address) -> Value {
        let orders = self.orders.iter().map(|order| {
            let mut row = order.statement.to_json();
            row["order"] = json!(order.order);
            row["outcome"] = json!(order.outcome);
            row["cancelled"] = json!(order.is_cancelled);
            row["ran"] = json!(order.ran);
            row
        });
        json!({
            "account": account,
            "orders": orders.collect::<Vec<_>>(),
            "paid": show::units(self.net.gained),
            "lost": show::units(self.net.lost),
            "listings": show::units(self.listings),
            "net": self.net.units(),
            "spent": show::units(self.spent),
            "computed_ms": self.computed_ms,
            "period": self.period,
            "net_per_computed_hour": self.per_computed_hour().map(Net::units),
            "net_per_hour": self.per_hour().map(Net::units),
        })
    }
}

/// Fees that a listing's books owe to the coordinator, and the stake if it was taken.
fn listing_costs(listing: &Listing) -> Result<Amount, AmountError> {
    let totals = listing.totals().unwrap_or_default();
    Amount::total(totals.values().flat_map(|totals| [totals.paid, totals.debited]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(units: u128) -> Amount {
        Amount::from_units(units)
    }

    #[test]
    fn the_net_of_an_hour_has_a_sign_and_is_rounded_towards_zero() {
        let net = |gained, lost| Net { gained: units(gained), lost: units(lost) };
        // 10 in half an hour are 20 in an hour.
        assert_eq!(net(30, 20).per_hour(1_800_000), Some(net(20, 0)));
        assert_eq!(net(20, 30).per_hour(1_800_000), Some(net(0, 20)));
        assert_eq!(net(1, 0).per_hour(7_200_000), Some(net(0, 0)));
        assert_eq!(net(1, 0).per_hour(0), None, "no time");
        assert_eq!((net(3, 5).units(), net(5, 3).units()), ("-2".to_owned(), "2".to_owned()));
        let fln = Net { gained: Amount::ZERO, lost: "1.5".parse().unwrap() };
        assert_eq!(fln.fln(), "−1.5000");
    }
}
