//! The game of a training round: a model that moves by a weighted sum of updates.
//!
//! `v(S) = mean loss(w) − mean loss(w + Σ_{i∈S} p_i Δ_i)` with weights `p` that are **fixed** for
//! the whole cohort. If the weights were renormalised inside each coalition, a player with a zero
//! update would earn by diluting the other updates; with fixed weights the value of a zero update
//! is exactly zero.

use std::error::Error;

use crate::{Coalition, Game, GameError, PathIntegral, SmoothGame};

/// A base point, one direction per player, and a loss over rows that can be evaluated anywhere in
/// the span of the directions.
pub trait AffineSource {
    /// Number of directions, one per player.
    fn players(&self) -> usize;

    /// The loss of each row at `base + Σ_i coefficients[i]·Δ_i`. The number of rows never changes.
    ///
    /// # Errors
    /// The source's own evaluation error.
    fn losses(&mut self, coefficients: &[f64]) -> Result<Vec<f64>, GameError>;

    /// The losses at several points. Override this if the source evaluates a batch faster than single
    /// points; the losses of a point must not depend on its batch.
    ///
    /// # Errors
    /// The source's own evaluation error.
    fn losses_at(&mut self, points: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, GameError> {
        points.iter().map(|point| self.losses(point)).collect()
    }

    /// The derivative of each row's loss in each player's direction, at the same point:
    /// `result[player][row]`.
    ///
    /// # Errors
    /// The source's own error of differentiation.
    fn directional_derivatives(&mut self, coefficients: &[f64])
    -> Result<Vec<Vec<f64>>, GameError>;

    /// The derivatives at `t · coefficients` for every node `(t, weight)` of a quadrature, in one
    /// call; `None` if the source differentiates node by node.
    ///
    /// # Errors
    /// The source's own error of differentiation.
    fn path_integral(
        &mut self,
        coefficients: &[f64],
        nodes: &[(f64, f64)],
    ) -> Result<Option<PathIntegral>, GameError> {
        let _ = (coefficients, nodes);
        Ok(None)
    }

    /// The null standard deviation at this point: for each player, the standard deviation of the
    /// mean loss's directional derivative over random directions of the same length as the
    /// player's. In `d` dimensions it is `‖Δ_i‖·‖∇ mean loss‖ / √d`. `None` if the source has no
    /// gradient.
    ///
    /// # Errors
    /// The source's own error of differentiation.
    fn random_direction_std(
        &mut self,
        coefficients: &[f64],
    ) -> Result<Option<Vec<f64>>, GameError> {
        let _ = coefficients;
        Ok(None)
    }

    /// Passes over the rows that [`random_direction_std`](Self::random_direction_std) takes.
    fn random_direction_passes(&self) -> u64 {
        1
    }
}

impl<S: AffineSource + ?Sized> AffineSource for &mut S {
    fn players(&self) -> usize {
        (**self).players()
    }

    fn losses(&mut self, coefficients: &[f64]) -> Result<Vec<f64>, GameError> {
        (**self).losses(coefficients)
    }

    fn losses_at(&mut self, points: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, GameError> {
        (**self).losses_at(points)
    }

    fn directional_derivatives(
        &mut self,
        coefficients: &[f64],
    ) -> Result<Vec<Vec<f64>>, GameError> {
        (**self).directional_derivatives(coefficients)
    }

    fn path_integral(
        &mut self,
        coefficients: &[f64],
        nodes: &[(f64, f64)],
    ) -> Result<Option<PathIntegral>, GameError> {
        (**self).path_integral(coefficients, nodes)
    }

    fn random_direction_std(
        &mut self,
        coefficients: &[f64],
    ) -> Result<Option<Vec<f64>>, GameError> {
        (**self).random_direction_std(coefficients)
    }

    fn random_direction_passes(&self) -> u64 {
        (**self).random_direction_passes()
    }
}

type RandomDirectionStd<'a> = dyn FnMut(&[f64]) -> Result<Vec<f64>, GameError> + 'a;

/// An [`AffineSource`] made of closures, so that an evaluator of another crate needs no type of its
/// own.
pub struct ClosureSource<'a, L, S> {
    players: usize,
    losses: L,
    directional_derivatives: S,
    random_direction_std: Option<Box<RandomDirectionStd<'a>>>,
}

impl<'a, L, S> ClosureSource<'a, L, S> {
    /// A source over `players` directions; `losses` and `slopes` as the methods of
    /// [`AffineSource`].
    pub fn new(players: usize, losses: L, directional_derivatives: S) -> Self {
        Self { players, losses, directional_derivatives, random_direction_std: None }
    }

    /// The same source with `chance`, as the method of [`AffineSource`].
    #[must_use]
    pub fn with_random_direction_std<E>(
        mut self,
        mut chance: impl FnMut(&[f64]) -> Result<Vec<f64>, E> + 'a,
    ) -> Self
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.random_direction_std = Some(Box::new(move |at| chance(at).map_err(GameError::new)));
        self
    }
}

impl<L, S, E, F> AffineSource for ClosureSource<'_, L, S>
where
    L: FnMut(&[f64]) -> Result<Vec<f64>, E>,
    S: FnMut(&[f64]) -> Result<Vec<Vec<f64>>, F>,
    E: Into<Box<dyn Error + Send + Sync>>,
    F: Into<Box<dyn Error + Send + Sync>>,
{
    fn players(&self) -> usize {
        self.players
    }

    fn losses(&mut self, coefficients: &[f64]) -> Result<Vec<f64>, GameError> {
        (self.losses)(coefficients).map_err(GameError::new)
    }

    fn directional_derivatives(
        &mut self,
        coefficients: &[f64],
    ) -> Result<Vec<Vec<f64>>, GameError> {
        (self.directional_derivatives)(coefficients).map_err(GameError::new)
    }

    fn random_direction_std(
        &mut self,
        coefficients: &[f64],
    ) -> Result<Option<Vec<f64>>, GameError> {
        self.random_direction_std.as_mut().map(|chance| chance(coefficients)).transpose()
    }
}

/// Why weights do not define a game.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AffineError {
    /// The number of weights differs from the number of players.
    #[error("{weights} weights for {players} players; give exactly one weight per player")]
    WeightCountMismatch {
        /// Weights given.
        weights: usize,
        /// Players of the source.
        players: usize,
    },
    /// All weights of the members are zero.
    #[error("the weights of the members sum to 0; at least one member needs a positive weight")]
    WeightsSumToZero,
    /// Members must be a strictly ascending list of players.
    #[error(
        "member {member} is out of place; members must be strictly ascending and below {players}"
    )]
    MembersNotAscending {
        /// The first member that breaks the rule.
        member: usize,
        /// Players of the source.
        players: usize,
    },
}

impl AffineError {
    /// A stable code of the error, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::WeightCountMismatch { .. } => "WEIGHT_COUNT_MISMATCH",
            Self::WeightsSumToZero => "WEIGHTS_SUM_TO_ZERO",
            Self::MembersNotAscending { .. } => "MEMBERS_NOT_ASCENDING",
        }
    }
}

/// Shares `p_i = w_i / Σ_{members} w`, fixed for a whole valuation.
#[derive(Debug, Clone, PartialEq)]
pub struct FixedWeights {
    players: usize,
    members: Vec<usize>,
    shares: Vec<f64>,
}

impl FixedWeights {
    /// Every player is a member, with shares proportional to `weights`.
    ///
    /// # Errors
    /// [`AffineError::WeightsSumToZero`].
    pub fn over_all(weights: &[u64]) -> Result<Self, AffineError> {
        let all_players: Vec<usize> = (0..weights.len()).collect();
        Self::over(weights, &all_players)
    }

    /// Only `members` (ascending) take part. `weights` has one entry per player of the source; the
    /// members' shares are proportional to their own entries.
    ///
    /// # Errors
    /// [`AffineError::MembersNotAscending`], [`AffineError::WeightsSumToZero`].
    pub fn over(weights: &[u64], members: &[usize]) -> Result<Self, AffineError> {
        let players = weights.len();
        let mut next = 0;
        for &member in members {
            if member < next || member >= players {
                return Err(AffineError::MembersNotAscending { member, players });
            }
            next = member + 1;
        }
        // u128 cannot overflow: a sum of fewer than 2^64 numbers below 2^64.
        let total: u128 = members.iter().map(|&member| u128::from(weights[member])).sum();
        if total == 0 {
            return Err(AffineError::WeightsSumToZero);
        }
        let shares = members.iter().map(|&member| weights[member] as f64 / total as f64).collect();
        Ok(Self { players, members: members.to_vec(), shares })
    }

    /// The members, as players of the source, ascending.
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// The shares `p_i` of the members, in the order of [`members`](Self::members); they sum to 1
    /// up to rounding.
    pub fn shares(&self) -> &[f64] {
        &self.shares
    }

    /// One coefficient per player of the source: `scale · p_i` for the members at the positions
    /// that `joins` accepts, 0 for all other players.
    fn coefficients(&self, scale: f64, joins: impl Fn(usize) -> bool) -> Vec<f64> {
        let mut coefficients = vec![0.0; self.players];
        for (position, (&member, share)) in self.members.iter().zip(&self.shares).enumerate() {
            if joins(position) {
                coefficients[member] = scale * share;
            }
        }
        coefficients
    }
}

/// The game of one training round over an [`AffineSource`]; its players are the members of the
/// weights, in their order.
///
/// The base point is evaluated once and cached.
pub struct AffineGame<S> {
    source: S,
    weights: FixedWeights,
    base: Option<Vec<f64>>,
}

impl<S: AffineSource> AffineGame<S> {
    /// The game in which the members of `weights` move the model by their fixed shares.
    ///
    /// # Errors
    /// [`AffineError::WeightCountMismatch`].
    pub fn new(source: S, weights: FixedWeights) -> Result<Self, AffineError> {
        if weights.players != source.players() {
            return Err(AffineError::WeightCountMismatch {
                weights: weights.players,
                players: source.players(),
            });
        }
        Ok(Self { source, weights, base: None })
    }

    /// The same game with the losses at the base point, known from an earlier game over the same
    /// source.
    pub(crate) fn with_base(mut self, base: Vec<f64>) -> Self {
        self.base = Some(base);
        self
    }

    /// The loss of each row at the base point.
    ///
    /// # Errors
    /// The source's own evaluation error.
    pub fn base_losses(&mut self) -> Result<&[f64], GameError> {
        if self.base.is_none() {
            let nowhere = vec![0.0; self.weights.players];
            self.base = Some(self.source.losses(&nowhere)?);
        }
        Ok(self.base.as_deref().unwrap_or_default())
    }

    /// The null standard deviation of each member's score, and the passes that it took: the source's
    /// value half-way along the diagonal, times the member's share. All zeros and no pass if the source
    /// does not provide it.
    ///
    /// # Errors
    /// The source's own error of differentiation, and a value that is missing or not finite.
    pub(crate) fn member_random_direction_std(&mut self) -> Result<(Vec<f64>, u64), GameError> {
        let half_way = self.weights.coefficients(0.5, |_| true);
        let Some(of_players) = self.source.random_direction_std(&half_way)? else {
            return Ok((vec![0.0; self.weights.members.len()], 0));
        };
        let members = self.weights.members.iter().zip(&self.weights.shares);
        let of = |(&member, share): (&usize, &f64)| match of_players.get(member) {
            Some(chance) if chance.is_finite() => Ok(chance * share),
            _ => Err(GameError::new(format!(
                "player {member} has no finite null standard deviation"
            ))),
        };
        let passes = self.source.random_direction_passes();
        Ok((members.map(of).collect::<Result<_, _>>()?, passes))
    }

    /// The loss reduction of each row when the model moves by `coefficients`.
    fn loss_reductions(&mut self, coefficients: Vec<f64>) -> Result<Vec<f64>, GameError> {
        Ok(self.loss_reductions_at(vec![coefficients])?.concat())
    }

    /// The loss reductions at several points.
    fn loss_reductions_at(&mut self, points: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, GameError> {
        let base = self.base_losses()?.to_vec();
        let rests = |point: &Vec<f64>| point.iter().all(|coefficient| *coefficient == 0.0);
        let resting: Vec<bool> = points.iter().map(rests).collect();
        let moving: Vec<Vec<f64>> = points.into_iter().filter(|point| !rests(point)).collect();
        let mut found = self.source.losses_at(&moving)?.into_iter();
        let reduction = |rests: bool| {
            if rests {
                return Ok(vec![0.0; base.len()]);
            }
            let moved = found.next().unwrap_or_default();
            if moved.len() != base.len() {
                return Err(GameError::new(format!(
                    "the source returned {} losses, but {} at the base point",
                    moved.len(),
                    base.len()
                )));
            }
            Ok(base.iter().zip(&moved).map(|(before, after)| before - after).collect())
        };
        resting.into_iter().map(reduction).collect()
    }
}

impl<S: AffineSource> Game for AffineGame<S> {
    fn players(&self) -> usize {
        self.weights.members.len()
    }

    fn value(&mut self, coalition: &Coalition) -> Result<f64, GameError> {
        Ok(crate::statistics::mean(&self.value_rows(coalition)?))
    }

    fn value_rows(&mut self, coalition: &Coalition) -> Result<Vec<f64>, GameError> {
        let coefficients = self.weights.coefficients(1.0, |player| coalition.contains(player));
        self.loss_reductions(coefficients)
    }

    fn value_rows_of(&mut self, coalitions: &[Coalition]) -> Result<Vec<Vec<f64>>, GameError> {
        let point = |coalition: &Coalition| {
            self.weights.coefficients(1.0, |player| coalition.contains(player))
        };
        let points = coalitions.iter().map(point).collect();
        self.loss_reductions_at(points)
    }
}

impl<S: AffineSource> SmoothGame for AffineGame<S> {
    fn diagonal(&mut self, t: f64) -> Result<Vec<f64>, GameError> {
        let coefficients = self.weights.coefficients(t, |_| true);
        self.loss_reductions(coefficients)
    }

    fn directional_derivatives(&mut self, t: f64) -> Result<Vec<Vec<f64>>, GameError> {
        let coefficients = self.weights.coefficients(t, |_| true);
        let mut of_losses = self.source.directional_derivatives(&coefficients)?;
        self.to_member_derivatives(&mut of_losses)
    }

    fn path_integral(&mut self, nodes: &[(f64, f64)]) -> Result<Option<PathIntegral>, GameError> {
        let coefficients = self.weights.coefficients(1.0, |_| true);
        let Some(mut along) = self.source.path_integral(&coefficients, nodes)? else {
            return Ok(None);
        };
        let integrals = self.to_member_derivatives(&mut along.integrals)?;
        let slopes = along.node_derivatives.iter().map(|of_losses| {
            let mut of_losses: Vec<Vec<f64>> = of_losses.iter().map(|slope| vec![*slope]).collect();
            Ok(self.to_member_derivatives(&mut of_losses)?.concat())
        });
        Ok(Some(PathIntegral {
            node_derivatives: slopes.collect::<Result<_, GameError>>()?,
            integrals,
        }))
    }
}

impl<S: AffineSource> AffineGame<S> {
    /// Converts derivatives of the loss in the players' directions to derivatives of the game's
    /// value with respect to the members' participation.
    fn to_member_derivatives(
        &self,
        of_losses: &mut [Vec<f64>],
    ) -> Result<Vec<Vec<f64>>, GameError> {
        if of_losses.len() != self.weights.players {
            return Err(GameError::new(format!(
                "the source returned directional derivatives for {} players, not for {}",
                of_losses.len(),
                self.weights.players
            )));
        }
        let members = self.weights.members.iter().zip(&self.weights.shares);
        Ok(members
            .map(|(&member, share)| {
                let mut rows = std::mem::take(&mut of_losses[member]);
                rows.iter_mut().for_each(|slope| *slope *= -share);
                rows
            })
            .collect())
    }
}
