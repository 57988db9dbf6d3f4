//! Time is an argument: callers pass it in, and no function of this crate reads a clock.

use std::fmt;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

/// A point in time: milliseconds since 1970-01-01 UTC, or since the start of a virtual clock.
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
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Timestamp(pub u64);

/// Units of durations, from the largest, with their milliseconds.
const UNITS: [(u64, &str); 5] =
    [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms")];

/// Formats milliseconds as an exact duration in the largest units, such as `1 h 30 min`.
#[must_use]
pub fn format_ms(ms: u64) -> String {
    let mut rest = ms;
    let mut parts = Vec::new();
    for (unit, name) in UNITS {
        let count = rest.checked_div(unit).unwrap_or_default();
        if count > 0 {
            parts.push(format!("{count} {name}"));
            rest = rest.checked_rem(unit).unwrap_or_default();
        }
    }
    if parts.is_empty() { "0 ms".to_owned() } else { parts.join(" ") }
}

impl Timestamp {
    /// The latest point in time: the result where a deadline would lie beyond it.
    pub const MAX: Self = Self(u64::MAX);

    /// This time plus `ms` milliseconds; [`Timestamp::MAX`] on overflow.
    #[must_use]
    pub const fn saturating_add_ms(self, ms: u64) -> Self {
        match self.0.checked_add(ms) {
            Some(t) => Self(t),
            None => Self::MAX,
        }
    }

    /// Milliseconds from `earlier` to this time; 0 if `earlier` is later than this time.
    #[must_use]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        match self.0.checked_sub(earlier.0) {
            Some(ms) => ms,
            None => 0,
        }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}
