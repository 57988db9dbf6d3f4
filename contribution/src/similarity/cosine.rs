//! Cosine similarity of each update with the weighted sum of all updates.

use std::borrow::Cow;

use crate::GameError;

/// One vector per player, all of the same length.
pub trait Directions {
    /// Number of players; must not change during the comparison.
    fn players(&self) -> usize;

    /// The vector of `player`. [`cosine`] reads each vector twice, so that only one needs to be in
    /// memory at a time.
    ///
    /// # Errors
    /// The error of reading the vector.
    fn direction(&mut self, player: usize) -> Result<Cow<'_, [f32]>, GameError>;
}

impl<V: AsRef<[f32]>> Directions for [V] {
    fn players(&self) -> usize {
        self.len()
    }

    fn direction(&mut self, player: usize) -> Result<Cow<'_, [f32]>, GameError> {
        Ok(Cow::Borrowed(self[player].as_ref()))
    }
}

impl<V: AsRef<[f32]>> Directions for Vec<V> {
    fn players(&self) -> usize {
        self.len()
    }

    fn direction(&mut self, player: usize) -> Result<Cow<'_, [f32]>, GameError> {
        Ok(Cow::Borrowed(self[player].as_ref()))
    }
}

/// The reasons for which cosines cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum CosineError {
    /// There are no players.
    #[error("there are 0 directions; a comparison needs at least 1")]
    NoPlayers,
    /// The number of shares differs from the number of players.
    #[error("{shares} shares for {players} players; give exactly one share per player")]
    ShareCountMismatch {
        /// Shares given.
        shares: usize,
        /// Directions there are.
        players: usize,
    },
    /// A share is negative or not finite.
    #[error("player {player} has a share of {share}; it must be finite and not below 0")]
    ShareOutOfRange {
        /// The player.
        player: usize,
        /// The share.
        share: f64,
    },
    /// Vectors of different lengths.
    #[error("player {player}'s direction has {got} numbers, where {expected} were expected")]
    LengthDiffers {
        /// The player.
        player: usize,
        /// The vector's length.
        got: usize,
        /// The length of the first vector.
        expected: usize,
    },
    /// A vector with a NaN or an infinity.
    #[error("player {player}'s direction is {number} at {at}; every number must be finite")]
    NotFinite {
        /// The player.
        player: usize,
        /// The index in the vector.
        at: usize,
        /// NaN or an infinity.
        number: f32,
    },
    /// A vector could not be read.
    #[error("a direction could not be read: {0}")]
    Unreadable(#[from] GameError),
}

impl CosineError {
    /// A stable code of the error, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoPlayers => "NO_PLAYERS",
            Self::ShareCountMismatch { .. } => "SHARE_COUNT_MISMATCH",
            Self::ShareOutOfRange { .. } => "SHARE_OUT_OF_RANGE",
            Self::LengthDiffers { .. } => "LENGTH_DIFFERS",
            Self::NotFinite { .. } => "DIRECTION_NOT_FINITE",
            Self::Unreadable(_) => "DIRECTION_UNREADABLE",
        }
    }
}

/// `ψ_i = cos(u_i, u_N)` with `u_N = Σ_i share_i·u_i/‖u_i‖`, one per player, in −1..=1 (X. Xu et
/// al., "Gradient Driven Rewards to Guarantee Fairness in Collaborative Machine Learning" (CGSV),
/// NeurIPS 2021: its approximation of the Shapley value of `cos(u_S, u_N)`).
///
/// All vectors are normalised before the summation, as published, so that a long vector does not
/// dominate the sum. The cosine of a zero vector is 0, and all cosines are 0 if the sum is zero.
/// For comparison, never for payment: splitting an identity multiplies its score, and no data shows
/// whether the common direction is a good one.
///
/// # Errors
/// Shares that are invalid, vectors of different lengths or with numbers that are not finite, and
/// read errors: see [`CosineError`].
pub fn cosine<D: Directions + ?Sized>(
    directions: &mut D,
    shares: &[f64],
) -> Result<Vec<f64>, CosineError> {
    let players = directions.players();
    check_shares(shares, players)?;
    let mut sum: Vec<f64> = Vec::new();
    let mut lengths = Vec::with_capacity(players);
    for (player, share) in shares.iter().enumerate() {
        let direction = directions.direction(player)?;
        if player == 0 {
            sum.resize(direction.len(), 0.0);
        }
        check_direction(player, &direction, sum.len())?;
        let length = norm(&direction);
        lengths.push(length);
        if length > 0.0 {
            for (sum, x) in sum.iter_mut().zip(direction.iter()) {
                *sum += share / length * f64::from(*x);
            }
        }
    }
    let whole = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
    let mut cosines = Vec::with_capacity(players);
    for (player, length) in lengths.into_iter().enumerate() {
        if length == 0.0 || whole == 0.0 {
            cosines.push(0.0);
            continue;
        }
        let direction = directions.direction(player)?;
        check_direction(player, &direction, sum.len())?;
        let projection: f64 = direction.iter().zip(&sum).map(|(x, sum)| f64::from(*x) * sum).sum();
        cosines.push((projection / length / whole).clamp(-1.0, 1.0));
    }
    Ok(cosines)
}

fn check_shares(shares: &[f64], players: usize) -> Result<(), CosineError> {
    if players == 0 {
        return Err(CosineError::NoPlayers);
    }
    if shares.len() != players {
        return Err(CosineError::ShareCountMismatch { shares: shares.len(), players });
    }
    let is_share = |share: &f64| share.is_finite() && *share >= 0.0;
    match shares.iter().position(|share| !is_share(share)) {
        Some(player) => Err(CosineError::ShareOutOfRange { player, share: shares[player] }),
        None => Ok(()),
    }
}

fn check_direction(player: usize, direction: &[f32], expected: usize) -> Result<(), CosineError> {
    if direction.len() != expected {
        return Err(CosineError::LengthDiffers { player, got: direction.len(), expected });
    }
    match direction.iter().position(|number| !number.is_finite()) {
        Some(at) => Err(CosineError::NotFinite { player, at, number: direction[at] }),
        None => Ok(()),
    }
}

/// ‖u‖; squares of `f32` neither overflow nor underflow in `f64`.
fn norm(direction: &[f32]) -> f64 {
    direction.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt()
}
