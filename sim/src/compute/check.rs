//! Reads and validates the scenarios of the market for compute.

use florin_compute::DataClass;
use toml::Table;

use super::scenario::{ComputeScenario, MARKET, RenterGroup};
use super::strategy::{AuditorStrategy, ProviderStrategy, RenterStrategy};
use crate::scenario::{Check, GROUPS_MAX, ScenarioError, SettingOverride, malformed, unknown_key};

/// Most members of a group.
const MEMBERS_MAX: u32 = 1_000;
/// Most hours, and most expected orders of a seed.
const HOURS_MAX: u32 = 10_000;
const ORDERS_MAX: f64 = 100_000.0;
/// Most steps of an order, segments of all orders of a seed, accounts that bid or audit, and probes of a seed.
const STEPS_MAX: u64 = 1_000_000;
const SEGMENTS_MAX: f64 = 1e6;
const ACCOUNTS_MAX: u32 = 500;
const PROBES_MAX: f64 = 200_000.0;
/// Most values of a group's load, and most bids of a renter's own.
const LOAD_MAX: usize = 10_000;
const LEVELS_MAX: usize = 64;
/// Most salts that a provider tries for each lease.
const SALTS_MAX: u32 = 100_000;

/// Reads a scenario of the market for compute, applies changes and validates it; `None` for a scenario of another
/// market.
///
/// # Errors
/// [`ScenarioError`].
pub fn read_compute_scenario(
    text: &str,
    changes: &[SettingOverride],
) -> Result<Option<ComputeScenario>, ScenarioError> {
    let Ok(mut table) = text.parse::<Table>() else { return Ok(None) };
    if table.get("market").and_then(|market| market.as_str()) != Some(MARKET) {
        return Ok(None);
    }
    for change in changes {
        change.apply(&mut table)?;
    }
    let scenario: ComputeScenario = match (toml::from_str::<ComputeScenario>(text), changes) {
        // An error in the text has the number of its line.
        (Err(error), []) => return Err(malformed(&error)),
        _ => table.clone().try_into().map_err(|error| malformed(&error))?,
    };
    let understood = Table::try_from(&scenario).map_err(|error| malformed(&error))?;
    if let Some(key) = unknown_key(&table, &understood) {
        return Err(malformed(&format!("unknown key {key}: leave it out")));
    }
    scenario.check()?;
    Ok(Some(scenario))
}

impl ComputeScenario {
    /// Checks every value against its bounds.
    ///
    /// # Errors
    /// The first [`ScenarioError::Value`].
    pub fn check(&self) -> Result<(), ScenarioError> {
        Check::require_name(&self.name)?;
        Check::require_seeds(self.seeds)?;
        let right = "must be 1 to 10000";
        Check::require((1..=HOURS_MAX).contains(&self.hours), "hours", &self.hours, right)?;
        self.check_order()?;
        if let Some(task) = &self.task {
            task.check(self)?;
        }
        if let Some(listing) = &self.listing {
            Check::require_range("listing.stake", listing.stake, 1e-6, 1e9)?;
            Check::require_range("listing.fee", listing.fee, 0.0, 1e9)?;
            Check::require_range("listing.probe_minutes", listing.probe_minutes, 1.0, 1e6)?;
        }
        let groups = [
            ("providers", self.providers.len()),
            ("renters", self.renters.len()),
            ("auditors", self.auditors.len()),
        ];
        for (key, count) in groups {
            let right = "must have 1 to 64 groups";
            Check::require((1..=GROUPS_MAX).contains(&count), key, &count, right)?;
        }
        let mut names: Vec<&str> = self.groups().map(|(name, ..)| name).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair.first() == pair.last()) {
            let right = "two groups have this name: give each its own";
            let name = pair.first().copied().unwrap_or_default();
            Check::require(false, "providers, renters, auditors", &name, right)?;
        }
        self.check_members()?;
        let has_group = |group: &str| names.contains(&group);
        Check::require_criteria(&self.criteria, super::COMPUTE_MEASURES, has_group)
    }

    fn check_order(&self) -> Result<(), ScenarioError> {
        let order = &self.order;
        let counts = [
            ("segments", order.segments, 2..=1_000),
            ("steps", order.steps, 1..=10_000),
            ("auditors", order.auditors, 1..=16),
            ("tries", order.tries, 1..=100),
        ];
        for (key, value, range) in counts {
            let right = format!("must be {} to {}", range.start(), range.end());
            Check::require(range.contains(&value), format!("order.{key}"), &value, &right)?;
        }
        for (key, value, low, high) in [
            ("step_ms", order.step_ms, 1e-3, 1e6),
            ("slowest", order.slowest, 1.0, 1e3),
            ("price_max", order.price_max, 1e-6, 1e9),
            ("audited", order.audited, 0.01, 0.333),
            ("colluding", order.colluding, 0.0, 0.9),
            ("audit_fee", order.audit_fee, 1e-6, 10.0),
            ("stake", order.stake, 0.0, 1e3),
            ("bid_bond", order.bid_bond, 0.1, 1.0),
            ("bid_seconds", order.bid_seconds, 1e-3, 1e5),
            ("slack", order.slack, 1.0, 100.0),
            ("retry_minutes", order.retry_minutes, 0.0, 1e5),
        ] {
            Check::require_range(format!("order.{key}"), value, low, high)?;
        }
        Ok(())
    }

    fn check_members(&self) -> Result<(), ScenarioError> {
        for (name, role, count) in self.groups() {
            let key = format!("{}s.{name}", role.name());
            Check::require_group_name(&format!("{}s", role.name()), name)?;
            let right = format!("must be 1 to {MEMBERS_MAX}");
            let fine = (1..=MEMBERS_MAX).contains(&count);
            Check::require(fine, format!("{key}.count"), &count, &right)?;
        }
        for (name, group) in &self.providers {
            let key = |what: &str| format!("providers.{name}.{what}");
            let right = "must be 1 to 64";
            let fine = (1..=64).contains(&group.devices);
            Check::require(fine, key("devices"), &group.devices, right)?;
            for (what, value, low, high) in [
                ("slowness", group.slowness, 1e-3, 1e3),
                ("spread", group.spread, 0.0, 3.0),
                ("variation", group.variation, 0.0, 3.0),
                ("cost_per_hour", group.cost_per_hour, 0.0, 1e9),
                ("cost_spread", group.cost_spread, 0.0, 3.0),
                ("failures_per_hour", group.failures_per_hour, 0.0, 1e3),
            ] {
                Check::require_range(key(what), value, low, high)?;
            }
            check_provider(&key("strategy"), &group.strategy)?;
        }
        let mut orders = 0.0;
        for (name, group) in &self.renters {
            orders += self.check_renter(name, group)?;
        }
        let right = format!(
            "orders_per_hour, times the largest load, times hours: at most {ORDERS_MAX} in all"
        );
        Check::require(orders <= ORDERS_MAX, "renters", &orders, &right)?;
        self.check_work(orders)?;
        for (name, group) in &self.auditors {
            let key = format!("auditors.{name}");
            Check::require_range(format!("{key}.cost_per_hour"), group.cost_per_hour, 0.0, 1e9)?;
            if let AuditorStrategy::Colludes { providers } = &group.strategy {
                self.require_providers(format!("{key}.strategy.providers"), providers)?;
            }
        }
        Ok(())
    }

    /// Limits the work of a seed: segments of all orders, computed steps, accounts, and probes of all accounts.
    fn check_work(&self, orders: f64) -> Result<(), ScenarioError> {
        let order = &self.order;
        let steps = u64::from(order.segments) * u64::from(order.steps);
        let right = format!("order.segments times order.steps is at most {STEPS_MAX}");
        Check::require(steps <= STEPS_MAX, "order.steps", &order.steps, &right)?;
        let right = format!("orders of all hours times order.segments are at most {SEGMENTS_MAX}");
        let segments = orders * f64::from(order.segments);
        Check::require(segments <= SEGMENTS_MAX, "order.segments", &order.segments, &right)?;
        let accounts = |group: &super::ProviderGroup| group.count * group.strategy.accounts();
        let accounts: u32 = self.providers.values().map(accounts).sum();
        let right = format!("all providers have at most {ACCOUNTS_MAX} accounts");
        Check::require(accounts <= ACCOUNTS_MAX, "providers", &accounts, &right)?;
        let auditors: u32 = self.auditors.values().map(|group| group.count).sum();
        let right = format!("at most {ACCOUNTS_MAX} auditors in all groups");
        Check::require(auditors <= ACCOUNTS_MAX, "auditors", &auditors, &right)?;
        let Some(listing) = &self.listing else { return Ok(()) };
        let probes = f64::from(self.hours) * 60.0 / listing.probe_minutes * f64::from(accounts);
        let right = format!("the probes of all accounts are at most {PROBES_MAX}");
        let key = "listing.probe_minutes";
        Check::require(probes <= PROBES_MAX, key, &listing.probe_minutes, &right)
    }

    /// Checks a group of renters, and returns the orders that are expected of it.
    fn check_renter(&self, name: &str, group: &RenterGroup) -> Result<f64, ScenarioError> {
        let key = |what: &str| format!("renters.{name}.{what}");
        Check::require_range(key("orders_per_hour"), group.orders_per_hour, 0.0, 1e6)?;
        let length = group.load.len();
        Check::require(length <= LOAD_MAX, key("load"), &length, "has at most 10000 hours")?;
        for load in &group.load {
            Check::require_range(key("load"), *load, 0.0, 1e3)?;
        }
        match &group.strategy {
            RenterStrategy::Honest => {}
            RenterStrategy::Shills { levels } => {
                let right = "give 1 to 64 prices";
                let fine = (1..=LEVELS_MAX).contains(&levels.len());
                Check::require(fine, key("strategy.levels"), &levels.len(), right)?;
                for level in levels {
                    Check::require_range(key("strategy.levels"), *level, 1e-6, 1.0)?;
                }
            }
            RenterStrategy::Disputes => {
                let right = "disputes segments that it audits: set data_class = \"private\"";
                let fine = group.data_class == DataClass::Private;
                Check::require(fine, key("data_class"), &group.data_class.name(), right)?;
            }
            RenterStrategy::Washes { providers } => {
                self.require_providers(key("strategy.providers"), providers)?;
            }
        }
        let load = group.load.iter().copied().fold(1.0, f64::max);
        Ok(group.orders_per_hour * load * f64::from(self.hours))
    }

    fn require_providers(&self, key: String, name: &String) -> Result<(), ScenarioError> {
        let right = "must name a group of providers";
        Check::require(self.providers.contains_key(name), key, name, right)
    }
}

fn check_provider(key: &str, strategy: &ProviderStrategy) -> Result<(), ScenarioError> {
    let range = |what: &str, value, low, high| {
        Check::require_range(format!("{key}.{what}"), value, low, high)
    };
    let count = |what: &str, value: u32, most: u32| {
        let right = format!("must be 1 to {most}");
        Check::require((1..=most).contains(&value), format!("{key}.{what}"), &value, &right)
    };
    match strategy {
        ProviderStrategy::Bids { factor } => range("factor", *factor, 0.0, 1e3),
        ProviderStrategy::Fakes { share } => range("share", *share, 0.0, 1.0),
        ProviderStrategy::Grinds { share, salts, .. } => {
            range("share", *share, 0.0, 1.0)?;
            count("salts", *salts, SALTS_MAX)
        }
        ProviderStrategy::Leaves { after, .. } => range("after", *after, 0.0, 1.0),
        ProviderStrategy::Inflates { factor, .. } => range("factor", *factor, 1.0, 100.0),
        ProviderStrategy::Overbooks { factor } => count("factor", *factor, 64),
        ProviderStrategy::Sells { times } => count("times", *times, 64),
        ProviderStrategy::Sybil { accounts } => count("accounts", *accounts, 64),
        ProviderStrategy::Honest
        | ProviderStrategy::Replays
        | ProviderStrategy::NeverFunds
        | ProviderStrategy::NeverOpens
        | ProviderStrategy::Relays => Ok(()),
    }
}
