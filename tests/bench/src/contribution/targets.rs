//! The measurements with targets.

use super::super::Measurement;
use super::curve::{Curve, Reached, error_ratio, median};
use super::ours::OURS;
use super::rounds::{GradientResults, spread};

/// Maximum evaluations to an error of 1 % on real rounds, by number of players.
const ROUND_MAX: [(usize, f64); 2] = [(10, 40.0), (20, 60.0)];
/// Maximum median error of the path integral on real rounds, by number of players.
const PATH_MAX: [(usize, f64); 2] = [(10, 0.015), (20, 0.005)];
/// For each game: the upper limit (exclusive) of evaluations to 1 %, and an aspirational value.
const GAMES_BELOW: [(&str, f64, f64); 4] = [
    ("saturating-10", 110.0, 90.0),
    ("saturating-20", 473.0, 222.0),
    ("coverage-10", 293.0, 149.0),
    ("coverage-20", 3_887.0, 1_546.0),
];
/// Maximum time of an estimator at 20 players in seconds, without evaluations.
const OVERHEAD_MAX: f64 = 0.01;
/// The game on which the overhead is measured.
const OVERHEAD_GAME: &str = "saturating-20";
/// The accuracy game of real rounds of 20 players.
pub(super) const STEPS_GAME: &str = "mlp-accuracy-20";

/// The curve of an estimator on a game.
fn find<'a>(curves: &'a [Curve], game: &str, estimator: &str) -> Option<&'a Curve> {
    curves.iter().find(|curve| curve.game == game && curve.estimator == estimator)
}

fn is_ours(curve: &Curve) -> bool {
    curve.estimator.starts_with(OURS)
}

/// The peer that needs the fewest evaluations on a game, if any peer reaches 1 %.
fn best_peer<'a>(curves: &'a [Curve], game: &str) -> Option<(&'a Curve, f64)> {
    let peers = curves.iter().filter(|curve| curve.game == game && !is_ours(curve));
    let reached = peers.filter_map(|curve| Some((curve, curve.reached()?.evaluations()?)));
    reached.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// Real rounds of `task`: the evaluations of the samplers, and the error of the path integral.
pub(super) fn rounds(
    task: &str,
    players: usize,
    inside: &[GradientResults],
    curves: &[Curve],
) -> Vec<Measurement> {
    let mut rows = Vec::new();
    let what = format!("{task} round, n = {players}, loss");
    let of = |bars: &[(usize, f64)]| bars.iter().find(|bar| bar.0 == players).map(|bar| bar.1);
    for curve in curves {
        let name = format!("{what}: {} to 1 %", curve.estimator);
        match (curve.reached(), of(&ROUND_MAX)) {
            (Some(Reached::At(value) | Reached::Within(value)), Some(bar))
                if curve.estimator.ends_with("odd") =>
            {
                rows.push(Measurement::at_most(name, value, "evaluations", bar));
            }
            (Some(Reached::At(value) | Reached::Within(value)), _) => {
                rows.push(Measurement::plain(name, value, "evaluations"));
            }
            (Some(Reached::Never(best)), _) => {
                rows.push(Measurement::failed(name, 100.0 * best.error, "% at best"));
            }
            (None, _) => {}
        }
    }
    if let (Some(error), Some(bar)) = (spread(inside, |round| round.path, 0.5), of(&PATH_MAX)) {
        let name = format!("{what}: {OURS} path, median of {} rounds", inside.len());
        rows.push(Measurement::at_most(name, 100.0 * error, "%", 100.0 * bar));
    }
    rows
}

/// The synthetic games, each with the best peer of this run.
pub(super) fn games(curves: &[Curve]) -> Vec<Measurement> {
    let mut rows = Vec::new();
    for (game, bar, aim) in GAMES_BELOW {
        let title = game.replace('-', ", n = ");
        let Some(ours) = find(curves, game, &format!("{OURS} odd")) else { continue };
        let name = format!("{title}: {} to 1 %", ours.estimator);
        match ours.reached() {
            Some(Reached::At(value) | Reached::Within(value)) => {
                let row = Measurement::below(name, value, "evaluations", bar);
                rows.push(row.aiming_at(aim));
            }
            Some(Reached::Never(best)) => {
                rows.push(Measurement::failed(name, 100.0 * best.error, "% at best"));
            }
            None => {}
        }
        if let Some((peer, value)) = best_peer(curves, game) {
            let name = format!("{title}: best peer, {}", peer.estimator);
            rows.push(Measurement::plain(name, value, "evaluations"));
        }
    }
    rows
}

/// A step function instead of a smooth utility: the error must not exceed that of LeverageSHAP.
pub(super) fn steps(curves: &[Curve]) -> Vec<Measurement> {
    /// Tolerance for sampling noise: the two estimators draw different coalitions, so medians of a
    /// few rounds differ by this much by chance.
    const NOISE_TOLERANCE: f64 = 1.05;
    let of = |estimator: &str| find(curves, STEPS_GAME, &format!("{OURS} {estimator}"));
    let (Some(odd), Some(leverage)) = (of("odd"), of("LeverageSHAP")) else { return Vec::new() };
    let mut rows = Vec::new();
    for curve in [odd, leverage] {
        if let Some(value) = curve.reached().and_then(Reached::evaluations) {
            let name = format!("accuracy of rounds, n = 20: {} to 1 %", curve.estimator);
            rows.push(Measurement::plain(name, value, "evaluations"));
        }
    }
    if let Some(ratio) = error_ratio(odd, leverage) {
        let name = "accuracy of rounds, n = 20: error of odd ÷ error of LeverageSHAP, all budgets";
        rows.push(Measurement::at_most(name, ratio, "", NOISE_TOLERANCE));
    }
    rows
}

/// The time of the estimators without evaluations, at the first budget that reaches 1 %.
pub(super) fn overhead(curves: &[Curve]) -> Vec<Measurement> {
    let mut rows = Vec::new();
    let here = curves.iter().filter(|curve| curve.game == OVERHEAD_GAME);
    for curve in here {
        let Some(point) = curve.first_below_target() else { continue };
        let name = format!("overhead to 1 %, saturating, n = 20: {}", curve.estimator);
        let value = 1_000.0 * point.seconds;
        if curve.estimator == format!("{OURS} odd") {
            rows.push(Measurement::at_most(name, value, "ms", 1_000.0 * OVERHEAD_MAX));
        } else if !is_ours(curve)
            && best_peer(curves, OVERHEAD_GAME)
                .is_some_and(|best| best.0.estimator == curve.estimator)
        {
            rows.push(Measurement::plain(name, value, "ms"));
        }
    }
    rows
}

/// The median and the 90 % quantile of the path integral's error, by regime.
pub(super) fn by_regime(inside: &[GradientResults]) -> Vec<(String, usize, [f64; 4])> {
    let mut regimes: Vec<&str> = inside.iter().map(|round| round.regime).collect();
    regimes.dedup();
    regimes.sort_unstable();
    regimes.dedup();
    let of = |regime: &str| {
        let rounds: Vec<GradientResults> =
            inside.iter().filter(|round| round.regime == regime).cloned().collect();
        let mid = |read: fn(&GradientResults) -> f64| median(rounds.iter().map(read));
        Some((
            regime.to_owned(),
            rounds.len(),
            [
                mid(|round| round.path)?,
                spread(&rounds, |round| round.path, 0.9)?,
                mid(|round| round.first_order)?,
                mid(|round| round.cosine)?,
            ],
        ))
    };
    regimes.into_iter().filter_map(of).collect()
}
