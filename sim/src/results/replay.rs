//! Whether a game that is played again gives what a folder has of it, to the last digit.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Program, Results};

/// Differences that are shown.
const DIFFERENCES_MAX: usize = 20;

/// A folder's file that cannot be held against anything.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why} [REPLAY_UNREADABLE]")]
pub struct ReplayError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it, and what would be right.
    pub why: String,
}

/// A row that is not the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// In which file.
    pub file: &'static str,
    /// What the file has; none where the game has more rows than the file.
    pub recorded: Option<String>,
    /// What the game gave.
    pub played: Option<String>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// The game.
    pub game: String,
    /// Rows that were held against each other.
    pub rows: usize,
    /// How many of them differ.
    pub different: usize,
    /// The first of those.
    pub differences: Vec<Difference>,
}

impl Results {
    /// Holds the game of a seed against the rows that a folder has of it.
    ///
    /// # Errors
    /// [`ReplayError`] where the folder has no rows of the game.
    pub fn replayed(
        &self,
        seed: u64,
        folder: &Path,
        program: &Program<'_>,
    ) -> Result<Replayed, ReplayError> {
        let game = program.game(seed);
        let mut found = Replayed { game, rows: 0, different: 0, differences: Vec::new() };
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
            let (recorded, played) = (rows(&recorded, &found.game), rows(&played, &found.game));
            if recorded.len() < 2 {
                return Err(wrong(format!("it has no row of {}; {right}", found.game)));
            }
            for at in 0..recorded.len().max(played.len()) {
                let (recorded, played) = (recorded.get(at).copied(), played.get(at).copied());
                found.rows += 1;
                if recorded == played {
                    continue;
                }
                found.different += 1;
                if found.differences.len() < DIFFERENCES_MAX {
                    let (recorded, played) =
                        (recorded.map(str::to_owned), played.map(str::to_owned));
                    found.differences.push(Difference { file, recorded, played });
                }
            }
        }
        Ok(found)
    }
}

/// A table's header, and its rows of a game.
fn rows<'a>(text: &'a str, game: &str) -> Vec<&'a str> {
    let of = |line: &&str| line.strip_prefix(game).is_some_and(|rest| rest.starts_with(','));
    text.lines().take(1).chain(text.lines().skip(1).filter(of)).collect()
}
