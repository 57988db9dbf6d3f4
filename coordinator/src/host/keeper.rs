//! Snapshots of the engine's state: made where the journal is cut, written by a thread of their own, read at the start.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use florin_protocol::{Address, Digest, Market};

use super::turn::replay;
use crate::config::Journal as Settings;
use florin_engine::{Engine, State};
use florin_store::{Fold, Journal, OpenError, Record, Snapshot, Volume, history};

/// A snapshot is made only once the journal has grown by this part of the last one, so that a large state is not
/// written more often than it is worth.
const GROWTH_PARTS: u64 = 4;

/// Part of the last snapshot by which the next one is expected to be longer.
const EXPECTED_GROWTH_PARTS: u64 = 2;

/// The form of a state's bytes. Grows whenever [`State`] gets other fields, or its rules make something else of the same
/// events: a snapshot of another version is not used.
pub const STATE_VERSION: u32 = 4;

/// A state as a snapshot holds it.
#[must_use]
pub fn to_bytes(state: &State) -> Option<Vec<u8>> {
    to_bytes_within(state, 0)
}

/// The same for a state that is expected to take so many bytes: what grows by itself takes up to twice of them.
fn to_bytes_within(state: &State, expected: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(expected);
    bytes.extend(STATE_VERSION.to_le_bytes());
    borsh::to_writer(&mut bytes, state).ok()?;
    Some(bytes)
}

/// The state that a snapshot's bytes hold.
///
/// # Errors
/// In words, why they do not.
pub fn from_bytes(bytes: &[u8]) -> Result<State, String> {
    let (version, state) = bytes.split_first_chunk::<4>().ok_or("it is too short")?;
    let version = u32::from_le_bytes(*version);
    if version != STATE_VERSION {
        return Err(format!("version {version} of the state, this program reads {STATE_VERSION}"));
    }
    borsh::from_slice(state).map_err(|error| format!("its state cannot be read: {error}"))
}

/// Lends out what folds a history into an engine.
pub fn with_fold<T>(
    market: Market,
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

/// Opens journal and snapshots of a folder.
pub(super) fn open(
    volume: &Arc<dyn Volume>,
    owner: Digest,
    market: Market,
    coordinator: Address,
) -> Result<(Engine, Journal), OpenError> {
    with_fold(market, coordinator, |fold| history::open(volume, owner, fold))
}

/// Decides when a snapshot is due, and hands it to whoever writes it.
#[derive(Debug)]
pub struct Keeper {
    settings: Settings,
    snapshots: SyncSender<Snapshot>,
    busy: Arc<AtomicBool>,
    last_bytes: u64,
}

impl Keeper {
    /// A keeper, and what is to be worked off beside it.
    #[must_use]
    pub fn new(settings: Settings) -> (Self, Writing) {
        let (snapshots, queue) = sync_channel(1);
        let busy = Arc::new(AtomicBool::new(false));
        let writing = Writing { queue, busy: Arc::clone(&busy), keeps: settings.keep };
        (Self { settings, snapshots, busy, last_bytes: 0 }, writing)
    }

    /// Makes a snapshot if one is due. Without it the coordinator goes on: the next start takes longer, nothing else.
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
        // Whatever comes of it, the next one is tried after as much again.
        let since = journal.since();
        journal.count_anew();
        tracing::debug!(?since, "a snapshot is due");
        let at = match journal.cut() {
            Ok(at) => at,
            Err(error) => {
                tracing::warn!(%error, "no snapshot: the journal cannot be cut");
                return;
            }
        };
        // What is not filled of it is never touched.
        let more = self.last_bytes.checked_div(EXPECTED_GROWTH_PARTS).unwrap_or_default();
        let expected = self.last_bytes.saturating_add(more);
        let expected = usize::try_from(expected).unwrap_or_default();
        let Some(state) = to_bytes_within(engine.state(), expected) else {
            tracing::error!("no snapshot: the state has no bytes");
            return;
        };
        self.last_bytes = state.len() as u64;
        self.busy.store(true, Ordering::Release);
        if self.snapshots.try_send(Snapshot { at, state }).is_err() {
            tracing::error!("no snapshot: the thread that writes it is gone");
        }
    }
}

/// The snapshots to be written.
#[derive(Debug)]
pub struct Writing {
    queue: Receiver<Snapshot>,
    busy: Arc<AtomicBool>,
    keeps: bool,
}

impl Writing {
    /// Writes each snapshot, then removes what it makes superfluous, unless somebody copies `files` meanwhile.
    pub(super) fn work(self, volume: &dyn Volume, owner: Digest, files: &Mutex<()>) {
        while let Ok(snapshot) = self.queue.recv() {
            let _held = files.lock().unwrap_or_else(PoisonError::into_inner);
            self.write(volume, owner, &snapshot);
        }
    }

    /// Writes what is queued now, without a thread.
    pub fn work_off(&self, volume: &dyn Volume, owner: Digest) {
        while let Ok(snapshot) = self.queue.try_recv() {
            self.write(volume, owner, &snapshot);
        }
    }

    fn write(&self, volume: &dyn Volume, owner: Digest, snapshot: &Snapshot) {
        let (records, bytes) = (snapshot.at.records, snapshot.state.len());
        match history::keep(volume, owner, snapshot, self.keeps) {
            Ok(()) => tracing::info!(records, bytes, "a snapshot is written"),
            Err(error) => tracing::warn!(records, %error, "no snapshot could be written"),
        }
        self.busy.store(false, Ordering::Release);
    }
}
