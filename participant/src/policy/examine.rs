//! Examines the tasks of a market: the reasons against each, or its prediction.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use florin_learning::Dataset;
use florin_ledger::{LedgerError, TaskState, Terms};
use florin_protocol::{
    Amount, Micro, ModelArchitecture, RoundNumber, TaskId, TaskPhase, TaskSpec, TaskSummary,
    TaskView, Timestamp, WalletSigner,
};

use super::facts::{TaskFacts, printable};
use super::plan::{OwnTask, Plan, PlanInputs, plan};
use super::prediction::{PayRecord, TaskTerms, florins, predict};
use super::refusal::TaskRefusal;
use super::supervisor::{ManyConfig, ManyContext, Obstacle, TaskDecision, TaskVerdict};
use super::timing::training_seconds;
use super::{EXAMINED_MAX, HISTORY_ROUNDS, LISTED_MAX};
use crate::agent::{AgentError, required_bond, stored_tasks, task_blob};
use crate::arbiter::{arbiter_acceptable, describe_unaccepted};
use crate::client::ClientError;
use crate::shutdown::Shutdown;
use crate::turns::{TrainingTurns, TurnRequest};

/// The longest wait of a measurement for the device, in seconds.
const DEVICE_WAIT_SECONDS: u64 = 60;
const MS_PER_SECOND: f64 = 1e3;

/// The decisions of one review that starts nothing.
#[derive(Debug)]
pub struct DryRun {
    /// One for each listed task: those that would be joined first.
    pub decisions: Vec<TaskDecision>,
    /// The part of the limit on all bonds that is left.
    pub bond_left: Amount,
}

/// Examines a market without joining a task. A client that runs with the same data folder is not
/// disturbed.
///
/// # Errors
/// [`AgentError`] if the market, the ledger or the data folder cannot be read.
pub fn examine_market(
    config: &ManyConfig,
    context: &ManyContext<'_>,
    shutdown: &Shutdown,
) -> Result<DryRun, AgentError> {
    let mut examiner = Examiner::new(config, context, TrainingTurns::default(), shutdown);
    let mut own = BTreeMap::new();
    let mut used = Amount::ZERO;
    for (task, bond) in deposits(config, context)? {
        used = used.plus(bond.used).unwrap_or(used);
        if !bond.present.is_zero() {
            own.insert(task, OwnTask { per_hour: None, weak: 0, is_over: false });
        }
    }
    let left = config.policy.bond_max.minus(used).unwrap_or(Amount::ZERO);
    let review = examiner.review(&mut own, left)?;
    Ok(DryRun { decisions: review.decisions, bond_left: left })
}

/// The deposits of a data folder in one task.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskDeposit {
    /// The bond on the ledger.
    pub(super) present: Amount,
    /// Whether its return is requested.
    pub(super) is_leaving: bool,
    /// Deposited and not returned: the bond, and all that was taken from it.
    pub(super) used: Amount,
}

/// The deposits in all tasks of this ledger of which the data folder has files.
pub(super) fn deposits(
    config: &ManyConfig,
    context: &ManyContext<'_>,
) -> Result<BTreeMap<TaskId, TaskDeposit>, AgentError> {
    let (folder, ledger) = (&config.participant.folder, context.ledger);
    let mut found = BTreeMap::new();
    if !folder.is_dir() {
        return Ok(found);
    }
    for task in stored_tasks(folder)? {
        if ledger.task(task)?.is_none() {
            continue;
        }
        let bond = ledger.bond_of(task, context.wallet.address())?;
        let recorded = crate::agent::recorded_deposit(folder, task)?;
        let used = recorded.max(bond.amount);
        let is_leaving = bond.release.is_some();
        found.insert(task, TaskDeposit { present: bond.amount, is_leaving, used });
    }
    Ok(found)
}

/// The rows and the time of a task that was examined before.
#[derive(Clone, Copy, Debug)]
struct ServedTask {
    data: usize,
    rows: u64,
    /// Seconds of a training; `None` if they are unknown.
    seconds: Option<f64>,
}

/// A finished review.
#[derive(Debug)]
pub(super) struct Review {
    pub(super) plan: Plan,
    pub(super) decisions: Vec<TaskDecision>,
}

/// Examines tasks, and remembers what does not change.
pub(super) struct Examiner<'a> {
    config: &'a ManyConfig,
    context: &'a ManyContext<'a>,
    turns: TrainingTurns,
    shutdown: Shutdown,
    /// Whether a measurement of the current review has waited for the device in vain.
    is_device_busy: bool,
    /// Number of the current review.
    number: u64,
    served: BTreeMap<TaskId, ServedTask>,
    /// The last result for each listed task, with the number of its review.
    known: BTreeMap<TaskId, (u64, Result<TaskFacts, TaskRefusal>)>,
}

impl<'a> Examiner<'a> {
    pub(super) fn new(
        config: &'a ManyConfig,
        context: &'a ManyContext<'a>,
        turns: TrainingTurns,
        shutdown: &Shutdown,
    ) -> Self {
        let (shutdown, served, known) = (shutdown.clone(), BTreeMap::new(), BTreeMap::new());
        let (is_device_busy, number) = (false, 0);
        Self { config, context, turns, shutdown, is_device_busy, number, served, known }
    }

    /// The last facts of a task.
    pub(super) fn facts(&self, task: TaskId) -> Option<&TaskFacts> {
        self.known.get(&task).and_then(|(_, found)| found.as_ref().ok())
    }

    /// Records that a participation in a task ended with an error.
    pub(super) fn note_failure(&mut self, task: TaskId, why: TaskRefusal) {
        self.known.insert(task, (u64::MAX, Err(why)));
    }

    /// Records the time of a training of this device.
    pub(super) fn note_seconds(&mut self, task: TaskId, seconds: f64) {
        if let Some(served) = self.served.get_mut(&task) {
            served.seconds = Some(seconds);
        }
    }

    /// Lists and examines the market, and plans. `own` are the tasks in which the client takes part;
    /// their predictions are renewed.
    pub(super) fn review(
        &mut self,
        own: &mut BTreeMap<TaskId, OwnTask>,
        bond_left: Amount,
    ) -> Result<Review, AgentError> {
        self.number += 1;
        self.is_device_busy = false;
        let mut listed = self.context.client.tasks()?;
        listed.truncate(LISTED_MAX);
        let names: BTreeMap<TaskId, String> =
            listed.iter().map(|task| (task.id, printable(&task.name))).collect();
        self.known.retain(|task, _| names.contains_key(task) || own.contains_key(task));
        self.served.retain(|task, _| names.contains_key(task) || own.contains_key(task));
        for (task, part) in own.iter_mut() {
            let found = self.examine_own(*task);
            part.per_hour = found.map(|facts| facts.prediction.per_hour);
            part.is_over |= found.is_some_and(|facts| facts.is_over);
        }
        for task in self.next_to_examine(&listed, own) {
            self.examine(task);
        }
        let mut plan = self.plan(own, bond_left);
        self.confirm_joins(&mut plan);
        let decisions = self.decisions(&names, own, &plan);
        Ok(Review { plan, decisions })
    }

    /// Examines a task in which the client takes part. After an error the last facts stay.
    pub(super) fn examine_own(&mut self, task: TaskId) -> Option<&TaskFacts> {
        match self.look(task, true) {
            Err(why) if !why.is_final() && self.facts(task).is_some() => {}
            found => {
                self.known.insert(task, (self.number, found));
            }
        }
        self.facts(task)
    }

    /// The final reason against a task, if there is one.
    pub(super) fn final_refusal(&self, task: TaskId) -> Option<&TaskRefusal> {
        let (_, found) = self.known.get(&task)?;
        found.as_ref().err().filter(|why| why.is_final())
    }

    fn examine(&mut self, task: TaskId) {
        let found = self.look(task, false);
        self.known.insert(task, (self.number, found));
    }

    /// The tasks whose examination is due: those that were not examined for longest, and of these
    /// the ones with the largest stated pools.
    fn next_to_examine(
        &self,
        listed: &[TaskSummary],
        own: &BTreeMap<TaskId, OwnTask>,
    ) -> Vec<TaskId> {
        let mut due: Vec<_> = listed
            .iter()
            .filter(|task| !own.contains_key(&task.id))
            .filter_map(|task| {
                let known = self.known.get(&task.id);
                let is_final = known.is_some_and(|(at, found)| {
                    *at == u64::MAX || found.as_ref().is_err_and(TaskRefusal::is_final)
                });
                let last = known.map_or(0, |(at, _)| *at);
                let pool = task.data.units() / u128::from(task.rounds.max(1));
                (!is_final).then_some((last, Reverse(pool), task.id))
            })
            .collect();
        due.sort_unstable();
        due.into_iter().take(EXAMINED_MAX).map(|(_, _, task)| task).collect()
    }

    fn plan(&self, own: &BTreeMap<TaskId, OwnTask>, bond_left: Amount) -> Plan {
        let policy = &self.config.policy;
        let open = self.known.iter().filter(|(task, _)| !own.contains_key(task));
        let open = open.filter_map(|(_, (_, found))| found.as_ref().ok());
        plan(&PlanInputs {
            tasks_max: policy.tasks_max,
            per_hour_min: policy.pay_per_hour_min,
            bond_left,
            is_open: policy.hours.is_none_or(|hours| hours.contain(self.context.client.now())),
            own: own.clone(),
            open: open.map(TaskFacts::open_task).collect(),
        })
    }

    /// Examines the tasks to join again, if this review has not: they may have changed.
    fn confirm_joins(&mut self, plan: &mut Plan) {
        let mut confirmed = Vec::new();
        for (task, bond) in std::mem::take(&mut plan.joins) {
            if self.known.get(&task).is_none_or(|(at, _)| *at != self.number) {
                self.examine(task);
            }
            match self.facts(task) {
                Some(facts) if facts.prediction.per_hour >= florins(self.least()) => {
                    confirmed.push((task, bond));
                }
                _ => {}
            }
        }
        plan.joins = confirmed;
    }

    fn least(&self) -> Amount {
        self.config.policy.pay_per_hour_min
    }

    fn decisions(
        &self,
        names: &BTreeMap<TaskId, String>,
        own: &BTreeMap<TaskId, OwnTask>,
        plan: &Plan,
    ) -> Vec<TaskDecision> {
        let all: BTreeSet<TaskId> = names.keys().chain(own.keys()).copied().collect();
        let decision = |task: TaskId| {
            let found = self.known.get(&task).map(|(_, found)| found);
            let facts = found.and_then(|found| found.as_ref().ok());
            let joined = plan.joins.iter().find(|(joined, _)| *joined == task);
            let verdict = if joined.is_some() {
                TaskVerdict::Join
            } else if plan.leaves.contains(&task) {
                TaskVerdict::Leave
            } else if let Some(part) = own.get(&task) {
                if part.is_over { TaskVerdict::Settling } else { TaskVerdict::Stay }
            } else if let Some(Err(why)) = found {
                TaskVerdict::Refused(why.clone())
            } else {
                let why = plan.refused.get(&task).cloned();
                TaskVerdict::Refused(why.unwrap_or(TaskRefusal::NotExamined))
            };
            let name = facts.map(|facts| facts.name.clone());
            TaskDecision {
                task,
                name: name.or_else(|| names.get(&task).cloned()).unwrap_or_default(),
                data: facts.map(|facts| self.config.policy.data[facts.data].name.clone()),
                verdict,
                prediction: facts.map(|facts| facts.prediction),
                bond: joined.map(|(_, bond)| *bond),
            }
        };
        let mut decisions: Vec<TaskDecision> = all.into_iter().map(decision).collect();
        decisions.sort_by(|one, other| {
            one.order().cmp(&other.order()).then_with(|| {
                let per_hour = |of: &TaskDecision| of.prediction.map_or(f64::MIN, |p| p.per_hour);
                per_hour(other).total_cmp(&per_hour(one))
            })
        });
        decisions
    }

    /// Examines one task: cheap reasons first.
    fn look(&mut self, task: TaskId, is_own: bool) -> Result<TaskFacts, TaskRefusal> {
        let view = self.context.client.task(task).map_err(|error| unreadable(&error))?;
        let is_over = matches!(view.phase, TaskPhase::Closing | TaskPhase::Done);
        if is_over && !is_own {
            return Err(TaskRefusal::Over);
        }
        if view.phase == TaskPhase::AwaitingBlobs {
            let (code, why) = ("NOT_YET_PUBLIC", "its model or its holdout is missing".to_owned());
            return Err(TaskRefusal::Unreadable { code, why });
        }
        let spec = &view.spec;
        self.check_spec(spec, is_own)?;
        let accepted = &self.config.participant.accepted_models;
        self.config.policy.models.check(spec, accepted)?;
        let state = self.escrow(task, spec, is_own)?;
        let served = self.served_task(task, spec)?;
        let limit = spec.rounds.train_ms as f64 / MS_PER_SECOND;
        // A time that is unknown may be all that a round has.
        let seconds = served.seconds.unwrap_or(limit);
        if seconds > limit && !self.config.participant.accepts_slow_training && !is_own {
            return Err(TaskRefusal::TooSlow { seconds, limit });
        }
        let (terms, record) = self.history(&view, &state, served.rows, is_own)?;
        let budget = &spec.budget;
        Ok(TaskFacts {
            name: printable(&spec.name),
            data: served.data,
            is_over,
            prediction: predict(&terms, &record, seconds),
            bond_least: budget.bond_min.max(budget.bond_per_row),
            bond_wanted: required_bond(spec, served.rows, None),
            spec: view.spec,
        })
    }

    /// The reasons that follow from the specification.
    fn check_spec(&self, spec: &TaskSpec, is_own: bool) -> Result<(), TaskRefusal> {
        let (context, config) = (self.context, &self.config.participant);
        spec.check().map_err(|error| TaskRefusal::Invalid { why: error.to_string() })?;
        let is_here = spec.coordinator == context.client.coordinator().account
            && spec.market == context.ledger.market();
        if !is_here {
            let why = "it belongs to another coordinator or market".to_owned();
            return Err(TaskRefusal::Invalid { why });
        }
        if !self.config.policy.data.iter().any(|rule| rule.tasks.allow(spec)) {
            return Err(TaskRefusal::NotAllowed);
        }
        if !is_own && !spec.admission.admits(context.wallet.address()) {
            return Err(TaskRefusal::NotAdmitted);
        }
        if !arbiter_acceptable(&config.arbiters, spec) {
            return Err(TaskRefusal::Arbiter { why: describe_unaccepted(spec) });
        }
        let noise = config.privacy.map_or(0, |privacy| privacy.noise.settings().noise_micro);
        let least = spec.training.noise_min;
        match Micro(noise) < least {
            true => Err(TaskRefusal::NoiseTooLow { least }),
            false => Ok(()),
        }
    }

    /// The ledger's state of a task, whose terms must be those of the specification.
    fn escrow(
        &self,
        task: TaskId,
        spec: &TaskSpec,
        is_own: bool,
    ) -> Result<TaskState, TaskRefusal> {
        let state = self.context.ledger.task(task).map_err(|error| ledger_unreadable(&error))?;
        let state = state.ok_or(TaskRefusal::NotFunded { why: "it is not on the ledger" })?;
        if state.terms != Terms::from_spec(spec) {
            let why = "its terms on the ledger differ from its specification";
            return Err(TaskRefusal::NotFunded { why });
        }
        if state.closed && !is_own {
            return Err(TaskRefusal::Over);
        }
        Ok(state)
    }

    /// The rows that the task may use, and the time of a training on them; both are found once.
    fn served_task(&mut self, task: TaskId, spec: &TaskSpec) -> Result<ServedTask, TaskRefusal> {
        if let Some(served) = self.served.get(&task) {
            return Ok(*served);
        }
        let rules = self.config.policy.data.iter().enumerate();
        let mut misfit = TaskRefusal::NotAllowed;
        for (place, _) in rules.filter(|(_, rule)| rule.tasks.allow(spec)) {
            let data = match (self.context.rows)(spec, place) {
                Ok(data) => data,
                Err(Obstacle { code, why }) => {
                    misfit = TaskRefusal::Misfit { code, why };
                    continue;
                }
            };
            if let Some(why) = unfit(spec, &data) {
                misfit = TaskRefusal::Misfit { code: "DATA_MISMATCH".to_owned(), why };
                continue;
            }
            let seconds = self.measure(spec, &data)?;
            let served = ServedTask { data: place, rows: data.rows() as u64, seconds };
            self.served.insert(task, served);
            return Ok(served);
        }
        Err(misfit)
    }

    /// Measures a training while no task trains.
    fn measure(&mut self, spec: &TaskSpec, data: &Dataset) -> Result<Option<f64>, TaskRefusal> {
        // Only the first measurement of a review waits.
        let waits = !self.is_device_busy && self.turns.is_open();
        let left = Duration::from_secs(if waits { DEVICE_WAIT_SECONDS } else { 0 });
        let request = TurnRequest { commit_by: Timestamp(u64::MAX), left };
        let Some(_turn) = self.turns.acquire(request, &self.shutdown) else {
            self.is_device_busy = true;
            let why = "it is measured once the device is free".to_owned();
            return Err(TaskRefusal::Unreadable { code: "DEVICE_BUSY", why });
        };
        let (folder, client) = (&self.config.participant.folder, self.context.client);
        let failed = |error: AgentError| {
            let (code, why) = (error.code(), error.to_string());
            TaskRefusal::Unreadable { code, why }
        };
        let mut blobs = BTreeMap::new();
        if let ModelArchitecture::Graph(graph) = &spec.model {
            for blob in graph.blobs() {
                blobs.insert(blob.digest, task_blob(folder, client, blob).map_err(failed)?);
            }
        }
        let read = |digest, _| {
            Ok::<_, florin_protocol::Rejection>(blobs.remove(&digest).unwrap_or_default())
        };
        let invalid = |why: String| TaskRefusal::Invalid { why };
        let graph = florin_work::load_graph(spec, read).map_err(|why| invalid(why.to_string()))?;
        let model = florin_work::task_model(spec, graph.as_ref());
        let execution = self.config.participant.execution;
        let how = florin_work::training(spec, RoundNumber::FIRST);
        let how = florin_learning::Training { execution, ..how };
        let engine = (self.context.engine)(spec);
        let mut engine =
            engine.map_err(|Obstacle { code, why }| TaskRefusal::Misfit { code, why })?;
        training_seconds(&mut *engine, &model, data, &how).map_err(|error| {
            let (code, why) = ("TRAINING_FAILED".to_owned(), error.to_string());
            TaskRefusal::Misfit { code, why }
        })
    }

    /// The terms of the next round, and the pay of the last final ones.
    fn history(
        &self,
        view: &TaskView,
        state: &TaskState,
        rows: u64,
        is_own: bool,
    ) -> Result<(TaskTerms, PayRecord), TaskRefusal> {
        let (spec, me) = (&view.spec, self.context.wallet.address());
        let last_final = state.round.filter(|round| round.0 <= view.reported);
        let last = last_final.map_or(0, |round| round.0);
        let first = last.saturating_sub(HISTORY_ROUNDS).saturating_add(1);
        let mut reports = Vec::new();
        for round in first..=last {
            let report = self.context.client.report(view.id, RoundNumber(round));
            reports.push(report.map_err(|error| unreadable(&error))?.body);
        }
        let record = PayRecord::from_reports(&reports, (spec, me), last_final, state.data_paid);
        let left = spec.rounds.count.saturating_sub(last).max(1);
        let pool = florins(state.data_locked) / f64::from(left);
        let bond = required_bond(spec, rows, None);
        let others = view.enrolled.saturating_sub(u32::from(is_own));
        let terms = TaskTerms {
            pool,
            floor_share: spec.budget.floor_share.0 as f64 / Micro::ONE.0 as f64,
            cohort: spec.rounds.cohort_target,
            places: spec.rounds.selection_size(),
            others,
            rows: spec.rows_counted(rows, bond),
            bond: florins(bond),
            debit_max: florins(spec.budget.debit_max),
            round_seconds: spec.rounds.round_ms() as f64 / MS_PER_SECOND,
        };
        Ok((terms, record))
    }
}

/// Why rows do not fit a task.
fn unfit(spec: &TaskSpec, data: &Dataset) -> Option<String> {
    let (width, classes) = (spec.data.width, spec.data.classes);
    if data.width() as u64 != u64::from(width) {
        Some(format!("the rows have {} features, not {width}", data.width()))
    } else if data.classes() as u64 > u64::from(classes) {
        Some(format!("the rows have {} classes; the task has {classes}", data.classes()))
    } else if data.rows() == 0 {
        Some("there are no rows".to_owned())
    } else {
        None
    }
}

fn unreadable(error: &ClientError) -> TaskRefusal {
    TaskRefusal::Unreadable { code: error.code(), why: printable_text(&error.to_string()) }
}

fn ledger_unreadable(error: &LedgerError) -> TaskRefusal {
    let why = printable_text(&error.to_string());
    TaskRefusal::Unreadable { code: crate::ledger_code(error), why }
}

/// A message of another program, without control characters.
fn printable_text(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
