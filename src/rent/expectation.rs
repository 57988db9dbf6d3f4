//! The expected earnings of a further provider of a market, from its verified history.

use florin_compute::{ListingPolicy, MarketStatistics};
use florin_protocol::{Amount, AmountError, Timestamp};
use serde_json::{Value, json};

use crate::show;

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
    /// Pay of all providers.
    pub(crate) earned: Amount,
    /// Deposits that all providers lost.
    pub(crate) lost: Amount,
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
        now: Timestamp,
    ) -> Result<Option<Self>, AmountError> {
        let Some(median) = statistics.median else { return Ok(None) };
        let won = statistics.providers.values().filter(|provider| provider.won > 0);
        let providers = won.count();
        let sharing = u64::try_from(providers).unwrap_or(u64::MAX).saturating_add(1);
        // Up to now: a market without new orders is idle.
        let period_ms = statistics.began().map_or(0, |began| now.ms_since(began));
        let asked_ppm = statistics.leases_at_a_time_ppm(period_ms) / sharing;
        let busy_ppm = asked_ppm.min(u64::from(devices).saturating_mul(1_000_000));
        let earned = Amount::total(statistics.providers.values().map(|one| one.earned))?;
        let part = earned.mul_div_down(1, sharing.into())?;
        let part = part.mul_div_down(HOUR_MS, u128::from(period_ms).max(1))?;
        // Of more leases than it has devices a provider computes a part.
        let pay_per_hour = part.mul_div_down(busy_ppm.into(), u128::from(asked_ppm).max(1))?;
        // The least life of a listing is that of two intervals of probes.
        let interval_ms = u128::from(policy.life_ms_min / 2).max(1);
        let fees_per_hour = policy.fee.mul_div_down(HOUR_MS, interval_ms)?;
        let lost = Amount::total(statistics.providers.values().map(|one| one.lost))?;
        Ok(Some(Self {
            awards: statistics.days.iter().map(|day| day.awards).sum(),
            period_ms,
            providers,
            median,
            busy_ppm,
            pay_per_hour,
            fees_per_hour,
            earned,
            lost,
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
            "earned": show::units(self.earned),
            "lost": show::units(self.lost),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use florin_compute::{DayPrice, ProviderStatistics};
    use florin_protocol::Address;

    /// Ten hours behind the first opening.
    const NOW: Timestamp = Timestamp(36_000_000);

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
        let provider = |lost| ProviderStatistics {
            won: 3,
            earned: units(8_000),
            lost: units(lost),
            ran: vec![ran],
            ..ProviderStatistics::default()
        };
        let providers = [(Address([1; 20]), provider(0)), (Address([2; 20]), provider(400))].into();
        let day = DayPrice { day: Timestamp(0), awards: 6, median: units(900) };
        let (days, median, period) = (vec![day], Some(units(900)), Some(ran));
        MarketStatistics { providers, days, median, period }
    }

    #[test]
    fn a_further_provider_gets_an_equal_part_of_the_orders() {
        let expected = ExpectedEarnings::of(&statistics(), &policy(), 4, NOW).unwrap().unwrap();
        assert_eq!((expected.awards, expected.providers), (6, 2));
        assert_eq!(expected.period_ms, 36_000_000);
        // Two leases at a time among three providers.
        assert_eq!(expected.busy_ppm, 666_666);
        // 16,000 in ten hours, of which it gets a third.
        assert_eq!(expected.pay_per_hour, units(533));
        assert_eq!(expected.fees_per_hour, units(30));
        assert_eq!((expected.earned, expected.lost), (units(16_000), units(400)));
        // An idle year later.
        let later = Timestamp(NOW.0 + 365 * 24 * 3_600_000);
        let expected = ExpectedEarnings::of(&statistics(), &policy(), 4, later).unwrap().unwrap();
        assert_eq!((expected.busy_ppm, expected.pay_per_hour), (760, units(0)));
    }

    #[test]
    fn no_more_leases_are_expected_than_devices() {
        let hour = Timestamp(3_600_000);
        let expected = ExpectedEarnings::of(&statistics(), &policy(), 2, hour).unwrap().unwrap();
        // 5,333 in an hour of which it would compute 6.67 leases at a time, and has two devices.
        assert_eq!((expected.busy_ppm, expected.pay_per_hour), (2_000_000, units(1_599)));
    }

    #[test]
    fn a_market_without_awards_has_no_expectation() {
        assert_eq!(ExpectedEarnings::of(&MarketStatistics::default(), &policy(), 1, NOW), Ok(None));
    }
}
