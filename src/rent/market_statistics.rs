//! Statistics of a market for compute: its orders, its providers, its prices and its use, from verified
//! records alone.

use std::collections::{BTreeMap, BTreeSet};

use florin_compute::{ComputeAccount, LeaseOutcome};
use florin_protocol::{Address, Amount, AmountError, Digest, Timestamp};
use serde_json::{Value, json};

use super::history::LeaseHistory;
use crate::show;

/// Microseconds of an hour.
const HOUR_US: u128 = 3_600_000_000;
const DAY_MS: u64 = 86_400_000;
/// Parts of a whole.
const PARTS: u128 = 1_000_000;

/// An order of a market.
#[derive(Debug, Clone)]
pub(crate) struct MarketOrder {
    /// Its id.
    pub(crate) id: Digest,
    /// The account that pays.
    pub(crate) renter: Address,
    /// Its segments.
    pub(crate) segments: u32,
    /// The class of bits.
    pub(crate) class: Digest,
    /// The history of its lease; `None` while blobs of its job are missing.
    pub(crate) history: Option<LeaseHistory>,
}

/// A price that a market agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AgreedPrice {
    /// The price of the order.
    price: Amount,
    /// Useful device time that it buys, in microseconds.
    useful_us: u128,
}

impl AgreedPrice {
    fn of_history(history: &LeaseHistory) -> Option<Self> {
        let (lease, order) = (history.lease(), history.lease().order());
        let award = lease.award()?;
        let bid = history.bid(award.provider)?;
        let steps = u128::from(order.segments).saturating_mul(order.steps.into());
        let useful_us = steps.saturating_mul(bid.times.useful_us().into());
        Some(Self { price: award.price(order, award.step_us), useful_us })
    }

    /// The price of a useful device-hour, rounded down.
    fn per_hour(&self) -> Option<Amount> {
        self.price.mul_div_down(HOUR_US, self.useful_us).ok()
    }
}

impl MarketOrder {
    /// The agreed price of the order, once it is awarded.
    pub(crate) fn price(&self) -> Option<Amount> {
        Some(AgreedPrice::of_history(self.history.as_ref()?)?.price)
    }

    /// The price of a useful device-hour, once it is awarded.
    pub(crate) fn per_hour(&self) -> Option<Amount> {
        AgreedPrice::of_history(self.history.as_ref()?)?.per_hour()
    }

    /// The order as JSON, with amounts in base units.
    pub(crate) fn to_json(&self) -> Value {
        let lease = self.history.as_ref().map(LeaseHistory::lease);
        let phase = lease.map(|lease| lease.phase());
        json!({
            "id": self.id,
            "renter": self.renter,
            "class": self.class,
            "phase": phase.map(|(phase, _)| phase),
            "deadline": phase.map(|(_, deadline)| deadline),
            "provider": lease.and_then(|lease| lease.award()).map(|award| award.provider),
            "delivered": self.history.as_ref().map(LeaseHistory::delivered),
            "segments": self.segments,
            "price": self.price().map(show::units),
            "per_device_hour": self.per_hour().map(show::units),
            "outcome": lease.and_then(|lease| lease.outcome()),
        })
    }
}

/// The leases of a provider.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ProviderStatistics {
    /// Orders that were awarded to it.
    pub(crate) won: u32,
    /// Leases of which it delivered all segments.
    pub(crate) delivered: u32,
    /// Leases in which it stopped.
    pub(crate) defaulted: u32,
    /// Leases in which it lost its stake.
    pub(crate) slashed: u32,
    /// Segments that it delivered.
    pub(crate) segments: u32,
    /// Pay.
    pub(crate) earned: Amount,
    /// Deposits that it lost.
    pub(crate) lost: Amount,
    /// The agreed prices, and the useful device time that they bought.
    agreed: Amount,
    useful_us: u128,
    /// From each stake to the last delivery.
    ran: Vec<(Timestamp, Timestamp)>,
}

impl ProviderStatistics {
    /// The mean price of a useful device-hour of its awards, rounded down.
    pub(crate) fn per_hour(&self) -> Option<Amount> {
        AgreedPrice { price: self.agreed, useful_us: self.useful_us }.per_hour()
    }
}

/// The prices of a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DayPrice {
    /// The start of the day in UTC.
    pub(crate) day: Timestamp,
    /// Awards of the day.
    pub(crate) awards: usize,
    /// The median price of a useful device-hour; the lower of two middle ones.
    pub(crate) median: Amount,
}

/// The statistics of a market.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MarketStatistics {
    /// By provider.
    pub(crate) providers: BTreeMap<Address, ProviderStatistics>,
    /// By day.
    pub(crate) days: Vec<DayPrice>,
    /// The median of all awards.
    pub(crate) median: Option<Amount>,
    /// From the first opening to the last record.
    pub(super) period: Option<(Timestamp, Timestamp)>,
}

impl MarketStatistics {
    /// The statistics of orders.
    ///
    /// # Errors
    /// [`AmountError::Overflow`].
    pub(crate) fn from_orders(orders: &[MarketOrder]) -> Result<Self, AmountError> {
        let mut statistics = Self::default();
        let (mut days, mut all): (BTreeMap<u64, Vec<Amount>>, Vec<Amount>) = Default::default();
        for history in orders.iter().filter_map(|order| order.history.as_ref()) {
            statistics.add(history)?;
            let agreed = AgreedPrice::of_history(history).and_then(|agreed| agreed.per_hour());
            if let Some((at, per_hour)) = history.awarded().zip(agreed) {
                days.entry(at.0 / DAY_MS).or_default().push(per_hour);
                all.push(per_hour);
            }
        }
        let of_day = |(day, mut prices): (u64, Vec<Amount>)| {
            let median = median(&mut prices)?;
            let day = Timestamp(day.saturating_mul(DAY_MS));
            Some(DayPrice { day, awards: prices.len(), median })
        };
        statistics.days = days.into_iter().filter_map(of_day).collect();
        statistics.median = median(&mut all);
        Ok(statistics)
    }

    fn add(&mut self, history: &LeaseHistory) -> Result<(), AmountError> {
        let recorded = history.recorded();
        let (opened, last) = (recorded.opening().opened, recorded.last());
        let (from, to) = self.period.unwrap_or((opened, last));
        self.period = Some((from.min(opened), to.max(last)));
        let lease = history.lease();
        let lost_to: BTreeSet<Address> = history.bidders().clone();
        for account in lost_to {
            // A bidder that won and did not fund its lease is a provider too.
            let lost = lease.books().balance(ComputeAccount::Forfeited(account));
            if !lost.is_zero() {
                let provider = self.providers.entry(account).or_default();
                provider.lost = provider.lost.plus(lost)?;
            }
        }
        let Some(award) = lease.award() else { return Ok(()) };
        let provider = self.providers.entry(award.provider).or_default();
        provider.won = provider.won.saturating_add(1);
        provider.segments = provider.segments.saturating_add(history.delivered());
        let earned = lease.books().balance(ComputeAccount::Owed(award.provider));
        provider.earned = provider.earned.plus(earned)?;
        if let Some(AgreedPrice { price, useful_us }) = AgreedPrice::of_history(history) {
            provider.agreed = provider.agreed.plus(price)?;
            provider.useful_us = provider.useful_us.saturating_add(useful_us);
        }
        provider.ran.extend(history.ran());
        let count = match lease.outcome() {
            Some(LeaseOutcome::Settled) => &mut provider.delivered,
            Some(LeaseOutcome::Defaulted { .. }) => &mut provider.defaulted,
            Some(LeaseOutcome::Slashed { .. }) => &mut provider.slashed,
            Some(LeaseOutcome::Unawarded) | None => return Ok(()),
        };
        *count = count.saturating_add(1);
        Ok(())
    }

    /// The part of the market's period in which a provider computed a lease, in parts per million.
    pub(crate) fn utilisation(&self, provider: &ProviderStatistics) -> u32 {
        self.share(provider.ran.clone())
    }

    /// The part of the market's period in which any provider computed a lease, in parts per million.
    pub(crate) fn utilisation_of_all(&self) -> u32 {
        self.share(self.providers.values().flat_map(|provider| provider.ran.clone()).collect())
    }

    /// Leases that ran at a time, as a mean over a period, in parts per million.
    pub(crate) fn leases_at_a_time_ppm(&self, period_ms: u64) -> u64 {
        let ran = self.providers.values().flat_map(|provider| &provider.ran);
        let all: u128 = ran.map(|(from, to)| u128::from(to.ms_since(*from))).sum();
        let parts = all.saturating_mul(PARTS).checked_div(period_ms.into());
        parts.map_or(0, |parts| u64::try_from(parts).unwrap_or(u64::MAX))
    }

    /// The first opening.
    pub(crate) fn began(&self) -> Option<Timestamp> {
        self.period.map(|(from, _)| from)
    }

    /// The part of the period that intervals cover, in parts per million.
    fn share(&self, mut ran: Vec<(Timestamp, Timestamp)>) -> u32 {
        ran.sort_unstable();
        let (mut covered, mut until) = (0_u64, Timestamp(0));
        for (from, to) in ran {
            covered = covered.saturating_add(to.ms_since(from.max(until)));
            until = until.max(to);
        }
        let whole = self.period.map_or(0, |(from, to)| to.ms_since(from));
        let parts = u128::from(covered).saturating_mul(PARTS).checked_div(whole.into());
        parts.and_then(|parts| u32::try_from(parts).ok()).unwrap_or_default()
    }

    /// The statistics as JSON, with amounts in base units and shares in parts per million.
    pub(crate) fn to_json(&self) -> Value {
        let provider = |(account, of): (&Address, &ProviderStatistics)| {
            json!({
                "provider": account,
                "won": of.won,
                "delivered": of.delivered,
                "defaulted": of.defaulted,
                "slashed": of.slashed,
                "segments": of.segments,
                "earned": show::units(of.earned),
                "lost": show::units(of.lost),
                "per_device_hour": of.per_hour().map(show::units),
                "utilisation_ppm": self.utilisation(of),
            })
        };
        let day = |day: &DayPrice| {
            let median = show::units(day.median);
            json!({ "day": day.day, "awards": day.awards, "median_per_device_hour": median })
        };
        json!({
            "providers": self.providers.iter().map(provider).collect::<Vec<_>>(),
            "prices": self.days.iter().map(day).collect::<Vec<_>>(),
            "median_per_device_hour": self.median.map(show::units),
            "utilisation_ppm": self.utilisation_of_all(),
        })
    }
}

/// The median; the lower of two middle values.
fn median(prices: &mut [Amount]) -> Option<Amount> {
    prices.sort_unstable();
    prices.get(prices.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
impl ProviderStatistics {
    pub(super) fn example(
        won: u32,
        earned: Amount,
        lost: Amount,
        ran: Vec<(Timestamp, Timestamp)>,
    ) -> Self {
        Self { won, earned, lost, ran, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_lower_middle_value() {
        let units = |all: &[u128]| -> Vec<Amount> {
            all.iter().map(|units| Amount::from_units(*units)).collect()
        };
        for (all, middle) in
            [(&[3, 1, 2][..], Some(2)), (&[4, 1], Some(1)), (&[7], Some(7)), (&[], None)]
        {
            assert_eq!(median(&mut units(all)), middle.map(Amount::from_units));
        }
    }

    #[test]
    fn overlapping_leases_count_once() {
        let period = Some((Timestamp(0), Timestamp(100)));
        let statistics = MarketStatistics { period, ..MarketStatistics::default() };
        let share = |ran: &[(u64, u64)]| {
            statistics.share(ran.iter().map(|(a, b)| (Timestamp(*a), Timestamp(*b))).collect())
        };
        assert_eq!(share(&[(10, 30), (20, 40), (60, 70)]), 400_000);
        assert_eq!(share(&[(10, 50), (20, 30)]), 400_000);
        assert_eq!(share(&[]), 0);
        assert_eq!(MarketStatistics::default().share(vec![(Timestamp(0), Timestamp(1))]), 0);
    }
}
