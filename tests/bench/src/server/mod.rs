//! `florin-bench server`: the rate of updates that a coordinator accepts, and the processor time of
//! each.

pub(super) mod load;
pub(super) mod market;

use std::time::Duration;

use anyhow::ensure;
use florin_protocol::TaskPhase;

use super::Measurement;
use market::BenchMarket;

/// Participants of each task.
const PARTICIPANTS: u64 = 1_000;
/// Concurrent tasks, to have enough updates for a rate.
const TASKS: u64 = 6;
/// Concurrent connections.
const CONNECTIONS: usize = 64;

pub(super) fn run() -> anyhow::Result<Vec<Measurement>> {
    let mut market = BenchMarket::open(PARTICIPANTS)?;
    let mut rows = Vec::new();
    // A round of a thousand participants, from the offer to the report.
    let task = market.publish(0)?;
    load::join(&market, &[task], CONNECTIONS)?;
    let round = load::round(&market, task, CONNECTIONS)?;
    market.start_provider()?;
    let whole = round.took + load::settled(&market, task)?;
    rows.extend([
        Measurement::below(
            "round of 1,000 participants, offer to report",
            seconds(whole),
            "s",
            5.0,
        ),
        Measurement::below("  of it commits and uploads", seconds(round.took), "s", 5.0),
        Measurement::below(
            "  upload, 99th percentile",
            seconds(round.p99) * 1_000.0,
            "ms",
            1_000.0,
        ),
    ]);
    // Several tasks at once: measures only the rate of accepted updates.
    load::wait_for_phase(&market, task, TaskPhase::Done)?;
    market.kill("provider")?;
    let tasks: Vec<_> = (1..=TASKS).map(|salt| market.publish(salt)).collect::<Result<_, _>>()?;
    load::join(&market, &tasks, CONNECTIONS)?;
    let ready = load::commit(&market, &tasks, CONNECTIONS)?;
    let before = market.usage()?;
    let taken = load::upload(&market, &ready, CONNECTIONS)?;
    let after = market.usage()?;
    ensure!(load::still_revealing(&market, &tasks)?, "a round continued during the measurement");
    let count = f64::from(u32::try_from(taken.count).unwrap_or(u32::MAX));
    let each = seconds(after.cpu.saturating_sub(before.cpu)) * 1_000.0 / count;
    rows.extend([
        Measurement::at_least(
            "40 KB updates a second, 64 connections",
            count / seconds(taken.took),
            "1/s",
            4_000.0,
        ),
        Measurement::at_most("server's processor time per update", each, "ms", 0.2),
        Measurement::plain("  upload, median", seconds(taken.median) * 1_000.0, "ms"),
        Measurement::plain("  upload, 99th percentile", seconds(taken.p99) * 1_000.0, "ms"),
        Measurement::below("server's peak memory", after.peak_mib, "MiB", 512.0),
    ]);
    Ok(rows)
}

const fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
