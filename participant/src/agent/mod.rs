//! The training agent: one participant in one task, from registration to the last claim.
//!
//! A loop around a pure decision function ([`state_machine`]): fetch the task's view, decide on a step,
//! execute it, repeat. Every decision depends only on the coordinator's view, the ledger and files,
//! so a process that was killed at any point recovers when it is restarted:
//!
//! | killed after | recovered from | effect of the restart |
//! |---|---|---|
//! | bonding | the bond on the ledger | only the missing amount is bonded |
//! | writing the residual | only `residual.safetensors` | training runs again: same result |
//! | charging the privacy loss | the record of the privacy loss | training runs again: same noise |
//! | training | `update.safetensors` | training does not run again |
//! | recording | the guard's record | the same commit is signed and sent again |
//! | the upload | the coordinator's state | the same upload gets the same receipt |
//! | the receipt | `receipt.json` | the agent waits for the end of the round |
//! | the claim | the ledger's state | only the remaining amount is claimed |

mod bonding;
mod claiming;
mod closing;
mod committing;
pub mod contradictions;
mod error;
mod joining;
mod late;
mod leaving;
mod ledger_check;
mod privacy;
mod producing;
mod quote;
mod reports;
mod residual;
pub mod state_machine;
mod supervision;
mod task_folder;
#[cfg(test)]
mod tests;
mod training;
mod training_time;

use std::path::PathBuf;

use florin_learning::graph::GraphModel;
use florin_learning::{Dataset, Engine, Execution};
use florin_ledger::{Ledger, LedgerError, Settlement};
use florin_protocol::{
    Address, Amount, Digest, Invitation, Offer, Report, RoundNumber, Statement, TaskHistory,
    TaskId, TaskPhase, TaskSpec, TaskView, UploadReceipt, WalletSigner,
};

pub(crate) use claiming::claim_pay;
pub use claiming::{
    BondStatus, ClaimError, claim, claim_from_reports, claim_with_proof, withdraw_bond,
};
pub use closing::{AcceptedObjection, ObjectionError, object_from_receipts};
pub use error::AgentError;
pub(crate) use joining::{EXPIRY_MS, register};
pub use joining::{required_bond, top_up_bond};
pub use leaving::leave_task;
pub use quote::ParticipationQuote;
pub use supervision::Supervision;
pub(crate) use task_folder::recorded_deposit;
pub use task_folder::{stored_receipts, stored_tasks, task_blob};
pub use training_time::RoundTrainingTime;

use crate::arbiter::ArbiterPolicy;
use crate::atomic_file;
use crate::audit::Auditor;
use crate::behaviour::Behaviour;
use crate::client::{Client, ClientError};
use crate::event::ParticipantEvent;
use crate::privacy::{Epsilon, PrivacyConfig};
use crate::producer::RowFeed;
use crate::retry::{Backoff, resume_transactions, retry_with_backoff};
use crate::shared_folder::{SharedFolder, SharedPrivacyRecord};
use crate::shutdown::Shutdown;
use crate::trace::{self, ReadMessages, RoundKey, Work};
use crate::wallet::Wallet;
use contradictions::LabelComparison;
use producing::ProducedRows;
use state_machine::{AgentStep, ParticipantState, RoundStage};
use task_folder::TaskFolder;
use training_time::DownloadRate;

/// Settings of one participation.
#[derive(Clone, Debug)]
pub struct ParticipantConfig {
    /// The data folder: signatures, updates and receipts. One process at a time.
    pub folder: PathBuf,
    /// The task.
    pub task: TaskId,
    /// Variant of the training's secret seeds, which follow from the wallet. The same wallet,
    /// variant, data and machine give the same updates.
    pub seed: u64,
    /// The most that this participant deposits as bond in total, with every top-up after a debit;
    /// without a limit, as much as its rows require.
    pub bond_max: Option<Amount>,
    /// The least floor of a round for one of `cohort_target` updates for which it deposits a bond.
    pub pay_min: Option<Amount>,
    /// The buyer's invitation, for a task that requires one.
    pub invitation: Option<Invitation>,
    /// The arbiters that may take the bond.
    pub arbiters: ArbiterPolicy,
    /// Whether `consent` also answers for an arbiter that the policy does not accept; by default
    /// the participation ends before the first deposit.
    pub asks_for_arbiter: bool,
    /// Whether to go on after an alarm. By default the participation ends: with further updates
    /// a participant would reveal more to a coordinator that broke the protocol.
    pub continues_on_alarm: bool,
    /// Initial models that are accepted although the buyer chose their parameters.
    pub accepted_models: Vec<Digest>,
    /// How the device trains a graph.
    pub execution: Execution,
    /// Processes that share the trainings of a graph; this one sends the updates.
    pub processes: u32,
    /// Whether to deposit a bond although a training takes longer than a round.
    pub accepts_slow_training: bool,
    /// Clip and noise of every update; `None` sends updates as they are.
    pub privacy: Option<PrivacyConfig>,
    /// The other participations of the process, if there are any.
    pub supervision: Supervision,
    /// Long-poll time: how long the coordinator may hold a request when nothing changes, in
    /// milliseconds. A graceful shutdown takes about as long.
    pub poll_ms: u64,
    /// How long to retry while the coordinator or the ledger does not answer.
    pub backoff: Backoff,
}

/// The resources that a participation uses.
pub struct ParticipantContext<'a> {
    /// The participant's wallet.
    pub wallet: &'a Wallet,
    /// The client of the coordinator.
    pub client: &'a Client,
    /// The ledger that holds the escrow, the bond and the pay.
    pub ledger: &'a dyn Ledger,
    /// The training engine.
    pub engine: &'a mut dyn Engine,
    /// The participant's own rows; with a producer, none in the shape of its rows.
    pub data: &'a Dataset,
    /// The program that writes the rows while the participant trains on them, if there is one.
    pub producer: Option<&'a RowFeed>,
    /// Honest training, or an experiment.
    pub behaviour: &'a mut dyn Behaviour,
    /// Answers whether to deposit the first bond on the terms of a quote.
    pub consent: &'a mut dyn FnMut(&ParticipationQuote) -> bool,
}

/// The result of a participation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParticipationSummary {
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
    pub bond: BondStatus,
    /// Number of reports that contradict themselves or a receipt.
    pub alarms: u32,
    /// ε of all updates of the data folder, if they have noise.
    pub epsilon: Option<Epsilon>,
}

/// Takes part in a task until it is over: registers, bonds, trains, submits updates, verifies
/// reports, claims pay, and withdraws the bond. Every event goes to the callback.
///
/// # Errors
/// [`AgentError`]. After any of them, the same call continues where this one ended.
pub fn participate(
    config: &ParticipantConfig,
    context: ParticipantContext<'_>,
    shutdown: &Shutdown,
    on_event: &mut dyn FnMut(&ParticipantEvent),
) -> Result<ParticipationSummary, AgentError> {
    atomic_file::create_folder(&config.folder)?;
    let guard = match &config.supervision.folder {
        Some(shared) => shared.clone(),
        None => SharedFolder::open(&config.folder, context.wallet.node_signer())?,
    };
    let client = context.client;
    let view = retry_with_backoff(
        config.backoff,
        shutdown,
        |error: &ClientError| on_event(&retrying_event(error)),
        || client.task(config.task),
    )?;
    trace::member("participant", context.wallet.address());
    let mut agent = Agent {
        me: context.wallet.address(),
        store: TaskFolder::new(&config.folder, config.task),
        auditor: Auditor::for_models(client, view.spec.clone(), &config.folder),
        graph: None,
        spec: view.spec,
        config,
        context,
        shutdown,
        on_event,
        guard,
        reported_at_enrolment: None,
        finalised_at_claim: 0,
        claimed: Amount::ZERO,
        current: CurrentRound {
            round: RoundNumber(0),
            stage: RoundStage::NotStarted,
            announced: false,
            loss_micronats: None,
        },
        last_report: None,
        history: TaskHistory::default(),
        settlements: Vec::new(),
        unchanged_rounds: 0,
        reports_read: 0,
        statements: Vec::new(),
        alarms: 0,
        small_bond: None,
        comparison: None,
        privacy_record: None,
        is_leaving: false,
        close_watch: closing::CloseWatch::default(),
        downloads: DownloadRate::default(),
        quote_ms: 0,
        read_messages: ReadMessages::default(),
        produced: ProducedRows::default(),
    };
    agent.check_producer()?;
    agent.check_task()?;
    agent.check_open(view.phase)?;
    agent.check_privacy(view.phase)?;
    if view.reported > 0 {
        let is_over = view.phase == TaskPhase::Done;
        agent.emit(&ParticipantEvent::EarlierReports { rounds: view.reported, is_over });
    }
    agent.run()
}

/// The round that the agent works on.
#[derive(Clone, Copy, Debug)]
struct CurrentRound {
    round: RoundNumber,
    stage: RoundStage,
    /// Whether the start of the round was reported as an event.
    announced: bool,
    loss_micronats: Option<u64>,
}

struct Agent<'a, 'p> {
    me: Address,
    config: &'a ParticipantConfig,
    context: ParticipantContext<'p>,
    shutdown: &'a Shutdown,
    on_event: &'a mut dyn FnMut(&ParticipantEvent),
    store: TaskFolder,
    spec: TaskSpec,
    guard: SharedFolder,
    reported_at_enrolment: Option<u32>,
    finalised_at_claim: u32,
    claimed: Amount,
    current: CurrentRound,
    /// The last report that was read, if any.
    last_report: Option<Report>,
    history: TaskHistory,
    /// The settlements that the reports read so far imply, oldest first.
    settlements: Vec<Settlement>,
    /// Number of consecutive rounds, up to the last one read, that left the model unchanged.
    unchanged_rounds: u32,
    reports_read: u32,
    /// The task's graph, once it is loaded.
    graph: Option<GraphModel>,
    /// Recomputes the models of the rounds read so far.
    auditor: Auditor<'a>,
    statements: Vec<Statement>,
    alarms: u32,
    /// The reason that was emitted last for a bond that is smaller than the rows require: whether
    /// the wallet has funds, and the number of rows that the bond covers.
    small_bond: Option<(bool, u64)>,
    /// The participant's rows, compared with the disclosed ones, from the first comparison on.
    comparison: Option<LabelComparison>,
    /// The privacy loss of all tasks of the folder, if updates have noise.
    privacy_record: Option<SharedPrivacyRecord>,
    /// Whether to leave the task now.
    is_leaving: bool,
    close_watch: closing::CloseWatch,
    /// The rate of the task's files, from the coordinator.
    downloads: DownloadRate,
    /// Predicted milliseconds from an offer to the commit; 0 if unknown.
    quote_ms: u64,
    /// The messages that the trace contains already.
    read_messages: ReadMessages,
    /// The rows of a coupled producer.
    produced: ProducedRows,
}

impl Agent<'_, '_> {
    fn run(mut self) -> Result<ParticipationSummary, AgentError> {
        if self.context.behaviour.is_experiment() {
            let behaviour = self.context.behaviour.name();
            self.emit(&ParticipantEvent::Experiment { behaviour });
        }
        let mut seen = None;
        while !self.shutdown.is_requested() {
            let view = match self.fetch_view(seen) {
                // Shutdown was requested while the coordinator was unreachable.
                Err(_) if self.shutdown.is_requested() => break,
                other => other?,
            };
            self.read_messages.note(&view, self.me);
            self.note_missed_rows(&view);
            self.enter_round(&view)?;
            let own = ParticipantState {
                reported_at_enrolment: self.reported_at_enrolment,
                finalised_at_claim: self.finalised_at_claim,
                reports_read: self.reports_read,
                stage: self.current.stage,
            };
            let step = state_machine::next_step(&view, self.me, own);
            let step = self.supervised(step);
            // Only a wait may long-poll; after any other step the view is fetched again at once.
            seen = (step == AgentStep::Wait).then_some(view.sequence);
            let is_closing = self.watch_for_close()?;
            match step {
                AgentStep::Wait => {}
                // An update of a task that is about to be closed could remain unpaid.
                AgentStep::Train | AgentStep::Commit if is_closing => {
                    self.shutdown
                        .wait(std::time::Duration::from_millis(self.config.poll_ms.max(1)));
                }
                AgentStep::Finish => match self.finish() {
                    Err(_) if self.shutdown.is_requested() => break,
                    other => {
                        let bond = other?;
                        return Ok(self.summary(true, bond));
                    }
                },
                step => match self.execute_traced(step, &view) {
                    Err(_) if self.shutdown.is_requested() => break,
                    other => other?,
                },
            }
            if self.is_leaving {
                return self.leave(view.finalised);
            }
            if self.may_stop_after(step, &view) {
                return Ok(self.summary(false, BondStatus::NotRequested));
            }
        }
        self.emit(&ParticipantEvent::Stopped);
        Ok(self.summary(false, BondStatus::NotRequested))
    }

    fn execute_traced(&mut self, step: AgentStep, view: &TaskView) -> Result<(), AgentError> {
        let work = match step {
            AgentStep::ReadReport(_) => Work::ReadReport,
            AgentStep::Claim => Work::Claim,
            AgentStep::Commit => Work::Commit,
            AgentStep::Reveal => Work::Upload,
            _ => return self.execute(step, view),
        };
        let _span = work.span(self.config.task, view.round).entered();
        self.execute(step, view)
    }

    fn execute(&mut self, step: AgentStep, view: &TaskView) -> Result<(), AgentError> {
        match step {
            AgentStep::ReadReport(round) => {
                self.read_report(round)?;
                // An alarm in the report ends the participation: nothing more is put at risk.
                if self.is_leaving {
                    return Ok(());
                }
                self.restore_bond(view, round)
            }
            AgentStep::Join => self.join(view),
            AgentStep::EnrolAgain => self.enrol_again(view),
            AgentStep::Claim => {
                self.claim_during_task(view.finalised);
                // The pay may be the funds that a higher bond was missing.
                self.restore_bond(view, RoundNumber(view.reported))
            }
            AgentStep::Train => {
                match self.confirm_reports()? && self.take_rows(Some(view.round))? {
                    true => {
                        let trained = self.train(required_offer(view)?);
                        self.resume_producer();
                        trained
                    }
                    false => Ok(()),
                }
            }
            AgentStep::Commit => {
                // A late update is sent rounds after the check that preceded its training.
                let is_late = self.store.trained_in(view.round)? < view.round;
                match !is_late || self.confirm_reports()? {
                    true => self.commit(required_offer(view)?),
                    false => Ok(()),
                }
            }
            AgentStep::Reveal => self.reveal(view.round),
            AgentStep::Wait | AgentStep::Finish => Ok(()),
        }
    }

    /// Records a message of this member.
    fn trace_send(&self, kind: &'static str, round: RoundNumber, bytes: u64) {
        let key = RoundKey { task: self.config.task, round, member: self.me };
        trace::send(kind, key, bytes);
    }

    fn fetch_view(&mut self, seen: Option<u64>) -> Result<TaskView, AgentError> {
        let (client, task, poll_ms) = (self.context.client, self.config.task, self.config.poll_ms);
        let round = self.current.round;
        let _span = seen.map(|_| Work::Wait.span(task, round).entered());
        Ok(self.with_client(|| match seen {
            Some(sequence) => client.task_after(task, sequence, poll_ms),
            None => client.task(task),
        })?)
    }

    fn finish(&mut self) -> Result<BondStatus, AgentError> {
        self.confirm_reports()?;
        self.claim_remaining()?;
        let bond = self.withdraw_bond_when_released()?;
        self.remove_residuals(RoundNumber(self.reports_read))?;
        self.remove_unsent_updates()?;
        self.emit(&ParticipantEvent::Finished { task: self.config.task });
        Ok(bond)
    }

    /// Leaves before the task ends: claims what is final, and requests the bond back.
    fn leave(mut self, finalised: u32) -> Result<ParticipationSummary, AgentError> {
        self.claim_during_task(finalised);
        let (ledger, wallet, task) = (self.context.ledger, self.context.wallet, self.config.task);
        let bond = self.with_ledger(|| withdraw_bond(ledger, wallet, task))?;
        match bond {
            BondStatus::Locked(until) => self.emit(&ParticipantEvent::BondLocked { until }),
            BondStatus::Returned(amount) => self.record_returned_bond(amount)?,
            BondStatus::NotRequested | BondStatus::None => {}
        }
        Ok(self.summary(false, bond))
    }

    fn summary(self, finished: bool, bond: BondStatus) -> ParticipationSummary {
        let epsilon = self.epsilon_spent();
        ParticipationSummary {
            task: self.config.task,
            account: self.me,
            finished,
            statements: self.statements,
            claimed: self.claimed,
            bond,
            alarms: self.alarms,
            epsilon,
        }
    }

    fn emit(&mut self, event: &ParticipantEvent) {
        if event.is_alarm() {
            self.alarms += 1;
            self.is_leaving = !self.config.continues_on_alarm;
        }
        (self.on_event)(event);
    }

    /// Marks this round as failed for this participant; the next round starts afresh.
    fn fail_round(&mut self, code: &'static str, why: &dyn std::fmt::Display) {
        self.current.stage = RoundStage::Failed;
        let round = self.current.round;
        self.emit(&ParticipantEvent::RoundFailed { round, code, why: why.to_string() });
    }

    fn with_client<T>(
        &mut self,
        attempt: impl FnMut() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let (backoff, shutdown) = (self.config.backoff, self.shutdown);
        // A coordinator that does not answer may be closing the task.
        let on_retry = |error: &ClientError| {
            self.emit(&retrying_event(error));
            if let Err(error) = self.watch_for_close() {
                self.emit(&retrying_event(&error));
            }
        };
        retry_with_backoff(backoff, shutdown, on_retry, attempt)
    }

    fn with_ledger<T>(
        &mut self,
        attempt: impl FnMut() -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let (on_event, ledger, wallet) =
            (&mut self.on_event, self.context.ledger, self.context.wallet);
        let on_retry = |error: &LedgerError| {
            on_event(&retrying_event(error));
            resume_transactions(ledger, wallet);
        };
        retry_with_backoff(self.config.backoff, self.shutdown, on_retry, attempt)
    }
}

fn retrying_event(error: &dyn std::fmt::Display) -> ParticipantEvent {
    ParticipantEvent::Retrying { why: error.to_string() }
}

/// The offer that a step requires; [`step::next_step`] returns such steps only if there is one.
fn required_offer(view: &TaskView) -> Result<&Offer, AgentError> {
    view.offer.as_ref().map(|offer| &offer.body).ok_or_else(|| AgentError::InvalidTask {
        task: view.id,
        why: format!("round {} has no offer", view.round),
    })
}

/// Files of a round that an earlier process left on disk.
struct PersistedRound {
    receipt: Option<UploadReceipt>,
    signed: bool,
    trained: bool,
}

impl PersistedRound {
    fn stage(&self) -> RoundStage {
        match self {
            Self { receipt: Some(_), .. } => RoundStage::ReceiptStored,
            Self { signed: true, .. } => RoundStage::Signed,
            Self { trained: true, .. } => RoundStage::Trained,
            _ => RoundStage::NotStarted,
        }
    }
}
