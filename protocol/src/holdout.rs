//! Commitment to the holdout: a Merkle tree over its rows. The holder can disclose some rows and
//! prove that the buyer committed to them, while the other rows stay secret.
//!
//! ```text
//! row    features as f32 ‖ label as u32, little-endian
//! blind  blake3 "florin v1 holdout blind" over whole ‖ index u32   whole: digest of all rows' canonical bytes
//! leaf   blake3 "florin v1 holdout row"   over index u32 ‖ blind ‖ row
//! node   blake3 "florin v1 holdout node"  over left ‖ right        a node without a sibling moves up unchanged
//! ```
//! All hashes are in key-derivation mode, so that a leaf cannot pass for a node. The blinding
//! factor hides the undisclosed rows: a proof reveals the hashes of neighbouring leaves, against
//! which a guessed row could otherwise be tested. It is derived from all rows together, so that no
//! additional secret has to be stored.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::bytes::DecodeError;
use crate::id::Digest;
use crate::limits::{DISCLOSED_BYTES_MAX, HOLDOUT_ROWS_MAX, HOLDOUT_ROWS_PER_ROUND_MAX};
use crate::spec_error::{SpecError, require, spec_error};

/// Commitment to the validation rows. Each round is evaluated on some of them, drawn after its
/// reveal phase has ended, so that no participant can have seen them before.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Holdout {
    /// Root of the Merkle tree over the rows: [`HoldoutTree`].
    pub root: Digest,
    /// Number of rows.
    pub rows: u32,
    /// Number of rows that evaluate one round. They are disclosed with that round and evaluate no
    /// other.
    pub rows_per_round: u32,
}

impl Holdout {
    pub(crate) fn check(&self, rounds: u32, width: u32) -> Result<(), SpecError> {
        require(
            (2..=HOLDOUT_ROWS_MAX).contains(&self.rows) && self.root != Digest::default(),
            "holdout.rows",
            self.rows,
            "a task needs a holdout of 2 to 16777216 rows: without it no update can be valued",
        )?;
        require(
            (2..=HOLDOUT_ROWS_PER_ROUND_MAX).contains(&self.rows_per_round),
            "holdout.rows_per_round",
            self.rows_per_round,
            "use 2 to 65536 rows per round: one row has no standard error",
        )?;
        let needed = u64::from(rounds).saturating_mul(self.rows_per_round.into());
        if needed > u64::from(self.rows) {
            let most = self.rows.checked_div(rounds).unwrap_or_default();
            let right = format!(
                "{rounds} rounds take {needed} rows, and the holdout has {}: each row evaluates \
                 only one round. Use at most {most} rows per round, fewer rounds, or more rows",
                self.rows
            );
            return Err(spec_error("holdout.rows_per_round", self.rows_per_round, right));
        }
        let bytes = self.disclosed_bytes_max(width);
        if bytes > DISCLOSED_BYTES_MAX {
            let right = format!(
                "with their proofs they take {bytes} bytes: use fewer rows; the limit is \
                 {DISCLOSED_BYTES_MAX}"
            );
            return Err(spec_error("holdout.rows_per_round", self.rows_per_round, right));
        }
        Ok(())
    }

    /// The largest size in bytes of one round's disclosed rows of `width` features with their
    /// proofs.
    #[must_use]
    pub fn disclosed_bytes_max(&self, width: u32) -> u64 {
        DisclosedRows::bytes_max(self.rows_per_round, width, self.rows)
    }
}

/// Length of the longest proof of a row: a tree over 2³² rows has 32 levels.
const LEVELS_MAX: usize = 32;

/// The blinding factor of a row's leaf. `whole` is the digest of all rows' canonical bytes; it is
/// as secret as the rows.
#[must_use]
pub fn blinding_factor(whole: Digest, index: u32) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 holdout blind");
    hasher.update(&whole.0);
    hasher.update(&index.to_le_bytes());
    Digest(*hasher.finalize().as_bytes())
}

/// The leaf of the row at `index`. `row` is its features as `f32` and its label as `u32`,
/// little-endian.
#[must_use]
pub fn leaf(index: u32, blind: Digest, row: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 holdout row");
    hasher.update(&index.to_le_bytes());
    hasher.update(&blind.0);
    hasher.update(row);
    Digest(*hasher.finalize().as_bytes())
}

fn node(left: Digest, right: Digest) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 holdout node");
    hasher.update(&left.0);
    hasher.update(&right.0);
    Digest(*hasher.finalize().as_bytes())
}

/// The Merkle tree over all rows.
#[derive(Clone, Debug)]
pub struct HoldoutTree {
    /// The leaves first, the root last; empty without rows.
    levels: Vec<Vec<Digest>>,
}

impl HoldoutTree {
    /// Builds the tree; `leaves` are in row order.
    #[must_use]
    pub fn new(leaves: Vec<Digest>) -> Self {
        let mut levels = Vec::new();
        let mut level = leaves;
        while level.len() > 1 {
            let above = level
                .chunks(2)
                .map(|pair| match pair {
                    [left, right] => node(*left, *right),
                    alone => alone.first().copied().unwrap_or_default(),
                })
                .collect();
            levels.push(std::mem::replace(&mut level, above));
        }
        levels.push(level);
        Self { levels }
    }

    /// The root; all zeros without rows, for which no proof verifies.
    #[must_use]
    pub fn root(&self) -> Digest {
        self.levels.last().and_then(|top| top.first()).copied().unwrap_or_default()
    }

    /// The sibling hashes of a row's leaf from the bottom to the root; `None` if the row does not
    /// exist.
    #[must_use]
    pub fn proof(&self, index: u32) -> Option<Vec<Digest>> {
        let mut at = usize::try_from(index).ok()?;
        self.levels.first()?.get(at)?;
        let mut proof = Vec::new();
        for level in &self.levels {
            proof.extend(level.get(at ^ 1).filter(|_| level.len() > 1));
            at >>= 1;
        }
        Some(proof)
    }
}

/// Verifies that `proof` leads from the leaf of row `index` of `rows` to `root`. The proof must
/// have exactly the hashes that this position in a tree of this size needs. False for the all-zero
/// root.
#[must_use]
pub fn verify(root: Digest, rows: u32, index: u32, leaf: Digest, proof: &[Digest]) -> bool {
    if index >= rows || root == Digest::default() || proof.len() > LEVELS_MAX {
        return false;
    }
    let (mut at, mut count, mut here, mut rest) = (index, rows, leaf, proof.iter());
    while count > 1 {
        if at ^ 1 < count {
            let Some(neighbour) = rest.next() else {
                return false;
            };
            here = if at & 1 == 0 { node(here, *neighbour) } else { node(*neighbour, here) };
        }
        at >>= 1;
        count = count.div_ceil(2);
    }
    rest.next().is_none() && here == root
}

/// A disclosed holdout row with its proof.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "schema", derive(borsh::BorshSchema))]
pub struct DisclosedRow {
    /// Its position in the holdout, from 0.
    pub index: u32,
    /// Blinding factor of its leaf: [`blinding_factor`].
    pub blinding_factor: Digest,
    /// Its features as `f32` and its label as `u32`, little-endian.
    pub row: Vec<u8>,
    /// The sibling hashes of its leaf from the bottom to the root.
    pub proof: Vec<Digest>,
}

impl DisclosedRow {
    /// Verifies that the row is the one committed to at its position.
    #[must_use]
    pub fn verify(&self, root: Digest, rows: u32) -> bool {
        let leaf = leaf(self.index, self.blinding_factor, &self.row);
        verify(root, rows, self.index, leaf, &self.proof)
    }
}

/// The disclosed rows that evaluate one round. Their bytes depend only on the commitment and the
/// drawn positions.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "schema", derive(borsh::BorshSchema))]
pub struct DisclosedRows {
    /// Ascending by index.
    pub rows: Vec<DisclosedRow>,
}

impl DisclosedRows {
    /// Name of this encoding, for error messages.
    const KIND: &'static str = "florin v1 shown rows";

    /// The canonical bytes, in borsh.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let written = self.serialize(&mut bytes);
        debug_assert!(written.is_ok(), "writing to memory fails only for lists beyond 4 GiB");
        bytes
    }

    /// Decodes the bytes; trailing bytes are an error. Does not verify the proofs.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes exceed [`DISCLOSED_BYTES_MAX`], are truncated, followed by more
    /// bytes, or malformed.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        if u64::try_from(bytes.len()).map_or(true, |length| length > DISCLOSED_BYTES_MAX) {
            return Err(DecodeError::TooLong { domain: Self::KIND, bytes: bytes.len() });
        }
        Self::try_from_slice(bytes)
            .map_err(|source| DecodeError::Malformed { domain: Self::KIND, source })
    }

    /// The largest size in bytes of `rows_per_round` rows of `width` features from a holdout of
    /// `rows` rows.
    #[must_use]
    pub fn bytes_max(rows_per_round: u32, width: u32, rows: u32) -> u64 {
        /// Index, blinding factor, and the lengths of row and proof.
        const FIXED: u64 = 4 + 32 + 4 + 4;
        let levels = u64::from(u32::BITS.saturating_sub(rows.saturating_sub(1).leading_zeros()));
        let row = u64::from(width).saturating_add(1).saturating_mul(4);
        let each = FIXED.saturating_add(row).saturating_add(levels.saturating_mul(32));
        u64::from(rows_per_round).saturating_mul(each).saturating_add(4)
    }
}

#[cfg(test)]
#[path = "holdout_tests.rs"]
mod tests;
