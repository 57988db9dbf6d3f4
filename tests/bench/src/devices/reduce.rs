//! Reductions of one vector over four processes: by this program, by c10d's own operations, and by Open MPI.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use florin_learning::memory::MemorySettings;
use florin_learning::ranks::{RANK_SECONDS, RankFacts, RankPlace, RankRows, RankSettings, Ranks};
use serde::Deserialize;

use super::launch::{self, Packages};
use crate::Measurement;
use crate::statistics::median;

/// The script of the peers.
const REDUCE: &str = include_str!("../../../../xtask/peers/reduce.py");
const PROCESSES: u32 = 4;
/// Numbers of the vectors: 0.4, 4 and 40 megabytes.
const ELEMENTS: [usize; 3] = [100_000, 1_000_000, 10_000_000];
/// Starts of each program, one after the other; their median counts.
const STARTS: usize = 3;
/// Reductions of a start; their median counts.
const TURNS: usize = 15;
const OWN: &str = "Florin";

/// The median of some reductions at rank 0.
#[derive(Debug, Deserialize)]
struct TimedReduction {
    operation: String,
    elements: usize,
    seconds: f64,
}

/// Reduces as one rank, and returns the median time of rank 0.
pub(super) fn run_rank(elements: usize) -> anyhow::Result<Option<f64>> {
    let place = RankPlace::from_environment(|name| std::env::var(name).ok())?;
    let settings = RankSettings {
        place: place.context("a reduction needs the variables of a launcher")?,
        device: "CPU".to_owned(),
        interface: Some("lo".to_owned()),
        limit: Duration::from_secs(RANK_SECONDS),
        pinned: None,
        reduction: None,
        overlaps: Some(false),
        pipeline: None,
        rows: RankRows::Shared { fingerprint: "no rows".to_owned() },
        memory: MemorySettings::default(),
        memory_bytes: None,
    };
    let notify = Box::new(|news: &_| eprintln!("{news}"));
    let mut ranks = Ranks::join(settings, &RankFacts::new(), notify)?;
    let seconds = ranks.reduce_vectors(elements, TURNS)?;
    Ok((ranks.place().rank == 0).then(|| median(seconds)))
}

pub(super) fn run(folder: &Path, packages: Packages<'_>) -> anyhow::Result<Vec<Measurement>> {
    std::fs::write(folder.join("reduce.py"), REDUCE)?;
    let openmpi = packages.openmpi.filter(|folder| folder.join("bin/mpirun").exists());
    if openmpi.is_none() {
        anstream::eprintln!("no mpirun of Open MPI (--openmpi): its reductions are left out");
    }
    let mut times: BTreeMap<(usize, String), Vec<f64>> = BTreeMap::new();
    for _ in 0..STARTS {
        let mut found = by_torch(folder, packages.python)?;
        for elements in ELEMENTS {
            let (operation, seconds) = (OWN.to_owned(), by_own(elements)?);
            found.push(TimedReduction { operation, elements, seconds });
        }
        if let Some(openmpi) = openmpi {
            found.extend(by_openmpi(folder, packages.python, openmpi)?);
        }
        for TimedReduction { operation, elements, seconds } in found {
            times.entry((elements, operation)).or_default().push(1e3 * seconds);
        }
    }
    let row = |((elements, operation), all): ((usize, String), Vec<f64>)| {
        let megabytes = (elements * size_of::<f32>()) as f64 / 1e6;
        let name = format!("reduction of {megabytes} MB on {PROCESSES} processes: {operation}");
        Measurement::plain(name, median(all), "ms")
    };
    Ok(times.into_iter().map(row).collect())
}

fn by_own(elements: usize) -> anyhow::Result<f64> {
    let (this, elements) = (std::env::current_exe()?, elements.to_string());
    let own =
        [this.as_os_str(), "devices".as_ref(), "--reduce-elements".as_ref(), elements.as_ref()];
    let mut started = launch::start(PROCESSES, &own)?;
    let first = started.pop().context("there is no process")?.wait_with_output()?;
    for process in started {
        process.wait_with_output()?;
    }
    let text = String::from_utf8_lossy(&first.stdout);
    let seconds = text.lines().find_map(|line| line.parse().ok());
    seconds.with_context(|| format!("no time: {text} {}", String::from_utf8_lossy(&first.stderr)))
}

fn by_torch(folder: &Path, python: &Path) -> anyhow::Result<Vec<TimedReduction>> {
    let mut command = Command::new("python3");
    command.args(["-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node"]);
    command.args([&PROCESSES.to_string(), "--rdzv-backend", "c10d"]);
    command.args(["--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]);
    command.args(["reduce.py", "torch"]).env("PYTHONPATH", python);
    command.env("GLOO_SOCKET_IFNAME", "lo");
    rows(command, folder)
}

fn by_openmpi(folder: &Path, python: &Path, openmpi: &Path) -> anyhow::Result<Vec<TimedReduction>> {
    let packages = [site_packages(openmpi)?, python.to_owned()];
    let mut command = Command::new(openmpi.join("bin/mpirun"));
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np"]);
    command.arg(PROCESSES.to_string()).args(["python3", "reduce.py", "mpi"]);
    command.env("OPAL_PREFIX", openmpi).env("PRTE_PREFIX", openmpi).env("PMIX_PREFIX", openmpi);
    command.env("PYTHONPATH", std::env::join_paths(packages)?);
    command.env("LD_LIBRARY_PATH", openmpi.join("lib"));
    rows(command, folder)
}

/// The folder of mpi4py beside Open MPI.
fn site_packages(openmpi: &Path) -> anyhow::Result<PathBuf> {
    for entry in std::fs::read_dir(openmpi.join("lib"))? {
        let folder = entry?.path().join("site-packages");
        if folder.join("mpi4py").exists() {
            return Ok(folder);
        }
    }
    anyhow::bail!("{} has no mpi4py: cargo xtask bench devices installs it", openmpi.display())
}

fn rows(mut command: Command, folder: &Path) -> anyhow::Result<Vec<TimedReduction>> {
    command.args(ELEMENTS.map(|elements| elements.to_string()));
    let output = command.current_dir(folder).env("OMP_NUM_THREADS", "1").stdin(Stdio::null());
    let output = output.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rows = text.lines().find_map(|line| serde_json::from_str(line).ok());
    rows.with_context(|| format!("no times: {text} {}", String::from_utf8_lossy(&output.stderr)))
}
