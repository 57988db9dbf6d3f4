//! Amounts of money: an integer without arithmetic operators.

use std::fmt;
use std::str::FromStr;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::impl_text_form;

/// An amount of florins (FLN) in base units of 10⁻¹⁸, as in Ethereum tokens. All arithmetic is
/// checked, so that an overflow or a negative result is an error instead of a wrong number.
///
/// Its text and JSON form is a decimal number of whole florins ("12.5"); use [`Amount::units`]
/// where a program needs integers.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize,
)]
#[cfg_attr(feature = "schema", derive(borsh::BorshSchema))]
pub struct Amount(u128);

/// Why an operation on amounts failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// The sum does not fit in 128 bits.
    #[error("the sum of two amounts exceeds 128 bits")]
    Overflow,
    /// The subtrahend is larger than the amount.
    #[error("{needed} FLN are needed, but only {available} FLN are available")]
    Insufficient {
        /// The available amount.
        available: Amount,
        /// The requested amount.
        needed: Amount,
    },
    /// Division by zero.
    #[error("an amount cannot be divided by zero")]
    DivisionByZero,
    /// Not a decimal number of florins.
    #[error(
        "{0:?} is not an amount: write florins with at most 18 decimals, such as 12.5, and no more than \
         340282366920938463463 of them"
    )]
    Parse(String),
}

/// Decimals of the token.
const DECIMALS: usize = 18;
/// Digits before the point of the largest amount; a text with more has leading zeros.
const WHOLE_DIGITS_MAX: usize = 21;
/// Base units of 0.0001 florin, the last decimal in a sentence.
const SHORT_STEP: u128 = 100_000_000_000_000;
const UNITS_PER_FLORIN: u128 = 1_000_000_000_000_000_000;

impl Amount {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// From base units of 10⁻¹⁸ florin.
    #[must_use]
    pub const fn from_units(units: u128) -> Self {
        Self(units)
    }

    /// The number of base units of 10⁻¹⁸ florin.
    #[must_use]
    pub const fn units(self) -> u128 {
        self.0
    }

    /// Whether the amount is zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The amount in florins for a sentence: at most four decimals, rounded down. A positive amount
    /// never reads 0.
    #[must_use]
    pub fn short(self) -> String {
        let rest = self.0.checked_rem(SHORT_STEP).unwrap_or_default();
        match self.0 {
            0 => "0".to_owned(),
            units if units < SHORT_STEP => format!("<{}", Self(SHORT_STEP)),
            units => Self(units.saturating_sub(rest)).to_string(),
        }
    }

    /// `self + other`.
    ///
    /// # Errors
    /// [`AmountError::Overflow`].
    pub fn plus(self, other: Self) -> Result<Self, AmountError> {
        self.0.checked_add(other.0).map(Self).ok_or(AmountError::Overflow)
    }

    /// `self − other`.
    ///
    /// # Errors
    /// [`AmountError::Insufficient`], with both numbers.
    pub fn minus(self, other: Self) -> Result<Self, AmountError> {
        self.0
            .checked_sub(other.0)
            .map(Self)
            .ok_or(AmountError::Insufficient { available: self, needed: other })
    }

    /// The sum of `amounts`.
    ///
    /// # Errors
    /// [`AmountError::Overflow`].
    pub fn total(amounts: impl IntoIterator<Item = Self>) -> Result<Self, AmountError> {
        amounts.into_iter().try_fold(Self::ZERO, Self::plus)
    }

    /// `self × numerator / denominator`, rounded down; the intermediate product is exact.
    ///
    /// # Errors
    /// [`AmountError::Overflow`] if the result does not fit; [`AmountError::DivisionByZero`].
    pub fn mul_div_down(self, numerator: u128, denominator: u128) -> Result<Self, AmountError> {
        use ruint::aliases::U256;
        let product =
            U256::from(self.0).checked_mul(U256::from(numerator)).ok_or(AmountError::Overflow)?;
        let quotient =
            product.checked_div(U256::from(denominator)).ok_or(AmountError::DivisionByZero)?;
        quotient.try_into().map(Self).map_err(|_| AmountError::Overflow)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0.checked_div(UNITS_PER_FLORIN).unwrap_or_default();
        let part = self.0.checked_rem(UNITS_PER_FLORIN).unwrap_or_default();
        let text = if part == 0 {
            whole.to_string()
        } else {
            format!("{whole}.{part:018}").trim_end_matches('0').to_owned()
        };
        f.pad(&text)
    }
}

impl FromStr for Amount {
    type Err = AmountError;
    fn from_str(text: &str) -> Result<Self, AmountError> {
        let wrong = || AmountError::Parse(text.chars().take(60).collect());
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |t: &str| !t.is_empty() && t.bytes().all(|c| c.is_ascii_digit());
        let too_long = whole.len() > WHOLE_DIGITS_MAX || part.len() > DECIMALS;
        if !digits(whole) || !digits(part) || too_long {
            return Err(wrong());
        }
        let whole: u128 = whole.parse().map_err(|_| wrong())?;
        let part: u128 = format!("{part:0<DECIMALS$}").parse().map_err(|_| wrong())?;
        whole
            .checked_mul(UNITS_PER_FLORIN)
            .and_then(|units| units.checked_add(part))
            .map(Self)
            .ok_or_else(wrong)
    }
}
impl_text_form!(Amount);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_short_amount_is_rounded_down_and_never_reads_zero() {
        for (exact, short) in [
            ("0", "0"),
            ("6", "6"),
            ("12.5", "12.5"),
            ("12.345678901234567890", "12.3456"),
            ("0.99999", "0.9999"),
            ("0.0001", "0.0001"),
            ("0.000099999999999999", "<0.0001"),
        ] {
            assert_eq!(exact.parse::<Amount>().unwrap().short(), short);
        }
    }

    #[test]
    fn text_form_and_base_units_agree() {
        for (text, units) in [("0", 0), ("1", 10u128.pow(18)), ("0.000000000000000001", 1)] {
            let amount: Amount = text.parse().unwrap();
            assert_eq!((amount.units(), amount.to_string().as_str()), (units, text));
        }
        let half: Amount = "12.50".parse().unwrap();
        assert_eq!(half.to_string(), "12.5");
        assert_eq!(format!("{half:>6}"), "  12.5");
    }

    #[test]
    fn invalid_amounts_are_refused() {
        for text in ["", "-1", "+1", "1e3", "1.", ".5", "1.0000000000000000001", "NaN", "1 FLN"] {
            assert!(text.parse::<Amount>().is_err(), "{text:?}");
        }
        assert!(u128::MAX.to_string().parse::<Amount>().is_err());
    }

    #[test]
    fn an_insufficient_amount_error_names_both_amounts() {
        let error = Amount::from_units(1).minus(Amount::from_units(2)).unwrap_err();
        assert!(error.to_string().contains("0.000000000000000002 FLN are needed"));
    }

    proptest! {
        #[test]
        fn every_amount_round_trips_through_its_text_form(units: u128) {
            let amount = Amount::from_units(units);
            prop_assert_eq!(amount.to_string().parse::<Amount>().unwrap(), amount);
        }

        #[test]
        fn a_share_never_exceeds_the_whole(units: u128, n: u64, more: u64) {
            let d = u128::from(n) + u128::from(more) + 1;
            let share = Amount::from_units(units).mul_div_down(n.into(), d).unwrap();
            prop_assert!(share.units() <= units);
        }
    }
}
