//! Canonical bytes and digests: borsh, hashed with BLAKE3 under one domain per kind of message.

use std::io;

use borsh::{BorshDeserialize, BorshSerialize};
use sha3::Digest as _;

use crate::id::Digest;
use crate::limits::MESSAGE_BYTES_MAX;

/// Initial buffer size; large enough for most messages.
const INITIAL_CAPACITY_BYTES: usize = 384;

/// A message with exactly one byte encoding and a domain-separated digest.
///
/// The digest is BLAKE3 in key-derivation mode with [`Canonical::DOMAIN`] as its context and the
/// borsh bytes as its input. Two kinds of message with equal bytes have unrelated digests.
pub trait Canonical: BorshSerialize + BorshDeserialize {
    /// The context string, `florin v1 <kind>`. It changes whenever the layout changes.
    const DOMAIN: &'static str;

    /// The canonical bytes.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(INITIAL_CAPACITY_BYTES);
        let written = self.serialize(&mut bytes);
        debug_assert!(written.is_ok(), "writing to memory fails only for lists beyond 4 GiB");
        bytes
    }

    /// Decodes canonical bytes; trailing bytes are an error.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are too long, truncated, followed by more bytes, or not this
    /// kind of message.
    fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(DecodeError::TooLong { domain: Self::DOMAIN, bytes: bytes.len() });
        }
        Self::try_from_slice(bytes)
            .map_err(|source| DecodeError::Malformed { domain: Self::DOMAIN, source })
    }

    /// The digest under this kind's domain.
    fn digest(&self) -> Digest {
        Digest(blake3::derive_key(Self::DOMAIN, &self.to_bytes()))
    }
}

/// Why bytes cannot be decoded as a message.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Longer than any valid message.
    #[error("{domain:?} has {bytes} bytes; the limit is {MESSAGE_BYTES_MAX}")]
    TooLong {
        /// Which kind of message.
        domain: &'static str,
        /// Length of the input.
        bytes: usize,
    },
    /// Truncated, followed by more bytes, or a value out of range.
    #[error("cannot decode {domain:?}: {source}")]
    Malformed {
        /// Which kind of message.
        domain: &'static str,
        /// The error from borsh.
        source: io::Error,
    },
}

/// Keccak-256, the hash of Ethereum.
#[must_use]
pub fn keccak256(bytes: &[u8]) -> [u8; 32] {
    sha3::Keccak256::digest(bytes).into()
}

/// Writes a number into a 32-byte word as `abi.encode` does: big-endian, on the right.
pub(crate) fn write_word(word: &mut [u8], number: &[u8]) {
    word.iter_mut().rev().zip(number.iter().rev()).for_each(|(to, from)| *to = *from);
}

/// The digest of a blob (parameters, update, data set): plain BLAKE3 of its bytes, as `b3sum`
/// prints it.
#[must_use]
pub fn blob_digest(bytes: &[u8]) -> Digest {
    Digest(*blake3::hash(bytes).as_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    #[test]
    fn a_map_with_unordered_or_repeated_keys_does_not_decode() {
        let read = |bytes: &[u8]| borsh::from_slice::<BTreeMap<u8, u8>>(bytes).ok();
        assert_eq!(read(&[2, 0, 0, 0, 1, 9, 3, 9]), Some(BTreeMap::from([(1, 9), (3, 9)])));
        assert_eq!(read(&[2, 0, 0, 0, 3, 9, 1, 9]), None);
        assert_eq!(read(&[2, 0, 0, 0, 1, 9, 1, 9]), None);
    }
}
