//! Executors compute the segments of leases beside the daemon: each is a process of this machine, or a job of a batch
//! system, on its own devices.
//!
//! ```text
//! the daemon ─▶ work folder ─▶ executor: segment after segment ─▶ states ─▶ the daemon: delivers each
//!      └─ allotment (pure): which devices compute which leases
//! ```
//!
//! An executor needs neither the wallet nor the market: what it computes is in its folder. It may be lost at any
//! moment; another one goes on behind the last state. Audits, traces of disputes and rulings are computed by the
//! daemon itself.

mod allotment;
mod backend;
mod execute;
#[cfg(test)]
mod executors_tests;
mod processes;
mod slurm;
#[cfg(test)]
pub(super) mod thread_backend;
mod work;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use florin_protocol::Digest;
use florin_scheduler::DeviceSet;

pub use backend::{
    ExecutorBackend, ExecutorCommand, ExecutorError, ExecutorStart, ExecutorState, executor_log,
    executor_log_end,
};
pub use execute::{ExecuteError, LoadedWork, write_failure};
pub use processes::{LAUNCHER_ARGUMENTS_MAX, PARENT_VARIABLE, ProcessBackend};
pub use slurm::{SBATCH_ARGUMENTS_MAX, SlurmBackend};

use super::event::LeaseEvent;
use crate::atomic_file::{self, FileError};
use allotment::{ExecutorChange, LeaseDemand};
pub(super) use work::{ExecutorWork, WorkFolder, WorkKind};

/// Most devices of one machine.
pub const MACHINE_DEVICES_MAX: u32 = allotment::MACHINE_DEVICES_MAX;
/// Most tasks of one job of a batch system.
pub const BATCH_DEVICES_MAX: u32 = 64;
/// The predicted time from the start of an executor to its first step, in milliseconds.
pub const EXECUTOR_START_MS: u64 = 5_000;
/// Longest accepted wait in the queue of a batch system, unless the policy has another, in milliseconds.
pub const QUEUE_MS: u64 = 10_000;
/// An executor that adds no segment for this many times the predicted one, and the time of some starts, is replaced.
const STALL_SEGMENTS: u64 = 3;
const STALL_STARTS: u64 = 4;
/// Most shapes of jobs whose times are remembered.
const SHAPES_MAX: usize = 256;
/// A wait in the queue refuses bids for this long behind it.
const QUEUE_MEMORY: Duration = Duration::from_secs(600);

/// The devices of executors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSupply {
    /// Devices of this machine.
    Machine {
        /// Their number, from 1 to [`MACHINE_DEVICES_MAX`].
        devices: u32,
        /// Whether a launcher starts executors on several devices.
        launches: bool,
    },
    /// Devices of a batch system, which has a queue of its own.
    Batch {
        /// Devices of each executor, from 1 to [`BATCH_DEVICES_MAX`].
        of_each: u32,
        /// Longest accepted wait in its queue, in milliseconds: while executors wait longer, the account does not bid.
        queue_ms: u64,
    },
}

/// A work that an executor computes, or will.
#[derive(Debug)]
struct HeldWork {
    folder: WorkFolder,
    kind: WorkKind,
    /// Smaller numbers came first.
    number: u64,
    /// The shape of the job: jobs that differ in the seed alone have one.
    shape: Digest,
    /// Steps that were left when the work was requested, and those of a segment.
    steps: u64,
    steps_of_segment: u32,
    handle: Option<String>,
    devices: DeviceSet,
    /// Asked to end behind its segment.
    is_ending: bool,
    /// It waits for its first device, or in a queue, since this moment.
    waits_since: Option<Instant>,
    /// It has ended: its states are read, then the folder is removed.
    ended: Option<String>,
    /// Lines of its file of times that were read.
    times_read: usize,
    /// Its last progress, since it runs.
    progress_at: Option<Instant>,
}

/// The executors of a daemon.
#[derive(Debug)]
pub(super) struct Executors {
    supply: DeviceSupply,
    backend: Box<dyn ExecutorBackend>,
    root: PathBuf,
    works: BTreeMap<Digest, HeldWork>,
    next: u64,
    /// Microseconds of a step by shape and devices.
    times: BTreeMap<Digest, BTreeMap<u32, u64>>,
    /// The last wait in a queue that was too long.
    waited_at: Option<Instant>,
    /// Whether an executor of several devices failed without a segment: each gets one device then.
    has_failed_launch: bool,
    events: VecDeque<LeaseEvent>,
}

/// A work as the daemon requests it.
#[derive(Debug)]
pub(super) struct RequestedWork<'a> {
    pub(super) work: ExecutorWork,
    pub(super) shape: Digest,
    /// Steps that are left.
    pub(super) steps: u64,
    /// The measured microseconds of a step on one device.
    pub(super) step_us: Option<u64>,
    /// Blobs by their digests.
    pub(super) blobs: &'a BTreeMap<Digest, Vec<u8>>,
    /// Segment, digest and bytes of the start.
    pub(super) start: Option<(u32, Digest, Vec<u8>)>,
}

impl Executors {
    /// Opens the folder of executors, and finds those that outlived an earlier daemon.
    ///
    /// # Errors
    /// [`ExecutorError`] if the backend cannot start executors.
    pub(super) fn open(
        supply: DeviceSupply,
        mut backend: Box<dyn ExecutorBackend>,
        root: PathBuf,
    ) -> Result<Self, ExecutorError> {
        backend.check()?;
        atomic_file::create_folder(&root)?;
        let (works, times, events) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        let mut found = Self {
            supply,
            backend,
            root,
            works,
            next: 0,
            times,
            waited_at: None,
            has_failed_launch: false,
            events,
        };
        found.find_earlier()?;
        Ok(found)
    }

    /// The devices.
    pub(super) const fn supply(&self) -> DeviceSupply {
        self.supply
    }

    fn find_earlier(&mut self) -> Result<(), FileError> {
        let failed = |error| FileError::new("read", &self.root, error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        for name in names {
            let number = name.rsplit_once('-').and_then(|(_, number)| number.parse().ok());
            self.next = self.next.max(number.unwrap_or(0_u64).saturating_add(1));
            let folder = WorkFolder::new(self.root.join(&name));
            if !self.adopt(&folder, number)? {
                folder.remove()?;
            }
        }
        Ok(())
    }

    /// Follows the executor of a folder again, if it may still run. One without a handle is cancelled.
    fn adopt(&mut self, folder: &WorkFolder, number: Option<u64>) -> Result<bool, FileError> {
        if !self.backend.outlives_daemon() {
            return Ok(false);
        }
        let (work, handle) = (folder.work().unwrap_or_default(), folder.handle()?);
        let (Some(work), Some(handle), Some(number)) = (work, handle, number) else {
            if let Err(error) = self.backend.cancel_by_name(&name_of(folder.path())) {
                tracing::warn!(%error, "an executor of an earlier run may still run");
            }
            return Ok(false);
        };
        let order = work.order.id();
        let held = HeldWork {
            folder: folder.clone(),
            kind: work.kind,
            number,
            shape: shape(&work),
            steps: work.order.steps_before(work.order.segments),
            steps_of_segment: work.order.steps,
            handle: Some(handle),
            devices: DeviceSet::default(),
            is_ending: false,
            waits_since: None,
            ended: None,
            times_read: 0,
            progress_at: None,
        };
        match self.works.insert(order, held) {
            // Two works of one order: the older one goes.
            Some(older) => {
                self.end(&older);
                older.folder.remove()?;
                Ok(true)
            }
            None => Ok(true),
        }
    }

    /// Whether an order has a work, which is not over.
    pub(super) fn has_work(&self, order: Digest) -> bool {
        self.works.contains_key(&order)
    }

    /// Requests a work: an executor starts as soon as it has devices.
    ///
    /// # Errors
    /// [`FileError`].
    pub(super) fn request(&mut self, requested: RequestedWork<'_>) -> Result<(), FileError> {
        let RequestedWork { work, shape, steps, step_us, blobs, start } = requested;
        let (order, number) = (work.order.id(), self.next);
        self.next = self.next.saturating_add(1);
        let folder = WorkFolder::new(self.root.join(format!("florin-{}-{number}", order.short())));
        folder.remove()?;
        for (digest, bytes) in blobs {
            folder.write_blob(*digest, bytes)?;
        }
        if let Some((segment, digest, bytes)) = start {
            folder.states().write_state(segment, digest, &bytes)?;
        }
        folder.write_work(&work)?;
        if let Some(us) = step_us {
            self.remember(shape, 1, us);
        }
        let held = HeldWork {
            folder,
            kind: work.kind,
            number,
            shape,
            steps,
            steps_of_segment: work.order.steps,
            handle: None,
            devices: DeviceSet::default(),
            is_ending: false,
            waits_since: Some(Instant::now()),
            ended: None,
            times_read: 0,
            progress_at: None,
        };
        self.works.insert(order, held);
        Ok(())
    }

    /// The folder of an order's work.
    pub(super) fn folder(&self, order: Digest) -> Option<&WorkFolder> {
        self.works.get(&order).map(|held| &held.folder)
    }

    /// Ends the work of an order whose executor has ended; its states were read. Returns the measured time of a step.
    ///
    /// # Errors
    /// [`ExecutorError::Failed`] if it ended with an error, or without a result.
    pub(super) fn take_ended(&mut self, order: Digest) -> Result<Option<u64>, ExecutorError> {
        let is_ended = self.works.get(&order).is_some_and(|held| held.ended.is_some());
        let Some(held) = self.works.remove(&order).filter(|_| is_ended) else { return Ok(None) };
        let result = held.folder.result();
        held.folder.remove()?;
        let has_result = matches!(&result, Ok(Some(work::ExecutorResult { error: None, .. })));
        if held.devices.len() > 1 && held.times_read == 0 && !has_result {
            let devices = held.devices.len();
            tracing::warn!(
                devices,
                "an executor of several devices failed: each gets one from now on"
            );
            self.has_failed_launch = true;
        }
        match result? {
            Some(work::ExecutorResult { error: None, step_us }) => Ok(step_us),
            Some(work::ExecutorResult { error: Some((code, why)), .. }) => {
                Err(ExecutorError::Failed { code, why })
            }
            None => {
                let why = held.ended.filter(|log| !log.is_empty());
                let why = why.unwrap_or_else(|| "it was ended from outside".to_owned());
                Err(ExecutorError::Failed { code: "EXECUTOR_LOST".to_owned(), why })
            }
        }
    }

    /// Whether the executor of an order has ended.
    pub(super) fn is_ended(&self, order: Digest) -> bool {
        self.works.get(&order).is_some_and(|held| held.ended.is_some())
    }

    /// Ends the works of all orders but those that `needs` keeps.
    pub(super) fn retain(&mut self, needs: impl Fn(Digest, WorkKind) -> bool) {
        let over = self.works.iter().filter(|(order, held)| !needs(**order, held.kind));
        let over: Vec<Digest> = over.map(|(order, _)| *order).collect();
        for order in over {
            if let Some(held) = self.works.remove(&order) {
                self.end(&held);
                if let Err(error) = held.folder.remove() {
                    tracing::warn!(%error, "the folder of an executor stays");
                }
            }
        }
    }

    /// Ends all executors.
    pub(super) fn end_all(&mut self) {
        self.retain(|_, _| false);
    }

    fn end(&mut self, held: &HeldWork) {
        let Some(handle) = &held.handle else { return };
        if let Err(error) = self.backend.cancel(handle) {
            tracing::warn!(%error, handle, "an executor may still run");
        }
    }

    /// Looks at all executors, then starts and ends some. Returns what happened.
    pub(super) fn turn(&mut self) -> Vec<LeaseEvent> {
        for order in self.works.keys().copied().collect::<Vec<_>>() {
            self.look(order);
        }
        match self.supply {
            DeviceSupply::Machine { devices, launches } => self.allot(devices, launches),
            DeviceSupply::Batch { of_each, .. } => {
                let waiting = self.works.iter().filter(|(_, held)| held.is_waiting());
                let waiting: Vec<Digest> = waiting.map(|(order, _)| *order).collect();
                for order in waiting {
                    self.start(order, DeviceSet::first(of_each));
                }
            }
        }
        std::mem::take(&mut self.events).into()
    }

    /// Reads the state of an executor and the times of its segments.
    fn look(&mut self, order: Digest) {
        let Some(held) = self.works.get_mut(&order) else { return };
        let Some(handle) = held.handle.clone().filter(|_| held.ended.is_none()) else { return };
        let times = held.folder.times();
        let fresh: Vec<(u32, u64)> = times.iter().skip(held.times_read).copied().collect();
        held.times_read = times.len();
        let state = self.backend.state(&handle, held.folder.path());
        match state {
            Ok(ExecutorState::Waiting(reason)) => {
                let since = *held.waits_since.get_or_insert_with(Instant::now);
                if let DeviceSupply::Batch { queue_ms, .. } = self.supply
                    && since.elapsed() > Duration::from_millis(queue_ms)
                {
                    self.waited_at = Some(Instant::now());
                    tracing::debug!(reason, "an executor waits in the queue");
                }
            }
            Ok(ExecutorState::Running) => {
                held.waits_since = None;
                if !fresh.is_empty() || held.progress_at.is_none() {
                    held.progress_at = Some(Instant::now());
                }
            }
            Ok(ExecutorState::Ended(log)) => held.ended = Some(log),
            Err(error) => tracing::warn!(%error, "the state of an executor is not known"),
        }
        let shape = held.shape;
        for (devices, us) in fresh {
            self.remember(shape, devices, us);
        }
        if self.is_stalled(order) {
            tracing::warn!(order = %order.short(), "an executor adds no segment: it is replaced");
            self.interrupt(order);
        }
    }

    /// Whether an executor runs, and has added no segment for much longer than predicted.
    fn is_stalled(&self, order: Digest) -> bool {
        let Some(held) = self.works.get(&order).filter(|held| held.ended.is_none()) else {
            return false;
        };
        let times = self.times.get(&held.shape);
        let Some((Some(slowest), at)) =
            times.map(|times| times.values().max()).zip(held.progress_at)
        else {
            return false;
        };
        let segment_us = slowest.saturating_mul(held.steps_of_segment.into());
        let segments_ms = segment_us.div_ceil(1_000).saturating_mul(STALL_SEGMENTS);
        let starts_ms = EXECUTOR_START_MS.saturating_mul(STALL_STARTS);
        at.elapsed() > Duration::from_millis(segments_ms.saturating_add(starts_ms))
    }

    /// Remembers the time of a step; the newest one counts.
    fn remember(&mut self, shape: Digest, devices: u32, us: u64) {
        if self.times.len() >= SHAPES_MAX && !self.times.contains_key(&shape) {
            self.times.clear();
        }
        self.times.entry(shape).or_default().insert(devices, us);
    }

    fn allot(&mut self, devices: u32, launches: bool) {
        let launches = launches && !self.has_failed_launch;
        let demand = |held: &HeldWork| {
            let mut times = self.times.get(&held.shape).cloned().unwrap_or_default();
            times.entry(1).or_insert(1_000_000);
            LeaseDemand {
                number: held.number,
                times,
                steps: held.steps_left(),
                devices: held.devices,
                is_ending: held.is_ending || held.ended.is_some(),
            }
        };
        let demands: Vec<LeaseDemand> = self.works.values().map(demand).collect();
        for change in allotment::changes((devices, launches), &demands, EXECUTOR_START_MS) {
            let (ExecutorChange::Start(number, _)
            | ExecutorChange::Grow(number)
            | ExecutorChange::Shrink(number)) = change;
            let mut all = self.works.iter();
            let Some(order) =
                all.find_map(|(order, held)| (held.number == number).then_some(*order))
            else {
                continue;
            };
            match change {
                ExecutorChange::Start(_, devices) => self.start(order, devices),
                ExecutorChange::Grow(_) => self.ask_to_stop(order),
                ExecutorChange::Shrink(_) => self.interrupt(order),
            }
        }
    }

    fn start(&mut self, order: Digest, devices: DeviceSet) {
        let Some(held) = self.works.get_mut(&order).filter(|held| held.is_waiting()) else {
            return;
        };
        let numbers: Vec<u32> = devices.iter().collect();
        let name = name_of(held.folder.path());
        let start = ExecutorStart { name: &name, folder: held.folder.path(), devices: &numbers };
        let started = self.backend.start(&start);
        let started = started.and_then(|handle| {
            held.folder.write_handle(&handle)?;
            Ok(handle)
        });
        match started {
            Ok(handle) => {
                let count = devices.len();
                let backend = self.backend.name();
                let event = LeaseEvent::ExecutorStarted {
                    order,
                    backend,
                    handle: handle.clone(),
                    devices: count,
                };
                self.events.push_back(event);
                (held.handle, held.devices) = (Some(handle), devices);
                held.waits_since = Some(Instant::now());
            }
            Err(error) => (held.ended, held.devices) = (Some(error.to_string()), devices),
        }
    }

    fn ask_to_stop(&mut self, order: Digest) {
        let Some(held) = self.works.get_mut(&order) else { return };
        match held.folder.ask_to_stop() {
            Ok(()) => held.is_ending = true,
            Err(error) => tracing::warn!(%error, "an executor cannot be asked to stop"),
        }
    }

    /// Ends an executor at once: its states stay, and the order requests another one.
    fn interrupt(&mut self, order: Digest) {
        let Some(held) = self.works.get_mut(&order) else { return };
        let Some(handle) = held.handle.clone() else { return };
        match self.backend.cancel(&handle) {
            Ok(()) => {
                let result = work::ExecutorResult::default();
                if let Err(error) = held.folder.write_result(&result) {
                    tracing::warn!(%error, "the folder of an executor cannot be written");
                }
                held.ended = Some(String::new());
            }
            Err(error) => tracing::warn!(%error, "an executor may still run"),
        }
    }

    /// Why the account does not bid now; `None` if executors start in time.
    pub(super) fn refuse_start(&self) -> Option<String> {
        let DeviceSupply::Batch { queue_ms, .. } = self.supply else { return None };
        let is_recent = |at: Instant| at.elapsed() < QUEUE_MEMORY;
        self.waited_at.filter(|at| is_recent(*at)).map(|_| {
            format!("an executor waited for more than {queue_ms} ms in the queue, and queue_max is {queue_ms} ms")
        })
    }
}

impl Drop for Executors {
    fn drop(&mut self) {
        if !self.backend.outlives_daemon() {
            self.end_all();
        }
    }
}

impl HeldWork {
    /// Steps that are left, by the segments that were computed.
    fn steps_left(&self) -> u64 {
        let segments = u64::try_from(self.times_read).unwrap_or(u64::MAX);
        let done = segments.saturating_mul(self.steps_of_segment.into());
        self.steps.saturating_sub(done).max(1)
    }

    fn is_waiting(&self) -> bool {
        self.handle.is_none() && self.ended.is_none()
    }
}

/// The shape of a job: jobs that differ in the seed alone have one.
pub(super) fn shape(work: &ExecutorWork) -> Digest {
    use florin_protocol::Canonical as _;
    florin_compute::ComputeJob { seed: 0, ..work.job.clone() }.digest()
}

/// The name of an executor: that of its folder.
fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Checks the devices of executors.
///
/// # Errors
/// The key and the reason.
pub(super) fn check_supply(
    supply: DeviceSupply,
    orders_max: Option<u32>,
) -> Result<(), (&'static str, String)> {
    match supply {
        DeviceSupply::Machine { devices, .. } => {
            if !(1..=MACHINE_DEVICES_MAX).contains(&devices) {
                let why = format!("{devices}: use 1 to {MACHINE_DEVICES_MAX} devices");
                return Err(("executors.devices", why));
            }
            if let Some(orders) = orders_max.filter(|orders| *orders > devices) {
                let why = format!(
                    "{orders}: each lease needs a device, and executors.devices is {devices}"
                );
                return Err(("bid.orders_max", why));
            }
        }
        DeviceSupply::Batch { of_each, queue_ms } => {
            if !(1..=BATCH_DEVICES_MAX).contains(&of_each) {
                let why = format!("{of_each}: use 1 to {BATCH_DEVICES_MAX} devices");
                return Err(("executors.devices", why));
            }
            if queue_ms == 0 {
                return Err(("executors.queue_max", "0: use more than 0".to_owned()));
            }
        }
    }
    Ok(())
}
