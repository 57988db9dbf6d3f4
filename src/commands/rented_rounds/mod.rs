//! `florin participate --rent FILE`: each training of a round is an order for compute. The participant has rows and a
//! wallet, and providers have the devices.

mod audits;
mod record;
mod spending;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use florin_compute::{ComputeJob, ComputeOrder, DataClass, LeaseOutcome, OrderRequest, Phase};
use florin_learning::data::canonical_bytes;
use florin_learning::engine::{
    CommandError, ElsewhereEngine, RemoteTrainer, RemoteTraining, TrainError, TrainedModel,
};
use florin_learning::{Engine, tensors};
use florin_ledger::{Ledger, lease_task};
use florin_participant::{ParticipantEvent, Shutdown, Transient, Wallet, task_blob};
use florin_protocol::{
    Augmentation, Blob, Canonical, Digest, GraphModel, Micro, ModelArchitecture, RoundNumber,
    Schedule, TaskId, TaskPhase, TaskSpec, WalletSigner, blob_digest,
};
use florin_work::delivered_state;

use super::event_printer::EventPrinter;
use super::participate::state_folder;
use super::rent::audit::check_possible;
use super::rent::machine::class_and_step;
use super::rent::placing::{open_escrow, open_with_retries, opened_before, upload};
use super::rent::readers;
use crate::cli::{EngineArg, Participate};
use crate::failure::{Failure, classify};
use crate::market::{MarketConnection, with_retries};
use crate::show::NOTE;
use crate::task_file::order::{ClassAndStep, OrderDraft, OrderParties, RentedRounds, read_rented};
pub(super) use audits::beside;
use record::{RENT_LIMIT, RentedOrders};
pub(super) use spending::{RentSummary, spent};

/// Orders of one training, at most: a provider may stop or lose its stake, and all may be busy. The policy's limits of
/// spending and the end of the round count as well.
const ATTEMPTS_MAX: u64 = 12;
/// The code of a training that no order performed.
const RENT_FAILED: &str = "RENT_FAILED";
/// Looks at an order between two looks at the task.
const POLLS_OF_TASK: u32 = 10;
/// Time between two looks at an order.
const POLL: Duration = Duration::from_millis(500);

/// The terms of rented rounds, for a task that can be rented.
#[derive(Debug, Clone)]
pub(super) struct RentedTask {
    rounds: RentedRounds,
    file: PathBuf,
    id: TaskId,
    graph: GraphModel,
    training: florin_protocol::Training,
    /// Whether an update counts after its round.
    admits_late: bool,
}

/// The renter's market, wallet and ledger.
#[derive(Clone, Copy)]
pub(super) struct Renter<'a> {
    pub(super) market: &'a MarketConnection,
    pub(super) wallet: &'a Wallet,
    pub(super) ledger: &'a dyn Ledger,
}

/// Reads the terms, and checks that the trainings of a task can be ordered; `None` without `--rent`.
///
/// # Errors
/// `RENT_UNSUPPORTED` with the property of the task, `RENT_TOO_SLOW`, and those of the file.
pub(super) fn read(
    arguments: &Participate,
    market: &MarketConnection,
    spec: &TaskSpec,
) -> anyhow::Result<Option<RentedTask>> {
    let Some(file) = &arguments.rent else { return Ok(None) };
    let rounds = read_rented(file)?;
    market.check_confidential(rounds.data_class)?;
    let unsupported = |why: &str| {
        let message = format!("--rent: {why}. Take part without it, on a device of your own");
        Err(Failure::input("RENT_UNSUPPORTED", message).into())
    };
    let training = spec.training.clone();
    let ModelArchitecture::Graph(graph) = &spec.model else {
        return unsupported("the task's model is built in, and orders train graphs of PyTorch");
    };
    if graph.is_trainer() {
        return unsupported("the task's model is a program, whose steps cannot be audited");
    }
    if training.augmentation != Augmentation::NONE {
        return unsupported(
            "the task changes its images at random, and orders use rows as they are",
        );
    }
    if training.noise_min != Micro::ZERO {
        return unsupported("the task asks for noise, and an order trains without noise");
    }
    if training.schedule != Schedule::Constant && spec.rounds.count > 1 {
        return unsupported(
            "the step size of the task falls over its rounds, and an order has one training",
        );
    }
    if rounds.bid_ms >= spec.rounds.train_ms {
        let (bids, round) = (rounds.bid_ms, spec.rounds.train_ms);
        let message = format!(
            "windows.bid = {bids} ms passes whole before each training, and a round of the task has {round} ms: use a \
             shorter window"
        );
        return Err(Failure::input("RENT_TOO_SLOW", message).into());
    }
    let (graph, file) = (graph.clone(), file.clone());
    let (id, admits_late) = (spec.id(), spec.rounds.staleness.admits_late());
    Ok(Some(RentedTask { rounds, file, id, graph, training, admits_late }))
}

/// An engine whose trainings are orders; `inner` without `--rent`. `rows` is the number of rows, if it is known.
///
/// # Errors
/// `RENT_LIMIT` if the limit pays for no order, and those of the state folder.
pub(super) fn engine<'a>(
    task: Option<&RentedTask>,
    arguments: &Participate,
    (inner, rows): (Box<dyn Engine>, Option<usize>),
    (renter, shutdown): (Renter<'a>, &Shutdown),
) -> anyhow::Result<Box<dyn Engine + 'a>> {
    let Some(task) = task else { return Ok(inner) };
    task.check_limit(arguments, rows)?;
    let folder = state_folder(arguments.state.as_deref(), &arguments.wallet.wallet);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let mut trainer = RentedTrainer {
        task: task.clone(),
        shutdown: shutdown.clone(),
        orders: RentedOrders::open(&folder)?,
        folder,
        renter,
        engine: arguments.engine,
        machine: None,
        printer: EventPrinter::new(&arguments.wallet.wallet, arguments.json),
    };
    trainer.note(&readers(task.rounds.data_class, None));
    trainer.note(&task.offer(rows)?);
    trainer.reconcile()?;
    Ok(Box::new(ElsewhereEngine::new(inner, Box::new(trainer))))
}

/// Trains rounds by orders.
struct RentedTrainer<'a> {
    task: RentedTask,
    shutdown: Shutdown,
    orders: RentedOrders,
    folder: PathBuf,
    renter: Renter<'a>,
    engine: EngineArg,
    machine: Option<ClassAndStep>,
    printer: EventPrinter,
}

/// How an attempt ended.
enum Attempt {
    /// With a trained model.
    Trained(TrainedModel),
    /// Without one, for a reason; another order may have more luck.
    Failed(String),
    /// The participant stops.
    Stopped,
}

impl RemoteTrainer for RentedTrainer<'_> {
    fn train(
        &mut self,
        training: &RemoteTraining<'_>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<TrainedModel, TrainError> {
        let failed = |error: &anyhow::Error| {
            let (found, _) = classify(error);
            let code = if found == RENT_LIMIT { RENT_LIMIT } else { RENT_FAILED };
            TrainError::Command(CommandError { code, why: format!("{error:#}") })
        };
        let mut reasons = Vec::new();
        let round = self.round();
        for attempt in 1..=ATTEMPTS_MAX {
            if attempt > 1 && self.is_round_over(round) {
                break;
            }
            match self
                .attempt(training, (attempt, round), goes_on)
                .map_err(|error| failed(&error))?
            {
                Attempt::Trained(trained) => return Ok(trained),
                Attempt::Stopped => return Err(TrainError::Stopped { step: 0 }),
                Attempt::Failed(why) => {
                    self.note(&format!("rented training, attempt {attempt}: {why}"));
                    reasons.push(why);
                }
            }
        }
        let why = format!("{} orders trained nothing: {}", reasons.len(), reasons.join("; "));
        Err(TrainError::Command(CommandError { code: RENT_FAILED, why }))
    }
}

impl RentedTrainer<'_> {
    fn note(&self, text: &str) {
        match self.printer.is_json() {
            true => {
                self.printer.print_json(&serde_json::json!({ "event": "rented", "text": text }))
            }
            false => self.printer.print_text(text, NOTE),
        }
    }

    /// The round of the task that is trained; `None` if the coordinator does not answer.
    fn round(&self) -> Option<RoundNumber> {
        let view = self.renter.market.task(self.task.id).ok()?;
        match view.phase {
            TaskPhase::Committing => Some(view.round),
            _ => None,
        }
    }

    /// Whether a round takes no more updates, and late ones do not count.
    fn is_round_over(&self, round: Option<RoundNumber>) -> bool {
        let Some(round) = round.filter(|_| !self.task.admits_late) else { return false };
        let view = self.renter.market.task(self.task.id);
        view.is_ok_and(|view| view.phase != TaskPhase::Committing || view.round != round)
    }

    /// Calls until it succeeds, or fails for a reason that no repetition mends.
    fn retry<T>(&self, call: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let mut print = |event: &ParticipantEvent| self.printer.print(event);
        with_retries(&self.shutdown, &mut print, call)
    }

    /// Records the ends of orders of an earlier run, with retries.
    fn reconcile(&mut self) -> anyhow::Result<()> {
        let (shutdown, printer) = (&self.shutdown, &self.printer);
        let mut print = |event: &ParticipantEvent| printer.print(event);
        let (orders, renter) = (&mut self.orders, self.renter);
        with_retries(shutdown, &mut print, || spending::reconcile(orders, renter))
    }

    fn attempt(
        &mut self,
        training: &RemoteTraining<'_>,
        (attempt, round): (u64, Option<RoundNumber>),
        goes_on: &mut dyn FnMut() -> bool,
    ) -> anyhow::Result<Attempt> {
        let draft = self.draft(training, attempt)?;
        let order = self.order(&draft, attempt)?;
        self.place(&draft, &order)?;
        let (market, id) = (self.renter.market, order.id());
        self.note(&format!("order {} trains this round", id.short()));
        for poll in 1_u32.. {
            let view = match market.order(id) {
                // The order goes on without this program.
                Err(error) if error.is_transient() && goes_on() => {
                    std::thread::sleep(POLL);
                    continue;
                }
                view => view?,
            };
            if let Some(why) = view.refused {
                self.orders.end(id, None)?;
                return Ok(Attempt::Failed(format!("the coordinator refused the order: {why}")));
            }
            if view.phase == Phase::Over {
                return self.result(&draft, &order);
            }
            if !goes_on() {
                return Ok(Attempt::Stopped);
            }
            if poll.is_multiple_of(POLLS_OF_TASK) && self.is_round_over(round) {
                self.note(&format!("order {} is too late for its round", id.short()));
                return Ok(Attempt::Stopped);
            }
            std::thread::sleep(POLL);
        }
        Ok(Attempt::Stopped)
    }

    /// Locks the escrow of an order, opens it and uploads its job. Each step may have been done before.
    fn place(&mut self, draft: &OrderDraft, order: &ComputeOrder) -> anyhow::Result<()> {
        let Renter { market, wallet, ledger } = self.renter;
        let request = OrderRequest { order: order.clone(), job: draft.job.clone() };
        let view = match self.retry(|| opened_before(market, &request))? {
            Some(view) => view,
            None => {
                let placement = (market, ledger, wallet as &dyn WalletSigner);
                let opened = self.retry(|| open_escrow(placement, order, draft.challenge_ms));
                if let Err(error) = opened {
                    if ledger.task(lease_task(order)).is_ok_and(|escrow| escrow.is_none()) {
                        self.orders.end(order.id(), None)?;
                    }
                    return Err(error);
                }
                open_with_retries(market, &request, &self.shutdown)?
            }
        };
        match view.refused {
            None => self.retry(|| upload(market, draft, &market.order(view.id)?)),
            Some(_) => Ok(()),
        }
    }

    /// The result of an order whose lease is over.
    fn result(&mut self, draft: &OrderDraft, order: &ComputeOrder) -> anyhow::Result<Attempt> {
        let Renter { market, wallet, .. } = self.renter;
        let id = order.id();
        let lease = self.retry(|| Ok(market.recorded_lease(&market.order(id)?)?))?;
        let lease = lease.context("the coordinator has no record of the order")?;
        self.orders.end(id, Some(lease.lease()))?;
        let result = match (lease.lease().outcome(), lease.lease().result()) {
            (Some(LeaseOutcome::Settled), Some(result)) => result,
            (outcome, _) => {
                let segments = order.segments;
                let text = outcome.map_or_else(
                    || "the lease has no outcome".to_owned(),
                    |outcome| crate::rent::outcome_text(outcome, segments),
                );
                return Ok(Attempt::Failed(text));
            }
        };
        let bytes = self.retry(|| Ok(market.order_state(order, result, Some(wallet))?))?;
        let state = delivered_state(order, &draft.job, order.segments, (result, &bytes))?;
        Ok(Attempt::Trained(TrainedModel {
            params: state.params().to_vec(),
            steps: state.step(),
            mean_loss: state.mean_loss(),
        }))
    }

    /// The order of a training: that of an earlier run, or a new one that the limit permits.
    fn order(&mut self, draft: &OrderDraft, attempt: u64) -> anyhow::Result<ComputeOrder> {
        let Renter { market, wallet, ledger } = self.renter;
        let parties =
            OrderParties { market: market.coordinator().market, renter: wallet.address() };
        if let Some(known) = self.orders.of_job(draft.job.digest(), attempt) {
            let (class, step_us_max) = draft.stated();
            let machine = ClassAndStep {
                class: class.unwrap_or(known.class),
                step_us_max: step_us_max.unwrap_or(known.step_us_max),
            };
            if draft.order(&self.task.file, &parties, machine, None)? == *known {
                return Ok(known.clone());
            }
            let message = format!(
                "order {} of this round has other terms than {}: the next round has the new ones",
                known.id().short(),
                self.task.file.display()
            );
            return Err(Failure::input("RENT_TERMS_CHANGED", message).into());
        }
        let machine = match self.machine {
            Some(machine) => machine,
            None => class_and_step(draft, &self.task.file, self.engine)?,
        };
        self.machine = Some(machine);
        let order = draft.order(&self.task.file, &parties, machine, None)?;
        if order.data_class == DataClass::Private {
            check_possible(&order, (wallet, ledger), self.engine)?;
        }
        self.orders.add(&order, self.task.rounds.spend_max)?;
        Ok(order)
    }

    /// The job of a training, with its blobs.
    fn draft(&self, training: &RemoteTraining<'_>, attempt: u64) -> anyhow::Result<OrderDraft> {
        let graph = self.task.graph.clone();
        let fetch = |blob: Blob| -> anyhow::Result<(Digest, Vec<u8>)> {
            Ok((blob.digest, task_blob(&self.folder, self.renter.market, blob)?))
        };
        let mut blobs = graph.blobs().map(fetch).collect::<anyhow::Result<Vec<_>>>()?;
        let mut blob = |bytes: Vec<u8>| {
            let blob = Blob { digest: blob_digest(&bytes), bytes: bytes.len() as u64 };
            blobs.push((blob.digest, bytes));
            blob
        };
        let model = florin_work::model_spec(&ModelArchitecture::Graph(graph.clone()));
        let job = ComputeJob {
            graph,
            start: blob(tensors::encode(&model, training.start)?),
            rows: blob(canonical_bytes(training.data)),
            row_count: training.data.rows() as u64,
            training: self.task.training.clone(),
            virtual_workers: self.task.rounds.virtual_workers,
            seed: training.seed,
        };
        let start = florin_work::initial_state(&job, training.start);
        Ok(self.task.rounds.draft(job, blobs, Digest(start.digest()), attempt))
    }
}
