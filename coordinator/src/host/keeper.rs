//! Snapshots of the engine's state: taken at a segment boundary of the journal, written by a thread
//! of their own, read during recovery.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use florin_protocol::{Address, Digest, MarketId};

use super::turn::replay;
use crate::config::Journal as Settings;
use florin_engine::{Engine, State};
use florin_store::{Fold, Journal, OpenError, Record, Snapshot, Volume, history};

/// The journal must grow by the last snapshot's size divided by this before the next snapshot, so
/// that a large state is not written too often.
const GROWTH_PARTS: u64 = 4;

/// The next snapshot is expected to exceed the last one by its size divided by this.
const EXPECTED_GROWTH_PARTS: u64 = 2;

/// Version of the state's encoding. Increment it whenever [`State`] gets other fields, or when the
/// same events lead to another state. Recovery ignores snapshots of another version.
pub const STATE_VERSION: u32 = 4;

/// Encodes a state as a snapshot's bytes; `None` if the encoding fails.
#[must_use]
pub fn to_bytes(state: &State) -> Option<Vec<u8>> {
    to_bytes_within(state, 0)
}

/// Like [`to_bytes`], with a buffer of `expected` bytes: a buffer that grows on demand can allocate
/// twice the size.
fn to_bytes_within(state: &State, expected: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(expected);
    bytes.extend(STATE_VERSION.to_le_bytes());
    borsh::to_writer(&mut bytes, state).ok()?;
    Some(bytes)
}

/// Decodes the state in a snapshot's bytes.
///
/// # Errors
/// The reason as text.
pub fn from_bytes(bytes: &[u8]) -> Result<State, String> {
    let (version, state) = bytes.split_first_chunk::<4>().ok_or("it is too short")?;
    let version = u32::from_le_bytes(*version);
    if version != STATE_VERSION {
        return Err(format!("state version {version}; this program reads {STATE_VERSION}"));
    }
    borsh::from_slice(state).map_err(|error| format!("its state cannot be read: {error}"))
}

/// Calls `work` with the fold that replays a history into an engine.
pub fn with_fold<T>(
    market: MarketId,
    coordinator: Address,
    work: impl FnOnce(&Fold<'_, Engine>) -> T,
) -> T {
    let begin = |state: Option<&[u8]>| match state {
        None => Ok(Engine::new(market, coordinator)),
        Some(bytes) => from_bytes(bytes).map(|state| Engine::with(market, coordinator, state)),
    };
    let take = |engine: &mut Engine, record: &Record| replay(engine, record);
    work(&Fold { begin: &begin, take: &take })
}

/// Opens the journal and snapshots on a volume and recovers the engine.
pub(super) fn open(
    volume: &Arc<dyn Volume>,
    owner: Digest,
    market: MarketId,
    coordinator: Address,
) -> Result<(Engine, Journal), OpenError> {
    with_fold(market, coordinator, |fold| history::open(volume, owner, fold))
}

/// Decides when a snapshot is due and sends it to the writer thread.
#[derive(Debug)]
pub struct Keeper {
    settings: Settings,
    snapshots: SyncSender<Snapshot>,
    busy: Arc<AtomicBool>,
    last_bytes: u64,
}

impl Keeper {
    /// Creates the scheduler and the writer that processes its snapshots.
    #[must_use]
    pub fn new(settings: Settings) -> (Self, Writing) {
        let (snapshots, queue) = sync_channel(1);
        let busy = Arc::new(AtomicBool::new(false));
        let writing = Writing { queue, busy: Arc::clone(&busy), keeps: settings.keep };
        (Self { settings, snapshots, busy, last_bytes: 0 }, writing)
    }

    /// Takes a snapshot if one is due. A failure is not fatal: only the next start takes longer.
    pub fn see(&mut self, journal: &mut Journal, engine: &Engine) {
        let since = journal.since();
        let many = since.events >= self.settings.snapshot_events
            || since.bytes >= self.settings.snapshot_mib.saturating_mul(crate::config::MIB);
        let grown = since.bytes >= self.last_bytes.checked_div(GROWTH_PARTS).unwrap_or_default();
        if many && grown && !self.busy.load(Ordering::Acquire) {
            self.make(journal, engine);
        }
    }

    fn make(&mut self, journal: &mut Journal, engine: &Engine) {
        // The counters restart even if this snapshot fails, so the next try waits for as much
        // growth.
        let since = journal.since();
        journal.count_anew();
        tracing::debug!(?since, "a snapshot is due");
        let at = match journal.cut() {
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
        let Some(state) = to_bytes_within(engine.state(), expected) else {
            tracing::error!("no snapshot: the state cannot be encoded");
            return;
        };
        self.last_bytes = state.len() as u64;
        self.busy.store(true, Ordering::Release);
        if self.snapshots.try_send(Snapshot { at, state }).is_err() {
            tracing::error!("no snapshot: the writer thread has ended");
        }
    }
}

/// Writes the queued snapshots.
#[derive(Debug)]
pub struct Writing {
    queue: Receiver<Snapshot>,
    busy: Arc<AtomicBool>,
    keeps: bool,
}

impl Writing {
    /// Writes each snapshot, then removes the files it makes obsolete. Holds `files` meanwhile, so
    /// that no backup copies them at the same time.
    pub(super) fn work(self, volume: &dyn Volume, owner: Digest, files: &Mutex<()>) {
        while let Ok(snapshot) = self.queue.recv() {
            let _held = files.lock().unwrap_or_else(PoisonError::into_inner);
            self.write(volume, owner, &snapshot);
        }
    }

    /// Writes the queued snapshots on the calling thread.
    pub fn work_off(&self, volume: &dyn Volume, owner: Digest) {
        while let Ok(snapshot) = self.queue.try_recv() {
            self.write(volume, owner, &snapshot);
        }
    }

    fn write(&self, volume: &dyn Volume, owner: Digest, snapshot: &Snapshot) {
        let (records, bytes) = (snapshot.at.records, snapshot.state.len());
        match history::keep(volume, owner, snapshot, self.keeps) {
            Ok(()) => tracing::info!(records, bytes, "snapshot written"),
            Err(error) => tracing::warn!(records, %error, "the snapshot cannot be written"),
        }
        self.busy.store(false, Ordering::Release);
    }
}
