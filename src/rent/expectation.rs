//! The expected earnings of a further provider of a market, from its verified history.

use florin_compute::ListingPolicy;
use florin_protocol::{Amount, AmountError};
use serde_json::{Value, json};

use super::market_statistics::MarketStatistics;
use crate::show;

/// Parts of a whole.
const PARTS: u128 = 1_000_000;
const HOUR_MS: u128 = 3_600_000;

/// The expectation. It supposes that renters order as before, and that their orders are divided equally among the
/// providers and a further one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExpectedEarnings {
    /// Awards of the history.
    pub(crate) awards: usize,
    /// Length of the history, in milliseconds.
    pub(crate) period_ms: u64,
    /// Providers that won an order.
    pub(crate) providers: usize,
    /// The median price of a useful device-hour.
    pub(crate) median: Amount,
    /// Leases at a time of the further provider, in parts per million.
    pub(crate) busy_ppm: u64,
    /// Pay for each hour of the listing.
    pub(crate) pay_per_hour: Amount,
    /// Fees of probes for each hour of the listing.
    pub(crate) fees_per_hour: Amount,
    /// Deposits that providers lost, of their earnings, in parts per million.
    pub(crate) lost_ppm: u64,
}

impl ExpectedEarnings {
    /// The expectation for a number of devices; `None` for a market without an award.
    ///
    /// # Errors
    /// [`AmountError::Overflow`].
    pub(crate) fn of(
        statistics: &MarketStatistics,
        policy: &ListingPolicy,
        devices: u32,
    ) -> Result<Option<Self>, AmountError> {
        let Some(median) = statistics.median else { return Ok(None) };
        let won = statistics.providers.values().filter(|provider| provider.won > 0);
        let providers = won.count();
        let sharing = u64::try_from(providers).unwrap_or(u64::MAX).saturating_add(1);
        let asked_ppm = statistics.leases_at_a_time_ppm() / sharing;
        let busy_ppm = asked_ppm.min(u64::from(devices).saturating_mul(1_000_000));
        let earned = Amount::total(statistics.providers.values().map(|one| one.earned))?;
        let period_ms = u128::from(statistics.period_ms()).max(1);
        let part = earned.mul_div_down(1, sharing.into())?.mul_div_down(HOUR_MS, period_ms)?;
        // Of more leases than it has devices a provider computes a part.
        let pay_per_hour = part.mul_div_down(busy_ppm.into(), u128::from(asked_ppm).max(1))?;
        // The least life of a listing is that of two intervals of probes.
        let interval_ms = u128::from(policy.life_ms_min / 2).max(1);
        let fees_per_hour = policy.fee.mul_div_down(HOUR_MS, interval_ms)?;
        let lost = Amount::total(statistics.providers.values().map(|one| one.lost))?;
        let lost_ppm = match earned.is_zero() {
            true => 0,
            false => lost.mul_div_down(PARTS, earned.units())?.units(),
        };
        Ok(Some(Self {
            awards: statistics.days.iter().map(|day| day.awards).sum(),
            period_ms: statistics.period_ms(),
            providers,
            median,
            busy_ppm,
            pay_per_hour,
            fees_per_hour,
            lost_ppm: u64::try_from(lost_ppm).unwrap_or(u64::MAX),
        }))
    }

    /// The expectation as JSON, with amounts in base units.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "awards": self.awards,
            "period_ms": self.period_ms,
            "providers": self.providers,
            "median_per_device_hour": show::units(self.median),
            "leases_at_a_time_ppm": self.busy_ppm,
            "pay_per_hour": show::units(self.pay_per_hour),
            "fees_per_hour": show::units(self.fees_per_hour),
            "lost_of_earned_ppm": self.lost_ppm,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rent::market_statistics::{DayPrice, ProviderStatistics};
    use florin_protocol::{Address, Timestamp};

    fn units(units: u128) -> Amount {
        Amount::from_units(units)
    }

    fn policy() -> ListingPolicy {
        ListingPolicy {
            stake_min: units(100),
            fee: units(30),
            probe_ms_min: 15_000,
            life_ms_min: 7_200_000,
            challenge_ms_max: 1,
            referees: Vec::new(),
        }
    }

    /// Two providers that compute for ten hours of a market of ten hours each, at 900 units an hour.
    fn statistics() -> MarketStatistics {
        let ran = (Timestamp(0), Timestamp(36_000_000));
        let provider = |lost| ProviderStatistics::example(3, units(8_000), units(lost), vec![ran]);
        let providers = [(Address([1; 20]), provider(0)), (Address([2; 20]), provider(400))].into();
        let day = DayPrice { day: Timestamp(0), awards: 6, median: units(900) };
        let (days, median, period) = (vec![day], Some(units(900)), Some(ran));
        MarketStatistics { providers, days, median, period }
    }

    #[test]
    fn a_further_provider_gets_an_equal_part_of_the_orders() {
        let expected = ExpectedEarnings::of(&statistics(), &policy(), 4).unwrap().unwrap();
        assert_eq!((expected.awards, expected.providers), (6, 2));
        assert_eq!(expected.period_ms, 36_000_000);
        // Two leases at a time among three providers.
        assert_eq!(expected.busy_ppm, 666_666);
        // 16,000 in ten hours, of which it gets a third.
        assert_eq!(expected.pay_per_hour, units(533));
        assert_eq!(expected.fees_per_hour, units(30));
        assert_eq!(expected.lost_ppm, 25_000);
    }

    #[test]
    fn no_more_leases_are_expected_than_devices() {
        let statistics = statistics();
        let many =
            MarketStatistics { period: Some((Timestamp(0), Timestamp(3_600_000))), ..statistics };
        let expected = ExpectedEarnings::of(&many, &policy(), 2).unwrap().unwrap();
        // 5,333 in an hour of which it would compute 6.67 leases at a time, and has two devices.
        assert_eq!((expected.busy_ppm, expected.pay_per_hour), (2_000_000, units(1_599)));
    }

    #[test]
    fn a_market_without_awards_has_no_expectation() {
        assert_eq!(ExpectedEarnings::of(&MarketStatistics::default(), &policy(), 1), Ok(None));
    }
}
