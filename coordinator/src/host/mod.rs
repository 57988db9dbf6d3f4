//! The engine's host: one thread owns engine and journal and takes commands from a bounded queue.
//!
//! It drains what is queued, applies it, makes the batch durable with one fsync, and only then answers and lets effects
//! out. So whatever anybody was told survives a crash. Disclosure, valuation, the ledger and the keeping of
//! rounds that are over have a thread each; they report back through the same queue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use florin_ledger::{ChainCopy, ChainError, Ledger, LocalChain, rpc};
use florin_protocol::{
    Address, Canonical, Code, Digest, EthereumInfo, LedgerInfo, Market, NodeSigner, Rejection,
    Round, Signer, TaskId, Tick, WorkResult,
};
use tokio::sync::{mpsc, oneshot, watch};

mod actor;
pub mod archive;
mod clock;
mod delayed;
mod discloser;
mod jobs;
pub mod keeper;
mod lanes;
mod later;
mod prover;
mod settler;
mod turn;
mod valuer;
mod vitals;

pub use archive::KeepJob;
pub use clock::{Clock, ManualClock, SteadyClock, SystemClock};
pub use discloser::ShowJob;
pub use jobs::Job;
pub use later::{Later, Outcome};
pub use prover::Debits;
pub use settler::{LedgerJob, REFUSED_WAIT, Step, step};
pub use turn::{Append, Asked, Core, Next, Turn};
pub use valuer::{TRIES_MAX, ValueJob, Valuer, ValuerError, WorkValuer};

pub(crate) use vitals::Vitals;

use crate::backup::{BackupError, Moment};
use crate::config::Journal as JournalSettings;
use crate::control::Files;
use crate::identity::Identity;
use florin_engine::{Engine, Event, Verdict};
use florin_store::{BlobError, Blobs, Folder, OpenError, Partials, Volume};

/// Commands that may wait for the engine.
pub const QUEUE_MAX: usize = 1_024;

/// What a coordinator is made of, besides its folder and settings. The composer chooses.
pub struct Parts {
    /// Who owns what.
    pub ledger: Arc<dyn Ledger>,
    /// The coordinator's account: posts settlements and closes tasks.
    pub wallet: Arc<dyn Signer>,
    /// Signs offers, receipts, orders and reports.
    pub node: NodeSigner,
    /// Compute the work of rounds, each in a thread of its own: as many rounds at once as there are valuers.
    pub valuers: Vec<Box<dyn Valuer>>,
    /// Judges deadlines.
    pub clock: Arc<dyn Clock>,
    /// How others come to the ledger.
    pub place: LedgerPlace,
    /// How a copy of the ledger is begun, if it is in this process: for backups.
    pub copier: Option<Copier>,
}

/// Begins a copy of the embedded ledger.
pub type Copier = Arc<dyn Fn() -> Result<ChainCopy, ChainError> + Send + Sync>;

/// Where the ledger is, for everybody else.
#[derive(Clone)]
pub enum LedgerPlace {
    /// In this process: the door answers the ledger's own questions over HTTP.
    Here(LedgerDoor),
    /// On an Ethereum chain, which everybody asks for themselves.
    Ethereum(EthereumInfo),
}

impl LedgerPlace {
    /// What the market's document says of it.
    #[must_use]
    pub fn info(&self) -> LedgerInfo {
        match self {
            Self::Here(_) => LedgerInfo::Embedded,
            Self::Ethereum(info) => LedgerInfo::Ethereum(info.clone()),
        }
    }
}

/// Takes a request of the ledger's remote interface and returns its answer, both as JSON.
pub type LedgerDoor = Arc<dyn Fn(&[u8]) -> Result<Vec<u8>, Rejection> + Send + Sync>;

/// The door of the embedded chain.
#[must_use]
pub fn door(chain: Arc<LocalChain>) -> LedgerDoor {
    Arc::new(move |request: &[u8]| {
        let request = serde_json::from_slice(request).map_err(|error| {
            Rejection::new(Code::Malformed, format!("no request of the ledger: {error}"))
        })?;
        serde_json::to_vec(&rpc::answer(&chain, request))
            .map_err(|error| Rejection::new(Code::Internal, error.to_string()))
    })
}

/// The number of changes of each task's view since the beginning.
pub type Sequences = BTreeMap<TaskId, u64>;

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// When it was taken.
    pub now: Tick,
    /// Whether it changed anything.
    pub verdict: Verdict,
}

type Answer = oneshot::Sender<Result<Written, Rejection>>;
type Question = Box<dyn FnOnce(&Engine, Tick) + Send>;

/// What the engine's thread is asked.
enum Command {
    Ask(Asked, Answer),
    Read(Question),
    /// Close the journal's segment and begin a copy of the ledger, at one moment.
    Cut(oneshot::Sender<Result<Moment, BackupError>>),
    Wake,
    Stop,
}

/// A handle to the running engine; cheap to copy.
#[derive(Clone)]
pub struct Host {
    mailbox: Mailbox,
    changes: watch::Receiver<Sequences>,
    blobs: Arc<Blobs>,
    partials: Arc<Partials>,
    files: Files,
    vitals: Vitals,
}

/// The threads behind a [`Host`].
#[derive(Debug)]
pub struct Running {
    threads: Vec<JoinHandle<()>>,
    _folder: Folder,
}

/// Why a host cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// What the state names could not be brought to the bucket.
    #[error(transparent)]
    Blobs(#[from] BlobError),
    /// A thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl Host {
    /// Reads the journal, then starts the engine's threads.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
    pub fn start(folder: Folder, parts: Parts) -> Result<(Self, Running), StartError> {
        Self::start_with(folder, parts, &JournalSettings::default())
    }

    /// The same, with settings of one's own for the journal.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_with(
        folder: Folder,
        parts: Parts,
        settings: &JournalSettings,
    ) -> Result<(Self, Running), StartError> {
        let volume = folder.volume();
        Self::start_on(folder, parts, settings, volume)
    }

    /// The same, with a volume of one's own for journal and snapshots.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_on(
        folder: Folder,
        parts: Parts,
        settings: &JournalSettings,
        volume: Arc<dyn Volume>,
    ) -> Result<(Self, Running), StartError> {
        let (market, coordinator) = (parts.ledger.market(), parts.wallet.address());
        let owner = owner(market, coordinator);
        let core = Core::open(&volume, owner, market, coordinator)?;
        Identity { market, coordinator }.write(folder.path())?;
        folder.blobs().mirror(&core.engine().state().blobs())?;
        let (keeper, snapshots) = keeper::Keeper::new(settings.clone());
        let tasks = core.engine().state().tasks.iter();
        let known = tasks.map(|(id, task)| (*id, task.sequence)).collect();
        let (send_changes, changes) = watch::channel(known);
        let (commands, queue) = mpsc::channel(QUEUE_MAX);
        let (send_values, values) = lanes::Lanes::new(parts.valuers.len());
        let (send_shows, shows) = std::sync::mpsc::channel();
        let (send_keeps, keeps) = std::sync::mpsc::channel();
        let (send_ledger, ledger_jobs) = std::sync::mpsc::channel();
        let mailbox = Mailbox { commands };
        let vitals = Vitals::default();
        let seen = vitals.clone();
        let files = Files::default();
        let (blobs, held) = (folder.blobs(), Arc::clone(&files));
        let partials = folder.partials();
        let host = Self { mailbox: mailbox.clone(), changes, blobs, partials, files, vitals };
        let actor = actor::Actor {
            core,
            keeper,
            copier: parts.copier,
            clock: parts.clock,
            changes: send_changes,
            values: send_values,
            shows: send_shows,
            keeps: send_keeps,
            ledger: send_ledger,
            vitals: seen,
        };
        let Parts { ledger, wallet, valuers, .. } = parts;
        let (rows, from_rows) = (folder.blobs(), mailbox.clone());
        let (rounds, from_rounds) = (folder.blobs(), mailbox.clone());
        let mut threads = Vec::new();
        for (number, (jobs, valuer)) in values.into_iter().zip(valuers).enumerate() {
            let (blobs, to_engine) = (folder.blobs(), mailbox.clone());
            let work = move || valuer::work(jobs, valuer, &blobs, &to_engine);
            threads.push(thread(&format!("value-{number}"), work)?);
        }
        threads.extend([
            thread("engine", move || actor.run(queue))?,
            thread("snapshots", move || snapshots.work(volume.as_ref(), owner, &held))?,
            thread("disclosure", move || discloser::work(shows, &rows, &from_rows))?,
            thread("rounds", move || archive::work(keeps, &rounds, &from_rounds))?,
            thread("ledger", move || settler::work(ledger_jobs, &ledger, &wallet, &mailbox))?,
        ]);
        Ok((host, Running { threads, _folder: folder }))
    }

    /// Tells the engine something; durable when this returns.
    ///
    /// # Errors
    /// The engine's [`Rejection`]; [`Code::StorageFull`] or [`Code::Internal`] where the journal failed.
    pub async fn write(&self, event: Event) -> Result<Written, Rejection> {
        let (answer, written) = oneshot::channel();
        let command = Command::Ask(Asked::Write(Box::new(event)), answer);
        self.mailbox.commands.send(command).await.map_err(|_| stopping())?;
        written.await.map_err(|_| stopping())?
    }

    /// Tells the engine something, and asks it something when that is durable: one way there and back.
    ///
    /// # Errors
    /// As [`Host::write`].
    pub async fn write_then<T: Send + 'static>(
        &self,
        event: Event,
        question: impl FnOnce(&Engine, Tick) -> T + Send + 'static,
    ) -> Result<T, Rejection> {
        let (later, outcome) = self.later(event, question);
        later.tell_in_turn().await?;
        outcome.comes().await
    }

    /// Asks the engine something, and its clock. Sees only what is durable.
    ///
    /// # Errors
    /// [`Code::Internal`] when the engine has stopped.
    pub async fn read<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Engine, Tick) -> T + Send + 'static,
    ) -> Result<T, Rejection> {
        let (answer, result) = oneshot::channel();
        let question: Question = Box::new(move |engine, now| {
            // Nobody listens any more if the connection is gone.
            let _ = answer.send(question(engine, now));
        });
        self.mailbox.commands.send(Command::Read(question)).await.map_err(|_| stopping())?;
        result.await.map_err(|_| stopping())
    }

    /// Closes the journal's newest segment and begins a copy of the ledger, at one moment: everything acknowledged before
    /// is in the backup that is copied from it.
    ///
    /// # Errors
    /// [`BackupError`].
    pub async fn cut(&self) -> Result<Moment, BackupError> {
        let gone = || BackupError::Journal(stopping().message);
        let (answer, moment) = oneshot::channel();
        self.mailbox.commands.send(Command::Cut(answer)).await.map_err(|_| gone())?;
        moment.await.map_err(|_| gone())?
    }

    /// Held by whoever copies the folder's files, and by whoever removes any.
    #[must_use]
    pub fn files(&self) -> Files {
        Arc::clone(&self.files)
    }

    /// Commands that wait for the engine.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let commands = &self.mailbox.commands;
        commands.max_capacity().saturating_sub(commands.capacity())
    }

    /// What the engine's thread does to the disk.
    pub(crate) const fn vitals(&self) -> &Vitals {
        &self.vitals
    }

    /// Tells when a task's view changes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Sequences> {
        self.changes.clone()
    }

    /// The blobs.
    #[must_use]
    pub const fn blobs(&self) -> &Arc<Blobs> {
        &self.blobs
    }

    /// The uploads that are not whole yet.
    #[must_use]
    pub const fn partials(&self) -> &Arc<Partials> {
        &self.partials
    }

    /// Makes the engine look at its clock.
    pub async fn wake(&self) {
        // A stopped engine has no clock to look at.
        let _ = self.mailbox.commands.send(Command::Wake).await;
    }

    /// Ends the engine after what is queued.
    pub async fn stop(&self) {
        let _ = self.mailbox.commands.send(Command::Stop).await;
    }
}

impl Running {
    /// Waits for the threads to end; ask for it with [`Host::stop`] first.
    pub fn join(self) {
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the coordinator panicked");
            }
        }
    }

    /// Whether the engine still runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("florin-{name}")).spawn(work)
}

/// What a journal of that market and coordinator belongs to.
#[must_use]
pub fn owner(market: Market, coordinator: Address) -> Digest {
    /// What a journal belongs to.
    #[derive(borsh::BorshSerialize, borsh::BorshDeserialize)]
    struct Owner(Market, Address);
    impl Canonical for Owner {
        const DOMAIN: &'static str = "florin v1 journal owner";
    }
    Owner(market, coordinator).digest()
}

fn stopping() -> Rejection {
    Rejection::new(Code::Internal, "the coordinator is stopping: try again in a moment")
}

/// How worker threads reach the engine.
#[derive(Clone)]
struct Mailbox {
    commands: mpsc::Sender<Command>,
}

impl Mailbox {
    fn write(&self, event: Event) -> Result<Written, Rejection> {
        self.ask(Asked::Write(Box::new(event)))
    }

    fn valued(&self, task: TaskId, round: Round, result: WorkResult) -> Result<(), Rejection> {
        let result = Box::new(result);
        self.ask(Asked::Valued { task, round, result }).map(|_| ())
    }

    fn ask(&self, asked: Asked) -> Result<Written, Rejection> {
        let (answer, written) = oneshot::channel();
        self.commands.blocking_send(Command::Ask(asked, answer)).map_err(|_| stopping())?;
        written.blocking_recv().map_err(|_| stopping())?
    }
}
