//! The launchers that start the processes of a training: each starts this program.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context;

use super::rank::{RankResult, RankWork};

/// A launcher of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Launcher {
    /// This program, which sets the variables of torchrun itself.
    Own,
    /// PyTorch's `torchrun`.
    Torchrun,
    /// Open MPI's `mpirun`.
    Mpirun,
    /// Slurm's `srun`.
    Srun,
}

impl Launcher {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Own => "started singly",
            Self::Torchrun => "torchrun",
            Self::Mpirun => "mpirun",
            Self::Srun => "srun",
        }
    }
}

/// Folders of the launchers' packages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packages<'a> {
    /// PyTorch.
    pub(super) python: &'a Path,
    /// Open MPI.
    pub(super) openmpi: Option<&'a Path>,
}

/// Runs the work on processes; `None` if the launcher is not on this machine.
pub(super) fn run(
    launcher: Launcher,
    processes: u32,
    work: &RankWork,
    packages: Packages<'_>,
) -> anyhow::Result<Option<RankResult>> {
    let this = std::env::current_exe()?;
    let json = serde_json::to_string(work)?;
    let own = [this.as_os_str(), "devices".as_ref(), "--rank-work".as_ref(), json.as_ref()];
    let count = processes.to_string();
    let mut command = match launcher {
        Launcher::Own => return Ok(Some(start_singly(processes, &own)?)),
        Launcher::Torchrun => {
            let mut command = Command::new("python3");
            command.args(["-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node"]);
            command.args([&count, "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]);
            command.args(["--local-addr", "127.0.0.1", "--no-python"]);
            command.env("PYTHONPATH", packages.python);
            command
        }
        Launcher::Mpirun => {
            let Some(folder) = packages.openmpi else { return Ok(None) };
            let mut command = Command::new(folder.join("bin/mpirun"));
            command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np"]);
            command.arg(&count).env("OPAL_PREFIX", folder).env("PRTE_PREFIX", folder);
            command.env("PMIX_PREFIX", folder);
            command
        }
        Launcher::Srun => {
            if !is_there("srun") {
                return Ok(None);
            }
            let mut command = Command::new("srun");
            command.args(["-n", &count, "--overcommit"]);
            command
        }
    };
    let output = command.args(own).env("OMP_NUM_THREADS", "1").stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{} does not start", launcher.name()))?;
    result(launcher, &output.stdout, &output.stderr).map(Some)
}

fn is_there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output();
    found.is_ok_and(|output| output.status.success())
}

/// A port that no program uses at this moment.
pub(super) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Starts each process with the variables of torchrun, the last rank first.
pub(super) fn start(processes: u32, own: &[&std::ffi::OsStr]) -> anyhow::Result<Vec<Child>> {
    let port = free_port()?.to_string();
    let start = |rank: u32| {
        Command::new(own[0])
            .args(&own[1..])
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", processes.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", &port)
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    };
    Ok((0..processes).rev().map(start).collect::<Result<_, _>>()?)
}

/// Starts the processes of a work as JSON.
pub(super) fn start_of(processes: u32, work: &str) -> anyhow::Result<RankResult> {
    let this = std::env::current_exe()?;
    let own = [this.as_os_str(), "devices".as_ref(), "--rank-work".as_ref(), work.as_ref()];
    start_singly(processes, &own)
}

fn start_singly(processes: u32, own: &[&std::ffi::OsStr]) -> anyhow::Result<RankResult> {
    let mut started = start(processes, own)?;
    let first = started.pop().context("there is no process")?.wait_with_output()?;
    for process in started {
        process.wait_with_output()?;
    }
    result(Launcher::Own, &first.stdout, &first.stderr)
}

/// The result in the output of the processes.
pub(super) fn result(
    launcher: Launcher,
    stdout: &[u8],
    stderr: &[u8],
) -> anyhow::Result<RankResult> {
    let text = String::from_utf8_lossy(stdout);
    let line = text.lines().find_map(|line| serde_json::from_str(line).ok());
    line.with_context(|| {
        let (name, error) = (launcher.name(), String::from_utf8_lossy(stderr));
        format!("{name} printed no result: {text} {error}")
    })
}
