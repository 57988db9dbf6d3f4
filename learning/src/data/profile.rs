//! Description of a table: the range, the missing values and the kind of each column, and its
//! treatment in an encoding.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::table::{CellValue, Cells, MatrixValues, Table, TableColumn, TableFeatures};

/// Most categories of a column that is encoded one-hot; a column with more is a text or a name.
const ONE_HOT_MAX: usize = 64;
/// A text column with more distinct values than this part of its rows is a name, unless it has few.
const DISTINCT_SHARE: usize = 2;
/// A text column with this many distinct values is never a name.
const FEW_TEXTS: usize = 12;
/// Fewest rows in which numbers that ascend by one are row numbers.
const ROW_NUMBERS_MIN: usize = 8;

/// Description of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableProfile {
    /// Number of rows.
    pub rows: usize,
    /// The columns without the label; for a matrix all features together, and none for images.
    pub columns: Vec<ColumnProfile>,
    /// The features of a matrix that have one value in all rows.
    pub constant_features: usize,
}

/// Description of a column.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnProfile {
    /// Its name.
    pub name: String,
    /// Number of missing values.
    pub missing: usize,
    /// Its values.
    pub summary: ColumnSummary,
    /// Its treatment in an encoding.
    pub treatment: Treatment,
}

/// The values of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum ColumnSummary {
    /// Numbers; `None` if all are missing.
    Numeric(Option<NumberSummary>),
    /// Texts.
    Categorical {
        /// The distinct texts, ascending.
        texts: Vec<String>,
    },
}

/// The range of a column of numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NumberSummary {
    /// Least value.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Greatest value.
    pub max: f64,
    /// Standard deviation of the population: the root of the mean squared deviation.
    pub sd: f64,
}

/// The treatment of a column in an encoding.
#[derive(Debug, Clone, PartialEq)]
pub enum Treatment {
    /// One scaled feature.
    Scaled,
    /// One feature for each of its texts.
    OneHot,
    /// No feature.
    Ignored(IgnoredReason),
}

/// The reason why a column has no feature.
#[derive(Debug, Clone, PartialEq)]
pub enum IgnoredReason {
    /// All rows have one value, or none.
    Constant,
    /// It is equal to an earlier column, with this name.
    Duplicate(String),
    /// Numbers that ascend by one from row to row.
    RowNumber,
    /// Texts that are names rather than categories.
    ManyTexts,
}

impl ColumnSummary {
    /// The range of the numbers; `None` for texts, and if all numbers are missing.
    pub const fn range(&self) -> Option<NumberSummary> {
        match self {
            Self::Numeric(range) => *range,
            Self::Categorical { .. } => None,
        }
    }
}

impl NumberSummary {
    /// The summary of all numbers that are not missing.
    pub fn new(numbers: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        let present = numbers.filter(|number| !number.is_nan());
        let (mut count, mut sum) = (0.0_f64, 0.0);
        let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
        for number in present.clone() {
            (count, sum) = (count + 1.0, sum + number);
            (min, max) = (min.min(number), max.max(number));
        }
        if count == 0.0 {
            return None;
        }
        let mean = sum / count;
        let squares: f64 = present.map(|number| (number - mean) * (number - mean)).sum();
        Some(Self { min, mean, max, sd: (squares / count).sqrt() })
    }
}

impl TableProfile {
    /// Describes a table.
    pub fn new(table: &Table) -> Self {
        let rows = table.rows();
        match table.features() {
            TableFeatures::Columns(columns) => {
                let mut profiles: Vec<ColumnProfile> = columns.iter().map(column_profile).collect();
                mark_duplicates(columns, &mut profiles);
                Self { rows, columns: profiles, constant_features: 0 }
            }
            TableFeatures::Matrix { width, values } => {
                let all = (0..values.len()).map(|at| values.value(at));
                let column = ColumnProfile {
                    name: "all features".to_owned(),
                    missing: all.clone().filter(|value| value.is_nan()).count(),
                    summary: ColumnSummary::Numeric(NumberSummary::new(all)),
                    treatment: Treatment::Scaled,
                };
                let constant_features = constant_features(*width, values);
                Self { rows, columns: vec![column], constant_features }
            }
            TableFeatures::Images(_) => Self { rows, columns: Vec::new(), constant_features: 0 },
        }
    }
}

fn constant_features(width: usize, values: &MatrixValues) -> usize {
    let is_constant = |feature: &usize| {
        let first = values.value(*feature);
        (0..values.len() / width).all(|row| values.value(row * width + feature) == first)
    };
    (0..width).filter(is_constant).count()
}

fn column_profile(column: &TableColumn) -> ColumnProfile {
    let cells = &column.cells;
    let missing = (0..cells.len()).filter(|row| cells.cell(*row) == CellValue::Missing).count();
    let (summary, treatment) = match cells {
        Cells::Numbers(numbers) => {
            let summary = NumberSummary::new(numbers.iter().copied());
            let treatment = match summary {
                Some(summary) if summary.min < summary.max => match is_row_number(numbers) {
                    true => Treatment::Ignored(IgnoredReason::RowNumber),
                    false => Treatment::Scaled,
                },
                _ => Treatment::Ignored(IgnoredReason::Constant),
            };
            (ColumnSummary::Numeric(summary), treatment)
        }
        Cells::Texts { .. } => {
            let texts = cells.distinct_texts();
            let treatment = text_treatment(texts.len(), cells.len());
            (ColumnSummary::Categorical { texts }, treatment)
        }
    };
    ColumnProfile { name: column.name.clone(), missing, summary, treatment }
}

fn text_treatment(distinct: usize, rows: usize) -> Treatment {
    let is_name = distinct > FEW_TEXTS && distinct > rows / DISTINCT_SHARE;
    match distinct {
        0 | 1 => Treatment::Ignored(IgnoredReason::Constant),
        _ if distinct > ONE_HOT_MAX || is_name => Treatment::Ignored(IgnoredReason::ManyTexts),
        _ => Treatment::OneHot,
    }
}

fn is_row_number(numbers: &[f64]) -> bool {
    numbers.len() >= ROW_NUMBERS_MIN && numbers.windows(2).all(|pair| pair[1] - pair[0] == 1.0)
}

/// Marks each column that is equal to an earlier one.
fn mark_duplicates(columns: &[TableColumn], profiles: &mut [ColumnProfile]) {
    let mut earlier: HashMap<u64, Vec<usize>> = HashMap::new();
    for at in 0..columns.len() {
        if matches!(profiles[at].treatment, Treatment::Ignored(_)) {
            continue;
        }
        let same_digest = earlier.entry(digest(&columns[at].cells)).or_default();
        let equal = |other: &&usize| are_equal(&columns[**other].cells, &columns[at].cells);
        if let Some(other) = same_digest.iter().find(equal) {
            let reason = IgnoredReason::Duplicate(columns[*other].name.clone());
            profiles[at].treatment = Treatment::Ignored(reason);
        } else {
            same_digest.push(at);
        }
    }
}

fn digest(cells: &Cells) -> u64 {
    let mut hasher = DefaultHasher::new();
    match cells {
        Cells::Numbers(numbers) => {
            numbers.iter().for_each(|number| number.to_bits().hash(&mut hasher));
        }
        Cells::Texts { texts, cells } => {
            let text = |cell: &Option<u32>| cell.map(|at| texts[at as usize].as_str());
            cells.iter().for_each(|cell| text(cell).hash(&mut hasher));
        }
    }
    hasher.finish()
}

fn are_equal(a: &Cells, b: &Cells) -> bool {
    a.len() == b.len() && (0..a.len()).all(|row| a.cell(row) == b.cell(row))
}
