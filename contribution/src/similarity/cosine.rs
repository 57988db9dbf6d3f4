//! How well each update points the way that all of them together point.

use std::borrow::Cow;

use crate::GameError;

/// One vector per player, all of one length.
pub trait Directions {
    /// How many players there are; must not change while they are compared.
    fn players(&self) -> usize;

    /// The vector of `player`. It is asked for twice, so that one vector at a time is enough memory.
    ///
    /// # Errors
    /// Whatever kept it from being read.
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

/// Why there are no cosines.
#[derive(Debug, thiserror::Error)]
pub enum CosineError {
    /// Nobody to compare.
    #[error("there are 0 directions; a comparison needs at least 1")]
    NoPlayers,
    /// One share per player.
    #[error("{shares} shares for {players} players; give exactly one share per player")]
    SharesDoNotMatch {
        /// Shares given.
        shares: usize,
        /// Directions there are.
        players: usize,
    },
    /// A share that is no share.
    #[error("player {player} has a share of {share}; it must be finite and not below 0")]
    ShareOutOfRange {
        /// Whose.
        player: usize,
        /// What it is.
        share: f64,
    },
    /// Vectors of different lengths.
    #[error("player {player}'s direction has {got} numbers, where {expected} were expected")]
    LengthDiffers {
        /// Whose.
        player: usize,
        /// As many as it has.
        got: usize,
        /// As many as the first one has.
        expected: usize,
    },
    /// A vector with a NaN or an infinity.
    #[error("player {player}'s direction is {number} at {at}; every number must be finite")]
    NotFinite {
        /// Whose.
        player: usize,
        /// Where.
        at: usize,
        /// NaN or an infinity.
        number: f32,
    },
    /// A vector could not be read.
    #[error("a direction could not be read: {0}")]
    Unreadable(#[from] GameError),
}

impl CosineError {
    /// A stable name of the refusal, for machines.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoPlayers => "NO_PLAYERS",
            Self::SharesDoNotMatch { .. } => "SHARES_DO_NOT_MATCH",
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
/// All vectors are brought to one length before they are summed, as published, so that a long one
/// does not make the sum its own. A vector of zeros gets 0, and so does everybody where the sum is
/// zero. For comparison, never for pay: splitting an identity multiplies what it gets, and no data
/// says whether the common direction is a good one.
///
/// # Errors
/// Shares that do not fit, vectors of different lengths or with numbers that are not finite, and
/// the reader's own: see [`CosineError`].
pub fn cosine<D: Directions + ?Sized>(
    directions: &mut D,
    shares: &[f64],
) -> Result<Vec<f64>, CosineError> {
    let players = directions.players();
    check_shares(shares, players)?;
    let mut together: Vec<f64> = Vec::new();
    let mut lengths = Vec::with_capacity(players);
    for (player, share) in shares.iter().enumerate() {
        let direction = directions.direction(player)?;
        if player == 0 {
            together.resize(direction.len(), 0.0);
        }
        check_direction(player, &direction, together.len())?;
        let length = norm(&direction);
        lengths.push(length);
        if length > 0.0 {
            for (sum, x) in together.iter_mut().zip(direction.iter()) {
                *sum += share / length * f64::from(*x);
            }
        }
    }
    let whole = together.iter().map(|x| x * x).sum::<f64>().sqrt();
    let mut cosines = Vec::with_capacity(players);
    for (player, length) in lengths.into_iter().enumerate() {
        if length == 0.0 || whole == 0.0 {
            cosines.push(0.0);
            continue;
        }
        let direction = directions.direction(player)?;
        check_direction(player, &direction, together.len())?;
        let along: f64 = direction.iter().zip(&together).map(|(x, sum)| f64::from(*x) * sum).sum();
        cosines.push((along / length / whole).clamp(-1.0, 1.0));
    }
    Ok(cosines)
}

fn check_shares(shares: &[f64], players: usize) -> Result<(), CosineError> {
    if players == 0 {
        return Err(CosineError::NoPlayers);
    }
    if shares.len() != players {
        return Err(CosineError::SharesDoNotMatch { shares: shares.len(), players });
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

/// ‖u‖; squares of `f32` neither overflow nor vanish in `f64`.
fn norm(direction: &[f32]) -> f64 {
    direction.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt()
}
