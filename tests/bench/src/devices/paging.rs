//! Steps within a memory beside steps whose tensors the system pages on demand, both in control groups of
//! the same limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::rank::{RankResult, RankWork};
use super::{Packages, work};
use crate::Measurement;

/// The script of the peer.
pub(super) const PAGING: &str = include_str!("../../../../xtask/peers/paging.py");
/// Control groups of the first version: there a process may be limited without a service.
const GROUPS: &str = "/sys/fs/cgroup/memory";
const MODEL: &str = "resnet";
/// Rows of a step, and of one that shows the memory of a process without large tensors.
const BATCH: u32 = 256;
const SMALL_BATCH: u32 = 4;
const STEPS: u32 = 8;
/// The memory for tensors beyond those, as a share of their size, in percent.
const LIMIT: u64 = 40;
/// The part of it that the plan counts with, in percent: the C library's own losses take the rest.
const PLANNED: u64 = 85;
/// Without it the C library retains the peer's freed tensors, and the limit ends it.
const PEER_HEAP: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "1000000");
/// Least gain over paging.
const GAIN_BAR: f64 = 1.5;

/// A control group, removed at the end.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Self> {
        let folder = Path::new(GROUPS).join(format!("florin-bench-{}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        Some(Self(folder))
    }

    fn limit(&self, bytes: Option<u64>) -> anyhow::Result<()> {
        let text = bytes.map_or("-1".to_owned(), |bytes| bytes.to_string());
        fs::write(self.0.join("memory.limit_in_bytes"), text).context("the group's limit")
    }

    /// Runs a command in the group; returns its last line and the most bytes that it took.
    fn run(&self, command: &[String], python: &Path) -> anyhow::Result<(String, u64)> {
        self.run_with(command, python, &[])
    }

    fn run_with(
        &self,
        command: &[String],
        python: &Path,
        environment: &[(&str, &str)],
    ) -> anyhow::Result<(String, u64)> {
        fs::write(self.0.join("memory.max_usage_in_bytes"), "0")?;
        let join = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", self.0.display());
        let output = Command::new("sh")
            .args(["-c", &join])
            .args(command)
            .env("PYTHONPATH", python)
            .env("OMP_NUM_THREADS", "1")
            .envs(environment.iter().copied())
            .output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "a process with a limit failed: {error}");
        let text = String::from_utf8(output.stdout)?;
        let most = fs::read_to_string(self.0.join("memory.max_usage_in_bytes"))?;
        Ok((text.lines().last().unwrap_or_default().to_owned(), most.trim().parse()?))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group that still has pages of files goes at the next start.
        let _ = fs::remove_dir(&self.0);
    }
}

fn own(work: &RankWork) -> anyhow::Result<Vec<String>> {
    let program = std::env::current_exe()?.display().to_string();
    let words = ["devices".to_owned(), "--rank-work".to_owned(), serde_json::to_string(work)?];
    Ok([vec![program], words.to_vec()].concat())
}

fn peer(folder: &Path, batch: u32, pages: Option<&Path>) -> Vec<String> {
    let script = folder.join("paging.py").display().to_string();
    let (batch, steps) = (batch.to_string(), STEPS.to_string());
    let words = ["python3", &script, MODEL, "--batch", &batch, "--steps", &steps];
    let mut words: Vec<String> = words.map(str::to_owned).to_vec();
    if let Some(pages) = pages {
        words.extend(["--folder".to_owned(), pages.display().to_string()]);
    }
    words
}

fn milliseconds(line: &str) -> anyhow::Result<f64> {
    let value: serde_json::Value = serde_json::from_str(line).context(line.to_owned())?;
    value["milliseconds"].as_f64().context("no value")
}

pub(super) fn run(folder: &Path, packages: Packages<'_>) -> anyhow::Result<Vec<Measurement>> {
    let Some(group) = Group::new() else {
        anstream::eprintln!("control groups cannot be made here: paging is not compared");
        return Ok(Vec::new());
    };
    fs::write(folder.join("paging.py"), PAGING)?;
    let pages = tempfile::tempdir_in(folder)?;
    let of = |batch: u32, memory_bytes: Option<u64>| RankWork {
        batch: Some(batch),
        memory_bytes,
        ..work(folder, MODEL, 1, STEPS)
    };
    let python = packages.python;
    group.limit(None)?;
    let (_, small) = group.run(&own(&of(SMALL_BATCH, Some(u64::MAX)))?, python)?;
    let (line, large) = group.run(&own(&of(BATCH, Some(u64::MAX)))?, python)?;
    let free: RankResult = serde_json::from_str(&line)?;
    let tensors = large.saturating_sub(small);
    let room = tensors * LIMIT / 100;
    let group_limit = small + room;
    group.limit(Some(group_limit))?;
    let (line, used) = group.run(&own(&of(BATCH, Some(room * PLANNED / 100)))?, python)?;
    let planned: RankResult = serde_json::from_str(&line)?;
    group.limit(None)?;
    let (_, small) = group.run(&peer(folder, SMALL_BATCH, None), python)?;
    let (line, _) = group.run(&peer(folder, BATCH, None), python)?;
    let theirs_free = milliseconds(&line)?;
    group.limit(Some(small + room))?;
    let paging = peer(folder, BATCH, Some(pages.path()));
    let (line, _) = group.run_with(&paging, python, &[PEER_HEAP])?;
    let paged = milliseconds(&line)?;
    let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
    let name = |text: &str| format!("memory: {MODEL} of {BATCH} rows, {text}");
    Ok(vec![
        Measurement::plain(name("tensors without a limit"), mib(tensors), "MiB"),
        Measurement::plain(name("limit of the tensors"), mib(room), "MiB"),
        Measurement::at_most(name("use of the control group"), mib(used), "MiB", mib(group_limit)),
        Measurement::plain(name("without a limit"), free.milliseconds, "ms/step"),
        Measurement::plain(name("by a plan"), planned.milliseconds, "ms/step"),
        Measurement::plain(name("PyTorch without a limit"), theirs_free, "ms/step"),
        Measurement::plain(name("PyTorch, paged on demand"), paged, "ms/step"),
        Measurement::at_least(
            name("gain over paging"),
            paged / planned.milliseconds,
            "x",
            GAIN_BAR,
        ),
        Measurement::at_most(
            name("digests with and without a limit"),
            f64::from(1 + u8::from(free.digest != planned.digest)),
            "",
            1.0,
        ),
    ])
}
