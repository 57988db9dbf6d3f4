//! The training agent: one participant in one task, from registration to the last claim.
//!
//! A loop around a pure decision function ([`step`]): fetch the task's view, decide on a step,
//! execute it, repeat. Every decision depends only on the coordinator's view, the ledger and files,
//! so a process that was killed at any point recovers when it is restarted:
//!
//! | killed after | recovered from | effect of the restart |
//! |---|---|---|
//! | bonding | the bond on the ledger | only the missing amount is bonded |
//! | writing the residual | only `residual.safetensors` | training runs again: same result |
//! | training | `update.safetensors` | training does not run again |
//! | recording | the guard's record | the same commit is signed and sent again |
//! | the upload | the coordinator's state | the same upload gets the same receipt |
//! | the receipt | `receipt.json` | the agent waits for the end of the round |
//! | the claim | the ledger's state | only the remaining amount is claimed |

mod claiming;
mod committing;
mod error;
mod reading;
mod residual;
pub mod step;
mod store;
#[cfg(test)]
mod tests;
mod training;
mod waiting;

use std::path::PathBuf;

use florin_learning::{Dataset, Engine};
use florin_ledger::{Ledger, LedgerError};
use florin_protocol::{
    Address, Amount, Offer, Report, RoundNumber, Signed, Statement, TaskId, TaskSpec, TaskView,
    UpdateReceipt, WalletSigner,
};

pub(crate) use claiming::draw_pay;
pub use claiming::{Bond, ClaimError, Drawn, claim, draw_by_proof, return_bond};
pub use error::AgentError;
pub use store::kept_receipts;
pub(crate) use waiting::{EXPIRY_MS, register};
pub use waiting::{bond_for, top_up};

use crate::atomic_file;
use crate::behaviour::Behaviour;
use crate::client::{Client, ClientError};
use crate::event::Event;
use crate::guard::Guard;
use crate::retry::{Backoff, resume_transactions, retry_with_backoff};
use crate::shutdown::Shutdown;
use crate::wallet::Wallet;
use step::{Own, Stage, Step};
use store::Store;

/// Settings of one participation.
#[derive(Clone, Debug)]
pub struct ParticipantConfig {
    /// The data folder: signatures, updates and receipts. One process at a time.
    pub folder: PathBuf,
    /// The task.
    pub task: TaskId,
    /// Seed of the training. The same seed, data and machine give the same updates.
    pub seed: u64,
    /// The most that this participant puts at risk; without a limit, as much as its rows require.
    pub bond_max: Option<Amount>,
    /// Arbiters that are accepted besides the coordinator. Any other arbiter causes a warning.
    pub arbiters: Vec<Address>,
    /// Long-poll time: how long the coordinator may hold a request when nothing changes, in
    /// milliseconds. A graceful shutdown takes about as long.
    pub poll_ms: u64,
    /// How long to retry while the coordinator or the ledger does not answer.
    pub patience: Backoff,
}

/// The resources that a participation uses.
pub struct Participant<'a> {
    /// The participant's wallet.
    pub wallet: &'a Wallet,
    /// The client of the coordinator.
    pub client: &'a Client,
    /// The ledger that holds the escrow, the bond and the pay.
    pub ledger: &'a dyn Ledger,
    /// The training engine.
    pub engine: &'a mut dyn Engine,
    /// The participant's own rows.
    pub data: &'a Dataset,
    /// Honest training, or an experiment.
    pub behaviour: &'a mut dyn Behaviour,
}

/// The result of a participation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participation {
    /// The task.
    pub task: TaskId,
    /// The account.
    pub account: Address,
    /// True if the task is over and all pay is claimed; false after a requested shutdown.
    pub finished: bool,
    /// This account's statement of every reported round.
    pub statements: Vec<Statement>,
    /// Amount that this run claimed.
    pub claimed: Amount,
    /// State of the bond at the end of this run.
    pub bond: Bond,
    /// Number of reports that contradict themselves or a receipt.
    pub alarms: u32,
}

/// Takes part in a task until it is over: registers, bonds, trains, submits updates, verifies
/// reports, claims pay, and withdraws the bond. Every event goes to the callback.
///
/// # Errors
/// [`AgentError`]. After any of them, the same call continues where this one ended.
pub fn participate(
    config: &ParticipantConfig,
    parts: Participant<'_>,
    shutdown: &Shutdown,
    tell: &mut dyn FnMut(&Event),
) -> Result<Participation, AgentError> {
    atomic_file::create_folder(&config.folder)?;
    let guard = Guard::open(&Store::guard(&config.folder), parts.wallet.node_signer())?;
    let client = parts.client;
    let view = retry_with_backoff(
        config.patience,
        shutdown,
        |error: &ClientError| tell(&retrying(error)),
        || client.task(config.task),
    )?;
    let mut agent = Agent {
        me: parts.wallet.address(),
        store: Store::new(&config.folder, config.task),
        spec: view.spec,
        config,
        parts,
        shutdown,
        tell,
        guard,
        enrolled_at: None,
        drawn_at: 0,
        claimed: Amount::ZERO,
        running: Running {
            round: RoundNumber(0),
            stage: Stage::Fresh,
            told: false,
            loss_micro: None,
        },
        last: None,
        unmoved: 0,
        read: 0,
        exposed: Vec::new(),
        statements: Vec::new(),
        alarms: 0,
    };
    agent.check_task()?;
    agent.run()
}

/// The round that the agent works on.
#[derive(Clone, Copy, Debug)]
struct Running {
    round: RoundNumber,
    stage: Stage,
    /// Whether the start of the round was reported as an event.
    told: bool,
    loss_micro: Option<u64>,
}

struct Agent<'a, 'p> {
    me: Address,
    config: &'a ParticipantConfig,
    parts: Participant<'p>,
    shutdown: &'a Shutdown,
    tell: &'a mut dyn FnMut(&Event),
    store: Store,
    spec: TaskSpec,
    guard: Guard,
    enrolled_at: Option<u32>,
    drawn_at: u32,
    claimed: Amount,
    running: Running,
    /// The last report that was read, if any.
    last: Option<Report>,
    /// Number of consecutive rounds, up to the last one read, that left the model unchanged.
    unmoved: u32,
    read: u32,
    /// Holdout rows that the rounds read so far disclosed.
    exposed: Vec<u32>,
    statements: Vec<Statement>,
    alarms: u32,
}

impl Agent<'_, '_> {
    fn run(mut self) -> Result<Participation, AgentError> {
        if self.parts.behaviour.is_experiment() {
            let behaviour = self.parts.behaviour.name();
            self.tell(&Event::Experiment { behaviour });
        }
        let mut seen = None;
        while !self.shutdown.requested() {
            let view = match self.look(seen) {
                // Shutdown was requested while the coordinator was unreachable.
                Err(_) if self.shutdown.requested() => break,
                other => other?,
            };
            self.enter(&view)?;
            let own = Own {
                enrolled_at: self.enrolled_at,
                drawn_at: self.drawn_at,
                read: self.read,
                stage: self.running.stage,
            };
            let step = step::next(&view, self.me, own);
            // Only a wait may long-poll; after any other step the view is fetched again at once.
            seen = (step == Step::Wait).then_some(view.sequence);
            match step {
                Step::Wait => {}
                Step::Finish => match self.finish() {
                    Err(_) if self.shutdown.requested() => break,
                    other => {
                        let bond = other?;
                        return Ok(self.summary(true, bond));
                    }
                },
                step => match self.take(step, &view) {
                    Err(_) if self.shutdown.requested() => break,
                    other => other?,
                },
            }
        }
        self.tell(&Event::Stopped);
        Ok(self.summary(false, Bond::Untouched))
    }

    fn take(&mut self, step: Step, view: &TaskView) -> Result<(), AgentError> {
        match step {
            Step::Read(round) => self.read_report(round),
            Step::Join => self.join(view),
            Step::Enrol => self.enrol_again(view),
            Step::Draw => {
                self.draw_meanwhile(view.finalised);
                Ok(())
            }
            Step::Train => self.train(offer(view)?),
            Step::Commit => self.commit(offer(view)?),
            Step::Reveal => self.reveal(view.round),
            Step::Wait | Step::Finish => Ok(()),
        }
    }

    fn look(&mut self, seen: Option<u64>) -> Result<TaskView, AgentError> {
        let (client, task, poll_ms) = (self.parts.client, self.config.task, self.config.poll_ms);
        Ok(self.with_client(|| match seen {
            Some(sequence) => client.task_after(task, sequence, poll_ms),
            None => client.task(task),
        })?)
    }

    fn finish(&mut self) -> Result<Bond, AgentError> {
        self.draw()?;
        let bond = self.have_bond_back()?;
        self.forget_residuals(RoundNumber(self.read))?;
        self.tell(&Event::Finished { task: self.config.task });
        Ok(bond)
    }

    fn summary(self, finished: bool, bond: Bond) -> Participation {
        Participation {
            task: self.config.task,
            account: self.me,
            finished,
            statements: self.statements,
            claimed: self.claimed,
            bond,
            alarms: self.alarms,
        }
    }

    fn tell(&mut self, event: &Event) {
        if event.is_alarm() {
            self.alarms += 1;
        }
        (self.tell)(event);
    }

    /// Marks this round as failed for this participant; the next round starts afresh.
    fn lose(&mut self, code: &'static str, why: &dyn std::fmt::Display) {
        self.running.stage = Stage::Lost;
        let round = self.running.round;
        self.tell(&Event::RoundLost { round, code, why: why.to_string() });
    }

    fn with_client<T>(
        &mut self,
        attempt: impl FnMut() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let tell = &mut self.tell;
        retry_with_backoff(
            self.config.patience,
            self.shutdown,
            |error| tell(&retrying(error)),
            attempt,
        )
    }

    fn with_ledger<T>(
        &mut self,
        attempt: impl FnMut() -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let (tell, ledger, wallet) = (&mut self.tell, self.parts.ledger, self.parts.wallet);
        let failed = |error: &LedgerError| {
            tell(&retrying(error));
            resume_transactions(ledger, wallet);
        };
        retry_with_backoff(self.config.patience, self.shutdown, failed, attempt)
    }
}

fn retrying(error: &dyn std::fmt::Display) -> Event {
    Event::Retrying { why: error.to_string() }
}

/// The offer that a step requires; [`step::next`] returns such steps only if there is one.
fn offer(view: &TaskView) -> Result<&Offer, AgentError> {
    view.offer.as_ref().map(|offer| &offer.body).ok_or_else(|| AgentError::BadTask {
        task: view.id,
        why: format!("round {} has no offer", view.round),
    })
}

/// Files of a round that an earlier process left on disk.
struct Found {
    receipt: Option<Signed<UpdateReceipt>>,
    signed: bool,
    trained: bool,
}

impl Found {
    fn stage(&self) -> Stage {
        match self {
            Self { receipt: Some(_), .. } => Stage::Receipted,
            Self { signed: true, .. } => Stage::Signed,
            Self { trained: true, .. } => Stage::Trained,
            _ => Stage::Fresh,
        }
    }
}
