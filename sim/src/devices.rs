//! The virtual devices of a member: drawn for a seed, and timed by the production's own predictions.
//!
//! ```text
//! draw ─▶ memory: fits, by a plan, or not ─▶ seconds of a worker ─▶ step of all devices together
//!      ─▶ steps of a round ─▶ in time, late, or without an update
//! ```

mod together;

use florin_learning::virtual_workers::TransferCost;
use rand_chacha::ChaCha8Rng;

use self::together::{DividedStep, GradientTransfer, fastest_step};
use crate::random::{normal, stream, uniform_below};
use crate::scenario::{BuyerTerms, DeviceLink, GroupDevices, Scenario, TaskStep};

/// Bytes of a GiB.
const GIB: f64 = (1_u64 << 30) as f64;
/// Bytes per second of one megabit per second.
const MEGABIT: f64 = 125_000.0;
/// Bytes per parameter.
const NUMBER_BYTES: f64 = 4.0;
/// Approximate bytes of an update in addition to its parameters.
const HEADER_BYTES: f64 = 300.0;
/// Bounds of a drawn speed and of a drawn rate, beyond all that a scenario's bounds make likely.
const DRAWN: [f64; 2] = [1e-12, 1e15];
/// Seconds of an hour.
const SECONDS_PER_HOUR: f64 = 3_600.0;
/// Microseconds of a second, and of a millisecond.
const MICROS: (f64, u64) = (1e6, 1_000);

/// One device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// Seconds of a virtual worker's part of a step with all tensors in the memory.
    pub worker_seconds: f64,
    /// Bytes of the memory for the tensors of a step.
    pub memory_bytes: u64,
}

/// The drawn devices of a member and their links.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnDevices {
    /// The devices.
    pub devices: Vec<Device>,
    /// Between each two of them.
    pub link: TransferCost,
    /// To the coordinator and back.
    pub coordinator: TransferCost,
}

/// Whether a member's devices hold a step, as `participate` decides before the bond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepMemoryVerdict {
    /// All tensors of a step fit into each device that is used.
    Fits,
    /// Some devices that are used need a plan.
    ByPlan,
    /// A step fits into no device by any plan.
    TooSmall,
}

/// Whether a member's honest work arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceVerdict {
    /// Before the deadlines of training and upload.
    InTime,
    /// After one of them.
    Late,
    /// A step fits into no device: no update is sent.
    TooSmall,
}

/// The predicted times of a member's devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceTimes {
    /// Number of its devices.
    pub devices: u32,
    /// How many of them compute: of those into which a step fits, the ones that make it faster.
    pub used: u32,
    /// Whether they hold a step.
    pub memory: StepMemoryVerdict,
    /// Seconds of a step of all of them together; infinite if none holds it.
    pub step_seconds: f64,
    /// Seconds in which they compute during a step, of all of them together.
    pub computing_seconds: f64,
    /// Seconds until the member has the model.
    pub download_seconds: f64,
    /// Seconds of an update's upload.
    pub upload_seconds: f64,
}

/// A member's honest work in a round, by its devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceRound {
    /// The times of the devices.
    pub times: DeviceTimes,
    /// Seconds of a round with honest work: download, training and upload. Infinite if a step fits
    /// into no device.
    pub round_seconds: f64,
    /// Number of devices that compute between offer and commit, averaged over that time.
    pub computing: f64,
    /// Whether the update arrives.
    pub verdict: DeviceVerdict,
}

impl StepMemoryVerdict {
    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::ByPlan => "by_plan",
            Self::TooSmall => "too_small",
        }
    }
}

impl DeviceVerdict {
    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InTime => "in_time",
            Self::Late => "late",
            Self::TooSmall => "too_small",
        }
    }
}

/// Bytes of an update of the task's model, and of the model.
#[must_use]
pub fn update_bytes(step: &TaskStep) -> f64 {
    step.parameters as f64 * NUMBER_BYTES + HEADER_BYTES
}

/// The devices of a member with this number, as the seed draws them. Neither other members nor
/// other draws of this one change them. `None` if the group has none.
#[must_use]
pub fn member_devices(
    scenario: &Scenario,
    group: &GroupDevices,
    seed: u64,
    member: u64,
) -> Option<DeviceTimes> {
    let step = scenario.task.step.as_ref()?;
    let reference = group.worker_seconds(step)?;
    let drawn = draw(group, reference, &mut stream(seed, "devices", [member, 0]));
    Some(DeviceTimes::predict(&drawn, step))
}

/// Draws devices; `reference` is the time of a worker on a device of speed 1, in seconds.
fn draw(group: &GroupDevices, reference: f64, rng: &mut ChaCha8Rng) -> DrawnDevices {
    let around = |median: f64, spread: f64, rng: &mut ChaCha8Rng| {
        (median * (spread * normal(rng)).exp()).clamp(DRAWN[0], DRAWN[1])
    };
    let [least, most] = group.count;
    let factors = match group.speeds.len() {
        0 => vec![1.0; (least + uniform_below(rng, u64::from(most - least) + 1) as u32) as usize],
        _ => group.speeds.clone(),
    };
    let transfer = |link: DeviceLink, rng: &mut ChaCha8Rng| TransferCost {
        alpha: link.latency_ms * 1e-3,
        beta: 1.0 / (MEGABIT * around(link.megabits_per_second, link.spread, rng)),
    };
    let (link, coordinator) = (transfer(group.link, rng), transfer(group.coordinator, rng));
    let device = |factor: f64, rng: &mut ChaCha8Rng| {
        let speed = around(group.speed.median * factor, group.speed.spread, rng);
        let choice = uniform_below(rng, group.memory_gib.len() as u64) as usize;
        let memory_bytes = (group.memory_gib[choice] * GIB) as u64;
        Device { worker_seconds: reference / speed, memory_bytes }
    };
    let devices = factors.into_iter().map(|factor| device(factor, rng)).collect();
    DrawnDevices { devices, link, coordinator }
}

impl DeviceTimes {
    /// Predicts the times of devices that compute `step` as ranks of one member. A device without
    /// memory for a step is left out, and so is one that would make the step longer. The fastest
    /// one is rank 0.
    #[must_use]
    pub fn predict(drawn: &DrawnDevices, step: &TaskStep) -> Self {
        let admitted = drawn.devices.iter().filter_map(|device| {
            let slow_down = slow_down(step, device.memory_bytes)?;
            Some((device.worker_seconds * slow_down, slow_down))
        });
        let mut seconds = Vec::new();
        let mut memory = StepMemoryVerdict::TooSmall;
        for (worker_seconds, slow_down) in admitted {
            let own =
                if slow_down > 1.0 { StepMemoryVerdict::ByPlan } else { StepMemoryVerdict::Fits };
            memory = if seconds.is_empty() { own } else { memory.max(own) };
            seconds.push(worker_seconds);
        }
        seconds.sort_by(f64::total_cmp);
        let bytes = step.parameters * size_of::<f32>() as u64;
        let transfer = GradientTransfer { link: drawn.link, bytes };
        let none = DividedStep { seconds: f64::INFINITY, devices: 0, computing_seconds: 0.0 };
        let together = fastest_step(&seconds, step.workers, transfer).unwrap_or(none);
        let transfer = drawn.coordinator.alpha + drawn.coordinator.beta * update_bytes(step);
        Self {
            devices: drawn.devices.len() as u32,
            used: together.devices,
            memory,
            step_seconds: together.seconds,
            computing_seconds: together.computing_seconds,
            download_seconds: transfer,
            upload_seconds: transfer,
        }
    }

    /// Milliseconds from the offer until the member has trained `steps` steps.
    #[must_use]
    pub fn commit_ms(&self, steps: u64) -> u64 {
        milliseconds(self.download_seconds + steps as f64 * self.step_seconds)
    }

    /// Hours in which the used devices train `steps` steps, of all of them together.
    #[must_use]
    pub fn device_hours(&self, steps: u64) -> f64 {
        f64::from(self.used) * steps as f64 * self.step_seconds / SECONDS_PER_HOUR
    }

    /// Milliseconds of the upload.
    #[must_use]
    pub fn upload_ms(&self) -> u64 {
        milliseconds(self.upload_seconds)
    }

    /// Whether an update after `steps` steps arrives before both deadlines of `terms`.
    #[must_use]
    pub fn is_in_time(&self, steps: u64, terms: &BuyerTerms) -> bool {
        let deadline = |seconds: f64| (seconds * 1e3).round().max(1.0) as u64;
        // An upload of exactly its time would end in the millisecond after the deadline.
        self.commit_ms(steps) <= deadline(terms.train_s)
            && self.upload_ms() < deadline(terms.reveal_s)
    }

    /// The member's honest work: `steps` steps under the deadlines of `terms`.
    #[must_use]
    pub fn round(self, steps: u64, terms: &BuyerTerms) -> DeviceRound {
        let round_seconds =
            self.download_seconds + steps as f64 * self.step_seconds + self.upload_seconds;
        let verdict = match (self.memory, self.is_in_time(steps, terms)) {
            (StepMemoryVerdict::TooSmall, _) => DeviceVerdict::TooSmall,
            (_, true) => DeviceVerdict::InTime,
            (_, false) => DeviceVerdict::Late,
        };
        let until_commit = self.download_seconds + steps as f64 * self.step_seconds;
        let computed = steps as f64 * self.computing_seconds;
        let computing = if computed > 0.0 { computed / until_commit } else { 0.0 };
        DeviceRound { times: self, round_seconds, computing, verdict }
    }
}

/// The slow-down of a step in a memory: 1 if all tensors fit, that of the fastest plan within it
/// otherwise; `None` if no plan fits.
fn slow_down(step: &TaskStep, memory_bytes: u64) -> Option<f64> {
    if step.bytes <= memory_bytes {
        return Some(1.0);
    }
    let fits = step.plans.iter().filter(|plan| plan.bytes <= memory_bytes);
    fits.map(|plan| plan.slow_down.max(1.0)).min_by(f64::total_cmp)
}

/// Whole milliseconds, rounded up after a rounding to microseconds; at least one.
fn milliseconds(seconds: f64) -> u64 {
    // The conversion saturates.
    ((seconds * MICROS.0).round() as u64).div_ceil(MICROS.1).max(1)
}

#[cfg(test)]
mod tests;
