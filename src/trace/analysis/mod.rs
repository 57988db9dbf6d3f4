//! Reads the traces of all processes of a market and explains the time of each round.
//!
//! The times of a round form a small graph: offers, commits, requests and updates are its messages,
//! and the ends of its phases are barriers. [`path`] follows it backwards, [`waits`] sorts the path
//! by causes, [`delays`] compares each part with its usual time, [`producers`] has the waits between
//! members and the programs that write their rows, and [`replay`] repeats the round with other
//! members or another deadline.

pub(crate) mod clocks;
pub(crate) mod delays;
pub(crate) mod path;
pub(crate) mod producers;
pub(crate) mod read;
pub(crate) mod replay;
pub(crate) mod round;
pub(crate) mod spares;
#[cfg(test)]
mod synthetic;
pub(crate) mod waits;
