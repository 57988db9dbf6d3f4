//! The outcome of one seed of a market for compute.

use serde::Serialize;

use super::scenario::Role;

/// The outcome of a member.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComputeMember {
    /// Its group.
    pub group: String,
    /// Its role.
    pub role: Role,
    /// Pay minus debits and fees, in florins; of a renter what its results are worth minus what it paid.
    pub earned: f64,
    /// Cost of its computations, in florins.
    pub cost: f64,
    /// Leases that it won, orders that it placed, or audits for which it was asked.
    pub works: u32,
    /// Leases and listings in which it lost a stake.
    pub slashed: u32,
    /// Leases that it did not complete.
    pub defaulted: u32,
    /// Hours for which its devices computed leases.
    pub device_hours: f64,
    /// Whether bids of all its accounts count at the end.
    pub is_listed: bool,
}

impl ComputeMember {
    /// Earnings minus costs, in florins.
    #[must_use]
    pub fn profit(&self) -> f64 {
        self.earned - self.cost
    }
}

/// The end of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseEnd {
    /// No provider took it.
    Unawarded,
    /// All segments were delivered and paid.
    Settled,
    /// Some segments were delivered.
    Defaulted,
    /// The provider lost its stake.
    Slashed,
}

impl LeaseEnd {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unawarded => "unawarded",
            Self::Settled => "settled",
            Self::Defaulted => "defaulted",
            Self::Slashed => "slashed",
        }
    }
}

/// A lease of one seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComputeLease {
    /// The job that it continues, from 0.
    pub job: u32,
    /// The group of its renter.
    pub renter: String,
    /// The group of its provider; empty without one.
    pub provider: String,
    /// When it was opened, in hours since the beginning.
    pub opened_hours: f64,
    /// Hours until its provider stopped.
    pub hours: f64,
    /// How it ended.
    pub end: LeaseEnd,
    /// Segments that were delivered.
    pub delivered: u32,
    /// Segments that auditors computed again.
    pub audited: u32,
    /// Paid to the provider, in florins.
    pub paid: f64,
    /// Paid for audits and bounties, in florins.
    pub audit_paid: f64,
    /// Paid to the provider for an hour of a device of median speed; `None` without a delivery.
    pub price: Option<f64>,
}

/// The outcome of one seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComputeOutcome {
    /// The seed.
    pub seed: u64,
    /// The members of all groups.
    pub members: Vec<ComputeMember>,
    /// All leases, in order of their openings.
    pub leases: Vec<ComputeLease>,
    /// Jobs that were ordered, and those that have their result.
    pub jobs: (u32, u32),
    /// Hours from the first order of a job to its result.
    pub completion_hours: Vec<f64>,
    /// Florins that the treasury received, and fees for probes.
    pub treasury: f64,
    /// The worth of all results to the renters, in florins.
    pub worth: f64,
    /// Paid to the members of a task for their updates, in florins.
    pub data_paid: f64,
    /// Jobs whose result is not the computed one.
    pub fake_results: u32,
    /// Trainings of a task's members.
    pub trainings: u32,
    /// Those of them that ended before the next round.
    pub in_time: u32,
    /// Hours until the last lease was over.
    pub hours: f64,
    /// Devices of all providers.
    pub devices: u32,
    /// Whether the books of all leases balanced after every action, and all florins have an owner.
    pub is_balanced: bool,
}
