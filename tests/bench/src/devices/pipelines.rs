//! Graphs in parts on several processes, beside PyTorch's pipelining in the same run.

use std::path::Path;

use anyhow::Context;
use florin_learning::pipeline::{PartCost, SimulatedStep, one_forward_one_backward, step_time};
use florin_learning::virtual_workers::TransferCost;

use super::launch::{self, Launcher, Packages};
use super::rank::{RankResult, RankWork};
use super::{TURNS, python_run, work};
use crate::Measurement;

/// The script of the peer.
pub(super) const PIPELINING: &str = include_str!("../../../../xtask/peers/pipelining.py");
/// The model, which the peer can cut: a sequence of blocks.
const MODEL: &str = "resnet";
/// Parts of a pipeline that is timed: this machine has as many cores.
const PARTS: u32 = 2;
/// Micro-batches.
const WORKERS: u32 = 8;
const BATCH: u32 = 64;
const STEPS: u32 = 12;
/// Processes and parts of the runs whose digests are compared with that of one process.
const SHAPES: [(u32, u32); 4] = [(2, 2), (3, 3), (4, 4), (4, 2)];
/// Largest time of a step as a multiple of the peer's.
const STEP_BAR: f64 = 1.2;
/// Largest difference of a simulated bubble from the formula, in percent.
const BUBBLE_BAR: f64 = 10.0;

pub(super) fn run(folder: &Path, packages: Packages<'_>) -> anyhow::Result<Vec<Measurement>> {
    let alone = RankWork { batch: Some(BATCH), ..work(folder, MODEL, WORKERS, STEPS) };
    let of = |parts: u32| RankWork { parts: Some(parts), ..alone.clone() };
    let start = |processes: u32, work: &RankWork| -> anyhow::Result<RankResult> {
        let found = launch::run(Launcher::Own, processes, work, packages)?;
        found.context("no result")
    };
    let mut digests = vec![start(1, &alone)?.digest];
    for (processes, parts) in SHAPES {
        digests.push(start(processes, &of(parts))?.digest);
    }
    digests.sort();
    digests.dedup();
    let name = format!("{MODEL}: digests of pipelines of 2 to 4 parts, and of one process");
    let mut rows = vec![Measurement::at_most(name, digests.len() as f64, "", 1.0)];
    std::fs::write(folder.join("pipelining.py"), PIPELINING)?;
    let [mut one, mut own, mut theirs] = [f64::INFINITY; 3];
    for _ in 0..TURNS {
        one = one.min(start(1, &alone)?.milliseconds);
        own = own.min(start(PARTS, &of(PARTS))?.milliseconds);
        let (parts, batch, micro) = (PARTS.to_string(), BATCH.to_string(), WORKERS.to_string());
        let launch = ["-m", "torch.distributed.run", "--nproc-per-node", &parts, "pipelining.py"];
        let options = [MODEL, "--batch", &batch, "--micro-batches", &micro];
        let output = python_run(packages.python, folder, &[&launch[..], &options[..]].concat())?;
        let line = output.lines().last().unwrap_or_default();
        let row: serde_json::Value = serde_json::from_str(line).context(output.clone())?;
        theirs = theirs.min(row["value"].as_f64().context("no value")?);
    }
    let step = |what: &str| format!("{MODEL}: step of {WORKERS} micro-batches, {what}");
    let waits = 100.0 * (1.0 - one / (f64::from(PARTS) * own));
    rows.extend([
        Measurement::plain(step("one process"), one, "ms"),
        Measurement::plain(step("two parts"), own, "ms"),
        Measurement::plain(step("two parts, PyTorch"), theirs, "ms"),
        Measurement::at_most(step("ratio to PyTorch"), own / theirs, "", STEP_BAR),
        Measurement::plain(step("time of two parts without work"), waits, "%"),
    ]);
    rows.push(bubbles()?);
    Ok(rows)
}

/// The largest difference of the simulated bubble of equal parts from `(P − 1) / (M + P − 1)`.
fn bubbles() -> anyhow::Result<Measurement> {
    let mut worst = 0.0_f64;
    for parts in 2..=8_u32 {
        for micro_batches in [1, 2, 4, 8, 16, 32] {
            let part = PartCost { forward_seconds: 1.0, backward_seconds: 2.0, parameter_bytes: 0 };
            let costs = vec![part; parts as usize];
            let transfers = vec![0.0; parts as usize - 1];
            let step = SimulatedStep {
                parts: &costs,
                transfer_seconds: &transfers,
                micro_batches,
                order: one_forward_one_backward,
                replicas: 1,
                all_reduce: TransferCost { alpha: 0.0, beta: 0.0 },
            };
            let others = f64::from(parts - 1);
            let expected = others / (f64::from(micro_batches) + others);
            worst = worst.max((step_time(&step)?.bubble / expected - 1.0).abs());
        }
    }
    let name = "simulated bubble of 2 to 8 equal parts, largest difference from (P−1)/(M+P−1)";
    Ok(Measurement::at_most(name, 100.0 * worst, "%", BUBBLE_BAR))
}
