//! A table as its source has it: the cells of its columns, before any encoding.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use super::{FEATURES_MAX, ROWS_MAX, WIDTH_MAX};

/// Texts of a missing value in a table of text.
pub const MISSING_TEXTS: [&str; 9] = ["", "?", "NA", "N/A", "NaN", "nan", "NULL", "null", "<NA>"];

/// Rows with a label, as a source has them.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub(super) features: TableFeatures,
    pub(super) labels: Cells,
    /// Name of the label column; empty if the source has no names.
    pub(super) label: String,
    /// Fewest classes that a source of this kind has.
    pub(super) classes_min: usize,
    pub(super) positions: Positions,
}

/// The features of a table.
#[derive(Debug, Clone, PartialEq)]
pub enum TableFeatures {
    /// Columns with names.
    Columns(Vec<TableColumn>),
    /// Numbers without names, row after row: images and arrays.
    Matrix {
        /// Features per row.
        width: usize,
        /// All values.
        values: MatrixValues,
    },
    /// Files of images, one per row; their pixels are read when the table is encoded.
    Images(Vec<PathBuf>),
}

/// A column with its name.
#[derive(Debug, Clone, PartialEq)]
pub struct TableColumn {
    /// The name.
    pub name: String,
    /// One cell per row.
    pub cells: Cells,
}

/// The cells of one column.
#[derive(Debug, Clone, PartialEq)]
pub enum Cells {
    /// Finite numbers; NaN is a missing value.
    Numbers(Vec<f64>),
    /// Texts.
    Texts {
        /// The distinct texts, in the order of their first cells.
        texts: Vec<String>,
        /// The index of each cell's text; `None` is a missing value.
        cells: Vec<Option<u32>>,
    },
}

/// Values of a matrix, in the type of the source.
#[derive(Debug, Clone, PartialEq)]
pub enum MatrixValues {
    /// Pixels.
    Bytes(Vec<u8>),
    /// Single precision; NaN is a missing value.
    Singles(Vec<f32>),
    /// Double precision; NaN is a missing value.
    Doubles(Vec<f64>),
}

/// The place of a row in its source, for messages.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Positions {
    /// The lines of a text file, from 1.
    Lines(Vec<u64>),
    /// The row number, from 1, of the first row.
    Rows(usize),
}

/// A cell of a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum CellValue<'a> {
    /// No value.
    Missing,
    /// A finite number.
    Number(f64),
    /// A text that is not a number.
    Text(&'a str),
}

impl Cells {
    /// Number of cells.
    pub fn len(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Texts { cells, .. } => cells.len(),
        }
    }

    /// Whether there are no cells.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The distinct texts of these cells, ascending; none if the cells are numbers. A slice of a
    /// table may have fewer than its `texts`.
    pub(super) fn distinct_texts(&self) -> Vec<String> {
        let Self::Texts { texts, cells } = self else { return Vec::new() };
        let mut used = vec![false; texts.len()];
        cells.iter().flatten().for_each(|text| used[*text as usize] = true);
        let used = texts.iter().zip(used).filter(|(_, used)| *used);
        let mut distinct: Vec<String> = used.map(|(text, _)| text.clone()).collect();
        distinct.sort_unstable();
        distinct
    }

    /// Cells from the texts of a column: numbers if every text that is not missing is a number.
    pub(super) fn from_texts<'a>(column: impl Iterator<Item = &'a str> + Clone) -> Self {
        let number = |text: &str| match is_missing(text) {
            true => Some(f64::NAN),
            false => parse_number(text.trim_ascii()),
        };
        if let Some(numbers) = column.clone().map(number).collect() {
            return Self::Numbers(numbers);
        }
        let mut index: BTreeMap<&str, u32> = BTreeMap::new();
        let mut texts = Vec::new();
        let mut cells = Vec::new();
        for text in column {
            if is_missing(text) {
                cells.push(None);
                continue;
            }
            let text = text.trim_ascii();
            cells.push(Some(*index.entry(text).or_insert_with(|| {
                texts.push(text.to_owned());
                // A table has fewer than 2^32 rows, so also texts.
                texts.len() as u32 - 1
            })));
        }
        Self::Texts { texts, cells }
    }

    pub(super) fn cell(&self, row: usize) -> CellValue<'_> {
        match self {
            Self::Numbers(numbers) => CellValue::from_number(numbers[row]),
            Self::Texts { texts, cells } => match cells[row] {
                None => CellValue::Missing,
                Some(text) => CellValue::from_text(&texts[text as usize]),
            },
        }
    }

    fn slice(&self, rows: Range<usize>) -> Self {
        match self {
            Self::Numbers(numbers) => Self::Numbers(numbers[rows].to_vec()),
            Self::Texts { texts, cells } => {
                Self::Texts { texts: texts.clone(), cells: cells[rows].to_vec() }
            }
        }
    }
}

impl CellValue<'_> {
    fn from_number(number: f64) -> Self {
        if number.is_nan() { Self::Missing } else { Self::Number(number) }
    }
}

impl<'a> CellValue<'a> {
    fn from_text(text: &'a str) -> Self {
        parse_number(text).map_or(CellValue::Text(text), CellValue::Number)
    }
}

impl MatrixValues {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(values) => values.len(),
            Self::Singles(values) => values.len(),
            Self::Doubles(values) => values.len(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn value(&self, at: usize) -> f64 {
        match self {
            Self::Bytes(values) => values[at].into(),
            Self::Singles(values) => values[at].into(),
            Self::Doubles(values) => values[at],
        }
    }

    fn slice(&self, range: Range<usize>) -> Self {
        match self {
            Self::Bytes(values) => Self::Bytes(values[range].to_vec()),
            Self::Singles(values) => Self::Singles(values[range].to_vec()),
            Self::Doubles(values) => Self::Doubles(values[range].to_vec()),
        }
    }
}

/// Whether a text is a missing value, with or without spaces around it.
pub(super) fn is_missing(text: &str) -> bool {
    MISSING_TEXTS.contains(&text.trim_ascii())
}

/// The finite number that a text is: an optional sign, decimal digits with an optional point, and an
/// optional exponent; rounded to the nearest `f64`.
pub(super) fn parse_number(text: &str) -> Option<f64> {
    let is_decimal = text.bytes().all(|byte| b"0123456789+-.eE".contains(&byte));
    text.parse::<f64>().ok().filter(|number| is_decimal && number.is_finite())
}

impl Table {
    /// A table of numbers without names.
    pub(super) fn from_matrix(width: usize, values: MatrixValues, labels: Vec<f64>) -> Self {
        Self {
            features: TableFeatures::Matrix { width, values },
            labels: Cells::Numbers(labels),
            label: String::new(),
            classes_min: 0,
            positions: Positions::Rows(0),
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.labels.len()
    }

    /// The features.
    pub fn features(&self) -> &TableFeatures {
        &self.features
    }

    /// Number of columns without the label, or of the features of a matrix; 0 for images.
    pub fn columns(&self) -> usize {
        match &self.features {
            TableFeatures::Columns(columns) => columns.len(),
            TableFeatures::Matrix { width, .. } => *width,
            TableFeatures::Images(_) => 0,
        }
    }

    /// The labels.
    pub fn labels(&self) -> &Cells {
        &self.labels
    }

    /// The rows of a range; `None` if it exceeds the table.
    pub fn slice(&self, rows: Range<usize>) -> Option<Self> {
        if rows.start > rows.end || rows.end > self.rows() {
            return None;
        }
        let features = match &self.features {
            TableFeatures::Columns(columns) => {
                let slice = |column: &TableColumn| TableColumn {
                    name: column.name.clone(),
                    cells: column.cells.slice(rows.clone()),
                };
                TableFeatures::Columns(columns.iter().map(slice).collect())
            }
            TableFeatures::Matrix { width, values } => TableFeatures::Matrix {
                width: *width,
                values: values.slice(rows.start * width..rows.end * width),
            },
            TableFeatures::Images(files) => TableFeatures::Images(files[rows.clone()].to_vec()),
        };
        let positions = match &self.positions {
            Positions::Lines(lines) => Positions::Lines(lines[rows.clone()].to_vec()),
            Positions::Rows(first) => Positions::Rows(first + rows.start),
        };
        let (labels, label) = (self.labels.slice(rows), self.label.clone());
        Some(Self { features, labels, label, positions, ..*self })
    }

    /// The place of a row in its source.
    pub(super) fn position(&self, row: usize) -> String {
        match &self.positions {
            Positions::Lines(lines) => format!("line {}", lines[row]),
            Positions::Rows(first) => format!("row {}", first + row + 1),
        }
    }

    /// Whether rows and columns are within the limits of a data set.
    pub(super) fn fits(rows: usize, columns: usize) -> bool {
        rows <= ROWS_MAX
            && columns <= WIDTH_MAX
            && rows.checked_mul(columns).is_some_and(|cells| cells <= FEATURES_MAX)
    }
}
