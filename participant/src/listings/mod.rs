//! Listing of devices: a provider measures a card, opens a listing under a stake, and proves it by probes until it
//! ends.
//!
//! The terms are stored before any tokens are locked: a provider that starts again goes on with its listing. A probe
//! that arrives while the provider is away ends the listing as unproven.

mod error;
mod event;
mod serve;
mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use florin_compute::{ListingPolicy, ListingTerms, ProbeShape};
use florin_learning::field_products::FieldProducts;
use florin_ledger::Ledger;
use florin_protocol::{Address, Amount, DATA_PER_ROUND_MIN, Digest};
use florin_work::{CardMeasurement, MeasuredCard};

use crate::client::Client;
use crate::retry::Backoff;
use crate::wallet::Wallet;

pub use error::ListError;
pub use event::ListingNews;
pub use serve::{ListingSummary, end_listings, serve_listing};
pub use store::{RecordError, measure_storage};

/// Most reads of a device in a probe: far fewer states are allowed.
const READS_MAX: u64 = 4_000_000;

/// The devices that a provider lists, and the limits of its deposits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingOffer {
    /// The account that may cancel a wrong settlement.
    pub referee: Address,
    /// Devices: cores of the processor.
    pub devices: u32,
    /// Memory of each device that probes fill, in states of 64 KiB.
    pub filled: u32,
    /// The stake; `None` is the least of the market.
    pub stake: Option<Amount>,
    /// The most for all probes together.
    pub fees_max: Amount,
    /// Life of the listing in milliseconds.
    pub life_ms: u64,
    /// Challenge window of its settlement in milliseconds.
    pub challenge_ms: u64,
}

/// The resources of a provider that lists devices.
pub struct ListingContext<'a> {
    /// The wallet.
    pub wallet: &'a Wallet,
    /// The coordinator.
    pub client: &'a Client,
    /// The ledger.
    pub ledger: &'a dyn Ledger,
    /// Makes the products of a device.
    pub products: &'a (dyn Fn() -> Box<dyn FieldProducts> + Sync),
    /// The class of the engine; all zeros if it has none.
    pub class: Digest,
}

/// Whether a probe computes now: other work of the process begins no measurement then. Clones share the answer.
#[derive(Clone, Debug, Default)]
pub struct ProbeGate(Arc<AtomicBool>);

impl ProbeGate {
    /// Whether a probe computes.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn close(&self, is_closed: bool) {
        self.0.store(is_closed, Ordering::Relaxed);
    }
}

/// How a provider lists.
#[derive(Clone, Debug)]
pub struct ListConfig {
    /// The folder with the stored terms.
    pub folder: std::path::PathBuf,
    /// The offer.
    pub offer: ListingOffer,
    /// The time of each sample of the card's measurement.
    pub sample: std::time::Duration,
    /// Retries of requests.
    pub backoff: Backoff,
    /// Closed while a probe computes, for other work of the process.
    pub gate: ProbeGate,
}

/// The deposits of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListingDeposits {
    /// The stake.
    pub stake: Amount,
    /// Probes that are paid in advance.
    pub probes: u32,
    /// Their fees together; those that are not spent return.
    pub fees: Amount,
}

impl ListingDeposits {
    /// The balance that opening the listing needs: stake, fees, and the smallest pool of a task.
    ///
    /// # Errors
    /// [`ListError::Rule`] for an overflow.
    pub fn sum(&self) -> Result<Amount, ListError> {
        let sum = Amount::total([self.stake, self.fees, DATA_PER_ROUND_MIN]);
        sum.map_err(|error| ListError::Rule(error.into()))
    }
}

impl ListingOffer {
    /// The deposits under a market's policy.
    ///
    /// # Errors
    /// [`ListError`] for a policy that the offer excludes.
    pub fn deposits(&self, policy: &ListingPolicy) -> Result<ListingDeposits, ListError> {
        self.check(policy)?;
        let (stake, probes) = (self.stake_at(policy)?, self.probes(policy)?);
        let fees = policy.fee.mul_div_down(probes.into(), 1);
        let fees = fees.map_err(|error| ListError::Rule(error.into()))?;
        Ok(ListingDeposits { stake, probes, fees })
    }

    /// The terms of a listing by a market's policy and a measured card.
    ///
    /// # Errors
    /// [`ListError`] for a policy that the offer excludes, and for a card that no listing has.
    fn terms(
        &self,
        policy: &ListingPolicy,
        (market, provider): (florin_protocol::MarketId, Address),
        card: florin_compute::Card,
        nonce: u64,
    ) -> Result<ListingTerms, ListError> {
        self.check(policy)?;
        let us = card.links.on(self.devices).unwrap_or(1).max(1);
        // As long as the market needs, and a bit longer: the card is rounded.
        let links = policy.probe_ms_min.saturating_mul(1_000).div_ceil(us).saturating_add(1);
        let least = u64::from(self.filled).saturating_mul(3);
        let reads = links.saturating_sub(self.filled.into()).max(least);
        let reads = u32::try_from(reads.min(READS_MAX)).unwrap_or(u32::MAX);
        let probe = ProbeShape { devices: self.devices, filled: self.filled, reads };
        let terms = ListingTerms {
            market,
            provider,
            referee: self.referee,
            nonce,
            probe,
            card,
            stake: self.stake_at(policy)?,
            fee: policy.fee,
            probes_max: self.probes(policy)?,
            life_ms: self.life_ms,
            challenge_ms: self.challenge_ms,
        };
        terms.check()?;
        Ok(terms)
    }

    /// Checks that a market's policy allows the offer.
    fn check(&self, policy: &ListingPolicy) -> Result<(), ListError> {
        if !policy.referees.contains(&self.referee) {
            return Err(ListError::Referee { referee: self.referee });
        }
        let (stake, least) = (self.stake_at(policy)?, self.least_stake(policy)?);
        if stake < least {
            return Err(ListError::StakeTooSmall { stake, least });
        }
        let (life_ms, least_ms) = (self.life_ms, policy.life_ms_min);
        if life_ms < least_ms {
            return Err(ListError::LifeTooShort { life_ms, least_ms });
        }
        let (challenge_ms, most_ms) = (self.challenge_ms, policy.challenge_ms_max);
        if challenge_ms > most_ms {
            return Err(ListError::ChallengeTooLong { challenge_ms, most_ms });
        }
        self.probes(policy).map(drop)
    }

    fn least_stake(&self, policy: &ListingPolicy) -> Result<Amount, ListError> {
        let least = policy.stake_min.mul_div_down(self.devices.into(), 1);
        least.map_err(|error| ListError::Rule(error.into()))
    }

    fn stake_at(&self, policy: &ListingPolicy) -> Result<Amount, ListError> {
        match self.stake {
            Some(stake) => Ok(stake),
            None => self.least_stake(policy),
        }
    }

    /// The probes that the offer pays for.
    fn probes(&self, policy: &ListingPolicy) -> Result<u32, ListError> {
        let most = florin_compute::ListingPolicy::probes_max(policy, self.life_ms);
        let paid = self.fees_max.units().checked_div(policy.fee.units());
        let probes = paid.map_or(most, |paid| u32::try_from(paid).unwrap_or(most).min(most));
        match probes {
            0 => Err(ListError::FeeTooLarge { fee: policy.fee, most: self.fees_max }),
            probes => Ok(probes),
        }
    }
}

/// The card of a measurement.
fn card(measured: MeasuredCard, class: Digest, storage_per_second: u64) -> florin_compute::Card {
    let MeasuredCard { links, variation, latency_ns, byte_ps } = measured;
    florin_compute::Card { class, links, variation, latency_ns, byte_ps, storage_per_second }
}

/// Measures the card of an offer.
///
/// # Errors
/// [`florin_compute::LeaseError`] for a number of devices that no listing has.
fn measured(
    config: &ListConfig,
    products: &(dyn Fn() -> Box<dyn FieldProducts> + Sync),
    progress: &dyn Fn(u32),
) -> Result<MeasuredCard, florin_compute::LeaseError> {
    let (devices, sample) = (config.offer.devices, config.sample);
    florin_work::measure_card(&CardMeasurement { products: &products, devices, sample, progress })
}

#[cfg(test)]
mod tests;
