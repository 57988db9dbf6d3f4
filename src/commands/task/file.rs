//! `florin task new|check`: writes and checks a task file, before it is published.

use std::path::Path;

use florin_participant::RoundTerms;
use florin_protocol::{
    Address, Amount, ChainId, DataSchema, Digest, FeatureEncoding, Holdout, MarketId,
    ModelArchitecture, TaskSpec, format_ms,
};
use serde_json::json;

use super::graph_check::check_graph;
use super::quote::TaskQuote;
use crate::cli::{TaskCheck, TaskNew};
use crate::commands::now;
use crate::commands::out_file::create_text;
use crate::compose;
use crate::failure::Exit;
use crate::loss_text;
use crate::show;
use crate::task_file::{
    self, NewGraph, NewTokens, NewTrainer, Parties, PreparedTask, task_for_data, task_for_graph,
    task_for_trainer, template,
};

pub(super) fn new(arguments: &TaskNew) -> anyhow::Result<Exit> {
    let path = arguments.out.as_ref().unwrap_or(&arguments.file);
    let shown = path.display();
    let salt = compose::random_number()?;
    let (text, notes) = match &arguments.data {
        None => (template(salt), Vec::new()),
        Some(source) => {
            let folder = path.parent().unwrap_or(Path::new(""));
            let parties = unknown_parties();
            let task = match (&arguments.model, new_trainer(arguments)) {
                (None, Some(trainer)) => {
                    task_for_trainer(&trainer, source, folder, salt, &parties)?
                }
                (None, None) => {
                    let image = arguments.image.map(|image| image.0);
                    task_for_data(source, image, folder, salt, &parties)?
                }
                (Some(file), _) => {
                    let TaskNew { loss, loss_bound, trainable, buffers, .. } = arguments;
                    let (loss, loss_bound, buffers) = (*loss, *loss_bound, *buffers);
                    let image = arguments.image.map(|image| image.0);
                    let tokens = arguments.tokenizer.as_ref().map(|tokenizer| NewTokens {
                        tokenizer,
                        length: arguments.length,
                        end_of_text: arguments.end_of_text.as_deref(),
                    });
                    let graph =
                        NewGraph { file, loss, loss_bound, trainable, buffers, image, tokens };
                    task_for_graph(&graph, source, folder, salt, &parties)?
                }
            };
            (task.text, task.notes)
        }
    };
    create_text(path, &text)?;
    if arguments.json.json {
        show::json(&json!({ "file": path, "notes": notes }))?;
        return Ok(Exit::Done);
    }
    show::sentence(&format!("Wrote {shown}; it explains every key."));
    notes.iter().for_each(|note| show::sentence(note));
    let first = if arguments.data.is_some() { "Run" } else { "Edit it, then run" };
    show::hint(&format!("{first}: florin task check {shown}"));
    Ok(Exit::Done)
}

/// The trainer of a new task.
fn new_trainer(arguments: &TaskNew) -> Option<NewTrainer<'_>> {
    let (code, initial) = arguments.trainer.as_deref().zip(arguments.initial.as_deref())?;
    let (loss, loss_bound) = (arguments.loss, arguments.loss_bound);
    Some(NewTrainer { code, initial, has_gradient: arguments.gradient, loss, loss_bound })
}

/// The task of a file, without its parties.
pub(in crate::commands) fn prepared_task(file: &Path) -> anyhow::Result<PreparedTask> {
    task_file::read(file, &unknown_parties())
}

pub(super) fn check(arguments: &TaskCheck) -> anyhow::Result<Exit> {
    let ready = task_file::read(&arguments.file, &unknown_parties())?;
    let graph = check_graph(&arguments.file, &ready, &arguments.sandbox, Vec::new())?;
    let quote = match arguments.no_quote {
        true => TaskQuote::without_simulation(&ready.spec)?,
        false => TaskQuote::simulate(&arguments.file, &ready, graph.as_ref())?,
    };
    if arguments.json.json {
        let mut value = spec_json(&ready.spec)?;
        let unknown = unknown_parties();
        let arbiter = (ready.spec.arbiter == unknown.coordinator).then_some("arbiter");
        // The initial model follows from the parties.
        for key in ["market", "buyer", "coordinator", "base_model"].into_iter().chain(arbiter) {
            value.as_object_mut().and_then(|map| map.remove(key));
        }
        value["quote"] = quote.to_json();
        show::json(&value)?;
        return Ok(Exit::Done);
    }
    describe(&ready.spec)?;
    quote.print(&ready.spec);
    print_hints(&ready);
    show::hint(
        "\nNothing was published. Publish with `florin task publish`; a published task cannot be \
         changed.",
    );
    Ok(Exit::Done)
}

/// Parties of a task that is only checked: no check depends on them.
fn unknown_parties() -> Parties {
    Parties {
        market: MarketId { chain: ChainId(0), genesis: Digest::default() },
        buyer: Address([1; 20]),
        coordinator: Address([2; 20]),
        now: now(),
    }
}

/// Prints a task for people.
pub(super) fn describe(spec: &TaskSpec) -> anyhow::Result<()> {
    let budget = &spec.budget;
    let locked = budget.data.plus(budget.infrastructure)?;
    let parameters = spec.model.parameters().unwrap_or_default();
    let terms = RoundTerms::from(&spec.rounds);
    show::facts(&[
        ("task", spec.name.clone()),
        (
            "model",
            format!(
                "{}, {} parameters",
                florin_work::model_spec(&spec.model),
                show::thousands(&parameters.to_string())
            ),
        ),
        ("rows", rows(spec)),
        ("holdout", holdout(spec)),
        (
            "rounds",
            format!(
                "{}, each with {} to {} updates, {} for training",
                spec.rounds.count,
                spec.rounds.cohort_min,
                spec.rounds.cohort_target,
                format_ms(spec.rounds.train_ms)
            ),
        ),
        ("end of a round", terms.end()),
        ("late updates", terms.lateness()),
        ("selection", terms.selected()),
        ("commits due", terms.deadline()),
        (
            "updates",
            format!(
                "{}, {} bytes each",
                florin_work::update_format(spec.rounds.format),
                show::thousands(&florin_work::update_bytes(spec).to_string())
            ),
        ),
        ("expires", show::date(spec.expires)),
        (
            "budget",
            format!(
                "{} FLN: {} for data, {} for infrastructure",
                show::fln(locked),
                show::fln(budget.data),
                show::fln(budget.infrastructure)
            ),
        ),
        ("members", super::members::admission(&spec.admission)),
        ("price", price(spec)),
        (
            "bond",
            format!(
                "at least {} FLN, {} FLN per row; at most {} FLN are debited per round",
                show::fln(budget.bond_min),
                show::fln(budget.bond_per_row),
                show::fln(budget.debit_max)
            ),
        ),
    ]);
    Ok(())
}

/// The validation rows.
fn holdout(spec: &TaskSpec) -> String {
    let Holdout { rows, rows_per_round, root, .. } = &spec.holdout;
    format!("{rows} rows, {rows_per_round} per round, root {}…", root.short())
}

/// The highest price of an improvement.
fn price(spec: &TaskSpec) -> String {
    let (most, unit) = (show::fln(spec.budget.per_nat_max), loss_text::loss_unit(spec));
    format!("at most {most} FLN per {unit}")
}

/// The schema of the rows, and their encoding in a few words.
fn rows(spec: &TaskSpec) -> String {
    let DataSchema { width, classes, encoding } = &spec.data;
    let encoding = match encoding.as_ref().map(|encoding| &encoding.features) {
        None => "used as they are".to_owned(),
        Some(FeatureEncoding::Uniform(_)) => "encoded with one scale".to_owned(),
        Some(FeatureEncoding::Columns(columns)) => {
            format!("encoded from {} columns", columns.len())
        }
        Some(FeatureEncoding::Images(images)) => {
            let (channels, height, width) = (images.channels.len(), images.height, images.width);
            format!("encoded from images, {channels} × {height} × {width}")
        }
        Some(FeatureEncoding::Tokens(_)) => "tokens of a text".to_owned(),
    };
    let ModelArchitecture::Graph(graph) = &spec.model else {
        return format!("{width} features, {encoding}; {classes} labels");
    };
    match (graph.targets, graph.loss.has_label()) {
        (0, true) => format!("{width} features, {encoding}; {classes} labels"),
        (0, false) => format!("{width} numbers, {encoding}"),
        (targets, _) => {
            let inputs = graph.inputs;
            let plural = if targets == 1 { "target" } else { "targets" };
            format!("{inputs} features and {targets} {plural}, {encoding}")
        }
    }
}

/// Prints the default for `holdout.rows_per_round`, if the file omits it, and the consent that
/// parameters of the buyer's need.
pub(super) fn print_hints(ready: &PreparedTask) {
    if ready.is_per_round_derived {
        let each = ready.spec.holdout.rows_per_round;
        show::hint(&format!(
            "\nThe file does not set holdout.rows_per_round: the rounds share its rows equally, \
             {each} each."
        ));
    }
    if let Some(trainer) = ready.spec.model.trainer() {
        show::hint(&format!(
            "\nThe model is a program. A participant takes part only with `florin participate \
             --accept-model {}`. The operator of the market must list its code, {}, in the setting \
             trainers, and providers and auditors run it only with --accept-trainer.",
            ready.spec.consent_digest(),
            trainer.graph.digest
        ));
    } else if ready.is_model_brought {
        show::hint(&format!(
            "\nThe file brings initial parameters. A participant takes part only with \
             `florin participate --accept-model {}`: chosen parameters can read training rows out \
             of updates.",
            ready.spec.consent_digest()
        ));
    }
}

/// A task as JSON: as it is signed, but with amounts in base units.
pub(super) fn spec_json(spec: &TaskSpec) -> anyhow::Result<serde_json::Value> {
    let mut value = serde_json::to_value(spec)?;
    let budget = &spec.budget;
    let amounts: [(&str, Amount); 8] = [
        ("data", budget.data),
        ("infrastructure", budget.infrastructure),
        ("per_nat_max", budget.per_nat_max),
        ("bond_min", budget.bond_min),
        ("bond_per_row", budget.bond_per_row),
        ("debit_max", budget.debit_max),
        ("stake_min", budget.stake_min),
        ("per_unit", budget.per_unit),
    ];
    for (key, amount) in amounts {
        value["budget"][key] = json!(show::units(amount));
    }
    Ok(value)
}
