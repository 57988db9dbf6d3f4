//! Rules of a declared encoding.

use super::*;
use crate::bytes::Canonical;
use crate::limits::MESSAGE_BYTES_MAX;
use crate::task::TaskSpec;

fn number(offset: &str, factor: &str, fill: Option<&str>) -> NumberEncoding {
    NumberEncoding {
        offset: offset.parse().unwrap(),
        factor: factor.parse().unwrap(),
        fill: fill.map(|fill| fill.parse().unwrap()),
    }
}

fn numeric(name: &str) -> ColumnEncoding {
    let kind =
        ColumnKind::Numeric { number: number("1", "0.5", Some("2")), missing_indicator: false };
    ColumnEncoding { name: name.to_owned(), kind }
}

fn categorical(name: &str, categories: &[&str]) -> ColumnEncoding {
    let categories = categories.iter().map(|text| (*text).to_owned()).collect();
    ColumnEncoding { name: name.to_owned(), kind: ColumnKind::Categorical { categories } }
}

/// One number with an indicator, three categories, and a column without features: width 5.
fn encoding() -> RowEncoding {
    let mut age = numeric("age");
    if let ColumnKind::Numeric { missing_indicator, .. } = &mut age.kind {
        *missing_indicator = true;
    }
    let id = ColumnEncoding { name: "id".to_owned(), kind: ColumnKind::Ignored };
    RowEncoding {
        class_names: vec!["no".to_owned(), "yes".to_owned()],
        features: FeatureEncoding::Columns(vec![age, categorical("hue", &["a", "b", "c"]), id]),
        target: None,
    }
}

fn schema(encoding: RowEncoding) -> DataSchema {
    DataSchema { width: 5, classes: 2, encoding: Some(encoding) }
}

fn refused(encoding: RowEncoding) -> String {
    let schema = schema(encoding);
    schema.encoding.as_ref().unwrap().check(&schema).unwrap_err().to_string()
}

fn with_columns(columns: Vec<ColumnEncoding>) -> RowEncoding {
    RowEncoding { features: FeatureEncoding::Columns(columns), ..encoding() }
}

#[test]
fn a_valid_encoding_is_accepted() {
    let schema = schema(encoding());
    assert_eq!(schema.encoding.as_ref().unwrap().check(&schema), Ok(()));
}

#[test]
fn an_invalid_encoding_is_refused_with_its_key() {
    let mut names = encoding();
    names.class_names.push("maybe".to_owned());
    assert!(refused(names).contains("data.class_names = 3 names: the task has 2 classes"));
    let mut twice = encoding();
    twice.class_names = vec!["no".to_owned(), "no".to_owned()];
    assert!(refused(twice).contains("data.class_names = \"no\": occurs twice"));
    let uniform = RowEncoding {
        class_names: Vec::new(),
        features: FeatureEncoding::Uniform(number("0", "0", None)),
        target: None,
    };
    assert!(refused(uniform).contains("data.factor = 0: a factor must not be 0"));
    for (columns, part) in [
        (vec![], "0 columns: declare 1 to 512 columns"),
        (vec![numeric("a"), numeric("b")], "data.width = 5: the declared columns have 2 features"),
        (vec![numeric("a"), numeric("a")], "\"a\": occurs twice"),
        (vec![numeric(" a")], "\" a\": a name or category"),
        (vec![numeric("a\tb")], "a name or category"),
        (vec![numeric(&"x".repeat(129))], "1 to 128 bytes"),
        (vec![categorical("a", &["NA"])], "\"NA\": a name or category"),
        (vec![categorical("a", &[""])], "\"\": a name or category"),
        (vec![categorical("a", &[])], "a column has 1 to 256 categories"),
    ] {
        let message = refused(with_columns(columns));
        assert!(message.contains(part), "{message} lacks {part}");
    }
    let mut indicator = numeric("a");
    indicator.kind =
        ColumnKind::Numeric { number: number("0", "1", None), missing_indicator: true };
    assert!(refused(with_columns(vec![indicator])).contains("needs a fill"));
}

#[test]
fn the_size_of_an_encoding_is_limited() {
    let many: Vec<String> = (0..256).map(|n| format!("{n:0>128}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let columns = vec![categorical("a", &many), categorical("b", &many)];
    assert!(refused(with_columns(columns)).contains("at most 65536: declare fewer columns"));
    let columns = (0..513).map(|n| numeric(&n.to_string())).collect();
    assert!(refused(with_columns(columns)).contains("513 columns"));
    const { assert!(ENCODING_BYTES_MAX < MESSAGE_BYTES_MAX) };
}

#[test]
fn an_encoding_changes_the_task_and_survives_bytes_and_json() {
    let mut spec = TaskSpec::example();
    let plain = spec.id();
    spec.data.encoding = Some(encoding());
    assert_ne!(spec.id(), plain);
    assert_eq!(TaskSpec::from_bytes(&spec.to_bytes()).unwrap(), spec);
    let json = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<TaskSpec>(&json).unwrap(), spec);
    assert!(json.contains(r#""kind":{"categorical":{"categories":["a","b","c"]}}"#), "{json}");
    assert!(json.contains(r#""kind":"ignored""#), "{json}");
    assert!(spec.check().unwrap_err().to_string().contains("data."), "64 features are not 5");
}

#[test]
fn images_have_one_or_three_channels_and_the_width_of_the_row() {
    let images = |height, width, resize, channels: usize| {
        let channels = vec![number("1", "0.5", None); channels];
        let features = FeatureEncoding::Images(ImageEncoding { height, width, resize, channels });
        RowEncoding { class_names: Vec::new(), features, target: None }
    };
    let schema =
        |encoding: RowEncoding, width| DataSchema { width, classes: 2, encoding: Some(encoding) };
    let check = |encoding: RowEncoding, width| {
        let schema = schema(encoding, width);
        schema.encoding.as_ref().unwrap().check(&schema).map_err(|error| error.to_string())
    };
    assert_eq!(check(images(2, 3, Some(3), 3), 18), Ok(()));
    assert_eq!(check(images(2, 3, None, 1), 6), Ok(()));
    let mut filled = images(2, 3, None, 1);
    let FeatureEncoding::Images(inner) = &mut filled.features else { panic!("no images") };
    inner.channels[0].fill = Some(DecimalFloat::ZERO);
    for (encoding, part) in [
        (images(2, 3, Some(2), 3), "must be at least height and width"),
        (images(0, 3, None, 3), "must be 1 to 4096 pixels"),
        (images(4_096, 4_096, Some(4_097), 3), "must be 1 to 4096 pixels"),
        (images(2, 3, None, 2), "2 channels"),
        (images(2, 2, None, 3), "data.width = 18: the image has 3 × 2 × 2 numbers"),
        (filled, "a fill"),
    ] {
        let message = check(encoding, 18).unwrap_err();
        assert!(message.contains(part), "{message} lacks {part}");
    }
}

#[test]
fn tokens_need_a_graph_and_belong_to_its_consent() {
    let blob = Blob { digest: crate::id::Digest([7; 32]), bytes: 9 };
    let tokens = TokenEncoding { length: 4, tokenizer: blob, separator: Some(3) };
    let encoding = |tokens| RowEncoding {
        class_names: Vec::new(),
        features: FeatureEncoding::Tokens(tokens),
        target: None,
    };
    let check = |encoding: RowEncoding| {
        let schema = DataSchema { width: 4, classes: 1, encoding: Some(encoding) };
        schema.encoding.as_ref().unwrap().check(&schema).map_err(|error| error.to_string())
    };
    assert_eq!(check(encoding(tokens)), Ok(()));
    let large = Blob { bytes: TOKENIZER_BYTES_MAX + 1, ..blob };
    let mut named = encoding(tokens);
    named.class_names.push("a".to_owned());
    for (wrong, part) in [
        (encoding(TokenEncoding { length: 5, ..tokens }), "data.width = 4: a row has 5 tokens"),
        (encoding(TokenEncoding { tokenizer: large, ..tokens }), "1 to 67108864 bytes"),
        (encoding(TokenEncoding { separator: Some(TOKENS_MAX), ..tokens }), "below 16777216"),
        (named, "neither labels nor a target"),
    ] {
        let message = check(wrong).unwrap_err();
        assert!(message.contains(part), "{message} lacks {part}");
    }
    let mut spec = TaskSpec::example();
    assert_eq!(spec.tokenizer(), None);
    let blobs = spec.blobs().count();
    let width = spec.data.width;
    spec.data.encoding = Some(encoding(TokenEncoding { length: width, ..tokens }));
    assert_eq!(spec.tokenizer(), Some(blob));
    assert_eq!(spec.blobs().count(), blobs + 1);
    assert_eq!(spec.blob_bytes(blob.digest, 1), Some(9));
    assert_eq!(spec.blob_bytes(crate::id::Digest([8; 32]), 1), None);
    let error = spec.check().unwrap_err().to_string();
    assert!(error.contains("only a model of kind \"graph\" takes tokens"), "{error}");
}
