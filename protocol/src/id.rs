//! Identifiers as distinct types: digests, addresses, keys and ids.

use std::fmt;
use std::str::FromStr;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::bytes::keccak256;

/// Why a text is not a valid id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The wrong number of hexadecimal digits, or a character that is not one.
    #[error(
        "{text:?} is not a valid {what}: expected {expected} hexadecimal digits, with or without 0x"
    )]
    InvalidHex {
        /// Kind of the expected id.
        what: &'static str,
        /// Expected number of digits.
        expected: usize,
        /// The text, cut to a printable length.
        text: String,
    },
    /// Mixed case that does not match the EIP-55 checksum: probably a typing error.
    #[error("address {0:?} fails its EIP-55 checksum: compare it with the source")]
    Checksum(String),
}

pub(crate) fn parse_hex<const N: usize>(
    what: &'static str,
    text: &str,
) -> Result<[u8; N], IdError> {
    let digits = text.strip_prefix("0x").unwrap_or(text).as_bytes();
    let wrong = || IdError::InvalidHex {
        what,
        expected: N.saturating_mul(2),
        text: text.chars().take(80).collect(),
    };
    let mut out = [0u8; N];
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return Err(wrong());
    }
    for (byte, pair) in out.iter_mut().zip(pairs) {
        *byte = hex_byte(*pair).ok_or_else(wrong)?;
    }
    Ok(out)
}

/// The byte of two hexadecimal digits.
pub(crate) fn hex_byte([high, low]: [u8; 2]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some((digit(high)? << 4) | digit(low)?)
}

/// The two lower-case hexadecimal digits of a byte.
const fn hex_digits(byte: u8) -> (u8, u8) {
    const fn digit(nibble: u8) -> u8 {
        let base = if nibble < 10 { b'0' } else { b'a' - 10 };
        base.saturating_add(nibble)
    }
    (digit(byte >> 4), digit(byte & 15))
}

/// Bytes per formatter call.
const HEX_CHUNK_BYTES: usize = 32;

/// Writes bytes as lower-case hexadecimal digits. It passes many digits to the formatter at once: a
/// call takes as long for two digits as for sixty, and each response of a coordinator has hundreds
/// of them.
pub(crate) fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    let mut text = [0u8; 2 * HEX_CHUNK_BYTES];
    for piece in bytes.chunks(HEX_CHUNK_BYTES) {
        let pairs = text.as_chunks_mut::<2>().0;
        for ([high, low], byte) in pairs.iter_mut().zip(piece) {
            (*high, *low) = hex_digits(*byte);
        }
        let written = text.get(..piece.len().saturating_mul(2)).ok_or(fmt::Error)?;
        f.write_str(std::str::from_utf8(written).map_err(|_| fmt::Error)?)?;
    }
    Ok(())
}

macro_rules! impl_text_form {
    ($name:ident) => {
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use impl_text_form;

macro_rules! define_bytes_id {
    ($(#[$doc:meta])* $name:ident, $len:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
                 BorshSerialize, BorshDeserialize)]
        #[cfg_attr(feature = "schema", derive(borsh::BorshSchema))]
        pub struct $name(pub [u8; $len]);

        impl $name {
            /// The bytes.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; $len] {
                &self.0
            }
            /// The first eight hexadecimal digits, for tables and logs.
            #[must_use]
            pub fn short(&self) -> String {
                self.to_string().chars().take(8).collect()
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(f, &self.0)
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                parse_hex::<$len>($what, text).map(Self)
            }
        }
        impl_text_form!($name);
    };
}

define_bytes_id!(
    /// A BLAKE3 digest, 32 bytes.
    Digest, 32, "digest"
);
define_bytes_id!(
    /// The digest of a [`crate::TaskSpec`], used as the task's id.
    TaskId, 32, "task id"
);
define_bytes_id!(
    /// Id of one settlement: derived from task and round, so that a round can be settled only once.
    SettlementId, 32, "payout id"
);
define_bytes_id!(
    /// An ed25519 public key, with which a participant, provider or coordinator signs frequent
    /// messages.
    NodeKey, 32, "node key"
);

/// An account: the last 20 bytes of the keccak hash of a secp256k1 public key, as in Ethereum. Its
/// text form has the EIP-55 checksum.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize,
)]
#[cfg_attr(feature = "schema", derive(borsh::BorshSchema))]
pub struct Address(pub [u8; 20]);

impl Address {
    /// The bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 20] {
        &self.0
    }
    /// `0x` and eight digits, for tables.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string().chars().take(10).collect()
    }
}

/// In mixed case, which is the checksum of ERC-55.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = [0; 40];
        for ([high, low], byte) in digits.as_chunks_mut::<2>().0.iter_mut().zip(self.0) {
            (*high, *low) = hex_digits(byte);
        }
        let hash = keccak256(&digits);
        let nibbles = hash.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        for (digit, nibble) in digits.iter_mut().zip(nibbles) {
            if nibble >= 8 {
                digit.make_ascii_uppercase();
            }
        }
        f.write_str("0x")?;
        f.write_str(std::str::from_utf8(&digits).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for Address {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let address = Self(parse_hex("address", text)?);
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let mixed = digits.bytes().any(|c| c.is_ascii_uppercase())
            && digits.bytes().any(|c| c.is_ascii_lowercase());
        if mixed && address.to_string().strip_prefix("0x") != Some(digits) {
            return Err(IdError::Checksum(text.to_owned()));
        }
        Ok(address)
    }
}
impl_text_form!(Address);

/// EIP-155 chain id; the embedded local chain has one as well.
#[derive(
    Clone,
    Copy,
    Debug,
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
pub struct ChainId(pub u64);

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Id of a market: a chain, and the digest of the market's origin (the local chain's genesis, or
/// the contract's address). Every signed message includes it, so that a message cannot be replayed
/// in another market.
#[derive(
    Clone,
    Copy,
    Debug,
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
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct MarketId {
    /// The chain.
    pub chain: ChainId,
    /// Digest of the market's origin.
    pub genesis: Digest,
}

/// Number of a round within its task; the first is 1.
#[derive(
    Clone,
    Copy,
    Debug,
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
pub struct RoundNumber(pub u32);

impl RoundNumber {
    /// The first round of a task.
    pub const FIRST: Self = Self(1);
    /// The preceding round; `None` for the first.
    #[must_use]
    pub const fn previous(self) -> Option<Self> {
        match self.0 {
            0 | 1 => None,
            n => Some(Self(n.saturating_sub(1))),
        }
    }

    /// The next round; `None` after the largest number.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        match self.0.checked_add(1) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }
}

impl fmt::Display for RoundNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_in_any_case_but_a_wrong_checksum_is_refused() {
        let text = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"; // from EIP-55
        let address: Address = text.parse().unwrap();
        assert_eq!(address.to_string(), text);
        assert_eq!(text.to_lowercase().parse::<Address>().unwrap(), address);
        let wrong = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAeD";
        assert!(matches!(wrong.parse::<Address>(), Err(IdError::Checksum(_))));
    }

    #[test]
    fn hex_output_equals_per_byte_formatting() {
        let all: [u8; 256] = std::array::from_fn(|byte| u8::try_from(byte).unwrap());
        struct Shown<'a>(&'a [u8]);
        impl fmt::Display for Shown<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(f, self.0)
            }
        }
        for length in [0, 1, 20, 31, 32, 33, 64, 65, 256] {
            let bytes = &all[256 - length..];
            let one_by_one: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(Shown(bytes).to_string(), one_by_one);
        }
    }

    #[test]
    fn hex_of_the_wrong_length_or_alphabet_is_refused() {
        for text in ["", "0x", "ab", &"g".repeat(64), &"a".repeat(63), &"é".repeat(32)] {
            assert!(text.parse::<Digest>().is_err(), "{text:?}");
        }
        let digest: Digest = "0f".repeat(32).parse().unwrap();
        assert_eq!(serde_json::to_string(&digest).unwrap(), format!("\"{}\"", "0f".repeat(32)));
    }
}
