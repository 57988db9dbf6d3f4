//! `florin task new|check`: writes and checks a task file, before it is published.

use std::io::Write;

use anyhow::Context;
use florin_protocol::{Address, Amount, ChainId, Digest, MarketId, TaskSpec};
use serde_json::json;

use super::quote::TaskQuote;
use crate::cli::{TaskCheck, TaskNew};
use crate::commands::now;
use crate::compose;
use crate::failure::{Exit, Failure};
use crate::show;
use crate::task_file::{self, Parties, PreparedTask, SALT, TEMPLATE, format_ms};

pub(super) fn new(arguments: &TaskNew) -> anyhow::Result<Exit> {
    let shown = arguments.file.display();
    let text = TEMPLATE.replace(SALT, &compose::random_number()?.to_string());
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(&arguments.file);
    let mut file = match file {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let message =
                format!("{shown} already exists and is not overwritten: choose another name");
            return Err(Failure::input("FILE_EXISTS", message).into());
        }
        other => other.with_context(|| shown.to_string())?,
    };
    file.write_all(text.as_bytes()).with_context(|| shown.to_string())?;
    anstream::println!("Wrote {shown}; it explains every key.");
    show::hint(&format!("Edit it, then run: florin task check {shown}"));
    Ok(Exit::Done)
}

pub(super) fn check(arguments: &TaskCheck) -> anyhow::Result<Exit> {
    // No check depends on the market, the buyer or the coordinator.
    let parties = Parties {
        market: MarketId { chain: ChainId(0), genesis: Digest::default() },
        buyer: Address([1; 20]),
        coordinator: Address([2; 20]),
        now: now(),
    };
    let ready = task_file::read(&arguments.file, &parties)?;
    let quote = match arguments.no_quote {
        true => TaskQuote::without_simulation(&ready.spec)?,
        false => TaskQuote::simulate(&arguments.file, &ready)?,
    };
    if arguments.json.json {
        let mut value = spec_json(&ready.spec)?;
        for key in ["market", "buyer", "coordinator"] {
            value.as_object_mut().and_then(|map| map.remove(key));
        }
        value["quote"] = quote.to_json();
        show::json(&value)?;
        return Ok(Exit::Done);
    }
    describe(&ready.spec)?;
    quote.print(&ready.spec);
    print_shared_hint(&ready);
    show::hint(
        "\nNothing was published. Publish with `florin task publish`; a published task cannot be \
         changed.",
    );
    Ok(Exit::Done)
}

/// Prints a task for people.
pub(super) fn describe(spec: &TaskSpec) -> anyhow::Result<()> {
    let budget = &spec.budget;
    let locked = budget.data.plus(budget.infrastructure)?;
    let parameters = spec.model.parameters().unwrap_or_default();
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
        ("rows", format!("{} features, {} labels", spec.data.width, spec.data.classes)),
        (
            "holdout",
            format!(
                "{} rows, {} per round, root {}…",
                spec.holdout.rows,
                spec.holdout.rows_per_round,
                spec.holdout.root.short()
            ),
        ),
        (
            "rounds",
            format!(
                "{}, each with {} to {} updates, {} for training",
                spec.rounds.count,
                spec.rounds.cohort_min,
                spec.rounds.selection_size(),
                format_ms(spec.rounds.train_ms)
            ),
        ),
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
        ("price", format!("at most {} FLN per nat", show::fln(budget.per_nat_max))),
        (
            "bond",
            format!(
                "at least {} FLN, {} FLN per row; at most {} FLN are deducted per round",
                show::fln(budget.bond_min),
                show::fln(budget.bond_per_row),
                show::fln(budget.debit_max)
            ),
        ),
    ]);
    Ok(())
}

/// Prints the default for `holdout.rows_per_round`, if the file omits it.
pub(super) fn print_shared_hint(ready: &PreparedTask) {
    if ready.is_per_round_derived {
        let each = ready.spec.holdout.rows_per_round;
        show::hint(&format!(
            "\nThe file does not set holdout.rows_per_round: the rounds share its rows equally, \
             {each} each."
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
