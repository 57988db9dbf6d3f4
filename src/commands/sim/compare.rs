//! `florin sim compare`: compares results folders.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use florin_sim::measure::ConfidenceInterval;
use florin_sim::results::{
    LoadedResults, MeasureName, WriteError, comparison_page, comparison_svg, format_bounds,
    format_number,
};
use serde::Serialize;

use super::{PROGRAM, check_writable, not_written, refuse_run_folder};
use crate::cli::SimCompare;
use crate::failure::{Exit, Failure};
use crate::show::{self, Cell, DIM, NOTE, TextTable};

/// File name of the page.
pub(super) const PAGE: &str = "report.html";
/// File name of the plot.
const PICTURE: &str = "profit.svg";

/// A measure in both results.
#[derive(Clone, Debug, Serialize)]
struct ComparedMeasure {
    group: Option<String>,
    measure: String,
    a: Option<ConfidenceInterval>,
    b: Option<ConfidenceInterval>,
    /// Whether the confidence intervals are disjoint.
    differ: bool,
}

pub(super) fn run(command: &SimCompare) -> anyhow::Result<Exit> {
    let mut sides = vec![side(&command.a)?, side(&command.b)?];
    for folder in &command.more {
        sides.push(side(folder)?);
    }
    if let Some(folder) = &command.out {
        refuse_run_folder(folder)?;
        check_writable(Some(folder))?;
        page("Comparison of results", &sides, folder)?;
    }
    let empty = BTreeMap::new();
    let of = |at: usize| sides.get(at).map_or(&empty, |side| &side.measures);
    let both = both(of(0), of(1));
    if command.json.json {
        show::json(&both)?;
        return Ok(Exit::Done);
    }
    let mut table = TextTable::new(&["group", "measure", ">a", "95 %", ">b", "95 %", ""]);
    for row in &both {
        let (group, measure) =
            (row.group.clone().unwrap_or_default(), row.measure.replace('_', " "));
        let mark = if row.differ { Cell::styled("differ", NOTE) } else { Cell::from("") };
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
    if let Some(folder) = &command.out {
        anstream::println!("\n{DIM}written to{DIM:#} {}", folder.join(PAGE).display());
    }
    Ok(Exit::Done)
}

fn both(
    a: &BTreeMap<MeasureName, ConfidenceInterval>,
    b: &BTreeMap<MeasureName, ConfidenceInterval>,
) -> Vec<ComparedMeasure> {
    let names: BTreeSet<&MeasureName> = a.keys().chain(b.keys()).collect();
    let both = names.into_iter().map(|name| {
        let (a, b) = (a.get(name).copied(), b.get(name).copied());
        let apart = a.zip(b).is_some_and(|(a, b)| a.is_disjoint_from(&b));
        ComparedMeasure { group: name.0.clone(), measure: name.1.clone(), a, b, differ: apart }
    });
    both.collect()
}

/// Writes a page that compares results, and the plot of the profits.
pub(super) fn page(title: &str, sides: &[LoadedResults], folder: &Path) -> anyhow::Result<()> {
    let files = [(PAGE, comparison_page(title, sides, &PROGRAM)), (PICTURE, comparison_svg(sides))];
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::write(&path, text)
            .map_err(|error| not_written(&WriteError { path, why: error.to_string() }))?;
    }
    Ok(())
}

fn mean(figure_of: Option<ConfidenceInterval>) -> Cell {
    figure_of.map_or_else(|| "–".to_owned(), |f| format_number(f.mean)).into()
}

fn range(figure_of: Option<ConfidenceInterval>) -> Cell {
    Cell::styled(figure_of.map_or_else(String::new, |of| format_bounds(&of)), DIM)
}

fn side(folder: &Path) -> anyhow::Result<LoadedResults> {
    let label = folder
        .file_name()
        .map_or_else(|| folder.display().to_string(), |name| name.to_string_lossy().into_owned());
    let read = LoadedResults::read(folder, &label);
    Ok(read.map_err(|error| Failure::input("RESULTS_UNREADABLE", error.to_string()))?)
}
