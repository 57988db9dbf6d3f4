//! Buffers of a GPU in the memory of the host. Copies run beside the computation, and the computation waits
//! for them, without the host.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tch::Tensor;

use super::store::{Moved, OffloadStore};
use crate::engine::BackendError;
use crate::torch::side_stream::{SideCopy, SideStream, host_memory, release_host_memory};

/// A transfer that was begun.
struct HostCopy {
    buffer: usize,
    is_read: bool,
    /// The tensor on the GPU.
    bytes: Tensor,
    copy: SideCopy,
}

/// The places of a GPU's buffers in the memory of its host, for the plans of all numbers of rows. They stay
/// from step to step.
#[derive(Clone)]
pub(super) struct HostPlaces(Arc<Places>);

struct Places {
    gpu: usize,
    of: Mutex<BTreeMap<usize, Tensor>>,
}

impl HostPlaces {
    /// The places of GPU `gpu`.
    pub(super) fn new(gpu: usize) -> Self {
        Self(Arc::new(Places { gpu, of: Mutex::default() }))
    }

    /// Bytes that buffers of these sizes take beside the places that there are. libtorch's allocator makes
    /// each of them a power of two.
    pub(super) fn missing(&self, buffers: impl Iterator<Item = (usize, u64)>) -> u64 {
        let places = self.0.of.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = |(buffer, bytes): &(usize, u64)| {
            places.get(buffer).is_some_and(|place| place.numel() as u64 >= *bytes)
        };
        let missing = buffers.filter(|buffer| !has_room(buffer));
        missing.map(|(_, bytes)| bytes.max(1).next_power_of_two()).sum()
    }

    /// The place of a buffer, which is made where there is none of its size.
    fn of(&self, buffer: usize, bytes: usize) -> Result<Tensor, BackendError> {
        if let Some(known) = self.known(buffer, bytes) {
            return Ok(known);
        }
        let place = host_memory(bytes)?;
        let mut places = self.0.of.lock().unwrap_or_else(PoisonError::into_inner);
        places.insert(buffer, place.shallow_clone());
        Ok(place)
    }

    /// The place that a buffer has, if it is large enough.
    fn known(&self, buffer: usize, bytes: usize) -> Option<Tensor> {
        let places = self.0.of.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.get(&buffer).filter(|place| place.numel() >= bytes)?;
        place.f_narrow(0, 0, bytes as i64).ok()
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.of.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        // libtorch would hold it for other tensors. Without the GPU there is nothing to do.
        let _ = release_host_memory(self.gpu);
    }
}

/// Buffers of a GPU in the memory of the host.
pub(super) struct HostStore {
    stream: SideStream,
    places: HostPlaces,
    /// In the order in which they end.
    transfers: VecDeque<HostCopy>,
}

impl HostStore {
    /// A store with these places.
    pub(super) fn new(places: HostPlaces) -> Result<Self, BackendError> {
        let stream = SideStream::new(places.0.gpu)?;
        Ok(Self { stream, places, transfers: VecDeque::new() })
    }
}

impl OffloadStore for HostStore {
    fn write(&mut self, buffer: usize, bytes: Tensor) -> Result<(), String> {
        let place = self.places.of(buffer, bytes.numel()).map_err(|error| error.why)?;
        let copy = self.stream.copy(&bytes, &place).map_err(|error| error.why)?;
        self.transfers.push_back(HostCopy { buffer, is_read: false, bytes, copy });
        Ok(())
    }

    fn read(&mut self, buffer: usize, into: Tensor) -> Result<(), String> {
        let missing = || "an offloaded tensor is missing".to_owned();
        let place = self.places.known(buffer, into.numel()).ok_or_else(missing)?;
        let copy = self.stream.copy(&place, &into).map_err(|error| error.why)?;
        self.transfers.push_back(HostCopy { buffer, is_read: true, bytes: into, copy });
        Ok(())
    }

    fn moved(&mut self, waits: bool) -> Option<Moved> {
        let ended = match self.transfers.front()?.copy.is_done() {
            Ok(false) if !waits => return None,
            Ok(_) => Ok(()),
            Err(error) => Err(error.why),
        };
        let HostCopy { buffer, is_read, bytes, copy } = self.transfers.pop_front()?;
        // Also for a copy that has ended: memory is used again in the order of the computation alone.
        let joined = self.stream.join(&copy).map_err(|error| error.why);
        Some(Moved { buffer, is_read, bytes, result: ended.and(joined) })
    }
}
