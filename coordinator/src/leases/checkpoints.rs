//! Checkpoints: states that a provider leaves while it computes. They speak for it if it does not come back, and end with
//! the lease.

use std::sync::{MutexGuard, PoisonError};

use florin_compute::{
    Checkpoint, CheckpointUpload, LeaseError, LeaseRecord, Phase, RecordedAction, RecordedLease,
    Secret, StateUpload,
};
use florin_protocol::{Digest, ErrorCode, Rejection, Timestamp, blob_digest};
use florin_store::{BlobError, BlobWriter};

use super::arrival::read_state;
use super::hosted::HostedOrder;
use super::store::{StoredCheckpoint, StoredState};
use super::{LeaseHost, blob_rejection, log_unremoved, refused};

/// The longest time behind a deadline for which errors of the disk are waited for.
const DISK_PATIENCE_MS: u64 = 60_000;

impl LeaseHost {
    /// The most bytes of a checkpoint that an account may upload; `None` if it is stored.
    pub(crate) fn wanted_checkpoint(
        &self,
        upload: &CheckpointUpload,
    ) -> Result<Option<u64>, Rejection> {
        let all = self.state();
        let order = all.order(upload.order)?;
        order.wanted_checkpoint(upload)
    }

    /// Checks and stores the bytes of a checkpoint, in the order's own folder.
    pub(crate) fn take_checkpoint(
        &self,
        upload: &CheckpointUpload,
        mut writer: BlobWriter,
    ) -> Result<(), Rejection> {
        if self.wanted_checkpoint(upload)?.is_none() {
            return Ok(());
        }
        let CheckpointUpload { order: id, state, salt, .. } = *upload;
        let job = self.job(id)?;
        let (bytes, step) = read_state(&job, state, &mut writer)?;
        let blob = blob_digest(&bytes);
        let checkpoint = StoredCheckpoint { state, salt, stored: StoredState { step, blob } };
        // Before the write, which takes a while without the lock.
        self.state().order(id)?.place(&checkpoint)?;
        let written = self.inner.restricted.put(id, blob, &bytes);
        written.map_err(|error| blob_rejection(&error))?;
        let mut all = self.state();
        let order = all.order_mut(id)?;
        let wanted = order.wanted_checkpoint(upload);
        let place = order.place(&checkpoint);
        let (Ok(Some(_)), Ok(after)) = (&wanted, &place) else {
            // The lease has gone on, or has it, since the first look.
            if !order.has_file(blob) {
                log_unremoved(id, self.inner.restricted.remove(id, &[blob]));
            }
            return wanted.and(place).map(drop);
        };
        // Another upload of the same bytes may have been replaced, and its file removed, since the write.
        self.require_file(id, blob)?;
        self.inner.store.put_checkpoint(id, *after, &checkpoint)?;
        let replaced = order.checkpoints.insert(*after, checkpoint);
        if let Some(old) = replaced.filter(|old| !order.has_file(old.stored.blob)) {
            log_unremoved(id, self.inner.restricted.remove(id, &[old.stored.blob]));
        }
        Ok(())
    }

    /// Takes a state that the provider may upload from its checkpoints, if the lease uses it. Returns whether it did.
    pub(super) fn take_from_checkpoint(&self, upload: &StateUpload) -> Result<bool, Rejection> {
        let id = upload.order;
        let found = {
            let all = self.state();
            let order = all.order(id)?;
            let found = order.checkpoints.iter().find(|(_, one)| one.state == upload.state);
            found
                .filter(|(_, found)| order.uses_state(upload, found.stored.step))
                .map(|(after, found)| (*after, *found))
        };
        let Some((after, found)) = found else { return Ok(false) };
        if !self.is_intact(id, (after, found), true)? {
            return Ok(false);
        }
        let mut all = self.state();
        let order = all.order_mut(id)?;
        if order.checkpoints.get(&after) != Some(&found) {
            return Ok(false);
        }
        self.inner.store.put_states(id, &[(upload.state, found.stored)])?;
        order.states.insert(upload.state, found.stored);
        Ok(true)
    }

    /// Whether the bytes of a checkpoint are on disk; otherwise it is forgotten, and its bytes are wanted again. Other errors
    /// than damage may pass: they are returned, unless the caller has no more patience.
    fn is_intact(
        &self,
        id: Digest,
        (after, found): (u32, StoredCheckpoint),
        is_patient: bool,
    ) -> Result<bool, Rejection> {
        let blob = found.stored.blob;
        // Without the lock: the whole file is compared with its digest.
        match self.inner.restricted.open(id, blob) {
            Ok(_) => return Ok(true),
            Err(BlobError::Missing(_) | BlobError::WrongDigest { .. }) => {}
            Err(error) if is_patient => return Err(blob_rejection(&error)),
            Err(_) => {}
        }
        tracing::error!(order = %id, after, "the file of a checkpoint is missing or damaged");
        let mut all = self.state();
        if let Some(order) = all.orders.get_mut(&id)
            && order.checkpoints.get(&after) == Some(&found)
        {
            self.inner.store.forget_checkpoint(id, after)?;
            order.checkpoints.remove(&after);
            if !order.has_file(blob) {
                log_unremoved(id, self.inner.restricted.remove(id, &[blob]));
            }
        }
        Ok(false)
    }

    /// Forgets checkpoints whose bytes are damaged, of those that are due.
    pub(super) fn examine_checkpoints(&self, id: Digest, now: Timestamp) -> Result<(), Rejection> {
        let (due, deadline) = {
            let all = self.state();
            let order = all.order(id)?;
            match order.is_checkpoint_due(now) {
                true => (order.checkpoints_with_bytes(), order.deadline()),
                false => return Ok(()),
            }
        };
        let is_patient = now <= deadline.saturating_add_ms(DISK_PATIENCE_MS);
        for checkpoint in due {
            self.is_intact(id, checkpoint, is_patient)?;
        }
        Ok(())
    }

    /// Bytes of states that open leases may still upload: checkpoints leave space for them.
    pub(crate) fn awaited_state_bytes(&self) -> u64 {
        let all = self.state();
        let open = all.orders.values().filter(|order| order.is_open() && order.lease.is_some());
        open.fold(0_u64, |sum, order| sum.saturating_add(order.awaited_state_bytes()))
    }

    /// Adds the states that a record of checkpoints needs to those of the lease.
    pub(super) fn add_checkpoints(
        &self,
        id: Digest,
        order: &mut HostedOrder,
    ) -> Result<(), Rejection> {
        let needed = order.checkpoints_with_bytes().into_iter();
        let states: Vec<_> = needed.map(|(_, one)| (one.state, one.stored)).collect();
        self.inner.store.put_states(id, &states)?;
        order.states.extend(states);
        Ok(())
    }

    /// Checks that the file of a state is in the order's own folder. Files are removed under the same lock.
    pub(super) fn require_file(&self, id: Digest, blob: Digest) -> Result<(), Rejection> {
        match self.inner.restricted.contains(id, blob) {
            true => Ok(()),
            false => {
                let message = "another upload replaced this one: send it again";
                Err(Rejection::new(ErrorCode::LimitReached, message))
            }
        }
    }

    /// Forgets the checkpoints of a lease that is over, and has its unneeded files removed.
    pub(super) fn end_checkpoints(&self, id: Digest, order: &mut HostedOrder) {
        if order.is_open() {
            return;
        }
        let unneeded = order.unneeded_files();
        if !unneeded.is_empty() {
            self.unneeded().push((id, unneeded));
        }
        if order.checkpoints.is_empty() {
            return;
        }
        order.checkpoints.clear();
        if let Err(error) = self.inner.store.forget_checkpoints(id) {
            tracing::error!(order = %id, %error, "checkpoints of a lease cannot be removed");
        }
    }

    pub(super) fn unneeded(&self) -> MutexGuard<'_, Vec<(Digest, Vec<Digest>)>> {
        self.inner.unneeded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the files of leases that are over: without the lock of the leases, since there may be thousands.
    pub(super) fn remove_unneeded_files(&self) {
        let unneeded = std::mem::take(&mut *self.unneeded());
        for (id, files) in unneeded {
            log_unremoved(id, self.inner.restricted.remove(id, &files));
        }
    }
}

impl HostedOrder {
    /// The most bytes of a checkpoint that an account may upload; `None` if it is stored.
    fn wanted_checkpoint(&self, upload: &CheckpointUpload) -> Result<Option<u64>, Rejection> {
        let lease = self.begun()?.lease();
        let (order, job) = (lease.order(), &self.stored.request.job);
        if lease.phase().0 != Phase::Running {
            let (phase, action) = (lease.phase().0.name(), "leaving a checkpoint");
            return Err(refused(&LeaseError::Phase { phase, action }));
        }
        if lease.award().map(|award| award.provider) != Some(upload.by) {
            let role = "the provider of this lease";
            return Err(refused(&LeaseError::Account { account: upload.by, role }));
        }
        if !order.takes_checkpoints(job) {
            let message = "this lease takes no checkpoints: its rows are private, or the states of all segments have \
                           more than 8 GiB";
            return Err(Rejection::new(ErrorCode::LeaseRefused, message));
        }
        let is_same = |one: &StoredCheckpoint| (one.state, one.salt) == (upload.state, upload.salt);
        let is_stored = self.checkpoints.values().any(is_same);
        let is_first = upload.state == order.start && self.states.contains_key(&upload.state);
        Ok((!is_stored && !is_first).then(|| job.state_bytes_max()))
    }

    /// The number of segments before a checkpoint: one more than the delivered ones, or fewer, if it is that of the leaf.
    /// The first state has none before it.
    fn place(&self, checkpoint: &StoredCheckpoint) -> Result<u32, Rejection> {
        let next = self.delivered().saturating_add(1);
        let step = checkpoint.stored.step;
        if step == self.steps_before(next) {
            return Ok(next);
        }
        let delivered = (1..next).find(|after| step == self.steps_before(*after));
        if let Some(after) = delivered.filter(|after| self.has_leaf(*after, checkpoint)) {
            return Ok(after);
        }
        if checkpoint.state == self.stored.request.order.start {
            return Ok(0);
        }
        let message = format!(
            "a checkpoint of this lease is after {} steps now, and this state is after {step}",
            self.steps_before(next)
        );
        Err(Rejection::new(ErrorCode::LeaseRefused, message))
    }

    /// Whether a checkpoint is that of the last of some delivered segments.
    fn has_leaf(&self, after: u32, checkpoint: &StoredCheckpoint) -> bool {
        let secret = Secret { end: checkpoint.state, salt: checkpoint.salt };
        let lease = self.lease.as_ref().map(RecordedLease::lease);
        lease.is_some_and(|lease| lease.has_leaf(after.saturating_sub(1), secret))
    }

    /// The deadline of the lease's phase.
    fn deadline(&self) -> Timestamp {
        self.lease.as_ref().map_or(Timestamp(0), |lease| lease.lease().phase().1)
    }

    /// Bytes of states that its accounts may still upload.
    fn awaited_state_bytes(&self) -> u64 {
        let request = &self.stored.request;
        let stored = u64::try_from(self.states.len()).unwrap_or(u64::MAX);
        let awaited = request.order.states_max().saturating_sub(stored);
        awaited.saturating_mul(request.job.state_bytes_max())
    }

    /// Whether checkpoints may speak for the provider now.
    pub(super) fn is_checkpoint_due(&self, now: Timestamp) -> bool {
        let lease = self.lease.as_ref().map(RecordedLease::lease);
        !self.checkpoints.is_empty() && lease.is_some_and(|lease| now > lease.phase().1)
    }

    /// The checkpoints whose bytes a record needs.
    fn checkpoints_with_bytes(&self) -> Vec<(u32, StoredCheckpoint)> {
        let known = |after: u32| self.checkpoints.get(&after).map(|found| (after, *found));
        self.boundaries().into_iter().filter_map(known).collect()
    }

    /// The numbers of segments before the states whose bytes a record of checkpoints needs.
    fn boundaries(&self) -> Vec<u32> {
        let Some(lease) = self.lease.as_ref().map(RecordedLease::lease) else { return Vec::new() };
        match lease.phase().0 {
            Phase::Serving => {
                let open = lease.audits().iter().filter(|audit| audit.start.is_none());
                open.map(|audit| audit.segment).collect()
            }
            Phase::Opening if lease.result().is_none() => vec![self.delivered()],
            _ => Vec::new(),
        }
    }

    /// The record for a provider that has missed a deadline, if its checkpoints are complete and are
    /// those of its leaves.
    pub(super) fn stood_in(&self, now: Timestamp) -> Option<RecordedAction> {
        if self.checkpoints.is_empty() {
            return None;
        }
        let mut lease = self.lease.clone()?;
        let needed = lease.lease().checkpoints_needed();
        let start = &self.stored.request.order.start;
        let has_bytes = |after: u32| {
            self.checkpoints.contains_key(&after) || (after == 0 && self.states.contains_key(start))
        };
        if !self.boundaries().into_iter().all(has_bytes) {
            return None;
        }
        let checkpoint = |segment: u32| {
            let stored = self.checkpoints.get(&segment.checked_add(1)?)?;
            let secret = Secret { end: stored.state, salt: stored.salt };
            Some(Checkpoint { segment, secret })
        };
        let all: Option<Vec<Checkpoint>> = needed.into_iter().map(checkpoint).collect();
        let action = RecordedAction::Checkpoints(all?);
        let record = LeaseRecord { at: now, action };
        lease.apply(&record).ok()?;
        Some(record.action)
    }
}
