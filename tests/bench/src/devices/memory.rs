//! The memory of steps: predictions beside measurements, and admission to limits, on graphs that a seed
//! draws.

use std::path::Path;

use florin_learning::engine::TrainError;
use florin_learning::select::step_bytes;
use florin_learning::step_cost::DrawnStep;
use florin_learning::{Dataset, Engine, EngineKind, Execution, ModelSpec, Training};

use crate::Measurement;
use crate::models::ExportedModel;

/// Graphs that are admitted to a limit.
const GRAPHS: u64 = 200;
/// Limits of the graphs, in percent of the memory that their step takes.
const LIMITS: [u64; 8] = [20, 35, 50, 60, 70, 80, 90, 105];
/// Largest share of wrong admissions, in percent.
const ADMISSION_BAR: f64 = 1.0;
/// Largest median of the relative errors of predictions, in percent.
const MEMORY_BAR: f64 = 10.0;
/// Exported models whose memory is predicted, with their batches.
const MODELS: [&str; 4] = ["mlp", "resnet", "gpt", "gpt_lora"];
const BATCHES: [u32; 5] = [2, 4, 8, 16, 64];
const THREADS: [usize; 2] = [1, 2];

/// The bytes of a step within a limit; an error if it is too large.
fn measured(
    engine: &mut dyn Engine,
    model: &ModelSpec,
    rows: &Dataset,
    limit: Option<u64>,
) -> Result<u64, TrainError> {
    // A virtual worker's part is never split: its tensors leave the memory instead.
    let execution =
        Execution { memory_bytes: limit, virtual_workers: Some(1), ..Execution::default() };
    let how = Training { execution, ..Training::sgd(1, rows.rows() as u32, 1e-3) };
    Ok(engine.quote(model, rows, &how)?.map_or(0, |quote| quote.step_bytes))
}

pub(super) fn run(folder: &Path) -> anyhow::Result<Vec<Measurement>> {
    let mut rows = predictions(folder)?;
    rows.extend(admissions()?);
    Ok(rows)
}

fn predictions(folder: &Path) -> anyhow::Result<Vec<Measurement>> {
    let mut errors = Vec::new();
    let mut look = |name: &str, threads: usize, predicted: Option<u64>, measured: u64| {
        let Some(predicted) = predicted else { return };
        let ratio = predicted as f64 / measured.max(1) as f64;
        eprintln!("{name}, {threads} threads: {measured} bytes, predicted {ratio:.4}");
        errors.push(100.0 * (ratio - 1.0).abs());
    };
    for threads in THREADS {
        let mut engine = florin_learning::engine(EngineKind::Torch, threads)?;
        let at = (EngineKind::Torch, threads);
        for name in MODELS {
            let case = ExportedModel::load(folder, name)?;
            for batch in BATCHES {
                let rows = case.rows.slice(0..batch as usize)?;
                let predicted = step_bytes(at, &case.model, &rows, batch)?;
                let how = Training::sgd(1, batch, 1e-3);
                let quote = engine.quote(&case.model, &rows, &how)?;
                let measured = quote.map_or(0, |quote| quote.step_bytes);
                look(&format!("{name} of {batch}"), threads, predicted, measured);
            }
        }
        for seed in 0..GRAPHS / 10 {
            let step = DrawnStep::new(1_000 + seed)?;
            let batch = step.rows.rows() as u32;
            let predicted = step_bytes(at, &step.model, &step.rows, batch)?;
            let how = Training::sgd(1, batch, 1e-3);
            let quote = engine.quote(&step.model, &step.rows, &how)?;
            look(&step.name, threads, predicted, quote.map_or(0, |quote| quote.step_bytes));
        }
    }
    errors.sort_by(f64::total_cmp);
    let (count, worst) = (errors.len(), errors.last().copied().unwrap_or(f64::NAN));
    let within = errors.iter().filter(|error| **error <= MEMORY_BAR).count();
    Ok(vec![
        Measurement::at_most(
            format!("quote: median error of the memory of {count} steps"),
            errors[count / 2],
            "%",
            MEMORY_BAR,
        ),
        Measurement::plain("quote: largest error of the memory", worst, "%"),
        Measurement::plain(
            "quote: memory within 10 %",
            100.0 * within as f64 / count.max(1) as f64,
            "%",
        ),
    ])
}

fn admissions() -> anyhow::Result<Vec<Measurement>> {
    let mut engine = florin_learning::engine(EngineKind::Torch, 1)?;
    let (mut wrong, mut planned, mut refused) = (0_u32, 0_u32, 0_u32);
    for seed in 0..GRAPHS {
        let step = DrawnStep::new(seed)?;
        let (model, rows) = (&step.model, &step.rows);
        let whole = measured(&mut *engine, model, rows, Some(u64::MAX))?;
        let percent = LIMITS[(seed as usize) % LIMITS.len()];
        let limit = whole * percent / 100;
        let (verdict, is_wrong) = match measured(&mut *engine, model, rows, Some(limit)) {
            Ok(bytes) => {
                planned += u32::from(bytes < whole);
                (format!("{bytes} bytes"), bytes > limit)
            }
            Err(TrainError::Memory(error)) => {
                refused += 1;
                // The stated need must suffice.
                let needed = measured(&mut *engine, model, rows, Some(error.needed));
                let is_wrong = !needed.is_ok_and(|bytes| bytes <= error.needed);
                (format!("needs {}", error.needed), is_wrong || whole <= limit)
            }
            Err(error) => return Err(error.into()),
        };
        wrong += u32::from(is_wrong);
        let mark = if is_wrong { "WRONG" } else { "" };
        eprintln!("{}: {whole} bytes, limit {limit}: {verdict} {mark}", step.name);
    }
    let share = |count: u32| 100.0 * f64::from(count) / GRAPHS as f64;
    Ok(vec![
        Measurement::at_most(
            format!("memory: wrong admissions of {GRAPHS} graphs"),
            share(wrong),
            "%",
            ADMISSION_BAR,
        ),
        Measurement::plain("memory: graphs that ran by a plan", share(planned), "%"),
        Measurement::plain("memory: graphs that were refused", share(refused), "%"),
    ])
}
