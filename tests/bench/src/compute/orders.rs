//! Orders whose segments are trained: a vision transformer of PyTorch on digits, by the libtorch
//! engine.
//!
//! Ten orders have honest parties, and one provider of another order trains half of the segments on an eighth of
//! the rows. Auditors start from the bytes of a state and compute drawn segments again; a difference is halved
//! down to one step, which the referee trains. A provider that stops is continued by another order.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use florin_compute::{ComputeJob, ComputeOrder, LeaseOutcome};
use florin_learning::checkpoint::TrainingState;
use florin_learning::data::{canonical_bytes, load};
use florin_learning::engine::Engine;
use florin_learning::{DataSource, Dataset, EngineKind, ModelSpec, engine, tensors};
use florin_protocol::{
    Address, Amount, Blob, Canonical, Digest, Micro, Optimizer, Rejection, TaskSpec, Training,
    blob_digest,
};
use florin_sim::GraphTask;
use florin_sim::compute::lease_play::OrderWork;
use florin_work::{LeasedTraining, SegmentStart};

use super::leases::{beacon, draw_fakes};
use super::played::{Conduct, PROVIDER, Played, SEGMENTS, SHARE, STEPS, order, play_on};
use crate::Measurement;
use crate::arguments::BenchPay;

/// The classes of the model: the remainder of a digit by three.
const CLASSES: u32 = 3;
/// Orders of a run.
const ORDERS: u64 = 10;
/// Batches of an epoch: with the epochs 400 steps, 100 segments of 4.
const BATCHES: usize = 50;
const BATCH: u32 = 32;
const EPOCHS: u32 = 8;
/// A provider that saves work trains on this fraction of the rows, as a divisor.
const SAVED: u32 = 8;
/// Segments that it trains so.
const FAKES: u32 = SEGMENTS / 2;
/// Segments after which providers stop.
const STOPS: [u32; 4] = [1, 37, 50, 99];

/// The training of an order, and that of a provider that saves work.
struct TrainedWork {
    honest: LeasedTraining,
    saving: LeasedTraining,
    engine: Box<dyn Engine>,
    /// All states that were computed: the steps before each, and its bytes.
    states: BTreeMap<Digest, (u32, Vec<u8>)>,
    seconds: PartySeconds,
}

/// Seconds of computing segments.
#[derive(Clone, Copy, Default)]
struct PartySeconds {
    provider: f64,
    auditors: f64,
    /// Segments that auditors computed.
    audits: u64,
}

/// A job with the bytes of its blobs.
struct StoredJob {
    job: ComputeJob,
    class: Digest,
    start: Digest,
    blobs: BTreeMap<Digest, Vec<u8>>,
}

impl StoredJob {
    fn new(graph: &GraphTask, rows: &Dataset, batch: u32) -> anyhow::Result<Self> {
        let mut blobs: BTreeMap<Digest, Vec<u8>> =
            graph.blobs().map(|bytes| (blob_digest(bytes), bytes.clone())).collect();
        let training = Training {
            epochs: EPOCHS,
            batch,
            learning_rate: Micro(2_000),
            optimizer: Optimizer::AdamW { beta1: Micro(900_000), beta2: Micro(999_000) },
            ..TaskSpec::example().training
        };
        let model = ModelSpec::Graph(Box::new(florin_learning::graph::GraphModel::new(
            florin_work::graph_declaration(graph.declared()),
        )));
        let mut blob = |bytes: Vec<u8>| {
            let blob = Blob { digest: blob_digest(&bytes), bytes: bytes.len() as u64 };
            blobs.insert(blob.digest, bytes);
            blob
        };
        let job = ComputeJob {
            graph: graph.declared().clone(),
            start: blob(tensors::encode(&model, graph.parameters())?),
            rows: blob(canonical_bytes(rows)),
            row_count: rows.rows() as u64,
            training,
            virtual_workers: 8,
            seed: 11,
        };
        let start = Digest(florin_work::initial_state(&job, graph.parameters()).digest());
        let class = florin_work::compute_class(&*engine(EngineKind::Torch, 1)?);
        let class = class.context("libtorch has no class of bits in this build")?;
        Ok(Self { job, class, start, blobs })
    }

    /// The order of this job, from a segment on.
    fn order(&self, nonce: u64, first_segment: u32, start: Digest) -> ComputeOrder {
        let order = ComputeOrder { class: self.class, ..order(nonce) };
        let segments = SEGMENTS - first_segment;
        let share = order.price_max.units() * u128::from(segments) / u128::from(SEGMENTS);
        // A shorter order has fewer audits, and a smaller chance that one fake is among them.
        let stake = Amount::from_units(order.deposits.stake.units() * 2);
        let deposits = florin_compute::Deposits { stake, ..order.deposits };
        let price_max = Amount::from_units(share.max(order.bounty().units()));
        let job = self.job.digest();
        ComputeOrder { job, start, first_segment, segments, price_max, deposits, ..order }
    }

    fn load(&self, order: &ComputeOrder) -> anyhow::Result<LeasedTraining> {
        let read = |digest: Digest, _| {
            Ok::<_, Rejection>(self.blobs.get(&digest).cloned().unwrap_or_default())
        };
        Ok(LeasedTraining::load(order, &self.job, read)?)
    }
}

impl TrainedWork {
    /// A start from its bytes, as an auditor is served it. Both trainings are those of whole orders.
    fn start(&self, training: &LeasedTraining, digest: Digest) -> anyhow::Result<SegmentStart> {
        let (steps, bytes) = self.stored(digest)?;
        Ok(training.start(steps / STEPS, digest, bytes)?)
    }

    fn stored(&self, digest: Digest) -> anyhow::Result<&(u32, Vec<u8>)> {
        self.states.get(&digest).context("a state that was never computed")
    }

    fn store(&mut self, state: &TrainingState) -> anyhow::Result<Digest> {
        let digest = Digest(state.digest());
        self.states.insert(digest, (state.step() as u32, state.to_bytes()?));
        Ok(digest)
    }

    /// The states of a continued order are those of the order before.
    fn new(honest: &StoredJob, saving: &StoredJob) -> anyhow::Result<Self> {
        let own = |job: &StoredJob| job.load(&job.order(0, 0, job.start));
        let mut work = Self {
            honest: own(honest)?,
            saving: own(saving)?,
            engine: engine(EngineKind::Torch, 1)?,
            states: BTreeMap::new(),
            seconds: PartySeconds::default(),
        };
        let initial = work.honest.initial();
        work.store(&initial)?;
        Ok(work)
    }
}

impl OrderWork for TrainedWork {
    type Error = anyhow::Error;

    fn after(&mut self, by: Address, start: Digest, steps: u32) -> anyhow::Result<Digest> {
        let began = Instant::now();
        let from = self.start(&self.honest, start)?;
        let state = self.honest.state_in_segment(&mut *self.engine, &from, steps)?;
        let digest = self.store(&state)?;
        let seconds = began.elapsed().as_secs_f64();
        if by == PROVIDER {
            self.seconds.provider += seconds;
        } else if steps == STEPS {
            self.seconds.auditors += seconds;
            self.seconds.audits += 1;
        }
        Ok(digest)
    }

    fn fake(&mut self, _segment: u32, start: Digest) -> anyhow::Result<Digest> {
        self.claimed(start, STEPS)
    }

    fn step(&mut self, state: Digest) -> anyhow::Result<Digest> {
        let (before, bytes) = self.stored(state)?.clone();
        let at = (before / STEPS, before % STEPS);
        Ok(self.honest.ruling(&mut *self.engine, at, state, &bytes)?)
    }

    fn claimed(&mut self, start: Digest, steps: u32) -> anyhow::Result<Digest> {
        let from = self.start(&self.saving, start)?;
        let state = self.saving.state_in_segment(&mut *self.engine, &from, steps)?;
        self.store(&state)
    }
}

pub(super) fn run(seeds: &BenchPay) -> anyhow::Result<Vec<Measurement>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../learning/data/graphs");
    let graph = GraphTask::read(&folder.join("vit.pt2"), CLASSES)?;
    let digits = load(&DataSource::Digits)?;
    let labels = digits.labels().iter().map(|label| label % CLASSES).collect();
    let digits =
        Dataset::new(digits.features().to_vec(), labels, digits.width(), CLASSES as usize)?;
    let rows = digits.slice(0..BATCHES * BATCH as usize)?;
    let honest = StoredJob::new(&graph, &rows, BATCH)?;
    let fewer = digits.slice(0..rows.rows() / SAVED as usize)?;
    let saving = StoredJob::new(&graph, &fewer, BATCH / SAVED)?;
    anyhow::ensure!(honest.job.steps() == u64::from(SEGMENTS * STEPS), "400 steps");
    anyhow::ensure!(saving.job.steps() == honest.job.steps(), "as many smaller steps");
    let mut work = TrainedWork::new(&honest, &saving)?;
    let mut rows = Vec::new();
    let mut results = Vec::new();
    for number in 0..ORDERS {
        let beacon = beacon(seeds.first_seed, number);
        let order = honest.order(number, 0, honest.start);
        let played = play_on(&mut work, order, beacon, &Conduct::default())?;
        anyhow::ensure!(played.lease.outcome() == Some(LeaseOutcome::Settled), "honest work");
        results.push(played.lease.result());
    }
    let PartySeconds { provider, auditors, audits } = work.seconds;
    let share = 100.0 * auditors / provider;
    let name = format!("{ORDERS} orders: audits, of the work of the provider");
    rows.push(Measurement::at_most(name, share, "%", 12.0));
    let stated = 2.0 * f64::from(SHARE) / 10_000.0;
    let computed = 100.0 * audits as f64 / (ORDERS * u64::from(SEGMENTS)) as f64;
    anyhow::ensure!((computed - stated).abs() < 1e-9, "{computed} % of the segments were audited");
    let step_ms = 1e3 * provider / (ORDERS * u64::from(SEGMENTS * STEPS)) as f64;
    rows.push(Measurement::plain("a step of the provider", step_ms, "ms"));
    let is_one = results.iter().all(|result| *result == results[0]);
    anyhow::ensure!(is_one, "orders of one job have other results");
    let result = results[0].context("an order without a result")?;
    rows.push(caught(&mut work, &honest, seeds.first_seed)?);
    rows.extend(continued(&mut work, &honest, seeds.first_seed, result)?);
    Ok(rows)
}

/// A provider that trains half of the segments on an eighth of the rows.
fn caught(work: &mut TrainedWork, job: &StoredJob, seed: u64) -> anyhow::Result<Measurement> {
    let mut caught = 0;
    for number in 0..ORDERS {
        let fakes = draw_fakes(FAKES, seed, ORDERS + number);
        let conduct = Conduct { fakes: fakes.clone(), ..Conduct::default() };
        let order = job.order(ORDERS + number, 0, job.start);
        let played = play_on(work, order, beacon(seed, ORDERS + number), &conduct)?;
        let audited = played.asked.iter().any(|(segment, _)| fakes.contains(segment));
        let is_slashed = matches!(played.lease.outcome(), Some(LeaseOutcome::Slashed { .. }));
        anyhow::ensure!(audited == is_slashed, "an audited fake decides the lease");
        caught += u32::from(is_slashed);
    }
    let name = format!("{ORDERS} orders, {FAKES} segments on an eighth of the rows: stake lost");
    // Five segments of a hundred are audited.
    Ok(Measurement::at_least(name, f64::from(caught), "orders", 0.9 * ORDERS as f64))
}

/// Orders whose provider stops, and the orders that continue them.
fn continued(
    work: &mut TrainedWork,
    job: &StoredJob,
    seed: u64,
    result: Digest,
) -> anyhow::Result<Vec<Measurement>> {
    let (mut equal, mut paid_away) = (0, 0.0_f64);
    for (number, stop) in (2 * ORDERS..).zip(STOPS) {
        let stops = Conduct { leaves_after: Some(stop), ..Conduct::default() };
        let order = job.order(number, 0, job.start);
        let first = play_on(work, order, beacon(seed, number), &stops)?;
        let outcome = Some(LeaseOutcome::Defaulted { delivered: stop });
        anyhow::ensure!(first.lease.outcome() == outcome, "{:?}", first.lease.outcome());
        let reached = first.lease.result().context("the delivered segments have a result")?;
        let order = job.order(number, stop, reached);
        let second = play_on(work, order, beacon(seed, number), &Conduct::default())?;
        anyhow::ensure!(second.lease.outcome() == Some(LeaseOutcome::Settled), "{stop}");
        equal += u32::from(second.lease.result() == Some(result));
        paid_away = paid_away.max((paid(&first) + paid(&second) - 100.0).abs());
    }
    let all = STOPS.len() as f64;
    Ok(vec![
        Measurement::at_least(
            "providers that stopped after 1, 37, 50 and 99 segments: continued to the same digest",
            f64::from(equal),
            "orders",
            all,
        ),
        Measurement::at_most("both parts are paid as one order, within", paid_away, "%", 0.01),
    ])
}

/// Pay of the provider without its returned deposits, in percent of the price.
fn paid(played: &Played) -> f64 {
    let owed = florin_compute::ComputeAccount::Owed(PROVIDER);
    100.0 * played.lease.books().balance(owed).units() as f64 / super::played::PRICE as f64
}
