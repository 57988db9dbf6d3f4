//! `florin sim faults`.

use std::io::IsTerminal;

use florin_protocol::{Digest, blob_digest};
use florin_sim::faults::{CastError, Played, Rules, play, play_all};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::threads;
use crate::cli::SimFaults;
use crate::failure::{Exit, Failure};
use crate::show::{self, BAD, DIM, GOOD, HEAD, Table};

/// Seeds, unless said otherwise: what a change is tested with.
const SEEDS: u64 = 500;
/// Virtual milliseconds in an hour.
const HOUR_MS: u64 = 3_600_000;
/// Violations that are shown.
const SHOWN: usize = 20;

pub(super) fn run(command: &SimFaults) -> anyhow::Result<Exit> {
    let rules = Rules { rounds: command.rounds, bug: command.bug };
    match (command.seed, command.seeds) {
        (Some(seed), None) => one(command, seed, rules),
        (first, seeds) => many(command, first.unwrap_or(1), seeds.unwrap_or(SEEDS), rules),
    }
}

fn halted(error: &CastError) -> anyhow::Error {
    Failure::fault("SIM_HALTED", error.to_string()).into()
}

/// One seed, with everything that happens in it.
fn one(command: &SimFaults, seed: u64, rules: Rules) -> anyhow::Result<Exit> {
    let played = play(seed, rules).map_err(|error| halted(&error))?;
    let exit = if played.violations.is_empty() { Exit::Done } else { Exit::No };
    if command.json.json {
        let trace: Vec<String> =
            played.trace.clone().into_text().lines().map(str::to_owned).collect();
        let mut found = in_json(&played, played.digest());
        found["weather"] = json!(format!("{:?}", played.weather));
        found["trace"] = json!(trace);
        show::json(&found)?;
        return Ok(exit);
    }
    anstream::println!("{DIM}{:?}{DIM:#}\n", played.weather);
    anstream::print!("{}", played.trace.clone().into_text());
    anstream::println!();
    print_violations(std::slice::from_ref(&played), rules);
    let (rounds, settled) = (played.rounds, played.settled);
    anstream::println!(
        "{rounds} rounds reported, {settled} settled, {} receipts, {} crashes of the coordinator, \
         {} events, {} virtual seconds\n{DIM}digest{DIM:#} {}",
        played.receipts,
        played.crashes,
        played.events,
        played.took_ms / 1_000,
        played.digest()
    );
    Ok(exit)
}

fn many(command: &SimFaults, first: u64, seeds: u64, rules: Rules) -> anyhow::Result<Exit> {
    let bar = std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new(seeds);
        let template = "{spinner} {pos}/{len} seeds {bar:24} {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━━─"));
        }
        bar
    });
    let watch = |done: usize| {
        if let Some(bar) = &bar {
            bar.set_position(done as u64);
        }
    };
    let Some(end) = first.checked_add(seeds) else {
        let why = format!("there are no {seeds} seeds from {first} on: begin lower");
        return Err(Failure::input("SEEDS_OUT_OF_RANGE", why).into());
    };
    let range = first..end;
    let played = play_all(range, rules, threads(command.threads), &watch);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let played = played.map_err(|error| halted(&error))?;
    let digests: Vec<u8> = played.iter().flat_map(|(_, digest)| digest.0).collect();
    let failed: Vec<&(Played, Digest)> =
        played.iter().filter(|(played, _)| !played.violations.is_empty()).collect();
    if command.json.json {
        let failed: Vec<_> = failed.iter().map(|(p, digest)| in_json(p, *digest)).collect();
        let digest = blob_digest(&digests).to_string();
        show::json(&json!({"first": first, "seeds": seeds, "digest": digest, "failed": failed}))?;
    } else {
        print(&played, blob_digest(&digests));
        let failed: Vec<Played> = failed.iter().map(|(played, _)| played.clone()).collect();
        print_violations(&failed, rules);
    }
    Ok(if failed.is_empty() { Exit::Done } else { Exit::No })
}

fn in_json(played: &Played, digest: Digest) -> serde_json::Value {
    let violations = played.violations.iter();
    let violations: Vec<_> =
        violations.map(|found| json!({"rule": found.rule, "what": found.what})).collect();
    json!({
        "seed": played.seed,
        "violations": violations,
        "rounds": played.rounds,
        "settled": played.settled,
        "receipts": played.receipts,
        "crashes": played.crashes,
        "events": played.events,
        "took_ms": played.took_ms,
        "digest": digest.to_string(),
    })
}

fn print(all: &[(Played, Digest)], digest: Digest) {
    anstream::println!("{HEAD}What survives lost messages, crashes and disks that fail{HEAD:#}\n");
    let sum = |of: fn(&Played) -> u64| all.iter().map(|(played, _)| of(played)).sum::<u64>();
    let mut table = Table::new(&["over all seeds", ">"]);
    table.row(["seeds".into(), all.len().into()]);
    table.row(["rounds reported".into(), sum(|played| played.rounds.into()).into()]);
    table.row(["rounds settled".into(), sum(|played| played.settled.into()).into()]);
    table.row(["receipts".into(), sum(|played| played.receipts.into()).into()]);
    table.row(["crashes of the coordinator".into(), sum(|played| played.crashes).into()]);
    table.row(["events".into(), sum(|played| played.events).into()]);
    table.row(["virtual hours".into(), (sum(|played| played.took_ms) / HOUR_MS).into()]);
    let failed = sum(|played| u64::from(!played.violations.is_empty()));
    table.row(["seeds with a violation".into(), failed.into()]);
    table.print();
    anstream::println!("\n{DIM}digest{DIM:#} {digest}");
}

fn print_violations(failed: &[Played], rules: Rules) {
    if failed.iter().all(|played| played.violations.is_empty()) {
        anstream::println!("{GOOD}nothing that must not be{GOOD:#}");
        return;
    }
    for played in failed.iter().take(SHOWN) {
        for found in &played.violations {
            let (seed, rounds) = (played.seed, rules.rounds);
            anstream::println!("{BAD}seed {seed}{BAD:#}  {found}");
            anstream::println!("  {DIM}florin sim faults --seed {seed} --rounds {rounds}{DIM:#}");
        }
    }
    if let Some(more) = failed.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        anstream::println!("and {more} seeds more");
    }
}
