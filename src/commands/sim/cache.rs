//! The cache of a sweep: decides whether stored results are those that this program would produce
//! now. One digest covers all inputs of the results; it is written last.

use std::fs;
use std::path::Path;

use florin_protocol::blob_digest;
use florin_sim::Scenario;
use florin_sim::results::{Program, RESULTS, WriteError};
use serde_json::Value;

use super::{PROGRAM, not_written};
use crate::failure::Failure;

/// The file with the digest of the inputs of a folder's results.
const DIGEST_FILE: &str = "made-of";

/// The cache of results by this program.
#[derive(Debug)]
pub(super) struct SweepCache {
    /// Identifies the program and its build.
    program: String,
}

impl SweepCache {
    /// The cache of the running program. The commit identifies the program; if files differ from
    /// the commit, or the commit is unknown, the digest of the executable does.
    pub(super) fn for_this_program() -> anyhow::Result<Self> {
        let bytes = || {
            let unreadable = |error: std::io::Error| {
                let why = format!(
                    "cannot read this program's own file: {error}; a sweep needs it to recognise \
                     its own results. Build from a clean checkout, or run the program from a file"
                );
                Failure::fault("PROGRAM_UNREADABLE", why)
            };
            let path = std::env::current_exe().map_err(unreadable)?;
            fs::read(path).map_err(unreadable)
        };
        Self::new(&PROGRAM, bytes)
    }

    fn new(
        program: &Program<'_>,
        bytes: impl FnOnce() -> Result<Vec<u8>, Failure>,
    ) -> anyhow::Result<Self> {
        let Program { version, commit } = program;
        let own = match program.has_exact_commit() {
            true => String::new(),
            false => blob_digest(&bytes()?).to_string(),
        };
        Ok(Self { program: format!("{version} {commit} {own}") })
    }

    /// Reads the stored results, if they are complete and belong to exactly this scenario and
    /// program.
    pub(super) fn read(&self, folder: &Path, scenario: &Scenario) -> Option<Value> {
        let made_of = fs::read_to_string(folder.join(DIGEST_FILE)).ok()?;
        if made_of != self.inputs_digest(scenario) {
            return None;
        }
        serde_json::from_str(&fs::read_to_string(folder.join(RESULTS)).ok()?).ok()
    }

    /// Marks a folder's results as complete.
    pub(super) fn write(&self, folder: &Path, scenario: &Scenario) -> anyhow::Result<()> {
        let path = folder.join(DIGEST_FILE);
        fs::write(&path, self.inputs_digest(scenario)).map_err(|error| write_failure(&path, &error))
    }

    /// Removes the mark before a folder is overwritten.
    pub(super) fn invalidate(&self, folder: &Path) -> anyhow::Result<()> {
        let path = folder.join(DIGEST_FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(write_failure(&path, &error))
            }
            _ => Ok(()),
        }
    }

    /// The digest of all inputs: the program, the scenario, and the files that the scenario names.
    /// Each part is hashed separately, so that different lists of parts cannot have the same text.
    fn inputs_digest(&self, scenario: &Scenario) -> String {
        let mut parts = vec![self.program.clone(), scenario.to_toml()];
        parts.extend(
            scenario.attached_files().flat_map(|(name, text)| [name.to_owned(), text.to_owned()]),
        );
        let digests = parts.iter().map(|part| blob_digest(part.as_bytes()).to_string());
        let digests: Vec<String> = digests.collect();
        format!("{}\n", blob_digest(digests.join(" ").as_bytes()))
    }
}

fn write_failure(path: &Path, error: &std::io::Error) -> anyhow::Error {
    not_written(&WriteError { path: path.to_owned(), why: error.to_string() }).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(commit: &'static str, bytes: &[u8]) -> SweepCache {
        let program = Program { version: "1", commit };
        SweepCache::new(&program, || Ok(bytes.to_vec())).unwrap()
    }

    fn scenario(folder: &Path, trace: &str, rounds: u32) -> Scenario {
        let lines = format!("member,from_s,until_s\n{trace}\n");
        fs::write(folder.join("days.csv"), lines).unwrap();
        let text = format!(
            "name = 'a'\nquestion = 'Again?'\nrounds = {rounds}\n[population.honest]\ncount = 4\n\
             rows = [20, 40]\nonline = {{ pattern = 'trace', file = 'days.csv' }}"
        );
        Scenario::read_in(folder, &text, &[]).unwrap()
    }

    #[test]
    fn cached_results_are_used_only_for_the_same_scenario_trace_and_program() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let (clean, asked) = (of("0123456789ab", b"x"), scenario(folder, "0,0,900", 2));
        fs::write(folder.join("results.json"), "{\"passed\": true}").unwrap();
        assert_eq!(clean.read(folder, &asked), None, "the results are not marked as complete");
        clean.write(folder, &asked).unwrap();
        assert!(clean.read(folder, &asked).is_some());
        assert!(
            of("0123456789ab", b"y").read(folder, &asked).is_some(),
            "another build of the same commit"
        );
        assert_eq!(of("0123456789ac", b"x").read(folder, &asked), None, "another commit");
        assert_eq!(clean.read(folder, &scenario(folder, "0,0,900", 3)), None, "another scenario");
        let moved = scenario(folder, "0,0,901", 2);
        assert_eq!(clean.read(folder, &moved), None, "another trace of the same name");
        let version = Program { version: "2", commit: "0123456789ab" };
        let version = SweepCache::new(&version, || Ok(Vec::new())).unwrap();
        assert_eq!(version.read(folder, &asked), None, "another version");
        clean.invalidate(folder).unwrap();
        assert_eq!(clean.read(folder, &asked), None, "the mark was removed");
        clean.invalidate(folder).unwrap();
    }

    #[test]
    fn a_build_of_changed_files_is_identified_by_its_executable() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let asked = scenario(folder, "0,0,900", 2);
        fs::write(folder.join("results.json"), "{}").unwrap();
        for commit in ["0123456789ab-changed", "unknown"] {
            of(commit, b"one build").write(folder, &asked).unwrap();
            assert!(of(commit, b"one build").read(folder, &asked).is_some());
            assert_eq!(of(commit, b"another").read(folder, &asked), None, "{commit}");
        }
    }
}
