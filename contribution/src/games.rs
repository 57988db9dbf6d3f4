//! Synthetic games with published formulas, so that estimators can be compared on reproducible
//! games.
//!
//! All parameters derive from one seed through [`SeededRng`]. The values are plain formulas, so that an
//! implementation in another language needs only the parameters or the whole table.

use crate::{Coalition, Game, GameError, SeededRng};

/// Number of classes of the coverage game.
const CLASSES: usize = 10;

/// Largest number of players of a [`TableGame`].
const PLAYERS_MAX: usize = 24;

/// A game whose value is a formula of the coalition.
#[derive(Debug, Clone, PartialEq)]
pub enum SyntheticGame {
    /// `0.85·(1 − exp(−Σ_{i∈S} a_i))`: diminishing returns of more rows. Each player has one `a`,
    /// uniform in 0.05 to 0.5 for 10 players and scaled by `10 / n`, so that the expected sum over
    /// all players does not depend on `n`.
    Saturating {
        /// The `a_i`.
        strengths: Vec<f64>,
    },
    /// `Σ_c (1/10)·(1 − exp(−Σ_{i∈S} r_{ic})) − h·[last ∈ S]`: ten classes, each learnt in
    /// proportion to the coalition's rows of it. Player 1 duplicates player 0, the last but one
    /// player has no rows, and the last player has no rows and subtracts `h`.
    Coverage {
        /// `rows[i][c]`, in units of which 1 means 63 % learnt.
        rows: Vec<[f64; CLASSES]>,
        /// The value that the last player subtracts.
        harm: f64,
    },
    /// `Σ_T m_T·[T ⊆ S]` over all single players, some pairs and some triples.
    Interaction {
        /// The sets `T` with their `m_T`.
        terms: Vec<(Coalition, f64)>,
        /// Number of players.
        players: usize,
    },
    /// 1 if the coalition's votes reach the quota, else 0: a game with no smoothness at all.
    Voting {
        /// Votes of each player.
        votes: Vec<u64>,
        /// Number of votes that win.
        quota: u64,
    },
}

impl SyntheticGame {
    /// The saturating game of `seed`.
    pub fn saturating(players: usize, seed: u64) -> Self {
        let mut draw = SeededRng::new(seed, 1);
        let each = 10.0 / players as f64;
        let strengths = (0..players).map(|_| (0.05 + 0.45 * draw.uniform()) * each).collect();
        Self::Saturating { strengths }
    }

    /// The coverage game of `seed`: each player holds rows of two classes, 0.6 to 3.6 of each.
    pub fn coverage(players: usize, seed: u64) -> Self {
        let mut draw = SeededRng::new(seed, 2);
        let mut rows = vec![[0.0; CLASSES]; players];
        for held in rows.iter_mut().take(players.saturating_sub(2)) {
            for class in draw.coalition(CLASSES, 2).players() {
                held[class] = 0.6 + 3.0 * draw.uniform();
            }
        }
        if players > 3 {
            rows[1] = rows[0];
        }
        Self::Coverage { rows, harm: 0.05 }
    }

    /// The interaction game of `seed`: as many pairs and as many triples as players.
    pub fn interaction(players: usize, seed: u64) -> Self {
        let mut draw = SeededRng::new(seed, 3);
        let mut terms = Vec::new();
        for player in 0..players {
            terms.push((Coalition::from_mask(players, 1 << player), draw.uniform()));
        }
        for size in [2, 3] {
            for _ in 0..players {
                let of = draw.coalition(players, size.min(players));
                terms.push((of, draw.uniform() - 0.5));
            }
        }
        Self::Interaction { terms, players }
    }

    /// The voting game of `seed`: 1 to 10 votes per player; the quota is the smallest majority.
    pub fn voting(players: usize, seed: u64) -> Self {
        let mut draw = SeededRng::new(seed, 4);
        let votes: Vec<u64> = (0..players).map(|_| 1 + draw.below(10)).collect();
        let quota = votes.iter().sum::<u64>() / 2 + 1;
        Self::Voting { votes, quota }
    }

    fn coalition_value(&self, coalition: &Coalition) -> f64 {
        match self {
            Self::Saturating { strengths } => {
                let strength: f64 = coalition.players().map(|player| strengths[player]).sum();
                0.85 * (1.0 - (-strength).exp())
            }
            Self::Coverage { rows, harm } => {
                let learnt = |class: usize| {
                    let held: f64 = coalition.players().map(|player| rows[player][class]).sum();
                    (1.0 - (-held).exp()) / CLASSES as f64
                };
                let harmed = coalition.contains(rows.len() - 1);
                (0..CLASSES).map(learnt).sum::<f64>() - if harmed { *harm } else { 0.0 }
            }
            Self::Interaction { terms, .. } => {
                let present = terms.iter().filter(|(of, _)| of.is_subset(coalition));
                present.map(|(_, worth)| worth).sum()
            }
            Self::Voting { votes, quota } => {
                let sum: u64 = coalition.players().map(|player| votes[player]).sum();
                f64::from(u8::from(sum >= *quota))
            }
        }
    }
}

impl Game for SyntheticGame {
    fn players(&self) -> usize {
        match self {
            Self::Saturating { strengths } => strengths.len(),
            Self::Coverage { rows, .. } => rows.len(),
            Self::Interaction { players, .. } => *players,
            Self::Voting { votes, .. } => votes.len(),
        }
    }

    fn value(&mut self, coalition: &Coalition) -> Result<f64, GameError> {
        Ok(self.coalition_value(coalition))
    }
}

/// A game given by its complete table: `worths[mask]` is a coalition's value, bit 0 is player 0.
#[derive(Debug, Clone, PartialEq)]
pub struct TableGame {
    players: usize,
    values: Vec<f64>,
}

impl TableGame {
    /// The game of `players` players with these values.
    ///
    /// # Errors
    /// If there are not 2^players values, or if there are more than 24 players.
    pub fn new(players: usize, worths: Vec<f64>) -> Result<Self, GameError> {
        if players > PLAYERS_MAX || worths.len() != 1 << players {
            let got = worths.len();
            return Err(GameError::new(format!(
                "{got} values for {players} players; give 2^players, with players ≤ {PLAYERS_MAX}"
            )));
        }
        Ok(Self { players, values: worths })
    }

    /// The complete table of `game`, evaluated in batches.
    ///
    /// # Errors
    /// If there are more than 24 players, or the game's own error.
    pub fn from_game<G: Game + ?Sized>(game: &mut G) -> Result<Self, GameError> {
        const BATCH: u64 = 4_096;
        let players = game.players();
        if players > PLAYERS_MAX {
            return Self::new(players, Vec::new());
        }
        let count = 1_u64 << players;
        let mut worths = Vec::with_capacity(count as usize);
        for from in (0..count).step_by(BATCH as usize) {
            let masks = from..count.min(from + BATCH);
            let batch: Vec<Coalition> =
                masks.map(|mask| Coalition::from_mask(players, mask)).collect();
            worths.extend(game.values(&batch)?);
        }
        Self::new(players, worths)
    }

    /// The values, indexed by mask.
    pub fn value_table(&self) -> &[f64] {
        &self.values
    }

    /// The exact Shapley values, computed from the table.
    pub fn shapley(&self) -> Vec<f64> {
        let n = self.players;
        // weight[s] = s!(n−1−s)!/n! = 1 / (n·C(n−1, s))
        let mut weight = Vec::with_capacity(n);
        let mut choices = 1.0;
        for size in 0..n {
            weight.push(1.0 / (n as f64 * choices));
            choices = choices * (n - 1 - size) as f64 / (size + 1) as f64;
        }
        (0..n)
            .map(|player| {
                let bit = 1_usize << player;
                (0..self.values.len())
                    .filter(|mask| mask & bit == 0)
                    .map(|mask| {
                        let size = mask.count_ones() as usize;
                        weight[size] * (self.values[mask | bit] - self.values[mask])
                    })
                    .sum()
            })
            .collect()
    }
}

impl Game for TableGame {
    fn players(&self) -> usize {
        self.players
    }

    fn value(&mut self, coalition: &Coalition) -> Result<f64, GameError> {
        Ok(self.values[coalition.mask() as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value_of_mask(game: &SyntheticGame, mask: u64) -> f64 {
        game.coalition_value(&Coalition::from_mask(game.players(), mask))
    }

    #[test]
    fn formulas_match_hand_computed_values() {
        let saturating = SyntheticGame::Saturating { strengths: vec![0.0, 2.0_f64.ln()] };
        assert_eq!(value_of_mask(&saturating, 0b01), 0.0);
        assert!((value_of_mask(&saturating, 0b11) - 0.425).abs() < 1e-15);

        let mut rows = vec![[0.0; CLASSES]; 2];
        rows[0][3] = 2.0_f64.ln();
        let coverage = SyntheticGame::Coverage { rows, harm: 0.25 };
        assert!((value_of_mask(&coverage, 0b01) - 0.05).abs() < 1e-15);
        assert!((value_of_mask(&coverage, 0b11) + 0.2).abs() < 1e-15);

        let pair = Coalition::from_mask(3, 0b101);
        let interaction = SyntheticGame::Interaction { terms: vec![(pair, 4.0)], players: 3 };
        assert_eq!(
            (value_of_mask(&interaction, 0b001), value_of_mask(&interaction, 0b111)),
            (0.0, 4.0)
        );

        let voting = SyntheticGame::Voting { votes: vec![3, 2], quota: 3 };
        assert_eq!((value_of_mask(&voting, 0b10), value_of_mask(&voting, 0b01)), (0.0, 1.0));
    }

    #[test]
    fn the_coverage_game_has_a_duplicate_a_free_rider_and_a_harmful_player() {
        let values = TableGame::from_game(&mut SyntheticGame::coverage(8, 5)).unwrap().shapley();
        assert!((values[0] - values[1]).abs() < 1e-15);
        assert_eq!(values[6], 0.0);
        assert!((values[7] + 0.05).abs() < 1e-15);
    }

    #[test]
    fn a_table_needs_two_to_the_players_values() {
        assert!(TableGame::new(2, vec![0.0; 3]).is_err());
        assert!(TableGame::new(25, Vec::new()).is_err());
        let table = TableGame::new(2, vec![0.0, 1.0, 2.0, 5.0]).unwrap();
        assert_eq!(table.shapley(), [2.0, 3.0]);
    }
}
