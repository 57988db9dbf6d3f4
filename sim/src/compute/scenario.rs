//! The definition of an experiment on the market for compute, as a TOML file.

use std::collections::BTreeMap;

use florin_compute::DataClass;
use serde::{Deserialize, Serialize};

use super::strategy::{AuditorStrategy, CoordinatorStrategy, ProviderStrategy, RenterStrategy};
use crate::scenario::{PassCriterion, SeedRange};

/// The value of the key `market` of such a scenario.
pub(crate) const MARKET: &str = "compute";

/// An experiment: providers, renters and auditors under the rules of leases. Amounts are in florins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputeScenario {
    /// Its name: letters, digits and hyphens.
    pub name: String,
    /// The question that the experiment answers.
    pub question: String,
    /// `compute`, which distinguishes it from a scenario of tasks.
    pub market: MarketKind,
    /// Virtual hours in which orders arrive.
    pub hours: u32,
    /// The strategy of the coordinator.
    #[serde(default)]
    pub coordinator: CoordinatorStrategy,
    /// The seeds of the experiment.
    #[serde(default)]
    pub seeds: SeedRange,
    /// The terms of all orders.
    #[serde(default)]
    pub order: OrderSettings,
    /// Listings of devices; without them bids of all accounts count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listing: Option<ListingSettings>,
    /// A task whose members rent their trainings; `None` for orders by a rate alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<RentedTask>,
    /// The groups of providers by name.
    pub providers: BTreeMap<String, ProviderGroup>,
    /// The groups of renters by name.
    pub renters: BTreeMap<String, RenterGroup>,
    /// The groups of auditors by name.
    pub auditors: BTreeMap<String, AuditorGroup>,
    /// Criteria that the results must satisfy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub criteria: Vec<PassCriterion>,
}

/// The market of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarketKind {
    /// Leases of compute.
    Compute,
}

/// The terms of all orders, in shares of an order's largest price where an amount is meant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OrderSettings {
    /// Segments.
    pub segments: u32,
    /// Steps of a segment.
    pub steps: u32,
    /// Milliseconds of a step on one device of median speed: the size of the job.
    pub step_ms: f64,
    /// The longest accepted step, as a multiple of `step_ms`.
    pub slowest: f64,
    /// The largest price of a useful device-hour.
    pub price_max: f64,
    /// Share of segments that are audited.
    pub audited: f64,
    /// Auditors of a segment.
    pub auditors: u32,
    /// Share of the auditors that could work for a provider.
    pub colluding: f64,
    /// Pay for an audit, as a share of the largest price of a segment.
    pub audit_fee: f64,
    /// Stake, at least; the rules may require more.
    pub stake: f64,
    /// Bond of a bid, and the fine for segments that do not come.
    pub bid_bond: f64,
    /// Seconds for bids, and again for opening them.
    pub bid_seconds: f64,
    /// The time of a segment, as a multiple of the predicted one.
    pub slack: f64,
    /// Orders of a job in all, in place of those that found no provider, stopped, or were slashed.
    pub tries: u32,
    /// Minutes until an order that found no provider is placed again.
    pub retry_minutes: f64,
}

impl OrderSettings {
    /// Microseconds of a step on one device of median speed.
    pub(super) fn step_us(&self) -> u64 {
        (self.step_ms * 1e3).round() as u64
    }
}

impl Default for OrderSettings {
    fn default() -> Self {
        Self {
            segments: 100,
            steps: 60,
            step_ms: 600.0,
            slowest: 4.0,
            price_max: 4.0,
            audited: 0.05,
            auditors: 2,
            colluding: 0.333_333,
            audit_fee: 0.3,
            stake: 1.0,
            bid_bond: 0.1,
            bid_seconds: 60.0,
            slack: 2.0,
            tries: 12,
            retry_minutes: 20.0,
        }
    }
}

/// Listings, which the accounts of all providers open at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListingSettings {
    /// Stake of a listing, in florins.
    pub stake: f64,
    /// Fee for a probe, in florins.
    pub fee: f64,
    /// Minutes between two probes of all idle listings.
    pub probe_minutes: f64,
}

/// A task of the laboratory whose members have no devices: each places an order for the training of each round, and
/// is paid for its updates. Buyer's tokens flow to data by the task, and to infrastructure by the leases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RentedTask {
    /// The built-in scenario of the task.
    pub scenario: String,
    /// The group of renters that its members are, one for each.
    pub renters: String,
    /// Device-hours of a round's training for each row of a member.
    pub hours_per_row: f64,
    /// Minutes from the offer of a round to that of the next one, in which the members' trainings must end.
    pub round_minutes: f64,
}

/// A group of providers with the same distributions and strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderGroup {
    /// Number of members.
    pub count: u32,
    /// Their strategy.
    #[serde(default)]
    pub strategy: ProviderStrategy,
    /// Devices of a member; an order takes one of them.
    #[serde(default = "one")]
    pub devices: u32,
    /// Time of a step as a multiple of the order's `step_ms`, median of the group.
    #[serde(default = "unit")]
    pub slowness: f64,
    /// Standard deviation of the logarithm of the time of a step, over the members.
    #[serde(default = "default_spread")]
    pub spread: f64,
    /// The same over the leases of a member.
    #[serde(default = "default_variation")]
    pub variation: f64,
    /// Cost of an hour of a device at work, median of the group.
    #[serde(default = "unit")]
    pub cost_per_hour: f64,
    /// Standard deviation of the logarithm of the cost, over the members.
    #[serde(default = "default_spread")]
    pub cost_spread: f64,
    /// Failures of a device in an hour at work, which end its lease.
    #[serde(default)]
    pub failures_per_hour: f64,
}

/// A group of renters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenterGroup {
    /// Number of members.
    pub count: u32,
    /// Their strategy.
    #[serde(default)]
    pub strategy: RenterStrategy,
    /// Orders of the group in an hour.
    pub orders_per_hour: f64,
    /// Orders of each hour as multiples of that, from the first hour on, over and over; empty for 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load: Vec<f64>,
    /// The accounts that read the rows, and so may audit.
    #[serde(default = "public")]
    pub data_class: DataClass,
}

/// A group of auditors, who stand ready for every order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditorGroup {
    /// Number of members.
    pub count: u32,
    /// Their strategy.
    #[serde(default)]
    pub strategy: AuditorStrategy,
    /// Cost of an hour of computing.
    #[serde(default = "unit")]
    pub cost_per_hour: f64,
}

const fn one() -> u32 {
    1
}

const fn unit() -> f64 {
    1.0
}

const fn default_spread() -> f64 {
    0.2
}

const fn default_variation() -> f64 {
    0.05
}

const fn public() -> DataClass {
    DataClass::Public
}

impl ComputeScenario {
    /// The scenario in which every group and the coordinator are honest: the counterfactual of all deviations.
    #[must_use]
    pub fn made_honest(&self) -> Self {
        let mut honest = self.clone();
        honest.coordinator = CoordinatorStrategy::default();
        for group in honest.providers.values_mut() {
            // Members that relay have one machine together.
            if group.strategy == ProviderStrategy::Relays {
                group.count = 1;
            }
            group.strategy = ProviderStrategy::default();
        }
        for group in honest.renters.values_mut() {
            // Orders of a renter that washes exist for the attack alone.
            if matches!(group.strategy, RenterStrategy::Washes { .. }) {
                group.orders_per_hour = 0.0;
            }
            group.strategy = RenterStrategy::default();
        }
        for group in honest.auditors.values_mut() {
            group.strategy = AuditorStrategy::default();
        }
        honest
    }

    /// Whether every group and the coordinator are honest.
    #[must_use]
    pub fn is_honest(&self) -> bool {
        self.coordinator == CoordinatorStrategy::Honest && self.deviating().next().is_none()
    }

    /// The names of the groups that are not honest.
    pub fn deviating(&self) -> impl Iterator<Item = &str> {
        let providers = self.providers.iter().filter(|(_, group)| !group.strategy.is_honest());
        let renters = self.renters.iter().filter(|(_, group)| !group.strategy.is_honest());
        let auditors = self.auditors.iter().filter(|(_, group)| !group.strategy.is_honest());
        let names = providers.map(|(name, _)| name).chain(renters.map(|(name, _)| name));
        names.chain(auditors.map(|(name, _)| name)).map(String::as_str)
    }

    /// All groups: name, role and members, providers first.
    pub fn groups(&self) -> impl Iterator<Item = (&str, Role, u32)> {
        let providers = self.providers.iter().map(|(name, of)| (name, Role::Provider, of.count));
        let renters = self.renters.iter().map(|(name, of)| (name, Role::Renter, of.count));
        let auditors = self.auditors.iter().map(|(name, of)| (name, Role::Auditor, of.count));
        providers
            .chain(renters)
            .chain(auditors)
            .map(|(name, role, count)| (name.as_str(), role, count))
    }

    /// The scenario as TOML with all keys.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // All fields serialize to TOML.
        toml::to_string_pretty(self).unwrap_or_default()
    }
}

/// The role of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It computes leases.
    Provider,
    /// It orders trainings.
    Renter,
    /// It computes drawn segments again.
    Auditor,
}

impl Role {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Provider => "provider",
            Self::Renter => "renter",
            Self::Auditor => "auditor",
        }
    }
}
