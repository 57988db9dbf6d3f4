//! `florin task model`: fetches the trained model, checks its digest, and evaluates it.

use std::fs::File;
use std::path::Path;

use anyhow::Context;
use florin_learning::graph::{
    CutGraph, GraphError, RewriteError, read_archive_from, write_archive,
};
use florin_protocol::{GraphModel, ModelArchitecture, blob_digest};
use serde_json::json;

use crate::cli::TaskModel;
use crate::commands::out_file::{refuse_existing_but, write_bytes, write_whole_file};
use crate::compose;
use crate::evaluation::{ModelEvaluation, evaluate};
use crate::failure::{Exit, Failure};
use crate::loss_text;
use crate::market::MarketConnection;
use crate::show;
use crate::task_file::load_for_task;

pub(super) fn run(arguments: &TaskModel) -> anyhow::Result<Exit> {
    refuse_existing_but(arguments.from.as_deref(), &arguments.out)?;
    let market = MarketConnection::connect(&arguments.market)?.with_weights(&arguments.weights);
    let view = market.task(market.find(&arguments.task)?)?;
    let bytes = market.blob(view.model, florin_work::model_bytes(&view.spec))?;
    // The digest covers only the bytes: check also that they are a model of this task.
    let parameters = florin_work::decode_model(&view.spec, &bytes)?;
    let out = &arguments.out;
    match out.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("pt2")) {
        true => {
            let ModelArchitecture::Graph(declared) = &view.spec.model else {
                let message = "only a model of torch.export is written as a .pt2 file; choose a name \
                               that ends in .safetensors";
                return Err(Failure::input("NOT_A_GRAPH", message).into());
            };
            write_whole(declared, &parameters, arguments.from.as_deref(), out)?;
        }
        false => write_bytes(out, &bytes)?,
    }
    let measured = match &arguments.evaluate {
        None => None,
        Some(source) => {
            let host = arguments.trainers.host(Vec::new(), std::env::temp_dir());
            compose::check_trainer(&view.spec, &host)?;
            let mut engine = compose::engine_with_trainers(arguments.engine, host)?;
            let data = load_for_task(&view.spec, source, &|blob| {
                Ok(market.blob(blob.digest, blob.bytes)?)
            })?;
            let graph = market.graph(&view.spec)?;
            Some(evaluate(&view.spec, graph.as_ref(), &bytes, &data, &mut *engine)?)
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
        let ModelEvaluation { correct, rows, loss } = measured;
        if view.spec.model.has_predictions() {
            let accuracy = show::accuracy(correct, rows);
            facts.push(("accuracy", format!("{accuracy} ({correct} of {rows} rows)")));
        }
        facts.push(("bounded loss", format!("{loss:.6} {}", loss_text::loss_units(&view.spec))));
    }
    show::facts(&facts);
    Ok(Exit::Done)
}

/// Writes the file that a task or an order was made from with the trained parameters.
pub(in crate::commands) fn write_whole(
    declared: &GraphModel,
    parameters: &[f32],
    from: Option<&Path>,
    out: &Path,
) -> anyhow::Result<()> {
    let Some(from) = from else {
        let message = "a .pt2 file is written from the one that the training was made from: add \
                       --from FILE.pt2";
        return Err(Failure::input("MODEL_FILE_MISSING", message).into());
    };
    let open = || File::open(from).with_context(|| from.display().to_string());
    let invalid =
        |error: GraphError| Failure::input(error.code(), format!("{}: {error}", from.display()));
    let (graph, weights) = read_archive_from(open()?).map_err(invalid)?;
    let is_trained = |graph: &[u8]| blob_digest(graph) == declared.graph.digest;
    // Of an order with a split the rest alone was trained.
    let is_rest = || CutGraph::find(&graph, &weights, &is_trained).is_ok_and(|cut| cut.is_some());
    if !is_trained(&graph.to_bytes()) && !is_rest() {
        let message = format!("{} is not the model that was trained", from.display());
        return Err(Failure::input("WRONG_MODEL_FILE", message).into());
    }
    let model = ModelArchitecture::Graph(declared.clone());
    let tensors = florin_work::model_spec(&model).tensors();
    // Written beside it first: the two may be one file.
    write_whole_file(out, |file| {
        write_archive(open()?, &tensors, parameters, file).map_err(|error| match error {
            RewriteError::Source(error) => invalid(error).into(),
            RewriteError::Output(error) => {
                anyhow::Error::new(error).context(out.display().to_string())
            }
        })
    })
}
