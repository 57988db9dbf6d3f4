//! Time as an argument: hosts hand it in, nothing here reads a clock.

use std::fmt;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

/// A moment: milliseconds since 1970-01-01 UTC, or since whatever a virtual clock began with.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Tick(pub u64);

impl Tick {
    /// The end of time: what a deadline becomes that would lie beyond it.
    pub const NEVER: Self = Self(u64::MAX);

    /// This moment and so many milliseconds; [`Tick::NEVER`] where that would overflow, which for a deadline is the
    /// honest meaning.
    #[must_use]
    pub const fn after_ms(self, ms: u64) -> Self {
        match self.0.checked_add(ms) {
            Some(t) => Self(t),
            None => Self::NEVER,
        }
    }

    /// Milliseconds from `earlier` to this moment; 0 if it lies in the future.
    #[must_use]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        match self.0.checked_sub(earlier.0) {
            Some(ms) => ms,
            None => 0,
        }
    }
}

impl fmt::Display for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}
