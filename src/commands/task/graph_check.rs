//! Runs a task's graph on rows of the holdout before it is published: a graph that fails on them, or
//! whose rows interact, could not be valued.

use std::path::Path;

use florin_learning::data::from_canonical_bytes;
use florin_learning::{Dataset, Engine, EngineKind, ModelSpec};
use florin_protocol::{Rejection, TaskSpec};

use crate::cli::EngineArg;
use crate::progress::Progress;
use crate::task_file::{PreparedTask, refuse};

/// Rows on which the graph runs.
const ROWS_MAX: usize = 256;
/// Rows that run alone, too.
const ROWS_ALONE: usize = 4;
/// Largest relative difference of a row's loss alone and among others, in `f64`.
const DIFFERENCE_MAX: f64 = 1e-6;

/// Checks the graph of a task; nothing to check without one.
///
/// # Errors
/// [`Failure`] with code `MODEL_FAILS`, `MODEL_ROWS_INTERACT` or `MODEL_NOT_FINITE`.
pub(super) fn check_graph(file: &Path, ready: &PreparedTask) -> anyhow::Result<()> {
    let spec = &ready.spec;
    let read = |digest, _| {
        let found = ready.blobs.iter().find(|(own, _)| *own == digest);
        Ok::<_, Rejection>(found.map(|(_, bytes)| bytes.clone()).unwrap_or_default())
    };
    let key = |code, value: &str, expected: &str| refuse(file, code, "model.file", value, expected);
    let loaded = florin_work::load_graph(spec, read);
    let Some(graph) = loaded.map_err(|why| key("MODEL_FAILS", "…", &why.message))? else {
        return Ok(());
    };
    let holdout = from_canonical_bytes(&ready.holdout)?;
    let rows = holdout.slice(0..holdout.rows().min(ROWS_MAX))?;
    let model = florin_work::task_model(spec, Some(&graph));
    let losses = Progress::during("running the model on the holdout", || {
        row_losses(spec, &ready.base_model, &model, &rows)
    });
    let (together, alone) = losses.map_err(|why| {
        key("MODEL_FAILS", "…", &format!("it does not run on the rows of the holdout: {why}"))
    })?;
    for (row, (together, alone)) in together.iter().zip(&alone).enumerate() {
        if (together - alone).abs() > DIFFERENCE_MAX * (1.0 + together.abs()) {
            let right = format!(
                "the loss of row {row} is {together:.9} among other rows and {alone:.9} alone: a row's \
                 loss must not depend on other rows. Use running statistics, or a norm of each row"
            );
            return Err(key("MODEL_ROWS_INTERACT", "…", &right).into());
        }
    }
    Ok(())
}

/// The losses of rows together, and those of the first rows alone.
fn row_losses(
    spec: &TaskSpec,
    base_model: &[u8],
    model: &ModelSpec,
    rows: &Dataset,
) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let mut engine: Box<dyn Engine> =
        crate::compose::engine(EngineArg { engine: EngineKind::Auto, threads: 1 })?;
    let params = florin_work::decode_model(spec, base_model)?;
    let params: Vec<f64> = params.into_iter().map(f64::from).collect();
    let together = engine.row_losses(model, &params, rows)?;
    let mut alone = Vec::new();
    for row in 0..rows.rows().min(ROWS_ALONE) {
        alone.extend(engine.row_losses(model, &params, &rows.slice(row..row + 1)?)?);
    }
    Ok((together, alone))
}
