//! Values from what a coalition and the rest of the players differ by.

mod kernel;
mod model;
mod ridge;

use crate::meter::Meter;
use crate::pairs::{Pairs, Start};
use crate::regression::{Fit, Observed, linear_fit};
use crate::{Coalition, Estimate, Estimator, Game, ValuationError};
use model::{Model, Sample};
use ridge::OddFit;

/// Passes for each player where the run sets no limit: 1 % on games of 20 players that overlap a
/// lot.
const PASSES_PER_PLAYER: u64 = 40;

/// Fewest pairs between two looks at the clock and the tolerance.
const STEP_MIN: usize = 4;

/// Between two looks the pairs grow by one part in this many, so that all the fits together cost a
/// few times the last one.
const GROWTH: usize = 4;

/// Most pairs that interactions are fitted to: the equations take the square of it in memory and
/// its cube in time. What further pairs add to the fit is fitted linearly.
const PAIRS_FITTED_MAX: usize = 1_024;

/// Most players whose interactions are looked for: comparing models takes the cube of them in time.
const PLAYERS_MAX: usize = 256;

/// A fit that leaves more than this share of what the plain sum of players misses is corrected
/// linearly too, once there are [`CORRECTED_FROM`] pairs a player: on a game that jumps, the
/// expectations of a kernel would bias the values for ever.
const LEFT_MAX: f64 = 0.5;
const CORRECTED_FROM: usize = 10;

/// Groups of pairs that are left out in turn.
const GROUPS: usize = 10;

/// Odd regression: the Shapley value depends only on half the differences `d(S) = (v(S) − v(Sᶜ))/2`
/// of coalitions and their complements, and of those on interactions of odd numbers of players.
/// This estimator fits d to distinct pairs, single players first and then all sizes alike, by
/// kernel ridge regression: additive games are free, and interactions of three and more are
/// expected to be small, in one of three ways (all alike; by the players' values; by who interacts
/// with whom, which the sums `v(S) + v(Sᶜ)` tell without further evaluations). The way that best
/// foretells pairs it has not seen is taken. Where none foretells better than the plain sum of
/// players, it is LeverageSHAP (Musco and Witter, 2025) on the same pairs.
///
/// 2n evaluations are exact for games of interactions of up to two, all 2^n for every game. Its own
/// errors come from leaving out a tenth of the pairs at a time. That complementary pairs see odd
/// orders only is in "PolySHAP: extending KernelSHAP with interaction-informed polynomial
/// regression" (2026); the read-out of the kernels in closed form and the choice of scales from the
/// even part are worked out here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Odd;

impl<G: Game + ?Sized> Estimator<G> for Odd {
    fn name(&self) -> &'static str {
        "odd"
    }

    fn version(&self) -> u32 {
        1
    }

    fn passes_min(&self, players: usize) -> u64 {
        (players as u64).saturating_mul(2)
    }

    fn passes_default(&self, players: usize) -> Option<u64> {
        let all = u32::try_from(players).ok().and_then(|n| 1_u64.checked_shl(n));
        let passes = (players as u64).saturating_mul(PASSES_PER_PLAYER);
        Some(all.map_or(passes, |all| all.min(passes)))
    }

    fn estimate(&self, game: &mut G, meter: &mut Meter<'_>) -> Result<Estimate, ValuationError> {
        let mut sight = Sight::open(game, meter)?;
        let mut wanted = sight.players.saturating_sub(1);
        loop {
            let came = sight.look(game, meter, wanted)?;
            let is_over = came < wanted || sight.is_complete() || !meter.affords(2);
            wanted = step(meter, sight.seen());
            if !is_over && meter.tolerance().is_none() {
                continue;
            }
            let answer = sight.answer()?;
            let errors = answer.estimator_errors.as_ref();
            if is_over || errors.is_some_and(|errors| meter.is_content(&answer.values, errors)) {
                return Ok(answer);
            }
        }
    }
}

/// How many pairs to look at next: what the budget allows, in growing steps.
fn step(meter: &Meter<'_>, seen: usize) -> usize {
    let within_budget = usize::try_from(meter.budget_left() / 2).unwrap_or(usize::MAX);
    within_budget.min(STEP_MIN.max(seen / GROWTH))
}

/// What is seen of a game so far.
struct Sight {
    players: usize,
    total: f64,
    pairs: Pairs,
    /// The grand pair, and then the pairs drawn.
    sample: Sample,
}

impl Sight {
    fn open<G: Game + ?Sized>(game: &mut G, meter: &mut Meter<'_>) -> Result<Self, ValuationError> {
        let players = game.players();
        // Single players first are the better start, but only once all of them are there.
        let least = 2_u64.saturating_mul(players as u64).saturating_add(2);
        let start = if meter.affords(least) { Start::Singles } else { Start::Chain };
        let pairs = Pairs::new(players, meter.seed(), start);
        let mut sight = Self { players, total: 0.0, pairs, sample: Sample::default() };
        sight.take(game, meter, vec![Coalition::full(players)])?;
        sight.total = 2.0 * sight.sample.odd[0];
        Ok(sight)
    }

    /// Looks at `wanted` more pairs, or all that are left; says how many.
    fn look<G: Game + ?Sized>(
        &mut self,
        game: &mut G,
        meter: &mut Meter<'_>,
        wanted: usize,
    ) -> Result<usize, ValuationError> {
        let fresh: Vec<Coalition> = self.pairs.by_ref().take(wanted).collect();
        let came = fresh.len();
        self.take(game, meter, fresh)?;
        Ok(came)
    }

    fn take<G: Game + ?Sized>(
        &mut self,
        game: &mut G,
        meter: &mut Meter<'_>,
        sides: Vec<Coalition>,
    ) -> Result<(), ValuationError> {
        let both: Vec<Coalition> =
            sides.iter().flat_map(|side| [side.clone(), side.complement()]).collect();
        for pair in meter.values(game, &both)?.chunks_exact(2) {
            self.sample.odd.push(0.5 * (pair[0] - pair[1]));
            self.sample.even.push(0.5 * (pair[0] + pair[1]));
        }
        self.sample.sides.extend(sides);
        Ok(())
    }

    /// Pairs seen, the grand one aside.
    fn seen(&self) -> usize {
        self.sample.sides.len() - 1
    }

    fn is_complete(&self) -> bool {
        self.seen() as u64 == self.pairs.all()
    }

    fn answer(&self) -> Result<Estimate, ValuationError> {
        let seen = self.seen();
        if self.is_complete() {
            return self.linear(format!("all {seen} pairs: the values are exact"));
        }
        let fitted = if self.players <= PLAYERS_MAX { self.odd() } else { None };
        match fitted {
            Some(answer) => Ok(answer),
            None if seen < self.players => self.linear(format!("{seen} pairs along a permutation")),
            None => self.linear(format!("{seen} pairs; the sum of players foretells them best")),
        }
    }

    /// The linear fit with leverage weights.
    fn linear(&self, remark: String) -> Result<Estimate, ValuationError> {
        let fit = self.linear_to(self.total, &self.sample.odd[1..])?;
        Ok(self.estimate(fit.values, fit.errors, remark))
    }

    fn linear_to(&self, total: f64, halves: &[f64]) -> Result<Fit, ValuationError> {
        let sides = &self.sample.sides[1..];
        if sides.is_empty() {
            return Ok(Fit { values: vec![total], errors: Some(vec![0.0]) });
        }
        let observed = Observed { total, sides, halves, pairs: &self.pairs };
        let estimator = "odd";
        linear_fit(&observed).ok_or(ValuationError::Singular { estimator, equations: sides.len() })
    }

    /// The fit with interactions; `None` where there is none to prefer.
    fn odd(&self) -> Option<Estimate> {
        let model = model::choose(&self.sample)?;
        let count = self.sample.sides.len().min(PAIRS_FITTED_MAX + 1);
        let (sides, data) = (&self.sample.sides[..count], &self.sample.odd[..count]);
        let gram = model.kernel.gram(kernel::Part::Odd, sides)?;
        let fit = OddFit::of(&gram, model.noise, sides, data)?;
        let read_out = model.kernel.read_out(sides, gram.scale);
        let mut values = fit.values(&read_out);
        level(&mut values, self.total);
        let remark = format!("{} pairs; {}", self.seen(), model.name);
        let jumps = model.miss > LEFT_MAX * model.linear_miss;
        let is_rich = self.seen() >= CORRECTED_FROM * self.players;
        if count < self.sample.sides.len() || (jumps && is_rich) {
            return self.corrected(&model, &fit, gram.scale, values, remark);
        }
        let errors = jackknife(&fit, &read_out, self.players);
        Some(self.estimate(values, errors, remark))
    }

    /// What the fit misses of each pair, foretold from the others, is fitted linearly: LeverageSHAP
    /// on what is left of the game, which comes to the exact values in the end.
    fn corrected(
        &self,
        model: &Model,
        fit: &OddFit,
        scale: f64,
        mut values: Vec<f64>,
        remark: String,
    ) -> Option<Estimate> {
        let fitted = &self.sample.sides[..self.sample.sides.len().min(PAIRS_FITTED_MAX + 1)];
        let mut missed = Vec::with_capacity(self.seen());
        for pair in 1..fitted.len() {
            missed.extend(fit.misses(&[pair])?);
        }
        for (side, half) in self.sample.sides.iter().zip(&self.sample.odd).skip(fitted.len()) {
            missed.push(half - fit.foretell(side, &model.kernel.row(side, fitted, scale)));
        }
        let rest = self.linear_to(0.0, &missed).ok()?;
        values.iter_mut().zip(&rest.values).for_each(|(value, rest)| *value += rest);
        Some(self.estimate(values, rest.errors, remark + ", corrected by a linear fit"))
    }

    fn estimate(&self, values: Vec<f64>, errors: Option<Vec<f64>>, remark: String) -> Estimate {
        let total = self.total;
        let remark = Some(remark);
        Estimate { values, estimator_errors: errors, total, remark, ..Estimate::default() }
    }
}

/// Spreads what is missing to `total` alike.
fn level(values: &mut [f64], total: f64) {
    let missing = (total - values.iter().sum::<f64>()) / values.len() as f64;
    values.iter_mut().for_each(|value| *value += missing);
}

/// The standard error of each value by leaving out one of [`GROUPS`] groups of pairs at a time,
/// without fitting again: to leave a group out is to put what the others foretell in its place.
/// `None` where a group is needed to decide the fit.
fn jackknife(fit: &OddFit, read_out: &[f64], players: usize) -> Option<Vec<f64>> {
    let sides = read_out.len() / players;
    if sides <= GROUPS {
        return None;
    }
    let responses = fit.responses(read_out);
    let mut moves: Vec<Vec<f64>> = Vec::with_capacity(GROUPS);
    for first in 1..=GROUPS {
        let group: Vec<usize> = (first..sides).step_by(GROUPS).collect();
        let misses = fit.misses(&group)?;
        let moved = |response: &[f64]| -> f64 {
            group.iter().zip(&misses).map(|(&k, miss)| response[k] * miss).sum()
        };
        let mut moved: Vec<f64> = responses.chunks_exact(sides).map(moved).collect();
        level(&mut moved, 0.0);
        moves.push(moved);
    }
    let groups = GROUPS as f64;
    let error = |player: usize| {
        let mean = moves.iter().map(|moved| moved[player]).sum::<f64>() / groups;
        let squares: f64 = moves.iter().map(|moved| (moved[player] - mean).powi(2)).sum();
        (squares * (groups - 1.0) / groups).sqrt()
    };
    Some((0..players).map(error).collect())
}
