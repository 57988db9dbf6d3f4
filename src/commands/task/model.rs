//! `florin task model`: fetches the trained model, checks its digest, and evaluates it.

use anyhow::Context;
use serde_json::json;

use crate::cli::TaskModel;
use crate::compose;
use crate::evaluation::evaluate;
use crate::failure::Exit;
use crate::market::MarketConnection;
use crate::show;
use crate::task_file::load_for_task;

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
            Some(evaluate(&view.spec, &bytes, &load_for_task(&view.spec, source)?, &mut *engine)?)
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
