//! `cargo xtask bench keys`: collects the figures that tests and contracts measure, for
//! `florin-bench`.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use crate::failure::Failure;
use crate::{cargo, contracts, process};

/// The tests that measure figures: by the names of their modules, or by their own.
const TESTS: [&str; 3] = ["coverage_tests", "market_shutting", "a_trapped_model"];
/// The variable that names the file of the figures to the tests.
const FILE: &str = "FLORIN_FIGURES";
/// Sums of rows of the gas table, and what they cost at commit 6fedfd1, before the contracts
/// limited each key.
const GAS: [(&str, &[&str], u64); 4] = [
    ("settle a round", &["post, 10 participants", "finalize, 1 settlement"], 108_971),
    ("claim, first, new holder", &["claim, 1,024 accounts, first, new holder"], 92_177),
    ("claim, later", &["claim, 1,024 accounts, later"], 57_935),
    ("claim, later, with a debit", &["claim, 1,024 accounts, later, with a debit"], 92_285),
];
/// The most that these may cost now, in percent of that.
const GAS_PERCENT_MAX: u64 = 103;

/// Runs the tests and measures gas. Returns the file of the figures, one line of JSON each.
pub(crate) fn figures() -> Result<PathBuf, Failure> {
    let file = process::root().join("target/figures.jsonl");
    if file.exists() {
        fs::remove_file(&file).map_err(|cause| Failure::file("remove", &file, &cause))?;
    }
    eprintln!("bench: running the tests that measure figures");
    let mut tests = cargo::command();
    tests.args(["test", "--workspace", "--lib", "--test", "it", "--"]).args(TESTS);
    tests.env(FILE, &file);
    if let Err(error) = process::capture(&mut tests)? {
        return Err(failed("a test that measures a figure failed", &error));
    }
    let mut text = fs::read_to_string(&file)
        .map_err(|_| failed("no test wrote a figure", "the names of the tests have changed"))?;
    let table = contracts::gas_table()?;
    for (name, rows, before) in GAS {
        let cost = |row: &&str| {
            let label = format!("| {row} |");
            let line = table.lines().find_map(|line| line.split_once(label.as_str()));
            let value =
                line.and_then(|(_, rest)| rest.trim().trim_end_matches('|').trim().parse().ok());
            value.ok_or_else(|| failed("the gas table has another form", row))
        };
        let costs: Vec<u64> = rows.iter().map(cost).collect::<Result<_, _>>()?;
        let (now, most) = (costs.iter().sum::<u64>(), before * GAS_PERCENT_MAX / 100);
        let _ = writeln!(
            text,
            "{{\"name\":\"gas: {name}\",\"value\":{now},\"unit\":\"gas\",\"at_most\":{most}}}"
        );
    }
    fs::write(&file, text).map_err(|cause| Failure::file("write", &file, &cause))?;
    Ok(file)
}

fn failed(what: &str, detail: &str) -> Failure {
    let what = format!("{what}: {detail}");
    Failure::new("FIGURES_FAILED", what, "run `cargo xtask test` and mend what it reports")
}
