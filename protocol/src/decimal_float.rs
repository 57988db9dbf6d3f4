//! Numbers of an encoding, without floats: a decimal mantissa and exponent.

use std::fmt;
use std::io::{Error, ErrorKind, Read};
use std::str::FromStr;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::impl_text_form;

/// A number `mantissa · 10^exponent` with at most 18 digits. Its text and JSON form is a decimal
/// number such as `-0.25` or `4e-9`. A program computes with the binary64 number that is nearest to
/// it, which every language returns for this text.
///
/// Each number has one form: the mantissa of zero has the exponent 0, and no other mantissa is
/// divisible by ten.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, BorshSerialize)]
#[cfg_attr(feature = "schema", derive(borsh::BorshSchema))]
pub struct DecimalFloat {
    mantissa: i64,
    exponent: i8,
}

/// The text is not a valid [`DecimalFloat`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a decimal number with at most 18 digits and an exponent from -60 to 40, such as \
     -0.25 or 4e-9"
)]
pub struct ParseDecimalFloatError(String);

/// Most significant digits.
const DIGITS_MAX: usize = 18;
/// Limits of the exponent: every number is far within the range of binary64.
const EXPONENT_MIN: i32 = -60;
const EXPONENT_MAX: i32 = 40;
/// Longest text that is parsed.
const TEXT_BYTES_MAX: usize = 100;
/// Numbers with more zeros behind the point, or before it, are written with an exponent.
const ZEROS_WRITTEN_MAX: usize = 6;

impl DecimalFloat {
    /// Zero.
    pub const ZERO: Self = Self { mantissa: 0, exponent: 0 };
    /// One.
    pub const ONE: Self = Self { mantissa: 1, exponent: 0 };

    /// The number with this mantissa and exponent; `None` if they are not its only form, or out of
    /// range.
    #[must_use]
    pub fn new(mantissa: i64, exponent: i8) -> Option<Self> {
        let normal = match mantissa.checked_rem(10) {
            Some(0) => mantissa == 0 && exponent == 0,
            _ => true,
        };
        let fits = mantissa.unsigned_abs() < 1_000_000_000_000_000_000
            && (EXPONENT_MIN..=EXPONENT_MAX).contains(&i32::from(exponent));
        (normal && fits).then_some(Self { mantissa, exponent })
    }

    /// The mantissa.
    #[must_use]
    pub const fn mantissa(&self) -> i64 {
        self.mantissa
    }

    /// The exponent.
    #[must_use]
    pub const fn exponent(&self) -> i8 {
        self.exponent
    }
}

impl BorshDeserialize for DecimalFloat {
    fn deserialize_reader<R: Read>(reader: &mut R) -> std::io::Result<Self> {
        let (mantissa, exponent) =
            (i64::deserialize_reader(reader)?, i8::deserialize_reader(reader)?);
        let wrong = || Error::new(ErrorKind::InvalidData, "not the only form of a decimal number");
        Self::new(mantissa, exponent).ok_or_else(wrong)
    }
}

impl fmt::Display for DecimalFloat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.mantissa < 0 { "-" } else { "" };
        let digits = self.mantissa.unsigned_abs().to_string();
        let zeros = usize::from(self.exponent.unsigned_abs());
        let fits = digits.len().saturating_add(zeros) <= DIGITS_MAX;
        let text = if self.exponent >= 0 && zeros <= ZEROS_WRITTEN_MAX && fits {
            format!("{sign}{digits}{}", "0".repeat(zeros))
        } else if self.exponent < 0 && zeros <= digits.len().saturating_add(ZEROS_WRITTEN_MAX) {
            let padded = format!("{digits:0>width$}", width = zeros.saturating_add(1));
            let (whole, part) = padded.split_at(padded.len().saturating_sub(zeros));
            format!("{sign}{whole}.{part}")
        } else {
            format!("{sign}{digits}e{}", self.exponent)
        };
        f.pad(&text)
    }
}

impl FromStr for DecimalFloat {
    type Err = ParseDecimalFloatError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseDecimalFloatError(text.chars().take(40).collect());
        if text.len() > TEXT_BYTES_MAX {
            return Err(wrong());
        }
        parse(text).ok_or_else(wrong)
    }
}
impl_text_form!(DecimalFloat);

fn parse(text: &str) -> Option<DecimalFloat> {
    let (number, exponent) = match text.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (sign, number) = match number.strip_prefix('-') {
        Some(number) => (-1, number),
        None => (1, number),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |t: &str| !t.is_empty() && t.bytes().all(|c| c.is_ascii_digit());
    if !is_digits(whole) || !is_digits(part) {
        return None;
    }
    let digits = format!("{whole}{part}");
    let ending = digits.trim_end_matches('0');
    let zeros = i32::try_from(digits.len().checked_sub(ending.len())?).ok()?;
    let significant = ending.trim_start_matches('0');
    if significant.is_empty() {
        return Some(DecimalFloat::ZERO);
    }
    if significant.len() > DIGITS_MAX {
        return None;
    }
    let places = i32::try_from(part.len()).ok()?;
    let exponent = exponent.checked_sub(places)?.checked_add(zeros)?;
    let mantissa = significant.parse::<i64>().ok()?.checked_mul(sign)?;
    DecimalFloat::new(mantissa, i8::try_from(exponent).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decimal_number_has_one_form_and_reads_back() {
        for (text, mantissa, exponent, shown) in [
            ("0", 0, 0, "0"),
            ("-0.00", 0, 0, "0"),
            ("0.5", 5, -1, "0.5"),
            ("-12.50", -125, -1, "-12.5"),
            ("1500", 15, 2, "1500"),
            ("1e10", 1, 10, "1e10"),
            ("0.0000004", 4, -7, "0.0000004"),
            ("0.00000004", 4, -8, "4e-8"),
            ("0.003921568627450980", 392_156_862_745_098, -17, "0.00392156862745098"),
            ("123456789012345678", 123_456_789_012_345_678, 0, "123456789012345678"),
            ("123456789012345678000", 123_456_789_012_345_678, 3, "123456789012345678e3"),
        ] {
            let number: DecimalFloat = text.parse().unwrap();
            assert_eq!((number.mantissa, number.exponent), (mantissa, exponent), "{text}");
            assert_eq!(number.to_string(), shown);
            assert_eq!(shown.parse(), Ok(number), "{shown}");
        }
    }

    #[test]
    fn a_text_that_is_no_decimal_number_is_refused() {
        for text in
            ["", "-", ".5", "5.", "+1", "1e", "nan", "inf", "1_0", "1e41", "1e-61", "1e99999999999"]
        {
            assert!(text.parse::<DecimalFloat>().is_err(), "{text}");
        }
        assert!("1234567890123456789".parse::<DecimalFloat>().is_err(), "19 digits");
        assert!("0".repeat(101).parse::<DecimalFloat>().is_err());
    }

    #[test]
    fn bytes_with_a_second_form_of_a_number_do_not_decode() {
        let bytes = |mantissa: i64, exponent: i8| {
            [&mantissa.to_le_bytes()[..], &exponent.to_le_bytes()].concat()
        };
        let read = |bytes: &[u8]| borsh::from_slice::<DecimalFloat>(bytes).ok();
        assert_eq!(read(&bytes(15, 2)), Some(DecimalFloat { mantissa: 15, exponent: 2 }));
        for (mantissa, exponent) in [(150, 1), (0, 1), (1, 41), (1, -61), (i64::MIN, 0)] {
            assert_eq!(read(&bytes(mantissa, exponent)), None, "{mantissa}e{exponent}");
        }
    }
}
