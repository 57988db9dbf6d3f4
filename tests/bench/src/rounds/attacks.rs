//! Earnings of members that deviate from honest behaviour towards the selection, beside their own
//! honest earnings with the same seeds.

use super::market::{Deviation, Rule, deviating};
use super::trial::{Trial, mean};
use super::{Measurement, run_all};
use crate::arguments::{BenchPay, BenchRounds};

/// The name of these measurements for `--only`.
pub(super) const NAME: &str = "attacks";
/// The rules that are attacked.
const RULES: [Rule; 3] = [Rule::Fast, Rule::FairWork, Rule::Performance];
/// The upper bound of a gain, in percent of the honest earnings.
pub(super) const GAIN_MAX: f64 = 2.0;
/// Standard errors of a one-sided bound of 95 %.
const UPPER: f64 = 1.645;

/// Simulates all attacks.
pub(super) fn run(seeds: &BenchPay, size: &BenchRounds) -> anyhow::Result<Vec<Measurement>> {
    let all = seeds.first_seed..seeds.first_seed + seeds.tasks;
    let mut deviations = vec![Deviation::Honest];
    deviations.extend(Deviation::ATTACKS);
    let mut jobs = Vec::new();
    for rule in RULES {
        for deviation in &deviations {
            let scenario = deviating(rule, *deviation, size)?;
            jobs.extend(all.clone().map(|seed| (scenario.clone(), seed)));
        }
    }
    let trials = run_all(jobs).into_iter().collect::<anyhow::Result<Vec<Trial>>>()?;
    let cells: Vec<&[Trial]> = trials.chunks(usize::try_from(seeds.tasks)?).collect();
    let mut rows = Vec::new();
    for (rule, cells) in RULES.iter().zip(cells.chunks(deviations.len())) {
        let Some((honest, attacks)) = cells.split_first() else { continue };
        for (attack, trials) in Deviation::ATTACKS.iter().zip(attacks) {
            rows.extend(compare(*rule, *attack, honest, trials));
        }
    }
    Ok(rows)
}

/// A gain in percent of the honest earnings.
pub(super) struct Gain {
    /// Its mean over the seeds.
    pub(super) mean: f64,
    /// Its upper bound of 95 %.
    pub(super) upper: f64,
}

/// The gain of the deviating members beyond their honest earnings with the same seeds.
pub(super) fn upper_bound(honest: &[Trial], trials: &[Trial]) -> Gain {
    let earned = |of: &[Trial]| of.iter().map(|one| one.earned_by("deviating")).collect::<Vec<_>>();
    upper_bound_of(&earned(honest), &earned(trials))
}

/// The gain of some values beyond others with the same seeds, of whose mean it is a part.
pub(super) fn upper_bound_of(before: &[f64], after: &[f64]) -> Gain {
    let base = mean(before.iter().copied()).max(f64::MIN_POSITIVE);
    let gains: Vec<f64> =
        after.iter().zip(before).map(|(one, other)| (one - other) / base * 100.0).collect();
    let gain = mean(gains.iter().copied());
    let count = gains.len() as f64;
    let variance = gains.iter().map(|one| (one - gain).powi(2)).sum::<f64>() / (count - 1.0);
    Gain { mean: gain, upper: gain + UPPER * (variance / count).sqrt() }
}

/// The gain of an attack, with its upper bound over the seeds.
fn compare(rule: Rule, attack: Deviation, honest: &[Trial], trials: &[Trial]) -> [Measurement; 2] {
    let Gain { mean: gain, upper } = upper_bound(honest, trials);
    let name = |what: &str| format!("{NAME}, {}, {}: {what}", rule.name(), attack.name());
    [
        Measurement::plain(name("gain"), gain, "%"),
        Measurement::at_most(name("upper bound of the gain"), upper, "%", GAIN_MAX),
    ]
}
