//! The only conversion from float scores to integer scores: every number that is published,
//! compared, signed or paid has passed through it.

/// Nano-nats in a nat, the unit of published losses and scores.
pub const NANO_PER_NAT: f64 = 1e9;

/// The smallest magnitude, in nano-nats, that exceeds an `i64`: 2^63, which is exact in `f64`.
const OUT_OF_RANGE: f64 = 9_223_372_036_854_775_808.0;

/// Why a float has no integer representation.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum NanoError {
    /// NaN or an infinity.
    #[error("{nats} nats is not a finite number; scores must be finite")]
    NotFinite {
        /// The number.
        nats: f64,
    },
    /// The number exceeds the integer.
    #[error("{nats} nats does not fit 64 bits of nano-nats; scores lie within ±9.22e9 nats")]
    OutOfRange {
        /// The number.
        nats: f64,
    },
}

impl NanoError {
    /// A stable code of the error, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFinite { .. } => "SCORE_NOT_FINITE",
            Self::OutOfRange { .. } => "SCORE_OUT_OF_RANGE",
        }
    }
}

/// Converts nats to nano-nats: `nats · 10^9` in `f64`, rounded half to even.
///
/// # Errors
/// [`NanoError::NotFinite`] for NaN and infinities, [`NanoError::OutOfRange`] for numbers beyond
/// `i64`.
pub fn to_nano(nats: f64) -> Result<i64, NanoError> {
    if !nats.is_finite() {
        return Err(NanoError::NotFinite { nats });
    }
    let rounded = (nats * NANO_PER_NAT).round_ties_even();
    if !(-OUT_OF_RANGE..OUT_OF_RANGE).contains(&rounded) {
        return Err(NanoError::OutOfRange { nats });
    }
    // Exact: a whole number within the range of i64.
    Ok(rounded as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_to_even() {
        let table = [
            (0.0, 0),
            (-0.0, 0),
            (1.0, 1_000_000_000),
            (0.5e-9, 0),
            (1.5e-9, 2),
            (2.5e-9, 2),
            (-0.5e-9, 0),
            (-1.5e-9, -2),
            (0.4e-9, 0),
            (0.6e-9, 1),
            (-2.345_678_901, -2_345_678_901),
            (f64::MIN_POSITIVE, 0),
        ];
        for (nats, nano) in table {
            assert_eq!(to_nano(nats), Ok(nano), "{nats:e}");
        }
    }

    #[test]
    fn non_finite_and_too_large_numbers_are_refused() {
        for nats in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(to_nano(nats).unwrap_err().code(), "SCORE_NOT_FINITE");
        }
        for nats in [1e10, -1e10, f64::MAX, 9.223_372_036_854_776e9] {
            assert_eq!(to_nano(nats).unwrap_err().code(), "SCORE_OUT_OF_RANGE", "{nats:e}");
        }
        assert!(to_nano(9.223e9).is_ok());
    }
}
