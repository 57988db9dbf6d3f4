//! Reads written results back for a comparison.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::RESULTS;
use crate::measure::ConfidenceInterval;

/// Identifies a measured value of a folder: the group (`None` for the whole market) and the
/// measure.
pub type MeasureName = (Option<String>, String);

/// The results in one folder.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedResults {
    /// Its label in the comparison.
    pub label: String,
    /// Name of the payment mechanism.
    pub mechanism: String,
    /// The varied settings: keys and values.
    pub settings: Vec<(String, String)>,
    /// All measures.
    pub measures: BTreeMap<MeasureName, ConfidenceInterval>,
    /// Accuracy after each round, averaged over the seeds.
    pub accuracy: Vec<f64>,
}

/// The folder has no readable results.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}; name a folder that `florin sim run --out` wrote [RESULTS_UNREADABLE]")]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// The error.
    pub why: String,
}

/// The columns that are read of `rounds.csv`.
#[derive(Deserialize)]
struct RoundsCsvRow {
    round: usize,
    accuracy: f64,
}

impl LoadedResults {
    /// Reads the results folder of an experiment.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read(folder: &Path, label: &str) -> Result<Self, ReadError> {
        let path = folder.join(RESULTS);
        let wrong =
            |why: &dyn std::fmt::Display| ReadError { path: path.clone(), why: why.to_string() };
        let text = fs::read_to_string(&path).map_err(|error| wrong(&error))?;
        let value: Value = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
        let measures = value["measures"].as_array().ok_or_else(|| wrong(&"it has no measures"))?;
        let measures = measures.iter().filter_map(|m| {
            let group = m["group"].as_str().map(str::to_owned);
            let name = (group, m["measure"].as_str()?.to_owned());
            Some((name, ConfidenceInterval::deserialize(m).ok()?))
        });
        Ok(Self {
            label: label.to_owned(),
            mechanism: value["scenario"]["mechanism"]["rule"]
                .as_str()
                .unwrap_or("florin")
                .to_owned(),
            settings: Vec::new(),
            measures: measures.collect(),
            accuracy: read_accuracy(&folder.join("rounds.csv"))?,
        })
    }

    /// One measure of a group or of the whole market.
    #[must_use]
    pub fn measure(&self, group: Option<&str>, measure: &str) -> Option<&ConfidenceInterval> {
        self.measures.get(&(group.map(str::to_owned), measure.to_owned()))
    }
}

/// Accuracy after each round, averaged over the seeds.
fn read_accuracy(path: &Path) -> Result<Vec<f64>, ReadError> {
    let wrong = |error: csv::Error| ReadError { path: path.to_owned(), why: error.to_string() };
    let mut reader = csv::Reader::from_path(path).map_err(wrong)?;
    let mut sums: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
    for row in reader.deserialize() {
        let RoundsCsvRow { round, accuracy } = row.map_err(wrong)?;
        let (sum, count) = sums.entry(round).or_default();
        *sum += accuracy;
        *count += 1.0;
    }
    Ok(sums.into_values().map(|(sum, count)| sum / count).collect())
}
