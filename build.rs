//! Says which commit the program is built from, so that whoever reads its results can build the same again.

use std::path::Path;
use std::process::Command;

/// What the program is made of.
const SOURCES: [&str; 14] = [
    "src",
    "sim/src",
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
/// Letters of a commit that are kept.
const LETTERS: &str = "--short=12";

fn main() {
    println!("cargo:rerun-if-env-changed=FLORIN_COMMIT");
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
    }
    // A commit moves these two.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let commit = std::env::var("FLORIN_COMMIT").ok().or_else(commit);
    println!("cargo:rustc-env=FLORIN_COMMIT={}", commit.unwrap_or_else(|| "unknown".to_owned()));
}

/// The commit, and whether files differ from it; none outside of git.
fn commit() -> Option<String> {
    let commit = git(&["rev-parse", LETTERS, "HEAD"])?;
    let mut status = vec!["status", "--porcelain", "--"];
    status.extend(SOURCES);
    let changed = git(&status).is_none_or(|files| !files.is_empty());
    Some(if changed { format!("{commit}-changed") } else { commit })
}

/// What git says; none where there is no git or it fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| said.trim().to_owned())
}
