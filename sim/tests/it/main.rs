//! Whole experiments on small markets, through the public interface of the laboratory.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod attack_search;
mod determinism;
mod devices;
mod incentives;
mod measures;
mod replay;
mod scenario_validation;
mod selectors;
mod strategies;
mod unequal_members;
mod workload;
