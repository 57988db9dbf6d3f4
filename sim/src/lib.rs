//! The incentive laboratory: what honesty and its alternatives earn, measured on the code that really pays.
//!
//! A [`Scenario`] says who takes part, what they do, by which rule they are paid and what is to be found out. [`run`]
//! plays it under virtual time, once for each seed: the coordinator's engine takes every message, `florin-work` values
//! every round, [`florin_protocol::close_round`] decides every payout, and the ledger's own rules move every token. What
//! is left out are sockets, files and signatures; nothing else is imitated. The same seed gives the same bytes, whatever
//! the number of threads.
//!
//! * [`scenario`] is what is asked, as a file.
//! * [`population`] is who is there: shards of rows, machines, lines, costs.
//! * [`strategy`] is what they do with it.
//! * [`market`] is the engine, the books and the virtual clock.
//! * [`mechanism`] is how a round becomes scores: the market's own way, and those it is held against.
//! * [`measure`] is what came of it, seed by seed and over all seeds.
//! * [`search`] looks for the strategy that gains most.
//! * [`surrogate`] is the same for a million members: curves fitted to small real games, and the real pay rule.
//! * [`workload`] is what other simulators are compared by.
//!
//! `florin-faults` is the same market on bad days: what survives lost messages, crashes and disks that fail.

pub mod draw;
mod games;
pub mod market;
pub mod measure;
pub mod mechanism;
mod page;
pub mod parallel;
mod play;
pub mod population;
pub mod results;
pub mod scenario;
pub mod search;
pub mod strategy;
pub mod surrogate;
pub mod workload;

pub use games::{Halted, Watch};
pub use play::{Game, Played, SimError, play};
pub use scenario::{Scenario, ScenarioError};
