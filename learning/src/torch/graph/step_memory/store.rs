//! The place of offloaded buffers: a file without a name, to which a thread moves them, or the host's memory
//! for those of a GPU.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::slice;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use tch::{Device, Kind, TchError, Tensor};

use super::host_store::{HostPlaces, HostStore};
use crate::memory::MemoryRates;
use crate::torch::side_stream::gpu_of;

/// Bytes of the measurement of a file's speed.
const MEASURED_BYTES: usize = 32 << 20;

/// A transfer of a buffer.
enum BufferMove {
    Write { buffer: usize, bytes: Tensor },
    Read { buffer: usize, into: Tensor },
}

/// A transfer has ended.
pub(super) struct Moved {
    pub(super) buffer: usize,
    pub(super) is_read: bool,
    /// The tensor of the transfer.
    pub(super) bytes: Tensor,
    pub(super) result: Result<(), String>,
}

/// Moves buffers, one after another.
pub(super) trait OffloadStore: Send {
    /// Begins to write a buffer.
    ///
    /// # Errors
    /// The reason, if there is no place for it.
    fn write(&mut self, buffer: usize, bytes: Tensor) -> Result<(), String>;

    /// Begins to read a buffer.
    ///
    /// # Errors
    /// The reason, if it was not written.
    fn read(&mut self, buffer: usize, into: Tensor) -> Result<(), String>;

    /// A transfer that has ended; with `waits` the next one, which has ended for all that the device computes
    /// from now on. `None` if there is none, or if no transfer can end any more.
    fn moved(&mut self, waits: bool) -> Option<Moved>;
}

/// The store of a device: in places of the host's memory for a GPU, or in a folder.
pub(super) fn open(
    places: Option<&HostPlaces>,
    folder: &Path,
) -> Result<Box<dyn OffloadStore>, String> {
    match places {
        Some(places) => Ok(Box::new(HostStore::new(places.clone()).map_err(|error| error.why)?)),
        None => {
            let store = FileStore::new(folder)
                .map_err(|error| format!("no file for tensors in {}: {error}", folder.display()))?;
            Ok(Box::new(store))
        }
    }
}

/// Buffers in a file.
pub(super) struct FileStore {
    jobs: Option<Sender<BufferMove>>,
    moved: Receiver<Moved>,
    thread: Option<JoinHandle<()>>,
}

/// A file with the bytes of buffers.
struct BufferFile {
    file: File,
    offsets: BTreeMap<usize, u64>,
    end: u64,
}

impl FileStore {
    /// A store whose file is in `folder`.
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        let file = tempfile::tempfile_in(folder)?;
        let mut place = BufferFile { file, offsets: BTreeMap::new(), end: 0 };
        let (jobs, taken) = channel();
        let (done, moved) = channel();
        let work = move || {
            for job in taken {
                let ended = match job {
                    BufferMove::Write { buffer, bytes } => {
                        let result = place.write(buffer, &bytes);
                        Moved { buffer, is_read: false, bytes, result }
                    }
                    BufferMove::Read { buffer, into } => {
                        let result = place.read(buffer, &into);
                        Moved { buffer, is_read: true, bytes: into, result }
                    }
                };
                if done.send(ended).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("offload".to_owned()).spawn(work)?;
        Ok(Self { jobs: Some(jobs), moved, thread: Some(thread) })
    }

    fn send(&self, job: BufferMove) {
        if let Some(jobs) = &self.jobs {
            // Without the thread, the wait for the transfer fails.
            let _ = jobs.send(job);
        }
    }
}

impl OffloadStore for FileStore {
    fn write(&mut self, buffer: usize, bytes: Tensor) -> Result<(), String> {
        self.send(BufferMove::Write { buffer, bytes });
        Ok(())
    }

    fn read(&mut self, buffer: usize, into: Tensor) -> Result<(), String> {
        self.send(BufferMove::Read { buffer, into });
        Ok(())
    }

    fn moved(&mut self, waits: bool) -> Option<Moved> {
        if waits { self.moved.recv().ok() } else { self.moved.try_recv().ok() }
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl BufferFile {
    fn write(&mut self, buffer: usize, bytes: &Tensor) -> Result<(), String> {
        let content = content(bytes)?;
        let end = &mut self.end;
        let offset = *self.offsets.entry(buffer).or_insert_with(|| {
            let own = *end;
            *end += content.len() as u64;
            own
        });
        self.file.write_all_at(content, offset).map_err(|error| error.to_string())
    }

    fn read(&mut self, buffer: usize, into: &Tensor) -> Result<(), String> {
        let missing = || "an offloaded tensor is missing".to_owned();
        let offset = *self.offsets.get(&buffer).ok_or_else(missing)?;
        self.file.read_exact_at(content_mut(into)?, offset).map_err(|error| error.to_string())
    }
}

/// The length of a flat tensor of bytes on the CPU.
fn length(bytes: &Tensor) -> Result<usize, String> {
    let is_flat = bytes.device() == Device::Cpu && bytes.kind() == Kind::Uint8;
    match (is_flat && bytes.is_contiguous(), bytes.size().as_slice()) {
        (true, &[length]) => Ok(length as usize),
        _ => Err("an offloaded tensor must be flat".to_owned()),
    }
}

#[expect(unsafe_code, reason = "reads the memory of a tensor")]
fn content(bytes: &Tensor) -> Result<&[u8], String> {
    let length = length(bytes)?;
    if length == 0 {
        return Ok(&[]);
    }
    // SAFETY: a contiguous tensor of bytes has `length` of them at its pointer, as long as it lives. No
    // operator changes a tensor that was saved for the backward pass.
    Ok(unsafe { slice::from_raw_parts(bytes.data_ptr().cast(), length) })
}

#[expect(unsafe_code, reason = "writes to the memory of a tensor")]
#[expect(clippy::mut_from_ref, reason = "a tensor is a reference to memory")]
fn content_mut(bytes: &Tensor) -> Result<&mut [u8], String> {
    let length = length(bytes)?;
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as above; only the store's thread has the tensor until the transfer ends.
    Ok(unsafe { slice::from_raw_parts_mut(bytes.data_ptr().cast(), length) })
}

/// The speeds of a device's store, and of its fresh memory: of one transfer each.
pub(super) fn rates(device: Device, folder: &Path) -> Result<MemoryRates, String> {
    let places = gpu_of(device).map(HostPlaces::new);
    let mut store = open(places.as_ref(), folder)?;
    let failed = |error: TchError| error.to_string();
    let start = Instant::now();
    let mut tensor =
        Tensor::f_ones(MEASURED_BYTES as i64, (Kind::Uint8, device)).map_err(failed)?;
    let first = start.elapsed();
    let _ = tensor.f_fill_(1).map_err(failed)?;
    let fresh = first.saturating_sub(start.elapsed().saturating_sub(first)).as_secs_f64();
    let fresh = match device {
        Device::Cpu => MEASURED_BYTES as f64 / fresh.max(f64::MIN_POSITIVE),
        // Its blocks are used again and again.
        _ => f64::INFINITY,
    };
    let mut timed = |is_read: bool| -> Result<f64, String> {
        let start = Instant::now();
        let tensor = tensor.shallow_clone();
        match is_read {
            true => store.read(0, tensor)?,
            false => store.write(0, tensor)?,
        }
        let moved = match device {
            Device::Cpu => store.moved(true),
            // Otherwise the GPU would wait, and not the clock.
            _ => std::iter::repeat_with(|| store.moved(false)).find_map(|moved| moved),
        };
        moved.ok_or("the thread of a store has ended")?.result?;
        Ok(MEASURED_BYTES as f64 / start.elapsed().as_secs_f64().max(f64::MIN_POSITIVE))
    };
    if device != Device::Cpu {
        // The first transfer makes the memory of the host.
        timed(false)?;
    }
    Ok(MemoryRates { write: timed(false)?, read: timed(true)?, fresh })
}
