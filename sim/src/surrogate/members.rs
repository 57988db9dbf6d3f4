//! The members of a surrogate, a few dozen bytes each: rows, bond, machine and bandwidth, drawn
//! from the same distributions as real members.

use florin_learning::parallel_map;
use florin_participant::required_bond;
use florin_protocol::{Amount, TaskSpec};

use crate::devices::{self, DeviceRound, DeviceVerdict, member_devices};
use crate::random::{normal, stream, uniform, uniform_below};
use crate::scenario::{Availability, Group, Scenario};
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
pub(super) struct SurrogateMember {
    /// Index of its group among the group names.
    pub(super) group: u32,
    /// Number of its rows.
    pub(super) rows: u32,
    /// Number of rows that it declares.
    pub(super) declared: u64,
    /// Its bond.
    pub(super) bond: Amount,
    /// Random effects of the member, in standard deviations of its group.
    pub(super) random_effects: [f32; 2],
    /// Whether its machine or devices, and its bandwidth, meet the deadlines.
    pub(super) is_in_time: bool,
    /// Its honest work by its devices; `None` without devices.
    pub(super) devices: Option<DeviceRound>,
    /// Hours by which its daily rhythm is shifted.
    shift: f32,
    /// Training steps and megabytes of a round.
    steps: f32,
    megabytes: f32,
}

impl SurrogateMember {
    /// The probability that it is online when a round opens.
    pub(super) fn online_probability(&self, online: &Availability, round: u64, at_ms: u64) -> f64 {
        if self.devices.is_some_and(|devices| devices.verdict == DeviceVerdict::TooSmall) {
            return 0.0;
        }
        match online {
            // Validation rejects traces and churn for a surrogate.
            Availability::Always | Availability::Trace { .. } | Availability::Churn { .. } => 1.0,
            Availability::Random { probability } => *probability,
            Availability::Rounds { first, last } => f64::from((*first..=*last).contains(&round)),
            Availability::Daily { low, high, peak, .. } => {
                let hour = at_ms as f64 / DAY.1 + f64::from(self.shift) - peak;
                low + (high - low) * (1.0 + (hour / DAY.0 * std::f64::consts::TAU).cos()) / 2.0
            }
        }
    }

    /// The cost of a round, in florins.
    pub(super) fn cost(&self, group: &Group) -> f64 {
        let megabytes = 2.0 * f64::from(self.megabytes);
        let steps = f64::from(self.steps);
        let hours = self.devices.map_or(0.0, |round| round.times.device_hours(self.steps as u64));
        group.cost.per_step * steps
            + group.cost.per_megabyte * megabytes
            + group.cost.per_device_hour.unwrap_or(0.0) * hours
    }
}

/// All members, group by group.
pub(super) fn draw_members(scenario: &Scenario, seed: u64, threads: usize) -> Vec<SurrogateMember> {
    let (mut tasks, mut first) = (Vec::new(), 0);
    for (at, group) in (0..).zip(scenario.population.values()) {
        for start in (0..group.count as usize).step_by(CHUNK) {
            let places = start..(group.count as usize).min(start + CHUNK);
            tasks.push((at, group, first, places));
        }
        first += u64::from(group.count);
    }
    let spec = scenario.task_spec(seed);
    let bytes = match &scenario.task.step {
        Some(step) => devices::update_bytes(step),
        None => florin_work::model_spec(&spec.model).parameters() as f64 * 4.0 + HEADER_BYTES,
    };
    let drawn = parallel_map(threads, tasks, |(at, group, first, places)| {
        let rng = &mut stream(seed, "surrogate people", [u64::from(at), places.start as u64]);
        let member = |place: usize| {
            let drawn = draw_member((scenario, &spec), at, group, bytes, rng);
            with_devices(drawn, scenario, group, (seed, first + place as u64))
        };
        places.map(member).collect::<Vec<_>>()
    });
    drawn.concat()
}

/// The member with its devices, if its group has some.
fn with_devices(
    mut member: SurrogateMember,
    scenario: &Scenario,
    group: &Group,
    (seed, number): (u64, u64),
) -> SurrogateMember {
    let Some(devices) = &group.devices else { return member };
    let Some(times) = member_devices(scenario, devices, seed, number) else { return member };
    let (learning, terms) = (&scenario.learning, &scenario.task);
    let honest = u64::from(member.rows).div_ceil(learning.batch.into());
    member.is_in_time = times.is_in_time(member.steps as u64, terms);
    member.devices = Some(times.round(honest * u64::from(learning.epochs), terms));
    member
}

fn draw_member(
    (scenario, spec): (&Scenario, &TaskSpec),
    at: u32,
    group: &Group,
    bytes: f64,
    rng: &mut rand_chacha::ChaCha8Rng,
) -> SurrogateMember {
    let [low, high] = group.rows;
    let rows = u64::from(low) + uniform_below(rng, u64::from(high - low) + 1);
    let machine = &group.machine;
    let mut around = |median: f64, spread: f64| median * (spread * normal(rng)).exp();
    let steps_per_second = around(machine.steps_per_second, machine.spread);
    let line = around(machine.megabits_per_second, machine.line_spread()) * MEGABIT;
    let shift = match group.online {
        Availability::Daily { shift_hours, .. } => shift_hours * (uniform(rng) - 0.5),
        Availability::Always
        | Availability::Random { .. }
        | Availability::Churn { .. }
        | Availability::Rounds { .. }
        | Availability::Trace { .. } => 0.0,
    };
    let (learning, terms) = (&scenario.learning, &scenario.task);
    let trained = rows_trained(group.strategy, rows);
    let epochs = match group.strategy {
        Strategy::FewerEpochs { epochs } => epochs.min(learning.epochs),
        _ => learning.epochs,
    };
    let steps = (u64::from(epochs) * trained.div_ceil(u64::from(learning.batch))) as f64;
    let sends = bytes / line;
    let (declared, covered) = group.strategy.declared_and_bonded_rows(rows, 0);
    SurrogateMember {
        group: at,
        rows: rows as u32,
        declared,
        bond: required_bond(spec, covered, None),
        random_effects: [normal(rng) as f32, normal(rng) as f32],
        is_in_time: sends + steps / steps_per_second < terms.train_s && sends < terms.reveal_s,
        devices: None,
        shift: shift as f32,
        steps: steps as f32,
        megabytes: (bytes / 1e6) as f32,
    }
}

/// Number of rows on which a strategy trains.
fn rows_trained(strategy: Strategy, rows: u64) -> u64 {
    match strategy {
        Strategy::ZeroUpdate
        | Strategy::Noise { .. }
        | Strategy::Replay { .. }
        | Strategy::Copy { .. } => 0,
        // It trains in its first round only.
        Strategy::Repeat => 0,
        Strategy::Lazy { fraction } => (rows as f64 * fraction).round() as u64,
        Strategy::DuplicateRows { factor } => (rows as f64 * factor).round() as u64,
        _ => rows,
    }
}
