//! `florin predict`: predicts rows by a task's trained model, and measures the predictions.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use florin_learning::metrics::{
    ClassMetrics, Metrics, MetricsCollector, OutputKind, largest, softmax,
};
use florin_learning::{Dataset, Engine, ModelSpec};
use florin_protocol::TaskSpec;
use serde_json::{Value, json};

use crate::cli::Predict;
use crate::commands::out_file::refuse_existing;
use crate::compose;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::show::{self, TextTable};
use crate::task_file::{load_for_task, schema_mismatch, select_rows};

/// Most outputs that are in memory at a time.
const OUTPUTS_MAX: usize = 1 << 22;
/// Most rows that are predicted at a time.
const ROWS_MAX: usize = 4_096;
/// Most classes of which a file has the probabilities, and most columns of other outputs.
const COLUMNS_MAX: usize = 256;
/// Most classes of a confusion matrix on the terminal.
const CLASSES_SHOWN_MAX: usize = 12;

pub(super) fn run(arguments: &Predict) -> anyhow::Result<Exit> {
    arguments.out.as_deref().map_or(Ok(()), refuse_existing)?;
    let market = MarketConnection::connect(&arguments.market)?.with_weights(&arguments.weights);
    let view = market.task(market.find(&arguments.task)?)?;
    let spec = &view.spec;
    if spec.model.trainer().is_some() {
        let message = "the model is a program, which computes losses and no predictions: run it with \
                       the parameters of `florin task model`, and read its code by `florin task code`";
        return Err(Failure::input("PREDICT_UNSUPPORTED", message).into());
    }
    let mut data =
        load_for_task(spec, &arguments.data, &|blob| Ok(market.blob(blob.digest, blob.bytes)?))?;
    if let Some(range) = &arguments.rows {
        let outside = |right| Failure::input("INVALID_DATA", format!("--rows: {right}"));
        data = select_rows(&data, range.clone()).map_err(outside)?;
    }
    if let Some(misfit) = schema_mismatch(&data, spec) {
        let message = format!("the data does not match the task: {misfit}");
        return Err(Failure::input("DATA_MISMATCH", message).into());
    }
    let bytes = market.blob(view.model, florin_work::model_bytes(spec))?;
    let params: Vec<f64> =
        florin_work::decode_model(spec, &bytes)?.into_iter().map(f64::from).collect();
    let graph = market.graph(spec)?;
    let model = florin_work::task_model(spec, graph.as_ref());
    let mut engine = compose::engine(arguments.engine)?;
    let prediction =
        Prediction { spec, model: &model, params: &params, kind: OutputKind::new(&model) };
    let metrics = prediction.run(&data, &mut *engine, arguments.out.as_deref())?;
    if arguments.json.json {
        show::json(&json!({
            "model": view.model,
            "rounds": view.reported,
            "rows": data.rows(),
            "file": arguments.out,
            "metrics": metrics.as_ref().map(|metrics| prediction.metrics_json(metrics)),
        }))?;
        return Ok(Exit::Done);
    }
    let mut facts = vec![
        ("model", view.model.to_string()),
        ("trained", format!("{} rounds", view.reported)),
        ("rows", show::thousands(&data.rows().to_string())),
    ];
    facts.extend(metrics.iter().flat_map(|metrics| prediction.facts(metrics)));
    if let Some(out) = &arguments.out {
        facts.push(("written", out.display().to_string()));
    }
    show::facts(&facts);
    if let Some(Metrics::Classes(found)) = &metrics {
        prediction.print_confusion(found);
    }
    Ok(Exit::Done)
}

/// A task's model and its predictions.
struct Prediction<'a> {
    spec: &'a TaskSpec,
    model: &'a ModelSpec,
    params: &'a [f64],
    kind: OutputKind,
}

impl Prediction<'_> {
    /// Predicts all rows, a part of them at a time, and writes the predictions beside `out` until all
    /// are there.
    fn run(
        &self,
        data: &Dataset,
        engine: &mut dyn Engine,
        out: Option<&Path>,
    ) -> anyhow::Result<Option<Metrics>> {
        let folder = |out: &Path| match out.parent() {
            Some(folder) if folder != Path::new("") => folder.to_owned(),
            _ => ".".into(),
        };
        let mut file = match out {
            Some(out) => Some(
                tempfile::NamedTempFile::new_in(folder(out))
                    .with_context(|| out.display().to_string())?,
            ),
            None => None,
        };
        let mut text = csv_line(&self.columns());
        let mut collector = MetricsCollector::new(self.kind);
        let each = (OUTPUTS_MAX / self.kind.numbers().max(1)).clamp(1, ROWS_MAX);
        for from in (0..data.rows()).step_by(each) {
            let part = data.slice(from..data.rows().min(from + each))?;
            let outputs = engine.row_outputs(self.model, self.params, &part)?;
            collector.add(&outputs, &part);
            if let Some(file) = &mut file {
                for output in outputs.chunks_exact((outputs.len() / part.rows()).max(1)) {
                    text.push_str(&csv_line(&self.cells(output)));
                }
                file.write_all(text.as_bytes())?;
                text.clear();
            }
        }
        if let (Some(file), Some(out)) = (file, out) {
            file.as_file().sync_all()?;
            file.persist(out)
                .map_err(|error| error.error)
                .with_context(|| out.display().to_string())?;
        }
        Ok(collector.finish())
    }

    fn class_name(&self, class: usize) -> String {
        let encoding = self.spec.data.encoding.as_ref();
        let name = encoding.and_then(|encoding| encoding.class_names.get(class));
        name.cloned().unwrap_or_else(|| class.to_string())
    }

    /// Names of the file's columns.
    fn columns(&self) -> Vec<String> {
        let several = |name: &str, count: usize| match count {
            1 => vec![name.to_owned()],
            _ => (1..=count.min(COLUMNS_MAX)).map(|at| format!("{name}_{at}")).collect(),
        };
        match self.kind {
            OutputKind::Classes { classes } => {
                let names = (0..classes.min(COLUMNS_MAX)).map(|class| self.class_name(class));
                let own = ["prediction".to_owned()];
                own.into_iter().chain(names.map(|name| format!("p({name})"))).collect()
            }
            OutputKind::TruthValues { values, .. } => several("p", values),
            OutputKind::Numbers { values, .. } => several("prediction", values),
            OutputKind::Tokens { tokens, .. } => several("token", tokens + 1),
            OutputKind::Loss => vec!["loss".to_owned()],
        }
    }

    /// The cells of a row with this output.
    fn cells(&self, output: &[f64]) -> Vec<String> {
        let text = |number: f64| number.to_string();
        let first = output.iter().take(COLUMNS_MAX).copied();
        match self.kind {
            OutputKind::Classes { .. } => {
                let own = [self.class_name(largest(output))];
                let probabilities = softmax(output).into_iter().take(COLUMNS_MAX).map(text);
                own.into_iter().chain(probabilities).collect()
            }
            OutputKind::TruthValues { .. } => {
                first.map(|logit| text(softmax(&[0.0, logit])[1])).collect()
            }
            OutputKind::Numbers { .. } => {
                first.map(|number| text(self.in_own_unit(number))).collect()
            }
            OutputKind::Tokens { classes, .. } => {
                let tokens = output.chunks_exact(classes).take(COLUMNS_MAX);
                tokens.map(|logits| largest(logits).to_string()).collect()
            }
            OutputKind::Loss => first.map(text).collect(),
        }
    }

    /// A number in the unit of the source's label.
    fn in_own_unit(&self, number: f64) -> f64 {
        match florin_work::target_scale(&self.spec.data) {
            Some(scale) => number / scale.factor + scale.offset,
            None => number,
        }
    }

    /// Errors in the unit of the source's label.
    fn unit_of_errors(&self) -> f64 {
        florin_work::target_scale(&self.spec.data).map_or(1.0, |scale| 1.0 / scale.factor.abs())
    }

    fn metrics_json(&self, metrics: &Metrics) -> Value {
        match metrics {
            Metrics::Classes(found) => json!({
                "accuracy": found.accuracy,
                "balanced_accuracy": found.balanced_accuracy,
                "f1": found.f1,
                "auroc": found.auroc,
                "cross_entropy": found.cross_entropy,
                "classes": (0..found.confusion.len()).map(|at| self.class_name(at)).collect::<Vec<_>>(),
                "confusion": found.confusion,
            }),
            Metrics::TruthValues(found) => json!({
                "accuracy": found.accuracy,
                "exact_match": found.exact_match,
                "f1": found.f1,
                "auroc": found.auroc,
            }),
            Metrics::Numbers(found) => {
                let found = found.scaled(self.unit_of_errors());
                json!({ "rmse": found.rmse, "mae": found.mae, "r2": found.r2 })
            }
            Metrics::Tokens(found) => json!({
                "tokens": found.tokens,
                "accuracy": found.accuracy,
                "perplexity": found.perplexity,
                "cross_entropy": found.cross_entropy,
            }),
            Metrics::Loss { mean } => json!({ "loss": mean }),
        }
    }

    /// The metrics for the terminal.
    fn facts(&self, metrics: &Metrics) -> Vec<(&'static str, String)> {
        let share = |value: f64| format!("{:.1} %", 100.0 * value);
        let area = |area: Option<f64>| match area {
            Some(area) => format!("{area:.4}"),
            None => "– (the rows need both kinds of labels)".to_owned(),
        };
        match metrics {
            Metrics::Classes(found) => vec![
                ("accuracy", share(found.accuracy)),
                ("balanced accuracy", share(found.balanced_accuracy)),
                ("F1, macro", format!("{:.4}", found.f1)),
                ("AUROC", area(found.auroc)),
                ("cross-entropy", format!("{:.6} nats", found.cross_entropy)),
            ],
            Metrics::TruthValues(found) => vec![
                ("accuracy", share(found.accuracy)),
                ("exact match", share(found.exact_match)),
                ("F1, macro", format!("{:.4}", found.f1)),
                ("AUROC, macro", area(found.auroc)),
            ],
            Metrics::Numbers(found) => {
                let found = found.scaled(self.unit_of_errors());
                let r2 = match found.r2 {
                    Some(r2) => format!("{r2:.4}"),
                    None => "– (all targets are equal)".to_owned(),
                };
                vec![
                    ("RMSE", format!("{:.6}", found.rmse)),
                    ("MAE", format!("{:.6}", found.mae)),
                    ("R²", r2),
                ]
            }
            Metrics::Tokens(found) => vec![
                ("tokens", show::thousands(&found.tokens.to_string())),
                ("accuracy", share(found.accuracy)),
                ("perplexity", format!("{:.4}", found.perplexity)),
                ("cross-entropy", format!("{:.6} nats", found.cross_entropy)),
            ],
            Metrics::Loss { mean } => vec![("loss", format!("{mean:.6}"))],
        }
    }

    /// Prints how many rows of each label have each prediction.
    fn print_confusion(&self, found: &ClassMetrics) {
        let classes = found.confusion.len();
        if classes > CLASSES_SHOWN_MAX {
            show::hint(&format!("{classes} classes: --json has the confusion matrix."));
            return;
        }
        anstream::println!();
        let mut table = TextTable::new(&["label", ">rows", ">right", "predicted otherwise"]);
        for (label, row) in found.confusion.iter().enumerate() {
            let mut wrong: Vec<(usize, u64)> = row
                .iter()
                .copied()
                .enumerate()
                .filter(|&(at, count)| at != label && count > 0)
                .collect();
            wrong.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
            let wrong: Vec<String> = wrong
                .iter()
                .map(|&(at, count)| format!("{} ({count})", self.class_name(at)))
                .collect();
            table.row([
                self.class_name(label).into(),
                row.iter().sum::<u64>().to_string().into(),
                row[label].to_string().into(),
                wrong.join(", ").into(),
            ]);
        }
        table.print();
    }
}

/// A line of a CSV file (RFC 4180).
fn csv_line(cells: &[String]) -> String {
    let quoted = |cell: &String| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    let cells: Vec<String> = cells.iter().map(quoted).collect();
    format!("{}\n", cells.join(","))
}

#[cfg(test)]
mod tests {
    use super::csv_line;

    #[test]
    fn cells_with_commas_and_quotes_are_quoted() {
        let cells = ["a".to_owned(), "b,c".to_owned(), "d\"e".to_owned()];
        assert_eq!(csv_line(&cells), "a,\"b,c\",\"d\"\"e\"\n");
    }
}
