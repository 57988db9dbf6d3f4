//! Decimal settings without floats.

use std::fmt;
use std::str::FromStr;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::impl_text_form;

/// A non-negative decimal with six places, stored as an integer number of millionths: learning
/// rates, norms, multiples of the standard error. Its text and JSON form is a decimal number.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize,
)]
#[cfg_attr(feature = "schema", derive(borsh::BorshSchema))]
pub struct Micro(pub u64);

/// The text is not a valid [`Micro`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a number from 0 to 18446744073709 with at most six decimals, such as 0.05")]
pub struct ParseMicroError(String);

/// Decimal places.
const PLACES: usize = 6;
const ONE: u64 = 1_000_000;

impl Micro {
    /// Zero; for some settings it means "off".
    pub const ZERO: Self = Self(0);
    /// One.
    pub const ONE: Self = Self(ONE);
}

impl fmt::Display for Micro {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0.checked_div(ONE).unwrap_or_default();
        let part = self.0.checked_rem(ONE).unwrap_or_default();
        if part == 0 {
            return f.pad(&whole.to_string());
        }
        f.pad(format!("{whole}.{part:06}").trim_end_matches('0'))
    }
}

impl FromStr for Micro {
    type Err = ParseMicroError;
    fn from_str(text: &str) -> Result<Self, ParseMicroError> {
        let wrong = || ParseMicroError(text.chars().take(40).collect());
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |t: &str| !t.is_empty() && t.bytes().all(|c| c.is_ascii_digit());
        if !digits(whole) || !digits(part) || part.len() > PLACES {
            return Err(wrong());
        }
        let whole: u64 = whole.parse().map_err(|_| wrong())?;
        let part: u64 = format!("{part:0<PLACES$}").parse().map_err(|_| wrong())?;
        whole.checked_mul(ONE).and_then(|m| m.checked_add(part)).map(Self).ok_or_else(wrong)
    }
}
impl_text_form!(Micro);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact_and_others_are_refused() {
        for (text, millionths) in [("0.1", 100_000), ("2", 2_000_000), ("0.000001", 1)] {
            let micro: Micro = text.parse().unwrap();
            assert_eq!((micro.0, micro.to_string().as_str()), (millionths, text));
        }
        for text in [
            "",
            "-1",
            "+1",
            "1.",
            ".5",
            "1.+5",
            "0.0000001",
            "nan",
            "1e-3",
            "99999999999999999999",
            "18446744073710",
        ] {
            assert!(text.parse::<Micro>().is_err(), "{text}");
        }
    }
}
