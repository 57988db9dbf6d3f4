//! `cargo xtask deny`: checks licences, bans, sources and advisories of the dependencies.
//!
//! Uses cargo-deny if it is installed. If it is not, or if the advisory database is unreachable,
//! the check is skipped and prints one line about that.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::failure::Failure;
use crate::{cargo, process};

/// The oldest cargo-deny that reads the lock file and deny.toml.
const VERSION_MIN: (u32, u32) = (0, 18);

/// `cargo xtask deny`.
pub(crate) fn run() -> Result<ExitCode, Failure> {
    if let Err(reason) = check_cargo_deny()? {
        println!("deny: skipped: {reason}");
        return Ok(ExitCode::SUCCESS);
    }
    let checks = ["check", "licenses", "bans", "sources"];
    if !process::run(cargo::command().arg("deny").args(checks))?.success() {
        return Err(Failure::new(
            "DEPENDENCY_DENIED",
            "a dependency breaks the rules of deny.toml",
            "cargo-deny's message above names it and its dependents",
        ));
    }
    println!("deny: licences, bans and sources are fine");
    advisories()
}

/// Whether a sufficiently new cargo-deny is installed. The inner error is the reason to skip the
/// check.
fn check_cargo_deny() -> Result<Result<(), String>, Failure> {
    let in_home = cargo_home().is_some_and(|home| home.join("bin/cargo-deny").is_file());
    if !in_home && !process::is_on_path("cargo-deny") {
        let reason = "cargo-deny is not installed (run `cargo install --locked cargo-deny`)";
        return Ok(Err(reason.to_owned()));
    }
    let answer = process::capture(cargo::command().args(["deny", "--version"]))?;
    let answer = answer.unwrap_or_else(|output| output);
    match parse_version(&answer) {
        Some(version) if version >= VERSION_MIN => Ok(Ok(())),
        _ => Ok(Err(format!(
            "`{}` is too old to read this lock file; {}.{} or later is needed",
            answer.trim(),
            VERSION_MIN.0,
            VERSION_MIN.1
        ))),
    }
}

/// Checks for known vulnerabilities, with the online advisory database or with the copy of an
/// earlier run.
fn advisories() -> Result<ExitCode, Failure> {
    let mut deny = cargo::command();
    let fetched = process::capture(deny.args(["deny", "fetch", "db"]))?;
    let mut check = cargo::command();
    check.arg("deny");
    if let Err(output) = fetched {
        if !has_local_database() {
            println!(
                "deny: advisories skipped: the database cannot be fetched, no local copy exists"
            );
            println!("{output}");
            return Ok(ExitCode::SUCCESS);
        }
        println!("deny: the advisory database cannot be fetched; the local copy is used");
        check.arg("--offline");
    }
    if process::run(check.args(["check", "advisories"]))?.success() {
        println!("deny: no advisories");
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new(
        "DEPENDENCY_VULNERABLE",
        "a dependency has a known vulnerability, or was yanked",
        "cargo-deny's message above names it and the version that is fixed",
    ))
}

/// Whether an earlier run left a copy of the database: a folder with a subfolder `crates`.
fn has_local_database() -> bool {
    let Some(home) = cargo_home() else { return false };
    ["advisory-dbs", "advisory-db"].iter().any(|name| {
        let folders = std::fs::read_dir(home.join(name)).into_iter().flatten().flatten();
        folders.map(|entry| entry.path()).any(|path| path.join("crates").is_dir())
    })
}

fn cargo_home() -> Option<PathBuf> {
    let named = env::var_os("CARGO_HOME").map(PathBuf::from);
    named.or_else(|| env::home_dir().map(|home| home.join(".cargo")))
}

/// Parses `(0, 18)` from `cargo-deny 0.18.2`.
fn parse_version(answer: &str) -> Option<(u32, u32)> {
    let number = answer.split_whitespace().last()?;
    let mut parts = number.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_cargo_deny_are_compared() {
        assert!(parse_version("cargo-deny 0.14.2\n").unwrap() < VERSION_MIN);
        assert!(parse_version("cargo-deny 0.18.5\n").unwrap() >= VERSION_MIN);
        assert!(parse_version("cargo-deny 1.0.0\n").unwrap() >= VERSION_MIN);
        assert_eq!(parse_version("error: no such command: `deny`"), None);
    }
}
