//! `florin-bench sim`: a simulated round beside other simulators on the same rows, and the overhead
//! of the market.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use florin_sim::workload::{Clients, Workload};

use super::Measurement;
use super::peers::{self, Peer};
use crate::arguments::PeerArg;
use crate::statistics::median;

/// Clients of the workload, and clients per round.
const CLIENTS: usize = 100;
const COHORT: usize = 20;
/// Clients of the large workload, and clients per round.
const MANY: usize = 1_000;
const MANY_AT_ONCE: usize = 200;
/// Rounds after which accuracies are compared; after 20 rounds they still differ by six points
/// between seeds.
const ROUNDS: u32 = 100;
/// Number of seeds for that comparison.
const SEEDS: u64 = 5;
/// Rounds of the large workload.
const MANY_ROUNDS: u32 = 20;
/// Holdout rows per round of the market.
const ROUND_ROWS: [u32; 2] = [16, 64];
/// Maximum duration of our round, as a fraction of a peer's round: pfl-research, Flower.
const OF_PFL: f64 = 0.1;
const OF_FLOWER: f64 = 0.01;
/// Maximum duration of a round with the market, as a multiple of a plain round.
const MARKET_MAX: f64 = 2.0;
/// Minimum number of trained clients per second.
const CLIENTS_PER_SECOND: f64 = 25_000.0;
/// Maximum memory of the run, in megabytes.
const MEMORY_MB: f64 = 250.0;

pub(super) fn run(python: Option<&Path>, wanted: &[PeerArg]) -> anyhow::Result<Vec<Measurement>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let folder = tempfile::tempdir()?;
    let mut accuracies = Vec::new();
    let mut rounds = Vec::new();
    for seed in 1..=SEEDS {
        let workload = Workload::draw(Clients::Dirichlet(CLIENTS), seed)?;
        let file = folder.path().join(format!("w-{seed}.json"));
        std::fs::write(file, workload.to_json().to_string())?;
        let mut game = workload.fedavg();
        rounds.extend(times(ROUNDS, || Ok(game.round(COHORT, threads)?))?);
        accuracies.push(game.accuracy()?);
    }
    let plain = median(rounds);
    let many = Workload::draw(Clients::WithReplacement(MANY), 1)?;
    std::fs::write(folder.path().join("s.json"), many.to_json().to_string())?;
    let mut game = many.fedavg();
    let of_many = median(times(MANY_ROUNDS, || Ok(game.round(MANY_AT_ONCE, threads)?))?);
    let mut markets = Vec::new();
    for judged in ROUND_ROWS {
        markets.push((judged, market(judged, threads)?));
    }
    // Measured before the peers run: the memory of this program.
    let memory = most_memory_mb()?;
    let mut theirs = Vec::new();
    for peer in wanted {
        theirs.push((*peer, run_peer(*peer, folder.path(), python)?));
    }
    let ms = 1e3;
    let mut rows =
        vec![Measurement::plain(format!("Florin: a round of {COHORT} clients"), plain * ms, "ms")];
    rows.push(Measurement::at_least(
        format!("Florin: clients, {MANY_AT_ONCE} a round"),
        MANY_AT_ONCE as f64 / of_many,
        "1/s",
        CLIENTS_PER_SECOND,
    ));
    rows.push(Measurement::at_most("Florin: peak memory", memory, "MB", MEMORY_MB));
    let (mean, spread) = super::mean_and_std(&accuracies);
    rows.push(Measurement::plain(
        format!("Florin: accuracy after {ROUNDS} rounds, mean"),
        mean,
        "",
    ));
    rows.push(Measurement::plain(
        format!("Florin: accuracy after {ROUNDS} rounds, standard deviation"),
        spread,
        "",
    ));
    for (judged, seconds) in &markets {
        let name = format!("Florin: a round with valuation on {judged} rows, payment and ledger");
        rows.push(Measurement::plain(name.clone(), seconds * ms, "ms"));
        rows.push(Measurement::at_most(
            format!("{name}, relative to a plain round"),
            seconds / plain,
            "",
            MARKET_MAX,
        ));
    }
    for (peer, own) in theirs {
        rows.extend(relative_rows(plain, &markets, peer, own));
    }
    Ok(rows)
}

/// A peer's rows, and the duration of our round relative to the peer's: of a plain round, and of a
/// round with the market, for which twice the fraction is allowed.
fn relative_rows(
    plain: f64,
    markets: &[(u32, f64)],
    peer: PeerArg,
    theirs: Vec<Measurement>,
) -> Vec<Measurement> {
    let (name, bar) = match peer {
        PeerArg::Pfl => ("pfl-research", OF_PFL),
        PeerArg::Flower => ("Flower", OF_FLOWER),
    };
    let rounds = theirs.iter().filter(|row| row.unit == "ms").map(|row| row.value);
    let fastest = rounds.fold(f64::INFINITY, f64::min);
    let mut rows = theirs;
    if fastest.is_finite() {
        let part = |seconds: f64| seconds * 1e3 / fastest;
        rows.push(Measurement::at_most(
            format!("Florin's round relative to {name}'s"),
            part(plain),
            "",
            bar,
        ));
        for (judged, seconds) in markets {
            let what = format!(
                "the same with valuation on {judged} rows, payment and ledger, relative to {name}'s"
            );
            rows.push(Measurement::at_most(what, part(*seconds), "", MARKET_MAX * bar));
        }
    }
    rows
}

/// The median duration of a round with the complete market, in seconds.
fn market(judged: u32, threads: usize) -> anyhow::Result<f64> {
    let workload = Workload::draw(Clients::Dirichlet(CLIENTS), 1)?;
    let scenario = workload.scenario(u32::try_from(COHORT)?, ROUNDS, judged)?;
    let mut game = workload.simulation(&scenario)?;
    let mut seconds = Vec::new();
    while game.wait_for_round()? {
        let begun = Instant::now();
        game.run_round(threads)?;
        seconds.push(begun.elapsed().as_secs_f64());
    }
    let played = game.finish()?;
    anyhow::ensure!(played.balanced, "the market's balances do not add up");
    let short = played.rounds.iter().any(|round| round.updates < COHORT);
    anyhow::ensure!(!short, "a round of the market had fewer than {COHORT} updates");
    Ok(median(seconds))
}

fn run_peer(
    peer: PeerArg,
    folder: &Path,
    python: Option<&Path>,
) -> anyhow::Result<Vec<Measurement>> {
    let (name, script) = match peer {
        PeerArg::Pfl => ("pfl-research", include_str!("../../../xtask/peers/pfl_sim.py")),
        PeerArg::Flower => ("Flower", include_str!("../../../xtask/peers/flower_sim.py")),
    };
    let arguments = vec![folder.display().to_string(), ROUNDS.to_string()];
    peers::run(&Peer { name, script, arguments }, python)
}

fn times(count: u32, mut run: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Vec<f64>> {
    let mut seconds = Vec::new();
    for _ in 0..count {
        let begun = Instant::now();
        run()?;
        seconds.push(begun.elapsed().as_secs_f64());
    }
    Ok(seconds)
}

/// The peak resident memory of this process (Linux).
fn most_memory_mb() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: f64 = line
        .and_then(|rest| rest.split_whitespace().next())
        .context("/proc/self/status has no VmHWM")?
        .parse()?;
    Ok(kib * 1_024.0 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_round_is_compared_with_the_peers_fastest() {
        let theirs =
            || vec![Measurement::plain("slow", 20.0, "ms"), Measurement::plain("fast", 8.0, "ms")];
        let rows = |plain, market| relative_rows(plain, &[(16, market)], PeerArg::Pfl, theirs());
        let holds =
            |rows: Vec<Measurement>| rows.iter().rev().take(2).map(|row| row.holds).collect();
        let seen: [Vec<_>; 2] = [holds(rows(0.000_8, 0.001_61)), holds(rows(0.000_81, 0.001_6))];
        assert_eq!(seen, [[Some(false), Some(true)], [Some(true), Some(false)]]);
        assert!(relative_rows(0.001, &[], PeerArg::Flower, Vec::new()).is_empty());
    }
}
