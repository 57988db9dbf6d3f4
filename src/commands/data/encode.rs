//! `florin data encode`: encodes rows as a task declares, part after part, and writes them to a
//! `florin:` file, which may exceed the memory.

use std::path::Path;

use florin_learning::data::{CanonicalWriter, RowShape};
use florin_learning::{DataSource, Dataset};
use florin_participant::{AgentError, Shutdown};
use florin_protocol::Blob;
use serde_json::json;

use crate::cli::DataEncode;
use crate::commands::out_file::refuse_existing;
use crate::commands::participate::stop_on_request;
use crate::commands::task::prepared_task;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::progress::Progress;
use crate::show;
use crate::task_file::{EncodingTask, encode_for_task};

pub(super) fn run(arguments: &DataEncode) -> anyhow::Result<Exit> {
    let (source, out) = (&arguments.source, &arguments.out);
    refuse_existing(out)?;
    let shutdown = stop_on_request()?;
    let progress = Progress::start(format!("reading {source}"));
    let mut output = Output { path: out, writer: None };
    with_task(arguments, |task| {
        encode_for_task(task, source, |rows| {
            output.append(rows)?;
            let written = show::thousands(&output.rows().to_string());
            progress.step(format!("encoding {source}: {written} rows"));
            stop_if_asked(&shutdown)
        })
    })?;
    progress.step(format!("writing {}", out.display()));
    let rows = output.rows();
    let Some((writer, RowShape { width, classes })) = output.writer else {
        return Err(Failure::input("INVALID_DATA", format!("{source} has no rows")).into());
    };
    writer.finish()?;
    drop(progress);
    let written = DataSource::Florin { file: out.clone() }.to_string();
    if arguments.json.json {
        show::json(&json!({
            "source": written,
            "rows": rows,
            "width": width,
            "classes": classes,
        }))?;
        return Ok(Exit::Done);
    }
    show::facts(&[
        ("data source", written),
        ("rows", show::thousands(&rows.to_string())),
        ("features", format!("{width} per row")),
        ("classes", classes.to_string()),
    ]);
    Ok(Exit::Done)
}

/// Calls `work` with the task of a file, or of a market.
fn with_task(
    arguments: &DataEncode,
    work: impl FnOnce(&EncodingTask<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let named = &arguments.task;
    let market = arguments.market.market().filter(|_| !Path::new(named).is_file());
    let Some(market) = market else {
        let task = prepared_task(Path::new(named))?;
        let blob = |blob: Blob| Ok(task.blob(blob.digest));
        return work(&EncodingTask { spec: &task.spec, blob: &blob });
    };
    let market = MarketConnection::connect(&market)?;
    let view = market.task(market.find(named)?)?;
    let model = view.spec.consent_digest();
    if view.spec.tokenizer().is_some() && !arguments.accept_model.contains(&model) {
        // As for a participation: the buyer's tokenizer is not used before consent.
        return Err(AgentError::ModelNotDerived { task: view.spec.id(), model }.into());
    }
    let blob = |blob: Blob| Ok(market.blob(blob.digest, blob.bytes)?);
    work(&EncodingTask { spec: &view.spec, blob: &blob })
}

/// The file, which is begun with the first rows.
struct Output<'a> {
    path: &'a Path,
    writer: Option<(CanonicalWriter, RowShape)>,
}

impl Output<'_> {
    fn append(&mut self, rows: &Dataset) -> anyhow::Result<()> {
        let shape = RowShape { width: rows.width(), classes: rows.classes() };
        let (writer, _) = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert((CanonicalWriter::create(self.path, shape)?, shape)),
        };
        Ok(writer.append(rows)?)
    }

    fn rows(&self) -> usize {
        self.writer.as_ref().map_or(0, |(writer, _)| writer.rows())
    }
}

/// # Errors
/// `INTERRUPTED`, after which the unfinished file is removed.
fn stop_if_asked(shutdown: &Shutdown) -> anyhow::Result<()> {
    match shutdown.is_requested() {
        true => Err(Failure::interrupted("stopped before all rows were encoded").into()),
        false => Ok(()),
    }
}
