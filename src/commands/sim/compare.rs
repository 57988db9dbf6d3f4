//! `florin sim compare`: two results beside each other.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::run::figure;
use crate::cli::SimCompare;
use crate::failure::{Exit, Failure};
use crate::show::{self, Cell, DIM, NOTE, Table};

/// A figure's mean and interval.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figure {
    mean: f64,
    low: f64,
    high: f64,
    count: u64,
}

/// A figure in both results.
#[derive(Clone, Debug, Serialize)]
struct Both {
    group: Option<String>,
    measure: String,
    a: Option<Figure>,
    b: Option<Figure>,
    /// Whether the intervals do not even touch.
    apart: bool,
}

type Name = (Option<String>, String);

pub(super) fn run(command: &SimCompare) -> anyhow::Result<Exit> {
    let (a, b) = (read(&command.a)?, read(&command.b)?);
    let names: std::collections::BTreeSet<&Name> = a.keys().chain(b.keys()).collect();
    let both = names.into_iter().map(|name| {
        let (a, b) = (a.get(name).copied(), b.get(name).copied());
        // An interval of one seed is none.
        let apart = a
            .zip(b)
            .is_some_and(|(a, b)| a.count.min(b.count) > 1 && (a.high < b.low || b.high < a.low));
        Both { group: name.0.clone(), measure: name.1.clone(), a, b, apart }
    });
    let both: Vec<Both> = both.collect();
    if command.json.json {
        show::json(&both)?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["group", "measure", ">a", "95 %", ">b", "95 %", ""]);
    for row in &both {
        let (group, measure) =
            (row.group.clone().unwrap_or_default(), row.measure.replace('_', " "));
        let mark = if row.apart { Cell::styled("apart", NOTE) } else { Cell::from("") };
        table.row([
            group.into(),
            measure.into(),
            mean(row.a),
            range(row.a),
            mean(row.b),
            range(row.b),
            mark,
        ]);
    }
    table.print();
    Ok(Exit::Done)
}

fn mean(figure_of: Option<Figure>) -> Cell {
    figure_of.map_or_else(|| "–".to_owned(), |f| figure(f.mean)).into()
}

fn range(figure_of: Option<Figure>) -> Cell {
    let text =
        figure_of.map_or_else(String::new, |f| format!("{} to {}", figure(f.low), figure(f.high)));
    Cell::styled(text, DIM)
}

fn read(folder: &Path) -> anyhow::Result<BTreeMap<Name, Figure>> {
    let path = folder.join("results.json");
    let wrong = |why: String| {
        let right = "name a folder that `florin sim run --out` wrote";
        Failure::input("RESULTS_UNREADABLE", format!("{}: {why}; {right}", path.display()))
    };
    let text = std::fs::read_to_string(&path).map_err(|error| wrong(error.to_string()))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let measures =
        value["measures"].as_array().ok_or_else(|| wrong("it has no measures".to_owned()))?;
    let read = measures.iter().filter_map(|m| {
        let number = |key: &str| m.get(key).and_then(Value::as_f64);
        let group = m["group"].as_str().map(str::to_owned);
        let count = m.get("count").and_then(Value::as_u64)?;
        let (mean, low, high) = (number("mean")?, number("low")?, number("high")?);
        let figure = Figure { mean, low, high, count };
        Some(((group, m["measure"].as_str()?.to_owned()), figure))
    });
    Ok(read.collect())
}
