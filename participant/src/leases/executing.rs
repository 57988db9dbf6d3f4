//! The daemon's side of executors: what they compute, and the states that they have computed.

use std::collections::BTreeMap;

use florin_compute::{ComputeJob, Phase};
use florin_protocol::Digest;

use super::LeaseDaemon;
use super::error::LeaseServeError;
use super::executors::{DeviceSupply, ExecutorWork, RequestedWork, WorkKind, shape};
use super::followed::FollowedOrder;
use super::store::StoredState;

/// Time between two looks at the states of an executor, in milliseconds.
const STATES_POLL_MS: u64 = 50;

impl LeaseDaemon<'_, '_> {
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
                (WorkKind::Segments, _) => is_provider,
            }
        });
        for event in executors.turn() {
            self.emit(&event);
        }
    }

    /// Whether a step is measured by executors: the devices of a batch system are not those of this machine.
    pub(super) fn measures_by_executors(&self) -> bool {
        let supply = self.executors.as_ref().map(super::executors::Executors::supply);
        matches!(supply, Some(DeviceSupply::Batch { .. }))
    }

    /// The microseconds of a step on the devices of an executor; `None` while it is measured.
    pub(super) fn measured_by_executor(
        &mut self,
        order: &mut FollowedOrder,
        job: &ComputeJob,
    ) -> Result<Option<u64>, LeaseServeError> {
        let id = order.view.id;
        let work = ExecutorWork {
            order: order.view.order.clone(),
            job: job.clone(),
            kind: WorkKind::Measure,
        };
        let shape = shape(&work);
        if let Some(us) = self.measured.get(&shape) {
            return Ok(Some(*us));
        }
        let Some(executors) = &mut self.executors else { return Ok(None) };
        if executors.is_ended(id) {
            let Some(us) = executors.take_ended(id)? else { return Ok(None) };
            self.remember_measured(shape, us);
            return Ok(Some(us));
        }
        if !executors.has_work(id) {
            let blobs = self.work_blobs(order, &work)?;
            let steps = 1;
            let requested =
                RequestedWork { work, shape, steps, step_us: None, blobs: &blobs, start: None };
            if let Some(executors) = &mut self.executors {
                executors.request(requested)?;
            }
        }
        Ok(None)
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
            if executors.is_ended(id) {
                executors.take_ended(id)?;
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
                continue;
            }
            let stored = order.folder.write_state(segment, state.digest, &bytes)?;
            state.remove()?;
            order.states.get_or_insert_default().insert(segment, stored);
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
        let work = ExecutorWork { order: offered, job, kind: WorkKind::Segments };
        let digest = Digest(start.state().digest());
        let bytes = start.state().to_bytes()?;
        if segment == 0 {
            // The first state is stored like any other, so that it can be served.
            let stored = order.folder.write_state(0, digest, &bytes)?;
            order.states.get_or_insert_default().insert(0, stored);
        }
        let end = work.order.steps_before(work.order.segments).min(work.job.steps());
        let steps = end.saturating_sub(start.state().step());
        let blobs = self.work_blobs(order, &work)?;
        let shape = shape(&work);
        let step_us = self.measured.get(&shape).copied();
        let start = Some((segment, digest, bytes));
        let requested = RequestedWork { work, shape, steps, step_us, blobs: &blobs, start };
        if let Some(executors) = &mut self.executors {
            executors.request(requested)?;
        }
        Ok(())
    }

    /// The blobs of a work. A measurement has rows of zeros.
    fn work_blobs(
        &self,
        order: &FollowedOrder,
        work: &ExecutorWork,
    ) -> Result<BTreeMap<Digest, Vec<u8>>, LeaseServeError> {
        let graph = &work.job.graph;
        let rows = match work.kind {
            WorkKind::Measure => None,
            WorkKind::Segments => Some(work.job.rows),
        };
        let wanted = [Some(graph.graph), graph.frozen, Some(work.job.start), rows];
        let mut blobs = BTreeMap::new();
        for blob in wanted.into_iter().flatten() {
            let (client, wallet) = (self.context.client, self.context.wallet);
            let bytes = client.order_blob(&order.view.order, blob.digest, blob.bytes, wallet)?;
            blobs.insert(blob.digest, bytes);
        }
        Ok(blobs)
    }
}
