//! `florin sim sweep`: every combination of some values, each in a folder of its own, which is kept when a sweep is
//! stopped and asked for again.

use std::fs;
use std::path::Path;

use florin_sim::Scenario;
use florin_sim::draw::{below, stream};
use florin_sim::scenario::Change;
use serde_json::{Value, json};

use super::run::figure;
use super::{VERSION, played, refused, text_of, threads, with_seeds};
use crate::cli::SimSweep;
use crate::failure::{Exit, Failure};
use crate::show::{self, DIM, Table};

/// Combinations of one sweep.
const POINTS_MAX: usize = 10_000;
/// Values of one key.
const VALUES_MAX: usize = 1_000;

/// One combination.
type Point = Vec<Change>;

pub(super) fn run(command: &SimSweep) -> anyhow::Result<Exit> {
    let mut points = grid(&command.vary)?;
    if let Some(draw) = command.draw {
        points = drawn(&points, draw as usize, command.play.seed.unwrap_or(1));
    }
    let text = text_of(&command.what.scenario)?;
    let scenarios = points.iter().map(|point| {
        let changes: Vec<Change> = command.what.changes.iter().chain(point).cloned().collect();
        let scenario = Scenario::read(&text, &changes).map_err(|error| refused(&error))?;
        with_seeds(scenario, &command.play)
    });
    // All of them are checked before the first is played.
    let scenarios = scenarios.collect::<anyhow::Result<Vec<Scenario>>>()?;
    let mut rows = Vec::new();
    for (at, (point, scenario)) in points.iter().zip(&scenarios).enumerate() {
        let folder = command.out.join(name_of(point));
        let found = kept(&folder, scenario);
        let results = match found {
            Some(results) => results,
            None => {
                let what = format!("{} of {}", at + 1, points.len());
                let results = played(scenario, threads(command.play.threads), &what)?;
                let failed = |error: florin_sim::results::WriteError| {
                    Failure::fault("RESULTS_NOT_WRITTEN", error.to_string())
                };
                results.write(&folder, VERSION).map_err(failed)?;
                results.to_json(VERSION)
            }
        };
        rows.push(json!({ "changes": words(point), "results": results }));
    }
    if command.json.json {
        show::json(&rows)?;
    } else {
        print(&rows);
        anstream::println!("\n{DIM}written to{DIM:#} {}", command.out.display());
    }
    Ok(Exit::Done)
}

/// Every combination, the last key turning fastest.
fn grid(vary: &[String]) -> anyhow::Result<Vec<Point>> {
    let mut points: Vec<Point> = vec![Vec::new()];
    for axis in vary {
        let wrong = |why: &str| Failure::input("SWEEP_AXIS", format!("--vary {axis}: {why}"));
        let (key, values) = axis.split_once('=').ok_or_else(|| wrong("write KEY=V1,V2"))?;
        let values: Vec<&str> = values.split(',').map(str::trim).collect();
        if values.len() > VALUES_MAX || values.iter().any(|value| value.is_empty()) {
            return Err(wrong("write 1 to 1000 values, separated by commas").into());
        }
        let mut more = Vec::new();
        for point in &points {
            for value in &values {
                let change: Change =
                    format!("{key}={value}").parse().map_err(|error| refused(&error))?;
                more.push(point.iter().cloned().chain([change]).collect());
            }
        }
        if more.len() > POINTS_MAX {
            let why = format!(
                "{} combinations: at most {POINTS_MAX}; --draw does not help here",
                more.len()
            );
            return Err(wrong(&why).into());
        }
        points = more;
    }
    Ok(points)
}

/// Some of the points, in their order.
fn drawn(points: &[Point], count: usize, seed: u64) -> Vec<Point> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    let rng = &mut stream(seed, "sweep", [0, 0]);
    for last in (1..order.len()).rev() {
        order.swap(last, usize::try_from(below(rng, last as u64 + 1)).unwrap_or(last));
    }
    order.truncate(count.max(1));
    order.sort_unstable();
    order.into_iter().filter_map(|at| points.get(at).cloned()).collect()
}

fn words(point: &Point) -> Vec<String> {
    point.iter().map(|change| format!("{}={}", change.key(), change.value())).collect()
}

/// A folder's name for a point: readable, and no way out of the folder above.
fn name_of(point: &Point) -> String {
    let text = words(point).join("_");
    let safe = |c: char| if c.is_ascii_alphanumeric() || "=._-".contains(c) { c } else { '-' };
    let name: String = text.chars().map(safe).take(200).collect();
    name.trim_start_matches('.').to_owned()
}

/// What an earlier sweep kept of exactly this scenario, by this version.
fn kept(folder: &Path, scenario: &Scenario) -> Option<Value> {
    let results = fs::read_to_string(folder.join("results.json")).ok()?;
    let results: Value = serde_json::from_str(&results).ok()?;
    let same = results.get("scenario")? == &serde_json::to_value(scenario).ok()?;
    (same && results.get("version")?.as_str()? == VERSION).then_some(results)
}

fn print(rows: &[Value]) {
    let mut table = Table::new(&["changes", "group", ">profit", ">low", ">high", ">gain"]);
    for row in rows {
        let changes: Vec<&str> =
            row["changes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut first = changes.join(" ");
        let measures: Vec<&Value> =
            row["results"]["measures"].as_array().into_iter().flatten().collect();
        let of = |measure: &str, group: &Value| {
            measures.iter().find(|m| m["measure"] == measure && m["group"] == *group).copied()
        };
        for profit in measures.iter().filter(|m| m["measure"] == "profit") {
            let number = |value: &Value| value.as_f64().map_or_else(String::new, figure);
            let gain =
                of("gain", &profit["group"]).map_or_else(String::new, |m| number(&m["mean"]));
            table.row([
                std::mem::take(&mut first).into(),
                profit["group"].as_str().unwrap_or_default().into(),
                number(&profit["mean"]).into(),
                number(&profit["low"]).into(),
                number(&profit["high"]).into(),
                gain.into(),
            ]);
        }
    }
    table.print();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_has_every_combination_once_and_a_draw_keeps_its_order() {
        let points = grid(&["a=1,2,3".to_owned(), "b.c=x,y".to_owned()]).unwrap();
        let names: Vec<String> = points.iter().map(name_of).collect();
        assert_eq!(names.len(), 6);
        assert_eq!(names[1], "a=1_b.c=-y-");
        let some = drawn(&points, 3, 7);
        assert_eq!(some.len(), 3);
        assert_eq!(some, drawn(&points, 3, 7));
        let places: Vec<_> = some.iter().map(|p| points.iter().position(|q| q == p)).collect();
        assert!(places.is_sorted());
        for wrong in ["a", "a=", "a=1,,2"] {
            assert!(grid(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
