//! An arbiter's watch: audits the reports of its tasks as their settlements are posted, and cancels
//! wrong settlements within their challenge windows.
//!
//! ```text
//! ledger: pending settlements ──┐
//! coordinator: signed reports ──┼─► audit ─► objection ─► evidence on disk ─► cancel
//! coordinator: public blobs ────┘
//! ```
//!
//! | settlement | decision |
//! |---|---|
//! | its report, or an earlier one, differs from the recomputation | cancel at once |
//! | it differs from its signed report, or the round was abandoned | cancel at once |
//! | the coordinator has no report of its round | cancel after [`REPORT_GRACE_MS`] |
//! | data is missing, or the coordinator does not answer | retry; cancel in the last quarter of the window |
//! | this machine cannot compute the audit | retry until the window is over |
//!
//! All state is on the ledger and at the coordinator, so a restart continues: it audits what is
//! pending and repeats no cancellation. Among several tasks the settlement that becomes final first
//! is audited first.

mod event;
mod task;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use florin_learning::Engine;
use florin_ledger::{Ledger, LedgerError};
use florin_protocol::{TaskId, TaskPhase, Timestamp};

use crate::arbitration::{ArbitrationError, task_of_arbiter};
use crate::atomic_file::{self, FileError};
use crate::client::{Client, ClientError};
use crate::retry::{Transient, resume_transactions};
use crate::shutdown::Shutdown;
use crate::wallet::Wallet;
pub use event::{Objection, WatchAction, WatchEvent};
use task::{Look, Surroundings, TaskWatch, is_arbiter};

/// Most tasks that one process watches.
pub const WATCHED_TASKS_MAX: usize = 256;
/// Time after the post of a settlement within which its report must be readable, in milliseconds. A
/// coordinator publishes the report first.
pub const REPORT_GRACE_MS: u64 = 60_000;
/// Divisor of a challenge window: its last part, in which a settlement that could not be verified
/// is cancelled.
pub const DECISION_DIVISOR: u64 = 4;
/// New tasks whose specification is fetched in one turn.
const NEW_TASKS_PER_TURN: usize = 32;
/// Reports of final rounds that are read in one turn.
const FINAL_REPORTS_PER_TURN: usize = 16;
/// Time between two reads of the list of tasks.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(10);
/// Turns within one challenge window, at least: a short window shortens the pauses.
const TURNS_PER_WINDOW: u64 = 32;
/// Shortest pause between two turns, in milliseconds.
const PAUSE_MS_MIN: u64 = 20;

/// Settings of a watch.
#[derive(Clone, Debug)]
pub struct WatchConfig {
    /// The data folder: evidence, and scratch files for updates that exceed the memory limit.
    pub folder: PathBuf,
    /// Only this task, until it is over; by default every task of the market whose arbiter is this
    /// wallet.
    pub task: Option<TaskId>,
    /// Whether nothing is cancelled. Then the wallet need not be the arbiter of the named task.
    pub dry_run: bool,
    /// Whether settlements that cannot be verified stay pending. Settlements that are wrong are
    /// cancelled in any case.
    pub keeps_unverifiable: bool,
    /// Longest pause between two looks at the ledger, in milliseconds.
    pub poll_ms: u64,
}

impl WatchConfig {
    /// The pause after a failed attempt.
    fn retry_ms(&self, challenge_ms: u64) -> u64 {
        (challenge_ms / TURNS_PER_WINDOW).max(PAUSE_MS_MIN).min(self.poll_ms.max(1))
    }
}

/// The resources of a watch.
pub struct WatchContext<'a> {
    /// The arbiter's wallet.
    pub wallet: &'a Wallet,
    /// The client of the coordinator.
    pub client: &'a Client,
    /// The ledger.
    pub ledger: &'a dyn Ledger,
    /// The engine that recomputes.
    pub engine: &'a mut dyn Engine,
}

/// The result of a watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchSummary {
    /// Number of audited rounds.
    pub rounds: u64,
    /// Number of settlements that must not become final.
    pub objections: u64,
    /// Number of cancelled settlements, with the later ones that fell with them.
    pub cancelled: u64,
    /// True if the named task is over; false after a requested shutdown.
    pub finished: bool,
}

/// Errors that end a watch.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The wallet is not the arbiter of the named task.
    #[error(transparent)]
    Arbitration(#[from] ArbitrationError),
    /// An error of the client that a retry does not mend.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// An error of the ledger that a retry does not mend.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// An error of the data folder.
    #[error(transparent)]
    File(#[from] FileError),
}

impl WatchError {
    /// The stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Arbitration(error) => error.code(),
            Self::Client(error) => error.code(),
            Self::Ledger(error) => crate::ledger_code(error),
            Self::File(error) => error.code(),
        }
    }

    /// Whether the watch goes on. A wallet without ether for gas may be funded meanwhile.
    fn is_transient(&self) -> bool {
        match self {
            Self::Client(error) => error.is_transient(),
            Self::Arbitration(ArbitrationError::Ledger(LedgerError::Unavailable(_)))
            | Self::Ledger(LedgerError::Unavailable(_) | LedgerError::Gas(_)) => true,
            _ => false,
        }
    }
}

/// The last part of a challenge window, in milliseconds.
pub(crate) const fn decision_ms(challenge_ms: u64) -> u64 {
    challenge_ms / DECISION_DIVISOR
}

/// Watches tasks until the named task is over or shutdown is requested. Errors that a retry may mend
/// are emitted as events.
///
/// # Errors
/// [`WatchError`]. After any of them, the same call continues where this one ended.
pub fn watch(
    config: &WatchConfig,
    context: WatchContext<'_>,
    shutdown: &Shutdown,
    on_event: &mut dyn FnMut(&WatchEvent),
) -> Result<WatchSummary, WatchError> {
    atomic_file::create_folder(&config.folder)?;
    let WatchContext { wallet, client, ledger, engine } = context;
    let summary = WatchSummary::default();
    let around = Surroundings { config, wallet, client, ledger, on_event, summary };
    let (tasks, foreign) = (Vec::new(), BTreeSet::new());
    let mut watch = Watch { around, tasks, foreign, listed_at: None, cached: None };
    while !shutdown.is_requested() {
        match watch.turn(engine) {
            Ok(Turn::Finished) => {
                watch.around.summary.finished = true;
                break;
            }
            Ok(Turn::Busy) => {}
            Ok(Turn::Idle) => shutdown.wait(watch.pause()),
            Err(error) if error.is_transient() => {
                (watch.around.on_event)(&WatchEvent::Retrying { why: error.to_string() });
                resume_transactions(ledger, wallet);
                shutdown.wait(watch.pause());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(watch.around.summary)
}

/// The result of one turn of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Nothing to do now.
    Idle,
    /// An audit was due; another may be.
    Busy,
    /// The named task is over.
    Finished,
}

struct Watch<'a> {
    around: Surroundings<'a>,
    tasks: Vec<TaskWatch<'a>>,
    /// Tasks of other arbiters, tasks that are over, and tasks above the limit.
    foreign: BTreeSet<TaskId>,
    /// When the list of tasks was last read.
    listed_at: Option<Instant>,
    /// The task whose blobs are cached: one at a time, so that memory does not grow with the number
    /// of tasks.
    cached: Option<TaskId>,
}

impl<'a> Watch<'a> {
    /// Looks at every task, and audits one round of the most urgent one.
    fn turn(&mut self, engine: &mut dyn Engine) -> Result<Turn, WatchError> {
        // A list that cannot be read does not keep the watch from tasks that it has.
        let discovered = self.discover();
        if self.tasks.is_empty() {
            discovered?;
        } else if let Err(error) = discovered {
            match error.is_transient() {
                true => (self.around.on_event)(&WatchEvent::Retrying { why: error.to_string() }),
                false => return Err(error),
            }
        }
        let Some(urgent) = self.look_at_all()? else {
            let finished = self.around.config.task.is_some_and(|task| self.foreign.contains(&task));
            return Ok(if finished { Turn::Finished } else { Turn::Idle });
        };
        if self.cached != Some(urgent) {
            self.tasks.iter_mut().for_each(TaskWatch::release_blobs);
            self.cached = Some(urgent);
        }
        let Self { tasks, around, .. } = self;
        if let Some(task) = tasks.iter_mut().find(|task| task.task == urgent) {
            task.audit_next(engine, around)?;
        }
        Ok(Turn::Busy)
    }

    /// The task whose audit is due first, if any is due. Tasks that are over are removed.
    fn look_at_all(&mut self) -> Result<Option<TaskId>, WatchError> {
        if self.tasks.is_empty() {
            return Ok(None);
        }
        let now = self.around.ledger.now()?;
        let mut urgent: Option<(Timestamp, TaskId)> = None;
        let mut over = Vec::new();
        for task in &mut self.tasks {
            match task.look(now, &mut self.around)? {
                Look::AuditDue(at) if !task.has_to_wait() => {
                    let due = (at, task.task);
                    urgent = Some(urgent.map_or(due, |first| first.min(due)));
                }
                Look::Over => over.push(task.task),
                Look::AuditDue(_) | Look::Idle => {}
            }
        }
        for task in over {
            (self.around.on_event)(&WatchEvent::TaskOver { task });
            self.tasks.retain(|watched| watched.task != task);
            self.foreign.insert(task);
        }
        Ok(urgent.map(|(_, task)| task))
    }

    /// Adds the named task, or new tasks of the market whose arbiter is this wallet.
    fn discover(&mut self) -> Result<(), WatchError> {
        let Surroundings { config, client, ledger, wallet, .. } = self.around;
        if let Some(task) = config.task {
            if self.tasks.is_empty() && !self.foreign.contains(&task) {
                if !config.dry_run {
                    task_of_arbiter(ledger, wallet.address(), task)?;
                }
                self.add(task)?;
            }
            return Ok(());
        }
        if self.listed_at.is_some_and(|at| at.elapsed() < DISCOVERY_INTERVAL) {
            return Ok(());
        }
        let mut listed = client.tasks()?;
        listed.retain(|task| task.phase != TaskPhase::Done);
        self.foreign.retain(|known| listed.iter().any(|task| task.id == *known));
        let is_new = |task: &TaskId| {
            !self.foreign.contains(task) && !self.tasks.iter().any(|known| known.task == *task)
        };
        let new: Vec<TaskId> = listed.iter().map(|task| task.id).filter(is_new).collect();
        for task in new.iter().take(NEW_TASKS_PER_TURN) {
            match self.add(*task) {
                // One task with an invalid view must not hide the others.
                Err(WatchError::Client(error)) if !error.is_transient() => {
                    let why = format!("task {}: {error}", task.short());
                    (self.around.on_event)(&WatchEvent::Retrying { why });
                }
                added => added?,
            }
        }
        if new.len() <= NEW_TASKS_PER_TURN {
            self.listed_at = Some(Instant::now());
        }
        Ok(())
    }

    /// Watches a task, unless it belongs to another arbiter.
    fn add(&mut self, task: TaskId) -> Result<(), WatchError> {
        let Surroundings { config, client, ledger, wallet, .. } = self.around;
        let spec = client.task(task)?.spec;
        if config.task.is_none() && !is_arbiter(&spec, wallet.address()) {
            self.foreign.insert(task);
            return Ok(());
        }
        if self.tasks.len() >= WATCHED_TASKS_MAX {
            self.foreign.insert(task);
            let tasks_max = WATCHED_TASKS_MAX;
            (self.around.on_event)(&WatchEvent::TaskNotWatched { task, tasks_max });
            return Ok(());
        }
        let (name, challenge_ms) = (spec.name.clone(), spec.budget.challenge_ms);
        (self.around.on_event)(&WatchEvent::TaskWatched { task, name, challenge_ms });
        self.tasks.push(TaskWatch::new(client, ledger, spec, config));
        Ok(())
    }

    /// The pause until the next turn: shorter if a challenge window is short.
    fn pause(&self) -> Duration {
        let config = self.around.config;
        let pauses = self.tasks.iter().map(|task| config.retry_ms(task.challenge_ms()));
        Duration::from_millis(pauses.min().unwrap_or(config.poll_ms))
    }
}
