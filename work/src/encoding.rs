//! Converts a task's declared encoding into the encoder of its tables, and back.

use florin_learning::data::{
    ColumnEncoder, ColumnRole, FeatureEncoder, ImageEncoder, NumberScale, RowEncoder, TokenEncoder,
};
use florin_protocol::{
    ColumnEncoding, ColumnKind, DataSchema, DecimalFloat, FeatureEncoding, ImageEncoding,
    NumberEncoding, ParseDecimalFloatError, RowEncoding,
};

/// The encoder of a task's tables; `None` if the task declares no encoding.
#[must_use]
pub fn row_encoder(schema: &DataSchema) -> Option<RowEncoder> {
    let encoding = schema.encoding.as_ref()?;
    let to_usize = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    let features = match &encoding.features {
        FeatureEncoding::Uniform(number) => {
            let width = schema.width.saturating_sub(encoding.target.is_some().into());
            FeatureEncoder::Uniform { width: to_usize(width), scale: scale(number) }
        }
        FeatureEncoding::Columns(columns) => {
            FeatureEncoder::Columns(columns.iter().map(column_encoder).collect())
        }
        FeatureEncoding::Images(images) => FeatureEncoder::Images(ImageEncoder {
            height: to_usize(images.height),
            width: to_usize(images.width),
            resize: images.resize.map(to_usize),
            channels: images.channels.iter().map(scale).collect(),
        }),
        FeatureEncoding::Tokens(tokens) => FeatureEncoder::Tokens(TokenEncoder {
            length: to_usize(tokens.length),
            separator: tokens.separator,
        }),
    };
    let (classes, class_names) = (to_usize(schema.classes), encoding.class_names.clone());
    let target = encoding.target.as_ref().map(scale);
    Some(RowEncoder { classes, class_names, features, target })
}

/// A declaration does not follow from an encoder.
#[derive(Debug, thiserror::Error)]
pub enum DeclarationError {
    /// A number is beyond the range of a declaration.
    #[error(transparent)]
    Number(#[from] ParseDecimalFloatError),
    /// An encoder of tokens has no tokenizer.
    #[error("an encoding of tokens names its tokenizer")]
    Tokenizer,
}

/// The declaration of an encoder. That of tokens has a tokenizer besides, and is written by its task.
///
/// # Errors
/// [`DeclarationError`].
pub fn row_encoding(encoder: &RowEncoder) -> Result<RowEncoding, DeclarationError> {
    let features = match &encoder.features {
        FeatureEncoder::Tokens(_) => return Err(DeclarationError::Tokenizer),
        FeatureEncoder::Uniform { scale, .. } => FeatureEncoding::Uniform(number_encoding(scale)?),
        FeatureEncoder::Columns(columns) => {
            FeatureEncoding::Columns(columns.iter().map(column_encoding).collect::<Result<_, _>>()?)
        }
        FeatureEncoder::Images(images) => FeatureEncoding::Images(ImageEncoding {
            height: to_u32(images.height),
            width: to_u32(images.width),
            resize: images.resize.map(to_u32),
            channels: images.channels.iter().map(number_encoding).collect::<Result<_, _>>()?,
        }),
    };
    let target = encoder.target.as_ref().map(number_encoding).transpose()?;
    Ok(RowEncoding { class_names: encoder.class_names.clone(), features, target })
}

/// The declaration of a scale.
///
/// # Errors
/// [`ParseDecimalFloatError`] if a number is beyond the range of a declaration.
pub fn number_encoding(scale: &NumberScale) -> Result<NumberEncoding, ParseDecimalFloatError> {
    Ok(NumberEncoding {
        offset: to_decimal(scale.offset)?,
        factor: to_decimal(scale.factor)?,
        fill: scale.fill.map(to_decimal).transpose()?,
    })
}

/// The protocol refuses sizes that are far smaller.
fn to_u32(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

fn column_encoder(column: &ColumnEncoding) -> ColumnEncoder {
    let role = match &column.kind {
        ColumnKind::Numeric { number, missing_indicator } => {
            ColumnRole::Numeric { scale: scale(number), missing_indicator: *missing_indicator }
        }
        ColumnKind::Categorical { categories } => ColumnRole::OneHot(categories.clone()),
        ColumnKind::Ignored => ColumnRole::Ignored,
    };
    ColumnEncoder { name: column.name.clone(), role }
}

fn column_encoding(column: &ColumnEncoder) -> Result<ColumnEncoding, ParseDecimalFloatError> {
    let kind = match &column.role {
        ColumnRole::Numeric { scale, missing_indicator } => ColumnKind::Numeric {
            number: number_encoding(scale)?,
            missing_indicator: *missing_indicator,
        },
        ColumnRole::OneHot(categories) => {
            ColumnKind::Categorical { categories: categories.clone() }
        }
        ColumnRole::Ignored => ColumnKind::Ignored,
    };
    Ok(ColumnEncoding { name: column.name.clone(), kind })
}

/// The scale by which a task encodes labels that are numbers.
#[must_use]
pub fn target_scale(schema: &DataSchema) -> Option<NumberScale> {
    schema.encoding.as_ref()?.target.as_ref().map(scale)
}

fn scale(number: &NumberEncoding) -> NumberScale {
    NumberScale {
        offset: to_f64(number.offset),
        factor: to_f64(number.factor),
        fill: number.fill.map(to_f64),
    }
}

/// The binary64 number that is nearest to a decimal number.
fn to_f64(number: DecimalFloat) -> f64 {
    number.to_string().parse().expect("a decimal number is a number")
}

/// The shortest decimal number to which a binary64 number is the nearest.
fn to_decimal(number: f64) -> Result<DecimalFloat, ParseDecimalFloatError> {
    format!("{number:e}").parse()
}

#[cfg(test)]
mod tests {
    use florin_learning::DataSource;
    use florin_learning::data::load_table;

    use super::*;

    #[test]
    fn both_lists_of_missing_values_are_equal() {
        assert_eq!(florin_learning::data::MISSING_TEXTS, florin_protocol::encoding::MISSING_VALUES);
    }

    /// `check.py` verifies the same vectors in Python.
    #[test]
    fn tables_are_encoded_as_the_vectors_state() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = file.join("../protocol/vectors/encodings.json");
        let vectors: serde_json::Value =
            serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        for vector in vectors.as_array().unwrap() {
            let encoding = serde_json::from_value(vector["encoding"].clone()).unwrap();
            let texts = |value: &serde_json::Value| -> Vec<String> {
                serde_json::from_value(value.clone()).unwrap()
            };
            let cells = vector["cells"].as_array().unwrap().iter().map(texts);
            let lines: Vec<String> = std::iter::once(texts(&vector["header"]))
                .chain(cells)
                .map(|cells| cells.join(","))
                .collect();
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), lines.join("\n")).unwrap();
            let label = vector["label"].as_str().unwrap().to_owned();
            let source = DataSource::Csv { file: file.path().to_owned(), label };
            let schema = DataSchema { width: 0, classes: 3, encoding: Some(encoding) };
            let table = load_table(&source).unwrap();
            let data = row_encoder(&schema).unwrap().encode(&table).unwrap();
            let row = |at: usize| {
                let features = data.row(at).iter().flat_map(|feature| feature.to_le_bytes());
                let bytes = features.chain(data.labels()[at].to_le_bytes());
                bytes.map(|byte| format!("{byte:02x}")).collect::<String>()
            };
            let rows: Vec<String> = (0..data.rows()).map(row).collect();
            assert_eq!(rows, texts(&vector["rows"]), "{}", vector["name"]);
        }
    }

    /// `images.py` verifies the same vectors in Python.
    #[test]
    fn images_are_encoded_as_the_vectors_state() {
        #[derive(serde::Deserialize)]
        struct Vector {
            name: String,
            encoding: FeatureEncoding,
            pixels: Vec<Vec<[u8; 3]>>,
            row: String,
        }
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let vectors = std::fs::read(file.join("../protocol/vectors/images.json")).unwrap();
        let vectors: Vec<Vector> = serde_json::from_slice(&vectors).unwrap();
        for Vector { name, encoding: features, pixels, row } in vectors {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join("0")).unwrap();
            let (height, width) = (pixels.len() as u32, pixels[0].len() as u32);
            let image = image::RgbImage::from_raw(width, height, pixels.concat().concat());
            let path = folder.path().join("0/x.png");
            image.unwrap().save_with_format(path, image::ImageFormat::Png).unwrap();
            let encoding = RowEncoding { class_names: Vec::new(), features, target: None };
            let schema = DataSchema { width: 0, classes: 1, encoding: Some(encoding) };
            let source = DataSource::Images { folder: folder.path().to_owned() };
            let encoder = row_encoder(&schema).unwrap();
            let data = encoder.encode(&load_table(&source).unwrap()).unwrap();
            let bytes = data.features().iter().flat_map(|feature| feature.to_le_bytes());
            assert_eq!(bytes.map(|byte| format!("{byte:02x}")).collect::<String>(), row, "{name}");
            assert_eq!(Some(row_encoding(&encoder).unwrap()), schema.encoding);
        }
    }

    #[test]
    fn an_encoder_survives_its_declaration_to_the_bit() {
        let numbers = [0.0, -1.0, 1.0 / 255.0, 14.127_291_739_894_563, 1e-30, 5e20, f64::EPSILON];
        for offset in numbers {
            let fill = Some(offset * 3.0);
            let scale = NumberScale { offset, factor: 0.1 + offset, fill };
            let role = ColumnRole::Numeric { scale, missing_indicator: true };
            let hue = ColumnRole::OneHot(vec!["a".to_owned(), "b".to_owned()]);
            let columns = [("x", role), ("hue", hue), ("id", ColumnRole::Ignored)];
            let columns = columns.map(|(name, role)| ColumnEncoder { name: name.to_owned(), role });
            let encoder = RowEncoder {
                classes: 2,
                class_names: vec!["no".to_owned(), "yes".to_owned()],
                features: FeatureEncoder::Columns(columns.to_vec()),
                target: None,
            };
            let encoding = Some(row_encoding(&encoder).unwrap());
            let schema = DataSchema { width: 4, classes: 2, encoding };
            assert_eq!(row_encoder(&schema), Some(encoder));
        }
        let huge = NumberScale { offset: 1e300, factor: 1.0, fill: None };
        assert!(number_encoding(&huge).is_err());
    }
}
