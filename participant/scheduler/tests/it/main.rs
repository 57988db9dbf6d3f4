//! The policies: rules as tables, limits as properties over random clusters.

mod brute_force;
mod hostile;
mod marble;
mod policies;
mod properties;
mod support;
