//! Buffers of a GPU in the memory of the host. Copies run beside the computation, and the computation waits
//! for them, without the host.

use std::collections::{BTreeMap, VecDeque};

use tch::Tensor;

use super::store::{Moved, OffloadStore};
use crate::engine::BackendError;
use crate::torch::side_stream::{SideCopy, SideStream, host_memory};

/// A transfer that was begun.
struct Transfer {
    buffer: usize,
    is_read: bool,
    /// The tensor on the GPU.
    bytes: Tensor,
    copy: SideCopy,
}

/// Buffers of a GPU in the memory of the host.
pub(super) struct HostStore {
    stream: SideStream,
    /// By buffer; they stay for the next step.
    places: BTreeMap<usize, Tensor>,
    /// In the order in which they end.
    transfers: VecDeque<Transfer>,
}

impl HostStore {
    /// A store of GPU `gpu`.
    pub(super) fn new(gpu: usize) -> Result<Self, BackendError> {
        let stream = SideStream::new(gpu)?;
        Ok(Self { stream, places: BTreeMap::new(), transfers: VecDeque::new() })
    }

    /// The place of a buffer in the host's memory.
    fn place(&mut self, buffer: usize, bytes: usize) -> Result<&Tensor, BackendError> {
        let place = self.places.entry(buffer);
        Ok(match place {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(none) => none.insert(host_memory(bytes)?),
        })
    }
}

impl OffloadStore for HostStore {
    fn write(&mut self, buffer: usize, bytes: Tensor) -> Result<(), String> {
        let length = bytes.numel();
        let place = self.place(buffer, length).map_err(|error| error.why)?.shallow_clone();
        if place.numel() != length {
            return Err("an offloaded tensor has another size than in the last step".to_owned());
        }
        let copy = self.stream.copy(&bytes, &place).map_err(|error| error.why)?;
        self.transfers.push_back(Transfer { buffer, is_read: false, bytes, copy });
        Ok(())
    }

    fn read(&mut self, buffer: usize, into: Tensor) -> Result<(), String> {
        let missing = || "an offloaded tensor is missing".to_owned();
        let place = self.places.get(&buffer).filter(|place| place.numel() == into.numel());
        let copy = self.stream.copy(place.ok_or_else(missing)?, &into);
        let copy = copy.map_err(|error| error.why)?;
        self.transfers.push_back(Transfer { buffer, is_read: true, bytes: into, copy });
        Ok(())
    }

    fn moved(&mut self, waits: bool) -> Option<Moved> {
        let ended = match self.transfers.front()?.copy.is_done() {
            Ok(false) if !waits => return None,
            Ok(_) => Ok(()),
            Err(error) => Err(error.why),
        };
        let Transfer { buffer, is_read, bytes, copy } = self.transfers.pop_front()?;
        // Also for a copy that has ended: memory is used again in the order of the computation alone.
        let joined = self.stream.join(&copy).map_err(|error| error.why);
        Some(Moved { buffer, is_read, bytes, result: ended.and(joined) })
    }
}
