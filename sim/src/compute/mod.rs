//! The laboratory of the market for compute: what providers, renters and auditors earn, honest or not.
//!
//! Orders arrive under virtual time, and every lease and listing is played on the rules of production: sealed bids,
//! deliveries, drawn audits, disputes and deadlines ([`florin_compute`]). The trainings are hashes of the states
//! before them, so this measures the rules and not the engines. A [`ComputeScenario`] states the groups and their
//! strategies; [`run_compute_experiment`] plays each seed once as it is, and once with every group honest.

mod booking;
mod check;
pub mod lease_play;
mod listings;
mod market;
mod measure;
mod members;
mod orders;
mod outcome;
mod page;
mod rented_task;
mod results;
mod scenario;
mod strategy;
#[cfg(test)]
mod tests;

use florin_compute::LeaseError;
use florin_protocol::Amount;

pub use check::read_compute_scenario;
pub use measure::COMPUTE_MEASURES;
pub use outcome::{ComputeLease, ComputeMember, ComputeOutcome, LeaseEnd};
pub use results::{ComputeResults, run_compute_experiment};
pub use scenario::{
    AuditorGroup, ComputeScenario, ListingSettings, MarketKind, OrderSettings, ProviderGroup,
    RentedTask, RenterGroup, Role,
};
pub use strategy::{AuditorStrategy, CoordinatorStrategy, ProviderStrategy, RenterStrategy};

/// Milliseconds of an hour.
const HOUR_MS: u64 = 3_600_000;
/// Base units of a florin.
const UNITS: f64 = 1e18;

/// A simulated market for compute failed.
#[derive(Debug, thiserror::Error)]
pub enum ComputeError {
    /// The rules refused an order, a listing or an action: an error of the simulation.
    #[error("the rules of leases refuse an action of the simulation: {0}")]
    Rules(#[from] LeaseError),
    /// The task whose members rent could not be simulated.
    #[error("the task whose members rent their trainings: {0}")]
    Task(#[from] crate::SimError),
    /// A wallet could not sign.
    #[error("a simulated wallet: {0}")]
    Wallet(String),
}

/// An amount from florins, for simulated prices; at least one unit.
fn units(florins: f64) -> Amount {
    Amount::from_units(((florins * UNITS).round() as u128).max(1))
}

/// Florins of base units.
fn florins(units: i128) -> f64 {
    units as f64 / UNITS
}
