//! Coalitions as bit masks, many in one allocation.

use super::CoalitionError;

const WORD_BITS: usize = u64::BITS as usize;
/// Largest number of players of an enumeration of all coalitions.
pub const ENUMERATED_PLAYERS_MAX: usize = 24;

/// A batch of coalitions of the players `0..players`: the words of each bit mask; bit 0 of the
/// first word is player 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoalitionMasks {
    players: usize,
    len: usize,
    words: Vec<u64>,
}

impl CoalitionMasks {
    /// An empty batch of coalitions of `players` players.
    pub fn new(players: usize) -> Self {
        Self { players, len: 0, words: Vec::new() }
    }

    /// Every coalition of `players` players, in the order of the masks from 0.
    ///
    /// # Errors
    /// [`CoalitionError::TooManyToEnumerate`] above [`ENUMERATED_PLAYERS_MAX`].
    pub fn all(players: usize) -> Result<Self, CoalitionError> {
        if players > ENUMERATED_PLAYERS_MAX {
            return Err(CoalitionError::TooManyToEnumerate { players });
        }
        let len = 1 << players;
        let words = if players == 0 { Vec::new() } else { (0..len as u64).collect() };
        Ok(Self { players, len, words })
    }

    /// Adds a coalition by the words of its mask.
    ///
    /// # Errors
    /// [`CoalitionError::Mask`] if the number of words does not match the players, or a bit beyond
    /// them is set.
    pub fn push(&mut self, words: &[u64]) -> Result<(), CoalitionError> {
        let beyond = match self.players % WORD_BITS {
            0 => 0,
            used => words.last().map_or(0, |last| last >> used),
        };
        if words.len() != self.stride() || beyond != 0 {
            let (players, expected) = (self.players, self.stride());
            return Err(CoalitionError::Mask { at: self.len, players, expected, got: words.len() });
        }
        self.words.extend_from_slice(words);
        self.len += 1;
        Ok(())
    }

    /// Number of coalitions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of players.
    pub fn players(&self) -> usize {
        self.players
    }

    fn stride(&self) -> usize {
        self.players.div_ceil(WORD_BITS)
    }

    /// The words of one coalition.
    pub(super) fn words(&self, at: usize) -> &[u64] {
        &self.words[at * self.stride()..(at + 1) * self.stride()]
    }

    /// The members of one coalition, ascending.
    pub fn members(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        self.words(at).iter().enumerate().flat_map(|(word, &bits)| {
            let mut left = bits;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                // Clears the lowest set bit; zero ends the iteration.
                left &= left.checked_sub(1)?;
                Some(word * WORD_BITS + bit)
            })
        })
    }

    /// Number of members that the coalitions `a` and `b` share, from the lowest player on, before
    /// the first player that is in only one of them.
    pub(super) fn shared_prefix_len(&self, a: usize, b: usize) -> usize {
        let mut shared = 0;
        for (&a, &b) in self.words(a).iter().zip(self.words(b)) {
            let below = (a ^ b).trailing_zeros();
            if below < u64::BITS {
                return shared + (a & ((1 << below) - 1)).count_ones() as usize;
            }
            shared += a.count_ones() as usize;
        }
        shared
    }

    /// The coalitions in an order in which coalitions with the same first members are adjacent, and
    /// a coalition precedes its extensions.
    pub(super) fn prefix_order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.len as u32).collect();
        let key = |at: u32| self.words(at as usize).iter().map(|word| word.reverse_bits());
        order.sort_by(|&a, &b| key(a).cmp(key(b)).then(a.cmp(&b)));
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_shared_prefixes_are_read_from_the_bits() {
        let mut masks = CoalitionMasks::new(70);
        for words in [[0, 0], [0b1011, 0b10_0000], [0b0011, 0b10_0000], [0b1011, 0]] {
            masks.push(&words).unwrap();
        }
        assert_eq!(masks.members(0).count(), 0);
        assert_eq!(masks.members(1).collect::<Vec<_>>(), [0, 1, 3, 69]);
        assert_eq!(
            [
                masks.shared_prefix_len(1, 2),
                masks.shared_prefix_len(1, 3),
                masks.shared_prefix_len(1, 1)
            ],
            [2, 3, 4]
        );
        assert_eq!(masks.shared_prefix_len(0, 1), 0);
        assert_eq!(masks.prefix_order(), [0, 2, 3, 1]);
    }

    #[test]
    fn bits_beyond_the_players_and_wrong_lengths_are_refused() {
        let mut masks = CoalitionMasks::new(3);
        assert!(masks.push(&[0b111]).is_ok());
        for wrong in [&[0b1000][..], &[], &[0, 0]] {
            let error = masks.push(wrong).unwrap_err();
            assert_eq!(error.code(), "COALITION_MASK", "{error}");
        }
        assert_eq!(masks.len(), 1);
        assert_eq!(CoalitionMasks::all(25).unwrap_err().code(), "COALITIONS_TOO_MANY");
        assert_eq!(CoalitionMasks::all(3).unwrap().len(), 8);
        let empty = CoalitionMasks::all(0).unwrap();
        assert_eq!((empty.len(), empty.members(0).count()), (1, 0));
    }
}
