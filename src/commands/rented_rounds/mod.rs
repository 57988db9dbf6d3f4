//! `florin participate --rent FILE`: each training of a round is an order for compute. The participant has rows and a
//! wallet, and providers have the devices.

mod record;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use florin_compute::{ComputeJob, ComputeOrder, DataClass, LeaseOutcome, OrderRequest, Phase};
use florin_learning::data::canonical_bytes;
use florin_learning::engine::{
    CommandError, ElsewhereEngine, RemoteTrainer, RemoteTraining, TrainError, TrainedModel,
};
use florin_learning::{Engine, tensors};
use florin_ledger::Ledger;
use florin_participant::leases::{
    AuditRule, LeaseEvent, LeasePolicy, LeaseServeConfig, ORDERS_POLL_MS, serve_orders,
};
use florin_participant::listings::ProbeGate;
use florin_participant::{Backoff, ProviderContext, Shutdown, Transient, Wallet, task_blob};
use florin_protocol::{
    Amount, Augmentation, Blob, Digest, GraphModel, Micro, ModelArchitecture, Schedule, TaskSpec,
    WalletSigner, blob_digest,
};
use florin_work::delivered_state;

use super::event_printer::EventPrinter;
use super::participate::state_folder;
use super::provide_orders::print_event;
use super::rent::machine::class_and_step;
use super::rent::placing::{open_escrow, open_with_retries, upload};
use crate::cli::{EngineArg, Participate};
use crate::compose;
use crate::failure::{Failure, classify};
use crate::market::MarketConnection;
use crate::show::{BAD, NOTE};
use crate::task_file::order::{ClassAndStep, OrderDraft, OrderParties, RentedRounds, read_rented};
use record::{RENT_LIMIT, RentedOrders};

/// The folder of the audits in the state folder.
const AUDITS: &str = "audits";
/// Orders of one training, at most: a provider may stop or lose its stake.
const ATTEMPTS_MAX: u64 = 3;
/// The code of a training that no order performed.
const RENT_FAILED: &str = "RENT_FAILED";
/// Time between two looks at an order.
const POLL: Duration = Duration::from_millis(500);

/// The terms of rented rounds, for a task that can be rented.
#[derive(Debug, Clone)]
pub(super) struct RentedTask {
    rounds: RentedRounds,
    file: PathBuf,
    graph: GraphModel,
    training: florin_protocol::Training,
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
    Ok(Some(RentedTask { rounds, file, graph, training }))
}

/// An engine whose trainings are orders; `inner` without `--rent`.
///
/// # Errors
/// Those of the state folder.
pub(super) fn engine<'a>(
    task: Option<&RentedTask>,
    arguments: &Participate,
    inner: Box<dyn Engine>,
    renter: Renter<'a>,
) -> anyhow::Result<Box<dyn Engine + 'a>> {
    let Some(task) = task else { return Ok(inner) };
    let folder = state_folder(arguments.state.as_deref(), &arguments.wallet.wallet);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let trainer = RentedTrainer {
        task: task.clone(),
        orders: RentedOrders::open(&folder)?,
        folder,
        renter,
        engine: arguments.engine,
        machine: None,
        printer: EventPrinter::new(&arguments.wallet.wallet, arguments.json),
    };
    Ok(Box::new(ElsewhereEngine::new(inner, Box::new(trainer))))
}

/// Does work, and audits the own orders on private rows meanwhile. The audits end with the work, and with the
/// settlement of orders that are over.
pub(super) fn beside<T>(
    task: Option<&RentedTask>,
    arguments: &Participate,
    renter: Renter<'_>,
    shutdown: &Shutdown,
    work: impl FnOnce() -> T,
) -> anyhow::Result<T> {
    let Some(task) = task.filter(|task| task.rounds.data_class == DataClass::Private) else {
        return Ok(work());
    };
    let printer = EventPrinter::new(&arguments.wallet.wallet, arguments.json);
    let is_over = Shutdown::new();
    let done = std::thread::scope(|scope| {
        let audits =
            std::thread::Builder::new().name("audits".to_owned()).spawn_scoped(scope, || {
                let audited = audit(task, arguments, renter, &is_over, None);
                if let Err(error) = audited {
                    printer.print_text(&format!("audits of rented rounds: {error:#}"), BAD);
                }
            });
        audits.context("cannot start a thread for the audits")?;
        let done = work();
        is_over.request();
        Ok::<T, anyhow::Error>(done)
    })?;
    let folder = state_folder(arguments.state.as_deref(), &arguments.wallet.wallet);
    for order in RentedOrders::open(&folder)?.ids() {
        let is_settled = !folder.join(AUDITS).join("leases").join(order.to_string()).exists();
        if !is_settled && !shutdown.is_requested() {
            audit(task, arguments, renter, shutdown, Some(order))?;
        }
    }
    Ok(done)
}

/// Audits own orders on private rows: all of them until shutdown is requested, or one until it is settled.
fn audit(
    task: &RentedTask,
    arguments: &Participate,
    renter: Renter<'_>,
    shutdown: &Shutdown,
    only: Option<Digest>,
) -> anyhow::Result<()> {
    let mut engine = compose::engine(arguments.engine)?;
    let folder = state_folder(arguments.state.as_deref(), &arguments.wallet.wallet);
    let audit = AuditRule { fee_min: Amount::ZERO, bond_max: Amount::from_units(u128::MAX) };
    let policy = LeasePolicy {
        audit: Some(audit),
        referees: vec![task.rounds.referee],
        challenge_min_ms: 0,
        window_min_ms: 1,
        job_bytes_max: u64::MAX,
        data_classes: [DataClass::Private].into(),
        ..LeasePolicy::none()
    };
    let config = LeaseServeConfig {
        gate: ProbeGate::default(),
        folder: folder.join(AUDITS),
        policy,
        poll_ms: ORDERS_POLL_MS,
        backoff: Backoff::default(),
        only,
        experiment: None,
    };
    let context = ProviderContext {
        wallet: renter.wallet,
        client: renter.market,
        ledger: renter.ledger,
        engine: &mut *engine,
    };
    let printer = EventPrinter::new(&arguments.wallet.wallet, arguments.json);
    serve_orders(&config, context, shutdown, &mut |event: &LeaseEvent| {
        print_event(&printer, event);
    })?;
    Ok(())
}

/// Trains rounds by orders.
struct RentedTrainer<'a> {
    task: RentedTask,
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
        for attempt in 1..=ATTEMPTS_MAX {
            match self.attempt(training, attempt, goes_on).map_err(|error| failed(&error))? {
                Attempt::Trained(trained) => return Ok(trained),
                Attempt::Stopped => return Err(TrainError::Stopped { step: 0 }),
                Attempt::Failed(why) => {
                    self.note(&format!("rented training, attempt {attempt}: {why}"));
                    reasons.push(why);
                }
            }
        }
        let why = format!("{ATTEMPTS_MAX} orders trained nothing: {}", reasons.join("; "));
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

    fn attempt(
        &mut self,
        training: &RemoteTraining<'_>,
        attempt: u64,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> anyhow::Result<Attempt> {
        let draft = self.draft(training, attempt)?;
        let order = self.order(&draft, attempt)?;
        let Renter { market, wallet, ledger } = self.renter;
        let id = order.id();
        open_escrow((market, ledger, wallet), &order, draft.challenge_ms)?;
        let request = OrderRequest { order: order.clone(), job: draft.job.clone() };
        let view = open_with_retries(market, &request)?;
        if view.refused.is_none() {
            upload(market, &draft, &view)?;
        }
        self.note(&format!("order {} trains this round", id.short()));
        loop {
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
            std::thread::sleep(POLL);
        }
    }

    /// The result of an order whose lease is over.
    fn result(&mut self, draft: &OrderDraft, order: &ComputeOrder) -> anyhow::Result<Attempt> {
        let Renter { market, wallet, .. } = self.renter;
        let id = order.id();
        let lease = market.recorded_lease(&market.order(id)?)?;
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
        let bytes = market.order_state(order, result, Some(wallet))?;
        let state = delivered_state(order, &draft.job, order.segments, (result, &bytes))?;
        Ok(Attempt::Trained(TrainedModel {
            params: state.params().to_vec(),
            steps: state.step(),
            mean_loss: state.mean_loss(),
        }))
    }

    /// The order of a training: that of an earlier run, or a new one that the limit permits.
    fn order(&mut self, draft: &OrderDraft, attempt: u64) -> anyhow::Result<ComputeOrder> {
        let job = florin_protocol::Canonical::digest(&draft.job);
        if let Some(known) = self.orders.of_job(job, attempt) {
            return Ok(known.clone());
        }
        let machine = match self.machine {
            Some(machine) => machine,
            None => class_and_step(draft, &self.task.file, self.engine)?,
        };
        self.machine = Some(machine);
        let Renter { market, wallet, .. } = self.renter;
        let parties =
            OrderParties { market: market.coordinator().market, renter: wallet.address() };
        let order = draft.order(&self.task.file, &parties, machine, None)?;
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
