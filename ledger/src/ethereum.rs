//! Settings of an Ethereum client: confirmations, timeouts and spending limits.

use serde::{Deserialize, Serialize};

/// The settings of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Confirmations that a block needs before its transactions count as executed; the block itself
    /// is the first. From 1 to [`CONFIRMATIONS_MAX`](crate::limits::CONFIRMATIONS_MAX).
    pub confirmations: u64,
    /// Gas limit of one transaction.
    pub gas_max: u64,
    /// Highest price of a unit of gas, in wei.
    #[serde(with = "as_integer")]
    pub fee_max_wei: u128,
    /// Time after which a transaction that is not mined is replaced by one with a higher fee, in
    /// milliseconds.
    pub resubmit_ms: u64,
    /// Timeout of a write, in milliseconds. The transaction stays in the outbox.
    pub write_timeout_ms: u64,
    /// How long a nonce must have been taken without a receipt of our transaction before it counts
    /// as displaced, in milliseconds: nodes update an account's nonce before they return the
    /// receipt, and the nodes behind one address may be at different blocks.
    pub displaced_ms: u64,
    /// Longest pause between two polls of the chain, in milliseconds.
    pub poll_ms_max: u64,
    /// Most blocks per log query; halved if the node refuses the range.
    pub log_blocks_max: u64,
}

impl Settings {
    /// The newest confirmed block if `tip` is the newest block.
    #[must_use]
    pub const fn confirmed_block(&self, tip: u64) -> u64 {
        tip.saturating_sub(self.confirmations.saturating_sub(1))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            confirmations: 1,
            gas_max: 3_000_000,
            fee_max_wei: 100_000_000_000,
            resubmit_ms: 45_000,
            write_timeout_ms: 300_000,
            displaced_ms: 60_000,
            poll_ms_max: 1_000,
            log_blocks_max: 10_000,
        }
    }
}

/// An integer that settings files can represent: TOML integers have 63 bits, which suffices for 9
/// ether per unit of gas.
mod as_integer {
    use serde::de::Deserialize;
    use serde::ser::Error;
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(wei: &u128, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(*wei).map_err(S::Error::custom)?)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
        u64::deserialize(from).map(u128::from)
    }
}
