//! Predicted times of steps beside measured ones, on graphs that the card was not fitted to.

use std::path::Path;

use florin_learning::EngineKind;
use florin_learning::graph::{BufferPolicy, Graph, read_archive, travelling_inputs};
use florin_learning::step_cost::{StepWork, measure, step_seconds};

use crate::Measurement;
use crate::models::ExportedModel;

/// The models with the parameters that train.
const MODELS: [(&str, &str); 4] =
    [("mlp", "*"), ("resnet", "*"), ("gpt", "*"), ("gpt_lora", "*lora_b*")];
const BATCHES: [u32; 5] = [2, 4, 8, 16, 64];
const THREADS: [u16; 2] = [1, 2];
/// Largest median of the relative errors, in percent.
const TIME_BAR: f64 = 15.0;

pub(super) fn run(folder: &Path) -> anyhow::Result<Vec<Measurement>> {
    let (mut times, mut covered) = (Vec::new(), 0);
    for threads in THREADS {
        let mut engine = florin_learning::engine(EngineKind::Torch, threads.into())?;
        let card = measure(&mut *engine, threads.into(), &mut |_, _| {})?;
        for (name, trained) in MODELS {
            let case = ExportedModel::load(folder, name)?;
            let (graph, travels) = graph(folder, name, trained)?;
            for batch in BATCHES {
                let rows = case.rows.slice(0..batch as usize)?;
                let measured = step_seconds(&mut *engine, &case.model, &case.start, &rows, batch)?;
                let sizes = graph.free_sizes(batch.into());
                let work = StepWork::of(&graph, &sizes, |at| travels[at])?;
                let predicted = card.predict(&work)?;
                let ratio = predicted.seconds / measured;
                covered += u32::from((predicted.least..=predicted.most).contains(&measured));
                let ms = 1e3 * measured;
                eprintln!("{name} of {batch}, {threads} threads: {ms:.2} ms, predicted {ratio:.2}");
                times.push(100.0 * (ratio - 1.0).abs());
            }
        }
    }
    let share = 100.0 * f64::from(covered) / times.len().max(1) as f64;
    let band = Measurement::plain("quote: measured times within the band", share, "%");
    Ok(vec![median("quote: median error of the times of", "steps", times, TIME_BAR), band])
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
