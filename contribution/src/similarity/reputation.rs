//! Reputation: scores smoothed over rounds.

/// The reasons for which an update of the reputations fails.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReputationError {
    /// The smoothing factor is outside 0..=1.
    #[error("alpha is {alpha}; it must be within 0..=1")]
    AlphaOutOfRange {
        /// The factor.
        alpha: f64,
    },
    /// The number of scores differs from the number of players.
    #[error("{scores} scores for {players} players; give exactly one score per player")]
    ScoresDoNotMatch {
        /// Scores given.
        scores: usize,
        /// Players with a reputation.
        players: usize,
    },
    /// A score is NaN or an infinity.
    #[error("player {player} scored {score}; a score must be finite")]
    ScoreNotFinite {
        /// The player.
        player: usize,
        /// The score.
        score: f64,
    },
}

impl ReputationError {
    /// A stable code of the error, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::AlphaOutOfRange { .. } => "ALPHA_OUT_OF_RANGE",
            Self::ScoresDoNotMatch { .. } => "SCORE_COUNT_MISMATCH",
            Self::ScoreNotFinite { .. } => "SCORE_NOT_FINITE",
        }
    }
}

/// Exponential smoothing `r_i ← α·r_i + (1 − α)·ψ_i`, starting from zero (X. Xu et al., "Gradient
/// Driven Rewards to Guarantee Fairness in Collaborative Machine Learning", NeurIPS 2021).
///
/// For decisions about admission and inspection. Never for payment, which must stay linear in the
/// scores.
#[derive(Debug, Clone, PartialEq)]
pub struct Reputation {
    alpha: f64,
    values: Vec<f64>,
}

impl Reputation {
    /// Starts with reputations of zero for `players` players; `alpha` is the weight of the past.
    ///
    /// # Errors
    /// [`ReputationError::AlphaOutOfRange`] outside `0..=1`.
    pub fn new(players: usize, alpha: f64) -> Result<Self, ReputationError> {
        if !(0.0..=1.0).contains(&alpha) {
            return Err(ReputationError::AlphaOutOfRange { alpha });
        }
        Ok(Self { alpha, values: vec![0.0; players] })
    }

    /// Updates the reputations with a round's scores, one per player; changes nothing on an error.
    ///
    /// # Errors
    /// [`ReputationError::ScoresDoNotMatch`], [`ReputationError::ScoreNotFinite`].
    pub fn update(&mut self, scores: &[f64]) -> Result<(), ReputationError> {
        if scores.len() != self.values.len() {
            let (scores, players) = (scores.len(), self.values.len());
            return Err(ReputationError::ScoresDoNotMatch { scores, players });
        }
        if let Some(player) = scores.iter().position(|score| !score.is_finite()) {
            return Err(ReputationError::ScoreNotFinite { player, score: scores[player] });
        }
        for (reputation, score) in self.values.iter_mut().zip(scores) {
            *reputation = self.alpha * *reputation + (1.0 - self.alpha) * score;
        }
        Ok(())
    }

    /// One reputation per player.
    pub fn values(&self) -> &[f64] {
        &self.values
    }
}
