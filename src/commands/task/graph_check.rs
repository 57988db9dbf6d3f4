//! Runs a task's graph on rows of the holdout before it is published: a graph that fails on them, or
//! whose rows interact, could not be valued.

use std::ops::ControlFlow;
use std::path::Path;

use florin_learning::data::from_canonical_bytes;
use florin_learning::graph::GraphModel;
use florin_learning::{Dataset, Engine, EngineKind, ModelSpec, Training, TrainingStep};
use florin_protocol::{RoundNumber, TaskSpec};

use crate::cli::EngineArg;
use crate::progress::Progress;
use crate::task_file::{PreparedTask, refuse};

/// Rows of the holdout on which a training runs once.
const ROWS_TRAINED: usize = 4_096;
/// Rows that run alone, too, spread over the holdout.
const ROWS_ALONE: usize = 16;
/// Largest relative difference of a row's loss alone and among others, in `f64`.
const DIFFERENCE_MAX: f64 = 1e-6;

/// Checks the graph of a task, and returns it; `None` for another model.
///
/// # Errors
/// [`Failure`] with code `MODEL_FAILS`, `MODEL_ROWS_INTERACT` or `MODEL_NOT_TRAINED`.
pub(super) fn check_graph(file: &Path, ready: &PreparedTask) -> anyhow::Result<Option<GraphModel>> {
    let spec = &ready.spec;
    let key = |code, value: &str, expected: &str| refuse(file, code, "model.file", value, expected);
    let loaded = ready.load_graph(spec);
    let Some(graph) = loaded.map_err(|why| key("MODEL_FAILS", "…", &why.message))? else {
        return Ok(None);
    };
    let holdout = from_canonical_bytes(&ready.holdout)?;
    let model = florin_work::task_model(spec, Some(&graph));
    let params = florin_work::decode_model(spec, &ready.base_model)?;
    let tried = Progress::during("running the model on the holdout", || {
        GraphTrial::run(spec, &params, &model, &holdout)
    });
    let GraphTrial { together, alone, is_trained } = tried.map_err(|why| {
        key("MODEL_FAILS", "…", &format!("it does not run on the rows of the holdout: {why}"))
    })?;
    for (row, alone) in alone {
        let together = together[row];
        if (together - alone).abs() > DIFFERENCE_MAX * (1.0 + together.abs()) {
            let right = format!(
                "the loss of row {row} is {together:.9} among other rows and {alone:.9} alone: a row's \
                 loss must not depend on other rows. Use running statistics, or a norm of each row"
            );
            return Err(key("MODEL_ROWS_INTERACT", "…", &right).into());
        }
    }
    if !is_trained {
        let right = "a training changes none of its tensors: the loss does not depend on them";
        return Err(key("MODEL_NOT_TRAINED", "…", right).into());
    }
    Ok(Some(graph))
}

/// A graph on the rows of its holdout.
struct GraphTrial {
    /// The loss of each row.
    together: Vec<f64>,
    /// The losses of some rows alone, with their index.
    alone: Vec<(usize, f64)>,
    /// Whether a training changes parameters.
    is_trained: bool,
}

impl GraphTrial {
    /// A training of one epoch, and an evaluation of all rows. An operator that refuses a value fails
    /// the training: an evaluation would give such a row the largest loss.
    fn run(
        spec: &TaskSpec,
        params: &[f32],
        model: &ModelSpec,
        holdout: &Dataset,
    ) -> anyhow::Result<Self> {
        let arguments = EngineArg { engine: EngineKind::Auto, threads: 1 };
        let mut engine: Box<dyn Engine> = crate::compose::engine(arguments)?;
        let rows = holdout.slice(0..holdout.rows().min(ROWS_TRAINED))?;
        let how = Training { epochs: 1, ..florin_work::training(spec, RoundNumber::FIRST) };
        let go_on = &mut |_: TrainingStep| ControlFlow::Continue(());
        let trained = engine.train(model, params, &rows, &how, 1, go_on)?.params;
        let wide: Vec<f64> = params.iter().map(|value| f64::from(*value)).collect();
        let together = engine.row_losses(model, &wide, holdout)?;
        let step = (holdout.rows() / ROWS_ALONE).max(1);
        let mut alone = Vec::new();
        for row in (0..holdout.rows()).step_by(step) {
            let loss = engine.row_losses(model, &wide, &holdout.slice(row..row + 1)?)?;
            alone.extend(loss.into_iter().map(|loss| (row, loss)));
        }
        Ok(Self { together, alone, is_trained: trained != params })
    }
}
