//! A table from which a scenario draws its rows, in place of the handwritten digits: a CSV file with
//! a header and numeric columns, one of which is the label.

use std::path::Path;
use std::sync::Arc;

use florin_learning::data::{
    DatasetError, LoadError, NumberScale, NumberSummary, ScaleKind, fit_scale, load,
};
use florin_learning::{DataSource, Dataset};
use serde::{Deserialize, Serialize};

use super::ScenarioError;
use super::file::path_inside;

/// Maximum size of a table in bytes.
const TABLE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Rows, features per row and classes of the handwritten digits.
const DIGITS: DataShape = DataShape { rows: 1_797, width: 64, classes: 10 };

/// The table of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataTable {
    /// Path of the CSV file, relative to the scenario's folder.
    pub file: String,
    /// Name of the label column.
    pub label: String,
    /// Scaling of the features.
    #[serde(default)]
    pub scale: FeatureScale,
    /// The content, after it was read.
    #[serde(skip)]
    content: Option<Arc<TableContent>>,
}

#[derive(Debug, PartialEq)]
struct TableContent {
    rows: Dataset,
    /// The content of the file, which is stored beside the results.
    text: String,
}

/// Scaling of a table's features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureScale {
    /// To mean 0 and standard deviation 1 of the buyer's holdout rows.
    #[default]
    Standard,
    /// As they are.
    None,
}

/// The size of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataShape {
    /// Number of rows.
    pub rows: u32,
    /// Features per row.
    pub width: u32,
    /// Number of classes.
    pub classes: u32,
}

impl DataTable {
    /// Reads the file, from a path relative to `folder`.
    pub(super) fn read(&mut self, folder: &Path) -> Result<(), ScenarioError> {
        let path = path_inside(folder, &self.file).ok_or_else(|| ScenarioError::Value {
            key: "learning.table.file".to_owned(),
            value: self.file.clone(),
            right: "must be a path from the scenario's folder, without . and .., of letters, \
                    digits, hyphens, points and _, and no name of a results file"
                .to_owned(),
        })?;
        let wrong = |why: String| ScenarioError::Value {
            key: "learning.table".to_owned(),
            value: self.file.clone(),
            right: why,
        };
        let bytes = std::fs::metadata(&path).map_err(|error| wrong(error.to_string()))?.len();
        if bytes > TABLE_BYTES_MAX {
            return Err(wrong(format!("must have at most {TABLE_BYTES_MAX} bytes")));
        }
        let text = std::fs::read_to_string(&path).map_err(|error| wrong(error.to_string()))?;
        let source = DataSource::Csv { file: path, label: self.label.clone() };
        let rows = load(&source).map_err(|error| wrong(error.to_string()))?;
        self.content = Some(Arc::new(TableContent { rows, text }));
        Ok(())
    }

    /// The file and its content, if it was read.
    pub(super) fn attached_file(&self) -> Option<(&str, &str)> {
        Some((self.file.as_str(), self.content.as_ref()?.text.as_str()))
    }
}

impl super::Learning {
    /// All rows from which the scenario draws.
    ///
    /// # Errors
    /// [`LoadError`] if the digits cannot be loaded.
    pub fn rows(&self) -> Result<Dataset, LoadError> {
        match self.table.as_ref().and_then(|table| table.content.as_ref()) {
            Some(content) => Ok(content.rows.clone()),
            None => load(&DataSource::Digits),
        }
    }

    /// The size of the data set.
    #[must_use]
    pub fn shape(&self) -> DataShape {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let content = self.table.as_ref().and_then(|table| table.content.as_ref());
        content.map_or(DIGITS, |content| DataShape {
            rows: count(content.rows.rows()),
            width: count(content.rows.width()),
            classes: count(content.rows.classes()),
        })
    }
}

impl FeatureScale {
    const fn kind(self) -> ScaleKind {
        match self {
            Self::Standard => ScaleKind::Standard,
            Self::None => ScaleKind::None,
        }
    }
}

/// The scale of each feature.
#[derive(Clone, Debug)]
pub struct TableScales(Vec<NumberScale>);

impl TableScales {
    /// The scales of a scenario's table, as a task computes them from its holdout; `None` without a
    /// table.
    #[must_use]
    pub fn new(table: Option<&DataTable>, holdout: &Dataset) -> Option<Self> {
        let kind = table?.scale.kind();
        let scale = |column: usize| {
            let values = (0..holdout.rows()).map(|row| f64::from(holdout.row(row)[column]));
            fit_scale(kind, NumberSummary::new(values))
        };
        Some(Self((0..holdout.width()).map(scale).collect()))
    }

    /// The rows with scaled features.
    ///
    /// # Errors
    /// [`DatasetError`].
    pub fn apply(&self, rows: &Dataset) -> Result<Dataset, DatasetError> {
        let scaled =
            |(at, value): (usize, &f32)| self.0[at % rows.width()].feature(f64::from(*value));
        let features = rows.features().iter().enumerate().map(scaled).collect();
        Dataset::new(features, rows.labels().to_vec(), rows.width(), rows.classes())
    }
}
