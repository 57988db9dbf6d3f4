//! Predicted times of steps beside measured ones, on graphs that the card was not fitted to.

use std::path::Path;

use florin_learning::graph::{BufferPolicy, Graph, read_archive, travelling_inputs};
use florin_learning::step_cost::{DeviceCard, StepWork, measure, step_seconds};
use florin_learning::{Betas, Engine, EngineKind, Optimizer, Training};

use crate::Measurement;
use crate::models::ExportedModel;

/// The models with the parameters that train.
const MODELS: [(&str, &str); 4] =
    [("mlp", "*"), ("resnet", "*"), ("gpt", "*"), ("gpt_lora", "*lora_b*")];
const BATCHES: [u32; 5] = [2, 4, 8, 16, 64];
const THREADS: [u16; 2] = [1, 2];
const BETAS: Betas = Betas { beta1: 0.9, beta2: 0.999 };
/// Largest median of the relative errors, in percent.
const TIME_BAR: f64 = 15.0;

/// Rules of a step, as the rows of the result name them.
fn optimizers() -> [(&'static str, Training); 3] {
    let sgd = Training::sgd(1, 1, 1e-3);
    let adam = Training { optimizer: Optimizer::Adam(BETAS), ..sgd };
    let momentum = Training { momentum: 0.9, ..sgd };
    [("plain descent", sgd), ("Adam", adam), ("momentum", momentum)]
}

/// A step's predicted time, as a multiple of the measured one.
struct CheckedStep {
    optimizer: &'static str,
    ratio: f64,
    is_in_band: bool,
}

pub(super) fn run(folder: &Path) -> anyhow::Result<Vec<Measurement>> {
    let mut steps = Vec::new();
    for threads in THREADS {
        let mut engine = florin_learning::engine(EngineKind::Torch, threads.into())?;
        let card = measure(&mut *engine, threads.into(), None, &mut |_, _| {})?;
        for model in MODELS {
            steps.extend(check(folder, model, &mut *engine, &card)?);
        }
    }
    let mut rows = Vec::new();
    for (optimizer, _) in optimizers() {
        let own = steps.iter().filter(|step| step.optimizer == optimizer);
        let errors: Vec<f64> = own.map(|step| 100.0 * (step.ratio - 1.0).abs()).collect();
        let ends = format!("steps by {optimizer}");
        rows.push(median("quote: median error of the times of", &ends, errors, TIME_BAR));
    }
    let covered = steps.iter().filter(|step| step.is_in_band).count();
    let share = 100.0 * covered as f64 / steps.len().max(1) as f64;
    rows.push(Measurement::plain("quote: measured times within the band", share, "%"));
    Ok(rows)
}

/// Measures and predicts the steps of a model.
fn check(
    folder: &Path,
    (name, trained): (&str, &str),
    engine: &mut dyn Engine,
    card: &DeviceCard,
) -> anyhow::Result<Vec<CheckedStep>> {
    let case = ExportedModel::load(folder, name)?;
    let (graph, travels) = graph(folder, name, trained)?;
    let mut steps = Vec::new();
    for batch in BATCHES {
        let rows = case.rows.slice(0..batch as usize)?;
        let sizes = graph.free_sizes(batch.into());
        let work = StepWork::of(&graph, &sizes, |at| travels[at])?;
        for (optimizer, how) in optimizers() {
            let how = Training { batch, ..how };
            let measured = step_seconds(engine, &case.model, &case.start, &rows, &how)?;
            let predicted = card.predict(&work.with_optimizer(&how))?;
            let ratio = predicted.seconds / measured;
            let (threads, ms) = (card.threads, 1e3 * measured);
            eprintln!(
                "{name} of {batch} by {optimizer}, {threads} threads: {ms:.2} ms, predicted {ratio:.2}"
            );
            let is_in_band = (predicted.least..=predicted.most).contains(&measured);
            steps.push(CheckedStep { optimizer, ratio, is_in_band });
        }
    }
    Ok(steps)
}

fn median(begins: &str, ends: &str, mut errors: Vec<f64>, bar: f64) -> Measurement {
    errors.sort_by(f64::total_cmp);
    let name = format!("{begins} {} {ends}", errors.len());
    Measurement::at_most(name, errors[errors.len() / 2], "%", bar)
}

/// A graph, and which of its inputs train.
fn graph(folder: &Path, name: &str, trained: &str) -> anyhow::Result<(Graph, Vec<bool>)> {
    let (graph, _) = read_archive(&folder.join(format!("{name}.pt2")))?;
    let travels = travelling_inputs(&graph, &[trained.to_owned()], BufferPolicy::Average)?;
    Ok((graph, travels))
}
