//! The commands that build and run the program: `demo`, `test` and `fuzz`.

use std::io::{self, IsTerminal};
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::failure::Failure;
use crate::tally::Tally;
use crate::{cargo, contracts, process, setup, tools, torch};

/// Sets up, builds, and executes `florin demo` with the user's arguments.
pub(crate) fn demo(arguments: &[String]) -> Result<ExitCode, Failure> {
    setup::fetch_build_tools()?;
    let ethereum = uses_ethereum(arguments);
    if ethereum {
        setup::fetch_chain_tools()?;
    }
    eprintln!("demo: building (a few minutes the first time)");
    match ethereum {
        true => build(&["build", "--package", "florin", "--bin", "florin"])?,
        false if arguments.iter().any(|argument| argument == "--compute") => {
            // Segments are trained by virtual workers, which the part for several processes has.
            build_with("florin", "torch,distributed")?;
        }
        false => build_without_options("florin")?,
    }
    let mut florin = Command::new(process::root().join("target/debug/florin"));
    florin.arg("demo").args(arguments);
    set_anvil_env(&mut florin);
    torch::set_libtorch_env(&mut florin);
    Err(process::exec(&mut florin))
}

/// Sets up, builds, and executes `florin-fuzz` with the checkout's corpus.
pub(crate) fn fuzz(arguments: &[String]) -> Result<ExitCode, Failure> {
    setup::fetch_build_tools()?;
    build_without_options("florin-fuzz")?;
    let mut fuzzer = Command::new(process::root().join("target/debug/florin-fuzz"));
    fuzzer.current_dir(process::root()).args(arguments);
    torch::set_libtorch_env(&mut fuzzer);
    Err(process::exec(&mut fuzzer))
}

/// Minimum number of test threads: tests that run complete markets mostly wait for clocks and
/// processes.
const TEST_THREADS_MIN: usize = 6;

/// Sets up, tests the contracts, runs every test of the workspace, and sums up the results.
pub(crate) fn test(arguments: &[String]) -> Result<ExitCode, Failure> {
    setup::fetch_all()?;
    // With explicit packages only those are tested.
    if !selects_packages(arguments) {
        contracts::test_and_check()?;
    }
    let start = Instant::now();
    let mut cargo = cargo::command();
    cargo.args(["test", "--no-fail-fast"]);
    if !selects_packages(arguments) {
        cargo.arg("--workspace");
    }
    if io::stderr().is_terminal() {
        cargo.args(["--color", "always"]);
    }
    cargo.args(arguments).env("FLORIN_PYTHON_PATH", tools::vector_packages_folder());
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        cargo.env("RUST_TEST_THREADS", cores.max(TEST_THREADS_MIN).to_string());
    }
    set_anvil_env(&mut cargo);
    let mut tally = Tally::default();
    let status = process::tee(&mut cargo, |line| tally.add_line(line))?;

    for name in tally.failures() {
        eprintln!("test: FAILED {name}");
    }
    eprintln!("test: {tally}, {:.0} s", start.elapsed().as_secs_f64());
    if status.success() {
        return Ok(ExitCode::SUCCESS);
    }
    if tally.failures().is_empty() {
        eprintln!("test: cargo failed before any test ran; see its message above");
    }
    Ok(ExitCode::FAILURE)
}

/// Whether the arguments select the ledger on an Ethereum chain.
fn uses_ethereum(arguments: &[String]) -> bool {
    let named = arguments.iter().any(|argument| argument == "--ledger=ethereum");
    named || arguments.windows(2).any(|pair| pair[0] == "--ledger" && pair[1] == "ethereum")
}

/// Sets FLORIN_ANVIL to the checkout's anvil, unless the user has set it.
fn set_anvil_env(command: &mut Command) {
    if std::env::var_os("FLORIN_ANVIL").is_none() && contracts::anvil().exists() {
        command.env("FLORIN_ANVIL", contracts::anvil());
    }
}

/// Whether the arguments select packages.
fn selects_packages(arguments: &[String]) -> bool {
    let ours = arguments.iter().take_while(|argument| *argument != "--");
    ours.into_iter().any(|argument| argument.starts_with("-p") || argument.starts_with("--package"))
}

/// Builds a program without the optional parts, which most commands do not need. The package
/// `florin-workspace-hack` gives its dependencies the features that they have in the tests, so that
/// none is compiled twice.
fn build_without_options(program: &str) -> Result<(), Failure> {
    build_with(program, "torch")
}

fn build_with(program: &str, features: &str) -> Result<(), Failure> {
    let features = ["--no-default-features", "--features", features];
    build(&[&["build", "--package", program, "--bin", program], &features[..]].concat())
}

/// Builds with cargo, which prints its own error messages.
pub(crate) fn build(arguments: &[&str]) -> Result<(), Failure> {
    if process::run(cargo::command().args(arguments))?.success() {
        return Ok(());
    }
    Err(Failure::new(
        "BUILD_FAILED",
        format!("`cargo {}` failed", arguments.join(" ")),
        "read cargo's message above. If it is about libtorch, `cargo xtask setup` repairs it",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_selected_only_before_the_double_dash() {
        let named = |text: &str| {
            let arguments: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            selects_packages(&arguments)
        };
        assert!(named("-p florin-ledger"));
        assert!(named("--release --package=xtask"));
        assert!(!named("a_free_rider -- -p"));
        assert!(!named(""));
    }

    #[test]
    fn the_ethereum_ledger_is_recognised_in_the_arguments() {
        let wanted = |text: &str| {
            let arguments: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            uses_ethereum(&arguments)
        };
        assert!(wanted("--seed 1 --ledger ethereum"));
        assert!(wanted("--ledger=ethereum"));
        assert!(!wanted("--ledger embedded --out ethereum"));
        assert!(!wanted(""));
    }
}
