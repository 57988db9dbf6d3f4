//! `cargo xtask contracts`: builds, tests and checks the Solidity contracts with tools from npm.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::failure::Failure;
use crate::python::Python;
use crate::{process, tools};

const FOLDER: &str = "contracts";

/// The solver's time limit for one counterexample.
const PROOF_TIMEOUT: &str = "300s";

const USAGE: &str = "cargo xtask contracts build | test [FORGE TEST ARGUMENTS] | check | \
                     prove [HALMOS ARGUMENTS] | lint";

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
        ("prove", rest) => prove(rest),
        ("lint", []) => lint(),
        _ => Err(Failure::new(
            "ARGUMENT_UNKNOWN",
            format!("`contracts` has no command `{}`", arguments.join(" ")),
            format!("run `{USAGE}`"),
        )),
    }
}

/// Compiles the contracts, and writes the ABI and bytecode that clients read.
fn build() -> Result<ExitCode, Failure> {
    install()?;
    forge(&["build"], &[])?;
    node(&["scripts/artifacts.mjs", "write"])?;
    Ok(ExitCode::SUCCESS)
}

/// Runs forge's tests, and checks Merkle trees built by OpenZeppelin's library and calls by
/// third-party clients.
fn test(arguments: &[String]) -> Result<ExitCode, Failure> {
    install()?;
    let start = Instant::now();
    // Everything is compiled first: tests deploy contracts by name, and a filter compiles only what
    // it imports.
    forge(&["build"], &[])?;
    forge(&["test"], arguments)?;
    node(&["scripts/trees.mjs"])?;
    node(&["scripts/clients.mjs"])?;
    eprintln!("contracts: tests passed, {:.0} s", start.elapsed().as_secs_f64());
    Ok(ExitCode::SUCCESS)
}

/// The table of gas costs, one line for each.
pub(crate) fn gas_table() -> Result<String, Failure> {
    install()?;
    forge(&["build"], &[])?;
    let mut forge = forge_command();
    forge.current_dir(folder()).args(["test", "--mc", "GasTest", "-vv"]);
    process::capture(&mut forge)?.map_err(|error| {
        Failure::new(
            "CONTRACTS_FAILED",
            format!("`forge test --mc GasTest` failed: {error}"),
            "run `cargo xtask contracts test --mc GasTest -vv`",
        )
    })
}

/// Checks that the committed ABI and bytecode match the sources.
fn check() -> Result<ExitCode, Failure> {
    install()?;
    forge(&["build"], &[])?;
    node(&["scripts/artifacts.mjs", "check"])?;
    Ok(ExitCode::SUCCESS)
}

/// Proves the claims of `proofs/` for arbitrary arguments and ledger states. Takes minutes.
fn prove(arguments: &[String]) -> Result<ExitCode, Failure> {
    install()?;
    let start = Instant::now();
    let mut halmos = checker("prove", "halmos")?;
    halmos.args(["--forge-build-out", "out/prove", "--no-status"]);
    halmos.args(["--solver-timeout-assertion", PROOF_TIMEOUT]).args(arguments);
    succeed(&mut halmos, "halmos")?;
    eprintln!("contracts: proven, {:.0} s", start.elapsed().as_secs_f64());
    Ok(ExitCode::SUCCESS)
}

/// Static analysis of the sources. A finding without an explanation is a failure, and so is an
/// explanation without a finding.
fn lint() -> Result<ExitCode, Failure> {
    install()?;
    let found = folder().join("out/slither.json");
    if found.exists() {
        fs::remove_file(&found).map_err(|cause| Failure::file("remove", &found, &cause))?;
    }
    let mut slither = checker("lint", "slither")?;
    slither.args([".", "--fail-none", "--disable-color", "--json"]).arg(&found);
    succeed(&mut slither, "slither")?;
    node(&["scripts/findings.mjs", "out/slither.json"])?;
    Ok(ExitCode::SUCCESS)
}

/// A Python tool that compiles the contracts with a profile of foundry.toml. PATH leads to forge,
/// which locates the compiler itself.
fn checker(profile: &str, module: &str) -> Result<Command, Failure> {
    let packages = tools::contract_checks_if_missing()?;
    let forge = folder().join("node_modules/@foundry-rs/forge-linux-amd64/bin");
    let mut path = process::prepend_path("PATH", &packages.join("bin"));
    path = process::prepend(&path, &forge);
    let mut python = Python::find()?.command();
    python.current_dir(folder()).args(["-m", module]);
    python.env("PATH", path).env("PYTHONPATH", packages).env("FOUNDRY_PROFILE", profile);
    Ok(python)
}

/// All contract checks that a change must pass.
pub(crate) fn test_and_check() -> Result<(), Failure> {
    test(&[])?;
    check().map(|_| ())
}

/// Installs the npm tools at their locked versions.
pub(crate) fn install() -> Result<(), Failure> {
    tools::npm_if_missing(FOLDER, "the contracts' compiler, forge and anvil")
}

/// Path of anvil, the development chain, after [`install`].
pub(crate) fn anvil() -> PathBuf {
    folder().join("node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil")
}

fn folder() -> PathBuf {
    process::root().join(FOLDER)
}

fn forge_command() -> Command {
    Command::new(folder().join("node_modules/@foundry-rs/forge-linux-amd64/bin/forge"))
}

fn forge(command: &[&str], arguments: &[String]) -> Result<(), Failure> {
    let mut forge = forge_command();
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
        "CONTRACTS_FAILED",
        format!("`{name}` failed in {FOLDER}/"),
        "read the message above; `cargo xtask contracts test -vvv` prints traces of failing tests",
    ))
}
