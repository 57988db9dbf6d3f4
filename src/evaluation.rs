//! The accuracy and the loss of a task's model on a data set.

use florin_learning::graph::GraphModel;
use florin_learning::{Dataset, Engine, mean};
use florin_protocol::TaskSpec;

use crate::failure::Failure;
use crate::task_file;

/// The accuracy and the loss of a model on some rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelEvaluation {
    /// Number of rows with a correct prediction.
    pub(crate) correct: u32,
    /// Number of rows.
    pub(crate) rows: u32,
    /// Mean cross-entropy in nats.
    pub(crate) loss: f64,
}

/// Evaluates a task's model on some rows.
pub(crate) fn evaluate(
    spec: &TaskSpec,
    graph: Option<&GraphModel>,
    bytes: &[u8],
    data: &Dataset,
    engine: &mut dyn Engine,
) -> anyhow::Result<ModelEvaluation> {
    if let Some(misfit) = task_file::schema_mismatch(data, spec) {
        let message = format!("the data does not match the task: {misfit}");
        return Err(Failure::input("INVALID_DATA", message).into());
    }
    let model = florin_work::task_model(spec, graph);
    let params: Vec<f64> =
        florin_work::decode_model(spec, bytes)?.into_iter().map(f64::from).collect();
    let correct = engine.correct_predictions(&model, &params, data)?;
    let loss = mean(&engine.row_losses(&model, &params, data)?);
    Ok(ModelEvaluation {
        correct: u32::try_from(correct)?,
        rows: u32::try_from(data.rows())?,
        loss,
    })
}
