//! A simulated disk in memory: unsynced data can be lost or torn at a power failure, the disk can
//! be full, a sync can fail, and the process can crash at any operation.

use std::collections::BTreeMap;
use std::io::{self, Cursor};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use florin_protocol::{Digest, blob_digest};
use florin_store::{AppendFile, ReadSeek, Volume};
use rand_chacha::ChaCha8Rng;

use florin_sim::random::uniform_below;

/// Bytes per atomic write.
const SECTOR: usize = 512;
/// A full disk still has space for fewer bytes than this: part of a write, or a small file.
const SLACK: u64 = 2_000;

/// The identity of a file, independent of its name.
type Inode = usize;

#[derive(Clone, Debug)]
enum DiskOp {
    Append(Inode, usize, Vec<u8>),
    Truncate(Inode, usize),
    Name(NameChange),
}

impl DiskOp {
    /// The file whose content it changes.
    const fn file(&self) -> Option<Inode> {
        match self {
            Self::Append(inode, ..) | Self::Truncate(inode, _) => Some(*inode),
            Self::Name(_) => None,
        }
    }

    /// The same operation on the first file.
    fn on_first(&self) -> Self {
        match self {
            Self::Append(_, at, bytes) => Self::Append(0, *at, bytes.clone()),
            Self::Truncate(_, length) => Self::Truncate(0, *length),
            Self::Name(name) => Self::Name(name.clone()),
        }
    }
}

#[derive(Clone, Debug)]
enum NameChange {
    Made(String, Inode),
    Renamed(String, String),
    Removed(String),
}

#[derive(Clone, Debug, Default)]
struct DiskContent {
    names: BTreeMap<String, Inode>,
    files: Vec<Vec<u8>>,
}

impl DiskContent {
    fn file(&mut self, inode: Inode) -> &mut Vec<u8> {
        let count = self.files.len().max(inode + 1);
        self.files.resize_with(count, Vec::new);
        &mut self.files[inode]
    }

    fn write(&mut self, inode: Inode, at: usize, bytes: &[u8]) {
        let file = self.file(inode);
        file.resize(file.len().max(at + bytes.len()), 0);
        file[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn name(&mut self, name: &NameChange) {
        match name {
            NameChange::Made(name, inode) => drop(self.names.insert(name.clone(), *inode)),
            NameChange::Renamed(from, to) => {
                if let Some(inode) = self.names.remove(from) {
                    self.names.insert(to.clone(), inode);
                }
            }
            NameChange::Removed(name) => drop(self.names.remove(name)),
        }
    }

    fn apply(&mut self, op: &DiskOp) {
        match op {
            DiskOp::Append(inode, at, bytes) => self.write(*inode, *at, bytes),
            DiskOp::Truncate(inode, length) => self.file(*inode).resize(*length, 0),
            DiskOp::Name(name) => self.name(name),
        }
    }
}

/// Faults of the disk, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// Writing operations at which the process crashes.
    pub crashes: u64,
    /// Failed syncs.
    pub sync_fails: u64,
    /// Failed syncs after which the system treats unwritten data as written: a later sync does not
    /// write it either, and reads return it until a power failure. Linux behaves like this.
    pub lost_writes: u64,
}

#[derive(Debug)]
struct DiskState {
    /// The content that processes read.
    visible: DiskContent,
    /// The content that survives a power failure.
    durable: DiskContent,
    /// Operations since the last sync, in order.
    unsynced: Vec<DiskOp>,
    faults: DiskFaults,
    rng: ChaCha8Rng,
    /// Remaining bytes while the disk is full.
    free_bytes: Option<u64>,
    /// Whether the process crashed at an operation; all operations fail until a restart.
    is_crashed: bool,
    /// Planted bug: syncs of the journal without effect, in thousandths.
    ignored_syncs: u64,
    /// Number of started blob writes.
    puts: u64,
}

/// The disk of one machine.
#[derive(Clone, Debug)]
pub(super) struct SimDisk(Arc<Mutex<DiskState>>);

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub(super) fn new(rng: ChaCha8Rng) -> Self {
        Self(Arc::new(Mutex::new(DiskState {
            visible: DiskContent::default(),
            durable: DiskContent::default(),
            unsynced: Vec::new(),
            faults: DiskFaults::default(),
            rng,
            free_bytes: None,
            is_crashed: false,
            ignored_syncs: 0,
            puts: 0,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, DiskState> {
        // One thread simulates one seed, so a poisoned lock leaves no inconsistent state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the faults of the disk.
    pub(super) fn set_faults(&self, faults: DiskFaults) {
        self.lock().faults = faults;
    }

    /// Makes the disk full, or gives it space again.
    pub(super) fn set_full(&self, full: bool) {
        let mut state = self.lock();
        let slack = uniform_below(&mut state.rng, SLACK);
        state.free_bytes = full.then_some(slack);
    }

    /// Planted bug: syncs of the journal succeed without effect, at this rate in thousandths.
    pub(super) fn set_ignored_syncs(&self, lies: u64) {
        self.lock().ignored_syncs = lies;
    }

    /// Whether the process crashed at an operation.
    #[must_use]
    pub(super) fn is_crashed(&self) -> bool {
        self.lock().is_crashed
    }

    /// The process ends. Its writes remain, synced or not.
    pub(super) fn end_process(&self) {
        self.lock().is_crashed = false;
    }

    /// A power failure: each sector of a file has its content from any time since the last sync,
    /// the file has any length that it had, and each unsynced name exists or not.
    pub(super) fn power_fails(&self) {
        let mut state = self.lock();
        let mut content = std::mem::take(&mut state.durable);
        let unsynced = std::mem::take(&mut state.unsynced);
        let mut versions: BTreeMap<Inode, Vec<Vec<u8>>> = BTreeMap::new();
        for op in &unsynced {
            let Some(inode) = op.file() else {
                if uniform_below(&mut state.rng, 2) == 0 {
                    content.apply(op);
                }
                continue;
            };
            let all = versions.entry(inode).or_insert_with(|| vec![content.file(inode).clone()]);
            let mut next = DiskContent {
                files: all.last().cloned().into_iter().collect(),
                ..DiskContent::default()
            };
            next.apply(&op.on_first());
            all.extend(next.files);
        }
        for (inode, all) in versions {
            *content.file(inode) = torn(&all, &mut state.rng);
        }
        // A name can reach the disk before the first byte of its file.
        let last = content.names.values().copied().max().unwrap_or_default();
        content.file(last);
        state.visible = content.clone();
        state.durable = content;
        state.is_crashed = false;
    }

    /// Stores a blob durably under its digest.
    ///
    /// # Errors
    /// The error of the disk.
    pub(super) fn put_blob(&self, bytes: &[u8]) -> io::Result<Digest> {
        let digest = blob_digest(bytes);
        let name = blob_name(digest);
        if self.open(&name).is_ok() {
            // The name can be left by a process that was killed before the blob was durable.
            self.sync()?;
            return Ok(digest);
        }
        // Each write uses a new temporary name, as in production: with a reused name a power
        // failure can leave either file.
        let unfinished = {
            let mut state = self.lock();
            state.puts += 1;
            format!("{name}.{}", state.puts)
        };
        let mut file = self.append_to(&unfinished)?;
        file.truncate(0)?;
        let written = file.append(bytes).and_then(|()| file.sync());
        if let Err(error) = written.and_then(|()| self.rename(&unfinished, &name)) {
            self.remove(&unfinished)?;
            return Err(error);
        }
        self.sync()?;
        Ok(digest)
    }

    /// Reads a blob by its digest.
    ///
    /// # Errors
    /// `NotFound` if the blob is missing or its content does not match the digest.
    pub(super) fn get_blob(&self, digest: Digest) -> io::Result<Vec<u8>> {
        let (mut file, _) = self.open(&blob_name(digest))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        if blob_digest(&bytes) == digest { Ok(bytes) } else { Err(io::ErrorKind::NotFound.into()) }
    }
}

fn blob_name(digest: Digest) -> String {
    format!("blob-{digest}")
}

/// The content after a power failure of a file with these versions since its last sync: the first,
/// the last, or any version per sector.
fn torn(versions: &[Vec<u8>], rng: &mut ChaCha8Rng) -> Vec<u8> {
    let any = |rng: &mut ChaCha8Rng| uniform_below(rng, versions.len() as u64) as usize;
    match uniform_below(rng, 4) {
        0 => return versions[0].clone(),
        1 => return versions[versions.len() - 1].clone(),
        _ => {}
    }
    let length = versions[any(rng)].len();
    let mut file = vec![0; length];
    for (n, sector) in file.chunks_mut(SECTOR).enumerate() {
        let version = &versions[any(rng)];
        let from = version.get(n * SECTOR..).unwrap_or_default();
        let there = from.len().min(sector.len());
        sector[..there].copy_from_slice(&from[..there]);
    }
    file
}

fn crashed() -> io::Error {
    io::Error::other("the process is dead")
}

impl DiskState {
    /// Executes an operation, or crashes before or after it.
    fn op(&mut self, op: DiskOp) -> io::Result<()> {
        if self.is_crashed {
            return Err(crashed());
        }
        let dies = uniform_below(&mut self.rng, 1_000) < self.faults.crashes;
        if dies && uniform_below(&mut self.rng, 2) == 0 {
            self.is_crashed = true;
            return Err(crashed());
        }
        self.visible.apply(&op);
        self.unsynced.push(op);
        if dies {
            self.is_crashed = true;
            return Err(crashed());
        }
        Ok(())
    }

    fn append(&mut self, inode: Inode, bytes: &[u8]) -> io::Result<()> {
        let at = self.visible.file(inode).len();
        let fits = self.free_bytes.map_or(u64::MAX, |room| room);
        if bytes.len() as u64 > fits {
            // Part of the data is written before the error.
            let part = bytes[..uniform_below(&mut self.rng, fits + 1) as usize].to_vec();
            self.op(DiskOp::Append(inode, at, part))?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        if let Some(room) = &mut self.free_bytes {
            *room -= bytes.len() as u64;
        }
        self.op(DiskOp::Append(inode, at, bytes.to_vec()))
    }

    /// Makes the operations durable for which `concerns` returns true.
    fn sync(&mut self, concerns: impl Fn(&DiskOp) -> bool) -> io::Result<()> {
        if self.is_crashed {
            return Err(crashed());
        }
        if uniform_below(&mut self.rng, 1_000) < self.faults.crashes {
            self.is_crashed = true;
            return Err(crashed());
        }
        let failed = uniform_below(&mut self.rng, 1_000) < self.faults.sync_fails;
        let (synced, left) = std::mem::take(&mut self.unsynced).into_iter().partition(concerns);
        self.unsynced = left;
        let synced: Vec<DiskOp> = synced;
        if failed {
            // After a failed sync the durable part is unknown: here it is a prefix of the
            // operations.
            let part = uniform_below(&mut self.rng, synced.len() as u64 + 1) as usize;
            let drops = uniform_below(&mut self.rng, 1_000) < self.faults.lost_writes;
            for (n, op) in synced.into_iter().enumerate() {
                match &op {
                    _ if n < part => self.durable.apply(&op),
                    // Only bytes are lost; the length and the name of a file are metadata, which is
                    // written separately.
                    DiskOp::Append(inode, at, bytes) if drops => {
                        let end = at + bytes.len();
                        let file = self.durable.file(*inode);
                        file.resize(file.len().max(end), 0);
                    }
                    _ => self.unsynced.push(op),
                }
            }
            return Err(io::Error::other("the disk does not answer"));
        }
        synced.iter().for_each(|op| self.durable.apply(op));
        Ok(())
    }
}

struct FileHandle {
    machine: SimDisk,
    inode: Inode,
    is_journal: bool,
}

impl AppendFile for FileHandle {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.machine.lock().append(self.inode, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.machine.lock();
        let lies = state.ignored_syncs;
        if self.is_journal && lies > 0 && uniform_below(&mut state.rng, 1_000) < lies {
            return Ok(());
        }
        let inode = self.inode;
        state.sync(|op| match op {
            DiskOp::Append(other, ..) | DiskOp::Truncate(other, _) => *other == inode,
            DiskOp::Name(_) => false,
        })
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        let mut state = self.machine.lock();
        let length = usize::try_from(length).map_err(io::Error::other)?;
        if state.free_bytes.is_some() {
            // Truncation frees space.
            state.free_bytes = Some(uniform_below(&mut state.rng, SLACK));
        }
        state.op(DiskOp::Truncate(self.inode, length))
    }
}

impl Volume for SimDisk {
    fn path_of(&self, name: &str) -> PathBuf {
        PathBuf::from(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.lock().visible.names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<(Box<dyn ReadSeek>, u64)> {
        let state = self.lock();
        let inode = state.visible.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        let bytes = state.visible.files.get(*inode).cloned().unwrap_or_default();
        let length = bytes.len() as u64;
        Ok((Box::new(Cursor::new(bytes)), length))
    }

    fn append_to(&self, name: &str) -> io::Result<Box<dyn AppendFile>> {
        let mut state = self.lock();
        let known = state.visible.names.get(name).copied();
        let inode = match known {
            Some(inode) => inode,
            None => {
                let inode = state.visible.files.len().max(state.durable.files.len());
                state.visible.file(inode);
                state.op(DiskOp::Name(NameChange::Made(name.to_owned(), inode)))?;
                inode
            }
        };
        let is_journal = name.starts_with("journal");
        Ok(Box::new(FileHandle { machine: self.clone(), inode, is_journal }))
    }

    fn rewrite(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        let inode = *state.visible.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        state.op(DiskOp::Append(inode, offset, bytes.to_vec()))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.lock().op(DiskOp::Name(NameChange::Renamed(from.to_owned(), to.to_owned())))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        if !state.visible.names.contains_key(name) {
            return Ok(());
        }
        state.op(DiskOp::Name(NameChange::Removed(name.to_owned())))
    }

    fn sync(&self) -> io::Result<()> {
        self.lock().sync(|op| matches!(op, DiskOp::Name(_)))
    }
}
