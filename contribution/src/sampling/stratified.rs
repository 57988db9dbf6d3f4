//! Stratified sampling: marginal contributions by player and number of predecessors.

use super::endpoints::{EndpointValues, all_coalitions};
use super::passes_default;
use super::strata::{Strata, neyman_allocation};
use super::stratified_rounds::{PILOT, StratifiedSampler, round_length, run};
use crate::meter::EvaluationMeter;
use crate::{Coalition, Estimate, Estimator, Game, SeededRng, ValuationError};

const NAME: &str = "stratified";
const STREAM: u64 = 0x7374_7261;

/// Stratified sampling (J. Castro, D. Gómez, E. Molina and J. Tejada, "Improving polynomial
/// estimation of the Shapley value by stratified random sampling with optimum allocation", 2017):
/// `φ_i = 1/n Σ_s E[v(S ∪ i) − v(S)]` over coalitions S of s other players; each (player, size) is
/// a stratum.
///
/// A pilot visits every stratum twice. After it the samples are allocated in proportion to the
/// standard deviations (Neyman allocation), which are updated as the samples grow. The standard
/// deviation of a stratum is predicted from the player's other sizes and the size's other players,
/// because a stratum that used its own would bias its own mean (measured: by a third of the error
/// on a voting game). The two extreme sizes have one coalition each and are exact.
///
/// Strong if values depend mostly on coalition size. Not efficient: the gap is noise. The error is
/// `√(Σ_s variance/count)/n`; a variance with few samples is shrunk towards that of its size. One
/// sample costs at most 2 evaluations. At least 2 + 2·n + 2·n·(n − 2) passes (every stratum once,
/// no error yet); by default five samples per stratum, or 100·n + 2 if that is more. Memory grows
/// with n².
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stratified;

/// Number of passes that visit every stratum `times` times.
fn visiting_passes(players: usize, times: u64) -> u64 {
    let n = players as u64;
    let between = n.saturating_mul(n.saturating_sub(2)).saturating_mul(2 * times);
    between.saturating_add(2 * n + 2).min(all_coalitions(players))
}

impl<G: Game + ?Sized> Estimator<G> for Stratified {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> u32 {
        1
    }

    fn passes_min(&self, players: usize) -> u64 {
        visiting_passes(players, 1)
    }

    fn passes_default(&self, players: usize) -> Option<u64> {
        Some(passes_default(players, visiting_passes(players, 5)))
    }

    fn estimate(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Estimate, ValuationError> {
        run::<G, MarginalSampler>(game, meter)
    }
}

/// A stratum: the joining player, and the number of its predecessors.
type Stratum = (usize, usize);

struct MarginalSampler {
    players: usize,
    strata: Strata,
    draw: SeededRng,
}

impl StratifiedSampler for MarginalSampler {
    type Item = Stratum;
    const UNITS: &'static str = "marginals by strata";

    /// Evaluates the strata of no predecessors and of all others, which have one coalition each.
    fn new<G: Game + ?Sized>(
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
        ends: &EndpointValues,
    ) -> Result<Self, ValuationError> {
        let players = ends.players;
        let (empty, grand) = (Coalition::empty(players), Coalition::full(players));
        let mut asked: Vec<Coalition> = (0..players).map(|player| empty.with(player)).collect();
        asked.extend((0..players).map(|player| grand.without(player)));
        let worths = meter.values(game, &asked)?;
        let mut strata = Strata::new(players);
        for player in 0..players {
            strata.add(player, 0, worths[player] - ends.empty_value);
            if players > 1 {
                strata.add(player, players - 1, ends.grand_value - worths[players + player]);
            }
        }
        Ok(Self { players, strata, draw: SeededRng::new(meter.seed(), STREAM) })
    }

    fn next_round(&mut self, number: u64) -> Vec<Stratum> {
        let sizes = 1..self.players.saturating_sub(1);
        let strata: Vec<Stratum> = (0..self.players)
            .flat_map(|player| sizes.clone().map(move |size| (player, size)))
            .collect();
        let mut round =
            match (number < PILOT, self.strata.predicted_standard_deviations(&self.sampled())) {
                (false, Some(spreads)) => {
                    let count = |&(player, size): &Stratum| self.strata.cell(player, size).count;
                    let counts: Vec<u64> = strata.iter().map(count).collect();
                    let often = neyman_allocation(&spreads, &counts, round_length(&counts));
                    let repeat = |(stratum, often): (&Stratum, u64)| {
                        std::iter::repeat_n(*stratum, often as usize)
                    };
                    strata.iter().zip(often).flat_map(repeat).collect()
                }
                _ => strata,
            };
        self.draw.shuffle(&mut round);
        round
    }

    fn pair(&mut self, &(player, size): &Stratum) -> [Coalition; 2] {
        let before = self.others(player, size);
        [before.with(player), before]
    }

    fn add_difference(&mut self, &(player, size): &Stratum, difference: f64) {
        self.strata.add(player, size, difference);
    }

    fn strata(&self) -> &Strata {
        &self.strata
    }

    fn sampled(&self) -> Vec<usize> {
        (1..self.players.saturating_sub(1)).collect()
    }
}

impl MarginalSampler {
    /// A uniformly random coalition of `size` players other than `player`.
    fn others(&mut self, player: usize, size: usize) -> Coalition {
        let chosen = self.draw.coalition(self.players - 1, size);
        let mut others = Coalition::empty(self.players);
        for other in chosen.players() {
            others.insert(if other < player { other } else { other + 1 });
        }
        others
    }
}
