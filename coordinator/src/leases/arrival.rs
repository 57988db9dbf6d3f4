//! The bytes of jobs and states: what is wanted, what has arrived, and what any account may read.

use florin_compute::{LeaseError, Phase, StateUpload};
use florin_protocol::{Digest, ErrorCode, Rejection};
use florin_store::BlobWriter;
use florin_work::job_state;

use super::hosted::HostedOrder;
use super::store::StoredState;
use super::{LeaseHost, blob_rejection, job_blobs, refused, unknown};

/// Most states of a lease beyond its drawn segments: the start of a continued order, and the result.
const OTHER_STATES_MAX: usize = 2;
/// Bytes of a state beyond its tensors.
const STATE_HEADER_BYTES_MAX: u64 = 8_192;
/// Tensors of a state: the parameters and what an optimizer carries.
const STATE_TENSORS_MAX: u64 = 3;

impl LeaseHost {
    /// The length of a blob of an order's job that has not arrived; `None` if it has.
    pub(crate) fn wanted_blob(&self, id: Digest, digest: Digest) -> Result<Option<u64>, Rejection> {
        let state = self.state();
        let order = state.orders.get(&id).ok_or_else(|| unknown(id))?;
        let job = &order.stored.request.job;
        if let Some(missing) = order.missing.iter().find(|blob| blob.digest == digest) {
            return match order.is_open() {
                true => Ok(Some(missing.bytes)),
                false => Err(Rejection::new(ErrorCode::TaskClosed, "the order is over")),
            };
        }
        match job_blobs(job).any(|blob| blob.digest == digest) {
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
        self.inner.parts.blobs.store(writer).map_err(|error| blob_rejection(&error))?;
        let waiting: Vec<Digest> = {
            let mut state = self.state();
            self.inner.store.put_blob(digest)?;
            state.blobs.insert(digest);
            let waiting = state.orders.iter_mut().filter_map(|(id, order)| {
                let before = order.missing.len();
                order.missing.retain(|blob| blob.digest != digest);
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

    /// The blob of a job that any account may read.
    pub(crate) fn public_blob(&self, id: Digest, digest: Digest) -> Result<Digest, Rejection> {
        match self.wanted_blob(id, digest)? {
            None => Ok(digest),
            Some(_) => {
                let message = format!("blob {digest} has not arrived");
                Err(Rejection::new(ErrorCode::NotFound, message))
            }
        }
    }

    /// The blob with the bytes of a state.
    pub(crate) fn public_state(&self, id: Digest, state: Digest) -> Result<Digest, Rejection> {
        let all = self.state();
        let order = all.orders.get(&id).ok_or_else(|| unknown(id))?;
        order.states.get(&state).map(|stored| stored.blob).ok_or_else(|| {
            Rejection::new(ErrorCode::NotFound, format!("order {id} has no state {state}"))
        })
    }

    /// The most bytes of a state that an account may upload; `None` if it is stored.
    pub(crate) fn wanted_state(&self, upload: &StateUpload) -> Result<Option<u64>, Rejection> {
        let all = self.state();
        let order = all.orders.get(&upload.order).ok_or_else(|| unknown(upload.order))?;
        order.wanted_state(upload)
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
        let bytes = writer.read_back().map_err(|error| blob_rejection(&error))?;
        let step = job_state(&job, state, &bytes)
            .map(|state| state.step())
            .map_err(|error| Rejection::new(ErrorCode::Malformed, error.to_string()))?;
        drop(bytes);
        let blob = self.inner.parts.blobs.store(writer).map_err(|error| blob_rejection(&error))?;
        let mut all = self.state();
        let order = all.orders.get_mut(&id).ok_or_else(|| unknown(id))?;
        if order.wanted_state(upload)?.is_none() {
            return Ok(());
        }
        let stored = StoredState { step, blob };
        self.inner.store.put_state(id, state, stored)?;
        order.states.insert(state, stored);
        Ok(())
    }
}

impl HostedOrder {
    /// The most bytes of a state that an account may upload; `None` if it is stored.
    fn wanted_state(&self, upload: &StateUpload) -> Result<Option<u64>, Rejection> {
        let StateUpload { by, state, .. } = *upload;
        let lease = self.begun()?.lease();
        // Before its stake is deposited a winner could take the places of the next one.
        let phase = lease.phase().0;
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
        let drawn = lease.audited().count();
        if self.states.len() >= drawn.saturating_add(OTHER_STATES_MAX) {
            let max = drawn.saturating_add(OTHER_STATES_MAX);
            return Err(refused(&LeaseError::Limit { what: "states of this lease", max }));
        }
        let tensors = self.stored.request.job.start.bytes.saturating_mul(STATE_TENSORS_MAX);
        Ok(Some(tensors.saturating_add(STATE_HEADER_BYTES_MAX)))
    }
}
