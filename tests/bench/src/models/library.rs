//! `florin-bench models --library`: the share of the models of PyTorch's libraries that load, take a step
//! and match PyTorch.
//!
//! A script exports one model after another and computes a step of it. This process loads the archive
//! as the model of a task, takes the same step by the production engine, compares the bits, and
//! evaluates the rows in `f64`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use florin::show::{self, TextTable};
use florin_learning::graph::{
    BufferPolicy, GraphDeclaration, GraphForm, GraphLoss, GraphModel, GraphParts, graph_cost,
    read_archive, split,
};
use florin_learning::{Dataset, Engine, EngineKind, ModelSpec, Training, TrainingStep};
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Measurement;

const SCRIPT: &str = include_str!("../../../../xtask/peers/library.py");

/// Rows of a model, as in the script.
const ROWS: usize = 4;
/// The seed of the step. The order of four rows that follows from it is their own.
const SEED: u64 = 2;
/// The rate of the step, as in the script. The loss is large, so that the parameters after it have the
/// bits of the gradients.
const RATE: f64 = 1.0;
/// Largest difference of a model that matches, as a share of its largest number.
const CLOSE: f64 = 1e-5;
/// The loss of a row in an evaluation is bounded.
const BOUND: f64 = 1e100;
/// The most bytes of a model's intermediate results.
const BYTES_MAX: u64 = 64 << 30;
/// Fewest models of a complete run.
const MODELS_MIN: f64 = 200.0;
/// Smallest share of the exported models that match.
const SHARE_MIN: f64 = 95.0;

/// The line that the script prints of a model.
#[derive(Debug, Deserialize)]
struct Exported {
    library: String,
    name: String,
    /// Patterns of the parameters that train.
    #[serde(default)]
    trained: Vec<String>,
    exported: bool,
    #[serde(default)]
    why: String,
}

/// The result of a model.
#[derive(Debug, Serialize)]
struct LibraryResult {
    library: String,
    name: String,
    exported: bool,
    loaded: bool,
    /// The largest difference of losses, gradients and tensors after a step, as a share of the largest
    /// number.
    difference: Option<f64>,
    /// The reason of a refusal or a failure.
    why: Option<String>,
}

/// Runs the script and compares each model. Returns all numbers, and the rows of the table.
pub(super) fn run(python: &Path, only: Option<&str>) -> anyhow::Result<(Value, Vec<Measurement>)> {
    let folder = tempfile::tempdir()?;
    let mut script = Command::new("python3")
        .args(["-c", SCRIPT])
        .arg(folder.path())
        .args(["--seed", &SEED.to_string(), "--only", only.unwrap_or_default()])
        .env("PYTHONPATH", python)
        .env("OMP_NUM_THREADS", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start python3")?;
    let mut next = script.stdin.take().context("the script has no input")?;
    let lines = BufReader::new(script.stdout.take().context("the script has no output")?).lines();
    let mut engine = florin_learning::engine(EngineKind::Torch, 1)?;
    let mut results = Vec::new();
    for line in lines {
        let line = line?;
        let exported: Exported =
            serde_json::from_str(&line).with_context(|| format!("the script printed {line:?}"))?;
        let result = LibraryResult::new(exported, folder.path(), &mut *engine);
        result.print();
        results.push(result);
        for file in std::fs::read_dir(folder.path())? {
            std::fs::remove_file(file?.path())?;
        }
        // The script ends after its last model without reading.
        let _ = next.write_all(b"\n");
    }
    anyhow::ensure!(script.wait()?.success(), "the script failed");
    print_tables(&results);
    let rows = totals(&results, only.is_none());
    Ok((json!({ "rows": rows, "models": results }), rows))
}

impl LibraryResult {
    fn new(exported: Exported, folder: &Path, engine: &mut dyn Engine) -> Self {
        let Exported { library, name, trained, exported, why } = exported;
        let mut result =
            Self { library, name, exported, loaded: false, difference: None, why: None };
        if !exported {
            result.why = Some(why);
            return result;
        }
        let compared = LibraryCase::load(folder, &trained).and_then(|case| {
            result.loaded = true;
            case.compare(engine)
        });
        match compared {
            Ok(difference) => result.difference = Some(difference),
            Err(error) => {
                result.why = Some(format!("{error:#}").lines().collect::<Vec<_>>().join(" "))
            }
        }
        result
    }

    fn is_exact(&self) -> bool {
        self.difference == Some(0.0)
    }

    fn matches(&self) -> bool {
        self.difference.is_some_and(|difference| difference <= CLOSE)
    }

    fn verdict(&self) -> String {
        match (&self.why, self.difference) {
            (Some(why), _) if self.exported => format!("REFUSED {why}"),
            (Some(why), _) => format!("did not export: {why}"),
            (None, Some(difference)) if difference > 0.0 => format!("differs by {difference:.1e}"),
            _ => "exact".to_owned(),
        }
    }

    fn print(&self) {
        anstream::eprintln!("{}/{}: {}", self.library, self.name, self.verdict());
    }
}

/// An exported model, loaded as the model of a task, with what PyTorch computed.
struct LibraryCase {
    model: ModelSpec,
    start: Vec<f32>,
    rows: Dataset,
    computed: Vec<u8>,
}

impl LibraryCase {
    fn load(folder: &Path, trained: &[String]) -> anyhow::Result<Self> {
        let (graph, weights) = read_archive(&folder.join("model.pt2"))?;
        let parts = split(&graph, &weights, trained, BufferPolicy::Average)?;
        graph_cost(&graph, &[ROWS as u64], BYTES_MAX)?;
        let GraphParts { graph, tensors, initial, frozen, inputs } = parts;
        let loss = GraphLoss::Output { bound: BOUND };
        let declaration = GraphDeclaration {
            form: GraphForm::Operators,
            digest: [0; 32],
            inputs,
            targets: 0,
            outputs: 1,
            loss,
            tensors,
        };
        let model = GraphModel::load(declaration, &graph, frozen.as_deref())?;
        let computed = std::fs::read(folder.join("model.safetensors"))?;
        let rows = numbers(&SafeTensors::deserialize(&computed)?, "rows")?;
        let rows = Dataset::new(rows, vec![0; ROWS], inputs, 1)?;
        Ok(Self { model: ModelSpec::Graph(Box::new(model)), start: initial, rows, computed })
    }

    /// The largest difference to PyTorch, after an evaluation of the rows has succeeded.
    fn compare(&self, engine: &mut dyn Engine) -> anyhow::Result<f64> {
        let computed = SafeTensors::deserialize(&self.computed)?;
        let losses = numbers(&computed, "losses")?;
        let mut loss = 0.0;
        let go_on = &mut |step: TrainingStep| {
            loss = step.loss;
            ControlFlow::Continue(())
        };
        let how = Training::sgd(1, ROWS as u32, RATE);
        let trained = engine.train(&self.model, &self.start, &self.rows, &how, SEED, go_on)?;
        let expected = losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() / ROWS as f64;
        let of_loss = (loss - expected).abs() / expected.abs();
        let tensors = self.model.tensors().into_iter();
        let expected = tensors
            .map(|tensor| numbers(&computed, &format!("after.{}", tensor.name)))
            .collect::<anyhow::Result<Vec<Vec<f32>>>>()?;
        let difference = of_loss.max(relative_difference(&trained.params, &expected.concat()));
        let params: Vec<f64> = self.start.iter().map(|value| f64::from(*value)).collect();
        let evaluated =
            engine.row_losses(&self.model, &params, &self.rows).context("evaluation")?;
        anyhow::ensure!(
            evaluated.iter().all(|loss| loss.is_finite() && *loss < BOUND),
            "an evaluation has the losses {evaluated:?}"
        );
        Ok(difference)
    }
}

/// The numbers of a tensor.
fn numbers(file: &SafeTensors<'_>, name: &str) -> anyhow::Result<Vec<f32>> {
    let tensor = file.tensor(name).with_context(|| format!("PyTorch computed no {name}"))?;
    let words = tensor.data().as_chunks::<4>().0;
    Ok(words.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// The largest difference of two vectors as a share of their largest number; 0 for equal bits.
fn relative_difference(found: &[f32], expected: &[f32]) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let largest = expected.iter().fold(0.0_f64, |most, value| most.max(f64::from(value.abs())));
    let pairs = found.iter().zip(expected).filter(|(a, b)| a.to_bits() != b.to_bits());
    let away = pairs.map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs());
    away.fold(0.0, |most: f64, away| if away > most || away.is_nan() { away } else { most })
        / largest.max(f64::MIN_POSITIVE)
}

/// A table of the libraries, and one of the refusals by reason.
fn print_tables(results: &[LibraryResult]) {
    let mut libraries: BTreeMap<&str, Vec<&LibraryResult>> = BTreeMap::new();
    for result in results {
        libraries.entry(&result.library).or_default().push(result);
    }
    let mut table = TextTable::new(&[
        "library",
        ">tried",
        ">exported",
        ">loaded",
        ">exact",
        ">within 1e-5",
        ">refused",
    ]);
    let count = |of: &[&LibraryResult], is: fn(&LibraryResult) -> bool| {
        show::thousands(&of.iter().filter(|result| is(result)).count().to_string())
    };
    for (library, own) in &libraries {
        table.row([
            (*library).into(),
            own.len().to_string().into(),
            count(own, |result| result.exported).into(),
            count(own, |result| result.loaded).into(),
            count(own, LibraryResult::is_exact).into(),
            count(own, LibraryResult::matches).into(),
            count(own, |result| result.exported && result.why.is_some()).into(),
        ]);
    }
    table.print();
    let mut table = TextTable::new(&["model", "not matched"]);
    for result in results.iter().filter(|result| !result.matches()) {
        let name = format!("{}/{}", result.library, result.name);
        table.row([name.into(), result.verdict().into()]);
    }
    table.print();
}

/// The counts of all libraries, with the bars of a complete run.
fn totals(results: &[LibraryResult], is_complete: bool) -> Vec<Measurement> {
    let count = |is: &dyn Fn(&LibraryResult) -> bool| {
        results.iter().filter(|result| is(result)).count() as f64
    };
    let exported = count(&|result| result.exported);
    let share = 100.0 * count(&LibraryResult::matches) / exported.max(1.0);
    let (tried, share) = match is_complete {
        true => (
            Measurement::at_least(
                "library: models tried",
                results.len() as f64,
                "models",
                MODELS_MIN,
            ),
            Measurement::at_least("library: matched of the exported", share, "%", SHARE_MIN),
        ),
        false => (
            Measurement::plain("library: models tried", results.len() as f64, "models"),
            Measurement::plain("library: matched of the exported", share, "%"),
        ),
    };
    vec![
        tried,
        Measurement::plain("library: exported", exported, "models"),
        Measurement::plain("library: loaded", count(&|result| result.loaded), "models"),
        Measurement::plain("library: exact", count(&LibraryResult::is_exact), "models"),
        Measurement::plain("library: within 1e-5", count(&LibraryResult::matches), "models"),
        share,
    ]
}

#[cfg(test)]
mod tests {
    use super::relative_difference;

    #[test]
    fn a_difference_is_relative_to_the_largest_number_and_zero_for_equal_bits() {
        assert_eq!(relative_difference(&[1.0, 2.0], &[1.0, 2.0]), 0.0);
        assert_eq!(relative_difference(&[1.0, 3.0], &[1.0, 2.0]), 0.5);
        assert_eq!(relative_difference(&[1.0], &[1.0, 2.0]), f64::INFINITY);
        assert!(relative_difference(&[f32::NAN], &[1.0]).is_nan());
        assert_eq!(relative_difference(&[f32::NAN], &[f32::NAN]), 0.0);
    }
}
