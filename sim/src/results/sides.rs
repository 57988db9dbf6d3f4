//! Results that were written, read again to be held beside each other.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::RESULTS;
use crate::measure::Interval;

/// Names a figure of a folder: the group, none for the whole market, and the measure.
pub type Name = (Option<String>, String);

/// What a folder has.
#[derive(Clone, Debug, PartialEq)]
pub struct Side {
    /// What it is called beside others.
    pub label: String,
    /// By which mechanism it was paid.
    pub mechanism: String,
    /// What was set for it: keys and values.
    pub settings: Vec<(String, String)>,
    /// Every figure.
    pub measures: BTreeMap<Name, Interval>,
    /// Accuracy after each round, mean of the seeds.
    pub accuracy: Vec<f64>,
}

/// A folder that has no results.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}; name a folder that `florin sim run --out` wrote [RESULTS_UNREADABLE]")]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// What is read of a row of `rounds.csv`.
#[derive(Deserialize)]
struct Row {
    round: usize,
    accuracy: f64,
}

impl Side {
    /// Reads a folder that a run wrote.
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
            Some((name, Interval::deserialize(m).ok()?))
        });
        Ok(Self {
            label: label.to_owned(),
            mechanism: value["scenario"]["mechanism"]["rule"].as_str().unwrap_or("own").to_owned(),
            settings: Vec::new(),
            measures: measures.collect(),
            accuracy: accuracy(&folder.join("rounds.csv"))?,
        })
    }

    /// A figure.
    #[must_use]
    pub fn figure(&self, group: Option<&str>, measure: &str) -> Option<&Interval> {
        self.measures.get(&(group.map(str::to_owned), measure.to_owned()))
    }
}

/// Accuracy after each round, mean of the seeds.
fn accuracy(path: &Path) -> Result<Vec<f64>, ReadError> {
    let wrong = |error: csv::Error| ReadError { path: path.to_owned(), why: error.to_string() };
    let mut reader = csv::Reader::from_path(path).map_err(wrong)?;
    let mut sums: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
    for row in reader.deserialize() {
        let Row { round, accuracy } = row.map_err(wrong)?;
        let (sum, count) = sums.entry(round).or_default();
        *sum += accuracy;
        *count += 1.0;
    }
    Ok(sums.into_values().map(|(sum, count)| sum / count).collect())
}
