//! A growing folder: whole files, files that are not whole yet, and files that never will be.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use parquet::data_type::DoubleType;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::tests::{encoder, sample, settings, until};
use super::*;

/// A Parquet file of these columns, each with the same number of rows.
fn parquet_file(columns: &[(&str, &[f64])]) -> Vec<u8> {
    let fields: String =
        columns.iter().map(|(name, _)| format!("REQUIRED DOUBLE {name};")).collect();
    let schema = Arc::new(parse_message_type(&format!("message rows {{ {fields} }}")).unwrap());
    let mut bytes = Vec::new();
    let properties = Arc::new(WriterProperties::builder().build());
    let mut file = SerializedFileWriter::new(&mut bytes, schema, properties).unwrap();
    let mut group = file.next_row_group().unwrap();
    for (_, cells) in columns {
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<DoubleType>().write_batch(cells, None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    file.close().unwrap();
    bytes
}

fn rows_from(first: f64) -> Vec<u8> {
    let [t, x] = [[first, first + 1.0], [first + 0.5, first + 1.5]];
    parquet_file(&[("t", &t), ("x", &x), ("hot", &[0.0, 1.0])])
}

fn feed(folder: &Path, rows_min: usize) -> Result<RowFeed, ProducerError> {
    let source = format!("growing:{}#hot", folder.display()).parse().unwrap();
    RowFeed::start(&source, encoder(), settings(1_000, rows_min))
}

/// Writes a file as a producer should: it appears whole.
fn put(folder: &Path, name: &str, bytes: &[u8]) {
    let beside = folder.join(format!(".{name}"));
    fs::write(&beside, bytes).unwrap();
    fs::rename(beside, folder.join(name)).unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries.map(name).map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn files_are_read_once_in_the_order_of_their_names() {
    let folder = tempfile::tempdir().unwrap();
    for (name, first) in [("b.parquet", 20.0), ("c.parquet", 30.0), ("a.parquet", 10.0)] {
        put(folder.path(), name, &rows_from(first));
    }
    let feed = feed(folder.path(), 6).unwrap();
    let rows = sample(&feed);
    let expected: Vec<f32> =
        [10.0, 20.0, 30.0].map(|at| [at, at + 0.5, at + 1.0, at + 1.5]).concat();
    assert_eq!(rows.features(), expected);
    assert_eq!(rows.labels(), [0, 1, 0, 1, 0, 1]);
    assert_eq!(names(&folder.path().join("consumed")), ["a.parquet", "b.parquet", "c.parquet"]);
    // The name of a file that was read may come again.
    feed.resume();
    put(folder.path(), "a.parquet", &rows_from(40.0));
    until(&feed, |counts| counts.rows_seen == 8);
    assert_eq!(names(&folder.path().join("consumed")).len(), 4);
    until(&feed, |_| {
        let state = fs::read_to_string(folder.path().join("florin.json")).unwrap();
        let state: serde_json::Value = serde_json::from_str(&state).unwrap();
        assert_eq!(state["unread_files_max"], FILES_UNREAD_MAX);
        state["read_files"] == 4
    });
    let left = names(folder.path());
    assert_eq!(left, ["consumed", "florin.json", "refused"]);
}

#[test]
fn a_file_that_is_not_whole_is_left_until_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let whole = rows_from(1.0);
    fs::write(folder.path().join("a.parquet"), &whole[..whole.len() / 2]).unwrap();
    fs::write(folder.path().join("empty.parquet"), "").unwrap();
    put(folder.path(), "b.parquet", &rows_from(5.0));
    let feed = feed(folder.path(), 2).unwrap();
    assert_eq!(sample(&feed).features(), [5.0, 5.5, 6.0, 6.5], "later files do not wait for it");
    feed.resume();
    fs::write(folder.path().join("a.parquet"), &whole).unwrap();
    until(&feed, |counts| counts.rows_seen == 4);
    assert_eq!(feed.counts().refused, 0);
    let news = feed.take_refusals();
    assert_eq!((news.len(), news[0].code), (1, RefusalCode::FileNotReady), "{news:?}");
    assert!(folder.path().join("empty.parquet").exists());
}

#[test]
fn other_files_are_set_aside_or_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    put(at, "columns.parquet", &parquet_file(&[("t", &[1.0]), ("hot", &[0.0])]));
    put(at, "label.parquet", &parquet_file(&[("t", &[1.0]), ("x", &[0.0])]));
    let cells =
        [("t", &[1.0, f64::NAN, 3.0][..]), ("x", &[4.0, 5.0, 6.0]), ("hot", &[0.0, 1.0, 9.0])];
    put(at, "rows.parquet", &parquet_file(&cells));
    let left = ["_temporary.parquet", "notes.txt", "folder.parquet"];
    fs::write(at.join(left[0]), rows_from(7.0)).unwrap();
    fs::write(at.join(left[1]), "mine").unwrap();
    fs::create_dir(at.join(left[2])).unwrap();
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret.parquet");
    fs::write(&secret, rows_from(9.0)).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(&secret, at.join("link.parquet")).unwrap();
    let feed = feed(at, 1).unwrap();
    assert_eq!(sample(&feed).features(), [1.0, 4.0]);
    until(&feed, |counts| counts.refused == 4);
    assert_eq!(names(&at.join("refused")), ["columns.parquet", "label.parquet"]);
    assert_eq!(names(&at.join("consumed")), ["rows.parquet"]);
    assert!(left.iter().all(|name| at.join(name).exists()) && secret.exists());
    let codes: Vec<_> = feed.take_refusals().iter().map(|refusal| refusal.code).collect();
    assert_eq!(codes, [RefusalCode::SchemaMismatch, RefusalCode::RowMismatch]);
    assert_eq!(feed.counts().rows_seen, 1);
}

#[test]
fn a_folder_without_room_for_consumed_files_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing = feed(&folder.path().join("missing"), 1).unwrap_err();
    assert_eq!(missing.code(), "PRODUCER_FOLDER");
    fs::write(folder.path().join("consumed"), "a file").unwrap();
    let error = feed(folder.path(), 1).unwrap_err();
    assert_eq!(error.code(), "PRODUCER_FOLDER");
    assert!(error.to_string().contains("consumed"), "{error}");
}

/// Without a limit each look would open all of them again.
#[test]
fn too_many_files_that_are_never_whole_end_the_feed() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..=FILES_NOT_READY_MAX {
        fs::write(folder.path().join(format!("{number:05}.parquet")), "no").unwrap();
    }
    let feed = feed(folder.path(), 1).unwrap();
    let error = feed.take(SamplePurpose::Training, Duration::from_secs(60)).unwrap_err();
    assert_eq!(error.code(), "PRODUCER_INVALID");
    assert!(error.to_string().contains("no whole Parquet files"), "{error}");
}
