//! Pollux's form of a step's time, fitted to its published measurements: half of the placements predict the
//! other half.

use std::path::Path;

use anyhow::Context;
use florin_learning::step_cost::scaling::{Nodes, ScalingSample, fit};

use crate::Measurement;

/// The models of the measurements.
const MODELS: [&str; 6] = ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"];
/// Largest median error, in percent: as for the steps of `--quotes`.
const BAR: f64 = 15.0;

/// A measured step, with the replicas of each of its nodes as digits.
struct PlacedStep {
    placement: String,
    sample: ScalingSample,
}

fn read(file: &Path) -> anyhow::Result<Vec<PlacedStep>> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let step = |line: &str| {
        let mut cells = line.split(',');
        let placement = cells.next()?.to_owned();
        let rows = cells.next()?.parse().ok()?;
        let step_seconds = cells.next()?.parse().ok()?;
        let replicas = placement.chars().map(|digit| digit.to_digit(10)).sum::<Option<u32>>()?;
        let nodes = Nodes::from_count(placement.len() as u32);
        Some(PlacedStep {
            placement,
            sample: ScalingSample { rows, replicas, nodes, step_seconds },
        })
    };
    let steps = text.lines().skip(1).map(|line| step(line).with_context(|| line.to_owned()));
    steps.collect()
}

pub(super) fn run(folder: &Path) -> anyhow::Result<Vec<Measurement>> {
    let mut rows = Vec::new();
    for model in MODELS {
        let steps = read(&folder.join(model).join("placements.csv"))?;
        let mut placements: Vec<&String> = steps.iter().map(|step| &step.placement).collect();
        placements.sort();
        placements.dedup();
        let (mut median, mut ninetieth) = (0.0_f64, 0.0_f64);
        for fitted in [0, 1] {
            let is_fitted = |step: &&PlacedStep| {
                placements.binary_search(&&step.placement).is_ok_and(|at| at % 2 == fitted)
            };
            let of = |wanted: bool| -> Vec<ScalingSample> {
                let some = steps.iter().filter(|step| is_fitted(step) == wanted);
                some.map(|step| step.sample).collect()
            };
            let error = fit(&of(true))?.scaling.error(&of(false))?;
            median = median.max(error.median_percent);
            ninetieth = ninetieth.max(error.ninetieth_percent);
        }
        let of = |error: &str| format!("{model}: {error} of the placements that were held out");
        rows.push(Measurement::at_most(of("median error"), median, "%", BAR));
        rows.push(Measurement::plain(of("error of 90 %"), ninetieth, "%"));
    }
    Ok(rows)
}
