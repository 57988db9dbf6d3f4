//! The canonical bytes of a graph, and its digest.

use std::io;

use borsh::{BorshDeserialize, BorshSerialize};

use super::{Graph, GraphError};

/// The beginning of the bytes, with the version of their layout.
const MAGIC: &[u8; 16] = b"florin graph v1\n";

/// Domain of the digest.
const DIGEST_CONTEXT: &str = "florin v1 graph";

impl Graph {
    /// The canonical bytes: two exports of one model have the same.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let written = self.serialize(&mut bytes);
        debug_assert!(written.is_ok(), "writing to memory fails only for lists beyond 4 GiB");
        bytes
    }

    /// A digest of the canonical bytes.
    pub fn digest(&self) -> [u8; 32] {
        *blake3::Hasher::new_derive_key(DIGEST_CONTEXT)
            .update(&self.to_bytes())
            .finalize()
            .as_bytes()
    }

    /// Reads canonical bytes.
    ///
    /// # Errors
    /// [`GraphError`] if they are of another version, truncated, or followed by more bytes, and those of
    /// [`check`](Self::check).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GraphError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| {
            GraphError::malformed("the bytes are no graph of this version of the program")
        })?;
        let graph = Self::try_from_slice(rest).map_err(|error: io::Error| {
            GraphError::malformed(format!("a damaged graph: {error}"))
        })?;
        graph.check()?;
        Ok(graph)
    }
}
