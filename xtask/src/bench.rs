//! `cargo xtask bench NAME`: builds optimised, fetches the neighbours, and becomes `florin bench`.

use std::process::{Command, ExitCode};

use crate::failure::Failure;
use crate::{market, process, setup, tools, torch};

/// Benchmarks, and whether PyTorch or NumPy run beside them.
const BENCHMARKS: [(&str, bool); 3] = [("aggregate", true), ("train", true), ("ledger", false)];

/// Runs one benchmark; `arguments` are its name and `--json FILE`, which go to the program as they
/// are.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, Failure> {
    let name = arguments.first().map_or("", String::as_str);
    let Some((_, has_peers)) = BENCHMARKS.iter().find(|(known, _)| *known == name) else {
        let names = BENCHMARKS.map(|(known, _)| known).join(", ");
        return Err(Failure::new(
            "BENCHMARK_UNKNOWN",
            format!("there is no benchmark `{name}`"),
            format!("choose one of {names}: cargo xtask bench NAME [--json FILE]"),
        ));
    };
    setup::for_building()?;
    eprintln!("bench: building optimised (a few minutes the first time)");
    market::build(&["build", "--release", "--package", "florin", "--bin", "florin"])?;
    let mut florin = Command::new(process::root().join("target/release/florin"));
    florin.arg("bench").args(arguments);
    if *has_peers {
        florin.arg("--python").arg(tools::bench_if_missing()?);
    }
    torch::point_to(&mut florin);
    Err(process::become_program(&mut florin))
}
