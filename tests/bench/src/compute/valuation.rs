//! The processor time of a coordinator that values rounds: all of a valuation, and the replay of a provider's
//! transcript. Twenty tasks of two rounds: five models, small and larger cohorts, few and more validation rows. The validation
//! rows are digits and noisy copies of them.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use florin_learning::data::load;
use florin_learning::graph::GraphModel;
use florin_learning::mapped::UNLIMITED_MEMORY;
use florin_learning::{DataSource, Dataset, Engine, EngineKind, Reference, engine};
use florin_protocol::limits::GLOBAL_DELTAS_MAX;
use florin_protocol::{
    Address, Digest, Holdout, ModelArchitecture, Rejection, RoundNumber, RoundScope, TaskSpec,
    UpdateEntry, blob_digest, draw_rows, round_seed,
};
use florin_sim::GraphTask;
use florin_work::{
    CommittedHoldout, EarlierUpdateBlobs, TranscriptSample, ValuationInputs, decode_model,
    encode_parameters, initial_model, replay_transcript, value_and_aggregate, value_and_record,
};

use crate::Measurement;
use crate::arguments::BenchPay;

/// Parts of 32 that a replay computes again: the default of the coordinator.
const PARTS: u32 = florin_coordinator::config::VALUATION_PARTS_DEFAULT;
/// Largest share of today's processor time.
const BAR: f64 = 15.0;
const ROUNDS: u32 = 2;
const MEMBERS: [usize; 2] = [4, 16];
const ROWS: [u32; 2] = [250, 1_000];
/// Digits of the holdout; members train on the others.
const HOLDOUT: usize = 750;
/// Copies of these digits in the holdout, each with its own noise.
const COPIES: u64 = 4;
const STREAM: u64 = 85;
/// Transcripts with a forged group that are replayed, and the largest difference to the stated probability.
const FORGED: u64 = 10_000;
const FORGED_POINTS: f64 = 2.0;

/// A model of a task.
struct ValuedModel {
    name: &'static str,
    architecture: ModelArchitecture,
    graph: Option<(GraphTask, GraphModel)>,
    classes: u32,
}

/// Processor seconds of one round.
#[derive(Clone, Copy, Default)]
struct RoundSeconds {
    whole: f64,
    recorded: f64,
    replayed: f64,
    transcript: usize,
}

pub(super) fn run(_: &BenchPay) -> anyhow::Result<Vec<Measurement>> {
    let mut rows = Vec::new();
    let mut all = RoundSeconds::default();
    for model in models()? {
        for members in MEMBERS {
            for drawn in ROWS {
                let task = ValuedTask::new(&model, members, drawn)?;
                let own = task.play(&mut |_| Ok(()))?;
                let name = format!("{}, {members} members, {drawn} rows", model.name);
                let percent = 100.0 * own.replayed / own.whole;
                rows.push(Measurement::plain(format!("{name}: replay of whole"), percent, "%"));
                let size = own.transcript as f64 / 1e3;
                rows.push(Measurement::plain(format!("{name}: transcript"), size, "kB"));
                all.whole += own.whole;
                all.recorded += own.recorded;
                all.replayed += own.replayed;
            }
        }
    }
    let percent = 100.0 * all.replayed / all.whole;
    rows.push(Measurement::at_most("20 tasks: replay of whole".to_owned(), percent, "%", BAR));
    let recorded = 100.0 * all.recorded / all.whole;
    rows.push(Measurement::plain("20 tasks: recorded of whole".to_owned(), recorded, "%"));
    rows.push(Measurement::plain("20 tasks: whole".to_owned(), all.whole, "s"));
    rows.extend(detection()?);
    Ok(rows)
}

/// How often one forged group of 32 in one evaluation is found.
fn detection() -> anyhow::Result<Vec<Measurement>> {
    let model = dense("softmax", ModelArchitecture::Softmax { inputs: 64, classes: 10 });
    let task = ValuedTask::new(&model, 4, 64)?;
    let mut found = 0;
    let mut replay = |round: &PlayedRound<'_>| -> anyhow::Result<()> {
        if found > 0 {
            return Ok(());
        }
        for seed in 0..FORGED {
            // The losses of the base model come first; a group has two of the 64 rows.
            let group = usize::try_from(seed)? % 32;
            let mut forged = round.transcript.to_vec();
            for row in [2 * group, 2 * group + 1] {
                let number = &mut forged[8 * row..8 * row + 8];
                let loss = f64::from_le_bytes(number.try_into()?);
                number.copy_from_slice(&(loss * 1.001).to_le_bytes());
            }
            let sample = TranscriptSample { seed, parts_of_32: PARTS };
            let replayed = replay_transcript(round.inputs, &forged, sample, &mut Reference::new());
            found += u64::from(replayed.is_err());
        }
        Ok(())
    };
    task.play(&mut replay)?;
    let percent = 100.0 * found as f64 / FORGED as f64;
    let stated = 100.0 * f64::from(PARTS) / 32.0;
    Ok(vec![
        Measurement::plain("one forged group of 32: found".to_owned(), percent, "%"),
        Measurement::at_most(
            "one forged group of 32: difference to the stated probability".to_owned(),
            (percent - stated).abs(),
            "points",
            FORGED_POINTS,
        ),
    ])
}

fn dense(name: &'static str, architecture: ModelArchitecture) -> ValuedModel {
    ValuedModel { name, architecture, graph: None, classes: 10 }
}

fn models() -> anyhow::Result<Vec<ValuedModel>> {
    let mlp = |hidden: &[u32]| ModelArchitecture::Mlp {
        inputs: 64,
        hidden: hidden.to_vec(),
        classes: 10,
    };
    let graph = |name: &'static str, classes| -> anyhow::Result<ValuedModel> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../learning/data/graphs");
        let graph = GraphTask::read(&folder.join(format!("{name}.pt2")), classes)?;
        let architecture = ModelArchitecture::Graph(graph.declared().clone());
        let spec = TaskSpec { model: architecture.clone(), ..TaskSpec::example() };
        let loaded = florin_work::load_graph(&spec, |digest, _| {
            let found = graph.blobs().find(|bytes| blob_digest(bytes) == digest);
            Ok::<_, Rejection>(found.cloned().unwrap_or_default())
        });
        let loaded = loaded?.context("a graph")?;
        Ok(ValuedModel { name, architecture, graph: Some((graph, loaded)), classes })
    };
    Ok(vec![
        dense("softmax", ModelArchitecture::Softmax { inputs: 64, classes: 10 }),
        dense("mlp 64", mlp(&[64])),
        dense("mlp 256, 128", mlp(&[256, 128])),
        graph("vit", 3)?,
        graph("convnext", 3)?,
    ])
}

/// A task with the members' rows.
struct ValuedTask<'a> {
    spec: TaskSpec,
    base: Vec<u8>,
    graph: Option<&'a GraphModel>,
    holdout: CommittedHoldout,
    shards: Vec<Dataset>,
}

/// A round, and its transcript.
struct PlayedRound<'a> {
    inputs: &'a ValuationInputs<'a>,
    transcript: &'a [u8],
}

type LookAtRound<'a> = &'a mut dyn FnMut(&PlayedRound<'_>) -> anyhow::Result<()>;

impl<'a> ValuedTask<'a> {
    fn new(model: &'a ValuedModel, members: usize, rows_per_round: u32) -> anyhow::Result<Self> {
        let digits = load(&DataSource::Digits)?;
        let classes = model.classes;
        let labels = digits.labels().iter().map(|label| label % classes).collect();
        let digits =
            Dataset::new(digits.features().to_vec(), labels, digits.width(), classes as usize)?;
        let holdout = CommittedHoldout::new(noisy_copies(&digits.slice(0..HOLDOUT)?)?);
        let each = (digits.rows() - HOLDOUT) / members;
        let shard =
            |member: usize| digits.slice(HOLDOUT + member * each..HOLDOUT + (member + 1) * each);
        let mut spec = TaskSpec { model: model.architecture.clone(), ..TaskSpec::example() };
        spec.data.classes = classes;
        spec.holdout =
            Holdout { root: holdout.root(), rows: HOLDOUT as u32 * COPIES as u32, rows_per_round };
        spec.rounds.count = ROUNDS;
        // As in the template of task files.
        spec.rounds.baseline_epochs = 2;
        let base = match &model.graph {
            Some((graph, _)) => encode_parameters(&spec, graph.parameters()),
            None => initial_model(&model.architecture, 7)?,
        };
        let shards = (0..members).map(shard).collect::<Result<_, _>>()?;
        let graph = model.graph.as_ref().map(|(_, loaded)| loaded);
        Ok(Self { spec, base, graph, holdout, shards })
    }

    /// Plays all rounds, and returns the mean times of one.
    fn play(&self, look: LookAtRound<'_>) -> anyhow::Result<RoundSeconds> {
        let spec = &self.spec;
        let mut engine = engine(EngineKind::Auto, 1)?;
        let mut times = RoundSeconds::default();
        let (mut base, mut previous) = (self.base.clone(), Vec::<Vec<u8>>::new());
        let (mut exposed, mut earlier) = (Vec::new(), Vec::<Vec<u8>>::new());
        let mut last: (Vec<(Address, Digest)>, Vec<Vec<u8>>) = Default::default();
        for round in 1..=ROUNDS {
            let (entries, updates) = self.updates(round, &base, &mut *engine)?;
            let scope =
                RoundScope { market: spec.market, task: spec.id(), round: RoundNumber(round) };
            let drawn = draw_rows(&spec.holdout, &exposed, round_seed(scope, &[], &entries))?;
            let shown = self.holdout.disclose(&drawn).context("drawn rows")?.to_bytes();
            exposed.extend(&drawn);
            let inputs = ValuationInputs {
                spec,
                graph: self.graph,
                base: &base,
                row_indices: &drawn,
                disclosed_rows: &shown,
                entries: &entries,
                updates: &updates,
                previous_models: &previous,
                earlier_updates: EarlierUpdateBlobs { ids: &last.0, bytes: &last.1 },
                earlier_rows: &earlier,
                scratch_space: &UNLIMITED_MEMORY,
            };
            let (whole, seconds) = processor_seconds(|| value_and_aggregate(&inputs, &mut *engine));
            let whole = whole?;
            times.whole += seconds;
            let (recorded, seconds) = processor_seconds(|| value_and_record(&inputs, &mut *engine));
            let recorded = recorded?;
            times.recorded += seconds;
            florin_work::compare_results(&whole.result, &recorded.output.result)?;
            let transcript = recorded.transcript.context("a transcript")?;
            let sample = TranscriptSample { seed: u64::from(round), parts_of_32: PARTS };
            let (replayed, seconds) =
                processor_seconds(|| replay_transcript(&inputs, &transcript, sample, &mut *engine));
            times.replayed += seconds;
            anyhow::ensure!(replayed? == recorded.output, "the replay has another result");
            times.transcript = transcript.len();
            look(&PlayedRound { inputs: &inputs, transcript: &transcript })?;
            let model = whole.model;
            last = (entries.iter().map(|entry| (entry.sender, entry.update)).collect(), updates);
            earlier.push(shown);
            previous.insert(0, std::mem::replace(&mut base, model));
            previous.truncate(GLOBAL_DELTAS_MAX);
        }
        Ok(times)
    }

    /// The members' updates. The last one has wrong labels.
    fn updates(
        &self,
        round: u32,
        base: &[u8],
        engine: &mut dyn Engine,
    ) -> anyhow::Result<(Vec<UpdateEntry>, Vec<Vec<u8>>)> {
        let model = match self.graph {
            Some(graph) => florin_learning::ModelSpec::Graph(Box::new(graph.clone())),
            None => florin_work::model_spec(&self.spec.model),
        };
        let how = florin_work::training(&self.spec, RoundNumber(round));
        let base = decode_model(&self.spec, base)?;
        let mut made = (Vec::new(), Vec::new());
        for (member, shard) in (1_u8..).zip(&self.shards) {
            let rows = match usize::from(member) == self.shards.len() {
                true => wrong_labels(shard)?,
                false => shard.clone(),
            };
            let seed = u64::from(round) << 8 | u64::from(member);
            let go_on = &mut |_| ControlFlow::Continue(());
            let trained = engine.train(&model, &base, &rows, &how, seed, go_on)?;
            let delta: Vec<f32> =
                trained.params.iter().zip(&base).map(|(own, base)| own - base).collect();
            let bytes = encode_parameters(&self.spec, &delta);
            let (update, rows) = (blob_digest(&bytes), rows.rows() as u64);
            made.0.push(UpdateEntry {
                sender: Address([member; 20]),
                header: update,
                update,
                salt: update,
                rows_declared: rows,
                rows_counted: rows,
                bond: self.spec.budget.bond_min,
                commit_position: u32::from(member),
                staleness: 0,
            });
            made.1.push(bytes);
        }
        Ok(made)
    }
}

fn noisy_copies(digits: &Dataset) -> anyhow::Result<Dataset> {
    let (mut features, mut labels) = (Vec::new(), Vec::new());
    for copy in 0..COPIES {
        let mut rng = florin_random::chacha20(copy, STREAM);
        let noisy = |value: &f32| value + 1e-4 * florin_random::below(&mut rng, 1_001) as f32;
        features.extend(digits.features().iter().map(noisy));
        labels.extend_from_slice(digits.labels());
    }
    Ok(Dataset::new(features, labels, digits.width(), digits.classes())?)
}

fn wrong_labels(shard: &Dataset) -> anyhow::Result<Dataset> {
    let classes = shard.classes() as u32;
    let labels = shard.labels().iter().map(|label| classes - 1 - label).collect();
    Ok(Dataset::new(shard.features().to_vec(), labels, shard.width(), shard.classes())?)
}

/// The result of a call, and the processor seconds of all threads during it.
fn processor_seconds<R>(call: impl FnOnce() -> R) -> (R, f64) {
    let now = || {
        let at = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::new(at.tv_sec.unsigned_abs(), u32::try_from(at.tv_nsec).unwrap_or_default())
    };
    let before = now();
    let result = call();
    (result, now().saturating_sub(before).as_secs_f64())
}
