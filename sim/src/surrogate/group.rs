//! What an update of a group is worth, and how far updates of one group differ.
//!
//! An update with a part `p` of the aggregate, of `q` rows where members of its group have `q̄`, scores
//!
//! ```text
//! p · ( (e + f ln(q / q̄) + a₀ ζ₀ + w z₁) · V + h + s (a₁ ζ₁ − m + ρ (√c Z + √(1−c) z₂)) )
//! ```
//! with an error of p · s, ln s = s₀ + s₁ ln V + s₂ ln(q / q̄) + s₃ z₃, where `V` is what a round takes off the loss at that stage, ζ₀ and ζ₁
//! are a member's own, z₁ to z₃ are an update's, and Z is a round's: all updates of a round are judged by the same rows
//! and share their luck. `e` is how good the group's work is, `h` what it does whatever the stage, `a₀` how far members
//! differ while there is much to learn, and `a₁` when there is little any more: some go on to help then, and others to
//! harm, each beside the others, so that `m` is the mean of `a₁ ζ₁` over the rows of a round. `w` is how far the work of one differs from round to round, `ρ` how much of a score's error shows,
//! and `c` how much of that a round's updates have in common. `e`, `f`, `h` and `s₀` to `s₂` are found by least squares,
//! weighted by parts, the rest by the analysis of variance. All are normal but z₂, which is drawn from what was seen: a
//! score and its error come from the same few rows, so that a score far below its error is rarer than among
//! normal numbers, and it is such a score that costs a bond.

use serde::Serialize;

use super::curve::Curve;
use super::small::{Seen, Update};
use super::spread::Spreads;
use super::squares::least_squares;

/// Smallest worth of a round that is reckoned with, in nats.
pub(super) const GAIN_MIN: f64 = 1e-6;

/// A fitted group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupFit {
    /// `e`, `f`, `h`.
    pub worth: [f64; 3],
    /// How far updates differ.
    #[serde(flatten)]
    pub spreads: Spreads,
    /// `s₀`, `s₁`, `s₂`.
    pub error: [f64; 3],
    /// `s₃`.
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

/// What an update has for itself in a round: two normal numbers, z₁ and z₃, and one between 0 and 1 whose quantile is z₂.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chance {
    /// z₁.
    pub(super) work: f64,
    /// Whose quantile is z₂.
    pub(super) rows: f64,
    /// z₃.
    pub(super) error: f64,
}

/// What an update comes to, for its whole part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Drawn {
    /// What it takes off the loss, in nats: the luck of the rows that judge it changes no model.
    pub(super) work: f64,
    /// What it scores, in nats.
    pub(super) worth: f64,
    /// One standard error of that.
    pub(super) error: f64,
}

/// What all updates of a round have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage {
    /// What the round is worth, in nats.
    pub(super) gain: f64,
    /// The luck of its rows, in standard deviations.
    pub(super) luck: f64,
    /// `m`.
    pub(super) level: f64,
}

/// One update at its stage: worth for its part, error for its part, and what a round is worth.
pub(super) struct Point {
    /// Game and member.
    pub(super) member: (usize, usize),
    /// Game and round.
    pub(super) round: (usize, usize),
    /// Its part of the aggregate.
    pub(super) weight: f64,
    pub(super) y: f64,
    /// Its stated error.
    pub(super) s: f64,
    /// What a round is worth at that stage.
    pub(super) gain: f64,
    pub(super) rows: f64,
}

impl GroupFit {
    /// Of the groups at these places among the names, whose members do the same.
    pub(super) fn of(groups: &[usize], curve: &Curve, games: &[Seen]) -> Self {
        let mut points = Vec::new();
        let (mut all, mut aside, mut idle) = (0.0, 0.0, 0.0);
        for (game, seen) in games.iter().enumerate() {
            for (at, (round, updates)) in seen.rounds.iter().zip(seen.updates()).enumerate() {
                let gain = curve.gain(round.loss, updates).max(GAIN_MIN);
                for update in round.updates.iter().filter(|u| groups.contains(&u.group)) {
                    all += 1.0;
                    aside += f64::from(u8::from(update.set_aside));
                    let is_idle = !update.set_aside && update.error == 0.0;
                    idle += f64::from(u8::from(is_idle));
                    if !update.set_aside && !is_idle && update.share > 0.0 {
                        points.push(Point::of(update, (game, at), gain));
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
        let of_error = |p: &Point| [1.0, p.gain.ln(), (p.rows / rows).ln()];
        let logs: Vec<_> = logs.map(|p| (of_error(p), p.s.ln(), p.weight)).collect();
        let error = least_squares(&logs);
        let off = |(terms, value, weight): &([f64; 3], f64, f64)| {
            weight * (value - terms.iter().zip(&error).map(|(t, s)| t * s).sum::<f64>()).powi(2)
        };
        let of_logs: f64 = logs.iter().map(|(.., weight)| weight).sum();
        let rests: Vec<f64> = points
            .iter()
            .map(|p| p.y - terms(p).iter().zip(&worth).map(|(t, w)| t * w).sum::<f64>())
            .collect();
        Self {
            worth,
            spreads: Spreads::of(&points, &rests),
            error,
            error_spread: share(logs.iter().map(off).sum(), of_logs).sqrt(),
            rows,
            set_aside: share(aside, all),
            idle: share(idle, all - aside),
            updates: points.len(),
        }
    }

    /// An update of so many rows, from a member that differs by ζ₀ and ζ₁, in such a round.
    pub(super) fn draw(
        &self,
        rows: f64,
        zeta: [f64; 2],
        Stage { gain, luck, level }: Stage,
        z: Chance,
    ) -> Drawn {
        let (gain, spreads) = (gain.max(GAIN_MIN), &self.spreads);
        let own_luck = (1.0 - spreads.common).sqrt() * spreads.quantile(z.rows);
        let chance = spreads.common.sqrt() * luck + own_luck;
        let [e, f, h] = self.worth;
        let larger = (rows.max(1.0) / self.rows.max(1.0)).ln();
        let [s0, s1, s2] = self.error;
        let error = (s0 + s1 * gain.ln() + s2 * larger + self.error_spread * z.error).exp();
        let good = e + f * larger + spreads.own[0] * zeta[0] + spreads.wavers * z.work;
        let by_error = spreads.own[1] * zeta[1] - level + spreads.shows * chance;
        Drawn { work: good * gain, worth: good * gain + h + error * by_error, error }
    }
}

impl Point {
    fn of(update: &Update, round: (usize, usize), gain: f64) -> Self {
        let share = update.share;
        Self {
            member: (round.0, update.member),
            round,
            weight: share,
            y: update.score / share,
            s: update.error / share,
            gain,
            rows: update.rows.max(1.0),
        }
    }
}
