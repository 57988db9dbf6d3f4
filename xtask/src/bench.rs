//! `cargo xtask bench NAME`: makes a release build, fetches the peer implementations, and executes
//! `florin bench`.

use std::process::{Command, ExitCode};

use crate::failure::Failure;
use crate::{market, process, setup, tools, torch};

/// The Python packages of the peer implementations that a benchmark compares with.
#[derive(Clone, Copy)]
enum Neighbours {
    Nobody,
    /// PyTorch and NumPy.
    Learning,
    /// Flower, only with `--peer flower`: one of its rounds takes about a minute.
    Flower,
    /// pfl-research and Flower's simulation, only with `--peer`.
    Simulators,
    /// shapiq and pyDVL, with their own version of NumPy.
    Contribution,
}

const BENCHMARKS: [(&str, Neighbours); 13] = [
    ("aggregate", Neighbours::Learning),
    ("train", Neighbours::Learning),
    ("ledger", Neighbours::Nobody),
    ("server", Neighbours::Flower),
    ("round", Neighbours::Flower),
    ("door", Neighbours::Nobody),
    ("uploads", Neighbours::Nobody),
    ("recovery", Neighbours::Nobody),
    ("soak", Neighbours::Nobody),
    ("contribution", Neighbours::Contribution),
    ("attacks", Neighbours::Nobody),
    ("wire", Neighbours::Nobody),
    ("sim", Neighbours::Simulators),
];

/// Runs one benchmark. `arguments` are its name, `--json FILE` and its own flags, which are passed
/// on unchanged.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, Failure> {
    let name = arguments.first().map_or("", String::as_str);
    let Some((_, neighbours)) = BENCHMARKS.iter().find(|(known, _)| *known == name) else {
        let names = BENCHMARKS.map(|(known, _)| known).join(", ");
        return Err(Failure::new(
            "BENCHMARK_UNKNOWN",
            format!("there is no benchmark `{name}`"),
            format!("choose one of {names}: cargo xtask bench NAME [--json FILE]"),
        ));
    };
    setup::for_building()?;
    eprintln!("bench: making a release build (a few minutes the first time)");
    market::build(&["build", "--release", "--package", "florin", "--bin", "florin"])?;
    let mut florin = Command::new(process::root().join("target/release/florin"));
    florin.arg("bench").args(arguments);
    let asked_for = arguments.iter().any(|word| word.starts_with("--peer"));
    let packages = match neighbours {
        Neighbours::Nobody => None,
        Neighbours::Flower | Neighbours::Simulators if !asked_for => None,
        Neighbours::Contribution if arguments.iter().any(|word| word == "--speed") => None,
        Neighbours::Flower => Some(tools::flower_bench_if_missing()?),
        Neighbours::Simulators => Some(tools::simulators_if_missing()?),
        Neighbours::Learning => Some(tools::bench_if_missing()?),
        Neighbours::Contribution => Some(tools::contribution_bench_if_missing()?),
    };
    if let Some(packages) = packages {
        florin.arg("--python").arg(packages);
    }
    torch::point_to(&mut florin);
    Err(process::become_program(&mut florin))
}
