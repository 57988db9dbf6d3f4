//! The devices of a group's members, and the step of the task's model that they compute.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use florin_learning::step_cost::{DeviceCard, StepWork, WORK_KINDS};
use serde::{Deserialize, Serialize};

use super::check::Check;
use super::file::path_inside;
use super::{Group, MachineSettings, Scenario, ScenarioError};
use crate::measure::{DEVICE_MEASURES, ROUND_DURATION};

/// Maximum number of devices of a member.
const DEVICES_MAX: u32 = 8;
/// Maximum number of virtual workers of a batch in a scenario.
const WORKERS_MAX: u32 = 64;
/// Maximum number of memory sizes in a group, and of plans of a step.
const CHOICES_MAX: usize = 64;
/// Maximum size of a card in bytes.
const CARD_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of parameters of an update, and of bytes of a step.
const SIZE_MAX: u64 = 1 << 50;
/// Minimum and maximum of a median speed.
const SPEED: [f64; 2] = [1e-6, 1e6];
/// Maximum standard deviation of a logarithm.
const SPREAD_MAX: f64 = 5.0;
/// Minimum and maximum seconds of a virtual worker.
const SECONDS: [f64; 2] = [1e-9, 1e6];
/// Maximum amount of one kind of work.
const WORK_MAX: f64 = 1e24;
/// Minimum and maximum memory of a device in GiB.
const MEMORY_GIB: [f64; 2] = [0.001, 1e6];
/// Maximum latency of a link in milliseconds.
const LATENCY_MS_MAX: f64 = 60_000.0;
/// Minimum and maximum rate of a link in megabits per second.
const MEGABITS: [f64; 2] = [1e-6, 1e9];
/// Maximum slow-down of a plan.
const SLOW_DOWN_MAX: f64 = 1e6;

/// The step of the task's model on one virtual worker's rows, as `florin quote --save-step` writes
/// it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskStep {
    /// Virtual workers of a batch.
    #[serde(default = "one")]
    pub workers: u32,
    /// Number of parameters in an update.
    pub parameters: u64,
    /// Bytes of the tensors of a worker's part of a step at once, beside the parameters.
    pub bytes: u64,
    /// Seconds of a worker's part on a device of speed 1 without a card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Work of a worker's part by its kind, for devices with a card.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub work: BTreeMap<String, f64>,
    /// Plans for smaller memories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plans: Vec<StepPlan>,
}

const fn one() -> u32 {
    1
}

/// A plan by which a step fits into a smaller memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepPlan {
    /// Bytes of the memory.
    pub bytes: u64,
    /// Time of the step, as a multiple of that with all tensors in the memory.
    pub slow_down: f64,
}

impl TaskStep {
    /// The work as the cards count it.
    #[must_use]
    pub fn step_work(&self) -> StepWork {
        let amount = |kind: &str| self.work.get(kind).copied().unwrap_or(0.0);
        StepWork { amounts: WORK_KINDS.map(amount) }
    }

    /// Checks the bounds.
    ///
    /// # Errors
    /// The first number that is out of bounds.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let key = |what: &str| format!("task.step.{what}");
        let right = format!("must be 1 to {WORKERS_MAX}");
        let fine = (1..=WORKERS_MAX).contains(&self.workers);
        Check::require(fine, key("workers"), &self.workers, &right)?;
        for (what, size) in [("parameters", self.parameters), ("bytes", self.bytes)] {
            let right = format!("must be 1 to {SIZE_MAX}");
            Check::require((1..=SIZE_MAX).contains(&size), key(what), &size, &right)?;
        }
        if let Some(seconds) = self.seconds {
            Check::require_range(key("seconds"), seconds, SECONDS[0], SECONDS[1])?;
        }
        for (kind, amount) in &self.work {
            let right = format!("must be one of {}", WORK_KINDS.join(", "));
            Check::require(WORK_KINDS.contains(&kind.as_str()), key("work"), kind, &right)?;
            Check::require_range(key(&format!("work.{kind}")), *amount, 0.0, WORK_MAX)?;
        }
        let right = format!("must be at most {CHOICES_MAX} plans");
        let count = self.plans.len();
        Check::require(count <= CHOICES_MAX, key("plans"), &count, &right)?;
        for (at, plan) in self.plans.iter().enumerate() {
            let right = "must be below task.step.bytes";
            let bytes = plan.bytes;
            Check::require(bytes < self.bytes, key(&format!("plans[{at}].bytes")), &bytes, right)?;
            let slow_down = plan.slow_down;
            Check::require_range(
                key(&format!("plans[{at}].slow_down")),
                slow_down,
                1.0,
                SLOW_DOWN_MAX,
            )?;
        }
        Ok(())
    }
}

/// The devices of a group's members. Each member draws its own, once for a seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupDevices {
    /// Minimum and maximum number of devices of a member; uniformly distributed.
    #[serde(default = "one_device")]
    pub count: [u32; 2],
    /// The devices of each member in place of `count`: factors of their medians of `speed`, as
    /// `[1, 2, 4]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub speeds: Vec<f64>,
    /// Speed of each device.
    #[serde(default)]
    pub speed: DeviceSpeed,
    /// Path of a card, as `florin quote --save-card` writes it, relative to the scenario's folder;
    /// speeds are then multiples of its speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<String>,
    /// Sizes of a device's memory for the tensors of a step in GiB, as in `participate --memory`;
    /// each with the same probability.
    pub memory_gib: Vec<f64>,
    /// Links between the devices of a member.
    #[serde(default)]
    pub link: DeviceLink,
    /// Link to the coordinator, in each direction.
    #[serde(default = "internet")]
    pub coordinator: DeviceLink,
    /// The card, after it was read.
    #[serde(skip)]
    content: Option<Arc<CardContent>>,
}

const fn one_device() -> [u32; 2] {
    [1, 1]
}

const fn internet() -> DeviceLink {
    DeviceLink { latency_ms: 20.0, megabits_per_second: 10.0, spread: 0.0 }
}

/// Speeds of a group's devices: log-normal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceSpeed {
    /// The median, as a multiple of the reference device of `task.step.seconds`, or of the card.
    pub median: f64,
    /// Standard deviation of the logarithm.
    pub spread: f64,
}

impl Default for DeviceSpeed {
    fn default() -> Self {
        Self { median: 1.0, spread: 0.0 }
    }
}

/// A kind of links: latency, and log-normal rates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceLink {
    /// Milliseconds of a transfer without bytes.
    pub latency_ms: f64,
    /// Median rate of a member's link.
    pub megabits_per_second: f64,
    /// Standard deviation of the rate's logarithm.
    pub spread: f64,
}

impl Default for DeviceLink {
    /// A local network.
    fn default() -> Self {
        Self { latency_ms: 0.1, megabits_per_second: 1_000.0, spread: 0.0 }
    }
}

#[derive(Debug, PartialEq)]
struct CardContent {
    card: DeviceCard,
    /// The content of the file, which is stored beside the results.
    text: String,
}

impl GroupDevices {
    /// Reads the card of the group `name`, from a path relative to `folder`.
    pub(super) fn read(&mut self, name: &str, folder: &Path) -> Result<(), ScenarioError> {
        let Some(file) = &self.card else { return Ok(()) };
        let wrong = |right: String| ScenarioError::Value {
            key: format!("population.{name}.devices.card"),
            value: file.clone(),
            right,
        };
        let path = path_inside(folder, file).ok_or_else(|| {
            let right = "must be a path from the scenario's folder, without . and .., of letters, \
                         digits, hyphens, points and _, and no name of a results file";
            wrong(right.to_owned())
        })?;
        let bytes = std::fs::metadata(&path).map_err(|error| wrong(error.to_string()))?.len();
        if bytes > CARD_BYTES_MAX {
            return Err(wrong(format!("must have at most {CARD_BYTES_MAX} bytes")));
        }
        let text = std::fs::read_to_string(&path).map_err(|error| wrong(error.to_string()))?;
        let card: DeviceCard = serde_json::from_str(&text)
            .map_err(|error| wrong(format!("is not a card of --save-card: {error}")))?;
        self.content = Some(Arc::new(CardContent { card, text }));
        Ok(())
    }

    /// The card's file and its content, if there is one.
    pub(super) fn attached_file(&self) -> Option<(&str, &str)> {
        Some((self.card.as_deref()?, self.content.as_ref()?.text.as_str()))
    }

    /// Seconds of a virtual worker's part on a device of speed 1: by the card, or as the step
    /// states.
    pub(crate) fn worker_seconds(&self, step: &TaskStep) -> Option<f64> {
        match &self.content {
            Some(content) => Some(content.card.predict(&step.step_work()).ok()?.seconds),
            None => step.seconds,
        }
    }

    fn check(&self, name: &str, step: &TaskStep) -> Result<(), ScenarioError> {
        let key = |what: &str| format!("population.{name}.devices.{what}");
        let [least, most] = self.count;
        let right = format!("must be two numbers from 1 to {DEVICES_MAX}, the smaller one first");
        let fine = (1..=most).contains(&least) && most <= DEVICES_MAX;
        Check::require(fine, key("count"), &format!("{:?}", self.count), &right)?;
        let right = format!("must be at most {DEVICES_MAX} factors, without count");
        let count = self.speeds.len();
        let fine = count == 0 || (count <= DEVICES_MAX as usize && self.count == one_device());
        Check::require(fine, key("speeds"), &count, &right)?;
        for (at, factor) in self.speeds.iter().enumerate() {
            Check::require_range(key(&format!("speeds[{at}]")), *factor, SPEED[0], SPEED[1])?;
        }
        Check::require_range(key("speed.median"), self.speed.median, SPEED[0], SPEED[1])?;
        Check::require_range(key("speed.spread"), self.speed.spread, 0.0, SPREAD_MAX)?;
        let sizes = self.memory_gib.len();
        let right = format!("must be 1 to {CHOICES_MAX} sizes");
        Check::require((1..=CHOICES_MAX).contains(&sizes), key("memory_gib"), &sizes, &right)?;
        for (at, gib) in self.memory_gib.iter().enumerate() {
            let of = key(&format!("memory_gib[{at}]"));
            Check::require_range(of, *gib, MEMORY_GIB[0], MEMORY_GIB[1])?;
        }
        for (what, link) in [("link", self.link), ("coordinator", self.coordinator)] {
            let key = |of: &str| key(&format!("{what}.{of}"));
            Check::require_range(key("latency_ms"), link.latency_ms, 0.0, LATENCY_MS_MAX)?;
            let rate = link.megabits_per_second;
            Check::require_range(key("megabits_per_second"), rate, MEGABITS[0], MEGABITS[1])?;
            Check::require_range(key("spread"), link.spread, 0.0, SPREAD_MAX)?;
        }
        let Some(file) = &self.card else {
            let right = "has no time of a worker: set it, or give the devices a card";
            return Check::require(step.seconds.is_some(), "task.step.seconds", &"none", right);
        };
        let right = "predicts a step by its work: set task.step.work, as `florin quote \
                     --save-step` writes it";
        Check::require(!step.work.is_empty(), key("card"), file, right)?;
        let refused = self.content.as_ref().and_then(|content| {
            content.card.predict(&step.step_work()).err().map(|error| error.to_string())
        });
        Check::require(refused.is_none(), key("card"), file, refused.as_deref().unwrap_or(""))?;
        let seconds = self.worker_seconds(step).unwrap_or(f64::NAN);
        let right = format!(
            "must predict {} to {} seconds for the step, not {seconds}",
            SECONDS[0], SECONDS[1]
        );
        let fine = (SECONDS[0]..=SECONDS[1]).contains(&seconds);
        Check::require(fine, key("card"), file, &right)
    }
}

impl Scenario {
    /// Whether a group has devices.
    #[must_use]
    pub fn has_devices(&self) -> bool {
        self.population.values().any(|group| group.devices.is_some())
    }

    /// Devices need a step, and replace the machine.
    pub(super) fn check_devices(&self) -> Result<(), ScenarioError> {
        if let Some(step) = &self.task.step {
            step.check()?;
        }
        for (name, group) in &self.population {
            let per_hour = group.cost.per_device_hour;
            let of = format!("population.{name}.cost.per_device_hour");
            let right = "costs devices: set devices of the group";
            let fine = per_hour.is_none() || group.devices.is_some();
            Check::require(fine, &of, &per_hour.unwrap_or(0.0), right)?;
            Check::require_range(of, per_hour.unwrap_or(0.0), 0.0, 1e9)?;
            let Some(devices) = &group.devices else { continue };
            let right = "needs task.step: the work of a step of the task's model";
            let of = format!("population.{name}.devices");
            let Some(step) = &self.task.step else {
                return Check::require(false, of, &"set", right);
            };
            devices.check(name, step)?;
            let right = "is replaced by devices: leave it out";
            let plain = group.machine == MachineSettings::default();
            Check::require(plain, format!("population.{name}.machine"), &"set", right)?;
        }
        Ok(())
    }

    /// Criteria on measures of devices need devices: without them they have no value and cannot hold.
    pub(super) fn check_device_criteria(&self) -> Result<(), ScenarioError> {
        let of_devices = self.criteria.iter().enumerate();
        for (at, rule) in
            of_devices.filter(|(_, rule)| DEVICE_MEASURES.contains(&rule.measure.as_str()))
        {
            let (holds, right) = match &rule.group {
                None => (
                    self.has_devices(),
                    "is measured only with devices of a group: give one devices",
                ),
                Some(_) if rule.measure == ROUND_DURATION => {
                    (false, "is a measure of the whole market: leave out the criterion's group")
                }
                Some(name) => (
                    self.population.get(name).is_some_and(|group| group.devices.is_some()),
                    "is measured only in groups with devices: give the group devices",
                ),
            };
            Check::require(holds, format!("criteria[{at}].measure"), &rule.measure, right)?;
        }
        Ok(())
    }

    /// The scenario with members whose devices need no time.
    pub(super) fn without_devices(mut self) -> Self {
        self.task.step = None;
        for group in self.population.values_mut() {
            remove_devices(group);
        }
        self
    }
}

fn remove_devices(group: &mut Group) {
    if group.devices.take().is_some() {
        let [_, fastest] = MEGABITS;
        group.cost.per_device_hour = None;
        group.machine = MachineSettings {
            steps_per_second: fastest,
            megabits_per_second: fastest,
            ..MachineSettings::default()
        };
    }
}
