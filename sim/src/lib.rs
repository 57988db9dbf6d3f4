//! The incentive laboratory: measures what honest and deviating strategies earn, on the code that
//! pays in production.
//!
//! A [`Scenario`] states the population, the strategy of each group, the payment mechanism and the
//! question. [`run_experiment`] simulates it under virtual time, once for each seed: the
//! coordinator's engine receives every message, `florin-work` values every round,
//! [`florin_protocol::close_round`] computes every payout, and the ledger's own rules move every
//! token. The simulation leaves out sockets, files and signatures; it mocks nothing else. One seed
//! gives the same bytes on any number of threads.
//!
//! * [`compute`] is the market for compute: providers, renters and auditors, each lease on the rules of production.
//! * [`scenario`] reads the experiment from a file.
//! * [`population`] draws the members: their rows, machines, bandwidth and costs.
//! * [`devices`] draws the members' devices, and predicts the time of their rounds.
//! * [`strategy`] lists what members can do, and [`member_updates`] does it: it trains and makes the
//!   updates that they send.
//! * [`market`] joins the engine, the ledger and the virtual clock.
//! * [`mechanism`] turns a round into scores: Florin's own mechanism and the baselines.
//! * [`outcome`] is the outcome of one seed: its members, its rounds and its model.
//! * [`measure`] computes the measures of each seed and their means over all seeds.
//! * [`quote`] simulates a buyer's task on its own holdout, before it is published.
//! * [`results`] holds, writes and shows the results.
//! * [`search`] searches for the deviation with the highest gain.
//! * [`surrogate`] simulates up to a million members: score curves fitted to small real
//!   simulations, paid by the real pay rule.
//! * [`workload`] is the workload for comparisons with other simulators.
//!
//! `florin-faults` tests the same market by deterministic simulation with lost messages, crashes and
//! failing disks.

mod batch;
pub mod compute;
pub mod devices;
mod error;
mod experiment;
pub mod market;
pub mod measure;
pub mod mechanism;
pub mod member_updates;
pub mod outcome;
mod page;
pub mod population;
mod program;
pub mod quote;
pub mod random;
pub mod results;
pub mod scenario;
pub mod search;
mod selectors;
mod simulation;
pub mod strategy;
pub mod surrogate;
pub mod workload;

pub use batch::{ProgressFn, simulate};
pub use error::{SimError, SimulationFailed, SurrogateError};
pub use experiment::run_experiment;
pub use outcome::SimulationOutcome;
pub use scenario::{Scenario, ScenarioError};
pub use simulation::{GraphTask, Simulation};
