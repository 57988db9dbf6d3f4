//! Variation between the updates of one group, and the part of it that is specific to a member
//! (analysis of variance).

use std::collections::BTreeMap;

use serde::Serialize;

use super::least_squares::least_squares;
use super::observation::Observation;

/// Number of stored quantiles of a distribution.
const QUANTILES: usize = 129;

/// Variance components of the score model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VarianceComponents {
    /// `a₀`, `a₁`.
    pub member_std: [f64; 2],
    /// Number of members with enough updates to estimate their random effects; if it is zero, all
    /// members of the group are alike.
    pub estimated_members: usize,
    /// `w`.
    pub work_std: f64,
    /// `ρ`.
    pub noise_ratio: f64,
    /// `c`.
    pub round_correlation: f64,
    /// The distribution of z₂: evenly spaced quantiles, from the minimum to the maximum.
    pub noise_quantiles: Vec<f64>,
}

/// Sums for the regression line of one member: residuals in standard errors over the value of a
/// round.
#[derive(Default)]
struct MemberRegression {
    n: f64,
    sum: [f64; 2],
    products: [f64; 2],
}

impl MemberRegression {
    /// Minimum number of a member's updates for an estimate.
    const UPDATES_MIN: f64 = 10.0;

    fn add(&mut self, worth: f64, rest: f64) {
        self.n += 1.0;
        self.sum = [self.sum[0] + worth, self.sum[1] + rest];
        self.products = [self.products[0] + worth * worth, self.products[1] + worth * rest];
    }

    /// The weights of an observation with this value in the estimates of slope and intercept.
    fn influence(&self, worth: f64) -> Option<[f64; 2]> {
        let [sum, square] = [self.sum[0], self.products[0]];
        let spread = self.n * square - sum * sum;
        let known = self.n >= Self::UPDATES_MIN && spread > 0.0;
        known.then(|| [(self.n * worth - sum) / spread, (square - sum * worth) / spread])
    }

    /// Slope and intercept.
    fn slope_and_intercept(&self) -> Option<[f64; 2]> {
        let [sum, square] = [self.sum[0], self.products[0]];
        let spread = self.n * square - sum * sum;
        let slope = (self.n * self.products[1] - sum * self.sum[1]) / spread;
        self.influence(0.0).map(|_| [slope, (self.sum[1] - slope * sum) / self.n])
    }
}

impl VarianceComponents {
    /// Estimates the variance components from the residuals of the least-squares fit.
    pub(super) fn estimate(points: &[Observation], rests: &[f64]) -> Self {
        let known = || points.iter().zip(rests).filter(|(p, _)| p.error > 0.0);
        let known = || known().map(|(p, rest)| (p, p.gain / p.error, rest / p.error));
        let mut members: BTreeMap<(usize, usize), MemberRegression> = BTreeMap::new();
        for (p, worth, rest) in known() {
            members.entry(p.member).or_default().add(worth, rest);
        }
        let lines: BTreeMap<_, _> = members
            .iter()
            .filter_map(|(who, own)| Some((*who, (own, own.slope_and_intercept()?))))
            .collect();
        let left: Vec<_> = known()
            .map(|(p, worth, rest)| {
                let [slope, level] = lines.get(&p.member).map_or([0.0; 2], |(_, line)| *line);
                (p, worth, rest - slope * worth - level)
            })
            .collect();
        let taken = 1.0 - 2.0 * lines.len() as f64 / left.len().max(1) as f64;
        let [shows, wavers] = split_residual_variance(&left).map(|part| part / taken.max(0.5));
        let spread = |worth: f64| shows + wavers * worth * worth;
        let mut rounds: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
        for (p, worth, rest) in &left {
            let spread = spread(*worth).sqrt().max(f64::MIN_POSITIVE);
            rounds.entry(p.round).or_default().push(rest / spread);
        }
        let mut by_chance = [0.0; 2];
        for (p, worth, _) in &left {
            let weights = lines.get(&p.member).and_then(|(own, _)| own.influence(*worth));
            for (sum, weight) in by_chance.iter_mut().zip(weights.unwrap_or_default()) {
                *sum += weight * weight * spread(*worth);
            }
        }
        let n = lines.len() as f64;
        let member_std = std::array::from_fn(|i| {
            let between = variance(lines.values().map(|(_, line)| line[i]));
            (between - by_chance[i] / n.max(1.0)).max(0.0).sqrt()
        });
        let round_correlation = intraclass_correlation(rounds.values());
        let noise_quantiles = standardised_quantiles(rounds.into_values().flatten().collect());
        let (estimated_members, work_std, noise_ratio) = (lines.len(), wavers.sqrt(), shows.sqrt());
        Self {
            member_std,
            estimated_members,
            work_std,
            noise_ratio,
            round_correlation,
            noise_quantiles,
        }
    }

    /// The quantile of z₂ at `share`, interpolated between the stored quantiles.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let at = share.clamp(0.0, 1.0) * (QUANTILES - 1) as f64;
        let below = (at as usize).min(QUANTILES - 2);
        self.noise_quantiles[below]
            + (at - below as f64) * (self.noise_quantiles[below + 1] - self.noise_quantiles[below])
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

/// Regression of the squared residuals: the part that is constant, and the part in proportion to
/// the squared value of a round.
fn split_residual_variance(left: &[(&Observation, f64, f64)]) -> [f64; 2] {
    let line = |(_, worth, rest): &(&Observation, f64, f64)| {
        let square = worth * worth;
        // The standard deviation of a squared normal number is proportional to its mean.
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

/// Evenly spaced quantiles, standardised to mean 0 and variance 1.
fn standardised_quantiles(mut all: Vec<f64>) -> Vec<f64> {
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

/// Intraclass correlation, from 0 to 1: the mean product of two numbers of one class, over the mean
/// square.
fn intraclass_correlation<'a>(classes: impl Iterator<Item = &'a Vec<f64>>) -> f64 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{normal, stream};

    #[test]
    fn estimates_recover_the_variance_components_of_the_data() {
        let seed = 7;
        let rng = &mut stream(seed, "spread", [0, 0]);
        let (own, wavers, shows, common) = ([0.3, 0.4], 0.2, 1.1, 0.15_f64);
        let zeta: Vec<[f64; 2]> = (0..200).map(|_| [normal(rng), normal(rng)]).collect();
        let (mut points, mut rests) = (Vec::new(), Vec::new());
        for round in 0..100 {
            let (gain, s, luck) = (0.3 * 0.9_f64.powi(round), 0.03, normal(rng));
            for (member, zeta) in zeta.iter().enumerate() {
                let work = own[0] * zeta[0] + wavers * normal(rng);
                let chance = common.sqrt() * luck + (1.0 - common).sqrt() * normal(rng);
                let rest = gain * work + s * (own[1] * zeta[1] + shows * chance);
                let round = (0, round as usize);
                let member = (0, member);
                points.push(Observation {
                    member,
                    round,
                    weight: 0.01,
                    score: rest,
                    error: s,
                    gain,
                    rows: 50.0,
                });
                rests.push(rest);
            }
        }
        let found = VarianceComponents::estimate(&points, &rests);
        assert_eq!(found.estimated_members, zeta.len());
        let pairs = [
            (found.member_std[0], own[0]),
            (found.member_std[1], own[1]),
            (found.work_std, wavers),
            (found.noise_ratio, shows),
            (found.round_correlation, common),
        ];
        for (found, truth) in pairs {
            assert!((found - truth).abs() < 0.05, "seed {seed}: {found} is not {truth}: {pairs:?}");
        }
        let (least, most) = (found.noise_quantiles[0], found.noise_quantiles[QUANTILES - 1]);
        assert!(
            least < -3.0 && most > 3.0 && found.noise_quantiles.is_sorted(),
            "{least} to {most}"
        );
    }

    #[test]
    fn without_updates_all_variance_components_are_zero() {
        let found = VarianceComponents::estimate(&[], &[]);
        assert_eq!(
            (found.member_std, found.noise_ratio, found.round_correlation),
            ([0.0; 2], 0.0, 0.0)
        );
        assert_eq!(found.estimated_members, 0);
        assert!(found.noise_quantiles.iter().all(|one| *one == 0.0));
    }
}
