//! Data files: valid ones load, invalid ones are refused with their position.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::{Compression, write::GzEncoder};
use tempfile::TempDir;

use super::*;

fn put(folder: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Two images of 1×2 pixels.
const IMAGES: [u8; 20] = [0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 255, 51, 102];
const LABELS: [u8; 10] = [0, 0, 8, 1, 0, 0, 0, 2, 7, 3];

fn idx(images: &Path, labels: &Path) -> Result<Dataset, LoadError> {
    load(&DataSource::Idx { images: images.to_owned(), labels: labels.to_owned() })
}

#[test]
fn idx_files_load_plain_and_gzipped() {
    let folder = TempDir::new().unwrap();
    let images = put(&folder, "images", &IMAGES);
    let labels = put(&folder, "labels.gz", &gzip(&LABELS));
    let data = idx(&images, &labels).unwrap();
    assert_eq!(data.features(), [0.0, 1.0, 0.2, 0.4]);
    assert_eq!((data.labels(), data.width(), data.classes()), (&[7, 3][..], 2, 10));
}

#[test]
fn an_idx_file_of_the_wrong_kind_or_count_is_refused() {
    let folder = TempDir::new().unwrap();
    let images = put(&folder, "images", &IMAGES);
    let labels = put(&folder, "labels", &LABELS);

    let swapped = idx(&labels, &images).unwrap_err();
    assert!(matches!(swapped, LoadError::IdxMagic { expected: 0x803, got: 0x801, .. }));
    assert!(swapped.to_string().contains("begins with 0x00000801"), "{swapped}");

    let mut three = LABELS.to_vec();
    three[7] = 3;
    let short = put(&folder, "short", &three);
    let error = idx(&images, &short).unwrap_err();
    assert!(matches!(error, LoadError::IdxLength { expected: 11, got: 10, .. }), "{error}");

    three.push(1);
    let more = put(&folder, "more", &three);
    let error = idx(&images, &more).unwrap_err();
    let differ =
        matches!(error, LoadError::IdxCountsDiffer { images_count: 2, labels_count: 3, .. });
    assert!(differ, "{error}");

    let mut huge = IMAGES.to_vec();
    huge[4..16].fill(255);
    let huge = put(&folder, "huge", &huge);
    assert!(matches!(idx(&huge, &labels), Err(LoadError::IdxLength { expected: u64::MAX, .. })));

    let stub = put(&folder, "stub", &IMAGES[..9]);
    assert!(matches!(idx(&stub, &labels), Err(LoadError::IdxLength { expected: 16, got: 9, .. })));
    let empty = put(&folder, "empty", &[]);
    assert!(matches!(idx(&empty, &labels), Err(LoadError::IdxLength { got: 0, .. })));
}

#[test]
fn a_truncated_gzip_file_is_refused() {
    let folder = TempDir::new().unwrap();
    let whole = gzip(&IMAGES);
    let cut = put(&folder, "images.gz", &whole[..whole.len() - 5]);
    let labels = put(&folder, "labels", &LABELS);
    let error = idx(&cut, &labels).unwrap_err();
    assert!(matches!(error, LoadError::BrokenGzip { .. }), "{error}");
    assert!(error.to_string().contains("images.gz is a broken gzip file"), "{error}");
}

#[test]
fn cifar_records_load_and_a_truncated_or_mislabelled_file_is_refused() {
    let folder = TempDir::new().unwrap();
    let mut record = vec![0_u8; 3073];
    record[0] = 9;
    record[1] = 255;
    let one = put(&folder, "one.bin", &record);
    let two = put(&folder, "two.bin", &[record.clone(), record.clone()].concat());
    let data = load(&DataSource::Cifar10 { files: vec![one.clone(), two] }).unwrap();
    assert_eq!((data.rows(), data.width(), data.classes()), (3, 3072, 10));
    assert_eq!((data.labels()[2], data.row(2)[0], data.row(2)[1]), (9, 1.0, 0.0));

    let cut = put(&folder, "cut.bin", &record[..3000]);
    let error = load(&DataSource::Cifar10 { files: vec![one, cut] }).unwrap_err();
    assert!(matches!(error, LoadError::CifarLength { bytes: 3000, record: 3073, .. }), "{error}");
    record[0] = 10;
    let wrong = put(&folder, "wrong.bin", &[vec![0; 3073], record].concat());
    let error = load(&DataSource::Cifar10 { files: vec![wrong] }).unwrap_err();
    assert!(matches!(error, LoadError::CifarLabel { offset: 3073, label: 10, .. }), "{error}");
}

#[test]
fn a_csv_file_loads_with_its_label_column_by_name() {
    let folder = TempDir::new().unwrap();
    let file = put(&folder, "flowers.csv", b"width,kind,height\n1.5,0,2\n -0.25 ,2,1e3\n");
    let data = load(&DataSource::Csv { file, label: "kind".into() }).unwrap();
    assert_eq!(data.features(), [1.5, 2.0, -0.25, 1000.0]);
    assert_eq!((data.labels(), data.classes()), (&[0, 2][..], 3));
}

#[test]
fn a_wrong_csv_file_is_refused_with_line_and_column() {
    let table = [
        ("a,b\n1,0\n,1\n", "line 3, column `a`: missing value; must be a finite number"),
        ("a,b\n1,0\n1,\n", "line 3, column `b`: missing value; must be a whole number"),
        ("a,b\nred,0\n", "line 2, column `a`: `red`; must be a finite number"),
        ("a,b\ninf,0\n", "line 2, column `a`: `inf`; must be a finite number"),
        ("a,b\n1,1.5\n", "line 2, column `b`: `1.5`; must be a whole number from 0 to 65535"),
        ("a,b\n1,-1\n", "line 2, column `b`: `-1`; must be a whole number"),
        ("a,b\n1,65536\n", "line 2, column `b`: `65536`; must be a whole number"),
        ("1,0\n2,1\n", "line 1: only numbers; the first line must name the columns"),
        ("a,c\n1,0\n", "no column `b` for the label; the columns are a, c"),
        ("a,a,b\n1,2,0\n", "line 1: column `a` occurs twice"),
        ("a,n\u{1b}[31m,b\n1,2,0\n", "the name of column 2, \"n\\u{1b}[31m\", has a control"),
        ("b\n0\n", "has 1 columns: must be the label and 1 to"),
        ("a,b\n1,0\n1,0,3\n", "line 3: 3 cells; the header has 2 names"),
        ("a,b\n", "has no rows"),
        ("", "is empty; the first line must name the columns"),
    ];
    let folder = TempDir::new().unwrap();
    for (text, message) in table {
        let file = put(&folder, "t.csv", text.as_bytes());
        let error = load(&DataSource::Csv { file, label: "b".into() }).unwrap_err().to_string();
        assert!(error.contains(message) && error.contains("t.csv"), "{text:?} gave: {error}");
    }
}

/// Blank lines, line breaks in quotation marks, and a record behind the first 8 KiB that the parser reads.
#[test]
fn a_wrong_value_is_named_with_its_line_for_every_line_end() {
    let folder = TempDir::new().unwrap();
    let long = "1,0\n".repeat(5_000);
    let table = [
        ("a,b\n1,0\n,1\n1,0\n".to_owned(), 3),
        ("a,b\n1,0\n,1".to_owned(), 3),
        ("a,b\n\n\n,1\n".to_owned(), 4),
        ("a,b\n\" 1\n\",0\n\"\n\n\",1\n1,0\n".to_owned(), 4),
        ("\u{feff}a,b\n1,0\nx,1\n".to_owned(), 3),
        (format!("a,b\n{long},1\n{long}"), 5_002),
    ];
    for (text, line) in table {
        for text in [text.clone(), text.replace('\n', "\r\n")] {
            let start: String = text.chars().take(40).collect();
            let file = put(&folder, "t.csv", text.as_bytes());
            let error = load(&DataSource::Csv { file, label: "b".into() }).unwrap_err().to_string();
            assert!(error.contains(&format!("line {line},")), "{start:?} gave: {error}");
        }
    }
    for (text, expected) in [("a,b\r\n1,0\r\n1,0,3\r\n", 3), ("a,b\n1,0\n\n1\n", 4)] {
        let file = put(&folder, "t.csv", text.as_bytes());
        let error = load(&DataSource::Csv { file, label: "b".into() }).unwrap_err();
        let is_named = matches!(error, LoadError::CsvLine { line, .. } if line == expected);
        assert!(is_named, "{text:?}: {error}");
    }
}

#[test]
fn a_saved_data_set_round_trips() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("shard.florin");
    let digits = load(&DataSource::Digits).unwrap().slice(0..50).unwrap();
    save(&digits, &file).unwrap();
    assert_eq!(load(&DataSource::Florin { file: file.clone() }).unwrap(), digits);

    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 3]).unwrap();
    let error = load(&DataSource::Florin { file }).unwrap_err();
    assert!(matches!(error, LoadError::NotCanonical { .. }), "{error}");
    let missing = load(&DataSource::Florin { file: "no/such.florin".into() }).unwrap_err();
    assert!(missing.to_string().starts_with("no/such.florin cannot be read"), "{missing}");
}

#[test]
fn data_source_names_round_trip() {
    for text in ["digits", "idx:a.gz,b.gz", "cifar10:a.bin,b.bin", "csv:x#y.csv#kind", "florin:s"] {
        assert_eq!(text.parse::<DataSource>().unwrap().to_string(), text);
    }
    for text in ["", "mnist", "idx:a", "idx:a,b,c", "idx:,b", "cifar10:", "csv:a", "csv:a#", "x:y"]
    {
        let error = text.parse::<DataSource>().unwrap_err().to_string();
        assert!(error.contains("csv:FILE#LABEL"), "{text}: {error}");
    }
}

#[test]
fn an_invalid_data_set_is_refused_with_its_position() {
    let new = |features: &[f32], labels: &[u32], width, classes| {
        Dataset::new(features.to_vec(), labels.to_vec(), width, classes)
    };
    let cases: [(_, DatasetError); 6] = [
        (new(&[], &[], 0, 2), DatasetError::Width { width: 0 }),
        (new(&[1.0], &[0], 1, 0), DatasetError::Classes { classes: 0 }),
        (new(&[1.0, 2.0, 3.0], &[0], 2, 2), DatasetError::Shape { features: 3, rows: 1, width: 2 }),
        (
            new(&[1.0, 2.0, 3.0, f32::INFINITY], &[0, 1], 2, 2),
            DatasetError::NotFinite { row: 1, feature: 1, value: f32::INFINITY },
        ),
        (new(&[1.0, 2.0], &[0, 2], 1, 2), DatasetError::Label { row: 1, label: 2, classes: 2 }),
        (
            new(&[1.0, 2.0], &[0, 1], 1, 2).unwrap().subset(&[1, 2]),
            DatasetError::RowOutOfRange { row: 2, rows: 2 },
        ),
    ];
    for (got, expected) in cases {
        assert_eq!(got.unwrap_err(), expected);
    }
    let nan = new(&[1.0, f32::NAN], &[0], 2, 1).unwrap_err().to_string();
    assert_eq!(nan, "row 0, feature 1 is NaN: must be a finite number");
}

#[test]
fn a_subset_preserves_order_and_classes() {
    let all = Dataset::new(vec![0.0, 0.5, 1.0, 1.5, 2.0, 2.5], vec![2, 1, 0], 2, 4).unwrap();
    let some = all.subset(&[2, 0]).unwrap();
    assert_eq!(some.features(), [2.0, 2.5, 0.0, 0.5]);
    assert_eq!((some.labels(), some.classes(), some.width()), (&[0, 2][..], 4, 2));
    assert_eq!(all.slice(1..3).unwrap(), all.subset(&[1, 2]).unwrap());
    assert!(all.slice(2..4).is_err());
    assert_eq!(all.class_counts(), [1, 1, 1, 0]);
    assert_eq!(all.subset(&[]).unwrap().rows(), 0);
}
