//! A run's folder: the scenario, every figure, every member, every round. The same run writes the same bytes.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::Results;

/// Why results could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}; choose another folder with --out, or make room [RESULTS_NOT_WRITTEN]")]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    pub why: String,
}

impl Results {
    /// Writes `scenario.toml`, `measures.csv`, `seeds.csv`, `members.csv`, `rounds.csv`, `report.html` and `results.json` into a folder,
    /// which is made where it is not there.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(&self, folder: &Path, version: &str) -> Result<(), WriteError> {
        let at = |path: &Path, why: &dyn std::fmt::Display| WriteError {
            path: path.to_owned(),
            why: why.to_string(),
        };
        fs::create_dir_all(folder).map_err(|error| at(folder, &error))?;
        let put = |name: &str, text: String| {
            let path = folder.join(name);
            fs::write(&path, text).map_err(|error| at(&path, &error))
        };
        put("scenario.toml", self.scenario.to_toml())?;
        put("measures.csv", self.measures_csv())?;
        put("seeds.csv", self.seeds_csv())?;
        put("members.csv", self.members_csv())?;
        put("rounds.csv", self.rounds_csv())?;
        put("report.html", self.to_html(version))?;
        put("results.json", format!("{:#}\n", self.to_json(version)))
    }

    /// The same as one JSON document, without members and rounds.
    #[must_use]
    pub fn to_json(&self, version: &str) -> serde_json::Value {
        json!({
            "version": version,
            "scenario": self.scenario,
            "measures": self.measures,
            "rules": self.rules,
            "fit": self.fit,
        })
    }

    fn measures_csv(&self) -> String {
        table(&["group", "measure", "mean", "low", "high", "seeds"], |write| {
            for m in &self.measures {
                let i = &m.interval;
                write(vec![
                    m.key.group.clone().unwrap_or_default(),
                    m.key.measure.to_owned(),
                    i.mean.to_string(),
                    i.low.to_string(),
                    i.high.to_string(),
                    i.count.to_string(),
                ]);
            }
        })
    }

    fn seeds_csv(&self) -> String {
        table(&["seed", "group", "measure", "value"], |write| {
            for (played, figures) in self.played.iter().zip(&self.figures) {
                for (key, value) in figures {
                    write(vec![
                        played.seed.to_string(),
                        key.group.clone().unwrap_or_default(),
                        key.measure.to_owned(),
                        value.to_string(),
                    ]);
                }
            }
        })
    }

    fn members_csv(&self) -> String {
        let head = [
            "seed", "member", "group", "honest", "rows", "asked", "rounds", "refused", "earned",
            "cost", "profit", "score",
        ];
        table(&head, |write| {
            for played in &self.played {
                for (number, m) in played.members.iter().enumerate() {
                    write(vec![
                        played.seed.to_string(),
                        number.to_string(),
                        played.groups.get(m.group).cloned().unwrap_or_default(),
                        m.honest.to_string(),
                        m.rows.to_string(),
                        m.asked.to_string(),
                        m.rounds.to_string(),
                        m.refused.to_string(),
                        m.earned.to_string(),
                        m.cost.to_string(),
                        m.profit().to_string(),
                        m.score.to_string(),
                    ]);
                }
            }
        })
    }

    fn rounds_csv(&self) -> String {
        let head = [
            "seed",
            "round",
            "at_ms",
            "asked",
            "updates",
            "excluded",
            "set_aside",
            "improvement",
            "spent",
            "accuracy",
        ];
        table(&head, |write| {
            for played in &self.played {
                for r in &played.rounds {
                    write(vec![
                        played.seed.to_string(),
                        r.round.to_string(),
                        r.at_ms.to_string(),
                        r.asked.to_string(),
                        r.updates.to_string(),
                        r.excluded.to_string(),
                        r.set_aside.to_string(),
                        r.improvement.to_string(),
                        r.spent.to_string(),
                        r.accuracy.to_string(),
                    ]);
                }
            }
        })
    }
}

/// A CSV table in memory.
fn table(head: &[&str], fill: impl FnOnce(&mut dyn FnMut(Vec<String>))) -> String {
    let mut out = csv::Writer::from_writer(Vec::new());
    // Writing into memory does not fail.
    let _ = out.write_record(head);
    fill(&mut |row| {
        let _ = out.write_record(row);
    });
    String::from_utf8(out.into_inner().unwrap_or_default()).unwrap_or_default()
}
