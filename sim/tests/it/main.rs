//! The laboratory as its users see it: whole experiments on small markets.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod experiments_repeat;
mod faults;
mod files_are_read_strictly;
mod strategies_earn_what_they_deserve;
mod workloads_compare;
