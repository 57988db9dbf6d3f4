//! `florin task model`: fetches the trained model, checks its digest, and evaluates it.

use anyhow::Context;
use florin_learning::data::load;
use florin_learning::{Dataset, Engine, mean};
use florin_protocol::TaskSpec;
use serde_json::json;

use crate::cli::TaskModel;
use crate::compose;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::{show, task_file};

/// The accuracy and the loss of a model on some rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelEvaluation {
    /// Number of rows with a correct prediction.
    pub(crate) correct: u32,
    /// Number of rows.
    pub(crate) rows: u32,
    /// Mean bounded loss in nats.
    pub(crate) loss: f64,
}

pub(super) fn run(arguments: &TaskModel) -> anyhow::Result<Exit> {
    let market = MarketConnection::connect(&arguments.market)?;
    let view = market.task(market.find(&arguments.task)?)?;
    let bytes = market.blob(view.model, florin_work::model_bytes(&view.spec))?;
    // The digest covers only the bytes: check also that they are a model of this task.
    florin_work::decode_model(&view.spec, &bytes)?;
    let out = &arguments.out;
    std::fs::write(out, &bytes).with_context(|| out.display().to_string())?;
    let measured = match &arguments.evaluate {
        None => None,
        Some(source) => {
            let mut engine = compose::engine(arguments.engine)?;
            Some(evaluate(&view.spec, &bytes, &load(source)?, &mut *engine)?)
        }
    };
    if arguments.json.json {
        show::json(&json!({
            "file": out,
            "digest": view.model,
            "bytes": bytes.len(),
            "rounds": view.reported,
            "rows": measured.map(|m| m.rows),
            "correct": measured.map(|m| m.correct),
            "loss": measured.map(|m| m.loss),
        }))?;
        return Ok(Exit::Done);
    }
    let mut facts = vec![
        ("model", out.display().to_string()),
        ("digest", view.model.to_string()),
        ("trained", format!("{} rounds", view.reported)),
    ];
    if let Some(measured) = measured {
        facts.push((
            "accuracy",
            format!(
                "{} ({} of {} rows)",
                show::accuracy(measured.correct, measured.rows),
                measured.correct,
                measured.rows
            ),
        ));
        facts.push(("loss", format!("{:.6} nats", measured.loss)));
    }
    show::facts(&facts);
    Ok(Exit::Done)
}

/// Evaluates a task's model on some rows.
pub(crate) fn evaluate(
    spec: &TaskSpec,
    bytes: &[u8],
    data: &Dataset,
    engine: &mut dyn Engine,
) -> anyhow::Result<ModelEvaluation> {
    if let Some(misfit) = task_file::schema_mismatch(data, spec) {
        let message = format!("the data does not match the task: {misfit}");
        return Err(Failure::input("INVALID_DATA", message).into());
    }
    let model = florin_work::model_spec(&spec.model);
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
