//! The attacks on the market for compute, played in the laboratory: for each the parameters that gain most are chosen
//! on seeds of their own, and measured on others.

use florin_sim::compute::{ComputeScenario, run_compute_experiment};
use florin_sim::scenario::{AnyScenario, SettingOverride, built_in};

use crate::Measurement;
use crate::arguments::BenchPay;

/// The seeds that choose begin this far beyond those that measure.
const CHOOSING_BEYOND: u64 = 10_000;
const CHOOSING: u32 = 4;

/// An attack: the number of the threat, its scenario, and the candidates of its parameters.
struct LaboratoryAttack {
    number: &'static str,
    scenario: &'static str,
    /// A key, and the values that are tried.
    candidates: Option<(&'static str, &'static [&'static str])>,
    /// Whether a gain is known and open.
    is_open: bool,
    /// The bar in percent of what renters pay to providers.
    limit: f64,
}

const fn attack(
    number: &'static str,
    scenario: &'static str,
    candidates: Option<(&'static str, &'static [&'static str])>,
) -> LaboratoryAttack {
    LaboratoryAttack { number, scenario, candidates, is_open: false, limit: 0.0 }
}

/// All attacks that are a choice of accounts of the market.
const ATTACKS: &[LaboratoryAttack] = &[
    attack(
        "1, one device sold as several",
        "sold-twice",
        Some(("providers.cheats.strategy.times", &["2", "4", "8"])),
    ),
    attack(
        "2, inflated cards",
        "inflated-cards",
        Some(("providers.cheats.strategy.factor", &["1.2", "1.5", "2.0", "3.0"])),
    ),
    attack("3, relayed probes", "relays", None),
    attack(
        "4, overbooking",
        "overbooking",
        Some(("providers.cheats.strategy.factor", &["2", "3"])),
    ),
    attack(
        "5, several accounts",
        "sybil",
        Some(("providers.cheats.strategy.accounts", &["2", "4", "8"])),
    ),
    attack(
        "6, segments not computed",
        "fakes",
        Some(("providers.cheats.strategy.share", &["0.01", "0.1", "0.5", "1.0"])),
    ),
    attack("7, leaves of another order", "replays", None),
    attack(
        "8, a third of the auditors collude",
        "collusion",
        Some(("providers.cheats.strategy.share", &["0.01", "0.1", "1.0"])),
    ),
    attack("9, auditors that do not compute", "lazy-auditors", None),
    LaboratoryAttack {
        is_open: true,
        ..attack("9, auditors that copy honest ends", "copying-auditors", None)
    },
    attack("9, silent auditors", "silent-auditors", None),
    attack(
        "10, salts tried for a guessed draw",
        "grinding",
        Some(("providers.cheats.strategy.salts", &["10", "1000"])),
    ),
    LaboratoryAttack {
        is_open: true,
        ..attack(
            "10, salts tried for a known draw",
            "known-beacon",
            Some(("providers.cheats.strategy.share", &["0.1", "0.3", "0.6"])),
        )
    },
    LaboratoryAttack {
        is_open: true,
        ..attack(
            "11, audits that are never drawn, for a provider that computes nothing",
            "undrawn-fakes",
            None,
        )
    },
    attack("12, leases with itself", "washing", None),
    LaboratoryAttack {
        limit: 1.0,
        ..attack(
            "13, a renter's own bids",
            "shills",
            Some((
                "renters.shills.strategy.levels",
                &["[0.25]", "[0.3]", "[0.35]", "[0.4]", "[0.3, 0.4]"],
            )),
        )
    },
    LaboratoryAttack {
        is_open: true,
        ..attack(
            "13, a renter's own bids beside two providers",
            "few-bidders",
            Some(("renters.shills.strategy.levels", &["[0.3]", "[0.4]", "[0.5]"])),
        )
    },
    attack("14, bids that are not funded", "vanishing", None),
    attack("14, bids that stay closed", "closed-bids", None),
    attack(
        "15, leases that are left",
        "leaving",
        Some(("providers.cheats.strategy.after", &["0.1", "0.5", "0.9"])),
    ),
    attack("16, every audited segment disputed", "disputes", None),
    attack("21, accusations for the bounty", "accusers", None),
];

pub(super) fn run(seeds: &BenchPay) -> anyhow::Result<Vec<Measurement>> {
    let mut rows = Vec::new();
    for attack in ATTACKS {
        rows.push(attack.measure(seeds)?);
    }
    Ok(rows)
}

impl LaboratoryAttack {
    fn read(&self, value: Option<&str>) -> anyhow::Result<ComputeScenario> {
        let name = format!("compute-{}", self.scenario);
        let text = built_in(&name).ok_or_else(|| anyhow::anyhow!("no scenario {name}"))?.text;
        let change = self
            .candidates
            .zip(value)
            .map(|((key, _), value)| format!("{key}={value}").parse::<SettingOverride>());
        let changes: Vec<SettingOverride> =
            change.transpose().map_err(anyhow::Error::msg)?.into_iter().collect();
        match AnyScenario::read_in(std::path::Path::new("."), text, &changes)? {
            AnyScenario::Compute(scenario) => Ok(*scenario),
            AnyScenario::Tasks(_) => anyhow::bail!("{name} is a scenario of tasks"),
        }
    }

    /// Mean and upper bound of the gain of all deviating members, in percent of what renters paid to providers.
    fn gain(scenario: &ComputeScenario) -> anyhow::Result<(f64, f64)> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let results = run_compute_experiment(scenario, threads, &|_, _| {});
        let results = results.map_err(|(seed, error)| anyhow::anyhow!("seed {seed}: {error}"))?;
        let balanced = results.measure("balanced", None).map(|of| of.interval.mean);
        anyhow::ensure!(balanced == Some(1.0), "{}: florins without an owner", scenario.name);
        let paid: f64 = results
            .outcomes
            .iter()
            .flat_map(|played| &played.leases)
            .map(|lease| lease.paid)
            .sum::<f64>()
            / results.outcomes.len() as f64;
        let gain = results.measure("gain_together", None);
        let gain = gain.ok_or_else(|| anyhow::anyhow!("{}: no gain", scenario.name))?.interval;
        let upper = gain.high().unwrap_or(gain.mean);
        Ok((100.0 * gain.mean / paid, 100.0 * upper / paid))
    }

    fn measure(&self, seeds: &BenchPay) -> anyhow::Result<Measurement> {
        let mut best: (f64, Option<&str>) = (f64::MIN, None);
        for value in self.candidates.map_or(&[][..], |(_, values)| values) {
            let mut scenario = self.read(Some(value))?;
            scenario.seeds.first = seeds.first_seed + CHOOSING_BEYOND;
            scenario.seeds.count = CHOOSING;
            let (mean, _) = Self::gain(&scenario)?;
            if mean > best.0 {
                best = (mean, Some(value));
            }
        }
        let mut scenario = self.read(best.1)?;
        scenario.seeds.first = seeds.first_seed;
        scenario.seeds.count = u32::try_from(seeds.tasks)?;
        let (_, upper) = Self::gain(&scenario)?;
        let chosen = self.candidates.zip(best.1);
        let chosen = chosen.map_or_else(String::new, |((key, _), value)| {
            let short = key.rsplit_once('.').map_or(key, |(_, short)| short);
            format!(" ({short} {value})")
        });
        let name = format!("attack {}{chosen}: gain, upper bound", self.number);
        let unit = "% of what renters pay";
        Ok(match self.is_open {
            true => Measurement::plain(format!("{name}, open"), upper, unit),
            false => Measurement::below(name, upper, unit, self.limit),
        })
    }
}
