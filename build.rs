//! Records the commit that the program is built from, so that results can be reproduced, and links
//! the program so that it finds libtorch from any folder.

use std::path::Path;
use std::process::Command;

/// The sources of the program.
const SOURCES: [&str; 16] = [
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
    "random/src",
    "contribution/src",
    "learning/src",
    "participant/src",
    "Cargo.lock",
];
/// The length of the recorded commit hash.
const LETTERS: &str = "--short=12";

fn main() {
    link_libtorch();
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

/// Adds the folder of libtorch to the library path of the program, so that `cargo install --path .`
/// installs a program that runs from anywhere while the folder exists.
fn link_libtorch() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let unix = std::env::var_os("CARGO_CFG_UNIX").is_some();
    if let (true, Some(_), Ok(folder)) =
        (unix, std::env::var_os("CARGO_FEATURE_TORCH"), std::env::var("LIBTORCH"))
    {
        println!("cargo:rustc-link-arg-bins=-Wl,-rpath,{folder}/lib");
    }
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
