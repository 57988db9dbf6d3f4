//! Draws the holdout rows that evaluate a round: by a seed that is unpredictable until the reveal
//! phase ends, from the rows that no earlier round has used.

use crate::holdout::Holdout;
use crate::id::{Address, Digest};
use crate::message::RoundScope;
use crate::report::UpdateEntry;

/// The seed of all randomness of a round: a digest of the round's identity, the commits and the
/// salts revealed by the updates. While the commit phase is open, each sender knows only its own
/// salt. Afterwards a sender can only withhold its update: the commitment fixes the salt, so there
/// is nothing to grind. The seed does not depend on a clock, so that a replay of a market with the
/// same inputs makes the same draws.
#[must_use]
pub fn round_seed(
    scope: RoundScope,
    commits: &[(Address, Digest)],
    entries: &[UpdateEntry],
) -> Digest {
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX).to_le_bytes();
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 seed");
    hasher.update(&scope.market.chain.0.to_le_bytes());
    hasher.update(&scope.market.genesis.0);
    hasher.update(&scope.task.0);
    hasher.update(&scope.round.0.to_le_bytes());
    hasher.update(&count(commits.len()));
    for (sender, commitment) in commits {
        hasher.update(&sender.0);
        hasher.update(&commitment.0);
    }
    hasher.update(&count(entries.len()));
    for entry in entries {
        hasher.update(&entry.sender.0);
        hasher.update(&entry.salt.0);
    }
    Digest(*hasher.finalize().as_bytes())
}

/// Why rows cannot be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DrawError {
    /// Earlier rounds have used too many rows.
    #[error("the holdout has {left} undisclosed rows left; a round needs {rows_per_round}")]
    TooFewRows {
        /// Number of unused rows.
        left: usize,
        /// Number of rows that a round needs.
        rows_per_round: u32,
    },
    /// An earlier round names a row outside the holdout.
    #[error("an earlier round disclosed row {row}, but the holdout has only {rows} rows")]
    RowOutOfRange {
        /// The row.
        row: u32,
        /// Number of rows in the holdout.
        rows: u32,
    },
}

/// Draws the rows of a round, ascending: `rows_per_round` of those that are not `exposed`, with
/// every subset equally likely. `exposed` may contain duplicates.
///
/// The unused rows, ascending, are shuffled from the front (Durstenfeld 1964). The random numbers
/// are BLAKE3's extended output in key-derivation mode, context `florin v1 draw`, over the seed:
/// eight bytes each, little-endian, with rejection of numbers at or above the largest multiple of
/// the range.
///
/// # Errors
/// [`DrawError`]; impossible in a chain of honest reports, because a task has enough rows for all
/// its rounds.
pub fn draw_rows(holdout: &Holdout, exposed: &[u32], seed: Digest) -> Result<Vec<u32>, DrawError> {
    let size = usize::try_from(holdout.rows).unwrap_or(usize::MAX);
    let mut gone = vec![false; size];
    for row in exposed {
        let known = usize::try_from(*row).ok().and_then(|row| gone.get_mut(row));
        *known.ok_or(DrawError::RowOutOfRange { row: *row, rows: holdout.rows })? = true;
    }
    let mut left: Vec<u32> =
        (0..holdout.rows).zip(gone).filter(|(_, gone)| !gone).map(|(row, _)| row).collect();
    let take = usize::try_from(holdout.rows_per_round).unwrap_or(usize::MAX);
    if left.len() < take {
        let (left, rows_per_round) = (left.len(), holdout.rows_per_round);
        return Err(DrawError::TooFewRows { left, rows_per_round });
    }
    let mut stream = Blake3Rng::new(seed);
    for at in 0..take {
        let range = u64::try_from(left.len().saturating_sub(at)).unwrap_or(u64::MAX);
        let step = usize::try_from(stream.below(range)).unwrap_or_default();
        left.swap(at, at.saturating_add(step));
    }
    left.truncate(take);
    left.sort_unstable();
    Ok(left)
}

/// A deterministic random number generator.
struct Blake3Rng(blake3::OutputReader);

impl Blake3Rng {
    fn new(seed: Digest) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("florin v1 draw");
        hasher.update(&seed.0);
        Self(hasher.finalize_xof())
    }

    /// A uniform number below `range`; 0 for an empty range.
    fn below(&mut self, range: u64) -> u64 {
        // Rejection sampling: the highest `2⁶⁴ mod range` numbers would favour some remainders. The
        // value is computed without exceeding 64 bits.
        let surplus = u64::MAX.checked_rem(range).map_or(0, |rest| rest.saturating_add(1));
        let surplus = surplus.checked_rem(range).unwrap_or_default();
        let largest = u64::MAX.saturating_sub(surplus);
        loop {
            let mut bytes = [0; 8];
            self.0.fill(&mut bytes);
            let number = u64::from_le_bytes(bytes);
            if number <= largest {
                return number.checked_rem(range).unwrap_or_default();
            }
        }
    }
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
