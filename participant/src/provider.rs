//! The provider daemon: stakes tokens, and executes work orders that the coordinator can verify.
//!
//! Like the agent, it may be killed at any point: stake and pledge are on the ledger, signatures
//! are in the guard, and the coordinator reissues an unanswered order until it is due. One order
//! has one work record: after a crash the recorded result is submitted, not a new one.

mod submission;
mod transcript_file;
mod work_order;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use florin_learning::graph::GraphModel;
use florin_learning::{Engine, ScratchSpace};
use florin_ledger::{Ledger, LedgerError, Refusal, StakeState, Terms};
use florin_protocol::{
    Address, Amount, Canonical, Digest, ErrorCode, Role, Signed, TaskId, TaskPhase, TaskSpec,
    WalletSigner, WorkOrder, WorkRecord, WorkRequest,
};

use crate::agent::{AgentError, ClaimError, EXPIRY_MS, claim_pay, register};
use crate::arbiter::{ArbiterPolicy, arbiter_acceptable, describe_unaccepted};
use crate::atomic_file;
use crate::blob_cache::BlobCache;
use crate::client::{Client, ClientError};
use crate::deposits::DepositRecord;
use crate::event::ParticipantEvent;
use crate::guard::{GuardError, SigningGuard};
use crate::retry::{Backoff, Transient, resume_transactions};
use crate::shutdown::Shutdown;
use crate::trace::{self, RoundKey, Work};
use crate::wallet::Wallet;
use florin_work::RecordedRound;
use transcript_file::TranscriptFile;

/// Limit on the bytes of updates and models of one order.
pub const ORDER_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;
/// Limit on decoded updates in memory during a recomputation; the rest is in a temporary file.
const SCRATCH_MEMORY_MAX: u64 = 2 * 1024 * 1024 * 1024;

/// Scratch space for a round's decoded updates during a recomputation. The system's temporary
/// folder may itself be in memory, so the file is placed in the data folder.
pub(crate) fn scratch_space(folder: &Path) -> ScratchSpace {
    ScratchSpace { memory_max: SCRATCH_MEMORY_MAX, folder: folder.to_owned() }
}

/// Settings of a provider.
#[derive(Clone, Debug)]
pub struct ProviderConfig {
    /// The data folder: signatures, and scratch files for updates that exceed the memory limit. One
    /// process at a time.
    pub folder: PathBuf,
    /// The tasks to serve; by default every open task that pays for work.
    pub tasks: Option<Vec<TaskId>>,
    /// The most that this provider deposits as stake in total, also after slashes.
    pub stake_max: Amount,
    /// The arbiters that may take the stake. Tasks of others are skipped.
    pub arbiters: ArbiterPolicy,
    /// Digests of the trainers that this machine runs. Tasks whose model is another one are skipped.
    pub accepted_trainers: Vec<Digest>,
    /// Whether to end when every named task is over; otherwise run until shutdown.
    pub until_done: bool,
    /// Long-poll time for work orders, in milliseconds. A graceful shutdown takes about as long.
    pub poll_ms: u64,
    /// How long to retry while the coordinator or the ledger does not answer.
    pub backoff: Backoff,
}

/// The resources that a provider uses.
pub struct ProviderContext<'a> {
    /// The provider's wallet.
    pub wallet: &'a Wallet,
    /// The client of the coordinator.
    pub client: &'a Client,
    /// The ledger that holds the stake and the pay.
    pub ledger: &'a dyn Ledger,
    /// The engine that evaluates.
    pub engine: &'a mut dyn Engine,
}

/// The result of a provider's run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderSummary {
    /// The account.
    pub account: Address,
    /// Number of accepted work orders.
    pub orders: u64,
    /// Number of verified units.
    pub units: u64,
    /// Amount that this run claimed.
    pub claimed: Amount,
    /// True if every task is over; false after a requested shutdown.
    pub finished: bool,
}

/// Errors that end a provider's run.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// An error of the registration or of the data folder.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// An error of the client.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// An error of the ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// An error of the signing guard.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// An error of a claim.
    #[error(transparent)]
    Claim(#[from] ClaimError),
}

impl ProviderError {
    /// The stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Agent(error) => error.code(),
            Self::Client(error) => error.code(),
            Self::Ledger(error) => crate::ledger_code(error),
            Self::Guard(error) => error.code(),
            Self::Claim(error) => error.code(),
        }
    }

    const fn is_ledger_error(&self) -> bool {
        matches!(
            self,
            Self::Ledger(_)
                | Self::Agent(AgentError::Ledger(_))
                | Self::Claim(ClaimError::Ledger(_))
        )
    }

    fn is_not_registered(&self) -> bool {
        let Self::Client(error) = self else { return false };
        error.rejection().is_some_and(|rejection| rejection.code == ErrorCode::NotRegistered)
    }
}

impl Transient for ProviderError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Agent(AgentError::Client(error)) | Self::Client(error) => error.is_transient(),
            Self::Agent(AgentError::Ledger(error)) | Self::Ledger(error) => error.is_transient(),
            Self::Claim(error) => error.is_transient(),
            Self::Agent(_) | Self::Guard(_) => false,
        }
    }
}

/// Serves tasks until they are over or shutdown is requested: registers, stakes the missing amount,
/// pledges, executes work orders, and claims the pay when a task is done. The stake stays on the
/// ledger for the next task; see [`withdraw_stake`].
///
/// # Errors
/// [`ProviderError`]. After any of them, the same call continues where this one ended.
pub fn provide(
    config: &ProviderConfig,
    context: ProviderContext<'_>,
    shutdown: &Shutdown,
    on_event: &mut dyn FnMut(&ParticipantEvent),
) -> Result<ProviderSummary, ProviderError> {
    atomic_file::create_folder(&config.folder).map_err(AgentError::from)?;
    let guard = SigningGuard::open(&config.folder.join("guard"), context.wallet.node_signer())?;
    let account = context.wallet.address();
    trace::member("provider", account);
    let mut server = ProviderDaemon {
        config,
        context,
        shutdown,
        on_event,
        guard,
        transcript: TranscriptFile::new(&config.folder),
        registered: false,
        last_turn_failed: false,
        models: BlobCache::for_models(),
        updates: BlobCache::for_updates(),
        earlier_rows: BlobCache::for_models(),
        served_tasks: BTreeMap::new(),
        finished_tasks: BTreeSet::new(),
        skipped_tasks: BTreeSet::new(),
        summary: ProviderSummary { account, ..ProviderSummary::default() },
    };
    let mut wait_ms = config.backoff.initial_ms;
    let mut waited_ms = 0;
    while !shutdown.is_requested() {
        match server.run_once() {
            Ok(true) => return Ok(server.summary),
            Ok(false) => (wait_ms, waited_ms) = (config.backoff.initial_ms, 0),
            Err(error) if error.is_transient() && waited_ms < config.backoff.max_total_ms => {
                (server.on_event)(&ParticipantEvent::Retrying { why: error.to_string() });
                if error.is_ledger_error() {
                    resume_transactions(server.context.ledger, server.context.wallet);
                }
                shutdown.wait(std::time::Duration::from_millis(wait_ms));
                waited_ms += wait_ms;
                wait_ms = (wait_ms * 2).min(config.backoff.max_ms);
            }
            Err(error) => return Err(error),
        }
    }
    (server.on_event)(&ParticipantEvent::Stopped);
    Ok(server.summary)
}

struct ProviderDaemon<'a, 'p> {
    config: &'a ProviderConfig,
    context: ProviderContext<'p>,
    shutdown: &'a Shutdown,
    on_event: &'a mut dyn FnMut(&ParticipantEvent),
    guard: SigningGuard,
    transcript: TranscriptFile,
    registered: bool,
    /// The last turn failed. The next one does not long-poll: a response shows that the coordinator
    /// is back, and resets the back-off. Otherwise a coordinator that is restarted during every
    /// long poll would be queried less and less often.
    last_turn_failed: bool,
    /// Cached models of the last order.
    models: BlobCache,
    /// Its cached updates, as far as the next order may refer to them.
    updates: BlobCache,
    /// The cached rows of earlier rounds of the last order.
    earlier_rows: BlobCache,
    /// Tasks that the stake is pledged to.
    served_tasks: BTreeMap<TaskId, ServedTask>,
    /// Finished tasks whose pay is claimed.
    finished_tasks: BTreeSet<TaskId>,
    /// Tasks that are not served, each announced by an event.
    skipped_tasks: BTreeSet<TaskId>,
    summary: ProviderSummary,
}

struct ServedTask {
    spec: TaskSpec,
    /// The task's graph, once it was needed.
    graph: Option<GraphModel>,
    /// Whether the coordinator has answered a query for this task's work; the first query does not
    /// long-poll.
    ready: bool,
    /// Number of rounds whose report was read, and the holdout rows that they disclosed.
    reports_read: u32,
    disclosed_rows: Vec<u32>,
}

impl ProviderDaemon<'_, '_> {
    /// Visits every task once. Returns true if all are over and the run may end.
    fn run_once(&mut self) -> Result<bool, ProviderError> {
        let turned = self.visit_tasks();
        self.last_turn_failed = turned.is_err();
        match turned {
            // In a full market the registration gave way to others: the next turn registers again.
            Err(error) if self.registered && error.is_not_registered() => {
                self.registered = false;
                (self.on_event)(&ParticipantEvent::Retrying { why: error.to_string() });
                self.pause();
                Ok(false)
            }
            turned => turned,
        }
    }

    fn visit_tasks(&mut self) -> Result<bool, ProviderError> {
        if !self.registered {
            let (wallet, client) = (self.context.wallet, self.context.client);
            if register(self.guard.signer(), wallet, client, Role::Provider)
                .map_err(AgentError::from)?
            {
                (self.on_event)(&ParticipantEvent::Registered { account: wallet.address() });
            }
            self.registered = true;
        }
        let tasks = self.tasks()?;
        let open: Vec<TaskId> =
            tasks.iter().copied().filter(|task| !self.finished_tasks.contains(task)).collect();
        for task in &open {
            self.visit_task(*task)?;
        }
        if self.config.until_done && !tasks.is_empty() && open.is_empty() {
            self.summary.finished = true;
            return Ok(true);
        }
        let serving: Vec<TaskId> = self.served_tasks.keys().copied().collect();
        let share = self.config.poll_ms / (serving.len().max(1) as u64);
        for task in &serving {
            if self.shutdown.is_requested() {
                break;
            }
            self.poll_for_work(*task, share)?;
        }
        if serving.is_empty() {
            self.pause();
        }
        Ok(false)
    }

    fn tasks(&self) -> Result<Vec<TaskId>, ProviderError> {
        if let Some(named) = &self.config.tasks {
            return Ok(named.clone());
        }
        let all = self.context.client.tasks()?;
        let paying = all.iter().filter(|task| !task.infrastructure.is_zero());
        Ok(paying.map(|task| task.id).collect())
    }

    /// Pledges to an open task, or claims the pay of a finished one.
    fn visit_task(&mut self, task: TaskId) -> Result<(), ProviderError> {
        let view = self.context.client.task(task)?;
        if view.phase == TaskPhase::Done {
            self.claim(task)?;
            self.served_tasks.remove(&task);
            self.finished_tasks.insert(task);
            (self.on_event)(&ParticipantEvent::Finished { task });
            return Ok(());
        }
        let known = self.served_tasks.contains_key(&task) || self.skipped_tasks.contains(&task);
        if known || view.phase == TaskPhase::Closing {
            return Ok(());
        }
        if let Err(why) = self.pledge(&view.spec)? {
            self.skipped_tasks.insert(task);
            (self.on_event)(&ParticipantEvent::TaskSkipped { task, why });
            return Ok(());
        }
        let served = ServedTask {
            spec: view.spec,
            graph: None,
            ready: false,
            reports_read: 0,
            disclosed_rows: Vec::new(),
        };
        self.served_tasks.insert(task, served);
        Ok(())
    }

    /// Stakes the missing amount and pledges it. The inner error is the reason not to serve the
    /// task.
    fn pledge(&mut self, spec: &TaskSpec) -> Result<Result<(), String>, ProviderError> {
        let (ledger, wallet, task) = (self.context.ledger, self.context.wallet, spec.id());
        let me = wallet.address();
        if let Err(error) = spec.check() {
            return Ok(Err(error.to_string()));
        }
        if let Some(trainer) = spec.model.trainer()
            && !self.config.accepted_trainers.contains(&trainer.graph.digest)
        {
            let digest = trainer.graph.digest;
            return Ok(Err(format!(
                "its model is a program: read its code by `florin task code`, and run it by \
                 --accept-trainer {digest}"
            )));
        }
        let coordinator = self.context.client.coordinator().account;
        if spec.coordinator != coordinator {
            return Ok(Err(format!("its coordinator is {}, not {coordinator}", spec.coordinator)));
        }
        let funded = ledger.task(task)?.is_some_and(|state| state.terms == Terms::from_spec(spec));
        if !funded {
            return Ok(Err(
                "its terms on the ledger are missing or differ from its specification".to_owned()
            ));
        }
        let least = spec.budget.stake_min;
        if !arbiter_acceptable(&self.config.arbiters, spec) {
            return Ok(Err(describe_unaccepted(spec)));
        }
        let there = ledger.stake_of(me)?;
        let record = DepositRecord::new(self.config.folder.join("stake.json"));
        let lost = record.lost(there.amount).map_err(AgentError::from)?;
        let limit = self.config.stake_max;
        if limit.minus(lost).unwrap_or(Amount::ZERO) < least {
            return Ok(Err(format!(
                "it requires a stake of {least} FLN, but --max-stake is {limit} FLN for all \
                 deposits, of which {lost} FLN are lost"
            )));
        }
        // Any deposit, even the smallest, cancels a pending withdrawal of the stake.
        let smallest = Amount::from_units(u128::from(there.release.is_some()));
        let added = least.minus(there.amount).unwrap_or(Amount::ZERO).max(smallest);
        if !added.is_zero() {
            match ledger.stake(wallet, added) {
                Err(LedgerError::Refused(refusal @ Refusal::Insufficient { .. })) => {
                    return Ok(Err(refusal.to_string()));
                }
                other => other?,
            };
            let stake = there.amount.plus(added).unwrap_or(least);
            record.deposited(added, stake).map_err(AgentError::from)?;
            (self.on_event)(&ParticipantEvent::Staked { added, stake });
        }
        if !ledger.is_pledged(task, me)? {
            match ledger.pledge(wallet, task) {
                Err(LedgerError::Refused(refusal)) => return Ok(Err(refusal.to_string())),
                other => other?,
            };
            (self.on_event)(&ParticipantEvent::Pledged { task });
        }
        Ok(Ok(()))
    }

    /// Polls for a work order of a task, and executes it.
    fn poll_for_work(&mut self, task: TaskId, share_ms: u64) -> Result<(), ProviderError> {
        let client = self.context.client;
        let ready = self.served_tasks.get(&task).is_some_and(|served| served.ready);
        let wait_ms = if ready && !self.last_turn_failed { share_ms } else { 0 };
        let (market, provider) = (client.coordinator().market, self.context.wallet.address());
        let asked = client.with_expiry(EXPIRY_MS, |expires| {
            let query = self.guard.sign(WorkRequest { market, task, provider, expires });
            client.next_work(&query, wait_ms)
        });
        let order = match asked {
            Ok(order) => {
                self.mark_ready(task);
                order
            }
            // The task ended in the meantime; the next visit handles that.
            Err(ClientError::Rejected(rejection))
                if matches!(rejection.code, ErrorCode::TaskClosed | ErrorCode::WorkOrderClosed) =>
            {
                None
            }
            // The stake was slashed, or the coordinator has no record of this provider: the next
            // turn registers, stakes within the limit, and pledges again.
            Err(ClientError::Rejected(rejection)) => {
                self.registered = false;
                self.served_tasks.remove(&task);
                (self.on_event)(&ParticipantEvent::TaskSkipped {
                    task,
                    why: rejection.to_string(),
                });
                self.pause();
                None
            }
            Err(error) => return Err(error.into()),
        };
        match order {
            Some(order) => self.handle_order(task, &order.body),
            None => Ok(()),
        }
    }

    /// Records the first answered query: the coordinator now holds work orders for this provider.
    fn mark_ready(&mut self, task: TaskId) {
        if let Some(served) = self.served_tasks.get_mut(&task).filter(|served| !served.ready) {
            served.ready = true;
            (self.on_event)(&ParticipantEvent::Ready { task });
        }
    }

    fn handle_order(&mut self, task: TaskId, order: &WorkOrder) -> Result<(), ProviderError> {
        let (market, round) = (order.scope.market, order.scope.round);
        let key = RoundKey { task, round, member: self.context.wallet.address() };
        trace::receive("order", key);
        let record = match self.guard.signed_work_for(market, order.digest()) {
            Some(record) => {
                (self.on_event)(&ParticipantEvent::WorkRecovered { round });
                record
            }
            None => {
                (self.on_event)(&ParticipantEvent::WorkOrdered {
                    task,
                    round,
                    updates: order.entries.len(),
                });
                match self.compute_record(task, order)? {
                    Ok(record) => record,
                    Err(why) => {
                        (self.on_event)(&ParticipantEvent::WorkFailed { round, why });
                        self.pause();
                        return Ok(());
                    }
                }
            }
        };
        if self.shutdown.is_requested() {
            // The result is recorded: the next start submits it.
            return Ok(());
        }
        trace::send("record", key, 0);
        let submit = Work::Submit.span(task, round).entered();
        let submitted = self.submit(&record, order.due);
        drop(submit);
        match submitted {
            Ok(verdict) => {
                self.summary.orders += 1;
                self.summary.units += verdict.units;
                (self.on_event)(&ParticipantEvent::WorkAccepted { round, units: verdict.units });
                Ok(())
            }
            Err(ClientError::Rejected(rejection)) => {
                (self.on_event)(&ParticipantEvent::WorkRejected { round, rejection });
                self.pause();
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits before the next attempt after a rejection, to avoid a busy loop.
    fn pause(&self) {
        self.shutdown.wait(std::time::Duration::from_millis(self.config.poll_ms));
    }

    /// Fetches the order's inputs, executes it, and records and signs the result. The inner error
    /// is the reason why it cannot be executed.
    fn compute_record(
        &mut self,
        task: TaskId,
        order: &WorkOrder,
    ) -> Result<Result<Signed<WorkRecord>, String>, ProviderError> {
        let begun = Instant::now();
        let Some(mut served) = self.served_tasks.remove(&task) else {
            return Ok(Err("the task is not served".to_owned()));
        };
        let work = Work::Value.span(task, order.scope.round);
        let done = work.in_scope(|| self.execute_order(order, &mut served));
        self.served_tasks.insert(task, served);
        let RecordedRound { output, transcript } = match done? {
            Ok(recorded) => recorded,
            Err(why) => return Ok(Err(why)),
        };
        let result = output.result;
        let units = result.valuation.units;
        let record = WorkRecord {
            market: order.scope.market,
            order: order.digest(),
            provider: self.context.wallet.address(),
            result,
        };
        self.transcript.write(record.order, transcript.as_deref());
        let record = self.guard.sign_work(record)?;
        let ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        (self.on_event)(&ParticipantEvent::WorkComputed { round: order.scope.round, units, ms });
        Ok(Ok(record))
    }

    fn claim(&mut self, task: TaskId) -> Result<(), ProviderError> {
        let (wallet, client, ledger) =
            (self.context.wallet, self.context.client, self.context.ledger);
        let drawn = claim_pay(client, ledger, wallet, task, wallet.address())?;
        self.summary.claimed =
            self.summary.claimed.plus(drawn.paid).unwrap_or(self.summary.claimed);
        if !drawn.paid.is_zero() {
            (self.on_event)(&ParticipantEvent::Claimed { task, drawn });
        }
        Ok(())
    }
}

/// Requests the withdrawal of the whole stake, and withdraws it if the ledger allows that already.
/// Returns what is still staked, with the time of its release.
///
/// # Errors
/// [`LedgerError`].
pub fn withdraw_stake(
    ledger: &dyn Ledger,
    by: &dyn WalletSigner,
) -> Result<StakeState, LedgerError> {
    let there = ledger.stake_of(by.address())?;
    if there.amount.is_zero() {
        return Ok(there);
    }
    if there.release.is_none() {
        ledger.unstake(by)?;
    }
    match ledger.withdraw_stake(by) {
        Ok(_) | Err(LedgerError::Refused(Refusal::TooEarly { .. })) => {}
        Err(error) => return Err(error),
    }
    ledger.stake_of(by.address())
}

#[cfg(test)]
#[path = "provider_tests.rs"]
mod tests;
