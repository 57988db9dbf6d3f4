//! Crash-consistency tests: simulated power failures of journal, snapshots and packs, and recovery
//! from them.
//!
//! An in-memory folder records every write, every created, renamed and removed name, and every
//! sync. A crash image contains everything that was synced. Of the rest, it contains a random
//! subset of 512-byte sectors and of name changes. Some images lose power again during recovery.
//! `FLORIN_CRASH_IMAGES` sets the number of images, and `FLORIN_SEED` repeats a run.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Cursor};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use florin_protocol::{Digest, blob_digest};

use super::error::{BlobError, OpenError};
use super::journal::tests::{OWNER, record};
use super::journal::{self, Journal};
use super::pack::PackStore;
use super::recovery::{Fold, OldSegments, RetentionPolicy, store_snapshot_with_policy};
use super::segment::JournalEntry;
use super::snapshot::Snapshot;
use super::volume::{AppendFile, ReadSeek, Volume};

/// Number of images in CI; the embedded ledger has as many.
const IMAGES: u64 = 25_000;
/// Number of images of one history.
const IMAGES_PER_HISTORY: u64 = 250;
/// One of this many images loses power a second time.
const DOUBLE: u64 = 4;
const SECTOR: usize = 512;

/// A file, independent of its name.
type Inode = usize;

#[derive(Clone, Debug)]
enum DiskOp {
    Append(Inode, usize, Vec<u8>),
    Truncate(Inode, usize),
    Sync(Inode),
    /// An fsync failed, and the system discarded the unwritten pages.
    Forgotten(Inode),
    Name(NameChange),
    SyncNames,
    /// This number of records, or this blob, is acknowledged.
    Records(usize),
    Blob(Digest),
}

#[derive(Clone, Debug)]
enum NameChange {
    Made(String, Inode),
    Renamed(String, String),
    Removed(String),
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, Inode>) {
        match self {
            Self::Made(name, inode) => drop(names.insert(name.clone(), *inode)),
            Self::Renamed(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            Self::Removed(name) => drop(names.remove(name)),
        }
    }
}

/// The content of a folder.
#[derive(Clone, Debug, Default)]
struct Content {
    names: BTreeMap<String, Inode>,
    files: Vec<Vec<u8>>,
}

/// A planted bug that the images must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A disk that reports success without syncing.
    NoSync,
    /// A write that is acknowledged before it is synced.
    EarlyAnswer,
    /// A snapshot that is renamed before its bytes are synced.
    EarlyRename,
}

/// An in-memory folder that records its operations.
#[derive(Debug)]
struct Recorder {
    content: Mutex<Content>,
    ops: Mutex<Vec<DiskOp>>,
    bug: Bug,
    /// Syncs fail, the unwritten pages are discarded, and the process ends before it can truncate
    /// anything.
    forgets: Mutex<bool>,
}

impl Recorder {
    fn holding(content: Content, bug: Bug) -> Arc<Self> {
        let (ops, forgets) = (Mutex::default(), Mutex::default());
        Arc::new(Self { content: Mutex::new(content), ops, bug, forgets })
    }

    fn log(&self, op: DiskOp) {
        self.ops.lock().unwrap().push(op);
    }

    fn forget(&self, forgets: bool) {
        *self.forgets.lock().unwrap() = forgets;
    }

    fn name(&self, name: NameChange) {
        name.apply(&mut self.content.lock().unwrap().names);
        self.log(DiskOp::Name(name));
    }
}

/// The volume of a recorder.
#[derive(Clone)]
struct RecordedVolume(Arc<Recorder>);

struct RecordedFile {
    recorder: Arc<Recorder>,
    inode: Inode,
    snapshot: bool,
}

impl AppendFile for RecordedFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let at = {
            let file = &mut self.recorder.content.lock().unwrap().files[self.inode];
            file.extend_from_slice(bytes);
            file.len() - bytes.len()
        };
        self.recorder.log(DiskOp::Append(self.inode, at, bytes.to_vec()));
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        if *self.recorder.forgets.lock().unwrap() {
            self.recorder.log(DiskOp::Forgotten(self.inode));
            return Err(io::Error::other("EIO"));
        }
        let skipped = match self.recorder.bug {
            Bug::None | Bug::EarlyAnswer => false,
            Bug::NoSync => true,
            Bug::EarlyRename => self.snapshot,
        };
        if !skipped {
            self.recorder.log(DiskOp::Sync(self.inode));
        }
        Ok(())
    }
    fn truncate(&mut self, length: u64) -> io::Result<()> {
        if *self.recorder.forgets.lock().unwrap() {
            return Err(io::Error::other("the process is dead"));
        }
        let length = length as usize;
        self.recorder.content.lock().unwrap().files[self.inode].resize(length, 0);
        self.recorder.log(DiskOp::Truncate(self.inode, length));
        Ok(())
    }
}

impl Volume for RecordedVolume {
    fn path_of(&self, name: &str) -> PathBuf {
        PathBuf::from(name)
    }
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.0.content.lock().unwrap().names.keys().cloned().collect())
    }
    fn open(&self, name: &str) -> io::Result<(Box<dyn ReadSeek>, u64)> {
        let content = self.0.content.lock().unwrap();
        let inode = content.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        let bytes = content.files[*inode].clone();
        let length = bytes.len() as u64;
        Ok((Box::new(Cursor::new(bytes)), length))
    }
    fn append_to(&self, name: &str) -> io::Result<Box<dyn AppendFile>> {
        let known = self.0.content.lock().unwrap().names.get(name).copied();
        let inode = known.unwrap_or_else(|| {
            let mut content = self.0.content.lock().unwrap();
            content.files.push(Vec::new());
            content.files.len() - 1
        });
        if known.is_none() {
            self.0.name(NameChange::Made(name.to_owned(), inode));
        }
        let snapshot = name.starts_with("snapshot");
        Ok(Box::new(RecordedFile { recorder: Arc::clone(&self.0), inode, snapshot }))
    }
    fn rewrite(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let inode = {
            let mut content = self.0.content.lock().unwrap();
            let inode = content.names[name];
            write(&mut content.files[inode], offset as usize, bytes);
            inode
        };
        self.0.log(DiskOp::Append(inode, offset as usize, bytes.to_vec()));
        Ok(())
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.name(NameChange::Renamed(from.to_owned(), to.to_owned()));
        Ok(())
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        if self.0.content.lock().unwrap().names.contains_key(name) {
            self.0.name(NameChange::Removed(name.to_owned()));
        }
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        if self.0.bug != Bug::NoSync {
            self.0.log(DiskOp::SyncNames);
        }
        Ok(())
    }
}

/// A small random number generator (SplitMix64), so that the seed reproduces a run.
struct SplitMix64(u64);

impl SplitMix64 {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    /// Whether an unsynced change is on disk after all.
    fn is_on_disk(&mut self) -> bool {
        self.roll(2) == 0
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number")))
}

fn seed() -> u64 {
    let random = || RandomState::new().build_hasher().finish();
    let seed = number("FLORIN_SEED").unwrap_or_else(random);
    println!("FLORIN_SEED={seed}");
    seed
}

/// Acknowledgements before the power failure.
#[derive(Clone, Debug, Default)]
struct Acknowledged {
    records: usize,
    blobs: Vec<Digest>,
}

/// A possible content of the disk after a power failure after these operations, and what was
/// acknowledged by then.
fn image(base: &Content, ops: &[DiskOp], dice: &mut SplitMix64) -> (Content, Acknowledged) {
    let mut acknowledged = Acknowledged::default();
    let mut synced: BTreeMap<Inode, usize> = BTreeMap::new();
    let mut names_synced = 0;
    for (n, op) in ops.iter().enumerate() {
        match op {
            DiskOp::Sync(inode) => drop(synced.insert(*inode, n)),
            DiskOp::SyncNames => names_synced = n,
            DiskOp::Records(records) => acknowledged.records = *records,
            DiskOp::Blob(digest) => acknowledged.blobs.push(*digest),
            _ => {}
        }
    }
    let mut content = base.clone();
    for (n, op) in ops.iter().enumerate() {
        match op {
            DiskOp::Append(inode, at, bytes) if is_forgotten(&ops[n..], *inode) => {
                let file = file(&mut content, *inode);
                file.resize(file.len().max(at + bytes.len()), 0);
            }
            DiskOp::Append(inode, at, bytes) => {
                let file = file(&mut content, *inode);
                if synced.get(inode).is_some_and(|synced| n < *synced) {
                    write(file, *at, bytes);
                } else {
                    tear(file, *at, bytes, dice);
                }
            }
            DiskOp::Truncate(inode, length) => {
                let sure = synced.get(inode).is_some_and(|synced| n < *synced);
                if sure || dice.is_on_disk() {
                    file(&mut content, *inode).resize(*length, 0);
                }
            }
            DiskOp::Name(name) if n < names_synced || dice.is_on_disk() => {
                name.apply(&mut content.names)
            }
            _ => {}
        }
    }
    // A name may be on disk before the first byte of its file.
    let last = content.names.values().copied().max().unwrap_or_default();
    file(&mut content, last);
    (content, acknowledged)
}

/// Whether the next sync of a file fails and discards its pages.
fn is_forgotten(ops: &[DiskOp], inode: Inode) -> bool {
    let next = ops.iter().find_map(|op| match op {
        DiskOp::Sync(other) if *other == inode => Some(false),
        DiskOp::Forgotten(other) if *other == inode => Some(true),
        _ => None,
    });
    next == Some(true)
}

fn file(content: &mut Content, inode: Inode) -> &mut Vec<u8> {
    let count = content.files.len().max(inode + 1);
    content.files.resize_with(count, Vec::new);
    &mut content.files[inode]
}

fn write(file: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    file.resize(file.len().max(at + bytes.len()), 0);
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

/// An unsynced write: nothing of it, all of it, only its length, or some of its sectors.
fn tear(file: &mut Vec<u8>, at: usize, bytes: &[u8], dice: &mut SplitMix64) {
    match dice.roll(4) {
        0 => {}
        1 => write(file, at, bytes),
        how => {
            let mut begin = 0;
            while begin < bytes.len() {
                let end = bytes.len().min(begin + SECTOR - (at + begin) % SECTOR);
                if dice.is_on_disk() {
                    write(file, at + begin, &bytes[begin..end]);
                }
                begin = end;
            }
            if how == 2 {
                file.resize(file.len().max(at + bytes.len()), 0);
            }
        }
    }
}

type All = Vec<JournalEntry>;

fn open(folder: &Arc<dyn Volume>) -> Result<(All, Journal), OpenError> {
    let begin = |bytes: Option<&[u8]>| {
        bytes.map_or(Ok(All::new()), |bytes| borsh::from_slice(bytes).map_err(|e| e.to_string()))
    };
    let take = |all: &mut All, record: &JournalEntry| {
        all.push(record.clone());
        Ok(())
    };
    journal::open(folder, OWNER, &Fold { restore: &begin, apply: &take })
}

/// A written history: the operations and the expected content.
struct Written {
    ops: Vec<DiskOp>,
    records: All,
    blobs: BTreeMap<Digest, Vec<u8>>,
}

/// Retains one snapshot and no older segments, so that recovery depends on that snapshot.
const HARSH: RetentionPolicy = RetentionPolicy { snapshots: 1, segments: OldSegments::Remove };

/// Writes a random history over several process lifetimes.
fn write_history(bug: Bug, dice: &mut SplitMix64) -> Written {
    let recorder = Recorder::holding(Content::default(), bug);
    let folder: Arc<dyn Volume> = Arc::new(RecordedVolume(Arc::clone(&recorder)));
    let (mut records, mut blobs) = (All::new(), BTreeMap::new());
    let mut failed: BTreeMap<Digest, Vec<u8>> = BTreeMap::new();
    for life in 0..=dice.roll(3) {
        if life > 0 && dice.roll(4) == 0 {
            // A start whose own syncs fail.
            recorder.forget(true);
            assert!(open(&folder).is_err());
            drop(PackStore::open(Arc::clone(&folder)));
            recorder.forget(false);
        }
        let (read, mut journal) = open(&folder).unwrap();
        assert_eq!(read, records);
        recorder.log(DiskOp::Records(records.len()));
        let packs = PackStore::open(Arc::clone(&folder)).unwrap();
        // A client that stores such a blob again gets an acknowledgement.
        failed
            .keys()
            .filter(|blob| packs.contains(**blob))
            .for_each(|blob| recorder.log(DiskOp::Blob(*blob)));
        blobs.append(&mut failed);
        for _ in 0..4 + dice.roll(8) {
            match dice.roll(6) {
                0 => {
                    let at = journal.rotate_segment().unwrap();
                    let state = borsh::to_vec(&records).unwrap();
                    let policy = if dice.is_on_disk() {
                        HARSH
                    } else {
                        let retain = dice.is_on_disk();
                        let segments =
                            if retain { OldSegments::Retain } else { OldSegments::Remove };
                        RetentionPolicy { snapshots: 2, segments }
                    };
                    let taken = Snapshot { at, state };
                    store_snapshot_with_policy(folder.as_ref(), OWNER, &taken, policy).unwrap();
                }
                1 => blobs.extend([put(&recorder, &packs, dice)]),
                _ => append(&recorder, &mut journal, &mut records, dice),
            }
        }
        if dice.is_on_disk() {
            // The last syncs fail, then the process ends.
            recorder.forget(true);
            records.push(record(9));
            journal.append(&[record(9)]).unwrap_err();
            failed.extend((0..dice.roll(3)).map(|_| any_blob(dice)));
            failed.values().for_each(|blob| drop(bring(&packs, blob).unwrap_err()));
            drop(packs);
            recorder.forget(false);
        }
    }
    let ops = recorder.ops.lock().unwrap().clone();
    Written { ops, records, blobs }
}

fn append(recorder: &Recorder, journal: &mut Journal, records: &mut All, dice: &mut SplitMix64) {
    let batch: All = (0..=dice.roll(12)).map(|_| record(dice.roll(256) as u8)).collect();
    records.extend(batch.iter().cloned());
    let early = recorder.bug == Bug::EarlyAnswer;
    if early {
        recorder.log(DiskOp::Records(records.len()));
    }
    journal.append(&batch).unwrap();
    if !early {
        recorder.log(DiskOp::Records(records.len()));
    }
}

fn any_blob(dice: &mut SplitMix64) -> (Digest, Vec<u8>) {
    let bytes: Vec<u8> = (0..50 + dice.roll(1_500)).map(|_| dice.roll(256) as u8).collect();
    (blob_digest(&bytes), bytes)
}

fn bring(packs: &PackStore, bytes: &[u8]) -> Result<Digest, BlobError> {
    let (done, answer) = channel();
    let done = Box::new(move |result| done.send(result).unwrap());
    packs.append(bytes.to_vec(), blob_digest(bytes), done);
    answer.recv().unwrap()
}

fn put(recorder: &Recorder, packs: &PackStore, dice: &mut SplitMix64) -> (Digest, Vec<u8>) {
    let (digest, bytes) = any_blob(dice);
    bring(packs, &bytes).unwrap();
    recorder.log(DiskOp::Blob(digest));
    (digest, bytes)
}

/// Recovers from an image: every acknowledged record and blob must be there, and nothing else.
fn survives(
    content: Content,
    sure: &Acknowledged,
    written: &Written,
) -> Result<Arc<Recorder>, String> {
    let recorder = Recorder::holding(content, Bug::None);
    let folder: Arc<dyn Volume> = Arc::new(RecordedVolume(Arc::clone(&recorder)));
    let (all, mut journal) = open(&folder).map_err(|error| error.to_string())?;
    if !written.records.starts_with(&all) {
        return Err(format!("{} records that were never written in this order", all.len()));
    }
    if all.len() < sure.records {
        return Err(format!(
            "{} records were acknowledged, {} were recovered",
            sure.records,
            all.len()
        ));
    }
    let packs = PackStore::open(Arc::clone(&folder)).map_err(|error| error.to_string())?;
    for digest in &sure.blobs {
        let found = packs.read(*digest).and_then(Result::ok);
        if found.as_ref() != written.blobs.get(digest) {
            return Err(format!("blob {} differs from the acknowledged one", digest.short()));
        }
    }
    // The journal continues from there.
    journal.append(&[record(7)]).map_err(|error| error.to_string())?;
    Ok(recorder)
}

/// Tests this number of images of random histories, and returns the failures.
fn failures(images: u64, bug: Bug, seed: u64) -> Vec<String> {
    let mut dice = SplitMix64(seed);
    let mut fallen = Vec::new();
    for history in 0..images.div_ceil(IMAGES_PER_HISTORY) {
        let written = write_history(bug, &mut dice);
        for n in 0..IMAGES_PER_HISTORY.min(images - history * IMAGES_PER_HISTORY) {
            let cut = dice.roll(written.ops.len() as u64 + 1) as usize;
            let (content, sure) = image(&Content::default(), &written.ops[..cut], &mut dice);
            let verdict = survives(content.clone(), &sure, &written).and_then(|recorder| {
                if n % DOUBLE != 0 {
                    return Ok(());
                }
                // The power fails again during the recovery, before anything new is appended.
                let repair = recorder.ops.lock().unwrap().clone();
                let last_append = repair.iter().rposition(|op| matches!(op, DiskOp::Append(..)));
                let cut = dice.roll(last_append.unwrap_or_default() as u64 + 1) as usize;
                let (again, _) = image(&content, &repair[..cut], &mut dice);
                survives(again, &sure, &written).map(|_| ())
            });
            if let Err(what) = verdict {
                let of = written.ops.len();
                fallen.push(format!("history {history}, image {n}, cut at {cut} of {of}: {what}"));
            }
        }
    }
    fallen
}

#[test]
fn a_power_failure_loses_no_acknowledged_write_and_leaves_no_partial_one() {
    let images = number("FLORIN_CRASH_IMAGES").map_or(IMAGES, |all| all / 2);
    let fallen = failures(images, Bug::None, seed());
    assert!(fallen.is_empty(), "{} images: {:#?}", fallen.len(), &fallen[..fallen.len().min(5)]);
}

#[test]
fn recovery_rewrites_a_record_whose_fsync_failed() {
    let recorder = Recorder::holding(Content::default(), Bug::None);
    let folder: Arc<dyn Volume> = Arc::new(RecordedVolume(Arc::clone(&recorder)));
    let (_, mut journal) = open(&folder).unwrap();
    journal.append(&[record(1)]).unwrap();
    recorder.forget(true);
    journal.append(&[record(2)]).unwrap_err();
    recorder.forget(false);
    drop(journal);
    // The process ends without a power failure: the page cache still has the discarded pages.
    let (all, mut journal) = open(&folder).unwrap();
    assert_eq!(all, [record(1), record(2)]);
    journal.append(&[record(3)]).unwrap();
    // Now the power fails, when everything acknowledged is synced.
    let ops = recorder.ops.lock().unwrap().clone();
    let (content, _) = image(&Content::default(), &ops, &mut SplitMix64(1));
    let folder: Arc<dyn Volume> = Arc::new(RecordedVolume(Recorder::holding(content, Bug::None)));
    assert_eq!(open(&folder).unwrap().0, [record(1), record(2), record(3)]);
}

#[test]
fn recovery_rewrites_a_blob_whose_fsync_failed() {
    let recorder = Recorder::holding(Content::default(), Bug::None);
    let folder: Arc<dyn Volume> = Arc::new(RecordedVolume(Arc::clone(&recorder)));
    let packs = PackStore::open(Arc::clone(&folder)).unwrap();
    let (before, failed) = (b"before".as_slice(), b"failed".as_slice());
    bring(&packs, before).unwrap();
    recorder.forget(true);
    bring(&packs, failed).unwrap_err();
    // Until it is truncated, nothing is appended after it or to another pack.
    bring(&packs, b"next").unwrap_err();
    drop(packs);
    recorder.forget(false);
    // The process has ended without a power failure: the page cache still has the discarded pages,
    // and a client that stores the blob again gets an acknowledgement.
    let packs = PackStore::open(Arc::clone(&folder)).unwrap();
    assert!(packs.contains(blob_digest(failed)) && !packs.contains(blob_digest(b"next")));
    drop(packs);
    // Now the power fails, when everything acknowledged is synced.
    let ops = recorder.ops.lock().unwrap().clone();
    let (content, _) = image(&Content::default(), &ops, &mut SplitMix64(1));
    let folder: Arc<dyn Volume> = Arc::new(RecordedVolume(Recorder::holding(content, Bug::None)));
    let packs = PackStore::open(folder).unwrap();
    for bytes in [before, failed] {
        assert_eq!(packs.read(blob_digest(bytes)).unwrap().unwrap(), bytes);
    }
}

#[test]
fn crash_images_find_a_disk_that_does_not_sync() {
    let fallen = failures(500, Bug::NoSync, seed());
    assert!(fallen.len() > 100, "only {} of 500 images failed", fallen.len());
}

#[test]
fn crash_images_find_an_acknowledgement_before_the_sync() {
    let fallen = failures(2_000, Bug::EarlyAnswer, seed());
    assert!(fallen.len() > 20, "only {} of 2000 images failed", fallen.len());
}

#[test]
fn crash_images_find_a_snapshot_renamed_before_its_sync() {
    let fallen = failures(2_000, Bug::EarlyRename, seed());
    assert!(fallen.len() > 10, "only {} of 2000 images failed", fallen.len());
}
