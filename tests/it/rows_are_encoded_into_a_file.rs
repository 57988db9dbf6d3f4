//! `florin data encode` writes the rows of a source, as a task declares them, into a file that other
//! commands read: the same rows that `florin data split --task` encodes.

use std::fmt::Write;
use std::path::Path;

use florin_learning::DataSource;
use florin_learning::data::{load, save};

use crate::support::{CommandOutput, On, TestMarket, TestPlan, florin};

/// Rows of the table.
const ROWS: usize = 120;

/// Numbers, some of which are missing, texts and a label.
fn table() -> String {
    let mut text = "mass,island,species\n".to_owned();
    for row in 0..ROWS {
        let is_large = row % 3 == 0;
        let mass = match row % 20 {
            7 => "NA".to_owned(),
            _ => (if is_large { 5_000 } else { 3_600 } + (row * 37) % 400).to_string(),
        };
        let island = if row % 2 == 0 { "Dream" } else { "Biscoe" };
        let species = if is_large { "Gentoo" } else { "Adelie" };
        writeln!(text, "{mass},{island},{species}").unwrap();
    }
    text
}

fn put(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    format!("{}#species", path.display())
}

/// The names of the files of a folder, hidden ones included.
fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn encoded_rows_are_those_of_a_split_by_the_same_task() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (data, task) = (put(folder.path(), "penguins.csv", &table()), path("task.toml"));
    florin(&["task", "new", "--data", &data, "--out", &task]).expect(0);
    let out = path("rows.florin");
    let call = ["data", "encode", &data, "--task", &task, "--out", &out, "--json"];
    let encoded = florin(&call).expect(0).json();
    let source = format!("florin:{out}");
    let expected = serde_json::json!({
        "source": source, "rows": ROWS, "width": 3, "classes": 2,
    });
    assert_eq!(encoded, expected);
    let split = |source: &str, task: &[&str], out: &str| {
        let out = path(out);
        let call = ["data", "split", source, "--shards", "1", "--out", &out, "--json"];
        florin(&[&call[..], task].concat()).expect(0).json()[0]["digest"].clone()
    };
    let of_table = split(&data, &["--task", &task], "of-table");
    assert_eq!(split(&source, &[], "of-file"), of_table);
    florin(&call).refused(2, "FILE_EXISTS");
    let again = path("again.florin");
    let shown = florin(&["data", "encode", &source, "--task", &task, "--out", &again]).expect(0);
    assert!(shown.out.contains("3 per row") && shown.out.contains("120"), "{shown:?}");
    assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&out).unwrap());
}

#[test]
fn a_failed_encoding_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (data, task) = (put(folder.path(), "penguins.csv", &table()), folder.path().join("t.toml"));
    let task = task.display().to_string();
    florin(&["task", "new", "--data", &data, "--out", &task]).expect(0);
    let out_folder = folder.path().join("out");
    std::fs::create_dir(&out_folder).unwrap();
    let out = out_folder.join("rows.florin").display().to_string();
    let encode = |data: &str, out: &str| -> CommandOutput {
        florin(&["data", "encode", data, "--task", &task, "--out", out])
    };
    // More rows than a part has, so that the file is begun before the last row is read.
    let header = "mass,island,species\n";
    let long = format!("{header}{}4000,Dream,Emperor\n", "4000,Dream,Gentoo\n".repeat(70_000));
    let failed = encode(&put(folder.path(), "label.csv", &long), &out);
    assert!(failed.err.contains("line 70002: label `Emperor`"), "{failed:?}");
    failed.refused(2, "DATA_MISMATCH");
    let column = table().replace("mass", "weight");
    encode(&put(folder.path(), "column.csv", &column), &out).refused(2, "DATA_MISMATCH");
    encode(&put(folder.path(), "empty.csv", header), &out).refused(2, "INVALID_DATA");
    encode("/no/such/table.csv#species", &out).refused(2, "FILE_NOT_FOUND");
    assert_eq!(files(&out_folder), Vec::<String>::new());
    encode(&data, "/no/such/folder/rows.florin").refused(2, "FILE_NOT_FOUND");
    let gone = folder.path().join("gone.toml").display().to_string();
    let call = ["data", "encode", &data, "--task", &gone, "--out", &out];
    florin(&call).refused(2, "FILE_NOT_FOUND");
}

#[test]
fn a_participant_encodes_by_the_task_of_a_market() {
    let market = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    let task = market.publish().to_string();
    let (out, plain) = (market.file("rows.florin"), market.file("plain.florin"));
    let call = ["data", "encode", "digits", "--task", &task, "--out", &out];
    market.run_command(&call).expect(0);
    save(&load(&DataSource::Digits).unwrap(), Path::new(&plain)).unwrap();
    assert_eq!(std::fs::read(&out).unwrap(), std::fs::read(&plain).unwrap());
    let narrow = market.file("narrow.csv");
    std::fs::write(&narrow, "a,y\n1,0\n").unwrap();
    let (source, out) = (format!("{narrow}#y"), market.file("narrow.florin"));
    let call = ["data", "encode", &source, "--task", &task, "--out", &out];
    market.run_command(&call).refused(2, "DATA_MISMATCH");
    assert!(!Path::new(&out).exists());
}
