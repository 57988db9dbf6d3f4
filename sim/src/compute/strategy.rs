//! The strategies of providers, renters, auditors and the coordinator in a simulated market for compute.

use serde::{Deserialize, Serialize};

const fn yes() -> bool {
    true
}

/// The strategy of a group of providers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ProviderStrategy {
    /// It bids its costs, computes every segment, and lists its devices as they are.
    #[default]
    Honest,
    /// It bids a multiple of its costs.
    Bids {
        /// The multiple.
        factor: f64,
    },
    /// It does not compute some segments of each lease.
    Fakes {
        /// Their share; at least one segment.
        share: f64,
    },
    /// The same, and it tries salts of its last leaf until the draw that it expects spares all of them.
    Grinds {
        /// The share of segments.
        share: f64,
        /// Salts that it tries.
        salts: u32,
        /// Whether the coordinator gives it the beacon; otherwise it guesses.
        knows_beacon: bool,
    },
    /// It delivers leaves of another order.
    Replays,
    /// It stops computing after a part of a lease.
    Leaves {
        /// The part.
        after: f64,
        /// Whether it comes back for the audits.
        #[serde(default = "yes")]
        returns: bool,
        /// Whether it has left checkpoints, which speak for it if it does not.
        #[serde(default = "yes")]
        checkpoints: bool,
    },
    /// It wins and does not deposit its stake.
    NeverFunds,
    /// It bids half of its costs, and does not open its bid.
    NeverOpens,
    /// It accepts more leases at once than it has devices, which then share them.
    Overbooks {
        /// Leases that it accepts, as a multiple.
        factor: u32,
    },
    /// Its bids claim that it is faster than it is, where honest ones have a margin.
    Inflates {
        /// True times as a multiple of those in its bids.
        factor: f64,
        /// Whether its card claims it, too; otherwise its probes are those of the devices that it has.
        #[serde(default)]
        card: bool,
    },
    /// It lists and offers each device several times.
    Sells {
        /// How often.
        times: u32,
    },
    /// Its members list devices of their own, and one of them computes the probes and leases of all.
    Relays,
    /// It divides its bids among several accounts, each with all of its devices.
    Sybil {
        /// The accounts.
        accounts: u32,
    },
}

impl ProviderStrategy {
    /// Whether it is honest.
    #[must_use]
    pub const fn is_honest(&self) -> bool {
        matches!(self, Self::Honest)
    }

    /// The accounts of a member.
    pub(super) const fn accounts(&self) -> u32 {
        match self {
            Self::Sybil { accounts } => *accounts,
            _ => 1,
        }
    }

    /// Leases that share a device at most.
    pub(super) const fn leases_of_device(&self) -> u32 {
        match self {
            Self::Overbooks { factor } => *factor,
            Self::Sells { times } => *times,
            _ => 1,
        }
    }

    /// How much longer a probe takes than its card states, if its devices compute nothing else.
    pub(super) fn probe_slowness(&self) -> f64 {
        match self {
            Self::Inflates { factor, card: true } => *factor,
            Self::Sells { times } => f64::from(*times),
            _ => 1.0,
        }
    }
}

/// The strategy of a group of renters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RenterStrategy {
    /// It pays, and audits private rows.
    #[default]
    Honest,
    /// It seals bids of its own, and opens the one that lowers the price most.
    Shills {
        /// The prices of its bids, as multiples of the largest price for a useful hour.
        levels: Vec<f64>,
    },
    /// It audits its private rows without computing, and disputes each drawn segment.
    Disputes,
    /// It rents from a group of providers that bid nothing for its orders.
    Washes {
        /// The group.
        providers: String,
    },
}

impl RenterStrategy {
    /// Whether it is honest.
    #[must_use]
    pub const fn is_honest(&self) -> bool {
        matches!(self, Self::Honest)
    }
}

/// The strategy of a group of auditors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum AuditorStrategy {
    /// It computes its segments.
    #[default]
    Honest,
    /// It seals ends that it did not compute.
    MakesUp,
    /// It seals the ends that providers give it.
    Copies,
    /// It seals the ends of a group of providers, and computes those of all others.
    Colludes {
        /// The group.
        providers: String,
    },
    /// It computes, and seals another end to earn the bounty.
    Accuses,
    /// It seals nothing.
    Silent,
}

impl AuditorStrategy {
    /// Whether it is honest.
    #[must_use]
    pub const fn is_honest(&self) -> bool {
        matches!(self, Self::Honest)
    }
}

/// The strategy of the coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoordinatorStrategy {
    /// It draws the audits of each lease.
    #[default]
    Honest,
    /// It never draws.
    NeverDraws,
}
