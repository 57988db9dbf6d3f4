//! Small blobs, many to a file: `blobs/packs/0000000000.pack`, … Whoever brings one waits until it is durable; all that
//! wait share one fsync.
//!
//! A frame is `length (u32) | digest | bytes`. A pack is only ever appended to. What a crash can leave is a tail of frames
//! that nobody was told of: when a folder is opened, the newest pack is hashed through, and what lies behind its last whole
//! blob is cut off. Whole blobs behind damage are [found](super::scan) and kept.
//!
//! From then on they count as durable. The last batch of them may not be: its sync may have failed, after which the system
//! takes it for written, and the process may have died before it cut the batch off. So a start writes it again. No batch
//! follows one that failed, in this pack or the next, before that one is cut off: only the newest pack ends like this.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, SeekFrom};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;

use florin_protocol::Digest;

use super::blobs::BlobError;
use super::gather::Gather;
use super::is_full;
use super::scan::{self, HEAD_BYTES, Scan};
use super::volume::{Disk, Volume, write_stretch_again};

/// Largest blob that goes into a pack, in bytes: larger ones have a file of their own.
pub const PACKED_BYTES_MAX: usize = 128 * 1024;
/// A pack that is longer is not appended to any more, in bytes.
const PACK_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Blobs that share one fsync at most.
const BATCH_MAX: usize = 256;
/// Blobs that may wait for the disk; whoever brings more waits to get in.
const QUEUE_MAX: usize = 1_024;
/// Buffers of blobs that are used again; each has at most [`PACKED_BYTES_MAX`].
const SPARE_MAX: usize = 64;

/// Where a blob is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    pack: u32,
    /// Of its first byte.
    offset: u64,
    length: u32,
}

type Index = Arc<RwLock<BTreeMap<Digest, Place>>>;

/// Hears when a blob is durable, or why it is not.
pub type Done = Box<dyn FnOnce(Result<Digest, BlobError>) + Send>;

/// Buffers that were used and are free. Taking memory from the system and giving it back costs more than what is done
/// with it.
type Spare = Arc<Mutex<Vec<Vec<u8>>>>;

struct Job {
    bytes: Vec<u8>,
    digest: Digest,
    done: Done,
}

/// All packs of a folder, and the thread that appends.
pub(super) struct Packs {
    volume: Arc<dyn Volume>,
    index: Index,
    spare: Spare,
    jobs: Mutex<Option<SyncSender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Packs {
    /// Opens a folder's packs and reads what they hold.
    pub(super) fn open(volume: Arc<dyn Volume>) -> io::Result<Self> {
        let packs = packs(volume.as_ref())?;
        let newest = packs.last().copied();
        let mut places = BTreeMap::new();
        for pack in packs {
            read_pack(volume.as_ref(), pack, Some(pack) == newest, &mut places)?;
        }
        let index: Index = Arc::new(RwLock::new(places));
        let spare = Spare::default();
        let (jobs, queue) = sync_channel(QUEUE_MAX);
        let mut appender = Appender {
            volume: Arc::clone(&volume),
            index: Arc::clone(&index),
            spare: Arc::clone(&spare),
            pack: newest.unwrap_or_default(),
            begun: newest.is_some(),
            disk: None,
            length: 0,
            left: false,
            spent: false,
        };
        let thread = std::thread::Builder::new()
            .name("florin-packs".to_owned())
            .spawn(move || appender.run(&queue))?;
        let (jobs, thread) = (Mutex::new(Some(jobs)), Mutex::new(Some(thread)));
        Ok(Self { volume, index, spare, jobs, thread })
    }

    /// An empty buffer with room for so many bytes.
    pub(super) fn buffer(&self, bytes: usize) -> Vec<u8> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffer = spare.unwrap_or_default();
        buffer.reserve_exact(bytes);
        buffer
    }

    fn place(&self, digest: Digest) -> Option<Place> {
        self.index.read().unwrap_or_else(PoisonError::into_inner).get(&digest).copied()
    }

    pub(super) fn contains(&self, digest: Digest) -> bool {
        self.place(digest).is_some()
    }

    /// A blob's bytes as they are on disk: the caller checks them.
    pub(super) fn read(&self, digest: Digest) -> Option<io::Result<Vec<u8>>> {
        let place = self.place(digest)?;
        Some(self.read_at(place))
    }

    fn read_at(&self, place: Place) -> io::Result<Vec<u8>> {
        let (mut file, _) = self.volume.open(&name(place.pack))?;
        file.seek(SeekFrom::Start(place.offset))?;
        let mut bytes = vec![0; usize::try_from(place.length).unwrap_or_default()];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Appends a blob, soon; `done` hears of it when it is durable. Blocks while too many wait.
    pub(super) fn append(&self, bytes: Vec<u8>, digest: Digest, done: Done) {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(jobs) = jobs else {
            return done(Err(BlobError::Failed(io::Error::other("the blob store is closed"))));
        };
        if let Err(returned) = jobs.send(Job { bytes, digest, done }) {
            (returned.0.done)(Err(BlobError::Failed(io::Error::other("the blob store is closed"))));
        }
    }
}

impl Drop for Packs {
    fn drop(&mut self) {
        drop(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that appends to packs panicked");
        }
    }
}

impl std::fmt::Debug for Packs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packs").field("folder", &self.volume.place("")).finish_non_exhaustive()
    }
}

fn name(pack: u32) -> String {
    format!("{pack:010}.pack")
}

/// The number that a pack's name says. A file that is named almost like a pack is none.
fn number(file: &str) -> Option<u32> {
    let number = file.strip_suffix(".pack")?.parse().ok()?;
    (file == name(number)).then_some(number)
}

/// The packs of a folder, oldest first.
fn packs(volume: &dyn Volume) -> io::Result<Vec<u32>> {
    let mut packs: Vec<u32> = volume.names()?.iter().filter_map(|name| number(name)).collect();
    packs.sort_unstable();
    Ok(packs)
}

/// Notes what a pack holds. The newest is hashed through, and so is one whose heads do not add up.
fn read_pack(
    volume: &dyn Volume,
    pack: u32,
    newest: bool,
    places: &mut BTreeMap<Digest, Place>,
) -> io::Result<()> {
    let name = name(pack);
    let place = |found: &scan::Found| {
        let &scan::Found { digest, offset, length } = found;
        (digest, Place { pack, offset, length })
    };
    if !newest && let Some(found) = scan::heads(volume, &name)? {
        // What comes to a blob is seen when it is read.
        places.extend(found.iter().map(place));
        return Ok(());
    }
    let found = scan::scan(volume, &name)?;
    places.extend(found.whole.iter().map(place));
    let path = volume.place(&name);
    let file = path.display();
    for damage in &found.damaged {
        tracing::error!(pack = %file, %damage, "a pack is damaged; whole blobs behind it are kept");
    }
    if newest { settle(volume, &name, &found) } else { Ok(()) }
}

/// Cuts a torn end off the newest pack, and makes durable what is left: what a process that was killed had written and
/// not synced is in the index from now on, and so is what it could not sync.
fn settle(volume: &dyn Volume, name: &str, found: &Scan) -> io::Result<()> {
    let Scan { end: whole, size, finished, .. } = *found;
    let mut disk = volume.append_to(name)?;
    if whole < size && finished {
        let pack = volume.place(name);
        tracing::warn!(pack = %pack.display(), whole, size, "cut off blobs that were never acknowledged");
        disk.truncate(whole)?;
    }
    write_stretch_again(volume, name, found.last(BATCH_MAX), whole)?;
    disk.sync()?;
    volume.sync()
}

/// What was found in all packs.
#[derive(Debug, Default)]
pub struct Checked {
    /// How many packs there are.
    pub packs: u64,
    /// Blobs that have their digests, and their lengths.
    pub whole: BTreeMap<Digest, u64>,
    /// Bytes at the end of the newest that are no whole blob.
    pub unfinished: u64,
    /// What is damaged, in words.
    pub damaged: Vec<String>,
}

/// Hashes every blob of every pack.
pub fn check(volume: &dyn Volume) -> io::Result<Checked> {
    let packs = packs(volume)?;
    let mut checked = Checked { packs: packs.len() as u64, ..Checked::default() };
    for pack in &packs {
        let name = name(*pack);
        let found = scan::scan(volume, &name)?;
        checked.whole.extend(found.whole.iter().map(|found| (found.digest, found.length.into())));
        checked.damaged.extend(found.damaged.iter().map(|damage| format!("{name}: {damage}")));
        let behind = found.size.saturating_sub(found.end);
        if packs.last() == Some(pack) && found.finished {
            checked.unfinished = behind;
        } else if behind > 0 && found.finished {
            checked.damaged.push(format!("{name}: no whole blob lies behind byte {}", found.end));
        }
    }
    Ok(checked)
}

/// Owns the newest pack.
struct Appender {
    volume: Arc<dyn Volume>,
    index: Index,
    spare: Spare,
    pack: u32,
    /// Whether that pack is there, from this life or an earlier one.
    begun: bool,
    /// None until the first blob, and where another pack is to be begun.
    disk: Option<Box<dyn Disk>>,
    /// Bytes of it that are durable: whole blobs.
    length: u64,
    /// What a batch left that failed is still behind them.
    left: bool,
    /// A sync failed: what is cut off is not written over.
    spent: bool,
}

impl Appender {
    fn run(&mut self, queue: &Receiver<Job>) {
        let mut gather = Gather::default();
        while let Ok(first) = queue.recv() {
            gather.wait();
            let mut batch = vec![first];
            while batch.len() < BATCH_MAX
                && let Ok(next) = queue.try_recv()
            {
                batch.push(next);
            }
            gather.shared(batch.len());
            let result = self.write(&batch);
            for job in batch {
                let answer = match &result {
                    Ok(()) => Ok(job.digest),
                    Err(error) if is_full(error) => Err(BlobError::Full),
                    Err(error) => Err(BlobError::Failed(io::Error::other(error.to_string()))),
                };
                self.set_aside(job.bytes);
                (job.done)(answer);
            }
        }
    }

    /// Keeps a buffer for the next blob.
    fn set_aside(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_MAX {
            spare.push(buffer);
        }
    }

    /// Makes a batch durable, or nothing of it.
    fn write(&mut self, batch: &[Job]) -> io::Result<()> {
        self.make_ready()?;
        let disk = self.disk.as_mut().ok_or_else(|| io::Error::other("no pack is open"))?;
        let mut places = Vec::with_capacity(batch.len());
        let written = append(disk.as_mut(), self.length, batch, |job, offset| {
            let length = u32::try_from(job.bytes.len()).map_err(io::Error::other)?;
            places.push((job.digest, Place { pack: self.pack, offset, length }));
            Ok(length)
        });
        let synced = match written {
            Ok(length) => disk.sync().map(|()| length).inspect_err(|_| {
                // The system may have dropped the pages: a second fsync would lie, so this pack ends here.
                self.spent = true;
            }),
            error => error,
        };
        let length = match synced {
            Ok(length) => length,
            Err(error) => {
                self.left = true;
                if let Err(stays) = self.take_back() {
                    tracing::warn!(%stays, pack = self.pack, "a failed batch is not cut off yet");
                }
                return Err(error);
            }
        };
        self.length = length;
        self.index.write().unwrap_or_else(PoisonError::into_inner).extend(places);
        Ok(())
    }

    /// Cuts off what a batch left that failed, for good: were it back after a power cut, it would stand among what is
    /// written next. Half a batch is nobody's.
    fn take_back(&mut self) -> io::Result<()> {
        if let Some(disk) = self.disk.as_mut().filter(|_| self.left) {
            disk.truncate(self.length)?;
            disk.sync()?;
            self.left = false;
        }
        Ok(())
    }

    /// Opens a pack of its own for this process, and the next one when it is long or a sync failed.
    fn make_ready(&mut self) -> io::Result<()> {
        // Until that is done nothing else is written, not to another pack either: a start looks for such an end in the
        // newest only.
        self.take_back()?;
        if self.disk.is_some() && self.length < PACK_BYTES_MAX && !self.spent {
            return Ok(());
        }
        self.disk = None;
        if self.begun {
            self.pack =
                self.pack.checked_add(1).ok_or_else(|| io::Error::other("too many packs"))?;
        }
        self.begun = true;
        let disk = self.volume.append_to(&name(self.pack))?;
        // A pack whose name is not durable takes nothing.
        self.volume.sync()?;
        (self.disk, self.length, self.spent) = (Some(disk), 0, false);
        Ok(())
    }
}

/// Appends blobs behind `length` bytes, from where they lie; returns the length then. `place` is told where each lies and
/// says how long it is.
fn append(
    disk: &mut dyn Disk,
    mut length: u64,
    batch: &[Job],
    mut place: impl FnMut(&Job, u64) -> io::Result<u32>,
) -> io::Result<u64> {
    let mut heads = Vec::with_capacity(batch.len());
    for job in batch {
        let offset = length.saturating_add(HEAD_BYTES as u64);
        let bytes = place(job, offset)?;
        let mut head = [0; HEAD_BYTES];
        let (before, digest) = head.split_at_mut(HEAD_BYTES - job.digest.0.len());
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
