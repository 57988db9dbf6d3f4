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
mod held;
mod pairs;
mod processes;
mod slurm;
mod supply;
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
pub use pairs::DEVICE_LEASES_MAX;
pub use processes::{LAUNCHER_ARGUMENTS_MAX, PARENT_VARIABLE, ProcessBackend};
pub use slurm::{SBATCH_ARGUMENTS_MAX, SlurmBackend, refuse_argument};
pub use supply::{BATCH_DEVICES_MAX, DeviceSupply, MACHINE_DEVICES_MAX};

use super::event::LeaseEvent;
use super::measuring::MEASURED_SHAPES_MAX;
use crate::atomic_file::{self, FileError};
use allotment::{ExecutorChange, LeaseDemand, MachineDevices};
use held::HeldWork;
use pairs::PairTimes;
pub(super) use supply::check_supply;
pub(super) use work::{ExecutorWork, WorkFolder, WorkKind, blob_name};

/// The predicted time from the start of an executor to its first step, in milliseconds, beside reading its job.
pub const EXECUTOR_START_MS: u64 = 5_000;
/// Longest accepted wait in the queue of a batch system, unless the policy has another, in milliseconds.
pub const QUEUE_MS: u64 = 10_000;
/// The code of an executor that waited or ran for too long without a segment.
pub(super) const STALLED: &str = "EXECUTOR_STALLED";
/// The time of a step that was not measured, in microseconds.
const STEP_US_GUESS: u64 = 1_000_000;
/// Characters of a work's token in the name of its executor.
const NAME_TOKEN_CHARS: usize = 8;
/// A wait in the queue refuses bids for this long behind it.
const QUEUE_MEMORY: Duration = Duration::from_secs(600);

/// The executors of a daemon.
#[derive(Debug)]
pub(super) struct Executors {
    supply: DeviceSupply,
    backend: Box<dyn ExecutorBackend>,
    root: PathBuf,
    works: BTreeMap<Digest, HeldWork>,
    next: u64,
    /// Microseconds of a step by shape and devices, which no other lease shared.
    times: BTreeMap<Digest, BTreeMap<u32, u64>>,
    pairs: PairTimes,
    /// The devices on which the next executor of an order starts.
    granted: BTreeMap<Digest, u32>,
    /// The last wait in a queue that was too long.
    waited_at: Option<Instant>,
    /// Whether an executor of several devices failed without a segment: each gets one device then.
    has_failed_launch: bool,
    /// Whether an executor has computed something.
    is_proven: bool,
    events: VecDeque<LeaseEvent>,
}

/// A work as the daemon requests it.
#[derive(Debug)]
pub(super) struct RequestedWork<'a> {
    pub(super) work: ExecutorWork,
    pub(super) shape: Digest,
    /// Steps that are left.
    pub(super) steps: u64,
    /// The predicted microseconds of a step on one device.
    pub(super) step_us: Option<u64>,
    /// Files with blobs, by their digests: they are linked or copied.
    pub(super) blobs: &'a [(Digest, PathBuf)],
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
        Self::open_unchecked(supply, backend, root)
    }

    /// The same for a daemon with open deposits, which serves them without executors if it must.
    ///
    /// # Errors
    /// [`ExecutorError::File`].
    pub(super) fn open_unchecked(
        supply: DeviceSupply,
        backend: Box<dyn ExecutorBackend>,
        root: PathBuf,
    ) -> Result<Self, ExecutorError> {
        atomic_file::create_folder(&root)?;
        let (works, times, events) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        let mut found = Self {
            supply,
            backend,
            root,
            works,
            next: 0,
            times,
            pairs: PairTimes::default(),
            granted: BTreeMap::new(),
            waited_at: None,
            has_failed_launch: false,
            is_proven: false,
            events,
        };
        found.find_earlier()?;
        Ok(found)
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
        let held = HeldWork::adopted(folder.clone(), &work, number, handle);
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

    /// Whether a measurement may be requested: one at a time, and none beside a lease that waits for devices. Devices
    /// of a machine must be idle.
    pub(super) fn may_measure(&self) -> bool {
        let is_machine = matches!(self.supply, DeviceSupply::Machine { .. });
        let is_idle = self.works.values().all(|held| held.ended.is_some());
        let blocks = |held: &HeldWork| held.kind == WorkKind::Measure || held.waits_since.is_some();
        is_idle || !(is_machine || self.works.values().any(blocks))
    }

    /// Whether an executor has computed something in this run.
    pub(super) const fn is_proven(&self) -> bool {
        self.is_proven
    }

    /// Requests a work: an executor starts as soon as it has devices.
    ///
    /// # Errors
    /// [`FileError`].
    pub(super) fn request(&mut self, requested: &RequestedWork<'_>) -> Result<(), FileError> {
        let (order, number) = (requested.work.order.id(), self.next);
        self.next = self.next.saturating_add(1);
        // Daemons that share an account of a batch system have different names.
        let token: String = requested.work.token.chars().take(NAME_TOKEN_CHARS).collect();
        let name = format!("florin-{}-{token}-{number}", order.short());
        let folder = WorkFolder::new(self.root.join(name));
        folder.remove()?;
        if let Err(error) = fill(&folder, requested) {
            folder.remove()?;
            return Err(error);
        }
        if let Some(us) = requested.step_us {
            self.times_of(requested.shape).entry(1).or_insert(us);
        }
        self.works.insert(order, HeldWork::requested(folder, requested, number));
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
        if !self.is_ended(order) {
            return Ok(None);
        }
        let Some(held) = self.works.remove(&order) else { return Ok(None) };
        let result = held.folder.result();
        // It may have added one since the last look.
        let has_worked = held.times_read > 0 || !held.folder.times().is_empty();
        if self.backend.outlives_daemon() {
            self.end(&held);
        }
        held.folder.remove()?;
        let outcome = outcome(&held, result?, has_worked);
        self.is_proven |= has_worked || matches!(outcome, Ok(Some(_)));
        if held.devices.len() > 1 && !has_worked && outcome.is_err() && !self.has_failed_launch {
            tracing::warn!("an executor of several devices failed: each gets one from now on");
            self.has_failed_launch = true;
        }
        outcome
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
        let orders: Vec<Digest> = self.works.keys().copied().collect();
        let fresh: Vec<Vec<(u32, u64)>> = orders.iter().map(|order| self.look(*order)).collect();
        // Behind all looks: a neighbour may have ended.
        for (order, times) in orders.into_iter().zip(fresh) {
            self.record_times(order, times);
        }
        match self.supply {
            DeviceSupply::Machine { devices, launches, leases_of_each } => {
                let launches = launches && !self.has_failed_launch;
                self.allot(MachineDevices { count: devices, launches, leases_of_each });
            }
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

    /// The shape of another lease that has some of these devices of the machine.
    fn beside(&self, order: Digest, devices: DeviceSet) -> Option<Digest> {
        let beside = self.works.iter().find(|(other, held)| {
            **other != order && held.runs() && !held.devices.intersection(devices).is_empty()
        });
        beside.map(|(_, held)| held.shape)
    }

    /// Reads the state of an executor and the times of its segments, and returns those that are new.
    fn look(&mut self, order: Digest) -> Vec<(u32, u64)> {
        let is_batch = self.is_batch();
        let Some(held) = self.works.get_mut(&order) else { return Vec::new() };
        let Some(handle) = held.handle.clone().filter(|_| held.ended.is_none()) else {
            return Vec::new();
        };
        let times = held.folder.times();
        let fresh = times.get(held.times_read..).unwrap_or_default().to_vec();
        held.times_read = times.len();
        self.is_proven |= held.times_read > 0;
        if !fresh.is_empty() {
            held.progress_at = Some(Instant::now());
        }
        let mut stalled = None;
        match self.backend.state(&handle, held.folder.path()) {
            Ok(ExecutorState::Waiting(reason)) => {
                let since = *held.waits_since.get_or_insert_with(Instant::now);
                if let DeviceSupply::Batch { queue_ms, .. } = self.supply
                    && since.elapsed() > Duration::from_millis(queue_ms)
                {
                    self.waited_at = Some(Instant::now());
                    tracing::debug!(reason, "an executor waits in the queue");
                }
                stalled = held.is_late().then_some("it waited for a start for too long");
            }
            Ok(ExecutorState::Running) => {
                held.waits_since = None;
                held.progress_at.get_or_insert_with(Instant::now);
                let is_stalled = held.is_stalled(self.times.get(&held.shape), is_batch);
                stalled = is_stalled.then_some("it added no segment for too long");
            }
            Ok(ExecutorState::Ended(log)) => held.ended = Some(log),
            Err(error) => tracing::warn!(%error, "the state of an executor is not known"),
        }
        held.stalled = stalled;
        if let Some(why) = stalled {
            tracing::warn!(order = %order.short(), why, "an executor is replaced");
            self.interrupt(order);
        }
        fresh
    }

    /// Records the times of segments that had one neighbour, or none, from their beginning to their end.
    fn record_times(&mut self, order: Digest, fresh: Vec<(u32, u64)>) {
        let devices = self.works.get(&order).map(|held| held.devices).unwrap_or_default();
        let partner = self.beside(order, devices).filter(|_| !self.is_batch());
        let Some(held) = self.works.get_mut(&order) else { return };
        let shape = held.shape;
        if !held.had_partner(partner, !fresh.is_empty()) {
            return;
        }
        for (devices, us) in fresh {
            match partner {
                Some(other) => self.pairs.record(shape, other, us),
                None => {
                    self.times_of(shape).insert(devices, us);
                }
            }
        }
    }

    /// The times of a step of a shape; the newest of each count stays.
    fn times_of(&mut self, shape: Digest) -> &mut BTreeMap<u32, u64> {
        if self.times.len() >= MEASURED_SHAPES_MAX && !self.times.contains_key(&shape) {
            self.times.clear();
        }
        self.times.entry(shape).or_default()
    }

    const fn is_batch(&self) -> bool {
        matches!(self.supply, DeviceSupply::Batch { .. })
    }

    fn allot(&mut self, machine: MachineDevices) {
        let demand = |(order, held): (&Digest, &HeldWork)| {
            let mut times = self.times.get(&held.shape).cloned().unwrap_or_default();
            times.entry(1).or_insert(STEP_US_GUESS);
            LeaseDemand {
                number: held.number,
                times,
                steps: held.steps_left(),
                most: held.most_devices,
                granted: self.granted.get(order).copied(),
                devices: held.devices,
                is_ending: held.is_ending,
                shape: (held.kind == WorkKind::Segments).then_some(held.shape),
            }
        };
        let open = self.works.iter().filter(|(_, held)| held.ended.is_none());
        let demands: Vec<LeaseDemand> = open.map(demand).collect();
        for change in allotment::changes(machine, &demands, &self.pairs, EXECUTOR_START_MS) {
            let (ExecutorChange::Start(number, _)
            | ExecutorChange::Resize(number, _)
            | ExecutorChange::Interrupt(number)) = change;
            let mut all = self.works.iter();
            let Some(order) =
                all.find_map(|(order, held)| (held.number == number).then_some(*order))
            else {
                continue;
            };
            match change {
                ExecutorChange::Start(_, devices) => self.start(order, devices),
                ExecutorChange::Resize(_, count) => self.resize(order, count),
                ExecutorChange::Interrupt(_) => {
                    if let Some(held) = self.works.get_mut(&order) {
                        held.is_moved = true;
                    }
                    self.interrupt(order);
                }
            }
        }
    }

    fn start(&mut self, order: Digest, devices: DeviceSet) {
        let is_shared = !self.is_batch() && self.beside(order, devices).is_some();
        let Some(held) = self.works.get_mut(&order).filter(|held| held.is_waiting()) else {
            return;
        };
        let numbers: Vec<u32> = devices.iter().collect();
        let name = name_of(held.folder.path());
        let start = ExecutorStart { name: &name, folder: held.folder.path(), devices: &numbers };
        let started = self.backend.start(&start);
        let started = started.and_then(|handle| match held.folder.write_handle(&handle) {
            Ok(()) => Ok(handle),
            Err(error) => self.backend.cancel(&handle).and(Err(error.into())),
        });
        self.granted.remove(&order);
        match started {
            Ok(handle) => {
                let count = devices.len();
                let backend = self.backend.name();
                let event = LeaseEvent::ExecutorStarted {
                    order,
                    backend,
                    handle: handle.clone(),
                    devices: count,
                    is_shared,
                };
                self.events.push_back(event);
                (held.handle, held.devices) = (Some(handle), devices);
                held.waits_since = Some(Instant::now());
            }
            Err(error) => {
                // The system may have started it all the same.
                if self.backend.outlives_daemon()
                    && let Err(error) = self.backend.cancel_by_name(&name)
                {
                    tracing::warn!(%error, "an executor may still run");
                }
                (held.ended, held.devices) = (Some(error.to_string()), devices);
            }
        }
    }

    /// Asks an executor to end behind its segment; the next one starts on `count` devices.
    fn resize(&mut self, order: Digest, count: u32) {
        let Some(held) = self.works.get_mut(&order) else { return };
        match held.folder.ask_to_stop() {
            Ok(()) => {
                (held.is_ending, held.is_moved) = (true, true);
                self.granted.insert(order, count);
            }
            Err(error) => tracing::warn!(%error, "an executor cannot be asked to stop"),
        }
    }

    /// Ends an executor that wrote a state with other bytes than its digest.
    pub(super) fn condemn(&mut self, order: Digest) {
        if let Some(held) = self.works.get_mut(&order) {
            held.is_damaged = true;
        }
        self.interrupt(order);
    }

    /// Ends an executor at once: its states stay, and the order requests another one.
    fn interrupt(&mut self, order: Digest) {
        let Some(held) = self.works.get_mut(&order) else { return };
        let Some(handle) = held.handle.clone() else { return };
        match self.backend.cancel(&handle) {
            Ok(()) => {
                // An error that it has just written stays.
                let result = work::ExecutorResult::default();
                if let Ok(None) = held.folder.result()
                    && let Err(error) = held.folder.write_result(&result)
                {
                    tracing::warn!(%error, "the folder of an executor cannot be written");
                }
                held.ended = Some(String::new());
                self.granted.remove(&order);
            }
            Err(error) => tracing::warn!(%error, "an executor may still run"),
        }
    }

    /// Whether executors can be asked for now.
    pub(super) fn is_available(&mut self) -> bool {
        match self.backend.check() {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "executors cannot be started now");
                false
            }
        }
    }

    /// Why the account does not bid now; `None` if executors start in time.
    pub(super) fn refuse_start(&self) -> Option<String> {
        let DeviceSupply::Batch { queue_ms, .. } = self.supply else { return None };
        let is_recent = |at: Instant| at.elapsed() < QUEUE_MEMORY;
        self.waited_at.filter(|at| is_recent(*at)).map(|_| {
            format!("an executor waited in the queue for longer than queue_max, {queue_ms} ms")
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

/// The measured time of a step, or why an executor computed nothing.
fn outcome(
    held: &HeldWork,
    result: Option<work::ExecutorResult>,
    has_worked: bool,
) -> Result<Option<u64>, ExecutorError> {
    let failed =
        |code: &str, why: String| Err(ExecutorError::Failed { code: code.to_owned(), why });
    if held.is_damaged {
        return failed("EXECUTOR_DAMAGED", "a state has other bytes than its digest".to_owned());
    }
    if let Some(why) = held.stalled.filter(|_| !has_worked) {
        return failed(STALLED, why.to_owned());
    }
    match result {
        Some(work::ExecutorResult { error: Some((code, why)), .. }) => failed(&code, why),
        Some(work::ExecutorResult { error: None, step_us })
            if step_us.is_some() || has_worked || held.is_moved =>
        {
            Ok(step_us)
        }
        Some(_) => failed("EXECUTOR_LOST", "it ended without a segment".to_owned()),
        None => {
            let log = held.ended.clone().filter(|log| !log.is_empty());
            failed("EXECUTOR_LOST", log.unwrap_or_else(|| "it was ended from outside".to_owned()))
        }
    }
}

/// Writes the files of a work; that with the work itself is the last one.
fn fill(folder: &WorkFolder, requested: &RequestedWork<'_>) -> Result<(), FileError> {
    for (digest, path) in requested.blobs {
        folder.link_blob(*digest, path)?;
    }
    if let Some((segment, digest, bytes)) = &requested.start {
        folder.states().write_state(*segment, *digest, bytes)?;
    }
    folder.write_work(&requested.work)
}

/// The name of an executor: that of its folder.
fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
