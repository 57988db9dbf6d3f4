//! The bytes of jobs and states: what is wanted, what has arrived, and who may read it.

use std::borrow::Cow;

use florin_compute::{ComputeJob, DataClass, Lease, LeaseError, Phase, RecordedLease, StateUpload};
use florin_protocol::{Address, Digest, ErrorCode, Rejection, blob_digest};
use florin_store::{BlobError, BlobWriter, OpenedBlob};
use florin_work::job_state;

use super::hosted::HostedOrder;
use super::store::StoredState;
use super::{LeaseHost, blob_rejection, log_unremoved, refused};

/// Where bytes of an order are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BytesPlace {
    /// In the blob store, by the digest.
    Shared(Digest),
    /// In the order's own folder, by the digest.
    Restricted(Digest, Digest),
}

/// The bytes of an uploaded state of a job, and the steps before it.
pub(super) fn read_state<'a>(
    job: &ComputeJob,
    state: Digest,
    writer: &'a mut BlobWriter,
) -> Result<(Cow<'a, [u8]>, u64), Rejection> {
    let bytes = writer.read_back().map_err(|error| blob_rejection(&error))?;
    let step = job_state(job, state, &bytes)
        .map(|state| state.step())
        .map_err(|error| Rejection::new(ErrorCode::Malformed, error.to_string()))?;
    Ok((bytes, step))
}

impl LeaseHost {
    /// The length of a blob of an order's job that has not arrived; `None` if it has.
    pub(crate) fn wanted_blob(&self, id: Digest, digest: Digest) -> Result<Option<u64>, Rejection> {
        let state = self.state();
        let order = state.order(id)?;
        let job = &order.stored.request.job;
        if let Some(missing) = order.missing.iter().find(|blob| blob.digest == digest) {
            return match order.is_open() {
                true => Ok(Some(missing.bytes)),
                false => Err(Rejection::new(ErrorCode::TaskClosed, "the order is over")),
            };
        }
        match job.blobs().any(|blob| blob.digest == digest) {
            true => Ok(None),
            false => {
                let message = format!("blob {digest} is none of the job of order {id}");
                Err(Rejection::new(ErrorCode::NotFound, message))
            }
        }
    }

    /// Stores a blob of a job, and begins the bids of the order if it was the last one.
    pub(crate) fn take_blob(&self, id: Digest, writer: BlobWriter) -> Result<(), Rejection> {
        let digest = writer.digest();
        self.wanted_blob(id, digest)?;
        if self.is_own_file(id, digest) {
            return self.take_own_file(id, writer);
        }
        self.inner.parts.blobs.store(writer).map_err(|error| blob_rejection(&error))?;
        let waiting: Vec<Digest> = {
            let mut state = self.state();
            self.inner.store.put_blob(digest)?;
            state.blobs.insert(digest);
            let waiting = state.orders.iter_mut().filter_map(|(id, order)| {
                let before = order.missing.len();
                let is_own = order.is_own_file(digest);
                order.missing.retain(|blob| is_own || blob.digest != digest);
                (order.missing.len() < before && order.missing.is_empty()).then_some(*id)
            });
            waiting.collect()
        };
        let mut own = Ok(());
        for order in waiting {
            let begun = self.begin_if_complete(order);
            if order == id {
                own = begun;
            }
        }
        self.changed();
        own
    }

    /// Stores the rows of a restricted order in its own folder.
    fn take_own_file(&self, id: Digest, mut writer: BlobWriter) -> Result<(), Rejection> {
        let digest = writer.digest();
        let bytes = writer.read_back().map_err(|error| blob_rejection(&error))?;
        let stored = self.inner.restricted.put(id, digest, &bytes);
        stored.map_err(|error| blob_rejection(&error))?;
        drop(bytes);
        {
            let mut state = self.state();
            let order = state.order_mut(id)?;
            order.missing.retain(|blob| blob.digest != digest);
            // The order may have been refused meanwhile.
            order.remove_unneeded(&self.inner.restricted, id);
        }
        let begun = self.begin_if_complete(id);
        self.changed();
        begun
    }

    /// The place of a blob of a job, for an account that may read it.
    pub(crate) fn blob_place(
        &self,
        id: Digest,
        digest: Digest,
        reader: Option<Address>,
    ) -> Result<BytesPlace, Rejection> {
        if self.wanted_blob(id, digest)?.is_some() {
            let message = format!("blob {digest} has not arrived");
            return Err(Rejection::new(ErrorCode::NotFound, message));
        }
        let state = self.state();
        let order = state.order(id)?;
        if !order.is_own_file(digest) {
            return Ok(BytesPlace::Shared(digest));
        }
        order.check_reader(reader, |lease, reader| lease.may_read_rows(reader))?;
        match order.is_open() {
            true => Ok(BytesPlace::Restricted(id, digest)),
            false => {
                let message = "the rows of a restricted order are removed when its lease is over";
                Err(Rejection::new(ErrorCode::NotFound, message))
            }
        }
    }

    /// The place of the bytes of a state, for an account that may read it.
    pub(crate) fn state_place(
        &self,
        id: Digest,
        state: Digest,
        reader: Option<Address>,
    ) -> Result<BytesPlace, Rejection> {
        let all = self.state();
        let order = all.order(id)?;
        order.check_reader(reader, |lease, reader| lease.may_read_state(reader, state))?;
        let stored = order.states.get(&state).ok_or_else(|| {
            Rejection::new(ErrorCode::NotFound, format!("order {id} has no state {state}"))
        })?;
        Ok(match order.has_own_file(&self.inner.restricted, id, stored.blob) {
            true => BytesPlace::Restricted(id, stored.blob),
            false => BytesPlace::Shared(stored.blob),
        })
    }

    /// Opens bytes after they were compared with their digest.
    pub(crate) fn open_bytes(&self, place: BytesPlace) -> Result<OpenedBlob, BlobError> {
        match place {
            BytesPlace::Shared(digest) => self.inner.parts.blobs.open_lately_checked(digest),
            BytesPlace::Restricted(order, digest) => self.inner.restricted.open(order, digest),
        }
    }

    /// The rows of the disputed step of an order, for the referee that rules on it: the batch as a canonical data set.
    pub(crate) fn disputed_rows(
        &self,
        id: Digest,
        reader: Option<Address>,
    ) -> Result<Vec<u8>, Rejection> {
        let (request, step) = {
            let state = self.state();
            let order = state.order(id)?;
            if !order.is_restricted() {
                let message = "the rows of this order are public: read its blobs";
                return Err(Rejection::new(ErrorCode::NotFound, message));
            }
            order.check_reader(reader, Lease::may_read_batch)?;
            let step = order.disputed_step().ok_or_else(|| {
                Rejection::new(ErrorCode::NotFound, format!("no step of order {id} is disputed"))
            })?;
            (order.stored.request.clone(), step)
        };
        let training = self.load_training(&request)?;
        Ok(training.step_rows(step))
    }

    /// The most bytes of a state that an account may upload; `None` if it is stored.
    pub(crate) fn wanted_state(&self, upload: &StateUpload) -> Result<Option<u64>, Rejection> {
        let wanted = {
            let all = self.state();
            let order = all.order(upload.order)?;
            order.wanted_state(upload)?
        };
        match wanted.is_some() && self.take_from_checkpoint(upload)? {
            true => Ok(None),
            false => Ok(wanted),
        }
    }

    /// Checks and stores the bytes of a state.
    pub(crate) fn take_state(
        &self,
        upload: &StateUpload,
        mut writer: BlobWriter,
    ) -> Result<(), Rejection> {
        if self.wanted_state(upload)?.is_none() {
            return Ok(());
        }
        let StateUpload { order: id, state, .. } = *upload;
        let job = self.job(id)?;
        let (bytes, step) = read_state(&job, state, &mut writer)?;
        // Without the lock: a write of a large state takes a while.
        let looked = |order: &HostedOrder| (order.is_restricted(), order.uses_state(upload, step));
        let (is_restricted, is_used) = self.state().order(id).map(looked)?;
        if !is_used {
            let message = format!("the lease uses no state after {step} steps");
            return Err(Rejection::new(ErrorCode::LeaseRefused, message));
        }
        let blob = match is_restricted {
            true => {
                let blob = blob_digest(&bytes);
                self.inner.restricted.put(id, blob, &bytes).map(|()| blob)
            }
            false => {
                drop(bytes);
                self.inner.parts.blobs.store(writer)
            }
        };
        let blob = blob.map_err(|error| blob_rejection(&error))?;
        let mut all = self.state();
        let order = all.order_mut(id)?;
        let wanted = order.wanted_state(upload);
        if is_restricted && !matches!(wanted, Ok(Some(_))) && !order.has_file(blob) {
            // The lease has ended, or has its states, since the first look.
            log_unremoved(id, self.inner.restricted.remove(id, &[blob]));
        }
        if wanted?.is_none() {
            return Ok(());
        }
        if is_restricted {
            self.require_file(id, blob)?;
        }
        let stored = StoredState { step, blob };
        self.inner.store.put_states(id, &[(state, stored)])?;
        order.states.insert(state, stored);
        Ok(())
    }

    /// Whether a blob of an order is in its own folder.
    pub(crate) fn is_own_file(&self, id: Digest, digest: Digest) -> bool {
        self.state().orders.get(&id).is_some_and(|order| order.is_own_file(digest))
    }
}

impl HostedOrder {
    /// The most bytes of a state that an account may upload; `None` if it is stored.
    fn wanted_state(&self, upload: &StateUpload) -> Result<Option<u64>, Rejection> {
        let StateUpload { by, state, .. } = *upload;
        let lease = self.begun()?.lease();
        let phase = lease.phase().0;
        if let Some(agreed) = self.state_to_rule_from(by)
            && agreed == state
        {
            return Ok((!self.states.contains_key(&state)).then(|| self.state_bytes_max()));
        }
        // Before its stake is deposited a winner could take the places of the next one.
        if !matches!(phase, Phase::Serving | Phase::Auditing | Phase::Opening) {
            let action = "uploading a state";
            return Err(refused(&LeaseError::Phase { phase: phase.name(), action }));
        }
        if lease.award().map(|award| award.provider) != Some(by) {
            let role = "the provider of this lease";
            return Err(refused(&LeaseError::Account { account: by, role }));
        }
        if self.states.contains_key(&state) {
            return Ok(None);
        }
        let max = usize::try_from(lease.order().states_max()).unwrap_or(usize::MAX);
        if self.states.len() >= max {
            return Err(refused(&LeaseError::Limit { what: "states of this lease", max }));
        }
        Ok(Some(self.state_bytes_max()))
    }

    fn state_bytes_max(&self) -> u64 {
        self.stored.request.job.state_bytes_max()
    }

    /// Whether the lease uses a state after some steps: the start of a drawn segment, the result, or the state from
    /// which a referee rules.
    pub(super) fn uses_state(&self, upload: &StateUpload, step: u64) -> bool {
        let Some(lease) = self.lease.as_ref().map(RecordedLease::lease) else { return false };
        let mut drawn = lease.audited();
        step == self.steps_before(self.delivered())
            || drawn.any(|(segment, _)| step == self.steps_before(segment))
            || self.state_to_rule_from(upload.by) == Some(upload.state)
    }

    /// The state before the disputed step, which the auditor of private rows uploads for the referee: from the start of
    /// the segment the referee would need the rows of all steps before.
    fn state_to_rule_from(&self, by: Address) -> Option<Digest> {
        let lease = self.lease.as_ref()?.lease();
        let is_private = lease.order().data_class == DataClass::Private;
        let dispute = lease.dispute().filter(|dispute| dispute.auditor == by && is_private)?;
        (lease.phase().0 == Phase::Refereeing).then_some(dispute.agreed.1)
    }

    /// The disputed step of the job, from 1.
    fn disputed_step(&self) -> Option<u64> {
        let lease = self.lease.as_ref()?.lease();
        let dispute = lease.dispute()?;
        let before = lease.order().steps_before(dispute.segment);
        Some(before.saturating_add(dispute.agreed.0.into()).saturating_add(1))
    }

    /// Checks that an account may read something of the order now.
    fn check_reader(
        &self,
        reader: Option<Address>,
        may_read: impl FnOnce(&Lease, Address) -> bool,
    ) -> Result<(), Rejection> {
        let order = &self.stored.request.order;
        if order.data_class == DataClass::Public {
            return Ok(());
        }
        let may = reader.is_some_and(|reader| match &self.lease {
            Some(lease) => may_read(lease.lease(), reader),
            None => reader == order.renter,
        });
        if may {
            return Ok(());
        }
        let who = match order.data_class {
            DataClass::Buyer | DataClass::Public => {
                "its renter, its provider from the stake on, drawn auditors, and its referee in a dispute"
            }
            DataClass::Private => {
                "its renter, and its provider from the stake on; a referee reads the rows of one step"
            }
        };
        let message = format!(
            "rows and states of order {} are of the data class {}: they are for {who}, until the lease is over, \
             by a request that the account has signed (the headers reader-…)",
            order.id(),
            order.data_class.name()
        );
        Err(Rejection::new(ErrorCode::DataRestricted, message))
    }
}
