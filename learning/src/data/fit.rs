//! An encoding that fits a table: scales from the ranges of its columns, categories and classes from
//! its texts.

use std::str::FromStr;

use thiserror::Error;

use super::images::{self, ImageEncoder, ImageShape};
use super::profile::{ColumnSummary, IgnoredReason, NumberSummary, TableProfile, Treatment};
use super::row_encoder::{
    ColumnEncoder, ColumnRole, EncodeError, FeatureEncoder, NumberScale, RowEncoder,
};
use super::table::{Cells, Table, TableFeatures, parse_number};

/// Most classes whose names are found in a table.
const CLASSES_FOUND_MAX: usize = 1_000;
/// Labels with at most this many different values are classes, however few rows there are.
const CLASSES_SURE: usize = 20;
/// Labels with more different values are classes if there are this many rows for each.
const ROWS_PER_CLASS_MIN: usize = 5;
/// Largest range of a column of a wide table, relative to the median of the ranges.
const UNEVEN_MAX: f64 = 100.0;
/// The greatest value of a channel.
const BRIGHTEST: f64 = 255.0;
/// Most columns that are encoded one by one; wider tables of numbers have one scale.
const COLUMNS_MAX: usize = 512;

/// The rule by which the numbers of a scale are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleKind {
    /// Mean 0 and standard deviation 1.
    Standard,
    /// From 0 to 1.
    MinMax,
    /// As they are.
    None,
}

/// The text is not the name of a scale.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a scale: must be \"standard\", \"min_max\" or \"none\"")]
pub struct ScaleKindError(String);

impl ScaleKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::MinMax => "min_max",
            Self::None => "none",
        }
    }
}

impl FromStr for ScaleKind {
    type Err = ScaleKindError;

    fn from_str(text: &str) -> Result<Self, ScaleKindError> {
        let all = [Self::Standard, Self::MinMax, Self::None];
        let found = all.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| ScaleKindError(text.to_owned()))
    }
}

/// No encoding fits a table.
#[derive(Debug, Error, PartialEq)]
pub enum FitError {
    /// A column of numbers with a few texts.
    #[error(
        "column `{column}` has {numbers} numbers and the text `{text}` ({place}): correct it, or \
         write NA if the value is missing"
    )]
    MostlyNumbers {
        /// The column.
        column: String,
        /// Number of cells that are numbers.
        numbers: usize,
        /// The first text.
        text: String,
        /// Its line or row.
        place: String,
    },
    /// A column of numbers with units, percent signs or separators.
    #[error(
        "column `{column}` has numbers like `{text}` ({place}): write them with a decimal point, \
         and without thousands separators, units and percent signs"
    )]
    FormattedNumbers {
        /// The column.
        column: String,
        /// The first such text.
        text: String,
        /// Its line or row.
        place: String,
    },
    /// A wide table whose columns differ in scale.
    #[error(
        "column `{wide}` varies {factor:.0} times as much as most columns: a table of more than \
         {COLUMNS_MAX} columns has one scale for all of them. Standardise its columns first, or \
         leave out columns"
    )]
    UnevenColumns {
        /// The column that varies most.
        wide: String,
        /// Its range, divided by the median of the ranges.
        factor: f64,
    },
    /// A folder of images, and no size of the model's input.
    #[error("images need the size of the model's input: --image 3x64x64, or a model with --model")]
    NoImageShape,
    /// An image cannot be read.
    #[error(transparent)]
    Image(#[from] EncodeError),
    /// No column can be a feature.
    #[error("no column can be a feature: each has one value, or only names")]
    NoFeature,
    /// A wide table has texts.
    #[error(
        "column `{column}` has texts: a table of more than {COLUMNS_MAX} columns must have numbers"
    )]
    WideTexts {
        /// The first such column.
        column: String,
    },
    /// A label is missing.
    #[error("{place}: no label: remove the row or label it")]
    NoLabel {
        /// Line or row.
        place: String,
    },
    /// A label is a text, and should be a number.
    #[error("the label column has texts: a model that predicts a number needs numbers")]
    TextTarget,
    /// The labels are all equal.
    #[error("all labels are equal: a task needs at least two different ones")]
    OneClass,
    /// The labels are not classes.
    #[error(
        "the label column has {distinct} different values in {rows} rows: these are not classes. \
         Choose another column, write ranges as classes, or predict the number by a model of \
         torch.export with --loss squared"
    )]
    NotClasses {
        /// Number of different values.
        distinct: usize,
        /// Rows of the table.
        rows: usize,
    },
}

/// The scale of values with this range; `None` stands for no values.
pub fn fit_scale(kind: ScaleKind, range: Option<NumberSummary>) -> NumberScale {
    let Some(NumberSummary { min, mean, max, sd }) = range else {
        return NumberScale { fill: Some(0.0), ..NumberScale::IDENTITY };
    };
    let (offset, factor) = match kind {
        ScaleKind::Standard if sd > 0.0 => (mean, 1.0 / sd),
        ScaleKind::MinMax if max > min => (min, 1.0 / (max - min)),
        ScaleKind::None => (0.0, 1.0),
        ScaleKind::Standard | ScaleKind::MinMax => (mean, 1.0),
    };
    NumberScale { offset, factor, fill: Some(mean) }
}

/// The scale of a new task: standardised columns; 0 to 1 for tables with one scale for all features,
/// which are usually images.
pub fn default_scale(table: &Table) -> ScaleKind {
    match table.features() {
        TableFeatures::Columns(columns) if columns.len() <= COLUMNS_MAX => ScaleKind::Standard,
        TableFeatures::Images(_) => ScaleKind::Standard,
        _ => ScaleKind::MinMax,
    }
}

/// The encoding that fits a table; `profile` describes it.
///
/// # Errors
/// [`FitError`], with the column or row.
pub fn fit(table: &Table, profile: &TableProfile, kind: ScaleKind) -> Result<RowEncoder, FitError> {
    let (class_names, classes) = fit_class_names(table)?;
    let features = fit_features(table, profile, kind)?;
    let encoder = RowEncoder { classes, class_names, features, target: None };
    if encoder.width() == 0 {
        return Err(FitError::NoFeature);
    }
    Ok(encoder)
}

/// The encoding that fits the features of a table.
///
/// # Errors
/// [`FitError`], with the column or row.
pub fn fit_features(
    table: &Table,
    profile: &TableProfile,
    kind: ScaleKind,
) -> Result<FeatureEncoder, FitError> {
    Ok(match table.features() {
        TableFeatures::Images(_) => return Err(FitError::NoImageShape),
        TableFeatures::Columns(columns) if columns.len() <= COLUMNS_MAX => {
            check_texts(table, profile)?;
            FeatureEncoder::Columns(column_encoders(profile, kind))
        }
        features => FeatureEncoder::Uniform {
            width: table.columns(),
            scale: fit_scale(kind, range(features, profile)?),
        },
    })
}

/// The encoder of images of this shape, `resize` as in [`ImageEncoder`], with the scale of each
/// channel.
///
/// # Errors
/// [`FitError::Image`] for the first file that is no image, or if a table of numbers has not as many
/// as an image.
pub fn fit_images(
    table: &Table,
    shape: ImageShape,
    resize: Option<usize>,
    kind: ScaleKind,
) -> Result<ImageEncoder, FitError> {
    let scale = match kind {
        ScaleKind::None => NumberScale::IDENTITY,
        ScaleKind::MinMax | ScaleKind::Standard => {
            NumberScale { offset: 0.0, factor: 1.0 / BRIGHTEST, fill: None }
        }
    };
    let channels = vec![scale; shape.channels];
    let encoder = ImageEncoder { height: shape.height, width: shape.width, resize, channels };
    match kind {
        ScaleKind::Standard => Ok(images::fit(table, &encoder)?),
        ScaleKind::MinMax | ScaleKind::None => Ok(encoder),
    }
}

/// The scale of labels that are numbers.
///
/// # Errors
/// [`FitError`] if a label is missing or no number, or if all are equal.
pub fn fit_target(table: &Table, kind: ScaleKind) -> Result<NumberScale, FitError> {
    let Cells::Numbers(numbers) = table.labels() else { return Err(FitError::TextTarget) };
    if let Some(row) = numbers.iter().position(|number| number.is_nan()) {
        return Err(FitError::NoLabel { place: table.position(row) });
    }
    let range = NumberSummary::new(numbers.iter().copied());
    if range.is_none_or(|range| range.max <= range.min) {
        return Err(FitError::OneClass);
    }
    Ok(NumberScale { fill: None, ..fit_scale(kind, range) })
}

/// The range of all features together.
fn range(
    features: &TableFeatures,
    profile: &TableProfile,
) -> Result<Option<NumberSummary>, FitError> {
    let TableFeatures::Columns(columns) = features else {
        return Ok(profile.columns.iter().find_map(|column| column.summary.range()));
    };
    let mut numbers: Vec<&[f64]> = Vec::with_capacity(columns.len());
    for column in columns {
        match &column.cells {
            Cells::Numbers(cells) => numbers.push(cells),
            Cells::Texts { .. } => {
                return Err(FitError::WideTexts { column: column.name.clone() });
            }
        }
    }
    check_even(profile)?;
    Ok(NumberSummary::new(numbers.into_iter().flatten().copied()))
}

fn column_encoders(profile: &TableProfile, kind: ScaleKind) -> Vec<ColumnEncoder> {
    let role = |summary: &ColumnSummary, treatment: &Treatment| match (treatment, summary) {
        (Treatment::Scaled, ColumnSummary::Numeric(range)) => {
            ColumnRole::Numeric { scale: fit_scale(kind, *range), missing_indicator: false }
        }
        (Treatment::OneHot, ColumnSummary::Categorical { texts }) => {
            ColumnRole::OneHot(texts.clone())
        }
        _ => ColumnRole::Ignored,
    };
    let columns = profile.columns.iter();
    columns
        .map(|column| ColumnEncoder {
            name: column.name.clone(),
            role: role(&column.summary, &column.treatment),
        })
        .collect()
}

/// Refuses a wide table in which one scale would make most columns constant.
fn check_even(profile: &TableProfile) -> Result<(), FitError> {
    let mut ranges: Vec<(f64, &str)> = Vec::with_capacity(profile.columns.len());
    for column in &profile.columns {
        if let Some(NumberSummary { min, max, .. }) = column.summary.range()
            && max > min
        {
            ranges.push((max - min, &column.name));
        }
    }
    ranges.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (Some((widest, wide)), Some((median, _))) = (ranges.last(), ranges.get(ranges.len() / 2))
    else {
        return Ok(());
    };
    let factor = widest / median;
    match factor > UNEVEN_MAX {
        true => Err(FitError::UnevenColumns { wide: (*wide).to_owned(), factor }),
        false => Ok(()),
    }
}

/// Whether a text is a number with a unit, a percent sign, a decimal comma or separators between
/// groups of three digits.
fn is_formatted_number(text: &str) -> bool {
    let is_unit = |c: char| matches!(c, '%' | '$' | '€' | '£' | '¥' | ' ' | '\u{a0}');
    let text = text.trim_matches(is_unit).trim_start_matches(['-', '+']).trim_matches(is_unit);
    let mut groups = text.split([',', '.', ' ', '\'', '\u{a0}', '\u{202f}']).peekable();
    let Some(first) = groups.next() else { return false };
    let is_digits = |group: &str| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit());
    let mut fits = is_digits(first);
    while let Some(group) = groups.next() {
        let is_last = groups.peek().is_none();
        fits &= is_digits(group) && (is_last || group.len() == 3);
    }
    fits
}

/// Refuses a column of numbers that their format, or a few texts, would turn into a column of names.
fn check_texts(table: &Table, profile: &TableProfile) -> Result<(), FitError> {
    let TableFeatures::Columns(columns) = table.features() else { return Ok(()) };
    for (column, profile) in columns.iter().zip(&profile.columns) {
        let Cells::Texts { texts, cells } = &column.cells else { continue };
        if profile.treatment != Treatment::Ignored(IgnoredReason::ManyTexts) {
            continue;
        }
        let is_number: Vec<bool> = texts.iter().map(|text| parse_number(text).is_some()).collect();
        let present = || cells.iter().flatten().map(|text| *text as usize);
        let numbers = present().filter(|text| is_number[*text]).count();
        let first = cells.iter().position(|cell| cell.is_some_and(|at| !is_number[at as usize]));
        let first = first.and_then(|row| Some((row, cells[row]? as usize)));
        let formatted: Vec<bool> = texts.iter().map(|text| is_formatted_number(text)).collect();
        if let Some((row, text)) = first
            && formatted[text]
            && 2 * present().filter(|text| formatted[*text]).count() > present().count()
        {
            return Err(FitError::FormattedNumbers {
                column: column.name.clone(),
                text: texts[text].clone(),
                place: table.position(row),
            });
        }
        if let Some((row, text)) = first
            && 2 * numbers > present().count()
        {
            return Err(FitError::MostlyNumbers {
                column: column.name.clone(),
                numbers,
                text: texts[text].clone(),
                place: table.position(row),
            });
        }
    }
    Ok(())
}

/// Whether labels are a quantity or names rather than classes.
fn are_not_classes(distinct: usize, rows: usize) -> bool {
    distinct > CLASSES_FOUND_MAX
        || distinct > CLASSES_SURE && distinct.saturating_mul(ROWS_PER_CLASS_MIN) > rows
}

/// The names of the classes and their number. Labels that are the whole numbers from 0 on have no
/// names.
///
/// # Errors
/// [`FitError`] if a label is missing, or if the labels are not classes.
pub fn fit_class_names(table: &Table) -> Result<(Vec<String>, usize), FitError> {
    let missing = |row: usize| FitError::NoLabel { place: table.position(row) };
    let (names, are_labels) = match table.labels() {
        Cells::Numbers(numbers) => {
            if let Some(row) = numbers.iter().position(|number| number.is_nan()) {
                return Err(missing(row));
            }
            let mut distinct = numbers.clone();
            distinct.sort_unstable_by(f64::total_cmp);
            distinct.dedup();
            let are_labels = distinct.iter().enumerate().all(|(at, number)| *number == at as f64);
            let within = |number: &f64| (0.0..table.classes_min as f64).contains(number);
            let are_labels =
                are_labels || distinct.iter().all(|number| number.fract() == 0.0 && within(number));
            (distinct.iter().map(ToString::to_string).collect::<Vec<_>>(), are_labels)
        }
        Cells::Texts { cells, .. } => {
            if let Some(row) = cells.iter().position(Option::is_none) {
                return Err(missing(row));
            }
            (table.labels().distinct_texts(), false)
        }
    };
    let classes = names.len().max(table.classes_min);
    match names.len() {
        0 | 1 if classes < 2 => Err(FitError::OneClass),
        distinct if are_not_classes(distinct, table.rows()) => {
            Err(FitError::NotClasses { distinct, rows: table.rows() })
        }
        _ if are_labels => Ok((Vec::new(), classes)),
        found => Ok((names, found)),
    }
}
