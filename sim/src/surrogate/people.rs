//! The members of a surrogate, a few dozen bytes each: rows, bond, machine and bandwidth, drawn
//! from the same distributions as real members.

use florin_participant::bond_for;
use florin_protocol::{Amount, TaskSpec};

use crate::draw::{below, normal, stream, unit};
use crate::parallel::each;
use crate::scenario::{Group, Online, Scenario};
use crate::strategy::Strategy;

/// Number of members drawn from one random stream.
const CHUNK: usize = 4_096;
/// Approximate bytes of an update in addition to its parameters.
const HEADER_BYTES: f64 = 300.0;
/// Bytes per second of one megabit per second.
const MEGABIT: f64 = 125_000.0;
/// Hours per virtual day, and milliseconds per hour.
const DAY: (f64, f64) = (24.0, 3_600_000.0);

/// One member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Person {
    /// Index of its group among the group names.
    pub(super) group: u32,
    /// Number of its rows.
    pub(super) rows: u32,
    /// Number of rows that it declares.
    pub(super) declared: u64,
    /// Its bond.
    pub(super) bond: Amount,
    /// Random effects of the member, in standard deviations of its group.
    pub(super) zeta: [f32; 2],
    /// Whether its machine and bandwidth meet the deadlines.
    pub(super) is_in_time: bool,
    /// Hours by which its daily rhythm is shifted.
    shift: f32,
    /// Training steps and megabytes of a round.
    steps: f32,
    megabytes: f32,
}

impl Person {
    /// The probability that it is online when a round opens.
    pub(super) fn share_online(&self, online: &Online, round: u64, at_ms: u64) -> f64 {
        match online {
            // Validation rejects traces for a surrogate.
            Online::Always | Online::Trace { .. } => 1.0,
            Online::Often { share } => *share,
            Online::Rounds { first, last } => f64::from((*first..=*last).contains(&round)),
            Online::Daily { low, high, peak, .. } => {
                let hour = at_ms as f64 / DAY.1 + f64::from(self.shift) - peak;
                low + (high - low) * (1.0 + (hour / DAY.0 * std::f64::consts::TAU).cos()) / 2.0
            }
        }
    }

    /// The cost of a round, in florins.
    pub(super) fn cost(&self, group: &Group) -> f64 {
        let megabytes = 2.0 * f64::from(self.megabytes);
        group.cost.per_step * f64::from(self.steps) + group.cost.per_megabyte * megabytes
    }
}

/// All members, group by group.
pub(super) fn people(scenario: &Scenario, seed: u64, threads: usize) -> Vec<Person> {
    let mut tasks = Vec::new();
    for (at, group) in (0..).zip(scenario.population.values()) {
        for start in (0..group.count as usize).step_by(CHUNK) {
            tasks.push((at, group, start..(group.count as usize).min(start + CHUNK)));
        }
    }
    let spec = scenario.task_spec(seed);
    let bytes = florin_work::model_spec(&spec.model).parameters() as f64 * 4.0 + HEADER_BYTES;
    let drawn = each(
        threads,
        tasks,
        || (),
        |(), (at, group, range)| {
            let rng = &mut stream(seed, "surrogate people", [u64::from(at), range.start as u64]);
            range.map(|_| person((scenario, &spec), at, group, bytes, rng)).collect::<Vec<_>>()
        },
    );
    drawn.concat()
}

fn person(
    (scenario, spec): (&Scenario, &TaskSpec),
    at: u32,
    group: &Group,
    bytes: f64,
    rng: &mut rand_chacha::ChaCha8Rng,
) -> Person {
    let [low, high] = group.rows;
    let rows = u64::from(low) + below(rng, u64::from(high - low) + 1);
    let machine = &group.machine;
    let mut around = |median: f64| median * (machine.spread * normal(rng)).exp();
    let (steps_per_second, line) =
        (around(machine.steps_per_second), around(machine.megabits_per_second) * MEGABIT);
    let shift = match group.online {
        Online::Daily { shift, .. } => shift * (unit(rng) - 0.5),
        Online::Always | Online::Often { .. } | Online::Rounds { .. } | Online::Trace { .. } => 0.0,
    };
    let (learning, terms) = (&scenario.learning, &scenario.task);
    let trained = rows_trained(group.strategy, rows);
    let epochs = match group.strategy {
        Strategy::Hasty { epochs } => epochs.min(learning.epochs),
        _ => learning.epochs,
    };
    let steps = (u64::from(epochs) * trained.div_ceil(u64::from(learning.batch))) as f64;
    let sends = bytes / line;
    let (declared, covered) = group.strategy.rows(rows, 0);
    Person {
        group: at,
        rows: rows as u32,
        declared,
        bond: bond_for(spec, covered, None),
        zeta: [normal(rng) as f32, normal(rng) as f32],
        is_in_time: sends + steps / steps_per_second < terms.train_s && sends < terms.reveal_s,
        shift: shift as f32,
        steps: steps as f32,
        megabytes: (bytes / 1e6) as f32,
    }
}

/// Number of rows on which a strategy trains.
fn rows_trained(strategy: Strategy, rows: u64) -> u64 {
    match strategy {
        Strategy::Idle
        | Strategy::Noise { .. }
        | Strategy::Replay { .. }
        | Strategy::Plagiarise { .. } => 0,
        Strategy::Lazy { share } => (rows as f64 * share).round() as u64,
        Strategy::Duplicate { by } => (rows as f64 * by).round() as u64,
        _ => rows,
    }
}
