//! Starts and ends one agent for each task that is worth it, and reviews the market after every
//! reported round.
//!
//! All durable state is that of the agents: after a restart a task with a bond goes on with this
//! bond, and one whose bond was requested back waits for it.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::Scope;
use std::time::{Duration, Instant};

use florin_learning::{Dataset, Engine};
use florin_ledger::Ledger;
use florin_protocol::{Address, Amount, TaskId, TaskSpec, WalletSigner};

use super::FAILURES_MAX;
use super::examine::{Examiner, TaskDeposit, deposits};
use super::plan::OwnTask;
use super::prediction::TaskPrediction;
use super::refusal::TaskRefusal;
use super::rules::Policy;
use crate::agent::{
    AgentError, ParticipantConfig, ParticipantContext, Supervision, claim_pay, leave_task,
    participate,
};
use crate::atomic_file;
use crate::behaviour::Honest;
use crate::client::Client;
use crate::event::ParticipantEvent;
use crate::shared_folder::SharedFolder;
use crate::shutdown::Shutdown;
use crate::turns::TrainingTurns;
use crate::wallet::Wallet;

/// Time between two looks at the hours and at a shutdown request.
const LOOK: Duration = Duration::from_millis(200);
const MS_PER_SECOND: f64 = 1e3;

/// The settings of a client for many tasks.
#[derive(Clone, Debug)]
pub struct ManyConfig {
    /// The settings that all tasks share. Task, limit on the bond and supervision are set for each.
    pub participant: ParticipantConfig,
    /// The policy.
    pub policy: Policy,
}

/// Why rows or an engine cannot be had for a task.
#[derive(Clone, Debug)]
pub struct Obstacle {
    /// The stable code.
    pub code: String,
    /// The cause.
    pub why: String,
}

/// Loads the rows of one of the policy's data sets for a task.
pub type RowsForTask<'a> = &'a (dyn Fn(&TaskSpec, usize) -> Result<Dataset, Obstacle> + Sync);
/// Builds an engine for a task.
pub type EngineForTask<'a> = &'a (dyn Fn(&TaskSpec) -> Result<Box<dyn Engine>, Obstacle> + Sync);

/// The resources that all tasks share.
pub struct ManyContext<'a> {
    /// The participant's wallet.
    pub wallet: &'a Wallet,
    /// The client of the coordinator.
    pub client: &'a Client,
    /// The ledger.
    pub ledger: &'a dyn Ledger,
    /// Loads rows.
    pub rows: RowsForTask<'a>,
    /// Builds engines.
    pub engine: EngineForTask<'a>,
}

/// The decision about one task.
#[derive(Clone, Debug)]
pub struct TaskDecision {
    /// The task.
    pub task: TaskId,
    /// Its name, safe to print.
    pub name: String,
    /// The name of the data set for it.
    pub data: Option<String>,
    /// The decision.
    pub verdict: TaskVerdict,
    /// The predicted pay, for a task that the client can serve.
    pub prediction: Option<TaskPrediction>,
    /// The most to deposit, for a task to join.
    pub bond: Option<Amount>,
}

impl TaskDecision {
    /// The place of the verdict in a list.
    pub(super) const fn order(&self) -> u8 {
        match self.verdict {
            TaskVerdict::Stay => 0,
            TaskVerdict::Settling => 1,
            TaskVerdict::Leave => 2,
            TaskVerdict::Join => 3,
            TaskVerdict::Refused(_) => 4,
        }
    }
}

/// A decision of a review.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskVerdict {
    /// It is joined.
    Join,
    /// The client takes part and stays.
    Stay,
    /// Its rounds are over, and its last settlements are not.
    Settling,
    /// The client leaves it.
    Leave,
    /// The client does not take part.
    Refused(TaskRefusal),
}

impl TaskVerdict {
    /// Its name, as in JSON.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Stay => "stay",
            Self::Settling => "settling",
            Self::Leave => "leave",
            Self::Refused(_) => "refuse",
        }
    }
}

/// An event of the client.
#[derive(Clone, Copy, Debug)]
pub enum ManyEvent<'a> {
    /// A review has ended.
    Reviewed(&'a [TaskDecision]),
    /// The market could not be reviewed; the next review is due soon.
    NotReviewed(&'a AgentError),
    /// An event of the agent of a task.
    OfTask(TaskId, &'a ParticipantEvent),
    /// The participation in a task ended with an error.
    Failed(TaskId, &'a TaskRefusal),
}

/// The result of a client for many tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManySummary {
    /// The account.
    pub account: Address,
    /// Tasks in which it took part.
    pub tasks: usize,
    /// Claimed by this run.
    pub claimed: Amount,
    /// Alarms of all tasks.
    pub alarms: u32,
}

/// Takes part in the tasks that the policy selects, until shutdown is requested.
///
/// # Errors
/// [`AgentError`] if the data folder cannot be used, or the ledger cannot be read at the start.
pub fn participate_in_many(
    config: &ManyConfig,
    context: &ManyContext<'_>,
    shutdown: &Shutdown,
    on_event: &(dyn Fn(&ManyEvent<'_>) + Sync),
) -> Result<ManySummary, AgentError> {
    let folder = &config.participant.folder;
    atomic_file::create_folder(folder)?;
    let (sender, news) = mpsc::channel();
    let desk = Desk {
        config,
        context,
        shutdown,
        on_event,
        folder: SharedFolder::open(folder, context.wallet.node_signer())?,
        turns: TrainingTurns::default(),
    };
    std::thread::scope(|scope| {
        let mut supervisor = Supervisor::new(&desk, sender)?;
        while !shutdown.is_requested() {
            supervisor.keep_hours();
            if supervisor.is_review_due() {
                supervisor.review(scope);
            }
            supervisor.listen(&news, LOOK);
        }
        supervisor.wait_for_all(&news);
        Ok(supervisor.summary())
    })
}

/// The parts that all threads share.
struct Desk<'a> {
    config: &'a ManyConfig,
    context: &'a ManyContext<'a>,
    shutdown: &'a Shutdown,
    on_event: &'a (dyn Fn(&ManyEvent<'_>) + Sync),
    folder: SharedFolder,
    turns: TrainingTurns,
}

/// A message of a task's thread.
enum TaskNews {
    /// A round was reported.
    Reported,
    /// A training took these milliseconds.
    Trained(u64),
    /// Tokens were claimed.
    Claimed(Amount),
    /// The thread has ended: with the number of alarms, or with an error.
    Ended(Result<u32, TaskRefusal>),
}

/// A task with a thread.
struct RunningTask {
    /// The most to deposit in it.
    allocation: Amount,
    leave: Shutdown,
    /// Whether its bond was requested back.
    is_leaving: bool,
    weak: u32,
}

/// The work of a task's thread.
struct TaskJob {
    task: TaskId,
    /// Specification and data set; `None` if only the bond is waited for.
    work: Option<(TaskSpec, usize)>,
    allocation: Amount,
    leave: Shutdown,
}

struct Supervisor<'a> {
    desk: &'a Desk<'a>,
    examiner: Examiner<'a>,
    sender: Sender<(TaskId, TaskNews)>,
    running: BTreeMap<TaskId, RunningTask>,
    /// All deposits of the data folder.
    deposits: BTreeMap<TaskId, TaskDeposit>,
    failures: BTreeMap<TaskId, u32>,
    tasks: usize,
    claimed: Amount,
    alarms: u32,
    reviewed: Option<Instant>,
    is_stale: bool,
}

impl<'a> Supervisor<'a> {
    fn new(desk: &'a Desk<'a>, sender: Sender<(TaskId, TaskNews)>) -> Result<Self, AgentError> {
        let (config, context) = (desk.config, desk.context);
        let deposits = deposits(config, context)?;
        let examiner = Examiner::new(config, context, desk.turns.clone(), desk.shutdown);
        let supervisor = Self {
            desk,
            examiner,
            sender,
            running: BTreeMap::new(),
            deposits,
            failures: BTreeMap::new(),
            tasks: 0,
            claimed: Amount::ZERO,
            alarms: 0,
            reviewed: None,
            is_stale: true,
        };
        supervisor.claim_of_ended_tasks();
        Ok(supervisor)
    }

    /// Claims the pay of tasks that an earlier run left. `florin claim` is another occasion.
    fn claim_of_ended_tasks(&self) {
        let ManyContext { client, ledger, wallet, .. } = *self.desk.context;
        let ended = self.deposits.iter().filter(|(_, deposit)| deposit.present.is_zero());
        for (task, _) in ended {
            match claim_pay(client, ledger, wallet, *task, wallet.address()) {
                Ok(drawn) if drawn.paid.is_zero() => {}
                Ok(drawn) => {
                    let event = ParticipantEvent::Claimed { task: *task, drawn };
                    (self.desk.on_event)(&ManyEvent::OfTask(*task, &event));
                    let _ = self.sender.send((*task, TaskNews::Claimed(drawn.paid)));
                }
                Err(error) => tracing::debug!(%task, %error, "no claim at the start"),
            }
        }
    }

    /// Holds trainings back outside the policy's hours.
    fn keep_hours(&mut self) {
        let now = self.desk.context.client.now();
        let is_open = self.desk.config.policy.hours.is_none_or(|hours| hours.contain(now));
        if is_open != self.desk.turns.is_open() {
            self.desk.turns.set_open(is_open);
            self.is_stale = true;
        }
    }

    fn is_review_due(&self) -> bool {
        let pause = Duration::from_millis(self.desk.config.policy.review_ms.max(1));
        self.is_stale || self.reviewed.is_none_or(|last| last.elapsed() >= pause)
    }

    /// The part of the limit on all bonds that is left.
    fn bond_left(&self) -> Amount {
        let allocated = |task: &TaskId| {
            self.running.get(task).map_or(Amount::ZERO, |running| running.allocation)
        };
        let all = self.deposits.iter().map(|(task, bond)| bond.used.max(allocated(task)));
        let new = self.running.iter().filter(|(task, _)| !self.deposits.contains_key(task));
        let all = all.chain(new.map(|(_, running)| running.allocation));
        let most = self.desk.config.policy.bond_max;
        Amount::total(all).and_then(|used| most.minus(used)).unwrap_or(Amount::ZERO)
    }

    fn review<'scope, 'env>(&mut self, scope: &'scope Scope<'scope, 'env>)
    where
        'a: 'scope,
    {
        self.is_stale = false;
        self.reviewed = Some(Instant::now());
        if let Err(error) = self.try_review(scope) {
            (self.desk.on_event)(&ManyEvent::NotReviewed(&error));
        }
    }

    fn try_review<'scope, 'env>(
        &mut self,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Result<(), AgentError>
    where
        'a: 'scope,
    {
        self.refresh_deposits()?;
        self.resume(scope);
        let mut own: BTreeMap<TaskId, OwnTask> = BTreeMap::new();
        for (task, running) in &self.running {
            let (is_over, weak) = (running.is_leaving, running.weak);
            own.insert(*task, OwnTask { per_hour: None, weak, is_over });
        }
        let left = self.bond_left();
        let mut review = self.examiner.review(&mut own, left)?;
        for (task, weak) in &review.plan.weak {
            if let Some(running) = self.running.get_mut(task) {
                running.weak = *weak;
            }
        }
        review.plan.leaves.retain(|task| self.running.get(task).is_some_and(|it| !it.is_leaving));
        (self.desk.on_event)(&ManyEvent::Reviewed(&review.decisions));
        for task in &review.plan.leaves {
            if let Some(running) = self.running.get_mut(task) {
                running.is_leaving = true;
                running.leave.request();
            }
        }
        for (task, bond) in review.plan.joins {
            let facts = self.examiner.facts(task);
            let work = facts.map(|facts| (facts.spec.clone(), facts.data));
            if work.is_some() {
                self.tasks += 1;
                self.start(scope, TaskJob { task, work, allocation: bond, leave: Shutdown::new() });
            }
        }
        Ok(())
    }

    /// Reads the deposits of tasks without a thread again.
    fn refresh_deposits(&mut self) -> Result<(), AgentError> {
        if self.reviewed.is_some() {
            self.deposits = deposits(self.desk.config, self.desk.context)?;
        }
        Ok(())
    }

    /// Starts the threads of tasks that have a bond and no thread: after a restart, or an error.
    /// Nothing is added to their bonds. One that the policy allows no more, and one that failed
    /// often, is left.
    fn resume<'scope, 'env>(&mut self, scope: &'scope Scope<'scope, 'env>)
    where
        'a: 'scope,
    {
        let idle = self.deposits.iter().filter(|(task, deposit)| {
            !deposit.present.is_zero() && !self.running.contains_key(task)
        });
        let idle: Vec<(TaskId, TaskDeposit)> = idle.map(|(task, it)| (*task, *it)).collect();
        for (task, deposit) in idle {
            let failed = self.failures.get(&task).copied().unwrap_or(0) >= FAILURES_MAX;
            let facts = self.examiner.examine_own(task);
            let work = facts.map(|facts| (facts.spec.clone(), facts.data));
            let is_refused = self.examiner.final_refusal(task).is_some();
            if work.is_none() && !is_refused && !deposit.is_leaving && !failed {
                // It is examined again at the next review.
                continue;
            }
            let work = work.filter(|_| !deposit.is_leaving && !failed);
            self.tasks += 1;
            let (allocation, leave) = (deposit.present, Shutdown::new());
            self.start(scope, TaskJob { task, work, allocation, leave });
        }
    }

    fn start<'scope, 'env>(&mut self, scope: &'scope Scope<'scope, 'env>, job: TaskJob)
    where
        'a: 'scope,
    {
        let running = RunningTask {
            allocation: job.allocation,
            leave: job.leave.clone(),
            is_leaving: job.work.is_none(),
            weak: 0,
        };
        self.running.insert(job.task, running);
        let (desk, sender) = (self.desk, self.sender.clone());
        scope.spawn(move || {
            let task = job.task;
            let ended = desk.work(&job, &sender).map_err(|error| TaskRefusal::Failed {
                code: error.code(),
                why: error.to_string(),
            });
            // The supervisor listens until all threads have ended.
            let _ = sender.send((task, TaskNews::Ended(ended)));
        });
    }

    /// Takes the messages of the threads, for a while.
    fn listen(&mut self, news: &Receiver<(TaskId, TaskNews)>, time: Duration) {
        let mut next = news.recv_timeout(time).ok();
        while let Some((task, message)) = next {
            self.note(task, message);
            next = news.try_recv().ok();
        }
    }

    fn note(&mut self, task: TaskId, news: TaskNews) {
        match news {
            TaskNews::Reported => self.is_stale = true,
            TaskNews::Trained(ms) => self.examiner.note_seconds(task, ms as f64 / MS_PER_SECOND),
            TaskNews::Claimed(amount) => {
                self.claimed = self.claimed.plus(amount).unwrap_or(self.claimed);
            }
            TaskNews::Ended(ended) => {
                self.running.remove(&task);
                self.is_stale = true;
                match ended {
                    Ok(0) => {}
                    Ok(alarms) => {
                        self.alarms = self.alarms.saturating_add(alarms);
                        self.examiner.note_failure(task, TaskRefusal::Alarm);
                    }
                    Err(why) => self.note_failure(task, why),
                }
            }
        }
    }

    fn note_failure(&mut self, task: TaskId, why: TaskRefusal) {
        (self.desk.on_event)(&ManyEvent::Failed(task, &why));
        let failures = self.failures.entry(task).or_default();
        *failures = failures.saturating_add(1);
        if *failures >= FAILURES_MAX {
            self.examiner.note_failure(task, why);
        }
        // An error that repeats at once must not repeat all the time.
        self.is_stale = false;
    }

    /// After a shutdown request: the threads end at their next safe point.
    fn wait_for_all(&mut self, news: &Receiver<(TaskId, TaskNews)>) {
        while !self.running.is_empty() {
            self.listen(news, LOOK);
        }
    }

    fn summary(&self) -> ManySummary {
        let account = self.desk.context.wallet.address();
        let (tasks, claimed, alarms) = (self.tasks, self.claimed, self.alarms);
        ManySummary { account, tasks, claimed, alarms }
    }
}

impl Desk<'_> {
    /// The participation in one task, and the wait for its bond. Returns the number of alarms.
    fn work(&self, job: &TaskJob, sender: &Sender<(TaskId, TaskNews)>) -> Result<u32, AgentError> {
        let task = job.task;
        let mut on_event = |event: &ParticipantEvent| {
            let news = match event {
                ParticipantEvent::Reported { .. }
                | ParticipantEvent::ReportedWithoutUpdate { .. } => Some(TaskNews::Reported),
                ParticipantEvent::Trained { ms, .. } => Some(TaskNews::Trained(*ms)),
                ParticipantEvent::Claimed { drawn, .. } => Some(TaskNews::Claimed(drawn.paid)),
                _ => None,
            };
            if let Some(news) = news {
                let _ = sender.send((task, news));
            }
            (self.on_event)(&ManyEvent::OfTask(task, event));
        };
        let mut alarms = 0;
        let config = self.settings(job);
        if let Some((spec, data)) = &job.work {
            let summary = self.take_part(&config, (spec, *data), &mut on_event)?;
            alarms = summary.alarms;
            if summary.finished || self.shutdown.is_requested() {
                return Ok(alarms);
            }
        }
        let ManyContext { client, ledger, wallet, .. } = *self.context;
        leave_task(&config, (client, ledger, wallet), self.shutdown, &mut on_event)?;
        Ok(alarms)
    }

    fn take_part(
        &self,
        config: &ParticipantConfig,
        (spec, data): (&TaskSpec, usize),
        on_event: &mut dyn FnMut(&ParticipantEvent),
    ) -> Result<crate::agent::ParticipationSummary, AgentError> {
        let refused = |Obstacle { code, why }: Obstacle| AgentError::DataDoesNotFit {
            why: format!("{why} [{code}]"),
        };
        let data = (self.context.rows)(spec, data).map_err(refused)?;
        let mut engine = (self.context.engine)(spec).map_err(refused)?;
        let parts = ParticipantContext {
            producer: None,
            wallet: self.context.wallet,
            client: self.context.client,
            ledger: self.context.ledger,
            engine: &mut *engine,
            data: &data,
            behaviour: &mut Honest,
            consent: &mut |quote| quote.is_arbiter_accepted,
        };
        participate(config, parts, self.shutdown, on_event)
    }

    fn settings(&self, job: &TaskJob) -> ParticipantConfig {
        let supervision = Supervision {
            folder: Some(self.folder.clone()),
            // The device trains for one task at a time.
            at_once: 1,
            turns: self.turns.clone(),
            leave: job.leave.clone(),
        };
        ParticipantConfig {
            task: job.task,
            bond_max: Some(job.allocation),
            pay_min: None,
            invitation: None,
            asks_for_arbiter: false,
            supervision,
            ..self.config.participant.clone()
        }
    }
}
