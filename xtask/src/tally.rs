//! Sums up the results of cargo's test programs.

use std::fmt;

/// Passed and failed tests of all test programs in a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    programs: u64,
    failures: Vec<String>,
}

impl Tally {
    /// Parses one line of `cargo test`'s output.
    pub(crate) fn add_line(&mut self, line: &str) {
        let line = without_colours(line);
        if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(name.to_owned());
        }
        let Some(result) = line.strip_prefix("test result: ") else { return };
        self.programs += 1;
        self.passed += number_before(result, " passed");
        self.failed += number_before(result, " failed");
    }

    /// Names of the failed tests.
    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, programs, .. } = self;
        write!(f, "{passed} passed, {failed} failed, in {programs} test programs")
    }
}

fn number_before(text: &str, word: &str) -> u64 {
    let before = text.split(word).next().unwrap_or_default();
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The text without terminal colour codes (escape, bracket, parameters, `m`).
fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut pieces = line.split("\u{1b}[");
    plain.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        plain.push_str(piece.split_once('m').map_or(piece, |(_, rest)| rest));
    }
    plain.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_summed_and_failures_are_listed() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test a::works ... ok",
            "test b::breaks ... FAILED",
            "test result: \u{1b}[31mFAILED\u{1b}[0m. 2 passed; 1 failed; 0 ignored; 0 measured",
            "test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; finished in 0.07s",
        ] {
            tally.add_line(line);
        }
        assert_eq!(tally.to_string(), "42 passed, 1 failed, in 2 test programs");
        assert_eq!(tally.failures(), ["b::breaks"]);
    }
}
