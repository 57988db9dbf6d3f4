//! `florin task code`: fetches the code of a task whose model is a trainer, for a person to read.

use anyhow::Context;
use florin_learning::trainer::TrainerCode;
use serde_json::json;

use crate::cli::TaskCode;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::show;

pub(super) fn run(arguments: &TaskCode) -> anyhow::Result<Exit> {
    let market = MarketConnection::connect(&arguments.market)?;
    let view = market.task(market.find(&arguments.task)?)?;
    let Some(trainer) = view.spec.model.trainer() else {
        let message = "the model of this task is no program: it has no code";
        return Err(Failure::input("NOT_A_TRAINER", message).into());
    };
    let bytes = market.blob(trainer.graph.digest, trainer.graph.bytes)?;
    let invalid = |why: String| Failure::negative("INVALID_TRAINER", format!("the code {why}"));
    let code = TrainerCode::from_bytes(&bytes).map_err(invalid)?;
    let out = &arguments.out;
    if out.exists() {
        let message = format!("{} already exists: name a new folder", out.display());
        return Err(Failure::input("FILE_EXISTS", message).into());
    }
    std::fs::create_dir(out).with_context(|| out.display().to_string())?;
    code.write_to(out).with_context(|| out.display().to_string())?;
    let digest = trainer.graph.digest;
    if arguments.json.json {
        let files: Vec<&str> = code.names().collect();
        let consent = view.spec.consent_digest();
        show::json(&json!({ "code": digest, "consent": consent, "folder": out, "files": files }))?;
        return Ok(Exit::Done);
    }
    show::facts(&[
        ("code", digest.to_string()),
        ("files", code.names().count().to_string()),
        ("written to", out.display().to_string()),
    ]);
    show::hint(&format!(
        "\nNothing was run. Participate with --accept-model {}; provide, audit and arbitrate with \
         --accept-trainer {digest}.",
        view.spec.consent_digest()
    ));
    Ok(Exit::Done)
}
