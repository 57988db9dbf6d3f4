//! `florin-bench round`: the duration of a round of four participants, each in its own process.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::bail;
use florin_participant::{Client, ClientConfig};
use florin_protocol::{RoundNumber, RoundOutcome, TaskId, TaskPhase, TaskView};

use super::Measurement;
use super::server::market::BenchMarket;

/// Number of measured rounds, each from one offer to the next.
pub(super) const ROUNDS: u32 = 20;
/// The participants.
const PARTICIPANTS: [&str; 4] = ["ann", "ben", "cy", "dot"];
/// Rows of each participant.
const ROWS: usize = 120;
/// Tokens for the provider's work of a round.
const UNITS_PER_ROUND: u32 = 3;
/// Timeout of the task.
const PATIENCE: Duration = Duration::from_secs(300);
/// Maximum duration of a round in milliseconds, including training and valuation.
const BAR: f64 = 100.0;

pub(super) fn run() -> anyhow::Result<Vec<Measurement>> {
    let (_market, client, task) = play(None)?;
    check_settled(&client, task)?;
    let lengths = lengths(&client, task)?;
    let at = |share: usize| lengths.get(lengths.len() * share / 100).copied().unwrap_or_default();
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a few minutes")]
    let ms = |length: u64| length as f64;
    let name = "round of 4 participants, a 40 KB model, offer to next offer, median";
    Ok(vec![
        Measurement::at_most(name, ms(at(50)), "ms", BAR),
        Measurement::plain("  shortest", ms(at(0)), "ms"),
        Measurement::plain("  longest", ms(lengths.last().copied().unwrap_or_default()), "ms"),
    ])
}

/// A market that has played all rounds. All processes write traces into the folder, if there is one.
pub(super) fn play(traces: Option<PathBuf>) -> anyhow::Result<(BenchMarket, Client, TaskId)> {
    play_with(traces, "")
}

/// As [`play`], with these settings of the coordinator.
pub(super) fn play_with(
    traces: Option<PathBuf>,
    settings: &str,
) -> anyhow::Result<(BenchMarket, Client, TaskId)> {
    let (market, client, task) = start(traces, settings, ROUNDS.saturating_add(1))?;
    wait_for(&client, task, |view| view.phase == TaskPhase::Done)?;
    Ok((market, client, task))
}

/// A market whose participants begin the first of its rounds.
pub(super) fn start(
    traces: Option<PathBuf>,
    settings: &str,
    rounds: u32,
) -> anyhow::Result<(BenchMarket, Client, TaskId)> {
    let mut market = BenchMarket::open_traced(0, &PARTICIPANTS, settings, traces)?;
    let text = include_str!("round.toml")
        .replace("@ROUNDS@", &rounds.to_string())
        .replace("@UNITS@", &rounds.saturating_mul(UNITS_PER_ROUND).to_string());
    let task = market.publish_task(&text)?;
    market.start_provider()?;
    for (at, name) in PARTICIPANTS.into_iter().enumerate() {
        market.start_participant(name, task, at * ROWS..(at + 1) * ROWS)?;
    }
    let client = Client::connect(&ClientConfig::new(&market.url))?;
    Ok((market, client, task))
}

/// The times at which the rounds from `1` to this one were opened, in milliseconds.
pub(super) fn opened(client: &Client, task: TaskId, last: u32) -> anyhow::Result<Vec<u64>> {
    (1..=last).map(|round| Ok(client.offer(task, RoundNumber(round))?.body.opened.0)).collect()
}

/// The durations of the rounds in milliseconds, the shortest first.
pub(super) fn lengths(client: &Client, task: TaskId) -> anyhow::Result<Vec<u64>> {
    let between = |pair: &[u64]| match *pair {
        [this, next] => next.saturating_sub(this),
        _ => 0,
    };
    let opened = opened(client, task, ROUNDS.saturating_add(1))?;
    let mut lengths: Vec<u64> = opened.windows(2).map(between).collect();
    lengths.sort_unstable();
    Ok(lengths)
}

/// Abandoned rounds would distort the measurement.
fn check_settled(client: &Client, task: TaskId) -> anyhow::Result<()> {
    for round in (1..=ROUNDS.saturating_add(1)).map(RoundNumber) {
        let report = client.report(task, round)?.body;
        let entries = report.entries.len();
        if report.outcome != RoundOutcome::Settled || entries != PARTICIPANTS.len() {
            let all = PARTICIPANTS.len();
            bail!(
                "round {round} has {entries} of {all} updates and is {:?}, so the measurement is \
                 void",
                report.outcome
            );
        }
    }
    Ok(())
}

/// Waits until the task is as asked.
pub(super) fn wait_for(
    client: &Client,
    task: TaskId,
    is_so: impl Fn(&TaskView) -> bool,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let view = client.task(task)?;
        if is_so(&view) {
            return Ok(());
        }
        client.task_after(task, view.sequence, 1_000)?;
    }
    bail!("task {task} did not come so far within {} s", PATIENCE.as_secs())
}
