//! The holdout's commitment: a Merkle tree over its rows, so that a few rows can be shown, and proven to be those the
//! buyer committed to, while the others stay secret.
//!
//! ```text
//! row    features as f32 ‖ label as u32, little-endian
//! blind  blake3 "florin v1 holdout blind" over whole ‖ index u32     whole: digest of all rows' canonical bytes
//! leaf   blake3 "florin v1 holdout row"   over index u32 ‖ blind ‖ row
//! node   blake3 "florin v1 holdout node"  over left ‖ right          a node without a neighbour moves up as it is
//! ```
//! All in key-derivation mode, so that no leaf can pass for a node. The blind keeps the rows that are not shown secret:
//! a proof gives the hashes of its neighbours away, and whoever has a guess at a row could otherwise confirm it. It
//! follows from all the rows together, so that nothing besides them has to be kept.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::bytes::DecodeError;
use crate::id::Digest;
use crate::limits::{HOLDOUT_PER_ROUND_MAX, HOLDOUT_ROWS_MAX, SHOWN_BYTES_MAX};
use crate::task::{SpecError, require, wrong};

/// The committed validation rows. Each round is judged by some of them, drawn after its reveals have closed; nobody is
/// judged by a row that anybody could have seen before.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Holdout {
    /// Root of the tree over them: [`RowTree`].
    pub root: Digest,
    /// How many there are.
    pub rows: u32,
    /// How many judge one round; they are shown with it and never judge another.
    pub per_round: u32,
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
            (2..=HOLDOUT_PER_ROUND_MAX).contains(&self.per_round),
            "holdout.per_round",
            self.per_round,
            "use 2 to 65536 rows a round: one row has no standard error",
        )?;
        let needed = u64::from(rounds).saturating_mul(self.per_round.into());
        if needed > u64::from(self.rows) {
            let most = self.rows.checked_div(rounds).unwrap_or_default();
            let right = format!(
                "{rounds} rounds take {needed} rows, and the holdout has {}: a row judges one round \
                 only. Use at most {most} rows a round, fewer rounds, or more rows",
                self.rows
            );
            return Err(wrong("holdout.per_round", self.per_round, right));
        }
        let bytes = self.shown_bytes_max(width);
        if bytes > SHOWN_BYTES_MAX {
            let right = format!(
                "with their proofs they take {bytes} bytes: use fewer, for at most {SHOWN_BYTES_MAX}"
            );
            return Err(wrong("holdout.per_round", self.per_round, right));
        }
        Ok(())
    }

    /// The most bytes that one round's rows of `width` features take with their proofs.
    #[must_use]
    pub fn shown_bytes_max(&self, width: u32) -> u64 {
        ShownRows::bytes_max(self.per_round, width, self.rows)
    }
}

/// Hashes in the longest proof of a row: 2³² rows have no more levels.
const LEVELS_MAX: usize = 32;

/// What blinds the leaf of a row; `whole` is the digest of all rows' canonical bytes, and as secret as they are.
#[must_use]
pub fn blind(whole: Digest, index: u32) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 holdout blind");
    hasher.update(&whole.0);
    hasher.update(&index.to_le_bytes());
    Digest(*hasher.finalize().as_bytes())
}

/// The hash of one row at its place; `row` are its features as `f32` and its label as `u32`, little-endian.
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

/// The tree over all rows, ready to give proofs.
#[derive(Clone, Debug)]
pub struct RowTree {
    /// The leaves first, the root last; empty without rows.
    levels: Vec<Vec<Digest>>,
}

impl RowTree {
    /// Over the leaves in the order of their rows.
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

    /// The root; all zeros without rows, which proves nothing.
    #[must_use]
    pub fn root(&self) -> Digest {
        self.levels.last().and_then(|top| top.first()).copied().unwrap_or_default()
    }

    /// The neighbours of a row's leaf from the bottom to the root; `None` if there is no such row.
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

/// Whether `proof` leads from the leaf of row `index` of `rows` to `root`. It has exactly the hashes that this place in
/// a tree of this size needs; the all-zero root proves nothing.
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

/// One row of a holdout, shown with its proof.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct ShownRow {
    /// Its place in the holdout, from 0.
    pub index: u32,
    /// What blinds its leaf: [`blind`].
    pub blind: Digest,
    /// Its features as `f32` and its label as `u32`, little-endian.
    pub row: Vec<u8>,
    /// The neighbours of its leaf from the bottom to the root.
    pub proof: Vec<Digest>,
}

impl ShownRow {
    /// Whether the row is the one that was committed to at its place.
    #[must_use]
    pub fn belongs(&self, root: Digest, rows: u32) -> bool {
        let leaf = leaf(self.index, self.blind, &self.row);
        verify(root, rows, self.index, leaf, &self.proof)
    }
}

/// The rows by which one round is judged, as everybody gets them once they are drawn. Their bytes follow from the
/// commitment and the drawn places alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct ShownRows {
    /// Ascending by index.
    pub rows: Vec<ShownRow>,
}

impl ShownRows {
    /// The name of these bytes, for error messages.
    const KIND: &'static str = "florin v1 shown rows";

    /// The one byte string, in borsh.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let written = self.serialize(&mut bytes);
        debug_assert!(written.is_ok(), "writing to memory fails only past 4 GiB a list");
        bytes
    }

    /// Reads the bytes: all of them, nothing after them. Whether the rows belong to a holdout is not looked at.
    ///
    /// # Errors
    /// [`DecodeError`] if they are more than [`SHOWN_BYTES_MAX`], cut off, trailing or no rows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        if u64::try_from(bytes.len()).map_or(true, |length| length > SHOWN_BYTES_MAX) {
            return Err(DecodeError::TooLong { domain: Self::KIND, bytes: bytes.len() });
        }
        Self::try_from_slice(bytes)
            .map_err(|source| DecodeError::Malformed { domain: Self::KIND, source })
    }

    /// The most bytes that `per_round` rows of `width` features can have, out of a holdout of `rows`.
    #[must_use]
    pub fn bytes_max(per_round: u32, width: u32, rows: u32) -> u64 {
        /// Place, blind, and the lengths of row and proof.
        const FIXED: u64 = 4 + 32 + 4 + 4;
        let levels = u64::from(u32::BITS.saturating_sub(rows.saturating_sub(1).leading_zeros()));
        let row = u64::from(width).saturating_add(1).saturating_mul(4);
        let each = FIXED.saturating_add(row).saturating_add(levels.saturating_mul(32));
        u64::from(per_round).saturating_mul(each).saturating_add(4)
    }
}

#[cfg(test)]
#[path = "holdout_tests.rs"]
mod tests;
