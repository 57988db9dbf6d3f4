//! A source that is read in parts gives the rows of the whole source.

use tempfile::TempDir;

use super::table_tests::{header, npy, put};
use super::*;

/// The rows of a source, encoded in parts of at most `rows` rows.
fn encoded(source: &DataSource, encoder: &RowEncoder, rows: usize) -> Result<Dataset, String> {
    joined(table_parts(source, None).map_err(|error| error.to_string())?, encoder, rows)
}

fn joined(
    mut parts: Box<dyn TableParts>,
    encoder: &RowEncoder,
    rows: usize,
) -> Result<Dataset, String> {
    let (mut features, mut labels) = (Vec::new(), Vec::new());
    while let Some(part) = parts.next_part(rows).map_err(|error| error.to_string())? {
        assert!((1..=rows).contains(&part.rows()));
        let data = encoder.encode(&part);
        let data = data.map_err(|error| error.in_part_from(labels.len()).to_string())?;
        features.extend_from_slice(data.features());
        labels.extend_from_slice(data.labels());
    }
    Ok(Dataset::new(features, labels, encoder.width(), encoder.classes).unwrap())
}

/// Compares the parts of a source with the whole of it.
fn assert_same(source: &DataSource, encoder: &RowEncoder) {
    let whole = encoder.encode(&load_table(source).unwrap()).unwrap();
    for rows in [1, 3, 1_000] {
        assert_eq!(encoded(source, encoder, rows), Ok(whole.clone()), "{source}, {rows} rows");
    }
}

fn uniform(width: usize, classes: usize) -> RowEncoder {
    let scale = NumberScale { offset: 0.5, factor: 0.25, fill: Some(7.0) };
    let features = FeatureEncoder::Uniform { width, scale };
    RowEncoder { classes, class_names: Vec::new(), features, target: None }
}

/// Encodes the columns `age`, `hue` and `id` of a table.
fn by_columns() -> RowEncoder {
    let scale = NumberScale { offset: 1.0, factor: 0.5, fill: Some(3.0) };
    let role = |name: &str, role| ColumnEncoder { name: name.to_owned(), role };
    let hues = ["1.0", "red"].map(str::to_owned).to_vec();
    let columns = vec![
        role("age", ColumnRole::Numeric { scale, missing_indicator: true }),
        role("hue", ColumnRole::OneHot(hues)),
        role("id", ColumnRole::Ignored),
    ];
    RowEncoder {
        classes: 2,
        class_names: vec!["no".to_owned(), "yes".to_owned()],
        features: FeatureEncoder::Columns(columns),
        target: None,
    }
}

/// Some parts of it have only numbers, and others have texts.
const CSV: &str = "age,hue,id,y\n4,1,a,yes\nNA,red,b,no\n?,x,7,no\n6,,9,yes\n1e1,1.0,c,yes\n";

#[test]
fn parts_of_tables_have_the_rows_of_the_whole() {
    let folder = TempDir::new().unwrap();
    let csv = |name: &str, bytes: &[u8]| DataSource::Csv {
        file: put(&folder, name, bytes),
        label: "y".to_owned(),
    };
    assert_same(&csv("t.csv", CSV.as_bytes()), &by_columns());
    assert_same(&csv("t.tsv", CSV.replace(',', "\t").as_bytes()), &by_columns());
    let mut zipped = flate2::write::GzEncoder::new(Vec::new(), Default::default());
    std::io::Write::write_all(&mut zipped, CSV.as_bytes()).unwrap();
    assert_same(&csv("t.csv.gz", &zipped.finish().unwrap()), &by_columns());
    assert_same(&DataSource::Digits, &uniform(64, 10));
    let lines = "a long text of bytes";
    let file = put(&folder, "t.txt", lines.as_bytes());
    assert_same(&DataSource::Text { file, length: Some(4) }, &uniform(4, 1));
}

#[test]
fn parts_of_arrays_have_the_rows_of_the_whole() {
    let folder = TempDir::new().unwrap();
    let labels = put(&folder, "y.npy", &npy(&header("|u1", "(4,)"), &[0, 1, 1, 0]));
    let check = |header: &str, body: &[u8]| {
        let features = put(&folder, "x.npy", &npy(header, body));
        assert_same(&DataSource::Npy { features, labels: labels.clone() }, &uniform(2, 2));
    };
    let numbers = [0.5, -1.0, f64::NAN, 2.0, 3.0, 4.5, 1e9, 0.0];
    check(&header("<f8", "(4, 2)"), &numbers.map(f64::to_le_bytes).concat());
    check(&header(">f8", "(4, 1, 2)"), &numbers.map(f64::to_be_bytes).concat());
    check(&header("<f4", "(4, 2)"), &numbers.map(|n| (n as f32).to_le_bytes()).concat());
    check(&header("|u1", "(4, 2)"), &[1, 2, 3, 4, 5, 6, 7, 8]);
    let by_columns = header("|u1", "(4, 2)").replace("False", "True");
    check(&by_columns, &[1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn wrong_arrays_are_refused_in_parts_as_well() {
    let folder = TempDir::new().unwrap();
    let labels = put(&folder, "y.npy", &npy(&header("|u1", "(2,)"), &[0, 1]));
    let refused = |shape: &str, numbers: &[f32], message: &str| {
        let body: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let features = put(&folder, "x.npy", &npy(&header("<f4", shape), &body));
        let source = DataSource::Npy { features, labels: labels.clone() };
        let error = encoded(&source, &uniform(2, 2), 1).unwrap_err();
        assert!(error.contains(message), "{error}");
        let whole = load_table(&source).unwrap_err().to_string();
        assert_eq!(error, whole);
    };
    refused("(2, 2)", &[1.0, 2.0, 3.0], "it has 12 bytes of numbers, and its header declares 16");
    refused("(2, 2)", &[1.0, 2.0, 3.0, f32::INFINITY], "number 3 is infinite");
    refused("(1, 2)", &[1.0, 2.0], "must be equal");
    refused("(2, 0)", &[], "exceed a limit");
}

#[test]
fn an_error_in_a_part_has_its_place_in_the_source() {
    let folder = TempDir::new().unwrap();
    let error = |text: &str| {
        let file = put(&folder, "t.csv", text.as_bytes());
        encoded(&DataSource::Csv { file, label: "y".to_owned() }, &by_columns(), 2).unwrap_err()
    };
    let old = error(&CSV.replace("1e1", "old"));
    assert!(old.contains("line 6, column `age`: `old`"), "{old}");
    let label = error(&CSV.replace("1.0,c,yes", "1.0,c,perhaps"));
    assert!(label.contains("line 6: label `perhaps`"), "{label}");
    let far = error(&CSV.replace("1e1", "1e300"));
    assert!(far.contains("row 4, feature 0 is inf"), "{far}");
}

#[test]
fn a_quotation_without_an_end_does_not_fill_the_memory() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("t.csv");
    std::fs::write(&file, "a,y\n\"1,0\n").unwrap();
    // Zeros without blocks follow, twice as many as a record may have.
    std::fs::File::options().write(true).open(&file).unwrap().set_len(128 << 20).unwrap();
    let source = DataSource::Csv { file, label: "y".to_owned() };
    let error = encoded(&source, &uniform(1, 2), 10).unwrap_err();
    assert!(error.contains("a record of more than 67108864 bytes"), "{error}");
}

#[test]
fn parts_of_a_folder_of_images_have_the_rows_of_the_whole() {
    let folder = TempDir::new().unwrap();
    for (class, shade) in [("a", 0), ("a", 40), ("b", 80), ("b", 120), ("b", 200)] {
        let path = folder.path().join(format!("{class}/{shade}.png"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let image =
            image::GrayImage::from_fn(3, 3, |x, y| image::Luma([shade + (x + 3 * y) as u8]));
        image.save_with_format(&path, image::ImageFormat::Png).unwrap();
    }
    let channels = vec![NumberScale { offset: 1.0, factor: 0.01, fill: None }];
    let images = ImageEncoder { height: 2, width: 2, resize: None, channels };
    let encoder = RowEncoder {
        classes: 2,
        class_names: vec!["a".to_owned(), "b".to_owned()],
        features: FeatureEncoder::Images(images),
        target: None,
    };
    assert_same(&DataSource::Images { folder: folder.path().to_owned() }, &encoder);
}

#[test]
fn documents_become_the_tokens_of_the_whole_file() {
    let words = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2, "|": 3}, "unk_token": "?"},
    });
    let tokenizer = || TextTokenizer::from_bytes(words.to_string().as_bytes()).unwrap();
    let tokens = TokenEncoder { length: 3, separator: Some(3) };
    let features = FeatureEncoder::Tokens(tokens);
    let encoder = RowEncoder { classes: 1, class_names: Vec::new(), features, target: None };
    let folder = TempDir::new().unwrap();
    let source = |name: &str, bytes: &[u8]| DataSource::Text {
        file: put(&folder, name, bytes),
        length: None,
    };
    // More than one part of the file is read, and a row has tokens of two parts.
    let line = |number: usize| format!("{{\"text\": \"a b{} c\"}}\n\n", " b a".repeat(number % 7));
    let lines: String = (0..80_000).map(line).collect();
    assert!(lines.len() > 2 << 20);
    for source in [source("t.jsonl", lines.as_bytes()), source("t.txt", b"a b c b a")] {
        let whole = encoder.encode(&load_tokens(&source, &tokenizer(), tokens).unwrap()).unwrap();
        for rows in [1_000, 1 << 20] {
            let parts = table_parts(&source, Some((tokenizer(), tokens))).unwrap();
            assert_eq!(joined(parts, &encoder, rows), Ok(whole.clone()), "{source}");
        }
    }
    let damaged = source("d.jsonl", b"{\"text\": \"a b c\"}\n\n{\"txt\": 1}\n");
    let parts = table_parts(&damaged, Some((tokenizer(), tokens))).unwrap();
    let error = joined(parts, &encoder, 1).unwrap_err();
    assert!(error.contains("d.jsonl, line 3"), "{error}");
}

#[cfg(feature = "parquet")]
#[test]
fn parts_of_a_parquet_file_have_the_rows_of_the_whole() {
    use ::parquet::basic::Compression;

    use super::table_tests::parquet_files::bytes;

    let folder = TempDir::new().unwrap();
    let source = |bytes: &[u8]| DataSource::Parquet {
        file: put(&folder, "t.parquet", bytes),
        label: "y".to_owned(),
    };
    let role = |name: &str, role| ColumnEncoder { name: name.to_owned(), role };
    let scale = NumberScale::IDENTITY;
    let columns = vec![
        role("a", ColumnRole::Numeric { scale, missing_indicator: false }),
        role("hue", ColumnRole::OneHot(vec!["blue".to_owned(), "red".to_owned()])),
    ];
    let features = FeatureEncoder::Columns(columns);
    let encoder = RowEncoder { classes: 2, class_names: Vec::new(), features, target: None };
    let good = bytes(Compression::SNAPPY);
    assert_same(&source(&good), &encoder);
    let strict = RowEncoder { classes: 1, ..encoder.clone() };
    let error = encoded(&source(&good), &strict, 1).unwrap_err();
    assert!(error.contains("row 2: label `1`"), "{error}");
    let mut parts = table_parts(&source(&good), None).unwrap();
    let mut place = || parts.next_part(1).unwrap().map(|part| part.position(0));
    let places = [place(), place(), place(), place()];
    let rows = ["row 1", "row 2", "row 3"].map(|row| Some(row.to_owned()));
    assert_eq!((&places[..3], &places[3]), (&rows[..], &None));
    // Any flipped bit gives rows or an error; never a panic.
    for at in 0..good.len() {
        let mut flipped = good.clone();
        flipped[at] ^= 1 << (at % 8);
        let _ = encoded(&source(&flipped), &encoder, 1);
    }
}
