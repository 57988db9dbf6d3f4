//! Snapshots of the engine's state: taken at a segment boundary of the journal, written by a thread
//! of their own, read during recovery.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use florin_protocol::{Address, Digest, MarketId};

use crate::config::JournalSettings as Settings;
use florin_engine::{Engine, EngineState, EventStatus};
use florin_store::recovery::OldSegments;
use florin_store::{Fold, Journal, JournalEntry, OpenError, Snapshot, Volume, journal, recovery};

/// The journal must grow by the last snapshot's size divided by this before the next snapshot, so
/// that a large state is not written too often.
const GROWTH_PARTS: u64 = 4;

/// The next snapshot is expected to exceed the last one by its size divided by this.
const EXPECTED_GROWTH_PARTS: u64 = 2;

/// Version of the state's encoding. Increment it whenever [`EngineState`] gets other fields, or when the
/// same events lead to another state. Recovery ignores snapshots of another version.
pub const STATE_VERSION: u32 = 22;

/// Encodes a state as a snapshot's bytes; `None` if the encoding fails.
#[must_use]
pub fn to_bytes(state: &EngineState) -> Option<Vec<u8>> {
    to_bytes_with_capacity(state, 0)
}

/// Like [`to_bytes`], with a buffer of `expected` bytes: a buffer that grows on demand can allocate
/// twice the size.
fn to_bytes_with_capacity(state: &EngineState, expected: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(expected);
    bytes.extend(STATE_VERSION.to_le_bytes());
    borsh::to_writer(&mut bytes, state).ok()?;
    Some(bytes)
}

/// Decodes the state in a snapshot's bytes.
///
/// # Errors
/// The reason as text.
pub fn from_bytes(bytes: &[u8]) -> Result<EngineState, String> {
    let (version, state) = bytes.split_first_chunk::<4>().ok_or("it is too short")?;
    let version = u32::from_le_bytes(*version);
    if version != STATE_VERSION {
        return Err(format!("state version {version}; this program reads {STATE_VERSION}"));
    }
    borsh::from_slice(state).map_err(|error| format!("its state cannot be read: {error}"))
}

/// Applies one record of a journal to an engine.
fn replay(engine: &mut Engine, record: &JournalEntry) -> Result<(), String> {
    match engine.apply(&record.event, record.now) {
        Ok(applied) if applied.status == EventStatus::New => Ok(()),
        Ok(_) => Err("it changes nothing".to_owned()),
        Err(rejection) => Err(rejection.to_string()),
    }
}

/// Calls `work` with the fold that replays a history into an engine.
pub fn with_replay_target<T>(
    market: MarketId,
    coordinator: Address,
    work: impl FnOnce(&Fold<'_, Engine>) -> T,
) -> T {
    let begin = |state: Option<&[u8]>| match state {
        None => Ok(Engine::new(market, coordinator)),
        Some(bytes) => {
            from_bytes(bytes).map(|state| Engine::from_state(market, coordinator, state))
        }
    };
    let take = |engine: &mut Engine, record: &JournalEntry| replay(engine, record);
    work(&Fold { restore: &begin, apply: &take })
}

/// Opens the journal and snapshots on a volume and recovers the engine.
pub(super) fn open(
    volume: &Arc<dyn Volume>,
    owner: Digest,
    market: MarketId,
    coordinator: Address,
) -> Result<(Engine, Journal), OpenError> {
    with_replay_target(market, coordinator, |fold| journal::open(volume, owner, fold))
}

/// Decides when a snapshot is due and sends it to the writer thread.
#[derive(Debug)]
pub struct Snapshotter {
    settings: Settings,
    snapshots: SyncSender<Snapshot>,
    busy: Arc<AtomicBool>,
    last_bytes: u64,
}

impl Snapshotter {
    /// Creates the scheduler and the writer that processes its snapshots.
    #[must_use]
    pub fn new(settings: Settings) -> (Self, SnapshotWriter) {
        let (snapshots, queue) = sync_channel(1);
        let busy = Arc::new(AtomicBool::new(false));
        let old_segments = if settings.retain { OldSegments::Retain } else { OldSegments::Remove };
        let writing = SnapshotWriter { queue, busy: Arc::clone(&busy), old_segments };
        (Self { settings, snapshots, busy, last_bytes: 0 }, writing)
    }

    /// Takes a snapshot if one is due. A failure is not fatal: only the next start takes longer.
    pub fn snapshot_if_due(&mut self, journal: &mut Journal, engine: &Engine) {
        let since = journal.growth();
        let many = since.events >= self.settings.snapshot_events
            || since.bytes >= self.settings.snapshot_mib.saturating_mul(crate::config::MIB);
        let grown = since.bytes >= self.last_bytes.checked_div(GROWTH_PARTS).unwrap_or_default();
        if many && grown && !self.busy.load(Ordering::Acquire) {
            self.take_snapshot(journal, engine);
        }
    }

    fn take_snapshot(&mut self, journal: &mut Journal, engine: &Engine) {
        // The counters restart even if this snapshot fails, so the next try waits for as much
        // growth.
        let since = journal.growth();
        journal.reset_growth();
        tracing::debug!(?since, "a snapshot is due");
        let at = match journal.rotate_segment() {
            Ok(at) => at,
            Err(error) => {
                tracing::warn!(%error, "no snapshot: the journal segment cannot be closed");
                return;
            }
        };
        // Unused capacity costs nothing: the system maps its pages only on first write.
        let more = self.last_bytes.checked_div(EXPECTED_GROWTH_PARTS).unwrap_or_default();
        let expected = self.last_bytes.saturating_add(more);
        let expected = usize::try_from(expected).unwrap_or_default();
        let Some(state) = to_bytes_with_capacity(engine.state(), expected) else {
            tracing::error!("no snapshot: the state cannot be encoded");
            return;
        };
        self.last_bytes = state.len() as u64;
        self.busy.store(true, Ordering::Release);
        if self.snapshots.try_send(Snapshot { at, state }).is_err() {
            // The writer resets the flag only for a snapshot that it has received.
            self.busy.store(false, Ordering::Release);
            tracing::error!("no snapshot: the writer thread has ended");
        }
    }
}

/// Writes the queued snapshots.
#[derive(Debug)]
pub struct SnapshotWriter {
    queue: Receiver<Snapshot>,
    busy: Arc<AtomicBool>,
    old_segments: OldSegments,
}

impl SnapshotWriter {
    /// Writes each snapshot, then removes the files it makes obsolete. Holds `files` meanwhile, so
    /// that no backup copies them at the same time.
    pub(super) fn run(self, volume: &dyn Volume, owner: Digest, files: &Mutex<()>) {
        while let Ok(snapshot) = self.queue.recv() {
            let _held = files.lock().unwrap_or_else(PoisonError::into_inner);
            self.write(volume, owner, &snapshot);
        }
    }

    /// Writes the queued snapshots on the calling thread.
    pub fn drain(&self, volume: &dyn Volume, owner: Digest) {
        while let Ok(snapshot) = self.queue.try_recv() {
            self.write(volume, owner, &snapshot);
        }
    }

    fn write(&self, volume: &dyn Volume, owner: Digest, snapshot: &Snapshot) {
        let (records, bytes) = (snapshot.at.records, snapshot.state.len());
        match recovery::store_snapshot(volume, owner, snapshot, self.old_segments) {
            Ok(()) => tracing::info!(records, bytes, "snapshot written"),
            Err(error) => tracing::warn!(records, %error, "the snapshot cannot be written"),
        }
        self.busy.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use florin_store::LocalVolume;

    use super::*;

    #[test]
    fn a_snapshot_without_a_writer_does_not_count_as_being_written() {
        let dir = tempfile::tempdir().unwrap();
        let volume: Arc<dyn Volume> = Arc::new(LocalVolume(dir.path().to_owned()));
        let market = MarketId { chain: florin_protocol::ChainId(1), genesis: Digest([7; 32]) };
        let (engine, mut journal) =
            open(&volume, Digest([5; 32]), market, Address([2; 20])).unwrap();
        let settings = Settings { snapshot_events: 0, ..Settings::default() };
        let (mut snapshotter, writer) = Snapshotter::new(settings);
        snapshotter.snapshot_if_due(&mut journal, &engine);
        assert!(snapshotter.busy.load(Ordering::Acquire), "the snapshot is queued");
        writer.drain(volume.as_ref(), journal.owner());
        assert!(!snapshotter.busy.load(Ordering::Acquire), "the snapshot is written");
        drop(writer);
        snapshotter.take_snapshot(&mut journal, &engine);
        assert!(!snapshotter.busy.load(Ordering::Acquire), "the writer has ended");
    }
}
