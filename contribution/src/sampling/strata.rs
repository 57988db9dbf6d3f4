//! Means and variances by player and size, and the allocation of the next samples.

use super::moments::Moments;

/// Weight of the common variance of a size, in samples, in the variance of one player at that size.
/// Without it, two equal marginal contributions would end the sampling of their stratum forever.
const PRIOR_SAMPLES: f64 = 2.0;

/// Moments by player and size; memory for n² of them.
pub(super) struct Strata {
    players: usize,
    cells: Vec<Moments>,
}

impl Strata {
    /// Strata of `players` players and as many sizes each; whether the first size is 0 or 1 is up
    /// to the caller.
    pub(super) fn new(players: usize) -> Self {
        Self { players, cells: vec![Moments::default(); players * players] }
    }

    pub(super) fn add(&mut self, player: usize, size: usize, number: f64) {
        self.cells[player * self.players + size].add(number);
    }

    pub(super) fn cell(&self, player: usize, size: usize) -> &Moments {
        &self.cells[player * self.players + size]
    }

    /// The mean over the sizes of each player's means.
    pub(super) fn values(&self) -> Vec<f64> {
        let value = |cells: &[Moments]| {
            cells.iter().map(|cell| cell.mean).sum::<f64>() / self.players as f64
        };
        self.cells.chunks(self.players).map(value).collect()
    }

    /// The variance of one number of `size`, pooled over all players; `None` before any player has
    /// two numbers.
    fn pooled_variance(&self, size: usize) -> Option<f64> {
        let (mut squares, mut freedom) = (0.0, 0);
        for cell in (0..self.players).map(|player| self.cell(player, size)) {
            squares += cell.squares;
            freedom += cell.count.saturating_sub(1);
        }
        (freedom > 0).then(|| squares / freedom as f64)
    }

    /// The variances of one number of `size`, by player: each player's own, shrunk towards the
    /// pooled one if it has few numbers.
    pub(super) fn shrunk_variances(&self, size: usize) -> Option<Vec<f64>> {
        let common = self.pooled_variance(size)?;
        let own = |player| {
            let cell = self.cell(player, size);
            let freedom = cell.count.saturating_sub(1) as f64;
            (cell.squares + PRIOR_SAMPLES * common) / (freedom + PRIOR_SAMPLES)
        };
        Some((0..self.players).map(own).collect())
    }

    /// The predicted standard deviation of one number in each stratum of the `sampled` sizes, by
    /// player and then size, from the other strata: the mean variance of the player's other sizes
    /// times that of the size's other players, divided by the mean variance of all strata, and the
    /// square root of that. The overall mean replaces the stratum's own variance, so that no
    /// stratum is abandoned. `None` before every size has two samples.
    ///
    /// The stratum's own variance is never used: a stratum whose first numbers happen to agree
    /// would be abandoned early, and one with a rare large number oversampled, so that rare effects
    /// would be undervalued.
    pub(super) fn predicted_standard_deviations(&self, sampled: &[usize]) -> Option<Vec<f64>> {
        let by_size: Option<Vec<Vec<f64>>> =
            sampled.iter().map(|&size| self.own_variances(size)).collect();
        let by_size = by_size?;
        let of_size: Vec<f64> = by_size.iter().map(|variances| variances.iter().sum()).collect();
        let of_player =
            |player: usize| by_size.iter().map(|variances| variances[player]).sum::<f64>();
        let mean = of_size.iter().sum::<f64>() / (sampled.len() * self.players).max(1) as f64;
        let others =
            |sum: f64, own: f64, count: usize| (sum - own + mean).max(0.0) / count.max(1) as f64;
        let mut spreads = Vec::with_capacity(sampled.len() * self.players);
        for player in 0..self.players {
            let of_player = of_player(player);
            for (of_size, variances) in of_size.iter().zip(&by_size) {
                let own = variances[player];
                let along = others(of_player, own, sampled.len());
                let across = others(*of_size, own, self.players);
                spreads.push(if mean > 0.0 { (along * across / mean).sqrt() } else { 0.0 });
            }
        }
        Some(spreads)
    }

    /// Each player's own variance of one number of `size` if it has two numbers, else the pooled
    /// one.
    fn own_variances(&self, size: usize) -> Option<Vec<f64>> {
        let common = self.pooled_variance(size)?;
        let own = |player| self.cell(player, size).variance().unwrap_or(common);
        Some((0..self.players).map(own).collect())
    }

    /// One standard error per player: `√(Σ_s variance_s / count_s) / n`. The means of the `sampled`
    /// sizes are random and independent of each other; the others are exact.
    pub(super) fn standard_errors(&self, sampled: &[usize]) -> Option<Vec<f64>> {
        let mut squares = vec![0.0; self.players];
        for &size in sampled {
            for (player, variance) in self.shrunk_variances(size)?.into_iter().enumerate() {
                squares[player] += variance / self.cell(player, size).count as f64;
            }
        }
        Some(squares.iter().map(|square| square.sqrt() / self.players as f64).collect())
    }
}

/// Allocates `more` samples to strata so that the totals, including the existing `counts`, are as
/// close as possible to proportional to their `spreads` (Neyman allocation; J. Neyman, "On the Two
/// Different Aspects of the Representative Method", 1934). Uniform if all spreads are zero.
pub(super) fn neyman_allocation(spreads: &[f64], counts: &[u64], more: u64) -> Vec<u64> {
    let sum: f64 = spreads.iter().sum();
    let even = 1.0 / spreads.len().max(1) as f64;
    let aim = (counts.iter().sum::<u64>() + more) as f64;
    let wanted: Vec<f64> = spreads
        .iter()
        .zip(counts)
        .map(|(spread, count)| {
            let share = if sum > 0.0 { spread / sum } else { even };
            (aim * share - *count as f64).max(0.0)
        })
        .collect();
    let scale = more as f64 / wanted.iter().sum::<f64>();
    let (mut owed, mut given) = (0.0, 0);
    let divide = |wanted: &f64| {
        owed += wanted * scale;
        // Rounded as a running sum, so that the total is `more`.
        let now = ((owed + 0.5) as u64).min(more) - given;
        given += now;
        now
    };
    wanted.iter().map(divide).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neyman_allocation_is_proportional_to_the_standard_deviations() {
        assert_eq!(neyman_allocation(&[1.0, 3.0, 0.0], &[2, 2, 2], 14), [3, 11, 0]);
        assert_eq!(neyman_allocation(&[0.0, 0.0], &[5, 1], 4), [0, 4]);
        assert_eq!(neyman_allocation(&[1.0, 1.0, 1.0], &[0, 0, 0], 10).iter().sum::<u64>(), 10);
    }

    #[test]
    fn stratified_errors_match_hand_computed_values() {
        // Two players, sizes 0 (exact) and 1. Player 0 has 1 and 3 (squares 2), player 1 has 5
        // and 5.
        let mut strata = Strata::new(2);
        for (player, numbers) in [(0, [1.0, 3.0]), (1, [5.0, 5.0])] {
            strata.add(player, 0, 7.0);
            numbers.iter().for_each(|number| strata.add(player, 1, *number));
        }
        assert_eq!(strata.values(), [4.5, 6.0]);
        // Common: 2 / 2 = 1. Player 0: (2 + 2·1)/(1 + 2) = 4/3, player 1: (0 + 2)/3.
        assert_eq!(strata.shrunk_variances(1), Some(vec![4.0 / 3.0, 2.0 / 3.0]));
        let errors = strata.standard_errors(&[1]).unwrap();
        assert!((errors[0] - (2.0_f64 / 3.0).sqrt() / 2.0).abs() < 1e-15);
        assert_eq!(strata.standard_errors(&[0, 1]), None, "one number each has no spread");
    }
}
