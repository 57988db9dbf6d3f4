//! Encoding of rows as a task declares it, so that all participants and the buyer encode equal rows
//! as equal features. `docs/protocol.md` has the arithmetic; this module has the declaration and its
//! rules.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::decimal_float::DecimalFloat;
use crate::graph_model::Blob;
use crate::limits::{
    CATEGORIES_MAX, CELL_TEXT_BYTES_MAX, ENCODED_COLUMNS_MAX, ENCODING_BYTES_MAX, IMAGE_SIDE_MAX,
    TOKENIZER_BYTES_MAX, TOKENS_MAX,
};
use crate::model::DataSchema;
use crate::spec_error::{SpecError, require, spec_error};

/// Texts of a missing value.
pub const MISSING_VALUES: [&str; 9] = ["", "?", "NA", "N/A", "NaN", "nan", "NULL", "null", "<NA>"];

/// Encoding of the rows: from the cells of a table to features and labels.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct RowEncoding {
    /// Names of the classes, in the order of their labels. Empty: labels are whole numbers.
    pub class_names: Vec<String>,
    /// Encoding of the features.
    pub features: FeatureEncoding,
    /// Encoding of the label as a number, which becomes the last number of the row; the label is 0
    /// then. `None`: the label is a class.
    pub target: Option<NumberEncoding>,
}

/// Encoding of the features of a row.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum FeatureEncoding {
    /// One scale for all features, which are numbers in the order of the source: images and other
    /// wide rows.
    Uniform(NumberEncoding),
    /// Columns that are matched by name; their features are in this order.
    Columns(Vec<ColumnEncoding>),
    /// Images of files, channel after channel.
    Images(ImageEncoding),
    /// Texts as tokens.
    Tokens(TokenEncoding),
}

/// Encoding of texts as rows of tokens.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct TokenEncoding {
    /// Tokens of a row.
    pub length: u32,
    /// A `tokenizer.json` of Hugging Face, of at most [`TOKENIZER_BYTES_MAX`].
    pub tokenizer: Blob,
    /// The token behind each document, below [`TOKENS_MAX`]; `None` for none.
    pub separator: Option<u32>,
}

/// Encoding of an image: its size, and the scale of each channel.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ImageEncoding {
    /// Rows of pixels, at most [`IMAGE_SIDE_MAX`].
    pub height: u32,
    /// Columns of pixels, at most [`IMAGE_SIDE_MAX`].
    pub width: u32,
    /// The shorter side is resized to this many pixels, at least the height and the width, and the
    /// middle is cut out. `None`: the image is resized to height and width.
    pub resize: Option<u32>,
    /// The encoding of each channel's values, which are 0 to 255: one for shades of grey, three for
    /// red, green and blue.
    pub channels: Vec<NumberEncoding>,
}

/// Encoding of a number x as (x − offset) · factor.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct NumberEncoding {
    /// Subtracted from the number.
    pub offset: DecimalFloat,
    /// Multiplies the difference; not 0.
    pub factor: DecimalFloat,
    /// Replaces a missing value; without it, a missing value is an error.
    pub fill: Option<DecimalFloat>,
}

/// A column and its encoding.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ColumnEncoding {
    /// The name of the column.
    pub name: String,
    /// Its encoding.
    pub kind: ColumnKind,
}

/// Encoding of the cells of one column.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum ColumnKind {
    /// Numbers: one feature, and a second one with an indicator.
    Numeric {
        /// Encoding of the number.
        number: NumberEncoding,
        /// Adds a feature behind it: 1 if the value is missing, 0 otherwise.
        missing_indicator: bool,
    },
    /// One feature for each category: 1 for the category of the cell, 0 for the others. A missing
    /// value and a cell of no category are zeros.
    Categorical {
        /// The categories.
        categories: Vec<String>,
    },
    /// The column exists and has no features.
    Ignored,
}

impl ColumnKind {
    /// Number of features.
    fn features(&self) -> u64 {
        match self {
            Self::Numeric { missing_indicator, .. } => {
                1_u64.saturating_add(u64::from(*missing_indicator))
            }
            Self::Categorical { categories } => u64::try_from(categories.len()).unwrap_or(u64::MAX),
            Self::Ignored => 0,
        }
    }
}

impl RowEncoding {
    /// Checks the declaration against the limits and the schema that it belongs to.
    pub(crate) fn check(&self, schema: &DataSchema) -> Result<(), SpecError> {
        let bytes = borsh::object_length(self).unwrap_or(usize::MAX);
        if bytes > ENCODING_BYTES_MAX {
            let right = format!(
                "the encoding takes {bytes} bytes, at most {ENCODING_BYTES_MAX}: declare fewer \
                 columns or categories, or one offset and factor for all features"
            );
            return Err(spec_error("data.columns", "…", right));
        }
        if !self.class_names.is_empty() {
            self.check_class_names(schema.classes)?;
        }
        if let Some(target) = &self.target {
            let classes = self.class_names.len();
            check_number(target, "data.target")?;
            require(
                classes == 0 && schema.classes == 1 && target.fill.is_none(),
                "data.target",
                format!("{} classes", schema.classes),
                "a label that is a number has no fill, no class_names and one class",
            )?;
        }
        match &self.features {
            FeatureEncoding::Uniform(number) => check_number(number, "data.factor"),
            FeatureEncoding::Columns(columns) => {
                check_columns(columns, schema.width, self.target.is_some().into())
            }
            FeatureEncoding::Images(images) => {
                images.check(schema.width, self.target.is_some().into())
            }
            FeatureEncoding::Tokens(tokens) => {
                require(
                    self.target.is_none() && self.class_names.is_empty(),
                    "data.tokens",
                    "…",
                    "rows of tokens have neither labels nor a target: remove these keys",
                )?;
                tokens.check(schema.width)
            }
        }
    }

    fn check_class_names(&self, classes: u32) -> Result<(), SpecError> {
        const KEY: &str = "data.class_names";
        let names = self.class_names.len();
        if u32::try_from(names) != Ok(classes) {
            let right = format!("the task has {classes} classes: name each of them, in order");
            return Err(spec_error(KEY, format!("{names} names"), right));
        }
        check_texts(KEY, &self.class_names)
    }
}

impl TokenEncoding {
    fn check(&self, width: u32) -> Result<(), SpecError> {
        const KEY: &str = "data.tokens";
        let bytes = self.tokenizer.bytes;
        require(
            (1..=TOKENIZER_BYTES_MAX).contains(&bytes),
            KEY,
            format!("a tokenizer of {bytes} bytes"),
            "a tokenizer has 1 to 67108864 bytes",
        )?;
        let separator = self.separator.unwrap_or_default();
        let right = "the token between documents is below 16777216";
        require(separator < TOKENS_MAX, KEY, separator, right)?;
        if self.length != width {
            let right = format!("a row has {} tokens: make both equal", self.length);
            return Err(spec_error("data.width", width, right));
        }
        Ok(())
    }
}

impl ImageEncoding {
    /// Numbers of an image; `None` on overflow.
    fn features(&self) -> Option<u32> {
        let channels = u32::try_from(self.channels.len()).ok()?;
        channels.checked_mul(self.height)?.checked_mul(self.width)
    }

    /// Checks an encoding that gives, with `targets` more numbers, the width of a row.
    fn check(&self, width: u32, targets: u32) -> Result<(), SpecError> {
        const KEY: &str = "data.image";
        let sides = [Some(self.height), Some(self.width), self.resize];
        let is_side = |side: u32| (1..=IMAGE_SIDE_MAX).contains(&side);
        require(
            sides.into_iter().flatten().all(is_side),
            KEY,
            format!("{} × {}, resize {:?}", self.height, self.width, self.resize),
            "height, width and resize must be 1 to 4096 pixels",
        )?;
        require(
            self.resize.is_none_or(|side| side >= self.height.max(self.width)),
            KEY,
            format!("resize {:?}", self.resize),
            "the image is cut out of the resized one: resize must be at least height and width",
        )?;
        require(
            matches!(self.channels.len(), 1 | 3),
            KEY,
            format!("{} channels", self.channels.len()),
            "an image has 1 channel (grey) or 3 (red, green and blue)",
        )?;
        for channel in &self.channels {
            check_number(channel, KEY)?;
            require(channel.fill.is_none(), KEY, "a fill", "no value of an image is missing")?;
        }
        let features = self.features().and_then(|features| features.checked_add(targets));
        if features != Some(width) {
            let right = format!(
                "the image has {} × {} × {} numbers, and the row {targets} targets: make data.width \
                 their sum",
                self.channels.len(),
                self.height,
                self.width
            );
            return Err(spec_error("data.width", width, right));
        }
        Ok(())
    }
}

/// Checks columns that give, with `targets` more numbers, the width of a row.
fn check_columns(columns: &[ColumnEncoding], width: u32, targets: u64) -> Result<(), SpecError> {
    const KEY: &str = "data.columns";
    if columns.is_empty() || columns.len() > ENCODED_COLUMNS_MAX {
        let right = format!(
            "declare 1 to {ENCODED_COLUMNS_MAX} columns; for more, one offset and factor for all \
             features"
        );
        return Err(spec_error(KEY, format!("{} columns", columns.len()), right));
    }
    let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
    check_texts(KEY, &names)?;
    let mut features = 0_u64;
    for column in columns {
        match &column.kind {
            ColumnKind::Numeric { number, missing_indicator } => {
                check_number(number, KEY)?;
                require(
                    !missing_indicator || number.fill.is_some(),
                    KEY,
                    format!("{:?}", column.name),
                    "a missing_indicator needs a fill: the value that replaces a missing one",
                )?;
            }
            ColumnKind::Categorical { categories } => {
                if categories.is_empty() || categories.len() > CATEGORIES_MAX {
                    let right = format!("a column has 1 to {CATEGORIES_MAX} categories");
                    return Err(spec_error(KEY, format!("{:?}", column.name), right));
                }
                check_texts(KEY, categories)?;
            }
            ColumnKind::Ignored => {}
        }
        features = features.saturating_add(column.kind.features());
    }
    if features.saturating_add(targets) != u64::from(width) {
        let right = format!(
            "the declared columns have {features} features and {targets} targets: make both equal"
        );
        return Err(spec_error("data.width", width, right));
    }
    Ok(())
}

fn check_number(number: &NumberEncoding, key: &'static str) -> Result<(), SpecError> {
    require(
        number.factor != DecimalFloat::ZERO,
        key,
        number.factor,
        "a factor must not be 0: every value would become 0",
    )
}

/// Checks names or categories: texts as a cell can have them, each once.
fn check_texts(key: &'static str, texts: &[String]) -> Result<(), SpecError> {
    for text in texts {
        let is_trimmed = text.trim_ascii().len() == text.len();
        let fits = is_trimmed
            && text.len() <= CELL_TEXT_BYTES_MAX
            && !text.chars().any(char::is_control)
            && !MISSING_VALUES.contains(&text.as_str());
        if !fits {
            let right = format!(
                "a name or category has 1 to {CELL_TEXT_BYTES_MAX} bytes without control \
                 characters or spaces around it, and is not a missing value such as \"NA\""
            );
            return Err(spec_error(key, format!("{text:?}"), right));
        }
    }
    let mut sorted: Vec<&String> = texts.iter().collect();
    sorted.sort_unstable();
    let twice = sorted.iter().zip(sorted.iter().skip(1)).find(|(a, b)| a == b);
    match twice {
        Some((text, _)) => Err(spec_error(key, format!("{text:?}"), "occurs twice: remove one")),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "encoding_tests.rs"]
mod tests;
