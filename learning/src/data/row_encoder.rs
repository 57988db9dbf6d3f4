//! Encoding of a table's cells as features and labels. The arithmetic is exact: equal cells give
//! equal bits on every machine.

use std::path::PathBuf;

use thiserror::Error;

use super::chunks::with_file_row;
use super::images::{self, ImageEncoder};
use super::table::{CellValue, Cells, MatrixValues, parse_number};
use super::tokenizer::TokenEncoder;
use super::{CLASSES_MAX, Dataset, DatasetError, FEATURES_MAX, Table, TableColumn, TableFeatures};

/// An encoding of tables of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct RowEncoder {
    /// Number of classes.
    pub classes: usize,
    /// Names of the classes, in the order of their labels. Empty: labels are whole numbers.
    pub class_names: Vec<String>,
    /// Encoding of the features.
    pub features: FeatureEncoder,
    /// Scale of a label that is a number: it becomes the last number of the row, and the label 0.
    pub target: Option<NumberScale>,
}

/// Encoding of the features.
#[derive(Debug, Clone, PartialEq)]
pub enum FeatureEncoder {
    /// One scale for all features, in the order of the source.
    Uniform {
        /// Features per row.
        width: usize,
        /// Their scale.
        scale: NumberScale,
    },
    /// Columns, found by name; their features are in this order.
    Columns(Vec<ColumnEncoder>),
    /// Images. A source of numbers fits if it has as many: from 0 to 255, channel after channel.
    Images(ImageEncoder),
    /// Tokens of a text. A source of numbers fits if its rows are as long.
    Tokens(TokenEncoder),
}

/// Encoding of a number x as (x − offset) · factor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NumberScale {
    /// Subtracted from the number.
    pub offset: f64,
    /// Multiplies the difference.
    pub factor: f64,
    /// Replaces a missing value; without it, a missing value is an error.
    pub fill: Option<f64>,
}

/// A column and its encoding.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnEncoder {
    /// The name of the column.
    pub name: String,
    /// Its encoding.
    pub role: ColumnRole,
}

/// Encoding of the cells of one column.
#[derive(Debug, Clone, PartialEq)]
pub enum ColumnRole {
    /// One feature, and a second one with an indicator.
    Numeric {
        /// The scale.
        scale: NumberScale,
        /// Adds a feature behind it: 1 if the value is missing, 0 otherwise.
        missing_indicator: bool,
    },
    /// One feature for each category. A cell of no category, or without a value, is zeros.
    OneHot(Vec<String>),
    /// No feature.
    Ignored,
}

/// A table does not fit an encoding.
#[derive(Debug, Error, PartialEq)]
pub enum EncodeError {
    /// Columns that the encoding does not declare.
    #[error("column `{name}` is not one of the task's columns: remove it from the file")]
    SurplusColumn {
        /// The first such column.
        name: String,
    },
    /// A declared column is missing.
    #[error("column `{name}` is missing; the task declares {declared}")]
    MissingColumn {
        /// The first such column.
        name: String,
        /// The declared columns.
        declared: String,
    },
    /// The encoding has a column of texts, and the source has no texts.
    #[error(
        "column `{name}` of the task has texts, and this source has only numbers: use a CSV or \
         Parquet file"
    )]
    NoTexts {
        /// The column.
        name: String,
    },
    /// A source of images, and an encoding of numbers.
    #[error("the source is a folder of images, and the task takes no images: use a table")]
    TakesNoImages,
    /// An image cannot be read.
    #[error("{}: {why}", file.display())]
    Image {
        /// Its file.
        file: PathBuf,
        /// The reason, a sentence.
        why: String,
    },
    /// Another number of features than the uniform encoding has.
    #[error("rows have {found} features: the task requires {width}")]
    Width {
        /// Features of the source.
        found: usize,
        /// Features of the encoding.
        width: usize,
    },
    /// A number is missing, and there is no fill.
    #[error("{place}, {column}: missing value; the task has no fill for it: remove the row")]
    NoValue {
        /// Line or row.
        place: String,
        /// The column.
        column: String,
    },
    /// A text in a numeric column.
    #[error("{place}, {column}: `{text}`; must be a finite number")]
    NotANumber {
        /// Line or row.
        place: String,
        /// The column.
        column: String,
        /// The text.
        text: String,
    },
    /// A label is missing.
    #[error("{place}: no label; must be {expected}: remove the row or label it")]
    NoLabel {
        /// Line or row.
        place: String,
        /// The valid labels.
        expected: String,
    },
    /// A label is none of the classes.
    #[error("{place}: label `{label}`; must be {expected}")]
    UnknownLabel {
        /// Line or row.
        place: String,
        /// The label.
        label: String,
        /// The valid labels.
        expected: String,
    },
    /// The encoded rows exceed a limit, or a feature is not finite.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
}

impl EncodeError {
    /// The same error of a part of a table, which begins with row `first` of the whole.
    #[must_use]
    pub fn in_part_from(self, first: usize) -> Self {
        match self {
            Self::Dataset(error) => Self::Dataset(with_file_row(error, first)),
            other => other,
        }
    }
}

/// Largest number of names in a message.
const NAMES_SHOWN_MAX: usize = 20;

impl NumberScale {
    /// The number as it is; a missing value is an error.
    pub const IDENTITY: Self = Self { offset: 0.0, factor: 1.0, fill: None };

    /// The feature of a number: subtraction and multiplication in `f64`, then one rounding to `f32`.
    pub fn feature(&self, number: f64) -> f32 {
        ((number - self.offset) * self.factor) as f32
    }
}

impl ColumnRole {
    /// Number of features.
    pub fn features(&self) -> usize {
        match self {
            Self::Numeric { missing_indicator, .. } => 1 + usize::from(*missing_indicator),
            Self::OneHot(categories) => categories.len(),
            Self::Ignored => 0,
        }
    }
}

impl RowEncoder {
    /// Numbers of an encoded row: its features, and its target.
    pub fn width(&self) -> usize {
        self.features_of_row() + usize::from(self.target.is_some())
    }

    fn features_of_row(&self) -> usize {
        match &self.features {
            FeatureEncoder::Uniform { width, .. } => *width,
            FeatureEncoder::Images(encoder) => encoder.shape().features(),
            FeatureEncoder::Tokens(encoder) => encoder.length,
            FeatureEncoder::Columns(columns) => {
                columns.iter().map(|column| column.role.features()).sum()
            }
        }
    }

    /// Encodes all rows of a table.
    ///
    /// # Errors
    /// [`EncodeError`] for the first column or cell that does not fit.
    pub fn encode(&self, table: &Table) -> Result<Dataset, EncodeError> {
        let (rows, width) = (table.rows(), self.features_of_row());
        if rows.checked_mul(self.width()).is_none_or(|features| features > FEATURES_MAX) {
            return Err(DatasetError::TooLarge { rows, width }.into());
        }
        // The columns first: a wrong file is then named as such, not by its first label.
        let features = match (&self.features, table.features()) {
            (FeatureEncoder::Images(encoder), TableFeatures::Images(files)) => {
                images::features(files, encoder)?
            }
            (_, TableFeatures::Images(_)) => return Err(EncodeError::TakesNoImages),
            (FeatureEncoder::Images(encoder), features) => {
                uniform(table, features, width, |feature| encoder.scale_of(feature))?
            }
            (FeatureEncoder::Tokens(_), features) => {
                uniform(table, features, width, |_| &NumberScale::IDENTITY)?
            }
            (FeatureEncoder::Uniform { width, scale }, features) => {
                uniform(table, features, *width, |_| scale)?
            }
            (FeatureEncoder::Columns(encoders), TableFeatures::Columns(columns)) => {
                by_name(table, columns, encoders, width)?
            }
            (FeatureEncoder::Columns(encoders), TableFeatures::Matrix { values, .. }) => {
                by_position(table, values, encoders, width)?
            }
        };
        let Some(scale) = &self.target else {
            return Ok(Dataset::new(features, self.labels(table)?, width, self.classes)?);
        };
        if width == 0 {
            return Err(DatasetError::Width { width }.into());
        }
        let mut numbers = Vec::with_capacity(rows * self.width());
        for (row, features) in features.chunks(width).enumerate() {
            let place = || (table.position(row), "label".to_owned());
            numbers.extend_from_slice(features);
            numbers.push(number(scale, table.labels().cell(row), place)?);
        }
        Ok(Dataset::new(numbers, vec![0; rows], self.width(), self.classes)?)
    }

    fn labels(&self, table: &Table) -> Result<Vec<u32>, EncodeError> {
        let label = |row| self.label(table, row);
        (0..table.rows()).map(label).collect()
    }

    fn label(&self, table: &Table, row: usize) -> Result<u32, EncodeError> {
        let cell = table.labels().cell(row);
        let found = match cell {
            CellValue::Missing => {
                let (place, expected) = (table.position(row), self.expected_labels());
                return Err(EncodeError::NoLabel { place, expected });
            }
            CellValue::Number(number) if self.class_names.is_empty() => {
                let last = self.classes.min(CLASSES_MAX) as f64 - 1.0;
                let is_label = number.fract() == 0.0 && (0.0..=last).contains(&number);
                is_label.then_some(number as u32)
            }
            cell => category(cell, &self.class_names).map(|at| at as u32),
        };
        found.ok_or_else(|| EncodeError::UnknownLabel {
            place: table.position(row),
            label: shown(cell),
            expected: self.expected_labels(),
        })
    }

    fn expected_labels(&self) -> String {
        if self.class_names.is_empty() {
            return format!("a whole number from 0 to {}", self.classes.saturating_sub(1));
        }
        format!("one of {}", listed(self.class_names.iter().map(String::as_str)))
    }
}

fn shown(cell: CellValue<'_>) -> String {
    match cell {
        CellValue::Missing => String::new(),
        CellValue::Number(number) => number.to_string(),
        CellValue::Text(text) => text.to_owned(),
    }
}

/// The first names of a list, for a message.
fn listed<'a>(names: impl Iterator<Item = &'a str> + Clone) -> String {
    let shown = names.clone().take(NAMES_SHOWN_MAX).collect::<Vec<_>>().join(", ");
    match names.count().checked_sub(NAMES_SHOWN_MAX) {
        Some(more @ 1..) => format!("{shown} and {more} more"),
        _ => shown,
    }
}

/// The category of a cell: the first one that has the cell's text, or that is the same number.
fn category(cell: CellValue<'_>, categories: &[String]) -> Option<usize> {
    categories.iter().position(|category| match cell {
        CellValue::Missing => false,
        CellValue::Number(number) => parse_number(category) == Some(number),
        CellValue::Text(text) => category == text,
    })
}

/// The feature of a cell that should be a number.
fn number(
    scale: &NumberScale,
    cell: CellValue<'_>,
    place: impl Fn() -> (String, String),
) -> Result<f32, EncodeError> {
    match cell {
        CellValue::Number(number) => Ok(scale.feature(number)),
        CellValue::Missing => match scale.fill {
            Some(fill) => Ok(scale.feature(fill)),
            None => {
                let (place, column) = place();
                Err(EncodeError::NoValue { place, column })
            }
        },
        CellValue::Text(text) => {
            let (place, column) = place();
            Err(EncodeError::NotANumber { place, column, text: text.to_owned() })
        }
    }
}

/// Features by position, with the scale of each.
pub(super) fn uniform<'a>(
    table: &Table,
    features: &TableFeatures,
    width: usize,
    scale: impl Fn(usize) -> &'a NumberScale,
) -> Result<Vec<f32>, EncodeError> {
    let found = table.columns();
    if found != width {
        return Err(EncodeError::Width { found, width });
    }
    match features {
        TableFeatures::Matrix { values, .. } => {
            let feature = |at: usize| {
                let place = || (table.position(at / width), format!("feature {}", at % width));
                number(scale(at % width), cell_of(values.value(at)), place)
            };
            (0..values.len()).map(feature).collect()
        }
        TableFeatures::Columns(columns) => {
            let mut out = Vec::with_capacity(table.rows() * width);
            for row in 0..table.rows() {
                for (at, column) in columns.iter().enumerate() {
                    let place = || (table.position(row), format!("column `{}`", column.name));
                    out.push(number(scale(at), column.cells.cell(row), place)?);
                }
            }
            Ok(out)
        }
        TableFeatures::Images(_) => Err(EncodeError::TakesNoImages),
    }
}

fn cell_of(value: f64) -> CellValue<'static> {
    if value.is_nan() { CellValue::Missing } else { CellValue::Number(value) }
}

/// Features of columns that are found by their names, in the order of the encoding.
fn by_name(
    table: &Table,
    columns: &[TableColumn],
    encoders: &[ColumnEncoder],
    width: usize,
) -> Result<Vec<f32>, EncodeError> {
    let declared = |name: &str| encoders.iter().any(|encoder| encoder.name == name);
    let missing = encoders.iter().find(|e| columns.iter().all(|column| column.name != e.name));
    if let Some(encoder) = missing {
        let declared = listed(encoders.iter().map(|encoder| encoder.name.as_str()));
        return Err(EncodeError::MissingColumn { name: encoder.name.clone(), declared });
    }
    if let Some(column) = columns.iter().find(|column| !declared(&column.name)) {
        return Err(EncodeError::SurplusColumn { name: column.name.clone() });
    }
    let mut out = vec![0.0; table.rows() * width];
    let mut first = 0;
    for encoder in encoders {
        let Some(column) = columns.iter().find(|column| column.name == encoder.name) else {
            continue;
        };
        let at = |row: usize| row * width + first;
        match &encoder.role {
            ColumnRole::Ignored => {}
            ColumnRole::Numeric { scale, missing_indicator } => {
                for row in 0..table.rows() {
                    let cell = column.cells.cell(row);
                    let place = || (table.position(row), format!("column `{}`", column.name));
                    out[at(row)] = number(scale, cell, place)?;
                    if *missing_indicator && cell == CellValue::Missing {
                        out[at(row) + 1] = 1.0;
                    }
                }
            }
            ColumnRole::OneHot(categories) => one_hot(&column.cells, categories, |row, hot| {
                out[at(row) + hot] = 1.0;
            }),
        }
        first += encoder.role.features();
    }
    Ok(out)
}

/// Features of a source without names, in the order of the encoding's columns.
fn by_position(
    table: &Table,
    values: &MatrixValues,
    encoders: &[ColumnEncoder],
    width: usize,
) -> Result<Vec<f32>, EncodeError> {
    let found = table.columns();
    if found != encoders.len() {
        return Err(EncodeError::Width { found, width: encoders.len() });
    }
    let is_number = |category: &String| parse_number(category).is_some();
    let has_texts = |encoder: &&ColumnEncoder| match &encoder.role {
        ColumnRole::OneHot(categories) => !categories.iter().all(is_number),
        ColumnRole::Numeric { .. } | ColumnRole::Ignored => false,
    };
    if let Some(encoder) = encoders.iter().find(has_texts) {
        return Err(EncodeError::NoTexts { name: encoder.name.clone() });
    }
    let column = |(at, encoder): (usize, &ColumnEncoder)| TableColumn {
        name: encoder.name.clone(),
        cells: Cells::Numbers(
            (0..table.rows()).map(|row| values.value(row * found + at)).collect(),
        ),
    };
    let columns: Vec<TableColumn> = encoders.iter().enumerate().map(column).collect();
    by_name(table, &columns, encoders, width)
}

/// Calls `set` with the row and the category of each cell that has one.
fn one_hot(cells: &Cells, categories: &[String], mut set: impl FnMut(usize, usize)) {
    match cells {
        Cells::Numbers(numbers) => {
            for (row, number) in numbers.iter().enumerate() {
                if let Some(hot) = category(cell_of(*number), categories) {
                    set(row, hot);
                }
            }
        }
        // Each distinct text is looked up once.
        Cells::Texts { texts, cells: rows } => {
            let of_text = |text: &String| match parse_number(text) {
                Some(number) => category(CellValue::Number(number), categories),
                None => category(CellValue::Text(text), categories),
            };
            let found: Vec<Option<usize>> = texts.iter().map(of_text).collect();
            for (row, text) in rows.iter().enumerate() {
                if let Some(hot) = text.and_then(|text| found[text as usize]) {
                    set(row, hot);
                }
            }
        }
    }
}
