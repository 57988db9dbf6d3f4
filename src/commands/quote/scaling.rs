//! The quote of a step on other numbers of replicas, from measured steps.

use std::path::Path;

use florin_learning::step_cost::scaling::{
    FittedScaling, Nodes, SAMPLES_MAX, ScaledBatch, ScalingSample, fit,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cli::Quote;
use crate::failure::Failure;
use crate::show::{self, TextTable};
use crate::small_file::SmallFile;

/// Largest file of measured steps, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A line of the file.
#[derive(Debug, Deserialize)]
struct MeasuredStep {
    rows: u64,
    replicas: u32,
    nodes: u32,
    step_seconds: f64,
}

/// The step on a number of replicas.
#[derive(Debug, Clone, Copy, Serialize)]
struct ReplicaStep {
    replicas: u32,
    nodes: u32,
    step_seconds: f64,
    /// Whether no measured step has as many replicas.
    is_extrapolated: bool,
}

/// The fit, and the steps that it predicts.
#[derive(Debug)]
pub(super) struct ScalingQuote {
    fitted: FittedScaling,
    steps: Vec<ReplicaStep>,
    fastest: u32,
}

/// Fits the measured steps, and predicts the batch on each number of replicas.
///
/// # Errors
/// `INVALID_MEASUREMENTS`.
pub(super) fn quote(arguments: &Quote, file: &Path) -> anyhow::Result<ScalingQuote> {
    let invalid = |why: String| {
        let message = format!("{}: {why}", file.display());
        Failure::input("INVALID_MEASUREMENTS", message)
    };
    let fitted = fit(&samples(file)?).map_err(|error| invalid(error.to_string()))?;
    let (rows, per_node) = (u64::from(arguments.batch), arguments.replicas_per_node);
    let step = |&replicas: &u32| {
        let nodes = replicas.div_ceil(per_node);
        let kind = Nodes::from_count(nodes);
        let measured = match kind {
            Nodes::One => fitted.local_replicas_max,
            Nodes::Several => fitted.remote_replicas_max,
        };
        let step_seconds = fitted.scaling.seconds(rows.div_ceil(replicas.into()), replicas, kind);
        ReplicaStep { replicas, nodes, step_seconds, is_extrapolated: replicas > measured }
    };
    let steps: Vec<ReplicaStep> = arguments.replicas.iter().map(step).collect();
    let replicas_max = arguments.replicas.iter().copied().max().unwrap_or(1);
    let batch = ScaledBatch { rows, replicas_max, replicas_per_node: per_node };
    Ok(ScalingQuote { fastest: fitted.scaling.fastest_replicas(batch), fitted, steps })
}

fn samples(file: &Path) -> anyhow::Result<Vec<ScalingSample>> {
    let name = file.display();
    let invalid = |why: String| {
        let form = "use the columns rows,replicas,nodes,step_seconds";
        Failure::input("INVALID_MEASUREMENTS", format!("{name}: {why}: {form}"))
    };
    let kind = "a table of measured steps";
    let text = SmallFile { kind, code: "INVALID_MEASUREMENTS", bytes_max: FILE_BYTES_MAX };
    let text = text.read(file)?;
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let mut samples = Vec::new();
    for line in reader.deserialize().take(SAMPLES_MAX + 1) {
        let line: MeasuredStep = line.map_err(|error| invalid(error.to_string()))?;
        let MeasuredStep { rows, replicas, nodes, step_seconds } = line;
        let nodes = Nodes::from_count(nodes);
        samples.push(ScalingSample { rows, replicas, nodes, step_seconds });
    }
    Ok(samples)
}

/// Prints the predicted steps, and how well the measured ones fit.
pub(super) fn print(quote: &ScalingQuote) {
    let mut table = TextTable::new(&[">replicas", ">nodes", ">ms a step", ""]);
    for step in &quote.steps {
        let note = if step.is_extrapolated { "beyond the measured steps" } else { "" };
        table.row(vec![
            step.replicas.to_string().into(),
            step.nodes.to_string().into(),
            format!("{:.2}", 1e3 * step.step_seconds).into(),
            note.into(),
        ]);
    }
    anstream::println!();
    table.print();
    anstream::println!();
    let error = quote.fitted.error;
    let (median, ninetieth) = (error.median_percent, error.ninetieth_percent);
    show::facts(&[
        ("fastest number of replicas", quote.fastest.to_string()),
        (
            "error on the measured steps",
            format!("{median:.1} % (median), {ninetieth:.1} % (of 90 %)"),
        ),
    ]);
}

pub(super) fn json(quote: &ScalingQuote) -> serde_json::Value {
    json!({ "fit": quote.fitted, "steps": quote.steps, "fastest_replicas": quote.fastest })
}
