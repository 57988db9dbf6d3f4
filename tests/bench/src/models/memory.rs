//! `florin-bench models --memory`: the memory that the valuation of 10, 25 and 50 updates of 100 million
//! numbers takes.
//!
//! A process of its own values the updates of each count, as a round does: updates and gradients are in
//! scratch files. The system can take back pages of files at any time, so memory of the process and
//! pages of files are counted apart. The disk has a few updates, which take turns.

use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use florin_learning::path::weighted_sum;
use florin_learning::{EngineKind, ParameterSegment, PathGradient, RowMatrix, ScratchSpace};
use serde::{Deserialize, Serialize};

use super::{ExportedModel, NODES};
use crate::Measurement;

/// The model, as the script names it.
const MODEL: &str = "large";
/// Numbers of updates.
const COUNTS: [usize; 3] = [10, 25, 50];
/// Updates on the disk.
const DISTINCT: usize = 2;
/// Most groups of rows, as rounds have them for a model of this size.
const GROUPS: usize = 8;
/// Largest memory of the valuation, in GB: of the process, and with the pages of files.
const BAR: f64 = 4.0;
/// Largest growth from the fewest to the most updates.
const GROWTH_BAR: f64 = 0.1;
const GB: f64 = 1e9;
/// Time between two samples.
const SAMPLE: Duration = Duration::from_millis(5);

/// The peaks of a valuation, in bytes.
#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
struct Peaks {
    own: f64,
    files: f64,
    total: f64,
    seconds: f64,
}

/// Measures each count in a process of its own.
pub(super) fn run(folder: &Path) -> anyhow::Result<Vec<Measurement>> {
    let mut rows = Vec::new();
    let mut totals = Vec::new();
    for count in COUNTS {
        let output = Command::new(std::env::current_exe()?)
            .args(["models", "--memory-of", &count.to_string(), "--exported"])
            .arg(folder)
            .output()?;
        let why = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "{count} updates ({}): {why}", output.status);
        // The line of the process; an empty table follows.
        let line = output.stdout.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let peaks: Peaks = serde_json::from_slice(line)?;
        let name = |what: &str| format!("{count} updates of 100 million numbers: {what}");
        let (own, files) = (peaks.own / GB, peaks.files / GB);
        rows.push(Measurement::at_most(name("memory of the process"), own, "GB", BAR));
        rows.push(Measurement::plain(name("pages of files"), files, "GB"));
        rows.push(Measurement::at_most(name("both"), peaks.total / GB, "GB", BAR));
        rows.push(Measurement::plain(name("time"), peaks.seconds, "s"));
        totals.push(peaks.total);
    }
    if let (Some(first), Some(last)) = (totals.first(), totals.last()) {
        let growth = last / first - 1.0;
        rows.push(Measurement::at_most("growth with the updates", growth, "", GROWTH_BAR));
    }
    Ok(rows)
}

/// Values `count` updates and prints the peaks.
pub(super) fn measure(folder: &Path, count: usize) -> anyhow::Result<()> {
    let mut engine = florin_learning::engine(EngineKind::Torch, 1)?;
    let case = ExportedModel::load(folder, MODEL)?;
    let parameters = case.start.len();
    let room = ScratchSpace { memory_max: 0, folder: folder.to_owned() };
    let mut stored = RowMatrix::zeros(DISTINCT, parameters, &room)?;
    for at in 0..DISTINCT {
        for (place, number) in stored.row_mut(at).iter_mut().enumerate() {
            *number = ((place * 37 + at * 11) % 101) as f32 * 1e-6 - 5e-5;
        }
        stored.release(&(0..parameters));
    }
    let slices = stored.slices();
    let share = 1.0 / count as f64;
    let updates: Vec<(f64, &[f32])> = (0..count).map(|at| (share, slices[at % DISTINCT])).collect();
    let begun = Instant::now();
    let (values, mut peaks) = sampled(|| {
        let mut release = |columns: Range<usize>| stored.release(&columns);
        let total = weighted_sum(parameters, &updates, &mut release);
        let way = ParameterSegment { model: &case.model, base: &case.start, total: &total };
        let (mut rows, groups) = (&case.rows, GROUPS.min(case.rows.rows()));
        let path = PathGradient::within(&room, way, &NODES, groups, &mut rows, &mut *engine)?;
        drop(total);
        anyhow::Ok(path.values_of_slices(1, &updates, &mut release)?)
    })?;
    anyhow::ensure!(values?.len() == count, "an update has no value");
    peaks.seconds = begun.elapsed().as_secs_f64();
    println!("{}", serde_json::to_string(&peaks)?);
    Ok(())
}

/// The result of some work, and the peaks of the process during it.
fn sampled<T>(work: impl FnOnce() -> T) -> anyhow::Result<(T, Peaks)> {
    // The peak so far is that of loading the model.
    std::fs::write("/proc/self/clear_refs", "5").context("the system resets no peak")?;
    let ends = AtomicBool::new(false);
    let (result, mut peaks) = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut peaks = Peaks::default();
            while !ends.load(Ordering::Relaxed) {
                let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
                peaks.own = peaks.own.max(bytes_of(&status, "RssAnon:"));
                peaks.files = peaks.files.max(bytes_of(&status, "RssFile:"));
                std::thread::sleep(SAMPLE);
            }
            peaks
        });
        let result = work();
        ends.store(true, Ordering::Relaxed);
        (result, sampler.join().unwrap_or_default())
    });
    peaks.total = bytes_of(&std::fs::read_to_string("/proc/self/status")?, "VmHWM:");
    Ok((result, peaks))
}

/// A field of `/proc/self/status`, in bytes; 0 if it is missing.
fn bytes_of(status: &str, field: &str) -> f64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    1_024.0 * kib.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::bytes_of;

    #[test]
    fn a_field_of_the_status_is_read_in_bytes() {
        assert_eq!(bytes_of("VmHWM:\t    12 kB\nRssAnon:\t 3 kB\n", "RssAnon:"), 3_072.0);
        assert_eq!(bytes_of("", "RssAnon:"), 0.0);
    }
}
