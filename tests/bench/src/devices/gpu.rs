//! Steps on a GPU: within a part of its memory, beside PyTorch with saved tensors in the memory of the host;
//! and their bits on several processes.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Context;
use florin_learning::engine::TrainingQuote;
use florin_learning::{EngineKind, Execution, Training};

use super::launch::{self, Launcher};
use super::paging::PAGING;
use super::rank::RankWork;
use super::{DIGEST_STEPS, Packages, WORKERS, python_run, work};
use crate::Measurement;
use crate::models::ExportedModel;

/// Models with the rows of their step.
const CASES: [(&str, u32); 2] = [("resnet", 4_096), ("gpt", 2_048)];
/// Memories of a step as shares of its tensors, in percent: the first one that has a plan counts.
const LIMITS: [u64; 6] = [30, 40, 50, 60, 70, 80];
/// Steps of a training whose parameters are compared, and of the peer.
const STEPS: u32 = 4;
/// Least gain over PyTorch's saved tensors in the host's memory.
const GAIN_BAR: f64 = 1.5;
/// A GPU's allocator gives blocks that are larger than tensors.
const BLOCKS: f64 = 1.02;
/// Processes, and parts of a pipeline, of the runs whose digests are compared; the first one twice.
const SHAPES: [(u32, Option<u32>); 6] =
    [(1, None), (1, None), (2, None), (4, None), (2, Some(2)), (4, Some(2))];

/// The quote of a step, and the parameters of a short training.
fn measured(
    case: &ExportedModel,
    batch: u32,
    memory_bytes: Option<u64>,
) -> anyhow::Result<(TrainingQuote, Vec<f32>)> {
    let mut engine = florin_learning::engine(EngineKind::Cuda, 1)?;
    // A virtual worker's part is never split: its tensors leave the memory instead.
    let execution = Execution { memory_bytes, virtual_workers: Some(1), ..Execution::default() };
    let how = Training { execution, ..Training::sgd(STEPS, batch, 0.01) };
    let quote = engine.quote(&case.model, &case.rows, &how)?.context("a graph has a quote")?;
    let go_on = &mut |_| ControlFlow::Continue(());
    let trained = engine.train(&case.model, &case.start, &case.rows, &how, 1, go_on)?;
    Ok((quote, trained.params))
}

pub(super) fn run(folder: &Path, packages: Packages<'_>) -> anyhow::Result<Vec<Measurement>> {
    fs::write(folder.join("paging.py"), PAGING)?;
    let mut rows = Vec::new();
    for (model, batch) in CASES {
        rows.extend(of_model(folder, packages, model, batch)?);
        rows.push(digests(folder, packages, model)?);
    }
    Ok(rows)
}

/// The number of digests of one training on one and on several processes, which share the GPU.
fn digests(folder: &Path, packages: Packages<'_>, model: &str) -> anyhow::Result<Measurement> {
    let alone = RankWork { cuda: true, ..work(folder, model, WORKERS, DIGEST_STEPS) };
    let mut digests = Vec::new();
    for (processes, parts) in SHAPES {
        let own = RankWork { parts, ..alone.clone() };
        let found = launch::run(Launcher::Own, processes, &own, packages)?.context("no result")?;
        eprintln!("{model} on {processes} processes, {parts:?} parts: {}", found.digest);
        digests.push(found.digest);
    }
    digests.sort();
    digests.dedup();
    let name = format!("GPU: digests of {model} in {} runs", SHAPES.len());
    Ok(Measurement::plain(name, digests.len() as f64, ""))
}

fn of_model(
    folder: &Path,
    packages: Packages<'_>,
    model: &str,
    batch: u32,
) -> anyhow::Result<Vec<Measurement>> {
    let mut case = ExportedModel::load(folder, model)?;
    let all = case.rows.rows();
    let places: Vec<usize> = (0..batch as usize).map(|row| row % all).collect();
    case.rows = case.rows.subset(&places)?;
    let (whole, params) = measured(&case, batch, None)?;
    let (_, again) = measured(&case, batch, None)?;
    let of_limit = |percent: u64| {
        let limit = whole.step_bytes * percent / 100;
        let found = measured(&case, batch, Some(limit));
        found
            .map(|found| (percent, limit, found))
            .inspect_err(|why| eprintln!("{percent} %: {why}"))
    };
    let found = LIMITS.into_iter().find_map(|percent| of_limit(percent).ok());
    let (percent, limit, (planned, by_plan)) = found.context("no plan")?;
    let differs = params.iter().zip(&by_plan).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let noise = params.iter().zip(&again).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let (count, steps) = (batch.to_string(), STEPS.to_string());
    let peer = |extra: &[&str]| -> anyhow::Result<f64> {
        let words = ["paging.py", model, "--batch", &count, "--steps", &steps, "--device", "cuda"];
        let line = python_run(packages.python, folder, &[&words, extra].concat())?;
        let value: serde_json::Value = serde_json::from_str(line.trim()).context(line.clone())?;
        value["milliseconds"].as_f64().context("no value")
    };
    let (theirs, on_host) = (peer(&[])?, peer(&["--host"])?);
    let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
    let ms = |quote: &TrainingQuote| 1_000.0 * quote.step_seconds;
    let name = |text: &str| format!("GPU: {model} of {batch} rows, {text}");
    Ok(vec![
        Measurement::plain(name("tensors without a limit"), mib(whole.step_bytes), "MiB"),
        Measurement::plain(name("least memory with a plan"), percent as f64, "%"),
        Measurement::at_most(
            name("tensors by a plan"),
            mib(planned.step_bytes),
            "MiB",
            BLOCKS * mib(limit),
        ),
        Measurement::plain(name("without a limit"), ms(&whole), "ms/step"),
        Measurement::plain(name("by a plan"), ms(&planned), "ms/step"),
        Measurement::plain(name("PyTorch without a limit"), theirs, "ms/step"),
        Measurement::plain(name("PyTorch, saved tensors on the host"), on_host, "ms/step"),
        Measurement::at_least(
            name("gain over PyTorch on the host"),
            on_host / ms(&planned),
            "x",
            GAIN_BAR,
        ),
        Measurement::plain(name("parameters that differ without a plan"), noise as f64, ""),
        Measurement::plain(name("parameters that differ by the plan"), differs as f64, ""),
    ])
}
