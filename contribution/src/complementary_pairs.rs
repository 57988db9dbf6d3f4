//! Complementary pairs, each drawn at most once, for estimators that observe games through them.
//!
//! Half the difference `d(S) = (v(S) − v(Sᶜ))/2` of a pair contains everything that determines the
//! Shapley value, and nothing of the even part of the game, which does not affect it. The grand
//! pair (empty and grand coalition) is not drawn here: its difference is the sum of the values,
//! which every estimator evaluates first.

use std::collections::BTreeSet;

use crate::{Coalition, SeededRng};

/// The stream of the seed for drawing pairs.
const STREAM: u64 = 0x7061_6972;

/// The initial pairs; all further pairs are spread evenly over the sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InitialPairs {
    /// All pairs of one player and the rest, in random order.
    Singles,
    /// The pairs along a random permutation (each prefix and its complement, which is a prefix of
    /// the reversed permutation): together with the grand pair they determine a quadratic game.
    PermutationPrefixes,
}

/// Draws distinct pairs {S, Sᶜ} until none are left. An item is the smaller side of a pair, or the
/// half with player 0 if both sides have the same size.
///
/// The pairs of one size are drawn uniformly without replacement. The sizes alternate in rounds of
/// one pair of each size in random order. A size s also covers n − s; the middle size of an even
/// number of players covers only itself, so it is part of every second round. That is the
/// allocation of leverage scores (Musco and Witter, "Provably Accurate Shapley Value Estimation via
/// Leverage Score Sampling", 2025), made exact round by round, so that
/// [`inclusion`](Self::inclusion) is a plain fraction. Memory grows with the pairs drawn, not with
/// 2^n, so the number of players is unlimited.
///
/// In an estimate of a sum over all coalitions of size s, each drawn pair represents
/// `1/inclusion(s)` of them. The Shapley kernel `(n−1)/(C(n,s)·s·(n−s))` divided by the inclusion
/// probability is `(n−1)/(s·(n−s)·drawn(s))`, without any binomial; it is half of that at the
/// middle size, where C(n,s) coalitions form only half as many pairs: see
/// [`kernel_weight`](Self::kernel_weight).
pub(crate) struct PairSampler {
    players: usize,
    draw: SeededRng,
    /// Initial pairs that precede the rounds, last one first.
    initial: Vec<Coalition>,
    /// Sizes left in this round, last one first.
    sizes_left: Vec<usize>,
    round: u64,
    strata: Vec<Stratum>,
    drawn: BTreeSet<Coalition>,
}

/// The pairs whose smaller side has a given size.
struct Stratum {
    /// Number of pairs; `u64::MAX` if it exceeds 64 bits.
    pairs: u64,
    drawn: u64,
    /// All remaining pairs in random order, once more than half are drawn and rejection sampling
    /// would be slow.
    remaining: Option<Vec<Coalition>>,
}

impl PairSampler {
    /// The pairs that `seed` draws for a game of `players` players.
    pub(crate) fn new(players: usize, seed: u64, start: InitialPairs) -> Self {
        let strata = (0..=players / 2).map(|size| Stratum::new(players, size)).collect();
        let draw = SeededRng::new(seed, STREAM);
        let (first, turns, seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut pairs = Self {
            players,
            draw,
            initial: first,
            sizes_left: turns,
            round: 0,
            strata,
            drawn: seen,
        };
        let order = pairs.draw.permutation(players);
        match start {
            InitialPairs::Singles => {
                let empty = Coalition::empty(players);
                let single = |&player: &usize| smaller_side(empty.with(player));
                pairs.initial =
                    if players > 1 { order.iter().map(single).collect() } else { vec![] };
            }
            InitialPairs::PermutationPrefixes => {
                let mut prefix = Coalition::empty(players);
                for &player in &order[..players.saturating_sub(1)] {
                    prefix.insert(player);
                    pairs.initial.push(smaller_side(prefix.clone()));
                }
                pairs.initial.reverse();
                // The permutation contains two pairs of each size, as do two rounds.
                pairs.round = 2;
            }
        }
        pairs
    }

    /// Number of pairs, including those already drawn: `2^(n−1) − 1`, or `u64::MAX` if it exceeds
    /// 64 bits.
    pub(crate) fn total_pairs(&self) -> u64 {
        let counted = u32::try_from(self.players).ok().filter(|players| (1..=64).contains(players));
        counted.map_or(if self.players == 0 { 0 } else { u64::MAX }, |n| (1_u64 << (n - 1)) - 1)
    }

    /// The inclusion probability of a pair with a smaller side of `size`, given the number of pairs
    /// of that size drawn so far; 1 if all of them are drawn.
    pub(crate) fn inclusion(&self, size: usize) -> f64 {
        self.strata[size].drawn as f64 / self.strata[size].pairs as f64
    }

    /// The weight of a drawn pair with a smaller side of `size` in a least-squares problem over all
    /// pairs under the Shapley kernel, up to one common factor: `1/(s·(n−s)·drawn(s))`, half of it
    /// at the middle size. 0 if no pair of the size is drawn.
    pub(crate) fn kernel_weight(&self, size: usize) -> f64 {
        let drawn = self.strata[size].drawn;
        if drawn == 0 || size == 0 {
            return 0.0;
        }
        let middle = if 2 * size == self.players { 0.5 } else { 1.0 };
        middle / (size as f64 * (self.players - size) as f64 * drawn as f64)
    }

    /// Draws a pair with a smaller side of `size`, for estimators with another distribution of
    /// sizes; `None` if all pairs of the size are drawn. Call it only after the initial pairs.
    #[cfg(feature = "comparison")]
    pub(crate) fn next_of_size(&mut self, size: usize) -> Option<Coalition> {
        let stratum = &self.strata[size];
        if stratum.drawn >= stratum.pairs {
            return None;
        }
        let pair = self.draw_new_pair(size);
        Some(self.mark_drawn(pair))
    }

    /// Counts `pair` as drawn.
    fn mark_drawn(&mut self, pair: Coalition) -> Coalition {
        self.strata[pair.len()].drawn += 1;
        self.drawn.insert(pair.clone());
        pair
    }

    /// The next size of the round that is not exhausted.
    fn next_size(&mut self) -> Option<usize> {
        loop {
            while let Some(size) = self.sizes_left.pop() {
                if self.strata[size].drawn < self.strata[size].pairs {
                    return Some(size);
                }
            }
            let open = |size: &usize| self.strata[*size].drawn < self.strata[*size].pairs;
            let mut turns: Vec<usize> = (1..self.strata.len()).filter(open).collect();
            let only_middle = turns.iter().all(|&size| 2 * size == self.players);
            if turns.is_empty() {
                return None;
            }
            if self.round % 2 == 1 && !only_middle {
                turns.retain(|&size| 2 * size != self.players);
            }
            self.round += 1;
            self.draw.shuffle(&mut turns);
            self.sizes_left = turns;
        }
    }

    /// A new pair of `size`.
    fn draw_new_pair(&mut self, size: usize) -> Coalition {
        let stratum = &mut self.strata[size];
        if stratum.remaining.is_none() && stratum.drawn >= stratum.pairs / 2 {
            let mut rest = all_pairs(self.players, size);
            rest.retain(|pair| !self.drawn.contains(pair));
            self.draw.shuffle(&mut rest);
            stratum.remaining = Some(rest);
        }
        if let Some(known) = stratum.remaining.as_mut().and_then(Vec::pop) {
            return known;
        }
        loop {
            let pair = smaller_side(self.draw.coalition(self.players, size));
            if !self.drawn.contains(&pair) {
                return pair;
            }
        }
    }
}

impl Iterator for PairSampler {
    type Item = Coalition;

    fn next(&mut self) -> Option<Coalition> {
        let pair = match self.initial.pop() {
            Some(pair) if !self.drawn.contains(&pair) => pair,
            // With two players, both single-player pairs are the same pair.
            Some(_) => return self.next(),
            None => {
                let size = self.next_size()?;
                self.draw_new_pair(size)
            }
        };
        Some(self.mark_drawn(pair))
    }
}

impl Stratum {
    fn new(players: usize, size: usize) -> Self {
        let choices = if size == 0 { Some(0) } else { choose(players, size) };
        let halves = if 2 * size == players { 2 } else { 1 };
        Self { pairs: choices.map_or(u64::MAX, |all| all / halves), drawn: 0, remaining: None }
    }
}

/// `C(n, k)`; `None` if an intermediate product overflows.
fn choose(n: usize, k: usize) -> Option<u64> {
    let mut choices = 1_u64;
    for step in 0..k {
        choices = choices.checked_mul((n - step) as u64)? / (step + 1) as u64;
    }
    Some(choices)
}

/// The side that represents a pair: the smaller one, or the half with player 0.
fn smaller_side(side: Coalition) -> Coalition {
    let (size, players) = (side.len(), side.universe());
    if 2 * size > players || (2 * size == players && !side.contains(0)) {
        return side.complement();
    }
    side
}

/// Every pair with a smaller side of `size`, in lexicographic order.
fn all_pairs(players: usize, size: usize) -> Vec<Coalition> {
    let mut chosen: Vec<usize> = (0..size).collect();
    let mut pairs = Vec::new();
    loop {
        if 2 * size == players && chosen[0] != 0 {
            return pairs;
        }
        let mut side = Coalition::empty(players);
        chosen.iter().for_each(|&player| side.insert(player));
        pairs.push(side);
        let Some(at) = (0..size).rev().find(|&at| chosen[at] < players - size + at) else {
            return pairs;
        };
        chosen[at] += 1;
        for later in at + 1..size {
            chosen[later] = chosen[later - 1] + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STARTS: [InitialPairs; 2] = [InitialPairs::Singles, InitialPairs::PermutationPrefixes];

    #[test]
    fn every_pair_is_drawn_exactly_once() {
        for start in STARTS {
            for players in 1..=11 {
                let pairs = PairSampler::new(players, 3, start);
                let all = pairs.total_pairs();
                let seen: BTreeSet<Coalition> = pairs.map(smaller_side).collect();
                assert_eq!(seen.len() as u64, all, "{players} players, {start:?}");
                assert!(seen.iter().all(|side| !side.is_empty() && 2 * side.len() <= players));
                let again = PairSampler::new(players, 3, start).count();
                assert_eq!(again as u64, all);
            }
        }
    }

    #[test]
    fn sizes_alternate_and_the_middle_size_is_in_every_second_round() {
        let mut pairs = PairSampler::new(10, 1, InitialPairs::PermutationPrefixes);
        let sizes: Vec<usize> = pairs.by_ref().take(18).map(|pair| pair.len()).collect();
        // Two rounds contain two pairs of sizes 1 to 4 and one of size 5.
        for nine in sizes.chunks(9) {
            assert_eq!(nine.iter().filter(|size| **size == 5).count(), 1, "{sizes:?}");
            assert!((1..5).all(|size| nine.iter().filter(|one| **one == size).count() == 2));
        }
        assert_eq!((pairs.strata[4].drawn, pairs.strata[5].drawn), (4, 2));
        // C(10, 4) = 210 pairs; C(10, 5)/2 = 126.
        assert_eq!((pairs.inclusion(4), pairs.inclusion(5)), (4.0 / 210.0, 2.0 / 126.0));
        assert_eq!(pairs.kernel_weight(4), 1.0 / (4.0 * 6.0 * 4.0));
        assert_eq!(pairs.kernel_weight(5), 0.5 / (5.0 * 5.0 * 2.0));
    }

    #[test]
    fn weights_of_all_pairs_are_the_shapley_kernel() {
        // (n−1)/(C(n,s)·s·(n−s)) over n − 1, for n = 6: 1/30, 1/120, 1/180.
        let mut pairs = PairSampler::new(6, 9, InitialPairs::PermutationPrefixes);
        assert_eq!(pairs.by_ref().count(), 31);
        for (size, right) in [(1, 30.0), (2, 120.0), (3, 180.0)] {
            assert!((pairs.kernel_weight(size) * right - 1.0).abs() < 1e-15, "{size}");
            assert_eq!(pairs.inclusion(size), 1.0);
        }
    }

    #[test]
    fn initial_pairs_are_singles_or_permutation_prefixes() {
        let singles: Vec<usize> =
            PairSampler::new(7, 5, InitialPairs::Singles).take(7).map(|pair| pair.len()).collect();
        assert_eq!(singles, [1; 7]);
        let chain: Vec<Coalition> =
            PairSampler::new(6, 5, InitialPairs::PermutationPrefixes).take(5).collect();
        assert_eq!(chain.iter().map(Coalition::len).collect::<Vec<_>>(), [1, 2, 3, 2, 1]);
        assert!(chain[0].is_subset(&chain[1]) && chain[4].is_subset(&chain[3]));
        assert!(!chain[4].is_subset(&chain[1]), "from the other end");
    }

    #[test]
    fn pairs_of_one_size_are_equally_likely() {
        let mut seen = std::collections::BTreeMap::new();
        for seed in 0..6_000 {
            for pair in PairSampler::new(6, seed, InitialPairs::PermutationPrefixes).take(5) {
                *seen.entry(pair).or_insert(0_u32) += 1;
            }
        }
        // Per seed: two pairs each of the 6 of size 1 and of the 15 of size 2, and one of the 10
        // of size 3.
        for (pair, count) in seen {
            let expected = [0.0, 2.0 / 6.0, 2.0 / 15.0, 1.0 / 10.0][pair.len()] * 6_000.0;
            assert!((f64::from(count) - expected).abs() < 5.0 * expected.sqrt(), "{pair}: {count}");
        }
    }

    #[test]
    fn pairs_are_drawn_for_thousands_of_players() {
        let mut pairs = PairSampler::new(3_000, 1, InitialPairs::PermutationPrefixes);
        let sizes: BTreeSet<usize> =
            pairs.by_ref().skip(2_999).take(1_499).map(|pair| pair.len()).collect();
        assert!(sizes.len() >= 1_499, "{} sizes", sizes.len());
        assert_eq!(
            (pairs.total_pairs(), pairs.inclusion(1_400)),
            (u64::MAX, 3.0 / u64::MAX as f64)
        );
        assert!(pairs.kernel_weight(1_400) > 0.0);
    }
}
