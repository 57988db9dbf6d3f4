//! Deterministic simulation testing of whole tasks: no seed violates an invariant, and every
//! planted bug is detected.
//!
//! `FLORIN_FAULT_SEEDS` sets the number of seeds, and `FLORIN_FAULT_SEED` the first one.

use florin_faults::{Bug, FaultOptions, FaultOutcome, ROUNDS, simulate, simulate_all};

/// Number of seeds in CI.
const SEEDS: u64 = 500;
/// Number of seeds within which each planted bug must be detected.
const FOUND_WITHIN: u64 = 500;
/// Number of failed seeds to print, and lines of each trace.
const SHOWN: usize = 10;
const LINES: usize = 25;
/// Batch size of the search for a planted bug.
const STEP: u64 = 20;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number")))
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The command that repeats a failed seed, its violations, and the end of its trace.
fn again(played: &FaultOutcome) -> String {
    let found: Vec<String> = played.violations.iter().map(ToString::to_string).collect();
    let seed = played.seed;
    let trace = played.trace.clone().into_text();
    let lines: Vec<&str> = trace.lines().collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("\n  ");
    format!("florin sim faults --seed {seed} --rounds {ROUNDS}: {}\n  {last}\n", found.join("; "))
}

#[test]
fn no_seed_violates_an_invariant_under_network_process_and_disk_faults() {
    let first = number("FLORIN_FAULT_SEED").unwrap_or(1);
    let seeds = number("FLORIN_FAULT_SEEDS").unwrap_or(SEEDS);
    println!("FLORIN_FAULT_SEED={first} FLORIN_FAULT_SEEDS={seeds}");
    let played =
        simulate_all(first..first + seeds, FaultOptions::default(), threads(), &|_| {}).unwrap();
    let failed: Vec<String> = played
        .iter()
        .filter(|(played, _)| !played.violations.is_empty())
        .map(|(played, _)| again(played))
        .collect();
    let some = &failed[..failed.len().min(SHOWN)];
    assert!(failed.is_empty(), "{} of {seeds} seeds:\n{}", failed.len(), some.concat());
    // The seeds are effective: rounds are settled, and processes crash.
    let sum = |of: fn(&FaultOutcome) -> u64| played.iter().map(|(p, _)| of(p)).sum::<u64>();
    let (settled, crashes) = (sum(|p| u64::from(p.settled)), sum(|p| p.crashes));
    println!("{settled} rounds settled, {crashes} crashes");
    let enough = settled >= seeds && crashes >= seeds;
    assert!(enough || seeds < SEEDS, "{settled} rounds settled, {crashes} crashes");
}

#[test]
fn a_seed_has_the_same_trace_on_any_number_of_threads() {
    let digests = |threads| {
        let played = simulate_all(1..13, FaultOptions::default(), threads, &|_| {}).unwrap();
        played.into_iter().map(|(_, digest)| digest).collect::<Vec<_>>()
    };
    let one = digests(1);
    assert_eq!(one, digests(2));
    assert_eq!(one, digests(5));
    let (a, b) = (
        simulate(3, FaultOptions::default()).unwrap(),
        simulate(3, FaultOptions::default()).unwrap(),
    );
    assert_eq!(a.trace.into_text(), b.trace.into_text());
    assert_ne!(one[0], one[1], "another seed has another trace");
}

/// The first seed that violates a rule, with the violation; otherwise the violations of other
/// rules.
fn first_broken(bug: Bug, rule: &str) -> Result<(u64, String), Vec<String>> {
    let rules = FaultOptions { bug: Some(bug), ..FaultOptions::default() };
    let mut others = Vec::new();
    for from in (1..=FOUND_WITHIN).step_by(STEP as usize) {
        let played = simulate_all(from..from + STEP, rules, threads(), &|_| {}).unwrap();
        for (played, _) in played {
            if let Some(found) = played.violations.iter().find(|found| found.invariant == rule) {
                return Ok((played.seed, found.to_string()));
            }
            let seed = played.seed;
            others.extend(played.violations.iter().map(|found| format!("seed {seed}: {found}")));
        }
    }
    Err(others)
}

#[test]
fn every_planted_bug_is_detected_by_its_rules() {
    for bug in Bug::ALL {
        assert!(!bug.detecting_rules().is_empty(), "{} has no rule", bug.name());
        for rule in bug.detecting_rules() {
            let found = first_broken(bug, rule).unwrap_or_else(|others| {
                let others = &others[..others.len().min(SHOWN)];
                let name = bug.name();
                panic!("{rule:?} does not find {name} in {FOUND_WITHIN} seeds, but {others:#?}")
            });
            println!("{:<24} seed {:>3}  {}", bug.name(), found.0, found.1);
        }
    }
}
