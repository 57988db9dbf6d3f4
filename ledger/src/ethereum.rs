//! How a client behaves towards a node, and what it is willing to spend.

use serde::{Deserialize, Serialize};

/// Every limit of the client, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// How many blocks deep something must be before it counts as having happened, its own block included. From 1 to
    /// [`CONFIRMATIONS_MAX`](crate::limits::CONFIRMATIONS_MAX).
    pub confirmations: u64,
    /// Most gas that one transaction may use.
    pub gas_max: u64,
    /// Most that a unit of gas may cost, in wei.
    #[serde(with = "as_integer")]
    pub fee_max_wei: u128,
    /// After how long a transaction that no block has taken goes out again with a higher fee, in milliseconds.
    pub resubmit_ms: u64,
    /// After how long a write gives up waiting, in milliseconds. The transaction stays in the outbox.
    pub patience_ms: u64,
    /// How long a nonce must have been taken without a receipt of ours before another transaction is believed to have
    /// it, in milliseconds: nodes show an account's new nonce before the receipt, and not all nodes behind one address
    /// are equally far.
    pub displaced_ms: u64,
    /// Longest pause between two looks at the chain, in milliseconds.
    pub poll_ms_max: u64,
    /// Most blocks that one question for events covers; halved where a node refuses.
    pub log_blocks_max: u64,
}

impl Settings {
    /// The newest block that counts as having happened, where `tip` is the newest there is.
    #[must_use]
    pub const fn counted(&self, tip: u64) -> u64 {
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
            patience_ms: 300_000,
            displaced_ms: 60_000,
            poll_ms_max: 1_000,
            log_blocks_max: 10_000,
        }
    }
}

/// As an integer that settings files have: TOML's end at 63 bits, nine ether for a unit of gas.
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
