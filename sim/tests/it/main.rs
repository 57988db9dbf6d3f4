//! Whole experiments on small markets, through the public interface of the laboratory.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod attacks_are_searched_for;
mod experiments_repeat;
mod files_are_read_strictly;
mod games_are_replayed;
mod nothing_is_lost_from_sight;
mod strategies_earn_what_they_deserve;
mod workloads_compare;
