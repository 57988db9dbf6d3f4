//! `florin-bench attacks`: the ratio of an attacker's pay to the same member's honest pay.
//!
//! A market runs in memory, with real training on the built-in digits and the production code for
//! valuation and payment. The attacker is the median contributor. Every attack is compared with the
//! honest task of the same seed.

mod attack;
mod figures;
mod learn;
mod market;
mod noise;
mod play;
mod separation;

use florin_learning::{PartitionScheme, parallel_map};
use florin_protocol::{DuplicatePolicy, NormScaling, PreprocessingRules};

use super::Measurement;
use attack::{Attack, scaled};
use figures::Mean;
use florin::show::{Cell, TextTable};
use learn::{Setting, sgd};
use market::PayLimit;
use play::{Earnings, Roles, UpdateTransform, play};

/// Default number of seeds per condition; the variable `FLORIN_BENCH_SEEDS` overrides it.
const SEEDS: u64 = 8;
/// Number of threads; each runs one task at a time.
const THREADS: usize = 2;
/// Maximum fraction of its pay that an honest member may lose to the protection without an attack.
const HONEST_LOSS_MAX: f64 = 0.05;

/// The attacks.
const ATTACKS: &[Attack] = &[
    Attack::SybilSame(2),
    Attack::SybilSame(4),
    Attack::SybilSame(8),
    Attack::SybilDisjoint(2),
    Attack::SybilDisjoint(4),
    Attack::SybilDisjoint(8),
    Attack::SybilDisjointLonger(2),
    Attack::SybilDisjointLonger(4),
    Attack::SybilDisjointLonger(8),
    Attack::SybilNoisy(2),
    Attack::SybilNoisy(4),
    Attack::SybilNoisy(8),
    Attack::Replicate(2),
    Attack::Replicate(4),
    Attack::Replicate(8),
    Attack::ReplicateNoisy(4),
    Attack::InflateUncovered,
    Attack::InflateCovered,
    Attack::Scale(3.0),
    Attack::Replay(0.0),
    Attack::Replay(0.2),
    Attack::ReplayOlder,
    Attack::Plagiarise(0.0),
    Attack::Plagiarise(0.2),
    Attack::Plagiarise(0.5),
    Attack::PlagiariseMixed,
    Attack::Republish(0.0),
    Attack::Republish(0.2),
    Attack::RepublishMixed,
    Attack::RepublishOlder,
    Attack::RepeatFirst,
    Attack::Hedge(2.0),
    Attack::Hedge(4.0),
    Attack::FlipLabels,
    Attack::Noise,
    Attack::Idle,
];

/// A population of members.
#[derive(Debug, Clone)]
struct Condition {
    partition: PartitionScheme,
    members: usize,
}

impl Condition {
    fn all() -> Vec<Self> {
        let partitions = [PartitionScheme::Iid, PartitionScheme::Dirichlet { alpha: 1.0 }];
        let sizes = [8, 12];
        let each = partitions.iter().flat_map(|partition| {
            sizes.map(|members| Self { partition: partition.clone(), members })
        });
        each.collect()
    }

    fn setting(&self, seed: u64) -> Setting {
        let (partition, members) = (self.partition.clone(), self.members);
        Setting { partition, members, training: sgd(0.1, 16, 2), seed }
    }
}

impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, n={}", self.partition, self.members)
    }
}

/// A set of protections to compare.
#[derive(Clone, Copy)]
struct ProtectionStack {
    name: &'static str,
    protection: PreprocessingRules,
    transform: UpdateTransform,
}

const BARE: PreprocessingRules = PreprocessingRules::NONE;
const CLIPPED: PreprocessingRules =
    PreprocessingRules { norm_scaling: NormScaling::Median, ..PreprocessingRules::NONE };
const UNREPEATED: PreprocessingRules =
    PreprocessingRules { near_duplicates: DuplicatePolicy::Reject, ..PreprocessingRules::NONE };
const WHOLE: PreprocessingRules = PreprocessingRules::DEFAULT;

/// The last entry is the default of a task.
const STACKS: &[ProtectionStack] = &[
    ProtectionStack { name: "none", protection: BARE, transform: |_, _| {} },
    ProtectionStack { name: "clip", protection: CLIPPED, transform: |_, _| {} },
    ProtectionStack { name: "repeats", protection: UNREPEATED, transform: |_, _| {} },
    ProtectionStack { name: "always innovate", protection: CLIPPED, transform: remove_last_step },
    ProtectionStack { name: "default", protection: WHOLE, transform: |_, _| {} },
];

/// Columns of the attacks table: one for each of [`STACKS`].
const HEADS: [&str; 6] = [
    "attacker's pay / its honest pay",
    ">none",
    ">clip",
    ">repeats",
    ">always innovate",
    ">default",
];

/// Removes the component along the previous public step from an update, whether the update is a
/// replay or not.
fn remove_last_step(delta: &mut [f32], step: Option<&Vec<f32>>) {
    let Some(step) = step else { return };
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    let along = dot(delta, step) / dot(step, step).max(f64::MIN_POSITIVE);
    let taken = scaled(step, along.max(0.0));
    delta.iter_mut().zip(taken).for_each(|(value, taken)| *value -= taken);
}

pub(super) fn run() -> anyhow::Result<Vec<Measurement>> {
    let seeds: Vec<u64> = (1..=seeds()?).collect();
    let mut rows = separation::run(seeds.len() as u64)?;
    for purse in [PayLimit::Demonstration, PayLimit::Priced] {
        anstream::println!("\nPay: {purse:?}; {} seeds", seeds.len());
        rows.extend(ratios(&seeds, purse)?);
    }
    Ok(rows)
}

fn seeds() -> anyhow::Result<u64> {
    match std::env::var("FLORIN_BENCH_SEEDS") {
        Ok(text) => Ok(text.parse()?),
        Err(_) => Ok(SEEDS),
    }
}

/// Runs all jobs on [`THREADS`] threads; the results are in the order of the jobs.
pub(super) fn parallel<J: Sync, R: Send>(
    jobs: &[J],
    run: impl Fn(&J) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    parallel_map(THREADS, jobs.iter().collect(), run).into_iter().collect()
}

/// The honest task of each stack, condition and seed.
type Honest = Vec<Vec<Vec<Earnings>>>;

fn ratios(seeds: &[u64], purse: PayLimit) -> anyhow::Result<Vec<Measurement>> {
    let conditions = Condition::all();
    let jobs: Vec<(&ProtectionStack, &Condition, u64)> = STACKS
        .iter()
        .flat_map(|stack| {
            conditions.iter().flat_map(move |c| seeds.iter().map(move |seed| (stack, c, *seed)))
        })
        .collect();
    let no_roles = Roles { attacker: 0, best: 0, second: 0 };
    let played = parallel(&jobs, |(stack, condition, seed)| {
        let rules = (stack.protection, purse);
        play(&condition.setting(*seed), rules, Attack::Honest, no_roles, stack.transform)
    })?;
    let per_stack = conditions.len() * seeds.len();
    let honest: Honest = played
        .chunks(per_stack)
        .map(|stack| stack.chunks(seeds.len()).map(<[Earnings]>::to_vec).collect())
        .collect();
    let mut rows = losses(&conditions, &honest);
    rows.extend(attacks(seeds, purse, &conditions, &honest)?);
    Ok(rows)
}

/// The loss of honest members by each protection without an attack: in total, and of the member
/// that loses most.
fn losses(conditions: &[Condition], honest: &Honest) -> Vec<Measurement> {
    let mut table =
        TextTable::new(&["without attack", ">pay retained", ">least retained", ">rejected"]);
    let mut rows = Vec::new();
    for (stack, played) in STACKS.iter().zip(honest) {
        for ((condition, played), bare) in conditions.iter().zip(played).zip(&honest[0]) {
            let mut retained = Vec::new();
            let mut least = Vec::new();
            for (with, without) in played.iter().zip(bare) {
                let each = with.by_member.iter().zip(&without.by_member);
                least.push(each.map(|(a, b)| a / b).fold(f64::INFINITY, f64::min));
                let sum = |earned: &Earnings| earned.by_member.iter().sum::<f64>();
                retained.push(sum(with) / sum(without));
            }
            let (retained_mean, least) = (Mean::from_values(&retained), Mean::from_values(&least));
            let collisions: usize = played.iter().map(|earned| earned.collisions).sum();
            let name = format!("{}, {condition}", stack.name);
            table.row([
                name.into(),
                format_mean(retained_mean).into(),
                format_mean(least).into(),
                collisions.to_string().into(),
            ]);
            if stack.name == "default" {
                let name = format!("pay retained by honest members, {condition}");
                rows.push(Measurement::at_least(
                    name,
                    retained_mean.value,
                    "×",
                    1.0 - HONEST_LOSS_MAX,
                ));
            }
        }
    }
    table.print();
    rows
}

fn attacks(
    seeds: &[u64],
    purse: PayLimit,
    conditions: &[Condition],
    honest: &Honest,
) -> anyhow::Result<Vec<Measurement>> {
    let jobs: Vec<(Attack, usize, usize, usize)> = ATTACKS
        .iter()
        .flat_map(|attack| (0..STACKS.len()).map(move |stack| (*attack, stack)))
        .flat_map(|(attack, stack)| {
            (0..conditions.len())
                .flat_map(move |c| (0..seeds.len()).map(move |seed| (attack, stack, c, seed)))
        })
        .collect();
    let ratios = parallel(&jobs, |&(attack, stack, condition, seed)| {
        let base = &honest[stack][condition][seed];
        let roles = Roles::from_earnings(&honest[0][condition][seed].by_member);
        let rules = (STACKS[stack].protection, purse);
        let setting = conditions[condition].setting(seeds[seed]);
        let earned = play(&setting, rules, attack, roles, STACKS[stack].transform)?;
        let ratio = earned.by_member[roles.attacker] / base.by_member[roles.attacker];
        let cut = earned.cut_at_zero[roles.attacker] / base.cut_at_zero[roles.attacker];
        Ok((ratio / attack.stake(), cut))
    })?;
    let mut table = TextTable::new(&HEADS);
    let mut rows = Vec::new();
    let per_stack = conditions.len() * seeds.len();
    for (attack, all) in ATTACKS.iter().zip(ratios.chunks(STACKS.len() * per_stack)) {
        let worst: Vec<(Mean, usize)> =
            all.chunks(per_stack).map(|stack| worst(stack.chunks(seeds.len()))).collect();
        let mut line: Vec<Cell> = vec![attack.name().into()];
        line.extend(worst.iter().map(|(mean, _)| Cell::from(format_mean(*mean))));
        table.row(line);
        let (mean, condition) = worst[worst.len() - 1];
        let name = format!("{} ({})", attack.name(), conditions[condition]);
        let row = Measurement::at_most(name, mean.value, "× honest pay", 1.0 + mean.half);
        rows.push(row);
        if let Attack::Hedge(_) = attack {
            let cut = all[..per_stack].chunks(seeds.len()).map(|c| {
                Mean::from_values(&c.iter().map(|(_, cut)| *cut).collect::<Vec<_>>()).value
            });
            let name = format!("{}, if negative scores were cut at zero", attack.name());
            rows.push(Measurement::plain(name, cut.fold(f64::MIN, f64::max), "× honest pay"));
        }
    }
    table.print();
    Ok(rows)
}

/// The condition under which an attack pays most.
fn worst<'a>(conditions: impl Iterator<Item = &'a [(f64, f64)]>) -> (Mean, usize) {
    let means = conditions
        .map(|values| Mean::from_values(&values.iter().map(|(r, _)| *r).collect::<Vec<_>>()));
    let mut best = None;
    for (at, mean) in means.enumerate() {
        if best.is_none_or(|(old, _): (Mean, usize)| mean.value - mean.half > old.value - old.half)
        {
            best = Some((mean, at));
        }
    }
    best.expect("there is at least one condition")
}

fn format_mean(mean: Mean) -> String {
    format!("{:.2} ± {:.2}", mean.value, mean.half)
}
