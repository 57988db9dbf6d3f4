//! The daemon's side of executors: what they compute, and the states that they have computed.

use std::path::{Path, PathBuf};

use florin_compute::{ComputeJob, Phase};
use florin_protocol::Digest;

use super::LeaseDaemon;
use super::bidding::Obstacle;
use super::error::LeaseServeError;
use super::executors::{
    DeviceSupply, EXECUTOR_START_MS, ExecutorBackend, ExecutorError, ExecutorWork, Executors,
    RequestedWork, STALLED, WorkKind, blob_name,
};
use super::followed::FollowedOrder;
use super::measuring::{job_shape, remember_step};
use super::policy::CARD_MARGIN_PERCENT;
use super::store::StoredState;
use super::turn::DOWNLOAD_BYTES_PER_MS;
use crate::atomic_file;

/// Time between two looks at the states of an executor, in milliseconds.
const STATES_POLL_MS: u64 = 50;
/// The wait behind the first executor that fails in a row, in milliseconds; it doubles with each.
const FAILED_WAIT_MS: u64 = 200;
/// Behind this many executors in a row that compute nothing, the daemon computes the lease itself.
const EXECUTOR_FAILURES_MAX: u32 = 3;
/// The job is read as often before the first step: by the daemon, and for the executor.
const DOWNLOADS: u64 = 2;

impl LeaseDaemon<'_, '_> {
    /// Opens the executors of a backend on the devices of the policy. Without them the works of an earlier run end.
    pub(super) fn open_executors(
        &mut self,
        backend: Option<Box<dyn ExecutorBackend>>,
    ) -> Result<(), LeaseServeError> {
        let root = self.store.executors();
        let Some((supply, backend)) = self.config.policy.supply().zip(backend) else {
            return Ok(atomic_file::remove_folder(&root)?);
        };
        // Open deposits are served without executors, if it must be.
        let opened = match self.store.orders()?.is_empty() {
            true => Executors::open(supply, backend, root),
            false => Executors::open_unchecked(supply, backend, root),
        };
        self.executors = Some(opened?);
        Ok(())
    }

    /// Looks at the executors, and ends those of leases that need none.
    pub(super) fn turn_executors(&mut self) {
        let Some(executors) = &mut self.executors else { return };
        let (orders, me) = (&self.orders, self.me);
        executors.retain(|id, kind| {
            let Some(order) = orders.get(&id) else { return false };
            // A record that was not read yet decides later.
            let Some(recorded) = &order.lease else { return true };
            let lease = recorded.lease();
            let is_provider = lease.award().is_some_and(|award| award.provider == me);
            match (kind, lease.phase().0) {
                (_, Phase::Over) => false,
                (WorkKind::Measure, phase) => phase == Phase::Bidding && order.roles.bids,
                (WorkKind::Segments, phase) => phase == Phase::Running && is_provider,
            }
        });
        for event in executors.turn() {
            self.emit(&event);
        }
    }

    /// Why an order is not bid for by executors now; `None` without executors, too.
    pub(super) fn executors_obstacle(&mut self) -> Option<Obstacle> {
        let executors = self.executors.as_mut()?;
        if !executors.is_available() {
            return Some(Obstacle::Awaited);
        }
        let refused = executors.refuse_start();
        if refused.is_some() {
            // The next bid needs a measurement that did not wait.
            self.measured_elsewhere.clear();
        }
        refused.map(Obstacle::Refused)
    }

    /// Whether the devices of executors are those of a batch system, and not of this machine.
    pub(super) fn is_batch(&self) -> bool {
        matches!(self.config.policy.executors, Some(DeviceSupply::Batch { .. }))
    }

    /// The predicted time from a request to the first step of an executor, in milliseconds.
    fn executor_start_ms(&self, job: &ComputeJob) -> u64 {
        let reading = job.bytes().div_ceil(DOWNLOAD_BYTES_PER_MS).saturating_mul(DOWNLOADS);
        let waiting = match self.config.policy.executors {
            Some(DeviceSupply::Batch { queue_ms, .. }) => queue_ms,
            Some(DeviceSupply::Machine { .. }) | None => 0,
        };
        EXECUTOR_START_MS.saturating_add(reading).saturating_add(waiting)
    }

    /// The microseconds of a step of a bid, and the time until the first step, by the daemon's own time of a step. An
    /// executor measures it on the devices of a batch system; on this machine the first one proves that executors work.
    pub(super) fn executor_step(
        &mut self,
        order: &mut FollowedOrder,
        own_us: u64,
    ) -> Result<Result<(u64, u64), Obstacle>, LeaseServeError> {
        if self.config.policy.executors.is_none() {
            return Ok(Ok((own_us, 0)));
        }
        let job = self.context.client.order_job(order.view.id, order.view.order.job)?;
        let start_ms = self.executor_start_ms(&job);
        let is_proven = self.executors.as_ref().is_none_or(Executors::is_proven);
        if is_proven && !(self.is_batch() && self.executors.is_some()) {
            return Ok(Ok((own_us, start_ms)));
        }
        let measured = super::bidding::reason(self.measured_by_executor(order, &job))?;
        Ok(measured.and_then(|us| match (us, self.is_batch()) {
            (None, _) => Err(Obstacle::Awaited),
            (Some(us), true) => Ok((us, start_ms)),
            (Some(us), false) => Ok((us.max(own_us), start_ms)),
        }))
    }

    /// The microseconds of a step on a device of an executor; `None` while it is measured.
    fn measured_by_executor(
        &mut self,
        order: &mut FollowedOrder,
        job: &ComputeJob,
    ) -> Result<Option<u64>, LeaseServeError> {
        let (id, offered) = (order.view.id, order.view.order.clone());
        let start_ms = self.executor_start_ms(job);
        let work = ExecutorWork::new(offered, job.clone(), WorkKind::Measure, start_ms)?;
        let shape = job_shape(&work.job);
        if let Some(us) = self.measured_elsewhere.get(&shape) {
            return Ok(Some(*us));
        }
        let Some(executors) = &mut self.executors else { return Ok(None) };
        if executors.is_ended(id) {
            let Some(us) = executors.take_ended(id)? else { return Ok(None) };
            remember_step(&mut self.measured_elsewhere, shape, us);
            return Ok(Some(us));
        }
        if !executors.has_work(id) && executors.may_measure() {
            let folder = self.store.temporary()?;
            let blobs = self.work_blobs(order, &work, folder.path())?;
            self.request(&RequestedWork {
                work,
                shape,
                steps: 1,
                step_us: None,
                blobs: &blobs,
                start: None,
            })?;
        }
        Ok(None)
    }

    fn request(&mut self, requested: &RequestedWork<'_>) -> Result<(), LeaseServeError> {
        if let Some(executors) = &mut self.executors {
            executors.request(requested)?;
        }
        Ok(())
    }

    /// Whether executors compute the states of an order: while its lease runs. A state that is lost behind that is
    /// computed by the daemon, whose devices are never all taken.
    pub(super) fn is_by_executor(&self, order: &FollowedOrder) -> bool {
        let phase = order.lease.as_ref().map(|recorded| recorded.lease().phase().0);
        let is_running = phase == Some(Phase::Running);
        self.executors.is_some() && is_running && order.executor_failures < EXECUTOR_FAILURES_MAX
    }

    /// The state at the start of a segment, or behind the last one, once an executor has computed it.
    pub(super) fn reach_by_executor(
        &mut self,
        order: &mut FollowedOrder,
        to: u32,
    ) -> Result<Option<StoredState>, LeaseServeError> {
        let id = order.view.id;
        self.import_states(order)?;
        if let Some(state) = order.states.as_ref().and_then(|states| states.get(&to)) {
            return Ok(Some(state.clone()));
        }
        if let Some(executors) = &mut self.executors {
            if executors.is_ended(id)
                && let Err(error) = executors.take_ended(id)
            {
                // Behind a queue that is too long the daemon is sooner.
                let is_late =
                    matches!(&error, ExecutorError::Failed { code, .. } if code == STALLED);
                if is_late && self.is_batch() {
                    order.executor_failures = EXECUTOR_FAILURES_MAX;
                } else {
                    count_failure(order);
                }
                return Err(error.into());
            }
            if executors.has_work(id) {
                order.wait(STATES_POLL_MS);
                return Ok(None);
            }
        }
        self.request_segments(order, to)?;
        Ok(None)
    }

    /// Moves the states of an executor into the folder of its order, once their bytes have their digests.
    fn import_states(&mut self, order: &mut FollowedOrder) -> Result<(), LeaseServeError> {
        let id = order.view.id;
        let folder = self.executors.as_ref().and_then(|executors| executors.folder(id)).cloned();
        let Some(folder) = folder else { return Ok(()) };
        let known = order.states.get_or_insert_default();
        let fresh = folder.states().states()?;
        let fresh = fresh.into_iter().filter(|(segment, _)| !known.contains_key(segment));
        let fresh: Vec<(u32, StoredState)> = fresh.collect();
        if fresh.is_empty() {
            return Ok(());
        }
        let job = self.context.client.order_job(id, order.view.order.job)?;
        for (segment, state) in fresh {
            let bytes = state.read()?;
            if let Err(error) = florin_work::job_state(&job, state.digest, &bytes) {
                tracing::warn!(segment, %error, "a state of an executor is damaged");
                state.remove()?;
                if let Some(executors) = &mut self.executors {
                    executors.condemn(id);
                }
                return Ok(());
            }
            let stored = order.folder.write_state(segment, state.digest, &bytes)?;
            state.remove()?;
            order.states.get_or_insert_default().insert(segment, stored);
            order.executor_failures = 0;
        }
        Ok(())
    }

    /// Requests an executor for all segments from the last state before one.
    fn request_segments(
        &mut self,
        order: &mut FollowedOrder,
        to: u32,
    ) -> Result<(), LeaseServeError> {
        self.turn.is_over = true;
        let (segment, start) = self.last_start(order, to)?;
        let offered = order.view.order.clone();
        let job = self.context.client.order_job(order.view.id, offered.job)?;
        let start_ms = self.executor_start_ms(&job);
        let work = ExecutorWork::new(offered, job, WorkKind::Segments, start_ms)?;
        let digest = Digest(start.state().digest());
        let bytes = start.state().to_bytes()?;
        if segment == 0 {
            // The first state is stored like any other, so that it can be served.
            let stored = order.folder.write_state(0, digest, &bytes)?;
            order.states.get_or_insert_default().insert(0, stored);
        }
        let end = work.order.steps_before(work.order.segments).min(work.job.steps());
        let blobs = self.work_blobs(order, &work, order.folder.path())?;
        // A bid states a margin above the measured time, for as many leases as may share the device.
        let bid = order.folder.bid()?.map(|bid| bid.times.useful_us());
        let stated = CARD_MARGIN_PERCENT.saturating_mul(self.config.policy.sharing().into());
        let step_us = bid.map(|us| (us.saturating_mul(100) / stated.max(1)).max(1));
        self.request(&RequestedWork {
            shape: job_shape(&work.job),
            steps: end.saturating_sub(start.state().step()),
            step_us,
            blobs: &blobs,
            start: Some((segment, digest, bytes)),
            work,
        })
    }

    /// The files of the blobs of a work in a folder; those that are missing are fetched. A measurement has rows of
    /// zeros.
    fn work_blobs(
        &self,
        order: &FollowedOrder,
        work: &ExecutorWork,
        folder: &Path,
    ) -> Result<Vec<(Digest, PathBuf)>, LeaseServeError> {
        let graph = &work.job.graph;
        let rows = match work.kind {
            WorkKind::Measure => None,
            WorkKind::Segments => Some(work.job.rows),
        };
        let wanted = [Some(graph.graph), graph.frozen, Some(work.job.start), rows];
        let mut blobs = Vec::new();
        for blob in wanted.into_iter().flatten() {
            let path = folder.join(blob_name(blob.digest));
            if !path.exists() {
                let (client, wallet) = (self.context.client, self.context.wallet);
                let offered = &order.view.order;
                let bytes = client.order_blob(offered, blob.digest, blob.bytes, wallet)?;
                atomic_file::write_atomically(&path, &bytes)?;
            }
            blobs.push((blob.digest, path));
        }
        Ok(blobs)
    }
}

/// Counts an executor that computed nothing: the next one waits longer, and the daemon computes behind the last.
fn count_failure(order: &mut FollowedOrder) {
    let doubled = FAILED_WAIT_MS.checked_shl(order.executor_failures).unwrap_or(u64::MAX);
    order.retry_ms = order.retry_ms.max(doubled);
    order.executor_failures = order.executor_failures.saturating_add(1);
    if order.executor_failures == EXECUTOR_FAILURES_MAX {
        tracing::warn!(order = %order.view.id.short(), "executors fail: the daemon computes the lease itself");
    }
}
