//! The terms of a listing: what a provider offers, what it deposits, and the card that its probes and leases test.

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Address, Amount, AmountError, Canonical, ChainId, Digest, MarketId};
use serde::{Deserialize, Serialize};

use super::probe::ProbeShape;
use crate::card::StepTimes;
use crate::error::LeaseError;
use crate::stake::PARTS;

/// The time of a probe: the predicted one multiplied by this, in parts per million.
pub const PROBE_SLACK: u32 = 1_150_000;
/// The time of a probe besides that, for messages, in milliseconds.
pub const PROBE_WINDOW_MS: u64 = 1_000;
/// The time for showing drawn links, in milliseconds: read states are computed again for it.
pub const SHOW_WINDOW_MS: u64 = 60_000;
/// Shortest life of a listing in milliseconds: a minute.
pub const LISTING_MS_MIN: u64 = 60_000;
/// Longest life of a listing in milliseconds: 20 days, so that its stake can be debited after it.
pub const LISTING_MS_MAX: u64 = 1_728_000_000;
/// Most probes of a listing.
pub const PROBES_MAX: u32 = 10_000;
/// Longest predicted time of a probe in milliseconds: an hour.
const PROBE_MS_MAX: u64 = 3_600_000;

/// The measurements of a provider, as it signs them by opening the listing on the ledger.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Card {
    /// Digest of engine, threads and instruction set.
    pub class: Digest,
    /// Microseconds of a link of the probe on each device while 1, 2, … devices work.
    pub links: StepTimes,
    /// Coefficient of variation of a link's time, in parts per million.
    pub variation: u32,
    /// Nanoseconds from a device to another one before the first byte.
    pub latency_ns: u64,
    /// Picoseconds for each further byte.
    pub byte_ps: u64,
    /// Bytes per second that the storage writes durably. No probe tests it.
    pub storage_per_second: u64,
}

/// The offer of a provider: devices with a card, under a stake.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ListingTerms {
    /// Chain and market.
    pub market: MarketId,
    /// The provider.
    pub provider: Address,
    /// The account that may cancel a wrong settlement of the listing.
    pub referee: Address,
    /// Distinguishes listings of one provider.
    pub nonce: u64,
    /// Devices and memory, by the probe that tests them.
    pub probe: ProbeShape,
    /// The measurements.
    pub card: Card,
    /// The provider loses it if its leases contradict the predictions of its bids.
    pub stake: Amount,
    /// The coordinator's pay for a probe.
    pub fee: Amount,
    /// The most probes that are paid. The listing ends if another one is due.
    pub probes_max: u32,
    /// Life in milliseconds.
    pub life_ms: u64,
    /// Challenge window of the settlement in milliseconds.
    pub challenge_ms: u64,
}

impl Canonical for ListingTerms {
    const DOMAIN: &'static str = "florin v1 compute listing";
}

impl ListingTerms {
    /// Valid terms of two devices, for tests and benchmarks that replace the values that matter to them.
    ///
    /// # Errors
    /// Never: the step times are valid.
    pub fn example() -> Result<Self, LeaseError> {
        Ok(Self {
            market: MarketId { chain: ChainId(1), genesis: Digest([3; 32]) },
            provider: Address([1; 20]),
            referee: Address([2; 20]),
            nonce: 1,
            probe: ProbeShape { devices: 2, filled: 8, reads: 24 },
            card: Card {
                class: Digest([5; 32]),
                links: StepTimes::new(vec![1_000, 1_100])?,
                variation: 20_000,
                latency_ns: 500,
                byte_ps: 100,
                storage_per_second: 100_000_000,
            },
            stake: Amount::from_units(5_000),
            fee: Amount::from_units(10),
            probes_max: 3,
            life_ms: 3_600_000,
            challenge_ms: 1_000,
        })
    }

    /// The digest of the terms, which names the listing.
    #[must_use]
    pub fn id(&self) -> Digest {
        self.digest()
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// [`LeaseError`] with the first that is wrong.
    pub fn check(&self) -> Result<(), LeaseError> {
        if self.provider == self.referee {
            let role = "independent: a listing has a referee that is not its provider";
            return Err(LeaseError::Account { account: self.referee, role });
        }
        self.probe.check()?;
        self.card.links.check()?;
        let invalid = |what, got: u128, rule| Err(LeaseError::Invalid { what, got, rule });
        if self.card.links.on(self.probe.devices).is_none() {
            let rule = "the card has a time with all devices at work";
            return invalid("devices", self.probe.devices.into(), rule);
        }
        if self.predicted_ms() > PROBE_MS_MAX {
            let rule = "a probe takes at most an hour: list less memory";
            return invalid("the milliseconds of a probe", self.predicted_ms().into(), rule);
        }
        if self.stake.is_zero() {
            return invalid("the stake", 0, "must be more than zero");
        }
        if !(1..=PROBES_MAX).contains(&self.probes_max) {
            let rule = "a listing has from 1 to 10,000 probes";
            return invalid("the probes", self.probes_max.into(), rule);
        }
        if !(LISTING_MS_MIN..=LISTING_MS_MAX).contains(&self.life_ms) {
            return invalid(
                "the life",
                self.life_ms.into(),
                "from a minute to 20 days in milliseconds",
            );
        }
        self.pool()?;
        Ok(())
    }

    /// The deposit for all probes.
    ///
    /// # Errors
    /// [`AmountError::Overflow`].
    pub fn pool(&self) -> Result<Amount, AmountError> {
        self.fee.mul_div_down(self.probes_max.into(), 1)
    }

    /// The milliseconds of a probe that the card predicts, with all devices at work.
    #[must_use]
    pub fn predicted_ms(&self) -> u64 {
        let us = self.card.links.on(self.probe.devices).unwrap_or_default();
        self.probe.links().saturating_mul(us).div_ceil(1_000)
    }

    /// The milliseconds that a probe may take.
    #[must_use]
    pub fn probe_ms(&self) -> u64 {
        let ms = u128::from(self.predicted_ms()).saturating_mul(PROBE_SLACK.into());
        let ms = u64::try_from(ms.div_ceil(PARTS.into())).unwrap_or(u64::MAX);
        ms.saturating_add(PROBE_WINDOW_MS)
    }
}
