//! What an update of a group is worth, and how far updates of one group differ.
//!
//! An update with a part `p` of the aggregate, of `q` rows where members of its group have `q̄`, scores
//!
//! ```text
//! p · ( (e + f ln(q / q̄) + a ζ) · V + h + ρ s z ),     with an error of p · s,     ln s = s₀ + s₁ ln V + s₂ z'
//! ```
//! where `V` is what a round takes off the loss at that stage, ζ is a member's own, and z and z' are a round's; all three
//! are normal. `e` is how good the group's work is, `h` what it does whatever the stage, `a` how far members differ, `ρ`
//! how much of a score's error shows. Each is found by least squares, weighted by parts.

use serde::Serialize;

use super::curve::{Curve, least_squares};
use super::small::{Seen, Update};

/// Smallest worth of a round that is reckoned with, in nats.
pub(super) const GAIN_MIN: f64 = 1e-6;

/// A fitted group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct GroupFit {
    /// `e`, `f`, `h`.
    pub worth: [f64; 3],
    /// `a`.
    pub own: f64,
    /// `ρ`.
    pub shows: f64,
    /// `s₀`, `s₁`.
    pub error: [f64; 2],
    /// `s₂`.
    pub error_spread: f64,
    /// Mean rows that count for an update: `q̄`.
    pub rows: f64,
    /// Share of updates that are set aside.
    pub set_aside: f64,
    /// Share of the other updates that do nothing at all: neither a score nor an error.
    pub idle: f64,
    /// Updates that it was found from.
    pub updates: usize,
}

/// One update at its stage: worth for its part, error for its part, and what a round is worth.
struct Point {
    member: (usize, usize),
    weight: f64,
    y: f64,
    s: f64,
    gain: f64,
    rows: f64,
}

impl GroupFit {
    /// Of the groups at these places among the names, whose members do the same.
    pub(super) fn of(groups: &[usize], curve: &Curve, games: &[Seen]) -> Self {
        let mut points = Vec::new();
        let (mut all, mut aside, mut idle) = (0.0, 0.0, 0.0);
        for (game, seen) in games.iter().enumerate() {
            for (round, updates) in seen.rounds.iter().zip(seen.updates()) {
                let gain = curve.gain(round.loss, updates).max(GAIN_MIN);
                for update in round.updates.iter().filter(|u| groups.contains(&u.group)) {
                    all += 1.0;
                    aside += f64::from(u8::from(update.set_aside));
                    let is_idle = !update.set_aside && update.error == 0.0;
                    idle += f64::from(u8::from(is_idle));
                    if !update.set_aside && !is_idle && update.share > 0.0 {
                        points.push(Point::of(update, game, gain));
                    }
                }
            }
        }
        let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
        let weights: f64 = points.iter().map(|point| point.weight).sum();
        let rows = share(points.iter().map(|p| p.weight * p.rows).sum(), weights).max(1.0);
        let terms = |p: &Point| [p.gain, p.gain * (p.rows / rows).ln(), 1.0];
        let lines: Vec<_> = points.iter().map(|p| (terms(p), p.y, p.weight)).collect();
        let worth = least_squares(&lines);
        let logs = points.iter().filter(|p| p.s > 0.0);
        let logs: Vec<_> = logs.map(|p| ([1.0, p.gain.ln(), 0.0], p.s.ln(), p.weight)).collect();
        let [s0, s1, _] = least_squares(&logs);
        let off = |(terms, value, weight): &([f64; 3], f64, f64)| {
            weight * (value - s0 * terms[0] - s1 * terms[1]).powi(2)
        };
        let of_logs: f64 = logs.iter().map(|(.., weight)| weight).sum();
        let rests: Vec<f64> = points
            .iter()
            .map(|p| p.y - terms(p).iter().zip(&worth).map(|(t, w)| t * w).sum::<f64>())
            .collect();
        let (own, shows) = spreads(&points, &rests);
        Self {
            worth,
            own,
            shows,
            error: [s0, s1],
            error_spread: share(logs.iter().map(off).sum(), of_logs).sqrt(),
            rows,
            set_aside: share(aside, all),
            idle: share(idle, all - aside),
            updates: points.len(),
        }
    }

    /// Worth and error of an update for its whole part: of so many rows, from a member that differs by ζ, in a round
    /// that is worth `gain` nats, with two normal numbers of the round's.
    pub(super) fn draw(&self, rows: f64, zeta: f64, gain: f64, z: [f64; 2]) -> (f64, f64) {
        let gain = gain.max(GAIN_MIN);
        let [e, f, h] = self.worth;
        let error = (self.error[0] + self.error[1] * gain.ln() + self.error_spread * z[1]).exp();
        let good = e + f * (rows.max(1.0) / self.rows.max(1.0)).ln() + self.own * zeta;
        (good * gain + h + self.shows * error * z[0], error)
    }
}

impl Point {
    fn of(update: &Update, game: usize, gain: f64) -> Self {
        let share = update.share;
        Self {
            member: (game, update.member),
            weight: share,
            y: update.score / share,
            s: update.error / share,
            gain,
            rows: update.rows.max(1.0),
        }
    }
}

/// How far members differ for good, relative to what a round is worth; and how much of an update's error shows from
/// round to round (the analysis of variance with one factor).
fn spreads(points: &[Point], rests: &[f64]) -> (f64, f64) {
    let mut by_member: std::collections::BTreeMap<(usize, usize), Vec<(&Point, f64)>> =
        std::collections::BTreeMap::new();
    for (point, rest) in points.iter().zip(rests) {
        by_member.entry(point.member).or_default().push((point, *rest));
    }
    let (mut means, mut noise) = (Vec::new(), Vec::new());
    let (mut shown, mut freedom) = (0.0, 0.0);
    for own in by_member.values() {
        // By least squares through the origin: rounds that are worth much say most.
        let square: f64 = own.iter().map(|(p, _)| p.gain * p.gain).sum();
        let mean = own.iter().map(|(p, rest)| p.gain * rest).sum::<f64>() / square;
        let sampling: f64 = own.iter().map(|(p, _)| (p.gain * p.s / square).powi(2)).sum();
        means.push(mean);
        noise.push(sampling);
        for (p, rest) in own.iter().filter(|(p, _)| p.s > 0.0) {
            shown += ((rest - mean * p.gain) / p.s).powi(2);
            freedom += 1.0;
        }
        freedom -= 1.0;
    }
    let shows = if freedom > 0.0 { (shown / freedom).sqrt() } else { 0.0 };
    let n = means.len() as f64;
    if n < 2.0 {
        return (0.0, shows);
    }
    let centre = means.iter().sum::<f64>() / n;
    let between = means.iter().map(|mean| (mean - centre).powi(2)).sum::<f64>() / (n - 1.0);
    let by_chance = shows * shows * noise.iter().sum::<f64>() / n;
    ((between - by_chance).max(0.0).sqrt(), shows)
}
