//! Canonical bytes and digests: borsh, hashed with blake3 under a domain per kind of message.

use std::io;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::id::Digest;
use crate::limits::MESSAGE_BYTES_MAX;

/// Room for most messages.
const USUAL_BYTES: usize = 384;

/// A message with exactly one byte string, and a digest that no other kind of message can have.
///
/// The digest is blake3 in key-derivation mode with [`Canonical::DOMAIN`] as its context and the borsh bytes as its
/// input: two kinds of message with equal bytes have unrelated digests.
pub trait Canonical: BorshSerialize + BorshDeserialize {
    /// The context string, `florin v1 <kind>`: changes whenever the layout does.
    const DOMAIN: &'static str;

    /// The canonical bytes.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        let written = self.serialize(&mut bytes);
        debug_assert!(written.is_ok(), "writing to memory fails only past 4 GiB a list");
        bytes
    }

    /// Reads canonical bytes: all of them, nothing after them.
    ///
    /// # Errors
    /// [`DecodeError`] if they are too many, cut off, trailing, or not this kind of message.
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

/// Why bytes are not the message they should be.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// More bytes than any message has.
    #[error("{bytes} bytes are too many for a {domain:?} (limit {MESSAGE_BYTES_MAX})")]
    TooLong {
        /// Which kind of message.
        domain: &'static str,
        /// How many there were.
        bytes: usize,
    },
    /// Cut off, trailing or out of range.
    #[error("these bytes are not a {domain:?}: {source}")]
    Malformed {
        /// Which kind of message.
        domain: &'static str,
        /// What borsh said.
        source: io::Error,
    },
}

/// The digest of a blob (parameters, update, data set): plain blake3 of its bytes, as `b3sum` prints it.
#[must_use]
pub fn blob_digest(bytes: &[u8]) -> Digest {
    Digest(*blake3::hash(bytes).as_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    #[test]
    fn a_map_out_of_order_is_no_second_way_to_write_it() {
        let read = |bytes: &[u8]| borsh::from_slice::<BTreeMap<u8, u8>>(bytes).ok();
        assert_eq!(read(&[2, 0, 0, 0, 1, 9, 3, 9]), Some(BTreeMap::from([(1, 9), (3, 9)])));
        assert_eq!(read(&[2, 0, 0, 0, 3, 9, 1, 9]), None);
        assert_eq!(read(&[2, 0, 0, 0, 1, 9, 1, 9]), None);
    }
}
