//! `florin-bench devices`: trainings on several processes, beside PyTorch's DistributedDataParallel in
//! the same run.

mod assignments;
mod gpu;
mod launch;
mod memory;
mod overlap;
mod paging;
mod pipelines;
mod pollux;
mod quotes;
mod rank;
mod reduce;
mod unequal;

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use crate::Measurement;
use crate::arguments::BenchDevices;
use launch::{Launcher, Packages};
use rank::RankWork;

/// The scripts of the peer.
const MODELS: &str = include_str!("../../../../xtask/peers/models.py");
const DEVICES: &str = include_str!("../../../../xtask/peers/devices.py");

/// Virtual workers of the digests, as `florin participate` has them on several processes.
const WORKERS: u32 = 8;
/// Steps of a training whose digest is compared.
const DIGEST_STEPS: u32 = 12;
/// Steps of a training that is timed.
const TIMED_STEPS: u32 = 60;
/// Processes of a comparison of times: this machine has as many cores.
const TIMED_PROCESSES: u32 = 2;
/// Turns of both; the fastest of each counts.
const TURNS: u32 = 3;
/// Largest time of a step as a multiple of DDP's.
const STEP_BAR: f64 = 1.2;
/// The models whose steps are timed.
const TIMED: [&str; 3] = ["mlp", "resnet", "gpt"];
/// The model of the digests: it has batch statistics.
const DIGESTED: &str = "resnet";

/// Runs the work of one process among several, and prints its result; false if there is none.
pub(super) fn run_as_process(arguments: &BenchDevices) -> anyhow::Result<bool> {
    if let Some(elements) = arguments.reduce_elements {
        if let Some(seconds) = reduce::run_rank(elements)? {
            anstream::println!("{seconds}");
        }
        return Ok(true);
    }
    let Some(work) = &arguments.rank_work else { return Ok(false) };
    let result = match arguments.start {
        Some(processes) => Some(launch::start_of(processes, work)?),
        None => rank::run(work)?,
    };
    if let Some(result) = result {
        anstream::println!("{}", serde_json::to_string(&result)?);
    }
    Ok(true)
}

pub(super) fn run(
    arguments: &BenchDevices,
    python: Option<&Path>,
) -> anyhow::Result<Vec<Measurement>> {
    if let Some(folder) = &arguments.pollux {
        return pollux::run(folder);
    }
    if arguments.assignments {
        return Ok(assignments::run());
    }
    let python = python.context("devices needs PyTorch: set its folder with --python")?;
    // The scripts run in a folder of their own.
    let python = &std::fs::canonicalize(python)?;
    let openmpi = arguments.openmpi.as_ref().map(std::fs::canonicalize).transpose()?;
    let packages = Packages { python, openmpi: openmpi.as_deref() };
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("models.py"), MODELS)?;
    std::fs::write(folder.path().join("devices.py"), DEVICES)?;
    python_run(python, folder.path(), &["models.py", ".", "--export"])?;
    if arguments.quotes {
        return quotes::run(folder.path());
    }
    if arguments.pipelines {
        return pipelines::run(folder.path(), packages);
    }
    if arguments.overlap {
        return overlap::run(folder.path());
    }
    if arguments.gpu {
        return gpu::run(folder.path(), packages);
    }
    if arguments.reduce {
        return reduce::run(folder.path(), packages);
    }
    if arguments.step_memory {
        let mut rows = memory::run(folder.path())?;
        rows.extend(paging::run(folder.path(), packages)?);
        return Ok(rows);
    }
    let mut rows = digests(folder.path(), packages)?;
    for model in TIMED {
        rows.extend(steps(folder.path(), model, packages)?);
    }
    rows.extend(overlap::run(folder.path())?);
    rows.extend(reduce::run(folder.path(), packages)?);
    rows.extend(pipelines::run(folder.path(), packages)?);
    rows.extend(unequal::run(folder.path())?);
    rows.extend(assignments::run());
    rows.extend(quotes::run(folder.path())?);
    rows.extend(memory::run(folder.path())?);
    rows.extend(paging::run(folder.path(), packages)?);
    Ok(rows)
}

fn python_run(python: &Path, folder: &Path, words: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("python3")
        .args(words)
        .current_dir(folder)
        .env("PYTHONPATH", python)
        .env("OMP_NUM_THREADS", "1")
        .output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "PyTorch failed: {error}");
    Ok(String::from_utf8(output.stdout)?)
}

fn work(folder: &Path, model: &str, workers: u32, steps: u32) -> RankWork {
    RankWork {
        folder: folder.to_owned(),
        model: model.to_owned(),
        workers,
        steps,
        pinned: Vec::new(),
        reduction: None,
        overlaps: None,
        parts: None,
        batch: None,
        memory_bytes: None,
        cuda: false,
    }
}

/// The number of digests of one training on different numbers of processes and launchers.
fn digests(folder: &Path, packages: Packages<'_>) -> anyhow::Result<Vec<Measurement>> {
    let mut digests = Vec::new();
    let mut own = work(folder, DIGESTED, WORKERS, DIGEST_STEPS);
    for processes in [1, 2, 4, 8] {
        let found = launch::run(Launcher::Own, processes, &own, packages)?;
        digests.extend(found.map(|found| found.digest));
    }
    own.pinned = vec![0..1, 5..8, 1..5];
    let permuted = launch::run(Launcher::Own, 3, &own, packages)?;
    digests.extend(permuted.map(|found| found.digest));
    own.pinned.clear();
    let mut rows = Vec::new();
    for launcher in [Launcher::Torchrun, Launcher::Mpirun, Launcher::Srun] {
        match launch::run(launcher, 4, &own, packages)? {
            Some(found) => digests.push(found.digest),
            None => {
                let name = launcher.name();
                anstream::eprintln!("{name} is not on this machine: its digest is not compared");
            }
        }
    }
    let runs = digests.len();
    digests.sort();
    digests.dedup();
    let name = format!("{DIGESTED}: digests of {runs} runs on 1 to 8 processes");
    rows.push(Measurement::at_most(name, digests.len() as f64, "", 1.0));
    Ok(rows)
}

/// Steps beside DDP's, with as many workers as processes, and with [`WORKERS`].
fn steps(folder: &Path, model: &str, packages: Packages<'_>) -> anyhow::Result<Vec<Measurement>> {
    let count = TIMED_PROCESSES.to_string();
    let (mut theirs, mut own) = (f64::INFINITY, [f64::INFINITY; 2]);
    let workers = [TIMED_PROCESSES, WORKERS];
    for _ in 0..TURNS {
        let launch = ["-m", "torch.distributed.run", "--nproc-per-node", &count, "devices.py"];
        let output = python_run(packages.python, folder, &[&launch[..], &[model]].concat())?;
        let line = output.lines().last().unwrap_or_default();
        let row: serde_json::Value = serde_json::from_str(line).context(output.clone())?;
        theirs = theirs.min(row["value"].as_f64().context("no value")?);
        for (workers, best) in workers.into_iter().zip(&mut own) {
            let work = work(folder, model, workers, TIMED_STEPS);
            let found = launch::run(Launcher::Own, TIMED_PROCESSES, &work, packages)?;
            *best = best.min(found.context("no result")?.milliseconds);
        }
    }
    let mut rows = vec![Measurement::plain(
        format!("{model}: PyTorch DDP, {count} processes"),
        theirs,
        "ms/step",
    )];
    for (workers, own) in workers.into_iter().zip(own) {
        let name = format!("{model}: {workers} virtual workers");
        rows.push(Measurement::plain(format!("{name}, {count} processes"), own, "ms/step"));
        let ratio = format!("{name}, ratio to DDP");
        rows.push(match workers == TIMED_PROCESSES {
            true => Measurement::at_most(ratio, own / theirs, "x", STEP_BAR),
            false => Measurement::plain(ratio, own / theirs, "x"),
        });
    }
    Ok(rows)
}
