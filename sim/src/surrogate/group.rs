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

use std::collections::BTreeMap;

use serde::Serialize;

use super::curve::Curve;
use super::small::{Seen, Update};
use super::squares::least_squares;

/// Smallest worth of a round that is reckoned with, in nats.
pub(super) const GAIN_MIN: f64 = 1e-6;

/// Points of a distribution that are kept.
const QUANTILES: usize = 129;

/// A fitted group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupFit {
    /// `e`, `f`, `h`.
    pub worth: [f64; 3],
    /// `a₀`, `a₁`.
    pub own: [f64; 2],
    /// `w`.
    pub wavers: f64,
    /// `ρ`.
    pub shows: f64,
    /// `c`.
    pub common: f64,
    /// The distribution of z₂: its quantiles, evenly spaced, from the least to the greatest.
    pub luck: Vec<f64>,
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
struct Point {
    member: (usize, usize),
    round: (usize, usize),
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
        let Spreads { own, wavers, shows, common, luck } = Spreads::of(&points, &rests);
        Self {
            worth,
            own,
            wavers,
            shows,
            common,
            luck,
            error,
            error_spread: share(logs.iter().map(off).sum(), of_logs).sqrt(),
            rows,
            set_aside: share(aside, all),
            idle: share(idle, all - aside),
            updates: points.len(),
        }
    }

    /// Worth and error of an update for its whole part: of so many rows, from a member that differs by ζ₀ and ζ₁, in such a
    /// round.
    pub(super) fn draw(
        &self,
        rows: f64,
        zeta: [f64; 2],
        Stage { gain, luck, level }: Stage,
        z: Chance,
    ) -> (f64, f64) {
        let gain = gain.max(GAIN_MIN);
        let chance = self.common.sqrt() * luck + (1.0 - self.common).sqrt() * self.quantile(z.rows);
        let [e, f, h] = self.worth;
        let larger = (rows.max(1.0) / self.rows.max(1.0)).ln();
        let [s0, s1, s2] = self.error;
        let error = (s0 + s1 * gain.ln() + s2 * larger + self.error_spread * z.error).exp();
        let good = e + f * larger + self.own[0] * zeta[0] + self.wavers * z.work;
        let by_error = self.own[1] * zeta[1] - level + self.shows * chance;
        (good * gain + h + error * by_error, error)
    }

    /// Between the two quantiles that are next to it.
    fn quantile(&self, share: f64) -> f64 {
        let at = share.clamp(0.0, 1.0) * (QUANTILES - 1) as f64;
        let below = (at as usize).min(QUANTILES - 2);
        self.luck[below] + (at - below as f64) * (self.luck[below + 1] - self.luck[below])
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

/// What differs by chance.
struct Spreads {
    own: [f64; 2],
    wavers: f64,
    shows: f64,
    common: f64,
    luck: Vec<f64>,
}

/// One member's updates, in standard errors: the line through what is left of them, by what a round is worth.
#[derive(Default)]
struct Own {
    n: f64,
    sum: [f64; 2],
    products: [f64; 2],
}

impl Own {
    /// Fewest updates of a member that say something of it.
    const UPDATES_MIN: f64 = 10.0;

    fn add(&mut self, worth: f64, rest: f64) {
        self.n += 1.0;
        self.sum = [self.sum[0] + worth, self.sum[1] + rest];
        self.products = [self.products[0] + worth * worth, self.products[1] + worth * rest];
    }

    /// How much an update of this worth says of slope and level.
    fn says(&self, worth: f64) -> Option<[f64; 2]> {
        let [sum, square] = [self.sum[0], self.products[0]];
        let spread = self.n * square - sum * sum;
        let known = self.n >= Self::UPDATES_MIN && spread > 0.0;
        known.then(|| [(self.n * worth - sum) / spread, (square - sum * worth) / spread])
    }

    /// Slope and level.
    fn line(&self) -> Option<[f64; 2]> {
        let [sum, square] = [self.sum[0], self.products[0]];
        let spread = self.n * square - sum * sum;
        let slope = (self.n * self.products[1] - sum * self.sum[1]) / spread;
        self.says(0.0).map(|_| [slope, (self.sum[1] - slope * sum) / self.n])
    }
}

impl Spreads {
    /// From what least squares left over of each update's worth.
    fn of(points: &[Point], rests: &[f64]) -> Self {
        let known = || points.iter().zip(rests).filter(|(p, _)| p.s > 0.0);
        let known = || known().map(|(p, rest)| (p, p.gain / p.s, rest / p.s));
        let mut members: BTreeMap<(usize, usize), Own> = BTreeMap::new();
        for (p, worth, rest) in known() {
            members.entry(p.member).or_default().add(worth, rest);
        }
        let lines: BTreeMap<_, _> =
            members.iter().filter_map(|(who, own)| Some((*who, (own, own.line()?)))).collect();
        let left: Vec<_> = known()
            .map(|(p, worth, rest)| {
                let [slope, level] = lines.get(&p.member).map_or([0.0; 2], |(_, line)| *line);
                (p, worth, rest - slope * worth - level)
            })
            .collect();
        let taken = 1.0 - 2.0 * lines.len() as f64 / left.len().max(1) as f64;
        let [shows, wavers] = parts(&left).map(|part| part / taken.max(0.5));
        let spread = |worth: f64| shows + wavers * worth * worth;
        let mut rounds: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
        for (p, worth, rest) in &left {
            rounds.entry(p.round).or_default().push(rest / spread(*worth).sqrt());
        }
        let mut by_chance = [0.0; 2];
        for (p, worth, _) in &left {
            let says = lines.get(&p.member).and_then(|(own, _)| own.says(*worth));
            for (sum, says) in by_chance.iter_mut().zip(says.unwrap_or_default()) {
                *sum += says * says * spread(*worth);
            }
        }
        let n = lines.len() as f64;
        let own = std::array::from_fn(|i| {
            let between = variance(lines.values().map(|(_, line)| line[i]));
            (between - by_chance[i] / n.max(1.0)).max(0.0).sqrt()
        });
        let common = alike(rounds.values());
        let luck = quantiles(rounds.into_values().flatten().collect());
        Self { own, wavers: wavers.sqrt(), shows: shows.sqrt(), common, luck }
    }
}

fn variance(all: impl Iterator<Item = f64>) -> f64 {
    let (mut n, mut mean, mut sum) = (0.0, 0.0, 0.0);
    for one in all {
        n += 1.0;
        let off = one - mean;
        mean += off / n;
        sum += off * (one - mean);
    }
    if n > 1.0 { sum / (n - 1.0) } else { 0.0 }
}

/// Of the squares that are left, what is there whatever a round is worth, and what goes with the square of that.
fn parts(left: &[(&Point, f64, f64)]) -> [f64; 2] {
    let line = |(_, worth, rest): &(&Point, f64, f64)| {
        let square = worth * worth;
        // The square of a normal number is as far off as it is large.
        ([1.0, square], rest * rest, (1.0 + square).powi(-2))
    };
    let lines: Vec<_> = left.iter().map(line).collect();
    let [error, worth] = least_squares(&lines);
    if worth >= 0.0 && error >= 0.0 {
        return [error, worth];
    }
    let squares: f64 = lines.iter().map(|(_, square, weight)| square * weight).sum();
    let weights: f64 = lines.iter().map(|(.., weight)| weight).sum();
    [if weights > 0.0 { squares / weights } else { 0.0 }, 0.0]
}

/// Evenly spaced quantiles, brought to mean 0 and variance 1 so that spreads stay what they are.
fn quantiles(mut all: Vec<f64>) -> Vec<f64> {
    all.sort_by(f64::total_cmp);
    let Some(last) = all.len().checked_sub(1).filter(|last| *last > 0) else {
        return vec![0.0; QUANTILES];
    };
    let n = all.len() as f64;
    let mean = all.iter().sum::<f64>() / n;
    let spread = (all.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / n).sqrt();
    let at = |i: usize| (all[i * last / (QUANTILES - 1)] - mean) / spread.max(f64::MIN_POSITIVE);
    (0..QUANTILES).map(at).collect()
}

/// How alike numbers of one class are, from 0 to 1: the mean product of two of one class, over the mean square.
fn alike<'a>(classes: impl Iterator<Item = &'a Vec<f64>>) -> f64 {
    let (mut products, mut pairs, mut squares, mut count) = (0.0, 0.0, 0.0, 0.0);
    for class in classes {
        let n = class.len() as f64;
        let sum: f64 = class.iter().sum();
        let square: f64 = class.iter().map(|one| one * one).sum();
        products += sum * sum - square;
        pairs += n * (n - 1.0);
        squares += square;
        count += n;
    }
    if pairs <= 0.0 || squares <= 0.0 {
        return 0.0;
    }
    (products / pairs / (squares / count)).clamp(0.0, 1.0)
}
