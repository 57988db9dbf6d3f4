//! Transfers behind computation: four processes on a slow link, with and without overlap, in a network of
//! their own.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;

use super::launch::{Launcher, result};
use super::rank::RankWork;
use super::work;
use crate::Measurement;

/// Processes; twice the cores of the machine of the bars.
const PROCESSES: u32 = 4;
const STEPS: u32 = 24;
/// Turns of all; the fastest of each counts.
const TURNS: u32 = 3;
/// The model: it has the most bytes for each second of computing.
const MODEL: &str = "resnet";
/// Rows of a batch, so that a step computes as long as its numbers travel.
const BATCH: u32 = 64;
/// The rate of the link, which all transfers of all processes share.
const RATE: &str = "300mbit";
/// Bytes that pass at once: two packets of the loopback device.
const BURST: &str = "128kb";
/// Least share of the time of transfers that computing hides, in percent.
const HIDDEN_BAR: f64 = 60.0;

/// Milliseconds of a step by all processes, on the slow link or on the machine's own.
fn milliseconds(work: &RankWork, is_slow: bool) -> anyhow::Result<f64> {
    let limit = match is_slow {
        true => format!(" && tc qdisc add dev lo root tbf rate {RATE} burst {BURST} latency 10s"),
        false => String::new(),
    };
    let script = format!("ip link set lo up{limit} && exec \"$0\" \"$@\"");
    let output = Command::new("unshare")
        .args(["-n", "sh", "-c", &script])
        .arg(std::env::current_exe()?)
        .args(["devices", "--start", &PROCESSES.to_string(), "--rank-work"])
        .arg(serde_json::to_string(work)?)
        .stdin(Stdio::null())
        .output()?;
    let found = result(Launcher::Own, &output.stdout, &output.stderr)?;
    Ok(found.milliseconds)
}

/// Whether this process may make networks.
fn is_possible() -> bool {
    let words = ["-n", "sh", "-c", "ip link set lo up && tc -V"];
    Command::new("unshare").args(words).output().is_ok_and(|output| output.status.success())
}

pub(super) fn run(folder: &Path) -> anyhow::Result<Vec<Measurement>> {
    if !is_possible() {
        anstream::eprintln!("no network of its own (unshare, ip, tc): overlap is not measured");
        return Ok(Vec::new());
    }
    let overlapped = RankWork { batch: Some(BATCH), ..work(folder, MODEL, PROCESSES, STEPS) };
    let apart = RankWork { overlaps: Some(false), ..overlapped.clone() };
    let [mut free, mut slow, mut hidden] = [f64::INFINITY; 3];
    for _ in 0..TURNS {
        free = free.min(milliseconds(&apart, false).context("on the machine's own link")?);
        slow = slow.min(milliseconds(&apart, true).context("on the slow link")?);
        hidden = hidden.min(milliseconds(&overlapped, true).context("with overlap")?);
    }
    let of = |what: &str| format!("{MODEL}: step of {PROCESSES} processes, {what}");
    let share = 100.0 * (slow - hidden) / (slow - free).max(f64::MIN_POSITIVE);
    let name = format!("{MODEL}: time of transfers at {RATE} that computing hides");
    Ok(vec![
        Measurement::plain(of("no overlap, loopback"), free, "ms"),
        Measurement::plain(of(&format!("no overlap, {RATE}")), slow, "ms"),
        Measurement::plain(of(&format!("overlap, {RATE}")), hidden, "ms"),
        Measurement::at_least(name, share, "%", HIDDEN_BAR),
    ])
}
