//! `florin sim sweep`: runs every combination of some values, each in its own folder. Completed
//! folders are reused when an interrupted sweep is started again.

use std::path::Path;

use florin_protocol::blob_digest;
use florin_sim::Scenario;
use florin_sim::measure::ConfidenceInterval;
use florin_sim::random::{stream, uniform_below};
use florin_sim::results::{LoadedResults, format_bounds, format_number};
use florin_sim::scenario::SettingOverride;
use serde::Deserialize;
use serde_json::{Value, json};

use super::cache::SweepCache;
use super::compare::page;
use super::{
    PROGRAM, check_writable, not_written, read_text, refuse_run_folder, refused,
    results_folder_in_use, run_simulations, scenario_text, threads, with_seeds,
};
use crate::cli::SimSweep;
use crate::failure::{Exit, Failure};
use crate::show::{self, BAD, Cell, DIM, TextTable};

/// Maximum number of combinations of a sweep.
const POINTS_MAX: usize = 10_000;
/// Maximum number of values of a key.
const VALUES_MAX: usize = 1_000;

/// Length of a folder's name before the digest.
const NAME: usize = 180;
/// Number of digits of the digest.
const DIGEST: usize = 8;

/// A combination.
type Combination = Vec<SettingOverride>;

pub(super) fn run(command: &SimSweep) -> anyhow::Result<Exit> {
    let mut points = combinations(&command.vary)?;
    let varied = |key: &str| points.iter().flatten().any(|change| change.key() == key);
    if command.play.seed.is_some() && varied("seeds.first")
        || command.play.seeds.is_some() && varied("seeds.count")
    {
        let why = "--vary and --seed or --seeds both set the seeds: remove one of them";
        return Err(Failure::input("INVALID_SWEEP", why).into());
    }
    if let Some(draw) = command.draw {
        points = sample(&points, draw as usize, command.play.seed.unwrap_or(1));
    }
    let text = scenario_text(&command.what.scenario)?;
    let scenarios = points.iter().map(|point| {
        let changes: Vec<SettingOverride> =
            command.what.changes.iter().chain(point).cloned().collect();
        with_seeds(read_text(&command.what, &text, &changes)?, &command.play)
    });
    // All scenarios are checked before the first one runs.
    let scenarios = scenarios.collect::<anyhow::Result<Vec<Scenario>>>()?;
    refuse_run_folder(&command.out)?;
    for (point, scenario) in points.iter().zip(&scenarios) {
        check_same_scenario(&command.out.join(name_of(point)), scenario)?;
    }
    check_writable(Some(&command.out))?;
    let cache = SweepCache::for_this_program()?;
    let (mut rows, mut sides) = (Vec::new(), Vec::new());
    for (at, (point, scenario)) in points.iter().zip(&scenarios).enumerate() {
        let folder = command.out.join(name_of(point));
        let results = match cache.read(&folder, scenario) {
            Some(results) => results,
            None => {
                let what = format!("{} of {}", at + 1, points.len());
                let results = run_simulations(scenario, threads(command.play.threads), &what)?;
                // While the folder is rewritten, it is not marked as complete.
                cache.invalidate(&folder)?;
                results.write(&folder, &PROGRAM).map_err(|error| not_written(&error))?;
                cache.write(&folder, scenario)?;
                results.to_json(&PROGRAM)
            }
        };
        rows.push(json!({ "changes": change_list(point), "results": results }));
        sides.push(side(&folder, point)?);
    }
    let question = scenarios.first().map(|scenario| scenario.question.as_str());
    page(question.unwrap_or_default(), &sides, &command.out)?;
    if command.json.json {
        show::json(&rows)?;
    } else {
        print(&rows);
        anstream::println!("\n{DIM}written to{DIM:#} {}", command.out.display());
    }
    Ok(if rows.iter().all(|row| passed(row) == true) { Exit::Done } else { Exit::Negative })
}

/// A combination's folder may be rewritten if traces or the program have changed, but not with
/// another scenario or other seeds.
fn check_same_scenario(folder: &Path, scenario: &Scenario) -> anyhow::Result<()> {
    let Ok(text) = std::fs::read_to_string(folder.join("scenario.toml")) else { return Ok(()) };
    let is_same = Scenario::read_in(folder, &text, &[])
        .is_ok_and(|there| there.name == scenario.name && there.seeds == scenario.seeds);
    if is_same { Ok(()) } else { Err(results_folder_in_use(folder)) }
}

/// Whether a combination satisfies all pass criteria, and the fit of a surrogate passes; null if a
/// criterion is undecided and nothing fails.
fn passed(row: &Value) -> &Value {
    &row["results"]["passed"]
}

/// The mark of a combination that does not pass.
fn mark(row: &Value) -> &'static str {
    match passed(row) {
        Value::Bool(true) => "",
        Value::Null => "NOT DECIDED",
        _ => "FAILED",
    }
}

/// Reads a combination's folder for the page.
fn side(folder: &Path, point: &Combination) -> anyhow::Result<LoadedResults> {
    let short = |change: &SettingOverride| {
        let key = change.key();
        let last = key.rsplit('.').next().unwrap_or(&key).to_owned();
        format!("{last} {}", change.value().trim_matches('"'))
    };
    let label: Vec<String> = point.iter().map(short).collect();
    let side = LoadedResults::read(folder, &label.join(", "));
    let mut side = side.map_err(|error| Failure::input("RESULTS_UNREADABLE", error.to_string()))?;
    side.settings = point.iter().map(|change| (change.key(), change.value())).collect();
    Ok(side)
}

/// All combinations; the last key varies fastest.
fn combinations(vary: &[String]) -> anyhow::Result<Vec<Combination>> {
    let mut points: Vec<Combination> = vec![Vec::new()];
    for axis in vary {
        let wrong = |why: &str| Failure::input("INVALID_SWEEP", format!("--vary {axis}: {why}"));
        let (key, values) = axis.split_once('=').ok_or_else(|| wrong("write KEY=V1,V2"))?;
        let values = split(values);
        if values.len() > VALUES_MAX || values.iter().any(|value| value.is_empty()) {
            return Err(wrong("write 1 to 1000 values, separated by commas").into());
        }
        if let Some(twice) =
            values.iter().enumerate().find(|(at, v)| values.iter().take(*at).any(|w| w == *v))
        {
            return Err(wrong(&format!("{} is given twice: remove one", twice.1)).into());
        }
        let mut more = Vec::new();
        for point in &points {
            for value in &values {
                let change: SettingOverride =
                    format!("{key}={value}").parse().map_err(|error| refused(&error))?;
                more.push(point.iter().cloned().chain([change]).collect());
            }
        }
        if more.len() > POINTS_MAX {
            let why = format!(
                "{} combinations, but at most {POINTS_MAX} are allowed (also with --draw): give \
                 fewer values",
                more.len()
            );
            return Err(wrong(&why).into());
        }
        points = more;
    }
    let keys: std::collections::BTreeSet<String> =
        points.first().into_iter().flatten().map(SettingOverride::key).collect();
    if keys.len() < vary.len() {
        let why = "two --vary name the same key: give all its values in one";
        return Err(Failure::input("INVALID_SWEEP", why).into());
    }
    Ok(points)
}

/// Splits a list at its commas, except at commas inside brackets and quotes.
fn split(text: &str) -> Vec<&str> {
    let (mut values, mut from, mut depth) = (Vec::new(), 0, 0_usize);
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                values.push(text.get(from..at).unwrap_or_default().trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    values.push(text.get(from..).unwrap_or_default().trim());
    values
}

/// Draws some of the points, without changing their order.
fn sample(points: &[Combination], count: usize, seed: u64) -> Vec<Combination> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    let rng = &mut stream(seed, "sweep", [0, 0]);
    for last in (1..order.len()).rev() {
        order.swap(last, usize::try_from(uniform_below(rng, last as u64 + 1)).unwrap_or(last));
    }
    order.truncate(count.max(1));
    order.sort_unstable();
    order.into_iter().filter_map(|at| points.get(at).cloned()).collect()
}

fn change_list(point: &Combination) -> Vec<String> {
    point.iter().map(|change| format!("{}={}", change.key(), change.value())).collect()
}

/// The folder name of a point: readable, safe (it cannot leave the parent folder), and unique by a
/// digest of the point.
fn name_of(point: &Combination) -> String {
    let text = change_list(point).join("_");
    let digest = blob_digest(text.as_bytes()).to_string();
    let digest: String = digest.chars().filter(char::is_ascii_hexdigit).take(DIGEST).collect();
    let safe = |c: char| if c.is_ascii_alphanumeric() || "=._-".contains(c) { c } else { '-' };
    let name: String = text.chars().map(safe).take(NAME).collect();
    format!("{}_{digest}", name.trim_start_matches('.'))
}

fn print(rows: &[Value]) {
    let mut table = TextTable::new(&["changes", "group", ">profit", "95 %", ">gain", ""]);
    for row in rows {
        let changes: Vec<&str> =
            row["changes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut first = changes.join(" ");
        let mut mark = mark(row);
        let measures: Vec<&Value> =
            row["results"]["measures"].as_array().into_iter().flatten().collect();
        let of = |measure: &str, group: &Value| {
            measures.iter().find(|m| m["measure"] == measure && m["group"] == *group).copied()
        };
        for profit in measures.iter().filter(|m| m["measure"] == "profit") {
            let number = |value: &Value| value.as_f64().map_or_else(String::new, format_number);
            let range =
                ConfidenceInterval::deserialize(*profit).map(|interval| format_bounds(&interval));
            let gain =
                of("gain", &profit["group"]).map_or_else(String::new, |m| number(&m["mean"]));
            table.row([
                std::mem::take(&mut first).into(),
                profit["group"].as_str().unwrap_or_default().into(),
                number(&profit["mean"]).into(),
                range.unwrap_or_default().into(),
                gain.into(),
                Cell::styled(std::mem::take(&mut mark), BAD),
            ]);
        }
    }
    table.print();
    for row in rows.iter().filter(|row| passed(row) != true) {
        anstream::println!(
            "{BAD}{}{BAD:#}  {}: {}",
            mark(row),
            joined(&row["changes"]),
            unmet_criteria(row)
        );
    }
}

/// The texts of a list, joined by spaces.
fn joined(list: &Value) -> String {
    let texts = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    texts.collect::<Vec<&str>>().join(" ")
}

/// The criteria that failed or, if none did, those that are undecided; if there are none of these
/// either, the fit fails.
fn unmet_criteria(row: &Value) -> String {
    let criteria = row["results"]["criteria"].as_array().into_iter().flatten();
    let unmet = criteria.filter(|one| one["passed"] == *passed(row) && one["open"] != true);
    let unmet: Vec<&str> = unmet.filter_map(|one| one["criterion"].as_str()).collect();
    if unmet.is_empty() { "the fit fails".to_owned() } else { unmet.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_has_every_combination_once_and_a_draw_preserves_the_order() {
        let points = combinations(&["a=1,2,3".to_owned(), "b.c=x,y".to_owned()]).unwrap();
        let names: Vec<String> = points.iter().map(name_of).collect();
        assert_eq!(names.len(), 6);
        assert!(names[1].starts_with("a=1_b.c=-y-_"), "{}", names[1]);
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 6);
        let some = sample(&points, 3, 7);
        assert_eq!(some.len(), 3);
        assert_eq!(some, sample(&points, 3, 7));
        let places: Vec<_> = some.iter().map(|p| points.iter().position(|q| q == p)).collect();
        assert!(places.is_sorted());
        let brackets = combinations(&["r=[1, 2],[3, 4],{a=1, b='x,y'}".to_owned()]).unwrap();
        assert_eq!(brackets.len(), 3, "{brackets:?}");
        let alike = [format!("a={}x", "-".repeat(300)), format!("a={}y", "-".repeat(300))];
        let alike = alike.map(|text| name_of(&vec![text.parse().unwrap()]));
        assert_ne!(alike[0], alike[1], "long names differ by their digests");
        assert!(combinations(&["a=1".to_owned(), "a=2".to_owned()]).is_err(), "the same key twice");
        for wrong in ["a", "a=", "a=1,,2", "a=1,2,1"] {
            assert!(combinations(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
