//! Tables from files, their encodings, and encodings that fit them.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;

pub(super) fn put(folder: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn csv_table(folder: &TempDir, text: &str) -> Table {
    let file = put(folder, "t.csv", text.as_bytes());
    load_table(&DataSource::Csv { file, label: "y".into() }).unwrap()
}

fn numeric(name: &str, scale: NumberScale, missing_indicator: bool) -> ColumnEncoder {
    ColumnEncoder { name: name.into(), role: ColumnRole::Numeric { scale, missing_indicator } }
}

fn encoder() -> RowEncoder {
    let scale = NumberScale { offset: 10.0, factor: 0.5, fill: Some(12.0) };
    let hue = ["red", "2"].map(str::to_owned).to_vec();
    RowEncoder {
        classes: 2,
        class_names: vec!["no".into(), "yes".into()],
        features: FeatureEncoder::Columns(vec![
            numeric("age", scale, true),
            ColumnEncoder { name: "hue".into(), role: ColumnRole::OneHot(hue) },
            ColumnEncoder { name: "id".into(), role: ColumnRole::Ignored },
        ]),
        target: None,
    }
}

fn fitted(table: &Table, kind: ScaleKind) -> Result<RowEncoder, FitError> {
    fit(table, &TableProfile::new(table), kind)
}

#[test]
fn cells_are_encoded_by_the_name_of_their_column() {
    let folder = TempDir::new().unwrap();
    let table = csv_table(
        &folder,
        "y,hue,id,age\nyes, red ,a,14\nno,2.0,b,NA\nno,blue,c,1.1e1\nyes,,d,10\n",
    );
    let data = encoder().encode(&table).unwrap();
    assert_eq!(data.labels(), [1, 0, 0, 1]);
    assert_eq!(data.row(0), [2.0, 0.0, 1.0, 0.0]);
    assert_eq!(data.row(1), [1.0, 1.0, 0.0, 1.0], "the fill, its indicator, and 2.0 is 2");
    assert_eq!(data.row(2), [0.5, 0.0, 0.0, 0.0], "an unknown category is zeros");
    assert_eq!(data.row(3), [0.0, 0.0, 0.0, 0.0], "a missing category is zeros");
}

#[test]
fn the_order_of_columns_and_the_delimiter_do_not_matter() {
    let folder = TempDir::new().unwrap();
    let a = csv_table(&folder, "age,hue,id,y\n14,red,a,yes\n?,x,b,no\n");
    for delimiter in [";", "\t", "|"] {
        let text = "y;id;age;hue\nyes;a;14;red\nno;b;NaN;x\n".replace(';', delimiter);
        let b = csv_table(&folder, &text);
        assert_eq!(encoder().encode(&a), encoder().encode(&b), "{delimiter:?}");
    }
}

#[test]
fn a_file_without_a_line_and_one_in_utf_16_are_refused_with_the_remedy() {
    let folder = TempDir::new().unwrap();
    let utf_16: Vec<u8> = "\u{feff}a,y\n1,0\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let swapped: Vec<u8> = utf_16.chunks_exact(2).flat_map(|pair| [pair[1], pair[0]]).collect();
    for (bytes, message) in [
        (&b""[..], "t.csv is empty; the first line must name the columns"),
        (b" \r\n\n", "t.csv is empty"),
        (&utf_16, "t.csv is UTF-16; save the file as UTF-8 (iconv -f utf-16 -t utf-8)"),
        (&swapped, "t.csv is UTF-16"),
    ] {
        let file = put(&folder, "t.csv", bytes);
        let source = DataSource::Csv { file: file.clone(), label: "y".into() };
        for error in [
            load_table(&source).unwrap_err().to_string(),
            csv::load(&file, "y").unwrap_err().to_string(),
            csv::parts(&file, "y").err().unwrap().to_string(),
        ] {
            assert!(error.contains(message), "{bytes:?} gave: {error}");
        }
    }
}

#[test]
fn a_table_that_does_not_fit_is_refused_with_column_and_line() {
    let folder = TempDir::new().unwrap();
    for (text, message) in [
        ("age,hue,y\n1,red,no\n", "column `id` is missing; the task declares age, hue, id"),
        ("age,hue,id,size,y\n1,red,a,3,no\n", "column `size` is not one of the task's columns"),
        ("age,hue,y\n1,red,1\n", "column `id` is missing"),
        ("age,hue,id,y\n1,red,a,no\nold,red,b,no\n", "line 3, column `age`: `old`"),
        ("age,hue,id,y\n1,red,a,perhaps\n", "line 2: label `perhaps`; must be one of no, yes"),
        ("age,hue,id,y\n1,red,a,\n", "line 2: no label; must be one of no, yes"),
        ("age,hue,id,y\n1,red,a,1\n", "line 2: label `1`; must be one of no, yes"),
    ] {
        let error = encoder().encode(&csv_table(&folder, text)).unwrap_err().to_string();
        assert!(error.contains(message), "{text:?} gave: {error}");
    }
    let strict = RowEncoder {
        features: FeatureEncoder::Columns(vec![numeric("age", NumberScale::IDENTITY, false)]),
        ..encoder()
    };
    let error = strict.encode(&csv_table(&folder, "age,y\n1,no\nNA,no\n")).unwrap_err();
    assert!(error.to_string().starts_with("line 3, column `age`: missing value"), "{error}");
    let whole = RowEncoder { class_names: Vec::new(), ..strict };
    for label in ["2", "-1", "0.5", "x", "1e30"] {
        let table = csv_table(&folder, &format!("age,y\n1,{label}\n"));
        let error = whole.encode(&table).unwrap_err().to_string();
        assert!(error.contains("must be a whole number from 0 to 1"), "{error}");
    }
    let digits = load_table(&DataSource::Digits).unwrap();
    let features = FeatureEncoder::Uniform { width: 64, scale: NumberScale::IDENTITY };
    assert_eq!(
        RowEncoder { features, ..encoder() }.encode(&digits),
        Err(EncodeError::UnknownLabel {
            place: "row 1".into(),
            label: "0".into(),
            expected: "one of no, yes".into(),
        })
    );
    let unnamed = RowEncoder { class_names: Vec::new(), classes: 10, ..encoder() };
    assert_eq!(unnamed.encode(&digits), Err(EncodeError::Width { found: 64, width: 3 }));
}

#[test]
fn the_arithmetic_of_a_number_is_exact() {
    // (100.1 − 99.7) · 0.3 in binary64 and then in binary32; in binary32 alone seven bits differ.
    let scale = NumberScale { offset: 99.7, factor: 0.3, fill: None };
    let folder = TempDir::new().unwrap();
    let features = FeatureEncoder::Columns(vec![numeric("a", scale, false)]);
    let encoder = RowEncoder { classes: 1, class_names: Vec::new(), features, target: None };
    let data = encoder.encode(&csv_table(&folder, "a,y\n100.1,0\n")).unwrap();
    assert_eq!(data.features()[0].to_bits(), 0x3df5_c28f);
    let single = (100.1_f32 - 99.7) * 0.3;
    assert_eq!(single.to_bits(), 0x3df5_c2cd);
}

#[test]
fn images_and_a_table_of_their_pixels_are_encoded_alike() {
    let folder = TempDir::new().unwrap();
    let pixels: Vec<u8> = (0..=255).collect();
    let header = [0_u32, 64, 2, 2].map(u32::to_be_bytes).concat();
    let images = [&[0, 0, 8, 3], &header[4..], &pixels].concat();
    let labels = [&[0, 0, 8, 1, 0, 0, 0, 64][..], &[0, 1, 2, 3].repeat(16)].concat();
    let source = DataSource::Idx {
        images: put(&folder, "images", &images),
        labels: put(&folder, "labels", &labels),
    };
    let mut text = "a,b,c,d,y\n".to_owned();
    for (row, of_row) in pixels.chunks(4).enumerate() {
        of_row.iter().for_each(|pixel| text.push_str(&format!("{pixel},")));
        text.push_str(&format!("{}\n", row % 4));
    }
    let table = csv_table(&folder, &text);
    let images = load_table(&source).unwrap();
    for kind in [ScaleKind::Standard, ScaleKind::MinMax, ScaleKind::None] {
        let encoder = fitted(&images, kind).unwrap();
        let (a, b) = (encoder.encode(&images).unwrap(), encoder.encode(&table).unwrap());
        assert_eq!((a.features(), a.labels()), (b.features(), b.labels()), "{kind:?}");
        if kind == ScaleKind::MinMax {
            assert_eq!(a, load(&source).unwrap(), "a task without encoding scales alike");
        }
        // The task was made from the table, and a participant has the images.
        let encoder = fitted(&table, kind).unwrap();
        assert!(matches!(encoder.features, FeatureEncoder::Columns(_)));
        assert_eq!(encoder.encode(&images), encoder.encode(&table), "{kind:?}");
    }
    let hue = ColumnRole::OneHot(vec!["red".into()]);
    let columns =
        ["a", "b", "c", "d"].map(|name| ColumnEncoder { name: name.into(), role: hue.clone() });
    let features = FeatureEncoder::Columns(columns.to_vec());
    let texts = RowEncoder { classes: 4, class_names: Vec::new(), features, target: None };
    assert_eq!(texts.encode(&images), Err(EncodeError::NoTexts { name: "a".into() }));
}

#[test]
fn an_encoding_fits_numbers_categories_and_labels() {
    let folder = TempDir::new().unwrap();
    let table = csv_table(
        &folder,
        "a,same,hue,one,b,y\n1,1,x,5,0,p\n2,2,y,5,1,q\n3,3,,5,NA,p\n4,4,x,5,3,p\n",
    );
    let profile = TableProfile::new(&table);
    let encoder = fit(&table, &profile, ScaleKind::Standard).unwrap();
    assert_eq!((encoder.class_names.clone(), encoder.width()), (vec!["p".into(), "q".into()], 4));
    let treatments: Vec<Treatment> = profile.columns.iter().map(|c| c.treatment.clone()).collect();
    let ignored = |reason| Treatment::Ignored(reason);
    assert_eq!(
        treatments,
        [
            Treatment::Scaled,
            ignored(IgnoredReason::Duplicate("a".into())),
            Treatment::OneHot,
            ignored(IgnoredReason::Constant),
            Treatment::Scaled,
        ]
    );
    assert_eq!(profile.columns[2].missing, 1);
    let data = encoder.encode(&table).unwrap();
    let column = |at: usize| (0..4).map(|row| f64::from(data.row(row)[at])).collect::<Vec<_>>();
    for (at, values) in [(0, column(0)), (3, column(3))] {
        let mean = values.iter().sum::<f64>() / 4.0;
        assert!(mean.abs() < 1e-6, "feature {at} has mean {mean}");
    }
    assert_eq!(column(3)[2], 0.0, "a missing value becomes the mean");
    let FeatureEncoder::Columns(columns) = &encoder.features else { panic!("columns") };
    let ColumnRole::Numeric { scale, .. } = &columns[0].role else { panic!("a number") };
    assert_eq!((scale.offset, scale.factor, scale.fill), (2.5, 1.0 / 1.25_f64.sqrt(), Some(2.5)));
}

#[test]
fn columns_that_are_no_features_are_found() {
    let folder = TempDir::new().unwrap();
    let mut text = ",name,y\n".to_owned();
    (0..20).for_each(|row| text.push_str(&format!("{row},n{row},{}\n", row % 2)));
    let profile = TableProfile::new(&csv_table(&folder, &text));
    let found: Vec<_> = profile.columns.iter().map(|c| (c.name.as_str(), &c.treatment)).collect();
    assert_eq!(
        found,
        [
            ("unnamed 1", &Treatment::Ignored(IgnoredReason::RowNumber)),
            ("name", &Treatment::Ignored(IgnoredReason::ManyTexts)),
        ]
    );
    assert_eq!(fitted(&csv_table(&folder, &text), ScaleKind::None), Err(FitError::NoFeature));
}

#[test]
fn a_table_without_an_encoding_is_refused() {
    let folder = TempDir::new().unwrap();
    let mut typo = "a,y\noops,0\n".to_owned();
    (0..99).for_each(|row| typo.push_str(&format!("{}.5,{}\n", row * row, row % 2)));
    let mut quantity = "a,y\n".to_owned();
    (0..1_001).for_each(|row| quantity.push_str(&format!("{},{row}.5\n", row % 7)));
    let rows = |cell: &dyn Fn(usize) -> String| {
        (0..99).fold("a;y\n".to_owned(), |text, row| format!("{text}{};{}\n", cell(row), row % 2))
    };
    let ages = |step: usize| {
        (0..105)
            .fold("a,y\n".to_owned(), |text, row| format!("{text}{},{}\n", row * row, row / step))
    };
    let (percent, euros) = (rows(&|row| format!("{row}.5%")), rows(&|row| format!("€ {row}")));
    let (decimal, grouped) =
        (rows(&|row| format!("-{row},25")), rows(&|row| format!("1,{:03}.5", row)));
    let (dates, versions) =
        (rows(&|row| format!("2024-01-{row}")), rows(&|row| format!("1.{row}.2")));
    let (few_each, classes) = (ages(4), ages(5));
    for (text, message) in [
        (percent.as_str(), "column `a` has numbers like `0.5%` (line 2)"),
        (&euros, "column `a` has numbers like `€ 0`"),
        (&decimal, "column `a` has numbers like `-0,25`"),
        (&grouped, "column `a` has numbers like `1,000.5`"),
        (&dates, "no column can be a feature"),
        (&versions, "no column can be a feature"),
        (&few_each, "27 different values in 105 rows"),
        (&typo, "column `a` has 99 numbers and the text `oops` (line 2)"),
        (&quantity, "the label column has 1001 different values"),
        ("a,y\n1,x\n2,x\n", "all labels are equal"),
        ("a,y\n1,x\n2,\n", "line 3: no label"),
        ("a,y\n1,0\n2,NA\n", "line 3: no label"),
    ] {
        let error = fitted(&csv_table(&folder, text), ScaleKind::Standard).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let table = csv_table(&folder, &classes);
    assert_eq!(fitted(&table, ScaleKind::Standard).unwrap().classes, 21);
}

#[test]
fn a_wide_table_has_one_scale_and_is_refused_if_its_columns_differ() {
    let folder = TempDir::new().unwrap();
    let wide = |factor: usize| {
        let mut text = (0..513).map(|at| format!("c{at},")).collect::<String>() + "y\n";
        for row in 0..6 {
            let cell = |at: usize| (at + row) % 5 * if at == 7 { factor } else { 1 };
            text.extend((0..513).map(|at| format!("{},", cell(at))));
            text.push_str(&format!("{}\n", row % 2));
        }
        fitted(&csv_table(&folder, &text), ScaleKind::MinMax)
    };
    assert!(matches!(wide(100).unwrap().features, FeatureEncoder::Uniform { width: 513, .. }));
    let error = wide(101).unwrap_err().to_string();
    assert!(error.starts_with("column `c7` varies 101 times as much as most columns"), "{error}");
}

#[test]
fn a_file_that_is_not_utf_8_is_refused_with_its_line() {
    let folder = TempDir::new().unwrap();
    for (bytes, line) in [(&b"gr\xf6\xdfe,y\n1,0\n"[..], 1), (b"a,y\n1,0\n2,\xe9\n", 3)] {
        let source = DataSource::Csv { file: put(&folder, "t.csv", bytes), label: "y".into() };
        for error in [load_table(&source).unwrap_err(), load(&source).unwrap_err()] {
            let error = error.to_string();
            assert!(error.contains(&format!("line {line}: not UTF-8; save")), "{error}");
        }
    }
}

#[test]
fn labels_that_do_not_count_from_zero_get_names() {
    let folder = TempDir::new().unwrap();
    for (labels, names) in [
        (["0", "1", "2"], vec![]),
        (["2.0", "0", "1"], vec![]),
        (["3", "10", "3"], vec!["3", "10"]),
        (["0", "2", "0"], vec!["0", "2"]),
        (["-1", "1", "1"], vec!["-1", "1"]),
        (["b", "a", "b"], vec!["a", "b"]),
    ] {
        let [a, b, c] = labels;
        let table = csv_table(&folder, &format!("x,y\n1,{a}\n2,{b}\n4,{c}\n"));
        let encoder = fitted(&table, ScaleKind::None).unwrap();
        assert_eq!(encoder.class_names, names, "{labels:?}");
        encoder.encode(&table).unwrap();
    }
    let digits =
        fitted(&load_table(&DataSource::Digits).unwrap().slice(0..3).unwrap(), ScaleKind::MinMax)
            .unwrap();
    assert_eq!(digits.classes, 10, "a slice of the digits still has ten classes");
}

/// A `.npy` file of version 1 with this header.
pub(super) fn npy(header: &str, body: &[u8]) -> Vec<u8> {
    let length = (header.len() as u16).to_le_bytes();
    [&b"\x93NUMPY\x01\x00"[..], &length, header.as_bytes(), body].concat()
}

pub(super) fn header(descr: &str, shape: &str) -> String {
    format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}   \n")
}

fn npy_table(folder: &TempDir, features: &[u8], labels: &[u8]) -> Result<Table, LoadError> {
    let features = put(folder, "x.npy", features);
    load_table(&DataSource::Npy { features, labels: put(folder, "y.npy", labels) })
}

#[test]
fn numpy_arrays_of_every_type_load() {
    let folder = TempDir::new().unwrap();
    let labels = npy(&header("|u1", "(2,)"), &[0, 1]);
    let f8 = [-1.5_f64, 2.0].map(f64::to_le_bytes).concat();
    for (descr, body) in [
        ("<f8", f8.clone()),
        (">f8", [-1.5_f64, 2.0].map(f64::to_be_bytes).concat()),
        ("<f4", [-1.5_f32, 2.0].map(f32::to_le_bytes).concat()),
    ] {
        let file = npy(&header(descr, "(2, 1)"), &body);
        let TableFeatures::Matrix { width, values } =
            npy_table(&folder, &file, &labels).unwrap().features().clone()
        else {
            panic!("a matrix")
        };
        assert_eq!((width, values.value(0), values.value(1)), (1, -1.5, 2.0), "{descr}");
    }
    for (descr, body, expected) in [
        ("|i1", vec![0xff, 2], [-1.0, 2.0]),
        ("|b1", vec![1, 0], [1.0, 0.0]),
        ("<i2", vec![0xfe, 0xff, 2, 0], [-2.0, 2.0]),
        (">u2", vec![1, 0, 0, 2], [256.0, 2.0]),
        ("<i8", [-3_i64, 4].map(i64::to_le_bytes).concat(), [-3.0, 4.0]),
        ("<u4", [u32::MAX, 4].map(u32::to_le_bytes).concat(), [4_294_967_295.0, 4.0]),
    ] {
        let file = npy(&header(descr, "(2,)"), &body);
        let data = npy_table(&folder, &file, &labels).unwrap();
        let TableFeatures::Matrix { values, .. } = data.features() else { panic!("a matrix") };
        assert_eq!([values.value(0), values.value(1)], expected, "{descr}");
    }
    let by_column = header("<i2", "(2, 3)").replace("False", "True");
    let by_column = npy(&by_column, &[1_i16, 4, 2, 5, 3, 6].map(i16::to_le_bytes).concat());
    let table = npy_table(&folder, &by_column, &labels).unwrap();
    let TableFeatures::Matrix { values, .. } = table.features() else { panic!("a matrix") };
    let values: Vec<f64> = (0..6).map(|at| values.value(at)).collect();
    assert_eq!(values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "row after row");
    let images = npy(&header("|u1", "(2, 2, 3)"), &[7; 12]);
    assert_eq!(npy_table(&folder, &images, &labels).unwrap().columns(), 6);
    let plain = DataSource::Npy {
        features: put(&folder, "a.npy", &npy(&header("<f8", "(2, 1)"), &f8)),
        labels: put(&folder, "b.npy", &labels),
    };
    assert_eq!(load(&plain).unwrap().features(), [-1.5, 2.0]);
}

#[test]
fn a_damaged_numpy_file_is_refused_with_its_reason() {
    let folder = TempDir::new().unwrap();
    let labels = npy(&header("|u1", "(2,)"), &[0, 1]);
    let fortran = header("<f4", "(2, 1, 1)").replace("False", "True");
    let infinite = f64::INFINITY.to_le_bytes();
    for (file, message) in [
        (b"PK\x03\x04".to_vec(), "it does not begin with"),
        (b"\x93NUMPY\x01".to_vec(), "its header is cut off"),
        (b"\x93NUMPY\x09\x00\x01\x00 ".to_vec(), "its version is not 1 to 3"),
        (b"\x93NUMPY\x01\x00\xff\x00{".to_vec(), "its header is cut off"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{".to_vec(), "its header has 4294967295 bytes"),
        (npy("{}", &[]), "its header is not that of an array of numbers"),
        (npy(&fortran, &[0; 8]), "Fortran order"),
        (
            npy(&header("<U5", "(2, 1)"), &[]),
            "its type is \"<U5\"; must be bool, an integer, float32 or float64: write texts",
        ),
        (npy(&header("<f2", "(2, 1)"), &[]), "float64: save x.astype(\"float32\")"),
        (npy(&header("|O", "(2, 1)"), &[]), "its type is \"|O\""),
        (npy(&header("é", "(2, 1)"), &[]), "its type is"),
        (npy(&header("<f4", "(2, 1)"), &[0; 7]), "it has 7 bytes of numbers, and its header"),
        (npy(&header("<f4", "()"), &[0; 4]), "a single number"),
        (npy(&header("<f4", "(2, x)"), &[0; 4]), "not that of an array"),
        (npy(&header("<f8", "(18446744073709551615, 9)"), &[]), "declares more"),
        (npy(&header("<f8", "(2, 0)"), &[]), "exceed a limit"),
        (npy(&header("<f8", "(0, 99999999999, 99999999999)"), &[]), "has 0 rows, but"),
        (npy(&header("<f8", "(1, 1)"), &infinite), "number 0 is infinite"),
        (npy(&header("|u1", "(1,1,1,1,1,1,1,1,1)"), &[1]), "9 dimensions"),
    ] {
        let error = npy_table(&folder, &file, &labels).unwrap_err().to_string();
        assert!(error.contains(message) && error.contains("x.npy"), "{error}");
    }
    let three = npy(&header("|u1", "(3, 1)"), &[0; 3]);
    let error = npy_table(&folder, &three, &labels).unwrap_err().to_string();
    assert!(error.contains("has 3 rows, but"), "{error}");
}

/// A NumPy archive of these arrays.
fn npz(folder: &TempDir, arrays: &[(&str, &[u8])]) -> PathBuf {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in arrays {
        archive.start_file(*name, zip::write::FileOptions::default()).unwrap();
        std::io::Write::write_all(&mut archive, bytes).unwrap();
    }
    put(folder, "rows.npz", &archive.finish().unwrap().into_inner())
}

#[test]
fn a_numpy_archive_loads_as_its_two_arrays() {
    let folder = TempDir::new().unwrap();
    let x = npy(&header("<f4", "(2, 1)"), &[1.5_f32, 2.0].map(f32::to_le_bytes).concat());
    let y = npy(&header("|u1", "(2,)"), &[0, 1]);
    let file = npz(&folder, &[("x.npy", &x), ("y.npy", &y)]);
    let read = |arrays: &str| {
        let source: DataSource = format!("{}#{arrays}", file.display()).parse().unwrap();
        assert_eq!(source.to_string().parse::<DataSource>().unwrap(), source);
        load(&source).map(|data| (data.features().to_vec(), data.labels().to_vec()))
    };
    let loaded = (vec![1.5, 2.0], vec![0, 1]);
    assert_eq!(read("y").unwrap(), loaded);
    assert_eq!(read("x,y").unwrap(), loaded);
    let refused = |arrays: &str| read(arrays).unwrap_err().to_string();
    assert!(refused("z").contains("no array `z`; its arrays are: x, y"), "{}", refused("z"));
    assert!(refused("a,y").contains("no array `a`"), "{}", refused("a,y"));
    npz(&folder, &[("x.npy", &x), ("y.npy", &y), ("z.npy", &y), ("note.txt", b"")]);
    assert!(refused("y").contains("one array besides `y`"), "{}", refused("y"));
    assert_eq!(read("x,y").unwrap(), loaded);
    npz(&folder, &[("x.npy", &x[..x.len() - 1]), ("y.npy", &y)]);
    assert!(refused("y").contains("rows.npz/x.npy"), "{}", refused("y"));
    std::fs::write(&file, b"PK").unwrap();
    assert!(refused("y").contains("not a usable .npz file"), "{}", refused("y"));
}

#[cfg(feature = "parquet")]
pub(super) mod parquet_files {
    use std::sync::Arc;

    use ::parquet::basic::Compression;
    use ::parquet::data_type::{ByteArrayType, DoubleType, Int64Type};
    use ::parquet::file::properties::WriterProperties;
    use ::parquet::file::writer::SerializedFileWriter;
    use ::parquet::schema::parser::parse_message_type;

    use super::*;

    const SCHEMA: &str = "message m { REQUIRED DOUBLE a; OPTIONAL BYTE_ARRAY hue (UTF8); \
        REQUIRED INT64 y; }";

    pub(in super::super) fn bytes(compression: Compression) -> Vec<u8> {
        let mut out = Vec::new();
        let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
        let how = Arc::new(WriterProperties::builder().set_compression(compression).build());
        let mut writer = SerializedFileWriter::new(&mut out, schema, how).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<DoubleType>().write_batch(&[1.5, -2.0, 0.25], None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let hues = ["red".into(), "blue".into()];
        column.typed::<ByteArrayType>().write_batch(&hues, Some(&[1, 0, 1]), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&[0, 1, 0], None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        out
    }

    fn open(folder: &TempDir, bytes: &[u8], label: &str) -> Result<Table, LoadError> {
        let file = put(folder, "t.parquet", bytes);
        load_table(&DataSource::Parquet { file, label: label.into() })
    }

    #[test]
    fn a_parquet_file_equals_the_csv_file_of_its_cells() {
        let folder = TempDir::new().unwrap();
        let csv = csv_table(&folder, "a,hue,y\n1.5,red,0\n-2,,1\n0.25,blue,0\n");
        let snappy_and_zstd = [Compression::SNAPPY, Compression::ZSTD(Default::default())];
        for compression in [Compression::UNCOMPRESSED].into_iter().chain(snappy_and_zstd) {
            let table = open(&folder, &bytes(compression), "y").unwrap();
            assert_eq!((table.features(), table.labels()), (csv.features(), csv.labels()));
        }
    }

    #[test]
    fn a_damaged_parquet_file_is_refused() {
        let folder = TempDir::new().unwrap();
        let good = bytes(Compression::SNAPPY);
        let error = open(&folder, &good, "z").unwrap_err().to_string();
        assert!(
            error.contains("no column `z` for the label; the columns are a, hue, y"),
            "{error}"
        );
        for cut in [0, 3, good.len() / 2, good.len() - 1] {
            let error = open(&folder, &good[..cut], "y").unwrap_err().to_string();
            assert!(error.contains("t.parquet is not a valid Parquet file"), "{error}");
        }
        // Any flipped bit gives a table or an error; never a panic.
        for at in 0..good.len() {
            let mut flipped = good.clone();
            flipped[at] ^= 1 << (at % 8);
            let _ = open(&folder, &flipped, "y");
        }
    }
}
