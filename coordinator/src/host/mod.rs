//! Hosts the engine as an actor: one thread owns the engine and its journal, and receives commands
//! from a bounded channel.
//!
//! The thread drains the channel, applies the batch, makes it durable with one fsync, and only then
//! sends replies and dispatches effects. So every acknowledged event survives a crash. Disclosure,
//! valuation, the ledger and the archiving of finished rounds run on worker threads of their own,
//! which report back through the same channel.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crossbeam_channel::unbounded;
use florin_ledger::{ChainError, ChainSnapshot, EmbeddedChain, Ledger, rpc};
use florin_protocol::{
    ErrorCode, EthereumInfo, LedgerInfo, NodeSigner, Rejection, RoundNumber, TaskId, Timestamp,
    WalletSigner, WorkResult,
};
use tokio::sync::{mpsc, oneshot, watch};

mod actor;
pub mod archive;
mod batch;
mod bond;
mod checkpoint;
mod clock;
mod deferred;
mod discloser;
mod jobs;
mod journal_metrics;
mod prover;
mod retry_queue;
mod settler;
pub mod snapshotter;
mod transcripts;
mod valuation_metrics;
mod valuer;

pub use archive::ArchiveJob;
pub use batch::{AppendFn, BatchOutcome, EngineRequest, JournaledEngine, NextStep, ResultSource};
pub use checkpoint::{BackupPoint, CheckpointError};
pub use clock::{Clock, ManualClock, SlewedClock, SystemClock};
pub use deferred::{DeferredCommand, DeferredReply};
pub use discloser::DisclosureJob;
pub use jobs::EffectJob;
pub use prover::UnprovenDebits;
pub use settler::{CHALLENGE_POLL_INTERVAL, JobProgress, LedgerJob, REFUSED_RETRY_PAUSE, advance};
pub use valuer::{ATTEMPTS_MAX, ValuationJob, Valuer, ValuerError, WorkValuer};

pub(crate) use journal_metrics::JournalMetrics;
pub(crate) use transcripts::{HeldTranscript, Transcripts};
pub(crate) use valuation_metrics::ValuationMetrics;

use crate::config::JournalSettings;
use crate::identity::Identity;
use crate::json_form::parse_json;
use crate::leases::{LeaseHost, LeaseParts, LeaseStoreError};
use crate::trace::TracedPhases;
use florin_engine::state::ReceivedRecord;
use florin_engine::{Engine, Event, EventStatus};
use florin_store::{BlobError, BlobStore, DataFolder, OpenError, ResumableUploads, Volume};
use valuer::ValuerLink;

/// Capacity of the engine's command channel.
pub const QUEUE_MAX: usize = 1_024;

/// The dependencies of a coordinator besides its folder and settings. The program injects them.
pub struct HostParts {
    /// The ledger with balances, escrows and bonds.
    pub ledger: Arc<dyn Ledger>,
    /// The coordinator's account. It posts settlements and closes tasks.
    pub wallet: Arc<dyn WalletSigner>,
    /// Signs offers, receipts, orders and reports.
    pub node: NodeSigner,
    /// Workers that compute rounds, each in a thread of its own: as many rounds run concurrently as
    /// there are valuers.
    pub valuers: Vec<Box<dyn Valuer>>,
    /// The clock for deadlines.
    pub clock: Arc<dyn Clock>,
    /// How clients reach the ledger.
    pub ledger_endpoint: LedgerEndpoint,
    /// Starts a copy of an embedded ledger for backups; `None` without an embedded ledger.
    pub ledger_copier: Option<LedgerCopier>,
}

/// Starts a copy of the embedded ledger.
pub type LedgerCopier = Arc<dyn Fn() -> Result<ChainSnapshot, ChainError> + Send + Sync>;

/// How clients reach the ledger.
#[derive(Clone)]
pub enum LedgerEndpoint {
    /// In this process: the handler serves the ledger's RPC over HTTP.
    Embedded(LedgerRpcHandler),
    /// On an Ethereum chain, which clients query directly.
    Ethereum(EthereumInfo),
}

impl LedgerEndpoint {
    /// The ledger's description in the market document.
    #[must_use]
    pub fn info(&self) -> LedgerInfo {
        match self {
            Self::Embedded(_) => LedgerInfo::Embedded,
            Self::Ethereum(info) => LedgerInfo::Ethereum(info.clone()),
        }
    }
}

/// Handles a request of the ledger's RPC and returns the response, both as JSON.
pub type LedgerRpcHandler = Arc<dyn Fn(&[u8]) -> Result<Vec<u8>, Rejection> + Send + Sync>;

/// The RPC handler of the embedded chain.
#[must_use]
pub fn ledger_rpc_handler(chain: Arc<EmbeddedChain>) -> LedgerRpcHandler {
    Arc::new(move |request: &[u8]| {
        let request = parse_json(request).map_err(|error| {
            Rejection::new(ErrorCode::Malformed, format!("not a valid ledger request: {error}"))
        })?;
        serde_json::to_vec(&rpc::handle_request(&chain, request))
            .map_err(|error| Rejection::new(ErrorCode::Internal, error.to_string()))
    })
}

/// Per task, the number of changes of its view since the task was published.
pub type Sequences = BTreeMap<TaskId, u64>;

/// The reply to an accepted event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteAck {
    /// When the engine applied the event.
    pub now: Timestamp,
    /// Whether the event changed the state.
    pub verdict: EventStatus,
}

type WriteReplySender = oneshot::Sender<Result<WriteAck, Rejection>>;
type EngineQuery = Box<dyn FnOnce(&Engine, Timestamp) + Send>;

/// A command to the engine's thread.
enum Command {
    Write(EngineRequest, WriteReplySender),
    Query(EngineQuery),
    /// Close the journal's segment and start a copy of the ledger at the same point.
    Checkpoint(oneshot::Sender<Result<BackupPoint, CheckpointError>>),
    Wake,
    Stop,
}

/// Lock that keeps files in place during a copy: copying and removing both hold it.
pub type FilesLock = Arc<Mutex<()>>;

/// A handle to the running engine; cheap to clone.
#[derive(Clone)]
pub struct Host {
    mailbox: EngineSender,
    changes: watch::Receiver<Sequences>,
    blobs: Arc<BlobStore>,
    partials: Arc<ResumableUploads>,
    transcripts: Transcripts,
    valuation_metrics: ValuationMetrics,
    files_lock: FilesLock,
    journal_metrics: JournalMetrics,
    wallet: Arc<dyn WalletSigner>,
    leases: LeaseHost,
}

/// The threads behind a [`Host`].
#[derive(Debug)]
pub struct HostThreads {
    threads: Vec<JoinHandle<()>>,
    _folder: DataFolder,
}

/// Why a host cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// A blob that the state references cannot be copied to the bucket.
    #[error(transparent)]
    Blobs(#[from] BlobError),
    /// The records of leases cannot be read.
    #[error(transparent)]
    Leases(#[from] LeaseStoreError),
    /// A thread cannot be spawned.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl Host {
    /// The coordinator's wallet.
    pub(crate) fn wallet(&self) -> &dyn WalletSigner {
        self.wallet.as_ref()
    }

    /// Replays the journal, then starts the engine's threads.
    ///
    /// # Errors
    /// [`StartError`]; then no thread runs.
    pub fn start(folder: DataFolder, parts: HostParts) -> Result<(Self, HostThreads), StartError> {
        Self::start_with(folder, parts, &JournalSettings::default())
    }

    /// Like [`Self::start`], with custom journal settings.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_with(
        folder: DataFolder,
        parts: HostParts,
        settings: &JournalSettings,
    ) -> Result<(Self, HostThreads), StartError> {
        let volume = folder.volume();
        Self::start_on(folder, parts, settings, volume)
    }

    /// Like [`Self::start_with`], with a custom volume for journal and snapshots.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_on(
        folder: DataFolder,
        parts: HostParts,
        settings: &JournalSettings,
        volume: Arc<dyn Volume>,
    ) -> Result<(Self, HostThreads), StartError> {
        let (market, coordinator) = (parts.ledger.market(), parts.wallet.address());
        let identity = Identity { market, coordinator };
        let owner = identity.owner();
        let core = JournaledEngine::open(&volume, owner, market, coordinator)?;
        identity.write(folder.path())?;
        folder.blobs().mirror_all(&core.engine().state().required_blobs())?;
        let (keeper, snapshots) = snapshotter::Snapshotter::new(settings.clone());
        let tasks = core.engine().state().tasks.iter();
        let known = tasks.map(|(id, task)| (*id, task.sequence)).collect();
        let (send_changes, changes) = watch::channel(known);
        let (commands, queue) = mpsc::channel(QUEUE_MAX);
        let (send_values, values) = unbounded();
        // An idle valuer takes the next job.
        let values = vec![values; parts.valuers.len()];
        let (send_shows, shows) = unbounded();
        let (send_keeps, keeps) = unbounded();
        let (send_ledger, ledger_jobs) = unbounded();
        let mailbox = EngineSender { commands };
        let vitals = JournalMetrics::default();
        let seen = vitals.clone();
        let files = FilesLock::default();
        let (blobs, held) = (folder.blobs(), Arc::clone(&files));
        let partials = folder.uploads();
        let leases = LeaseHost::open(folder.path(), lease_parts(&folder, &parts))?;
        let host = Self {
            mailbox: mailbox.clone(),
            changes,
            blobs,
            partials,
            transcripts: Transcripts::default(),
            valuation_metrics: ValuationMetrics::default(),
            files_lock: files,
            journal_metrics: vitals,
            wallet: Arc::clone(&parts.wallet),
            leases: leases.clone(),
        };
        let actor = actor::Actor {
            core,
            snapshotter: keeper,
            ledger_copier: parts.ledger_copier,
            clock: parts.clock,
            changes: send_changes,
            valuation_jobs: send_values,
            disclosure_jobs: send_shows,
            archive_jobs: send_keeps,
            ledger: send_ledger,
            journal_metrics: seen,
            traced: TracedPhases::default(),
        };
        let HostParts { ledger, wallet, valuers, node, .. } = parts;
        let (rows, from_rows) = (folder.blobs(), mailbox.clone());
        let (rounds, from_rounds) = (folder.blobs(), mailbox.clone());
        let mut threads = valuer_threads(values, valuers, &host.valuer_link(node))?;
        threads.extend([
            thread("engine", move || actor.run(queue))?,
            thread("snapshots", move || snapshots.run(volume.as_ref(), owner, &held))?,
            thread("disclosure", move || discloser::run(shows, &rows, &from_rows))?,
            thread("archive", move || archive::run(keeps, &rounds, &from_rounds))?,
            thread("ledger", move || settler::run(ledger_jobs, &ledger, &wallet, &mailbox))?,
        ]);
        threads.extend(lease_threads(leases)?);
        Ok((host, HostThreads { threads, _folder: folder }))
    }

    fn valuer_link(&self, node: NodeSigner) -> ValuerLink {
        ValuerLink {
            blobs: Arc::clone(&self.blobs),
            transcripts: self.transcripts.clone(),
            metrics: self.valuation_metrics.clone(),
            node,
            mailbox: self.mailbox.clone(),
        }
    }

    /// Sends an event to the engine. The event is durable when this returns.
    ///
    /// # Errors
    /// The engine's [`Rejection`]; [`ErrorCode::StorageFull`] or [`ErrorCode::Internal`] if the journal
    /// failed.
    pub async fn write(&self, event: Event) -> Result<WriteAck, Rejection> {
        let (answer, written) = oneshot::channel();
        let command = Command::Write(EngineRequest::Write(Box::new(event)), answer);
        self.mailbox.commands.send(command).await.map_err(|_| stopping_rejection())?;
        written.await.map_err(|_| stopping_rejection())?
    }

    /// Sends an event and a query that the engine answers once the event is durable, in one round
    /// trip.
    ///
    /// # Errors
    /// As [`Host::write`].
    pub async fn write_then<T: Send + 'static>(
        &self,
        event: Event,
        question: impl FnOnce(&Engine, Timestamp) -> T + Send + 'static,
    ) -> Result<T, Rejection> {
        let (later, outcome) = self.defer(event, question);
        later.send().await?;
        outcome.recv().await
    }

    /// Runs a query on the engine and its clock. The query sees only durable state.
    ///
    /// # Errors
    /// [`ErrorCode::Internal`] when the engine has stopped.
    pub async fn read<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Engine, Timestamp) -> T + Send + 'static,
    ) -> Result<T, Rejection> {
        let (answer, result) = oneshot::channel();
        let question: EngineQuery = Box::new(move |engine, now| {
            // The receiver is gone if the client has disconnected.
            let _ = answer.send(question(engine, now));
        });
        self.mailbox
            .commands
            .send(Command::Query(question))
            .await
            .map_err(|_| stopping_rejection())?;
        result.await.map_err(|_| stopping_rejection())
    }

    /// Closes the journal's newest segment and starts a copy of the ledger at the same point. A
    /// backup from this point contains every event acknowledged before.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub async fn checkpoint(&self) -> Result<BackupPoint, CheckpointError> {
        let gone = || CheckpointError::Stopping(stopping_rejection().message);
        // Before the ledger: a lease whose deposits the copied ledger lacks would pay from nothing. A ledger that is
        // ahead of a record is harmless, because each step reads it first.
        let leases = self.leases.copy()?;
        let (answer, moment) = oneshot::channel();
        self.mailbox.commands.send(Command::Checkpoint(answer)).await.map_err(|_| gone())?;
        let moment = moment.await.map_err(|_| gone())??;
        Ok(BackupPoint { leases, ..moment })
    }

    /// The lock that a thread holds while it copies or removes files of the folder.
    #[must_use]
    pub fn files_lock(&self) -> FilesLock {
        Arc::clone(&self.files_lock)
    }

    /// The number of commands in the engine's channel.
    #[must_use]
    pub fn queue_length(&self) -> usize {
        let commands = &self.mailbox.commands;
        commands.max_capacity().saturating_sub(commands.capacity())
    }

    /// Metrics of the journal.
    pub(crate) const fn journal_metrics(&self) -> &JournalMetrics {
        &self.journal_metrics
    }

    /// Notifies of changes of tasks' views.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Sequences> {
        self.changes.clone()
    }

    /// The blob store.
    #[must_use]
    pub const fn blobs(&self) -> &Arc<BlobStore> {
        &self.blobs
    }

    /// The incomplete uploads.
    #[must_use]
    pub const fn partials(&self) -> &Arc<ResumableUploads> {
        &self.partials
    }

    /// Metrics of the valuations.
    pub(crate) const fn valuation_metrics(&self) -> &ValuationMetrics {
        &self.valuation_metrics
    }

    /// The transcripts of valuations.
    pub(crate) const fn transcripts(&self) -> &Transcripts {
        &self.transcripts
    }

    /// Makes the engine read its clock.
    pub async fn wake(&self) {
        // A stopped engine ignores this.
        let _ = self.mailbox.commands.send(Command::Wake).await;
    }

    /// The leases of compute.
    #[must_use]
    pub const fn leases(&self) -> &LeaseHost {
        &self.leases
    }

    /// Stops the engine after the queued commands.
    pub async fn stop(&self) {
        self.leases.stop();
        let _ = self.mailbox.commands.send(Command::Stop).await;
    }
}

impl HostThreads {
    /// Waits until the threads end. Call [`Host::stop`] first.
    pub fn join(self) {
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the coordinator panicked");
            }
        }
    }

    /// Whether all threads still run.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }
}

fn valuer_threads(
    jobs: Vec<crossbeam_channel::Receiver<ValuationJob>>,
    valuers: Vec<Box<dyn Valuer>>,
    link: &ValuerLink,
) -> std::io::Result<Vec<JoinHandle<()>>> {
    let start = |(number, (jobs, valuer)): (usize, (_, Box<dyn Valuer>))| {
        let link = link.clone();
        let work = move || valuer::run(jobs, valuer, &link);
        thread(&format!("valuation-{number}"), work)
    };
    jobs.into_iter().zip(valuers).enumerate().map(start).collect()
}

fn lease_threads(leases: LeaseHost) -> std::io::Result<[JoinHandle<()>; 2]> {
    let settlements = leases.clone();
    Ok([
        thread("leases", move || leases.run_deadlines())?,
        thread("settlements", move || settlements.run_settlements())?,
    ])
}

fn lease_parts(folder: &DataFolder, parts: &HostParts) -> LeaseParts {
    LeaseParts {
        blobs: folder.blobs(),
        ledger: Arc::clone(&parts.ledger),
        wallet: Arc::clone(&parts.wallet),
        node: parts.node.clone(),
        clock: Arc::clone(&parts.clock),
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("florin-{name}")).spawn(work)
}

fn stopping_rejection() -> Rejection {
    Rejection::new(ErrorCode::Internal, "the coordinator is stopping: try again in a moment")
}

/// The worker threads' sender to the engine.
#[derive(Clone)]
struct EngineSender {
    commands: mpsc::Sender<Command>,
}

impl EngineSender {
    fn write(&self, event: Event) -> Result<WriteAck, Rejection> {
        self.ask(EngineRequest::Write(Box::new(event)))
    }

    fn send_result(
        &self,
        task: TaskId,
        round: RoundNumber,
        result: WorkResult,
        source: ResultSource,
    ) -> Result<(), Rejection> {
        let result = Box::new(result);
        self.ask(EngineRequest::OwnResult { task, round, result, source }).map(|_| ())
    }

    /// The records of a task's open order; none if the coordinator is stopping.
    fn open_records(&self, task: TaskId) -> Vec<ReceivedRecord> {
        let (answer, records) = oneshot::channel();
        let question: EngineQuery = Box::new(move |engine, _| {
            let _ = answer.send(engine.open_records(task).to_vec());
        });
        if self.commands.blocking_send(Command::Query(question)).is_err() {
            return Vec::new();
        }
        records.blocking_recv().unwrap_or_default()
    }

    fn ask(&self, asked: EngineRequest) -> Result<WriteAck, Rejection> {
        let (answer, written) = oneshot::channel();
        self.commands
            .blocking_send(Command::Write(asked, answer))
            .map_err(|_| stopping_rejection())?;
        written.blocking_recv().map_err(|_| stopping_rejection())?
    }
}
