//! `florin-bench models`: training steps of exported models beside PyTorch, on the same files, rows,
//! threads and device.

mod library;
mod memory;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use florin_learning::graph::{
    BufferPolicy, GraphDeclaration, GraphForm, GraphLoss, GraphModel, GraphParts, read_archive,
    split,
};
use florin_learning::{
    Dataset, Engine, EngineKind, ModelSpec, ParameterSegment, PathGradient, Training, TrainingStep,
};
use serde::Deserialize;
use serde_json::Value;

use crate::arguments::BenchModels;
use crate::peers::{self, Peer};
use crate::{Measurement, fastest};

/// Steps of one run.
const STEPS: u32 = 20;
/// Runs of Florin for one run of the peer; the fastest counts.
const REPEATS: usize = 5;
/// Runs of both in turn; the fastest counts.
const TURNS: usize = 3;
/// Updates of the valuation.
const UPDATES: usize = 20;
/// Groups of rows of the valuation, as rounds have them.
const GROUPS: usize = 32;
/// Nodes of Gauss and Legendre's quadrature, with their weights.
const NODES: [(f64, f64); 3] = [
    (0.112_701_665_379_258_3, 0.277_777_777_777_777_8),
    (0.5, 0.444_444_444_444_444_4),
    (0.887_298_334_620_741_7, 0.277_777_777_777_777_8),
];
/// Largest time of the valuation, as a multiple of one gradient over its rows.
const VALUATION_BAR: f64 = 4.0;

const SCRIPT: &str = include_str!("../../../../xtask/peers/models.py");

/// The models, with the largest ratio of their steps to the peer's.
const MODELS: [(&str, f64); 4] =
    [("mlp", 1.0), ("resnet", 1.05), ("gpt", 1.05), ("gpt_lora", 1.05)];
/// The model whose valuation has a limit: what travels is small.
const VALUED: &str = "gpt_lora";

/// The properties that the script writes beside a model.
#[derive(Deserialize)]
struct About {
    rows: usize,
    batch: u32,
    tokens: bool,
    trained: String,
}

/// A model with its rows.
pub(super) struct ExportedModel {
    pub(super) model: ModelSpec,
    pub(super) start: Vec<f32>,
    pub(super) rows: Dataset,
    pub(super) batch: u32,
}

pub(super) fn run(
    arguments: &BenchModels,
    only: Option<&str>,
    python: Option<&Path>,
) -> anyhow::Result<(Value, Vec<Measurement>)> {
    if let (Some(count), Some(folder)) = (arguments.memory_of, &arguments.exported) {
        memory::measure(folder, count)?;
        return Ok((Value::Null, Vec::new()));
    }
    let python = python.context("models needs PyTorch: set its folder with --python")?;
    let rows = match arguments {
        BenchModels { library: true, .. } => return library::run(python, only),
        BenchModels { memory: true, .. } => {
            let folder = tempfile::tempdir()?;
            peer(folder.path(), python, &["--export", "--large"])?;
            memory::run(folder.path())?
        }
        _ => steps(arguments, python)?,
    };
    Ok((serde_json::to_value(&rows)?, rows))
}

/// Runs the script.
fn peer(folder: &Path, python: &Path, more: &[&str]) -> anyhow::Result<Vec<Measurement>> {
    let words = [&[folder.to_str().unwrap_or_default()], more].concat();
    let arguments = words.into_iter().map(str::to_owned).collect();
    peers::run(&Peer { name: "PyTorch", script: SCRIPT, arguments }, Some(python))
}

/// Steps and valuation of a few models beside PyTorch.
fn steps(arguments: &BenchModels, python: &Path) -> anyhow::Result<Vec<Measurement>> {
    let folder = tempfile::tempdir()?;
    let device = if arguments.cuda { "cuda" } else { "cpu" };
    let threads = arguments.threads.to_string();
    let peer =
        |more: &[&str]| peer(folder.path(), python, &[&["--threads", &threads], more].concat());
    peer(&["--export"])?;
    let kind = if arguments.cuda { EngineKind::Cuda } else { EngineKind::Torch };
    let mut engine = florin_learning::engine(kind, arguments.threads.into())?;
    let cases = MODELS.map(|(name, _)| ExportedModel::load(folder.path(), name));
    let cases = cases.into_iter().collect::<anyhow::Result<Vec<ExportedModel>>>()?;
    let mut own = [f64::INFINITY; MODELS.len()];
    let mut theirs = [f64::INFINITY; MODELS.len()];
    let steps = STEPS.to_string();
    for _ in 0..TURNS {
        for (best, case) in own.iter_mut().zip(&cases) {
            *best = best.min(case.milliseconds(&mut *engine)?);
        }
        let rows = peer(&["--device", device, "--steps", &steps])?;
        for (best, row) in theirs.iter_mut().zip(&rows) {
            *best = best.min(row.value);
        }
    }
    let mut found = Vec::new();
    for (((name, bar), own), theirs) in MODELS.into_iter().zip(own).zip(theirs) {
        let engine = engine.name();
        found.push(Measurement::plain(format!("{name}: Florin, {engine}"), own, "ms/step"));
        found.push(Measurement::plain(format!("{name}: PyTorch eager"), theirs, "ms/step"));
        found.push(Measurement::at_most(format!("{name}: ratio"), own / theirs, "x", bar));
    }
    if arguments.compile {
        found.extend(peer(&["--device", device, "--steps", &steps, "--compile"])?);
    }
    for ((name, _), case) in MODELS.iter().zip(&cases) {
        found.extend(case.valuation(name, &mut *engine)?);
    }
    Ok(found)
}

impl ExportedModel {
    pub(super) fn load(folder: &Path, name: &str) -> anyhow::Result<Self> {
        let file = |end: &str| folder.join(format!("{name}.{end}"));
        let (graph, weights) = read_archive(&file("pt2"))?;
        let about = std::fs::read(file("json"))?;
        let About { rows, batch, tokens, trained } = serde_json::from_slice(&about)?;
        let parts = split(&graph, &weights, &[trained], BufferPolicy::Average)?;
        let words = |end| -> anyhow::Result<Vec<[u8; 4]>> {
            Ok(std::fs::read(file(end))?.as_chunks::<4>().0.to_vec())
        };
        let numbers = words("f32")?.into_iter().map(f32::from_le_bytes).collect();
        let labels = words("u32")?.into_iter().map(u32::from_le_bytes).collect();
        let label_smoothing = 0.0;
        let (outputs, classes, loss) = match tokens {
            true => (256, 1, GraphLoss::TokenCrossEntropy { label_smoothing }),
            false => (10, 10, GraphLoss::CrossEntropy { label_smoothing }),
        };
        let GraphParts { graph, tensors, initial, frozen, inputs } = parts;
        let declaration = GraphDeclaration {
            form: GraphForm::Operators,
            digest: [0; 32],
            inputs,
            targets: 0,
            outputs,
            loss,
            tensors,
        };
        let model = GraphModel::load(declaration, &graph, frozen.as_deref())?;
        let data = Dataset::new(numbers, labels, inputs, classes)?;
        anyhow::ensure!(data.rows() == rows, "{name} has {} rows, not {rows}", data.rows());
        Ok(Self { model: ModelSpec::Graph(Box::new(model)), start: initial, rows: data, batch })
    }

    /// Milliseconds of a step in training.
    fn milliseconds(&self, engine: &mut dyn Engine) -> anyhow::Result<f64> {
        let steps_of_epoch = self.rows.rows().div_ceil(self.batch as usize) as u32;
        let how = Training::sgd(STEPS.div_ceil(steps_of_epoch), self.batch, 0.01);
        let mut best = f64::INFINITY;
        for _ in 0..REPEATS {
            // From the end of the first step to that of the last one: the peer's time has no set-up.
            let mut times = Vec::with_capacity(STEPS as usize);
            let go_on = &mut |_: TrainingStep| {
                times.push(Instant::now());
                ControlFlow::Continue(())
            };
            engine.train(&self.model, &self.start, &self.rows, &how, 1, go_on)?;
            if let (Some(first), Some(last)) = (times.first(), times.last()) {
                let steps = times.len().saturating_sub(1).max(1);
                best = best.min((*last - *first).as_secs_f64() / steps as f64);
            }
        }
        Ok(1_000.0 * best)
    }

    /// The time of the path values of many updates beside that of one gradient over the same rows.
    fn valuation(&self, name: &str, engine: &mut dyn Engine) -> anyhow::Result<[Measurement; 3]> {
        let total: Vec<f64> = self.start.iter().map(|value| f64::from(*value) * 1e-3).collect();
        let base: Vec<f64> = self.start.iter().map(|value| f64::from(*value)).collect();
        let gradient = fastest(REPEATS, || {
            engine.gradient(&self.model, &base, &self.rows)?;
            Ok(())
        })?;
        let update: Vec<f32> = total.iter().map(|value| *value as f32).collect();
        let values = fastest(REPEATS, || {
            let way = ParameterSegment { model: &self.model, base: &self.start, total: &total };
            let path = PathGradient::new(way, &NODES, GROUPS, &mut &self.rows, engine)?;
            let mut left = UPDATES;
            let next = |next: &mut Vec<f32>| {
                next.clone_from(&update);
                left = left.checked_sub(1).unwrap_or(usize::MAX);
                Ok::<_, std::io::Error>((left != usize::MAX).then_some(1.0 / UPDATES as f64))
            };
            path.values(1, next)?;
            Ok(())
        })?;
        let ratio = format!("{name}: path values by gradients");
        Ok([
            Measurement::plain(format!("{name}: one gradient in f64"), 1_000.0 * gradient, "ms"),
            Measurement::plain(
                format!("{name}: path values of {UPDATES} updates"),
                1_000.0 * values,
                "ms",
            ),
            match name == VALUED {
                true => Measurement::at_most(ratio, values / gradient, "x", VALUATION_BAR),
                false => Measurement::plain(ratio, values / gradient, "x"),
            },
        ])
    }
}
