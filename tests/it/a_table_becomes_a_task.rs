//! A table as people have it becomes a task without an edit: names of labels, categories, missing
//! values and unscaled numbers.

use std::fmt::Write;
use std::path::Path;

use crate::support::{CommandOutput, florin};

/// Rows of a table with every kind of cell.
const ROWS: usize = 160;

/// Penguins, in short: a row number, two islands, a mass in grams with missing values, a constant.
fn table(order: [&str; 5]) -> String {
    let mut text = format!("{},species\n", order.join(","));
    for row in 0..ROWS {
        let is_large = row % 3 == 0;
        let mass = match row % 20 {
            7 => "NA".to_owned(),
            _ => (if is_large { 5_000 } else { 3_600 } + (row * 37) % 400).to_string(),
        };
        let island = if row % 2 == 0 { "Dream" } else { "Biscoe" };
        let cells = order.map(|column| match column {
            "mass" => mass.clone(),
            "island" => island.to_owned(),
            "year" => "2007".to_owned(),
            "row" => (row + 1).to_string(),
            _ => format!("{}", 180 + (row * 13) % 40),
        });
        let species = if is_large { "Gentoo" } else { "Adelie" };
        writeln!(text, "{},{species}", cells.join(",")).unwrap();
    }
    text
}

fn put(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

const ORDER: [&str; 5] = ["row", "mass", "island", "year", "flipper"];

fn assert_contains(output: &CommandOutput, parts: &[&str]) {
    let text = format!("{}{}", output.out, output.err);
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
}

#[test]
fn a_new_task_fits_a_table_and_passes_its_check_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("{}#species", put(folder.path(), "penguins.csv", &table(ORDER)));
    let task = folder.path().join("task.toml").display().to_string();
    let output = florin(&["task", "new", "--data", &data, "--out", &task]).expect(0);
    assert_contains(&output, &["\"row\" is ignored", "\"year\" is ignored", "task check"]);
    let spec = florin(&["task", "check", &task, "--json"]).expect(0).json();
    assert_eq!(spec["data"]["width"], 4);
    assert_eq!(spec["data"]["encoding"]["class_names"], serde_json::json!(["Adelie", "Gentoo"]));
    assert_eq!(spec["holdout"]["rows"], ROWS);
    assert_eq!(spec["model"]["inputs"], 4);
    florin(&["task", "new", "--data", &data, "--out", &task]).refused(2, "FILE_EXISTS");
    let again = folder.path().join("again.toml").display().to_string();
    florin(&["task", "new", &again, "--data", &data]).expect(0);
    let salt = |file: &str| -> String {
        let text = std::fs::read_to_string(file).unwrap();
        text.lines().find(|line| line.starts_with("salt = ")).unwrap().to_owned()
    };
    assert_ne!(salt(&again), salt(&task), "the salt of the task is drawn");
    let again = florin(&["task", "check", &again, "--json"]).expect(0).json();
    assert_eq!(again["data"], spec["data"]);
    assert_eq!(again["holdout"]["root"], spec["holdout"]["root"]);
}

#[test]
fn a_scale_without_numbers_is_computed_from_the_holdout() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("{}#species", put(folder.path(), "penguins.csv", &table(ORDER)));
    let task = folder.path().join("task.toml").display().to_string();
    florin(&["task", "new", "--data", &data, "--out", &task]).expect(0);
    let text = std::fs::read_to_string(&task).unwrap();
    let (before, rest) = text.split_once("\nclass_names = [\"").unwrap();
    let (_, after) = rest.split_once("\n]\n").unwrap();
    let short = put(folder.path(), "short.toml", &format!("{before}\n{after}"));
    let data =
        |task: &str| florin(&["task", "check", task, "--json"]).expect(0).json()["data"].clone();
    assert_eq!(data(&short), data(&task));
}

#[test]
fn features_far_from_unit_scale_are_refused_unless_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("{}#species", put(folder.path(), "penguins.csv", &table(ORDER)));
    let task = folder.path().join("task.toml").display().to_string();
    florin(&["task", "new", "--data", &data, "--out", &task]).expect(0);
    let text = std::fs::read_to_string(&task).unwrap();
    let (before, rest) = text.split_once("scale = \"standard\"").unwrap();
    let (_, after) = rest.split_once("\n]\n").unwrap();
    let raw = put(folder.path(), "raw.toml", &format!("{before}scale = \"none\"\n{after}"));
    let output = florin(&["task", "check", &raw]);
    assert_contains(&output, &["data.scale = \"none\"", "column \"mass\" has mean", "line "]);
    assert_contains(&output, &["scale = \"standard\"", "accept_unscaled = true"]);
    output.refused(2, "INVALID_TASK");
    let accepted = format!("{before}scale = \"none\"\naccept_unscaled = true\n{after}");
    let accepted = put(folder.path(), "accepted.toml", &accepted);
    // Without the quote, which finds that this model learns nothing from these features.
    florin(&["task", "check", "--no-quote", &accepted]).expect(0);
}

#[test]
fn rows_are_encoded_by_the_task_whatever_the_order_of_their_columns() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let data = format!("{}#species", put(path, "penguins.csv", &table(ORDER)));
    let task = path.join("task.toml").display().to_string();
    florin(&["task", "new", "--data", &data, "--out", &task]).expect(0);
    let split = |name: &str, text: &str| {
        let data = format!("{}#species", put(path, name, text));
        let out = path.join(name).with_extension("shards").display().to_string();
        let call = ["data", "split", &data, "--task", &task, "--shards", "1", "--out", &out];
        florin(&[&call[..], &["--json"]].concat())
    };
    let digest = |output: CommandOutput| output.expect(0).json()[0]["digest"].clone();
    let one = digest(split("one.csv", &table(ORDER)));
    let other = table(["flipper", "year", "island", "row", "mass"]);
    assert_eq!(digest(split("other.csv", &other)), one);
    for (name, text, part) in [
        ("gone.csv", table(ORDER).replace("mass", "weight"), "column `mass` is missing"),
        (
            "more.csv",
            table(ORDER).replace("year,", "year,sex,").replace("2007,", "2007,f,"),
            "column `sex` is not one of the task's columns",
        ),
        ("typo.csv", table(ORDER).replacen(",NA,", ",heavy,", 1), "column `mass`: `heavy`"),
        ("label.csv", table(ORDER).replacen("Gentoo", "Emperor", 1), "line 2: label `Emperor`"),
    ] {
        let output = split(name, &text);
        assert_contains(&output, &[part]);
        output.refused(2, "DATA_MISMATCH");
    }
}

#[test]
fn data_show_describes_each_column_and_its_encoding() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("{}#species", put(folder.path(), "penguins.csv", &table(ORDER)));
    let shown = florin(&["data", "show", &data]).expect(0);
    assert_contains(&shown, &["one-hot 2: Biscoe, Dream", "ignored: all rows have one value"]);
    assert_contains(&shown, &["ignored: it numbers the rows", "Adelie", "Gentoo"]);
    let json = florin(&["data", "show", &data, "--json"]).expect(0).json();
    assert_eq!((&json["rows"], &json["encoded_width"]), (&ROWS.into(), &4.into()));
    let mass = &json["columns"][1];
    assert_eq!((&mass["name"], &mass["missing"]), (&"mass".into(), &8.into()));
    assert_eq!((&mass["kind"], &mass["treatment"]), (&"numeric".into(), &"scaled".into()));
    assert!(mass["min"].as_f64().unwrap() >= 3_600.0 && mass["sd"].as_f64().unwrap() > 500.0);
    assert_eq!(json["class_names"], serde_json::json!(["Adelie", "Gentoo"]));
    let broken = format!("parquet:{}#species", put(folder.path(), "p.parquet", "PAR1"));
    florin(&["data", "show", &broken]).refused(2, "INVALID_DATA");
    let array = put(folder.path(), "x.npy", "\u{93}NUMPY");
    florin(&["data", "show", &format!("npy:{array},{array}")]).refused(2, "INVALID_DATA");
}
