//! `florin-bench traces`: the time that a trace takes of a round: of each event, from the call to the
//! line in the file, and of all events of all processes of a market.

use std::time::Instant;

use anyhow::{Context, ensure};
use florin::trace::{Process, TraceLayer};
use tracing_subscriber::layer::SubscriberExt;

use super::Measurement;
use super::round::{self, ROUNDS};
use super::statistics::median;

/// Number of events for the time of one, below the capacity of the queue.
const EVENTS: u32 = 50_000;
/// Markets with a trace and without, by turns.
const MARKETS: usize = 5;
/// Maximum share of a round, in per cent.
const BAR: f64 = 2.0;
const PER_CENT: f64 = 100.0;
const MICROS: f64 = 1e6;
const MILLIS: f64 = 1e3;

pub(super) fn run() -> anyhow::Result<Vec<Measurement>> {
    let (queued, written) = event_micros()?;
    let (mut with, mut without, mut lines) = (Vec::new(), Vec::new(), 0);
    for _ in 0..MARKETS {
        let traces = tempfile::tempdir().context("a folder for traces")?;
        let (_market, client, task) = round::play(None)?;
        without.extend(round::lengths(&client, task)?);
        let (_market, client, task) = round::play(Some(traces.path().to_owned()))?;
        with.extend(round::lengths(&client, task)?);
        lines += count_lines(traces.path())?;
    }
    let typical = |lengths: Vec<u64>| median(lengths.into_iter().map(|ms| ms as f64));
    let (with, without) = (typical(with), typical(without));
    // The rounds, and the one before them and after them.
    let rounds = (MARKETS as f64) * f64::from(ROUNDS.saturating_add(1));
    let events = lines as f64 / rounds;
    let share = |micros: f64| PER_CENT * events * micros / MILLIS / without;
    Ok(vec![
        Measurement::plain("a span of a trace, until it is queued", queued, "µs"),
        Measurement::plain("  until it is in the file, by another thread", written, "µs"),
        Measurement::plain("events of a round, in all processes", events, ""),
        Measurement::plain("round without a trace, median", without, "ms"),
        Measurement::plain("round with a trace, median", with, "ms"),
        Measurement::plain("  longer by", PER_CENT * (with / without - 1.0), "%"),
        Measurement::at_most("all events of a round, one after another", share(queued), "%", BAR),
        Measurement::at_most("  with the writing", share(written), "%", BAR),
    ])
}

/// Microseconds of a span until it is queued, and until it is written.
fn event_micros() -> anyhow::Result<(f64, f64)> {
    let folder = tempfile::tempdir().context("a folder for a trace")?;
    let process = Process { role: "coordinator", id: "bench".to_owned() };
    let trace = TraceLayer::create(folder.path(), &process)?;
    let subscriber = tracing_subscriber::registry().with(trace.layer());
    let begun = Instant::now();
    tracing::subscriber::with_default(subscriber, || {
        for round in 0..EVENTS {
            let task = "3fa9c1d2".to_owned();
            let span = tracing::trace_span!(target: "florin::trace", "store", task, round);
            drop(span);
        }
    });
    let queued = begun.elapsed();
    trace.finish()?;
    let written = begun.elapsed();
    let lines = count_lines(folder.path())?;
    ensure!(lines > u64::from(EVENTS), "the queue was full: {lines} lines");
    let each = |time: std::time::Duration| time.as_secs_f64() * MICROS / f64::from(EVENTS);
    Ok((each(queued), each(written)))
}

/// The number of lines of all files.
fn count_lines(folder: &std::path::Path) -> anyhow::Result<u64> {
    let mut lines = 0;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "json") {
            lines += std::fs::read_to_string(path)?.lines().count() as u64;
        }
    }
    Ok(lines)
}
