//! Compares a repeated simulation with the recorded results in a folder, digit by digit.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Program, Results};

/// Maximum number of mismatches to return.
const MISMATCHES_MAX: usize = 20;

/// A recorded file cannot be compared.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why} [REPLAY_UNREADABLE]")]
pub struct ReplayError {
    /// The file.
    pub path: PathBuf,
    /// The error, and how to correct it.
    pub why: String,
}

/// A row that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplayMismatch {
    /// The file of the row.
    pub file: &'static str,
    /// The recorded row; `None` if the repeated simulation has more rows than the file.
    pub recorded: Option<String>,
    /// The row of the repeated simulation; `None` if the file has more rows.
    pub repeated: Option<String>,
}

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplayReport {
    /// The identifier of the simulation.
    pub run: String,
    /// Number of compared rows.
    pub rows: usize,
    /// Number of rows that differ.
    pub mismatch_count: usize,
    /// The first of the rows that differ.
    pub mismatches: Vec<ReplayMismatch>,
}

impl Results {
    /// Compares the simulation of `seed` with the rows that a folder has of it.
    ///
    /// # Errors
    /// [`ReplayError`] if the folder has no rows of the simulation.
    pub fn compare_with(
        &self,
        seed: u64,
        folder: &Path,
        program: &Program<'_>,
    ) -> Result<ReplayReport, ReplayError> {
        let game = program.run_id(seed);
        let mut found =
            ReplayReport { run: game, rows: 0, mismatch_count: 0, mismatches: Vec::new() };
        for (file, played) in [
            ("seeds.csv", self.seeds_table(program).csv()),
            ("members.csv", self.members_table(program).csv()),
            ("rounds.csv", self.rounds_table(program).csv()),
        ] {
            let path = folder.join(file);
            let wrong = |why: String| ReplayError { path: path.clone(), why };
            let right = "name a folder that `florin sim run --out` wrote";
            let recorded =
                fs::read_to_string(&path).map_err(|error| wrong(format!("{error}; {right}")))?;
            let (recorded, played) =
                (rows_of_run(&recorded, &found.run), rows_of_run(&played, &found.run));
            if recorded.len() < 2 {
                return Err(wrong(format!("it has no row of {}; {right}", found.run)));
            }
            for at in 0..recorded.len().max(played.len()) {
                let (recorded, played) = (recorded.get(at).copied(), played.get(at).copied());
                found.rows += 1;
                if recorded == played {
                    continue;
                }
                found.mismatch_count += 1;
                if found.mismatches.len() < MISMATCHES_MAX {
                    let (recorded, played) =
                        (recorded.map(str::to_owned), played.map(str::to_owned));
                    found.mismatches.push(ReplayMismatch { file, recorded, repeated: played });
                }
            }
        }
        Ok(found)
    }
}

/// The header of a table, and its rows of one simulation.
fn rows_of_run<'a>(text: &'a str, game: &str) -> Vec<&'a str> {
    let of = |line: &&str| line.strip_prefix(game).is_some_and(|rest| rest.starts_with(','));
    text.lines().take(1).chain(text.lines().skip(1).filter(of)).collect()
}
