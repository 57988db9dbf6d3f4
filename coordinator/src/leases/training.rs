//! The loaded trainings of orders, which check states. Only the last ones stay in memory.

use std::sync::{Arc, Mutex, PoisonError};

use florin_compute::OrderRequest;
use florin_protocol::{Digest, ErrorCode, Rejection};
use florin_store::BlobStore;
use florin_work::LeasedTraining;

use super::{blob_rejection, invalid};

/// Trainings in memory. Each has the rows and the parameters of its job.
const TRAININGS_MAX: usize = 4;

/// The trainings that were used last, the newest at the end.
#[derive(Debug, Default)]
pub(super) struct Trainings(Mutex<Vec<(Digest, Arc<LeasedTraining>)>>);

impl Trainings {
    /// The training of an order, from its stored blobs.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidOrder`] if the blobs do not fit the job, [`ErrorCode::Internal`] if one cannot be read.
    pub(super) fn of(
        &self,
        request: &OrderRequest,
        blobs: &BlobStore,
    ) -> Result<Arc<LeasedTraining>, Rejection> {
        let id = request.order.id();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = known.iter().position(|(order, _)| *order == id) {
            let found = known.remove(at);
            let training = Arc::clone(&found.1);
            known.push(found);
            return Ok(training);
        }
        drop(known);
        let OrderRequest { order, job } = request;
        let read = |digest, _| blobs.read(digest).map_err(|error| blob_rejection(&error));
        let loaded =
            LeasedTraining::load(order, job, read).map_err(|rejection| match rejection.code {
                ErrorCode::Internal | ErrorCode::StorageFull => rejection,
                _ => invalid(rejection.message),
            });
        let training = Arc::new(loaded?);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= TRAININGS_MAX {
            known.remove(0);
        }
        known.push((id, Arc::clone(&training)));
        Ok(training)
    }
}
