//! Pack files: small blobs share append-only files `blobs/packs/0000000000.pack`, …, and concurrent
//! writers share one fsync (group commit). A writer is acknowledged when its blob is durable.
//!
//! A frame is `length (u32) | digest | bytes`. A crash can leave a torn tail of frames that were
//! never acknowledged. When a folder is opened, the newest pack is verified, and everything after
//! its last complete blob is truncated. Complete blobs after a damaged frame are
//! [found](super::scan) and remain.
//!
//! From then on, all blobs of the newest pack count as durable. The last batch might not be: its
//! fsync may have failed, after which the system considers its pages clean, and the process may
//! have died before it truncated the batch. Recovery therefore rewrites the last batch. After a
//! failed batch, no other batch is written to any pack until the failed one is truncated, so only
//! the newest pack can have such a tail.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, SeekFrom};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;

use florin_protocol::Digest;

use super::error::BlobError;
use super::group_commit::GroupCommit;
use super::is_full;
pub use super::scan::PACKED_BYTES_MAX;
use super::scan::{self, HEADER_BYTES, Scan};
use super::volume::{AppendFile, Volume, rewrite_range};

/// Size from which on a pack is not appended to any more, in bytes.
const PACK_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Most blobs in one batch, which shares an fsync.
const BATCH_MAX: usize = 256;
/// Most blobs that wait for the appending thread. Further writers block.
const QUEUE_MAX: usize = 1_024;
/// Most pooled buffers; each has a capacity of at most [`PACKED_BYTES_MAX`].
const POOLED_BUFFERS_MAX: usize = 64;

/// The location of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlobLocation {
    pack: u32,
    /// Offset of the blob's first byte.
    offset: u64,
    length: u32,
}

type Index = Arc<RwLock<BTreeMap<Digest, BlobLocation>>>;

/// Callback with the result: the blob is durable, or the reason why it is not.
pub type StoreCallback = Box<dyn FnOnce(Result<Digest, BlobError>) + Send>;

/// A pool of free buffers. Allocating and freeing the memory costs more than the work done with it.
type BufferPool = Arc<Mutex<Vec<Vec<u8>>>>;

struct AppendJob {
    bytes: Vec<u8>,
    digest: Digest,
    done: StoreCallback,
}

/// All packs of a folder, and the thread that appends to them.
pub(super) struct PackStore {
    volume: Arc<dyn Volume>,
    index: Index,
    buffers: BufferPool,
    jobs: Mutex<Option<SyncSender<AppendJob>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl PackStore {
    /// Opens a folder's packs and builds the index.
    pub(super) fn open(volume: Arc<dyn Volume>) -> io::Result<Self> {
        let packs = packs(volume.as_ref())?;
        let newest = packs.last().copied();
        let mut places = BTreeMap::new();
        for pack in packs {
            let age = if Some(pack) == newest { PackAge::Newest } else { PackAge::Older };
            read_pack(volume.as_ref(), pack, age, &mut places)?;
        }
        let index: Index = Arc::new(RwLock::new(places));
        let spare = BufferPool::default();
        let (jobs, queue) = sync_channel(QUEUE_MAX);
        let mut appender = Appender {
            volume: Arc::clone(&volume),
            index: Arc::clone(&index),
            spare: Arc::clone(&spare),
            pack: newest.unwrap_or_default(),
            pack_exists: newest.is_some(),
            disk: None,
            length: 0,
            has_failed_tail: false,
            sync_failed: false,
        };
        let thread = std::thread::Builder::new()
            .name("florin-packs".to_owned())
            .spawn(move || appender.run(&queue))?;
        let (jobs, thread) = (Mutex::new(Some(jobs)), Mutex::new(Some(thread)));
        Ok(Self { volume, index, buffers: spare, jobs, thread })
    }

    /// An empty buffer with this capacity, from the pool if possible.
    pub(super) fn buffer(&self, bytes: usize) -> Vec<u8> {
        let spare = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffer = spare.unwrap_or_default();
        buffer.reserve_exact(bytes);
        buffer
    }

    fn location(&self, digest: Digest) -> Option<BlobLocation> {
        self.index.read().unwrap_or_else(PoisonError::into_inner).get(&digest).copied()
    }

    pub(super) fn contains(&self, digest: Digest) -> bool {
        self.location(digest).is_some()
    }

    /// Reads a blob. The caller verifies the digest.
    pub(super) fn read(&self, digest: Digest) -> Option<io::Result<Vec<u8>>> {
        let place = self.location(digest)?;
        Some(self.read_at(place))
    }

    fn read_at(&self, place: BlobLocation) -> io::Result<Vec<u8>> {
        let (mut file, _) = self.volume.open(&name(place.pack))?;
        file.seek(SeekFrom::Start(place.offset))?;
        let mut bytes = vec![0; usize::try_from(place.length).unwrap_or_default()];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Queues a blob and calls `done` when it is durable. Blocks while the queue is full.
    pub(super) fn append(&self, bytes: Vec<u8>, digest: Digest, done: StoreCallback) {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(jobs) = jobs else {
            return done(Err(BlobError::Failed(io::Error::other("the blob store is closed"))));
        };
        if let Err(returned) = jobs.send(AppendJob { bytes, digest, done }) {
            (returned.0.done)(Err(BlobError::Failed(io::Error::other("the blob store is closed"))));
        }
    }
}

impl Drop for PackStore {
    fn drop(&mut self) {
        drop(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the pack writer thread panicked");
        }
    }
}

impl std::fmt::Debug for PackStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packs").field("folder", &self.volume.path_of("")).finish_non_exhaustive()
    }
}

fn name(pack: u32) -> String {
    format!("{pack:010}.pack")
}

/// The number in a pack's name. `None` unless the name has exactly the form of a pack's name.
fn number(file: &str) -> Option<u32> {
    let number = file.strip_suffix(".pack")?.parse().ok()?;
    (file == name(number)).then_some(number)
}

/// The numbers of the packs in a folder, oldest first.
fn packs(volume: &dyn Volume) -> io::Result<Vec<u32>> {
    let mut packs: Vec<u32> = volume.names()?.iter().filter_map(|name| number(name)).collect();
    packs.sort_unstable();
    Ok(packs)
}

/// Whether a crash can have torn a pack's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PackAge {
    /// The last pack, to which blobs were appended.
    Newest,
    /// A complete pack.
    Older,
}

/// Adds a pack's blobs to the index. The newest pack is verified, and so is a pack with
/// inconsistent headers.
fn read_pack(
    volume: &dyn Volume,
    pack: u32,
    age: PackAge,
    places: &mut BTreeMap<Digest, BlobLocation>,
) -> io::Result<()> {
    let name = name(pack);
    let place = |found: &scan::PackedBlob| {
        let &scan::PackedBlob { digest, offset, length } = found;
        (digest, BlobLocation { pack, offset, length })
    };
    if age == PackAge::Older
        && let Some(found) = scan::read_headers(volume, &name)?
    {
        // Damage to a blob's bytes is detected when the blob is read.
        places.extend(found.iter().map(place));
        return Ok(());
    }
    let found = scan::scan(volume, &name)?;
    places.extend(found.whole.iter().map(place));
    let path = volume.path_of(&name);
    let file = path.display();
    for damage in &found.damaged {
        tracing::error!(pack = %file, %damage, "a pack is damaged; complete blobs after it remain");
    }
    match age {
        PackAge::Newest => repair_tail(volume, &name, &found),
        PackAge::Older => Ok(()),
    }
}

/// Truncates the torn tail of the newest pack, and makes the rest durable. The index now contains
/// blobs that a killed process wrote without a successful fsync.
fn repair_tail(volume: &dyn Volume, name: &str, found: &Scan) -> io::Result<()> {
    let Scan { end: whole, size, finished, .. } = *found;
    let mut disk = volume.append_to(name)?;
    if whole < size && finished {
        let pack = volume.path_of(name);
        tracing::warn!(pack = %pack.display(), whole, size, "truncated unacknowledged blobs");
        disk.truncate(whole)?;
    }
    rewrite_range(volume, name, found.last(BATCH_MAX), whole)?;
    disk.sync()?;
    volume.sync()
}

/// The result of the verification of all packs.
#[derive(Debug, Default)]
pub struct PackCheck {
    /// Number of packs.
    pub packs: u64,
    /// Blobs with the right digest, and their lengths.
    pub whole: BTreeMap<Digest, u64>,
    /// Bytes of the torn tail of the newest pack.
    pub unfinished: u64,
    /// Descriptions of the damage.
    pub damaged: Vec<String>,
}

/// Verifies every blob of every pack.
pub fn check(volume: &dyn Volume) -> io::Result<PackCheck> {
    let packs = packs(volume)?;
    let mut checked = PackCheck { packs: packs.len() as u64, ..PackCheck::default() };
    for pack in &packs {
        let name = name(*pack);
        let found = scan::scan(volume, &name)?;
        checked.whole.extend(found.whole.iter().map(|found| (found.digest, found.length.into())));
        checked.damaged.extend(found.damaged.iter().map(|damage| format!("{name}: {damage}")));
        let behind = found.size.saturating_sub(found.end);
        if packs.last() == Some(pack) && found.finished {
            checked.unfinished = behind;
        } else if behind > 0 && found.finished {
            checked.damaged.push(format!("{name}: no complete blob follows byte {}", found.end));
        }
    }
    Ok(checked)
}

/// The writer of the newest pack.
struct Appender {
    volume: Arc<dyn Volume>,
    index: Index,
    spare: BufferPool,
    pack: u32,
    /// Whether that pack's file exists.
    pack_exists: bool,
    /// `None` before the first blob, and when a new pack must be created.
    disk: Option<Box<dyn AppendFile>>,
    /// Size of the complete, durable blobs in it, in bytes.
    length: u64,
    /// Whether the bytes of a failed batch follow them.
    has_failed_tail: bool,
    /// Whether an fsync failed. Nothing is written over a truncated tail then.
    sync_failed: bool,
}

impl Appender {
    fn run(&mut self, queue: &Receiver<AppendJob>) {
        let mut gather = GroupCommit::default();
        while let Ok(first) = queue.recv() {
            gather.wait();
            let mut batch = vec![first];
            while batch.len() < BATCH_MAX
                && let Ok(next) = queue.try_recv()
            {
                batch.push(next);
            }
            gather.note_batch(batch.len());
            let result = self.write(&batch);
            for job in batch {
                let answer = match &result {
                    Ok(()) => Ok(job.digest),
                    Err(error) if is_full(error) => Err(BlobError::Full),
                    Err(error) => Err(BlobError::Failed(io::Error::other(error.to_string()))),
                };
                self.recycle_buffer(job.bytes);
                (job.done)(answer);
            }
        }
    }

    /// Returns a buffer to the pool.
    fn recycle_buffer(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < POOLED_BUFFERS_MAX {
            spare.push(buffer);
        }
    }

    /// Writes a batch atomically and durably.
    fn write(&mut self, batch: &[AppendJob]) -> io::Result<()> {
        self.make_ready()?;
        let disk = self.disk.as_mut().ok_or_else(|| io::Error::other("no pack is open"))?;
        let mut places = Vec::with_capacity(batch.len());
        let written = append(disk.as_mut(), self.length, batch, |job, offset| {
            let length = u32::try_from(job.bytes.len()).map_err(io::Error::other)?;
            places.push((job.digest, BlobLocation { pack: self.pack, offset, length }));
            Ok(length)
        });
        let synced = match written {
            Ok(length) => disk.sync().map(|()| length).inspect_err(|_| {
                // The system may have dropped the dirty pages: a second fsync would report success,
                // so this pack ends here.
                self.sync_failed = true;
            }),
            error => error,
        };
        let length = match synced {
            Ok(length) => length,
            Err(error) => {
                self.has_failed_tail = true;
                if let Err(stays) = self.truncate_failed_batch() {
                    tracing::warn!(%stays, pack = self.pack, "a failed batch is not truncated yet");
                }
                return Err(error);
            }
        };
        self.length = length;
        self.index.write().unwrap_or_else(PoisonError::into_inner).extend(places);
        Ok(())
    }

    /// Truncates the bytes of a failed batch, durably. If they reappeared after a power failure,
    /// they would be mixed with the next batch.
    fn truncate_failed_batch(&mut self) -> io::Result<()> {
        if let Some(disk) = self.disk.as_mut().filter(|_| self.has_failed_tail) {
            disk.truncate(self.length)?;
            disk.sync()?;
            self.has_failed_tail = false;
        }
        Ok(())
    }

    /// Creates a pack for this process, and a new one when the pack is full or an fsync failed.
    fn make_ready(&mut self) -> io::Result<()> {
        // First nothing else is written, not even to another pack: recovery looks for a torn tail
        // only in the newest pack.
        self.truncate_failed_batch()?;
        if self.disk.is_some() && self.length < PACK_BYTES_MAX && !self.sync_failed {
            return Ok(());
        }
        self.disk = None;
        if self.pack_exists {
            self.pack =
                self.pack.checked_add(1).ok_or_else(|| io::Error::other("too many packs"))?;
        }
        self.pack_exists = true;
        let disk = self.volume.append_to(&name(self.pack))?;
        // Blobs are written to a pack only after its name is durable.
        self.volume.sync()?;
        (self.disk, self.length, self.sync_failed) = (Some(disk), 0, false);
        Ok(())
    }
}

/// Appends blobs at offset `length` without copying them, and returns the new length. `place`
/// receives the offset of each blob and returns the blob's length.
fn append(
    disk: &mut dyn AppendFile,
    mut length: u64,
    batch: &[AppendJob],
    mut place: impl FnMut(&AppendJob, u64) -> io::Result<u32>,
) -> io::Result<u64> {
    let mut heads = Vec::with_capacity(batch.len());
    for job in batch {
        let offset = length.saturating_add(HEADER_BYTES as u64);
        let bytes = place(job, offset)?;
        let mut head = [0; HEADER_BYTES];
        let (before, digest) = head.split_at_mut(HEADER_BYTES - job.digest.0.len());
        before.copy_from_slice(&bytes.to_le_bytes());
        digest.copy_from_slice(&job.digest.0);
        heads.push(head);
        length = offset.saturating_add(u64::from(bytes));
    }
    let mut parts = Vec::with_capacity(heads.len().saturating_mul(2));
    for (head, job) in heads.iter().zip(batch) {
        parts.extend([IoSlice::new(head), IoSlice::new(&job.bytes)]);
    }
    disk.append_all(&mut parts)?;
    Ok(length)
}

#[cfg(test)]
#[path = "pack_tests.rs"]
mod tests;
