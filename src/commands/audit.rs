//! `florin audit`: recomputes reports from public data, and prints the first mismatch.

use florin_participant::{AuditOptions, AuditReport, RoundAudit, audit_task, stored_receipts};
use florin_protocol::Mismatch;
use florin_work::{SpotCheckOptions, escape_probability};
use serde_json::{Value, json};

use crate::cli::Audit;
use crate::compose;
use crate::failure::Exit;
use crate::market::MarketConnection;
use crate::progress::Progress;
use crate::show::{self, BAD, GOOD, NOTE};

/// Fractions of forged scores for which a spot check prints its escape probability.
const FORGED_SHARES: [f64; 3] = [0.05, 0.1, 0.5];

pub(super) fn run(arguments: &Audit) -> anyhow::Result<Exit> {
    let market = MarketConnection::connect(&arguments.market)?.with_weights(&arguments.weights);
    let task = market.find(&arguments.task)?;
    let ledger = market.ledger()?;
    let host = arguments.trainers.host(Vec::new(), std::env::temp_dir());
    compose::check_trainer(&market.task(task)?.spec, &host)?;
    let mut engine = compose::engine_with_trainers(arguments.engine, host)?;
    let rounds = arguments.round.map(|round| round..=round);
    let receipts = match &arguments.receipts {
        Some(folder) => stored_receipts(folder, task)?,
        None => Vec::new(),
    };
    let spot = match arguments.spot_check {
        Some(draws) => {
            let seed = arguments.seed.map_or_else(compose::random_number, Ok)?;
            Some(SpotCheckOptions { draws, seed })
        }
        None => None,
    };
    let scratch = Some(arguments.scratch.as_path());
    let scrutiny = AuditOptions { rounds, receipts: &receipts, spot, scratch };
    let quiet = arguments.json.json;
    let progress = Progress::start("recomputing");
    let mut on_round = |audit: &RoundAudit| {
        if !quiet {
            progress.suspend(|| anstream::println!("{}", round_line(audit)));
        }
        progress.step(format!("recomputing; round {} is done", audit.round));
    };
    let found = audit_task(&market, &*ledger, task, &scrutiny, &mut *engine, &mut on_round)?;
    drop(progress);
    if quiet {
        show::json(&as_json(&found, spot))?;
    } else {
        print_summary(&found);
        if let Some(spot) = spot {
            print_escape_probabilities(&found, spot);
        }
    }
    Ok(if found.mismatch_count() == 0 { Exit::Done } else { Exit::Negative })
}

/// The result of a round's audit in one line, with colours.
pub(super) fn round_line(audit: &RoundAudit) -> String {
    let how = match &audit.spot_check {
        Some(looked) if looked.scores.1 == 0 => "all figures recomputed".to_owned(),
        Some(looked) => {
            let ((scores, of_scores), (worths, of_worths)) =
                (looked.scores, looked.coalition_values);
            let apart = looked.cross_check_distance.map_or(String::new(), |apart| {
                format!("; path scores and coalition check differ by {:.1} %", 100.0 * apart)
            });
            format!(
                "{scores} of {of_scores} scores, {worths} of {of_worths} coalition values \
                 recomputed{apart}"
            )
        }
        None if audit.recomputed => "recomputed".to_owned(),
        None => "checked without recomputation (its blobs are missing)".to_owned(),
    };
    match audit.mismatches.first() {
        None => format!("round {:>3}   {GOOD}agrees{GOOD:#}   {how}", audit.round.0),
        Some(first) => format!(
            "round {:>3}   {BAD}{} mismatches{BAD:#}, the first: {}",
            audit.round.0,
            audit.mismatches.len(),
            describe(first)
        ),
    }
}

fn describe(line: &Mismatch) -> String {
    format!("{}: reported {}, recomputed {}", line.line, line.reported, line.recomputed)
}

fn print_summary(found: &AuditReport) {
    for line in &found.ledger {
        anstream::println!("ledger      {BAD}mismatch{BAD:#}: {}", describe(line));
    }
    for inconclusive in &found.unverifiable {
        anstream::println!("{NOTE}{inconclusive}{NOTE:#}");
    }
    let count = found.mismatch_count();
    let style = if count == 0 { GOOD } else { BAD };
    anstream::println!(
        "\naudit: {} of {} rounds recomputed, {style}{count} mismatches{style:#}",
        found.recomputed_count(),
        found.rounds.len()
    );
    if let Some((round, line)) = found.first_mismatch() {
        let place = round.map_or("the ledger".to_owned(), |round| format!("round {round}"));
        anstream::println!("{BAD}First: {place}, {}{BAD:#}", describe(line));
    }
}

/// The round in which the spot check drew the smallest part of the scores: the number of draws, and
/// of scores. `None` if it drew none.
fn weakest_sample(found: &AuditReport) -> Option<(usize, usize)> {
    let looked = found.rounds.iter().filter_map(|round| round.spot_check.as_ref());
    let drawn = looked.map(|looked| looked.scores).filter(|(draws, _)| *draws > 0);
    drawn.min_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)))
}

/// The probability that forged scores escape the spot check, for each fraction of
/// [`FORGED_SHARES`].
fn escapes(found: &AuditReport) -> Vec<(f64, f64)> {
    let sample = weakest_sample(found);
    let of = |share| sample.map(|(draws, all)| (share, escape_probability(share, draws, all)));
    FORGED_SHARES.into_iter().filter_map(of).collect()
}

/// Prints the detection power of a spot check.
fn print_escape_probabilities(found: &AuditReport, spot: SpotCheckOptions) {
    let Some(sample) = weakest_sample(found) else { return };
    let chances: Vec<String> = escapes(found)
        .iter()
        .map(|(share, escapes)| format!("{:.0} % forged: {:.1} %", 100.0 * share, 100.0 * escapes))
        .collect();
    let text = format!(
        "If the coordinator had forged a fraction of a round's scores, {} random draws of {} would \
         miss all of them with a probability of at most: {}. Seed {}.",
        sample.0,
        sample.1,
        chances.join("; "),
        spot.seed
    );
    show::paragraph("", &text, NOTE);
}

fn as_json(found: &AuditReport, spot: Option<SpotCheckOptions>) -> Value {
    let line = |round: Option<u32>, line: &Mismatch| {
        json!({
            "round": round,
            "line": line.line,
            "reported": line.reported,
            "recomputed": line.recomputed,
        })
    };
    let of_rounds = found.rounds.iter().flat_map(|round| {
        round.mismatches.iter().map(move |found| line(Some(round.round.0), found))
    });
    let of_ledger = found.ledger.iter().map(|found| line(None, found));
    let mismatches: Vec<Value> = of_rounds.chain(of_ledger).collect();
    json!({
        "task": found.task,
        "audited": found.rounds.len(),
        "rounds": found.recomputed_count(),
        "mismatches": mismatches,
        "inconclusive": found.unverifiable,
        "spot_check": spot.map(|spot| {
            let looked = |round: &RoundAudit| {
                let looked = round.spot_check.as_ref()?;
                Some(json!({
                    "round": round.round,
                    "scores": looked.scores,
                    "coalitions": looked.coalition_values,
                    "difference": looked.cross_check_distance,
                }))
            };
            let rounds: Vec<Value> = found.rounds.iter().filter_map(looked).collect();
            let escapes: Vec<Value> = escapes(found)
                .iter()
                .map(|(forged, escapes)| json!({ "forged": forged, "probability": escapes }))
                .collect();
            json!({
                "draws": spot.draws,
                "seed": spot.seed,
                "rounds": rounds,
                "escape_probabilities": escapes,
            })
        }),
    })
}
