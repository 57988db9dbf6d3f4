//! Checkers in other languages, which reproduce the vectors.

use std::path::Path;
use std::process::Command;

use super::folder;

/// Runs a checker in another language and prints its output if it finds a difference.
fn run_checker(mut command: Command) {
    let shown = format!("{command:?}");
    let output = command.output().unwrap_or_else(|error| {
        panic!("{shown}: {error}; `cargo xtask setup` installs what this test needs")
    });
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("agree"),
        "{shown}\n{text}{}\n`cargo xtask setup` installs what this test needs",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn python_reproduces_bytes_digests_and_signatures() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", root.join(".tools/python"));
    command.arg(folder().join("check.py")).arg(folder());
    run_checker(command);
}

#[test]
fn openzeppelin_reproduces_the_claim_trees() {
    let mut command = Command::new("node");
    command.arg(folder().join("check.mjs")).arg(folder());
    run_checker(command);
}
