//! `cargo xtask contracts`: builds, tests and checks the Solidity contracts with tools from npm.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::failure::Failure;
use crate::{process, tools};

const FOLDER: &str = "contracts";

const USAGE: &str = "cargo xtask contracts build | test [FORGE TEST ARGUMENTS] | check";

/// `cargo xtask contracts`.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, Failure> {
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("", arguments),
    };
    match (command, rest) {
        ("build", []) => build(),
        ("test", rest) => test(rest),
        ("check", []) => check(),
        _ => Err(Failure::new(
            "ARGUMENT_UNKNOWN",
            format!("`contracts` cannot do `{}`", arguments.join(" ")),
            format!("run `{USAGE}`"),
        )),
    }
}

/// Compiles, and writes the ABI and bytecode that clients read.
fn build() -> Result<ExitCode, Failure> {
    install()?;
    forge(&["build"], &[])?;
    node(&["scripts/artifacts.mjs", "write"])?;
    Ok(ExitCode::SUCCESS)
}

/// Runs forge's tests, and the trees that OpenZeppelin's library builds.
fn test(arguments: &[String]) -> Result<ExitCode, Failure> {
    install()?;
    let start = Instant::now();
    forge(&["test"], arguments)?;
    node(&["scripts/trees.mjs"])?;
    eprintln!("contracts: tests passed, {:.0} s", start.elapsed().as_secs_f64());
    Ok(ExitCode::SUCCESS)
}

/// Whether the committed ABI and bytecode are what the sources compile to.
fn check() -> Result<ExitCode, Failure> {
    install()?;
    forge(&["build"], &[])?;
    node(&["scripts/artifacts.mjs", "check"])?;
    Ok(ExitCode::SUCCESS)
}

/// Everything that a change must pass.
pub(crate) fn everything() -> Result<(), Failure> {
    test(&[])?;
    check().map(|_| ())
}

/// Fetches the tools, exactly as locked.
pub(crate) fn install() -> Result<(), Failure> {
    tools::npm_if_missing(FOLDER, "the contracts' compiler, forge and anvil")
}

fn folder() -> PathBuf {
    process::root().join(FOLDER)
}

fn forge(command: &[&str], arguments: &[String]) -> Result<(), Failure> {
    let mut forge =
        Command::new(folder().join("node_modules/@foundry-rs/forge-linux-amd64/bin/forge"));
    forge.current_dir(folder()).args(command).args(arguments);
    succeed(&mut forge, &format!("forge {}", command.join(" ")))
}

fn node(arguments: &[&str]) -> Result<(), Failure> {
    let mut node = Command::new("node");
    node.current_dir(folder()).args(arguments);
    succeed(&mut node, &format!("node {}", arguments.join(" ")))
}

fn succeed(command: &mut Command, name: &str) -> Result<(), Failure> {
    if process::run(command)?.success() {
        return Ok(());
    }
    Err(Failure::new(
        "CONTRACTS",
        format!("`{name}` failed in {FOLDER}/"),
        "read the message above; `cargo xtask contracts test -vvv` shows what a failing test did",
    ))
}
