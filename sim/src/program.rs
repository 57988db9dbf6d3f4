//! The program version and commit, and run identifiers with which a simulation can be repeated.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// Placeholder when the commit is unknown.
pub const UNKNOWN: &str = "unknown";
/// Minimum number of characters of an abbreviated commit.
const LETTERS_MIN: usize = 7;

/// The program that ran the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Program<'a> {
    /// Its version.
    pub version: &'a str,
    /// The commit of its source; with the suffix `-changed` if files differed from the commit, and
    /// [`UNKNOWN`] outside of git.
    pub commit: &'a str,
}

impl Program<'_> {
    /// Whether the commit identifies the program exactly: false if files differed from the commit
    /// or the commit is unknown.
    #[must_use]
    pub fn has_exact_commit(&self) -> bool {
        self.commit.len() >= LETTERS_MIN && self.commit.bytes().all(|b| b.is_ascii_hexdigit())
    }

    /// The identifier of a simulation: `SEED@COMMIT`.
    #[must_use]
    pub fn run_id(&self, seed: u64) -> String {
        format!("{seed}@{}", self.commit)
    }
}

/// Identifies one simulation by its seed and the commit of the program that ran it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunId {
    /// The seed.
    pub seed: u64,
    /// The commit, possibly abbreviated.
    pub commit: String,
}

impl RunId {
    /// Whether this program ran the simulation.
    #[must_use]
    pub fn was_run_by(&self, program: &Program<'_>) -> bool {
        let commit = self.commit.as_str();
        commit == program.commit
            || (commit.len() >= LETTERS_MIN
                && commit.bytes().all(|b| b.is_ascii_hexdigit())
                && program.commit.starts_with(commit)
                && program.has_exact_commit())
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.seed, self.commit)
    }
}

impl FromStr for RunId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no simulation identifier: write SEED@COMMIT, as in the column `run` \
                 of a results folder"
            )
        };
        let (seed, commit) = text.split_once('@').ok_or_else(wrong)?;
        let fine = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        if commit.is_empty() || !commit.bytes().all(fine) {
            return Err(wrong());
        }
        let seed = seed.parse().map_err(|_| wrong())?;
        Ok(Self { seed, commit: commit.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_id_matches_a_full_or_abbreviated_commit() {
        let program = |commit| Program { version: "1", commit };
        let game: RunId = "7@0123456789ab".parse().unwrap();
        assert_eq!((game.seed, game.to_string().as_str()), (7, "7@0123456789ab"));
        assert_eq!(program("0123456789ab").run_id(7), game.to_string());
        assert!(game.was_run_by(&program("0123456789ab")));
        assert!("7@0123456".parse::<RunId>().unwrap().was_run_by(&program("0123456789ab")));
        assert!(!"7@012345".parse::<RunId>().unwrap().was_run_by(&program("0123456789ab")));
        assert!(
            !"7@0123456".parse::<RunId>().unwrap().was_run_by(&program("0123456789ab-changed"))
        );
        assert!("7@unknown".parse::<RunId>().unwrap().was_run_by(&program(UNKNOWN)));
        assert!(!game.was_run_by(&program(UNKNOWN)));
        assert!(program("0123456789ab").has_exact_commit());
        for commit in ["0123456789ab-changed", UNKNOWN, "", "0123"] {
            assert!(!program(commit).has_exact_commit(), "{commit}");
        }
        for wrong in ["7", "@0123456", "7@", "x@0123456", "7@a b"] {
            assert!(wrong.parse::<RunId>().is_err(), "{wrong}");
        }
    }
}
