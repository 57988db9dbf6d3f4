//! `florin-bench aggregate`: the weighted mean of 100 updates with ten million floats each.

use std::path::Path;

use florin_learning::{AggregationRule, MeanAccumulator, aggregate_on};
use florin_protocol::blob_digest;

use super::peers::{self, Peer};
use super::{Measurement, fastest};

/// Updates per round.
const UPDATES: usize = 100;
/// Floats per update.
const FLOATS: usize = 10_000_000;
/// Distinct updates in memory, used in turn. Each is larger than the caches, so the memory traffic
/// is the same.
const DISTINCT: usize = 10;
/// Number of runs; the fastest one counts.
const REPEATS: usize = 3;
/// Maximum duration of the aggregation, in seconds.
const SECONDS_MAX: f64 = 0.25;
/// Maximum memory of an accumulator per float, in bytes, independent of the number of updates.
const BYTES_PER_FLOAT_MAX: f64 = 16.0;

pub(super) fn run(python: Option<&Path>) -> anyhow::Result<Vec<Measurement>> {
    let updates_in_memory: Vec<Vec<f32>> = (0..DISTINCT).map(random).collect();
    let updates: Vec<(u64, &[f32])> = (0..UPDATES)
        .map(|at| (1 + at as u64 * 7 % 997, updates_in_memory[at % DISTINCT].as_slice()))
        .collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let whole = fastest(REPEATS, || {
        aggregate_on(AggregationRule::Mean, &updates, threads).map(drop).map_err(Into::into)
    })?;
    let mut memory = 0.0;
    let streamed = fastest(REPEATS, || {
        let before = resident_bytes();
        let mut sum = MeanAccumulator::new(FLOATS);
        for (weight, update) in &updates {
            sum.add(*weight, update)?;
        }
        memory = (resident_bytes() - before) / FLOATS as f64;
        sum.finish().map(drop).map_err(Into::into)
    })?;
    let mut rows = vec![
        Measurement::at_most(format!("Florin, mean on {threads} threads"), whole, "s", SECONDS_MAX),
        Measurement::plain("Florin, mean of a stream, one thread", streamed, "s"),
    ];
    if memory > 0.0 {
        let name = "Florin, memory of a stream per float";
        rows.push(Measurement::at_most(name, memory, "bytes", BYTES_PER_FLOAT_MAX));
    }
    let script = include_str!("../../../xtask/peers/aggregate.py");
    let arguments = [("--updates", UPDATES), ("--floats", FLOATS), ("--distinct", DISTINCT)];
    let arguments =
        arguments.iter().flat_map(|(key, value)| [(*key).to_owned(), value.to_string()]).collect();
    rows.extend(peers::run(&Peer { name: "NumPy", script, arguments }, python)?);
    Ok(rows)
}

/// Random floats between −1 and 1; the same in every run.
#[expect(clippy::cast_precision_loss, reason = "any float is fine")]
fn random(at: usize) -> Vec<f32> {
    let digest = blob_digest(&at.to_le_bytes());
    let mut state =
        digest.0.iter().fold(1u64, |state, byte| state.wrapping_mul(31) + u64::from(*byte));
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..FLOATS).map(|_| next()).collect()
}

/// Resident memory of this process in bytes; 0 if the system does not report it.
#[expect(clippy::cast_precision_loss, reason = "for output")]
fn resident_bytes() -> f64 {
    const PAGE_BYTES: u64 = 4_096;
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.map_or(0.0, |pages| (pages * PAGE_BYTES) as f64)
}
