//! Statistics of a market for compute: its providers, its prices and its use, from verified records alone.

use std::collections::BTreeMap;

use florin_protocol::{Address, Amount, AmountError, Timestamp};

use crate::lease::LeaseOutcome;
use crate::observed_lease::{LeaseFacts, per_hour};

const DAY_MS: u64 = 86_400_000;
/// Parts of a whole.
const PARTS: u128 = 1_000_000;

/// The leases of a provider.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProviderStatistics {
    /// Orders that were awarded to it.
    pub won: u32,
    /// Leases of which it delivered all segments.
    pub delivered: u32,
    /// Leases in which it stopped.
    pub defaulted: u32,
    /// Leases in which it lost its stake.
    pub slashed: u32,
    /// Segments that it delivered.
    pub segments: u32,
    /// Pay.
    pub earned: Amount,
    /// Deposits that it lost.
    pub lost: Amount,
    /// The agreed prices.
    pub agreed: Amount,
    /// The useful device time that they bought, in microseconds.
    pub useful_us: u128,
    /// From each stake to the last delivery.
    pub ran: Vec<(Timestamp, Timestamp)>,
}

impl ProviderStatistics {
    /// The mean price of a useful device-hour of its awards, rounded down.
    #[must_use]
    pub fn per_hour(&self) -> Option<Amount> {
        per_hour(self.agreed, self.useful_us)
    }
}

/// The prices of a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DayPrice {
    /// The start of the day in UTC.
    pub day: Timestamp,
    /// Awards of the day.
    pub awards: usize,
    /// The median price of a useful device-hour; the lower of two middle ones.
    pub median: Amount,
}

/// The statistics of a market.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MarketStatistics {
    /// By provider.
    pub providers: BTreeMap<Address, ProviderStatistics>,
    /// By day.
    pub days: Vec<DayPrice>,
    /// The median of all awards.
    pub median: Option<Amount>,
    /// From the first opening to the last record.
    pub period: Option<(Timestamp, Timestamp)>,
}

impl MarketStatistics {
    /// The statistics of leases.
    ///
    /// # Errors
    /// [`AmountError::Overflow`].
    pub fn from_leases(leases: impl IntoIterator<Item = LeaseFacts>) -> Result<Self, AmountError> {
        let mut statistics = Self::default();
        let (mut days, mut all): (BTreeMap<u64, Vec<Amount>>, Vec<Amount>) = Default::default();
        for lease in leases {
            statistics.add(&lease)?;
            if let Some((at, per_hour)) =
                lease.award.and_then(|award| Some((award.at, award.per_hour?)))
            {
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

    fn add(&mut self, lease: &LeaseFacts) -> Result<(), AmountError> {
        let (from, to) = self.period.unwrap_or((lease.opened, lease.last));
        self.period = Some((from.min(lease.opened), to.max(lease.last)));
        for (account, lost) in lease.lost.iter().filter(|_| !lease.cancelled) {
            let provider = self.providers.entry(*account).or_default();
            provider.lost = provider.lost.plus(*lost)?;
        }
        let Some(award) = lease.award else { return Ok(()) };
        let provider = self.providers.entry(award.provider).or_default();
        provider.won = provider.won.saturating_add(1);
        provider.segments = provider.segments.saturating_add(award.delivered);
        provider.ran.extend(award.ran);
        provider.agreed = provider.agreed.plus(award.price)?;
        provider.useful_us = provider.useful_us.saturating_add(award.useful_us.into());
        if lease.cancelled {
            return Ok(());
        }
        provider.earned = provider.earned.plus(award.earned)?;
        let count = match lease.outcome {
            Some(LeaseOutcome::Settled) => &mut provider.delivered,
            Some(LeaseOutcome::Defaulted { .. }) => &mut provider.defaulted,
            Some(LeaseOutcome::Slashed { .. }) => &mut provider.slashed,
            Some(LeaseOutcome::Unawarded) | None => return Ok(()),
        };
        *count = count.saturating_add(1);
        Ok(())
    }

    /// The part of the market's period in which a provider computed a lease, in parts per million.
    #[must_use]
    pub fn utilisation(&self, provider: &ProviderStatistics) -> u32 {
        self.share(provider.ran.clone())
    }

    /// The part of the market's period in which any provider computed a lease, in parts per million.
    #[must_use]
    pub fn utilisation_of_all(&self) -> u32 {
        self.share(self.providers.values().flat_map(|provider| provider.ran.clone()).collect())
    }

    /// Leases that ran at a time, as a mean over a period, in parts per million.
    #[must_use]
    pub fn leases_at_a_time_ppm(&self, period_ms: u64) -> u64 {
        let ran = self.providers.values().flat_map(|provider| &provider.ran);
        let lengths = ran.map(|(from, to)| u128::from(to.ms_since(*from)));
        let all = lengths.fold(0_u128, u128::saturating_add);
        let parts = all.saturating_mul(PARTS).checked_div(period_ms.into());
        parts.map_or(0, |parts| u64::try_from(parts).unwrap_or(u64::MAX))
    }

    /// The first opening.
    #[must_use]
    pub fn began(&self) -> Option<Timestamp> {
        self.period.map(|(from, _)| from)
    }

    /// The part of the period that intervals cover, in parts per million.
    fn share(&self, ran: Vec<(Timestamp, Timestamp)>) -> u32 {
        let whole = self.period.map_or(0, |(from, to)| to.ms_since(from));
        let parts = u128::from(covered_ms(ran)).saturating_mul(PARTS).checked_div(whole.into());
        parts.and_then(|parts| u32::try_from(parts).ok()).unwrap_or_default()
    }
}

/// The milliseconds that intervals cover; those of several count once.
#[must_use]
pub fn covered_ms(mut intervals: Vec<(Timestamp, Timestamp)>) -> u64 {
    intervals.sort_unstable();
    let (mut covered, mut until) = (0_u64, Timestamp(0));
    for (from, to) in intervals {
        covered = covered.saturating_add(to.ms_since(from.max(until)));
        until = until.max(to);
    }
    covered
}

/// The median; the lower of two middle values.
fn median(prices: &mut [Amount]) -> Option<Amount> {
    prices.sort_unstable();
    prices.get(prices.len().saturating_sub(1) / 2).copied()
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
