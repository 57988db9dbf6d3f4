//! Pairs of a coalition and its complement, each at most once, for estimators that look at games
//! through them.
//!
//! Half the difference `d(S) = (v(S) − v(Sᶜ))/2` of a pair holds everything that the Shapley value
//! depends on, and nothing of what it does not (the even part of the game). The pair of nobody and
//! everybody is not drawn here: it is the sum of the values, which every estimator asks for first.

use std::collections::BTreeSet;

use crate::{Coalition, Draw};

/// The stream of the seed that pairs are drawn from.
const STREAM: u64 = 0x7061_6972;

/// Which pairs come first; the rest is drawn evenly over the sizes in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// All pairs of one player against the rest, in random order.
    Singles,
    /// The pairs along a random permutation (its prefixes against the rest, which are the prefixes
    /// of the reversed permutation): with the grand pair they fix a quadratic game.
    Chain,
}

/// Draws different pairs {S, Sᶜ} without end until all are drawn; the items are the smaller side of
/// each (of two halves the one with player 0).
///
/// The pairs of one size are drawn without replacement, every one equally likely. Sizes take turns,
/// in rounds of one pair of each size in random order: since a size s stands for n − s too, the
/// middle size of an even number of players, which stands for itself only, has a turn in every other
/// round. That is the allocation of leverage scores (Musco and Witter, "Provably Accurate Shapley
/// Value Estimation via Leverage Score Sampling", 2025), made exact round by round, so that
/// [`inclusion`](Self::inclusion) is a plain fraction. Memory grows with the pairs drawn, not with
/// 2^n, and any number of players is welcome.
///
/// Where a sum over all coalitions of size s is meant, each pair drawn stands for
/// `1/inclusion(s)` of them. The Shapley kernel `(n−1)/(C(n,s)·s·(n−s))` over the inclusion is,
/// without any binomial, `(n−1)/(s·(n−s)·drawn(s))` — halved in the middle, where C(n,s) coalitions
/// make only half as many pairs: see [`kernel_weight`](Self::kernel_weight).
pub(crate) struct Pairs {
    players: usize,
    draw: Draw,
    /// Pairs that come before the rounds, last one first.
    first: Vec<Coalition>,
    /// Sizes that are still to have their turn in this round, last one first.
    turns: Vec<usize>,
    round: u64,
    strata: Vec<Stratum>,
    seen: BTreeSet<Coalition>,
}

/// The pairs whose smaller side has one size.
struct Stratum {
    /// How many there are; `u64::MAX` stands for more than can be counted.
    pairs: u64,
    drawn: u64,
    /// All that are left in random order, once more than half are drawn and guessing would be slow.
    rest: Option<Vec<Coalition>>,
}

impl Pairs {
    /// The pairs of a game of `players` players that `seed` draws.
    pub(crate) fn new(players: usize, seed: u64, start: Start) -> Self {
        let strata = (0..=players / 2).map(|size| Stratum::of(players, size)).collect();
        let draw = Draw::new(seed, STREAM);
        let (first, turns, seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut pairs = Self { players, draw, first, turns, round: 0, strata, seen };
        let order = pairs.draw.permutation(players);
        match start {
            Start::Singles => {
                let nobody = Coalition::empty(players);
                let single = |&player: &usize| smaller_side(nobody.with(player));
                pairs.first = if players > 1 { order.iter().map(single).collect() } else { vec![] };
            }
            Start::Chain => {
                let mut prefix = Coalition::empty(players);
                for &player in &order[..players.saturating_sub(1)] {
                    prefix.insert(player);
                    pairs.first.push(smaller_side(prefix.clone()));
                }
                pairs.first.reverse();
                // A chain holds two pairs of each size, which is what two rounds hold.
                pairs.round = 2;
            }
        }
        pairs
    }

    /// How many pairs there are, those drawn included: `2^(n−1) − 1`, and `u64::MAX` where that is
    /// more than can be counted.
    pub(crate) fn all(&self) -> u64 {
        let counted = u32::try_from(self.players).ok().filter(|players| (1..=64).contains(players));
        counted.map_or(if self.players == 0 { 0 } else { u64::MAX }, |n| (1_u64 << (n - 1)) - 1)
    }

    /// The probability with which any one pair with a smaller side of `size` is among those drawn
    /// so far (given how many of the size are); 1 where all of them are.
    pub(crate) fn inclusion(&self, size: usize) -> f64 {
        self.strata[size].drawn as f64 / self.strata[size].pairs as f64
    }

    /// What a drawn pair with a smaller side of `size` weighs in a least-squares problem over all
    /// pairs under the Shapley kernel, up to one common factor: `1/(s·(n−s)·drawn(s))`, half of it
    /// in the middle. 0 where none of the size is drawn.
    pub(crate) fn kernel_weight(&self, size: usize) -> f64 {
        let drawn = self.strata[size].drawn;
        if drawn == 0 || size == 0 {
            return 0.0;
        }
        let middle = if 2 * size == self.players { 0.5 } else { 1.0 };
        middle / (size as f64 * (self.players - size) as f64 * drawn as f64)
    }

    /// A pair with a smaller side of `size` out of turn, for estimators that spread their sizes
    /// otherwise; `None` where all of the size are drawn. To be called after those of the start.
    pub(crate) fn next_of(&mut self, size: usize) -> Option<Coalition> {
        let stratum = &self.strata[size];
        if stratum.drawn >= stratum.pairs {
            return None;
        }
        let pair = self.fresh(size);
        Some(self.record(pair))
    }

    /// Counts `pair` among those drawn.
    fn record(&mut self, pair: Coalition) -> Coalition {
        self.strata[pair.len()].drawn += 1;
        self.seen.insert(pair.clone());
        pair
    }

    /// The next size whose turn it is and that is not exhausted.
    fn turn(&mut self) -> Option<usize> {
        loop {
            while let Some(size) = self.turns.pop() {
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
            self.turns = turns;
        }
    }

    /// A pair of `size` that was not drawn before.
    fn fresh(&mut self, size: usize) -> Coalition {
        let stratum = &mut self.strata[size];
        if stratum.rest.is_none() && stratum.drawn >= stratum.pairs / 2 {
            let mut rest = all_pairs(self.players, size);
            rest.retain(|pair| !self.seen.contains(pair));
            self.draw.shuffle(&mut rest);
            stratum.rest = Some(rest);
        }
        if let Some(known) = stratum.rest.as_mut().and_then(Vec::pop) {
            return known;
        }
        loop {
            let pair = smaller_side(self.draw.coalition(self.players, size));
            if !self.seen.contains(&pair) {
                return pair;
            }
        }
    }
}

impl Iterator for Pairs {
    type Item = Coalition;

    fn next(&mut self) -> Option<Coalition> {
        let pair = match self.first.pop() {
            Some(pair) if !self.seen.contains(&pair) => pair,
            Some(_) => return self.next(), // of two players, each is the rest of the other
            None => {
                let size = self.turn()?;
                self.fresh(size)
            }
        };
        Some(self.record(pair))
    }
}

impl Stratum {
    fn of(players: usize, size: usize) -> Self {
        let choices = if size == 0 { Some(0) } else { choose(players, size) };
        let halves = if 2 * size == players { 2 } else { 1 };
        Self { pairs: choices.map_or(u64::MAX, |all| all / halves), drawn: 0, rest: None }
    }
}

/// `C(n, k)`; `None` where a step of it does not fit.
fn choose(n: usize, k: usize) -> Option<u64> {
    let mut choices = 1_u64;
    for step in 0..k {
        choices = choices.checked_mul((n - step) as u64)? / (step + 1) as u64;
    }
    Some(choices)
}

/// The side by which a pair is known: the smaller, and of two halves the one with player 0.
fn smaller_side(side: Coalition) -> Coalition {
    let (size, players) = (side.len(), side.universe());
    if 2 * size > players || (2 * size == players && !side.contains(0)) {
        return side.complement();
    }
    side
}

/// Every pair with a smaller side of `size`, in lexical order.
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

    const STARTS: [Start; 2] = [Start::Singles, Start::Chain];

    #[test]
    fn every_pair_comes_exactly_once() {
        for start in STARTS {
            for players in 1..=11 {
                let pairs = Pairs::new(players, 3, start);
                let all = pairs.all();
                let seen: BTreeSet<Coalition> = pairs.map(smaller_side).collect();
                assert_eq!(seen.len() as u64, all, "{players} players, {start:?}");
                assert!(seen.iter().all(|side| !side.is_empty() && 2 * side.len() <= players));
                let again = Pairs::new(players, 3, start).count();
                assert_eq!(again as u64, all);
            }
        }
    }

    #[test]
    fn sizes_take_turns_and_the_middle_one_every_other_round() {
        let mut pairs = Pairs::new(10, 1, Start::Chain);
        let sizes: Vec<usize> = pairs.by_ref().take(18).map(|pair| pair.len()).collect();
        // Two rounds hold two pairs of sizes 1 to 4 and one of size 5.
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
        let mut pairs = Pairs::new(6, 9, Start::Chain);
        assert_eq!(pairs.by_ref().count(), 31);
        for (size, right) in [(1, 30.0), (2, 120.0), (3, 180.0)] {
            assert!((pairs.kernel_weight(size) * right - 1.0).abs() < 1e-15, "{size}");
            assert_eq!(pairs.inclusion(size), 1.0);
        }
    }

    #[test]
    fn starts_are_what_they_say() {
        let singles: Vec<usize> =
            Pairs::new(7, 5, Start::Singles).take(7).map(|pair| pair.len()).collect();
        assert_eq!(singles, [1; 7]);
        let chain: Vec<Coalition> = Pairs::new(6, 5, Start::Chain).take(5).collect();
        assert_eq!(chain.iter().map(Coalition::len).collect::<Vec<_>>(), [1, 2, 3, 2, 1]);
        assert!(chain[0].is_subset(&chain[1]) && chain[4].is_subset(&chain[3]));
        assert!(!chain[4].is_subset(&chain[1]), "from the other end");
    }

    #[test]
    fn any_pair_of_a_size_is_as_likely_as_another() {
        let mut seen = std::collections::BTreeMap::new();
        for seed in 0..6_000 {
            for pair in Pairs::new(6, seed, Start::Chain).take(5) {
                *seen.entry(pair).or_insert(0_u32) += 1;
            }
        }
        // Per seed two pairs each of 6 singles and of 15 twos, and one of 10 threes.
        for (pair, count) in seen {
            let expected = [0.0, 2.0 / 6.0, 2.0 / 15.0, 1.0 / 10.0][pair.len()] * 6_000.0;
            assert!((f64::from(count) - expected).abs() < 5.0 * expected.sqrt(), "{pair}: {count}");
        }
    }

    #[test]
    fn thousands_of_players_are_welcome() {
        let mut pairs = Pairs::new(3_000, 1, Start::Chain);
        let sizes: BTreeSet<usize> =
            pairs.by_ref().skip(2_999).take(1_499).map(|pair| pair.len()).collect();
        assert!(sizes.len() >= 1_499, "{} sizes", sizes.len());
        assert_eq!((pairs.all(), pairs.inclusion(1_400)), (u64::MAX, 3.0 / u64::MAX as f64));
        assert!(pairs.kernel_weight(1_400) > 0.0);
    }
}
