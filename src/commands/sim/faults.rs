//! `florin sim faults`: runs simulated tasks under fault injection.

use std::ops::Range;

use florin_faults::{FaultOptions, FaultOutcome, SetupError, simulate, simulate_all};
use florin_protocol::{Digest, blob_digest};
use florin_sim::results::format_count;
use indicatif::ProgressDrawTarget;
use serde::Serialize;
use serde_json::json;

use super::threads;
use crate::cli::SimFaults;
use crate::failure::{Exit, Failure};
use crate::progress::progress_bar;
use crate::show::{self, BAD, DIM, GOOD, HEAD, TextTable};

/// Default number of seeds, enough to test a change.
const SEEDS: u64 = 500;
/// Virtual milliseconds in an hour.
const HOUR_MS: u64 = 3_600_000;
/// Maximum number of failed seeds that are stored and printed; further ones are only counted.
const SHOWN: usize = 20;
/// Seeds per batch. Batches are summed up and dropped, so that memory does not grow with the number
/// of seeds.
const BATCH_SEEDS: u64 = 500;

/// The totals over many seeds.
#[derive(Debug, Serialize)]
struct FaultTotals {
    first: u64,
    seeds: u64,
    rounds: u64,
    settled: u64,
    receipts: u64,
    crashes: u64,
    events: u64,
    virtual_hours: u64,
    /// Number of seeds with a violation.
    violated: u64,
    /// Hash chain over the digests of all seeds.
    digest: Digest,
    #[serde(skip)]
    virtual_ms: u64,
    /// The first seeds with a violation.
    #[serde(skip)]
    failed: Vec<(FaultOutcome, Digest)>,
}

impl FaultTotals {
    fn new(first: u64) -> Self {
        let digest = blob_digest(b"");
        Self {
            first,
            seeds: 0,
            rounds: 0,
            settled: 0,
            receipts: 0,
            crashes: 0,
            events: 0,
            virtual_hours: 0,
            violated: 0,
            digest,
            virtual_ms: 0,
            failed: Vec::new(),
        }
    }

    /// Adds a seed.
    fn add(&mut self, played: FaultOutcome, digest: Digest) {
        self.seeds += 1;
        self.rounds += u64::from(played.rounds);
        self.settled += u64::from(played.settled);
        self.receipts += u64::from(played.receipts);
        self.crashes += played.crashes;
        self.events += played.events;
        self.virtual_ms += played.took_ms;
        self.virtual_hours = self.virtual_ms / HOUR_MS;
        self.digest = blob_digest(&[self.digest.0, digest.0].concat());
        if !played.violations.is_empty() {
            self.violated += 1;
            if self.failed.len() < SHOWN {
                self.failed.push((played, digest));
            }
        }
    }
}

pub(super) fn run(command: &SimFaults) -> anyhow::Result<Exit> {
    let rules = FaultOptions { rounds: command.rounds, bug: command.bug };
    match (command.seed, command.seeds) {
        (Some(seed), None) => one(command, seed, rules),
        (first, seeds) => many(command, first.unwrap_or(1), seeds.unwrap_or(SEEDS), rules),
    }
}

fn halted(error: &SetupError) -> anyhow::Error {
    Failure::fault("SIM_ABORTED", error.to_string()).into()
}

/// Runs one seed and prints its trace.
fn one(command: &SimFaults, seed: u64, rules: FaultOptions) -> anyhow::Result<Exit> {
    let played = simulate(seed, rules).map_err(|error| halted(&error))?;
    let exit = if played.violations.is_empty() { Exit::Done } else { Exit::Negative };
    if command.json.json {
        let trace: Vec<String> =
            played.trace.clone().into_text().lines().map(str::to_owned).collect();
        let mut found = in_json(&played, played.digest());
        found["faults"] = json!(format!("{:?}", played.faults));
        found["trace"] = json!(trace);
        show::json(&found)?;
        return Ok(exit);
    }
    anstream::println!("{DIM}{:?}{DIM:#}\n", played.faults);
    anstream::print!("{}", played.trace.clone().into_text());
    anstream::println!();
    let digest = played.digest();
    let mut sums = FaultTotals::new(seed);
    sums.add(played.clone(), digest);
    print_violations(&sums, rules);
    let (rounds, settled) = (played.rounds, played.settled);
    anstream::println!(
        "{rounds} rounds reported, {settled} settled, {} receipts, {} crashes of the coordinator, \
         {} events, {} virtual seconds\n{DIM}digest{DIM:#} {}",
        played.receipts,
        played.crashes,
        played.events,
        played.took_ms / 1_000,
        digest
    );
    Ok(exit)
}

fn many(command: &SimFaults, first: u64, seeds: u64, rules: FaultOptions) -> anyhow::Result<Exit> {
    let Some(end) = first.checked_add(seeds) else {
        let why = format!(
            "there are fewer than {seeds} seeds from {first} on: start with a smaller seed"
        );
        return Err(Failure::input("SEEDS_OUT_OF_RANGE", why).into());
    };
    let template = "{spinner} {pos}/{len} seeds {bar:24} {eta} left";
    let bar = progress_bar(ProgressDrawTarget::stderr(), template);
    bar.set_length(seeds);
    let watch = |done: u64| bar.set_position(done);
    let sums = run_batches(first..end, BATCH_SEEDS, &watch, &|chunk, watch| {
        simulate_all(chunk, rules, threads(command.threads), watch)
    });
    bar.finish_and_clear();
    let sums = sums.map_err(|error| halted(&error))?;
    if command.json.json {
        let failed: Vec<_> = sums.failed.iter().map(|(p, digest)| in_json(p, *digest)).collect();
        show::json(&json!({"totals": sums, "failed": failed}))?;
    } else {
        print(&sums);
        print_violations(&sums, rules);
    }
    Ok(if sums.violated == 0 { Exit::Done } else { Exit::Negative })
}

/// Runs seeds and reports the number of completed ones.
type RunBatch<'a> = dyn Fn(Range<u64>, &(dyn Fn(usize) + Sync)) -> Result<Vec<(FaultOutcome, Digest)>, SetupError>
    + 'a;

/// Runs the seeds in batches of `chunk`. `watch` receives the number of completed seeds.
fn run_batches(
    seeds: Range<u64>,
    chunk: u64,
    watch: &(dyn Fn(u64) + Sync),
    play: &RunBatch<'_>,
) -> Result<FaultTotals, SetupError> {
    let mut sums = FaultTotals::new(seeds.start);
    let mut from = seeds.start;
    while from < seeds.end {
        let until = from.saturating_add(chunk).min(seeds.end);
        let before = sums.seeds;
        let played = play(from..until, &|done| watch(before + done as u64))?;
        played.into_iter().for_each(|(played, digest)| sums.add(played, digest));
        from = until;
    }
    Ok(sums)
}

fn in_json(played: &FaultOutcome, digest: Digest) -> serde_json::Value {
    let violations = played.violations.iter();
    let violations: Vec<_> = violations
        .map(|found| json!({"invariant": found.invariant, "message": found.detail}))
        .collect();
    json!({
        "seed": played.seed,
        "violations": violations,
        "rounds": played.rounds,
        "settled": played.settled,
        "receipts": played.receipts,
        "crashes": played.crashes,
        "events": played.events,
        "virtual_ms": played.took_ms,
        "digest": digest.to_string(),
    })
}

fn print(sums: &FaultTotals) {
    anstream::println!("{HEAD}Invariants under lost messages, crashes and failing disks{HEAD:#}\n");
    let mut table = TextTable::new(&["over all seeds", ">"]);
    for (what, sum) in [
        ("seeds", sums.seeds),
        ("rounds reported", sums.rounds),
        ("rounds settled", sums.settled),
        ("receipts", sums.receipts),
        ("crashes of the coordinator", sums.crashes),
        ("events", sums.events),
        ("virtual hours", sums.virtual_hours),
        ("seeds with a violation", sums.violated),
    ] {
        table.row([what.into(), sum.into()]);
    }
    table.print();
    anstream::println!("\n{DIM}digest{DIM:#} {}", sums.digest);
}

fn print_violations(sums: &FaultTotals, rules: FaultOptions) {
    if sums.violated == 0 {
        anstream::println!("{GOOD}no invariant was violated{GOOD:#}");
        return;
    }
    for (played, _) in &sums.failed {
        for found in &played.violations {
            let (seed, rounds) = (played.seed, rules.rounds);
            anstream::println!("{BAD}seed {seed}{BAD:#}  {found}");
            anstream::println!("  {DIM}florin sim faults --seed {seed} --rounds {rounds}{DIM:#}");
        }
    }
    let more = sums.violated - sums.failed.len() as u64;
    if more > 0 {
        anstream::println!("and {} more", format_count(more, "seed"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_do_not_depend_on_the_batch_size_and_progress_counts_all_seeds() {
        let rules = FaultOptions { rounds: 1, bug: None };
        let summed = |seeds: Range<u64>, chunk: u64| {
            let (seen, longest) = (std::sync::Mutex::new(Vec::new()), std::cell::Cell::new(0));
            let watch = |done| seen.lock().unwrap().push(done);
            let sums = run_batches(seeds, chunk, &watch, &|seeds, watch| {
                longest.set(longest.get().max(seeds.end - seeds.start));
                simulate_all(seeds, rules, 2, watch)
            });
            (sums.unwrap(), seen.into_inner().unwrap(), longest.get())
        };
        let (chunked, seen, longest) = summed(3..15, 5);
        let (whole, ..) = summed(3..15, 100);
        assert_eq!(json!(chunked), json!(whole));
        assert_eq!((chunked.first, chunked.seeds, chunked.violated, longest), (3, 12, 0, 5));
        assert!(whole.settled > 0 && whole.events > 0 && whole.receipts > 0, "{whole:?}");
        assert_eq!((seen.len(), seen.iter().max()), (12, Some(&12)));
        assert!(seen[5..].iter().all(|done| *done > 5), "{seen:?}");
        assert_ne!(whole.digest, summed(4..16, 100).0.digest);
    }

    #[test]
    fn only_the_first_failed_seeds_are_stored_but_all_are_counted() {
        let rules = FaultOptions { rounds: 1, bug: Some(florin_faults::Bug::PayoutRounding) };
        let play = |seeds, watch: &(dyn Fn(usize) + Sync)| simulate_all(seeds, rules, 2, watch);
        let sums = run_batches(1..61, BATCH_SEEDS, &|_| {}, &play).unwrap();
        assert!(sums.violated > SHOWN as u64, "{sums:?}");
        assert_eq!(sums.failed.len(), SHOWN);
        assert!(sums.failed.iter().map(|(played, _)| played.seed).is_sorted());
        assert_eq!(json!(sums)["violated"], sums.violated);
    }
}
