//! Runs the round: a pure engine, its journal and its server.
pub mod engine;
pub mod store;
