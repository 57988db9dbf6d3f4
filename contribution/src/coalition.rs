//! A set of players of any number, stored as a bit set.

use std::fmt;

/// Bits in one word of the set.
const WORD_BITS: usize = u64::BITS as usize;

/// A subset of the players `0..n` of one game.
///
/// Ordered by its bits, so that it can be the key of an ordered map.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Coalition {
    universe: usize,
    words: Vec<u64>,
}

impl Coalition {
    /// The empty coalition of `universe` players.
    pub fn empty(universe: usize) -> Self {
        Self { universe, words: vec![0; universe.div_ceil(WORD_BITS)] }
    }

    /// The grand coalition of `universe` players.
    pub fn full(universe: usize) -> Self {
        let mut grand = Self::empty(universe);
        (0..universe).for_each(|player| grand.insert(player));
        grand
    }

    /// The players whose bits are set in `mask`; bit 0 is player 0. Bits at or beyond `universe`
    /// are ignored.
    pub fn from_mask(universe: usize, mask: u64) -> Self {
        let mut coalition = Self::empty(universe);
        if let Some(first) = coalition.words.first_mut() {
            let valid_bits = if universe < WORD_BITS { (1 << universe) - 1 } else { u64::MAX };
            *first = mask & valid_bits;
        }
        coalition
    }

    /// Number of players of the game, including the players outside this set.
    pub fn universe(&self) -> usize {
        self.universe
    }

    /// Number of players in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Whether `player` is in the set; `false` for a player outside the universe.
    pub fn contains(&self, player: usize) -> bool {
        player < self.universe && self.words[player / WORD_BITS] >> (player % WORD_BITS) & 1 == 1
    }

    /// Adds `player`.
    ///
    /// # Panics
    /// If `player` is outside the universe.
    pub fn insert(&mut self, player: usize) {
        assert!(player < self.universe, "player {player} is not one of 0..{}", self.universe);
        self.words[player / WORD_BITS] |= 1 << (player % WORD_BITS);
    }

    /// Removes `player`; does nothing if `player` is not in the set.
    pub fn remove(&mut self, player: usize) {
        if player < self.universe {
            self.words[player / WORD_BITS] &= !(1 << (player % WORD_BITS));
        }
    }

    /// The same set without `player`.
    #[must_use]
    pub fn without(&self, player: usize) -> Self {
        let mut rest = self.clone();
        rest.remove(player);
        rest
    }

    /// All players outside this set.
    #[must_use]
    pub fn complement(&self) -> Self {
        let mut rest = Self::full(self.universe);
        for (theirs, ours) in rest.words.iter_mut().zip(&self.words) {
            *theirs &= !ours;
        }
        rest
    }

    /// Whether every player of this set is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).all(|(ours, theirs)| ours & !theirs == 0)
    }

    /// The same set with `player`.
    ///
    /// # Panics
    /// If `player` is outside the universe.
    #[must_use]
    pub fn with(&self, player: usize) -> Self {
        let mut more = self.clone();
        more.insert(player);
        more
    }

    /// The first 64 players as bits, bit 0 being player 0.
    pub fn mask(&self) -> u64 {
        self.words.first().copied().unwrap_or(0)
    }

    /// All players as bits, 64 per word; bit 0 of word 0 is player 0.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The players in the set, in ascending order.
    pub fn players(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.universe).filter(|player| self.contains(*player))
    }
}

impl fmt::Display for Coalition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (position, player) in self.players().enumerate() {
            if position > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{player}")?;
        }
        f.write_str("}")
    }
}

impl fmt::Debug for Coalition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} of {}", self.universe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coalition_crosses_word_boundaries() {
        let mut coalition = Coalition::empty(130);
        for player in [0, 63, 64, 129] {
            coalition.insert(player);
        }
        assert_eq!(coalition.to_string(), "{0, 63, 64, 129}");
        assert_eq!(coalition.len(), 4);
        assert_eq!(coalition.complement().len(), 126);
        assert!(!coalition.contains(130));
        assert_eq!(coalition.without(64).players().collect::<Vec<_>>(), [0, 63, 129]);
    }

    #[test]
    fn mask_bits_outside_the_universe_are_ignored() {
        assert_eq!(Coalition::from_mask(3, u64::MAX), Coalition::full(3));
        assert_eq!(Coalition::from_mask(0, 1), Coalition::empty(0));
        assert_eq!(Coalition::from_mask(64, u64::MAX).len(), 64);
        assert_eq!(Coalition::from_mask(5, 0b10010).to_string(), "{1, 4}");
    }

    #[test]
    fn is_subset_is_not_symmetric() {
        let (part, whole) = (Coalition::from_mask(70, 0b101), Coalition::from_mask(70, 0b111));
        assert!(part.is_subset(&whole) && part.is_subset(&part) && !whole.is_subset(&part));
        assert_eq!(part.with(1), whole);
        assert!(!part.with(69).is_subset(&whole));
        assert_eq!((part.mask(), part.with(64).words()), (5, &[5, 1][..]));
    }

    #[test]
    #[should_panic(expected = "player 3 is not one of 0..3")]
    fn inserting_a_player_outside_the_universe_panics() {
        Coalition::empty(3).insert(3);
    }
}
