//! Which rows of the holdout judge a round: drawn by a seed that nobody could know before the reveals closed, among the
//! rows that no earlier round was judged by.

use crate::holdout::Holdout;
use crate::id::{Address, Digest};
use crate::message::Scope;
use crate::report::Entry;

/// The seed of everything random in a round: which round it is, the commits, and what the reveals disclosed. While
/// commits are open the salts are known to their senders only. A sender can still keep its update back, and nothing else:
/// its salt is fixed by its commitment, so there is nothing to search through. No clock enters, so that a market whose
/// participants repeat themselves repeats its draws.
#[must_use]
pub fn round_seed(scope: Scope, commits: &[(Address, Digest)], entries: &[Entry]) -> Digest {
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
    /// Earlier rounds have used up too many.
    #[error("{left} rows of the holdout were never shown: a round takes {per_round}")]
    TooFewLeft {
        /// How many are left.
        left: usize,
        /// How many it takes.
        per_round: u32,
    },
    /// An earlier round names a row that is not there.
    #[error("row {row} was shown in an earlier round: the holdout has {rows}")]
    NoSuchRow {
        /// The row.
        row: u32,
        /// How many there are.
        rows: u32,
    },
}

/// Draws a round's rows, ascending: `per_round` of those that are not among the `exposed`, each set of them equally
/// likely. A row may be named twice among the exposed.
///
/// The rows left, ascending, are shuffled from the front (Durstenfeld 1964) by numbers from blake3's output in
/// key-derivation mode, context `florin v1 draw`, over the seed: eight bytes each, little-endian, those at or above the
/// largest multiple of the range discarded.
///
/// # Errors
/// [`DrawError`]; impossible in a chain of honest reports, because a task has rows for all its rounds.
pub fn draw_rows(holdout: &Holdout, exposed: &[u32], seed: Digest) -> Result<Vec<u32>, DrawError> {
    let size = usize::try_from(holdout.rows).unwrap_or(usize::MAX);
    let mut gone = vec![false; size];
    for row in exposed {
        let known = usize::try_from(*row).ok().and_then(|row| gone.get_mut(row));
        *known.ok_or(DrawError::NoSuchRow { row: *row, rows: holdout.rows })? = true;
    }
    let mut left: Vec<u32> =
        (0..holdout.rows).zip(gone).filter(|(_, gone)| !gone).map(|(row, _)| row).collect();
    let take = usize::try_from(holdout.per_round).unwrap_or(usize::MAX);
    if left.len() < take {
        let (left, per_round) = (left.len(), holdout.per_round);
        return Err(DrawError::TooFewLeft { left, per_round });
    }
    let mut stream = Stream::new(seed);
    for at in 0..take {
        let range = u64::try_from(left.len().saturating_sub(at)).unwrap_or(u64::MAX);
        let step = usize::try_from(stream.below(range)).unwrap_or_default();
        left.swap(at, at.saturating_add(step));
    }
    left.truncate(take);
    left.sort_unstable();
    Ok(left)
}

/// Random numbers from a seed.
struct Stream(blake3::OutputReader);

impl Stream {
    fn new(seed: Digest) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("florin v1 draw");
        hasher.update(&seed.0);
        Self(hasher.finalize_xof())
    }

    /// A number below `range`, each equally likely; 0 for an empty range.
    fn below(&mut self, range: u64) -> u64 {
        // 2⁶⁴ mod range, from numbers that fit: so many of the 2⁶⁴ would be one too many for some remainders.
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
