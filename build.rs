//! Records the commit that the program is built from, so that results can be reproduced.

use std::path::Path;
use std::process::Command;

/// The sources of the program.
const SOURCES: [&str; 15] = [
    "src",
    "sim/src",
    "sim/charts/src",
    "sim/faults/src",
    "work/src",
    "coordinator/src",
    "coordinator/engine/src",
    "coordinator/store/src",
    "ledger/src",
    "ledger/ethereum/src",
    "protocol/src",
    "contribution/src",
    "learning/src",
    "participant/src",
    "Cargo.lock",
];
/// The length of the recorded commit hash.
const LETTERS: &str = "--short=12";

fn main() {
    println!("cargo:rerun-if-env-changed=FLORIN_COMMIT");
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
    }
    // A new commit changes these two files.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let commit = std::env::var("FLORIN_COMMIT").ok().or_else(commit);
    println!("cargo:rustc-env=FLORIN_COMMIT={}", commit.unwrap_or_else(|| "unknown".to_owned()));
}

/// The commit, with a suffix if files differ from it; `None` outside git.
fn commit() -> Option<String> {
    let commit = git(&["rev-parse", LETTERS, "HEAD"])?;
    let mut status = vec!["status", "--porcelain", "--"];
    status.extend(SOURCES);
    let changed = git(&status).is_none_or(|files| !files.is_empty());
    Some(if changed { format!("{commit}-changed") } else { commit })
}

/// The output of a git command; `None` if git is missing or fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
