//! Settings of listings: what a provider deposits, and how its devices are probed.

use florin_protocol::Amount;
use serde::Deserialize;

/// Units of a thousandth of a florin.
const MILLI: u128 = 1_000_000_000_000_000;

/// The operator's requirements of listings.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListingSettings {
    /// The least stake for each device, in thousandths of a florin.
    pub stake_milli_min: u64,
    /// The fee for a probe, in thousandths of a florin.
    pub fee_milli: u64,
    /// The least milliseconds of a probe by its card.
    pub probe_ms_min: u64,
    /// The mean milliseconds between two probes of all listings.
    pub probe_every_ms: u64,
}

impl Default for ListingSettings {
    fn default() -> Self {
        Self {
            stake_milli_min: 1_000,
            fee_milli: 10,
            probe_ms_min: 15_000,
            probe_every_ms: 3_600_000,
        }
    }
}

impl ListingSettings {
    /// The least stake of a number of devices.
    pub(crate) fn stake_min(&self, devices: u32) -> Amount {
        let milli = u128::from(self.stake_milli_min).saturating_mul(devices.into());
        Amount::from_units(milli.saturating_mul(MILLI))
    }

    /// The fee for a probe.
    pub(crate) fn fee(&self) -> Amount {
        Amount::from_units(u128::from(self.fee_milli).saturating_mul(MILLI))
    }
}
