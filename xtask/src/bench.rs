//! `cargo xtask bench NAME`: makes a release build, fetches the peer implementations, and executes
//! `florin-bench`.

use std::process::{Command, ExitCode};

use crate::failure::Failure;
use crate::{keys, page, process, program, setup, tools, torch};

/// The Python packages of the peer implementations that a benchmark compares with.
#[derive(Clone, Copy)]
enum PeerPackages {
    NotNeeded,
    /// PyTorch and NumPy.
    Learning,
    /// Flower, only with `--peer flower`: one of its rounds takes about a minute.
    Flower,
    /// pfl-research and Flower's simulation, only with `--peer`.
    Simulators,
    /// scikit-learn and palmerpenguins, which contain the tables.
    Tables,
    /// shapiq and pyDVL, with their own version of NumPy.
    Contribution,
    /// PyTorch and NumPy; with `--library` also torchvision, timm, transformers and peft.
    Models,
}

const BENCHMARKS: [(&str, PeerPackages); 21] = [
    ("aggregate", PeerPackages::Learning),
    ("train", PeerPackages::Learning),
    ("models", PeerPackages::Models),
    ("devices", PeerPackages::Learning),
    ("ledger", PeerPackages::NotNeeded),
    ("keys", PeerPackages::NotNeeded),
    ("traces", PeerPackages::NotNeeded),
    ("page", PeerPackages::NotNeeded),
    ("server", PeerPackages::Flower),
    ("round", PeerPackages::Flower),
    ("rounds", PeerPackages::NotNeeded),
    ("compute", PeerPackages::NotNeeded),
    ("listener", PeerPackages::NotNeeded),
    ("uploads", PeerPackages::NotNeeded),
    ("recovery", PeerPackages::NotNeeded),
    ("soak", PeerPackages::NotNeeded),
    ("contribution", PeerPackages::Contribution),
    ("attacks", PeerPackages::NotNeeded),
    ("wire", PeerPackages::NotNeeded),
    ("pay", PeerPackages::Tables),
    ("sim", PeerPackages::Simulators),
];

/// The build of the benchmarks, and of the program whose processes some of them measure.
const BUILD: [&str; 6] = ["build", "--release", "--package", "florin", "--package", "florin-bench"];

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
    setup::fetch_build_tools()?;
    let figures = if name == "keys" { Some(keys::figures()?) } else { None };
    eprintln!("bench: making a release build (a few minutes the first time)");
    program::build(&BUILD)?;
    let mut bench = Command::new(process::root().join("target/release/florin-bench"));
    bench.args(arguments);
    let asked_for = arguments.iter().any(|word| word.starts_with("--peer"));
    let packages = match neighbours {
        PeerPackages::NotNeeded => None,
        PeerPackages::Flower | PeerPackages::Simulators if !asked_for => None,
        PeerPackages::Contribution if arguments.iter().any(|word| word == "--speed") => None,
        PeerPackages::Flower => Some(tools::flower_bench_if_missing()?),
        PeerPackages::Simulators => Some(tools::simulators_if_missing()?),
        PeerPackages::Models if arguments.iter().any(|word| word == "--library") => {
            Some(tools::libraries_if_missing()?)
        }
        PeerPackages::Learning | PeerPackages::Models => Some(tools::bench_if_missing()?),
        PeerPackages::Tables => Some(tools::tables_if_missing()?),
        PeerPackages::Contribution => Some(tools::contribution_bench_if_missing()?),
    };
    if let Some(packages) = packages {
        bench.arg("--python").arg(packages);
    }
    if name == "page" {
        page::install_test_tools()?;
    }
    if name == "devices" {
        bench.arg("--openmpi").arg(tools::openmpi_if_missing()?);
    }
    if let Some(figures) = figures {
        bench.arg("--figures").arg(figures);
    }
    torch::set_libtorch_env(&mut bench);
    Err(process::exec(&mut bench))
}
