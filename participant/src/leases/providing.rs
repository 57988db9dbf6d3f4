//! The provider of a lease: it computes segments, delivers their leaves, serves starts and opens
//! leaves.

use florin_compute::{ComputeAction, Phase, StateUpload, segment_leaf};
use florin_learning::checkpoint::TrainingState;
use florin_protocol::Digest;
use florin_work::SegmentStart;

use super::decide::delivered;
use super::error::LeaseServeError;
use super::event::LeaseEvent;
use super::followed::{FollowedOrder, OrderVisit};
use super::secrets::Commitment;
use super::store::StoredState;
use super::{LeaseDaemon, LeaseExperiment};

/// A provider computes the traces of drawn segments before a dispute, if an answer has less time
/// than this many times the predicted time of a segment.
const TRACE_MARGIN: u64 = 4;

fn digest(state: &TrainingState) -> Digest {
    Digest(state.digest())
}

impl LeaseDaemon<'_, '_> {
    /// Delivers the next segment, once its end is computed.
    pub(super) fn deliver(
        &mut self,
        order: &mut FollowedOrder,
        segment: u32,
    ) -> Result<OrderVisit, LeaseServeError> {
        let Some(end) = self.reach(order, segment.saturating_add(1))? else {
            return Ok(self.unreached(order));
        };
        self.leave_checkpoints(order, segment);
        let id = order.view.id;
        let leaf = segment_leaf(id, self.me, segment, self.secrets.leaf(id, segment, end.digest));
        self.act(order, ComputeAction::Deliver { segment, leaf })?;
        self.summary.segments = self.summary.segments.saturating_add(1);
        let of = order.view.order.segments;
        self.emit(&LeaseEvent::SegmentDelivered { order: id, segment, of });
        Ok(OrderVisit::Acted)
    }

    /// Uploads the start of a drawn segment, and serves it.
    pub(super) fn serve_start(
        &mut self,
        order: &mut FollowedOrder,
        segment: u32,
    ) -> Result<OrderVisit, LeaseServeError> {
        let Some(start) = self.reach(order, segment)? else { return Ok(self.unreached(order)) };
        if !self.upload(order, &start)? {
            return Ok(OrderVisit::Acted);
        }
        self.act(order, ComputeAction::Serve { segment, start: start.digest })?;
        self.emit(&LeaseEvent::StartServed { order: order.view.id, segment });
        Ok(OrderVisit::Acted)
    }

    /// Opens the leaf of a segment. Behind the last delivered one is the result, which is uploaded
    /// before.
    pub(super) fn open_leaf(
        &mut self,
        order: &mut FollowedOrder,
        segment: u32,
    ) -> Result<OrderVisit, LeaseServeError> {
        let after = segment.saturating_add(1);
        let Some(end) = self.reach(order, after)? else { return Ok(self.unreached(order)) };
        let is_result = after == delivered(order.lease()?.lease());
        if is_result && !self.upload(order, &end)? {
            return Ok(OrderVisit::Acted);
        }
        let id = order.view.id;
        let before = segment.checked_sub(1).map(Commitment::Leaf);
        let salt_before = before.map_or_else(Digest::default, |leaf| self.secrets.salt(id, leaf));
        let secret = self.secrets.leaf(id, segment, end.digest);
        self.act(order, ComputeAction::OpenLeaf { segment, secret, salt_before })?;
        self.emit(&LeaseEvent::LeafOpened { order: id, segment });
        Ok(OrderVisit::Acted)
    }

    /// Computes the trace of a drawn segment before a dispute, if an answer has little time.
    pub(super) fn prepare_trace(
        &mut self,
        order: &mut FollowedOrder,
    ) -> Result<OrderVisit, LeaseServeError> {
        let lease = order.lease()?.lease();
        let is_waiting = matches!(lease.phase().0, Phase::Auditing | Phase::Opening);
        let own = lease.award().filter(|award| award.provider == self.me && is_waiting);
        let Some(award) = own else { return Ok(OrderVisit::Idle) };
        let steps = u64::from(lease.order().steps);
        let segment_ms = award.step_us.saturating_mul(steps).div_ceil(1_000);
        // The devices of a batch system are faster than the daemon, which answers.
        let has_time = lease.order().windows.answer >= segment_ms.saturating_mul(TRACE_MARGIN);
        if has_time && !self.is_batch() {
            return Ok(OrderVisit::Idle);
        }
        let drawn: Vec<(u32, Option<Digest>)> =
            lease.audits().iter().map(|audit| (audit.segment, audit.start)).collect();
        for (segment, start) in drawn {
            if let Some(start) = start.filter(|_| !order.folder.has_trace(segment)) {
                self.trace(order, segment, start)?;
                return Ok(OrderVisit::Acted);
            }
        }
        Ok(OrderVisit::Idle)
    }

    /// Uploads a state with the signature of the wallet. Returns false for a file that is damaged: it
    /// is removed, and the next turn computes the state again.
    fn upload(
        &mut self,
        order: &mut FollowedOrder,
        stored: &StoredState,
    ) -> Result<bool, LeaseServeError> {
        self.load(order)?;
        let training = order.training.as_ref().ok_or(LeaseServeError::NoLease)?;
        let bytes = stored.read().unwrap_or_default();
        if training.state(stored.digest, &bytes).is_err() {
            tracing::warn!("a stored state is damaged: computing it again");
            (order.states, order.current) = (None, None);
            stored.remove()?;
            return Ok(false);
        }
        self.turn.is_over = true;
        self.send_state(order, stored.digest, &bytes)?;
        Ok(true)
    }

    /// Uploads the bytes of a state with the signature of the wallet.
    pub(super) fn send_state(
        &self,
        order: &FollowedOrder,
        state: Digest,
        bytes: &[u8],
    ) -> Result<(), LeaseServeError> {
        let client = self.context.client;
        client.check_confidential(order.view.order.data_class)?;
        let upload = StateUpload { order: order.view.id, by: self.me, state };
        let signature = upload.sign(order.view.order.market, self.context.wallet)?;
        Ok(client.put_state(&upload, &signature, bytes)?)
    }

    /// A visit that has not reached a state: the daemon has computed a part, or waits for an executor.
    fn unreached(&self, order: &FollowedOrder) -> OrderVisit {
        match self.is_by_executor(order) {
            true => OrderVisit::Idle,
            false => OrderVisit::Acted,
        }
    }

    /// The state at the start of a segment, or at the end of the last one. If it is not on disk,
    /// computes one segment towards it, from the last state before it: the next call continues.
    pub(super) fn reach(
        &mut self,
        order: &mut FollowedOrder,
        to: u32,
    ) -> Result<Option<StoredState>, LeaseServeError> {
        if order.states.is_none() {
            order.states = Some(order.folder.states()?);
        }
        let known = order.states.as_ref();
        if let Some(state) = known.and_then(|states| states.get(&to)) {
            return Ok(Some(state.clone()));
        }
        if self.is_by_executor(order) {
            return self.reach_by_executor(order, to);
        }
        let (from, start) = self.last_start(order, to)?;
        // The first state is written like any other, so that it can be served.
        let is_first_missing = from == 0 && known_state(order, 0).is_none();
        let (segment, end) = match is_first_missing {
            true => (0, start.state().clone()),
            false => (from.saturating_add(1), self.end_of_segment(order, from, &start)?),
        };
        let stored = order.folder.write_state(segment, digest(&end), &end.to_bytes()?)?;
        let next = if is_first_missing { start } else { start.next(end) };
        order.current = Some((segment, next));
        if let Some(states) = &mut order.states {
            states.insert(segment, stored.clone());
        }
        Ok((segment == to).then_some(stored))
    }

    /// The last state before a segment's start, with its segment: from memory, from disk, or the
    /// first one of the order. A file that is no such state is removed.
    pub(super) fn last_start(
        &mut self,
        order: &mut FollowedOrder,
        to: u32,
    ) -> Result<(u32, SegmentStart), LeaseServeError> {
        self.load(order)?;
        let on_disk = order.states.iter().flat_map(|states| states.range(..to)).next_back();
        let last = on_disk.map(|(segment, state)| (*segment, state.clone()));
        if let Some((segment, start)) = &order.current
            && *segment < to
            && last.as_ref().is_none_or(|(last, _)| last <= segment)
        {
            return Ok((*segment, start.clone()));
        }
        let Some((segment, stored)) = last else { return Ok((0, self.first_start(order)?)) };
        let read = match (&order.training, stored.read()) {
            (Some(training), Ok(bytes)) => training.start(segment, stored.digest, &bytes).ok(),
            _ => None,
        };
        match read {
            Some(start) => Ok((segment, start)),
            None => {
                tracing::warn!(segment, "a stored state cannot be read: computing it again");
                stored.remove()?;
                order.states = Some(order.folder.states()?);
                self.last_start(order, to)
            }
        }
    }

    /// The state at the end of a segment, as this provider computes it.
    fn end_of_segment(
        &mut self,
        order: &FollowedOrder,
        segment: u32,
        start: &SegmentStart,
    ) -> Result<TrainingState, LeaseServeError> {
        self.turn.is_over = true;
        if self.is_fake(segment) {
            let skipped = self.skipped(order, start);
            return Ok(skipped.last().cloned().unwrap_or_else(|| start.state().clone()));
        }
        let training = order.training.as_ref().ok_or(LeaseServeError::NoLease)?;
        Ok(training.end_of_segment(self.context.engine, start)?)
    }

    /// The states after each step of a segment, as this account computes it: from disk, or computed
    /// again.
    pub(super) fn trace(
        &mut self,
        order: &mut FollowedOrder,
        segment: u32,
        start: Digest,
    ) -> Result<Vec<Digest>, LeaseServeError> {
        if let Some(trace) = order.folder.trace(segment)? {
            return Ok(trace);
        }
        self.turn.is_over = true;
        self.load(order)?;
        let training = order.training.as_ref().ok_or(LeaseServeError::NoLease)?;
        let own = known_state(order, segment).filter(|state| state.digest == start);
        let own = own.and_then(|state| training.start(segment, start, &state.read().ok()?).ok());
        let start = match own {
            Some(own) => own,
            None => {
                let bytes = self.state_bytes(&order.view.order, start)?;
                training.start(segment, start, &bytes)?
            }
        };
        let is_provider = order.lease()?.lease().sealed_bid(self.me).is_some();
        let trace = match is_provider && self.is_fake(segment) {
            true => {
                let mut trace: Vec<Digest> =
                    self.skipped(order, &start).iter().map(digest).collect();
                let last = trace.last().copied().unwrap_or_else(|| digest(start.state()));
                trace.resize(usize::try_from(order.view.order.steps).unwrap_or(0), last);
                trace
            }
            false => training.trace_of_segment(self.context.engine, &start)?,
        };
        order.folder.write_trace(segment, &trace)?;
        Ok(trace)
    }

    /// Whether the experiment does not train a segment.
    const fn is_fake(&self, segment: u32) -> bool {
        matches!(self.config.experiment, Some(LeaseExperiment::Lazy)) && segment % 2 == 1
    }

    /// The states of a segment whose steps are counted and not trained.
    fn skipped(&self, order: &FollowedOrder, start: &SegmentStart) -> Vec<TrainingState> {
        let from = start.state().step();
        let steps = u64::from(order.view.order.steps);
        let total = order.total_steps.unwrap_or(u64::MAX);
        let steps = total.saturating_sub(from).min(steps);
        let next = |state: &TrainingState| Some(state.without_next_step());
        let states = std::iter::successors(next(start.state()), next);
        states.take(usize::try_from(steps).unwrap_or(usize::MAX)).collect()
    }
}

fn known_state(order: &FollowedOrder, segment: u32) -> Option<StoredState> {
    order.states.as_ref()?.get(&segment).cloned()
}
