//! `florin audit`: recomputes reports from public bytes, and names the first line that disagrees.

use florin_participant::{AuditReport, RoundAudit, audit_task, kept_receipts};
use florin_work::Difference;
use serde_json::{Value, json};

use crate::cli::Audit;
use crate::compose;
use crate::failure::Exit;
use crate::market::Market;
use crate::show::{self, BAD, GOOD, NOTE};

pub(super) fn run(arguments: &Audit) -> anyhow::Result<Exit> {
    let market = Market::connect(&arguments.market)?;
    let task = market.find(&arguments.task)?;
    let ledger = compose::ledger(&arguments.market.market)?;
    let mut engine = compose::engine(arguments.engine)?;
    let rounds = arguments.round.map(|round| round..=round);
    let receipts = match &arguments.receipts {
        Some(folder) => kept_receipts(folder, task)?,
        None => Vec::new(),
    };
    let quiet = arguments.json.json;
    let mut heard = |audit: &RoundAudit| {
        if !quiet {
            say(audit);
        }
    };
    let found = audit_task(&market, &*ledger, task, rounds, &receipts, &mut *engine, &mut heard)?;
    if quiet {
        show::json(&as_json(&found))?;
    } else {
        conclude(&found);
    }
    Ok(if found.differences() == 0 { Exit::Done } else { Exit::No })
}

fn say(audit: &RoundAudit) {
    let how = if audit.recomputed { "recomputed" } else { "checked without its bytes" };
    match audit.differences.first() {
        None => anstream::println!("round {:>3}   {GOOD}agrees{GOOD:#}   {how}", audit.round.0),
        Some(first) => anstream::println!(
            "round {:>3}   {BAD}{} differences{BAD:#}, the first in {}",
            audit.round.0,
            audit.differences.len(),
            words(first)
        ),
    }
}

fn words(line: &Difference) -> String {
    format!("{}: {} is reported, {} was recomputed", line.line, line.reported, line.recomputed)
}

fn conclude(found: &AuditReport) {
    for line in &found.ledger {
        anstream::println!("ledger      {BAD}differs{BAD:#} in {}", words(line));
    }
    for untold in &found.untold {
        anstream::println!("{NOTE}{untold}{NOTE:#}");
    }
    let differences = found.differences();
    let style = if differences == 0 { GOOD } else { BAD };
    anstream::println!(
        "\naudit: {} of {} rounds recomputed, {style}{differences} differences{style:#}",
        found.recomputed(),
        found.rounds.len()
    );
    if let Some((round, line)) = found.first() {
        let place = round.map_or("the ledger".to_owned(), |round| format!("round {round}"));
        anstream::println!("{BAD}First: {place}, {}{BAD:#}", words(line));
    }
}

fn as_json(found: &AuditReport) -> Value {
    let line = |round: Option<u32>, line: &Difference| {
        json!({
            "round": round,
            "line": line.line,
            "reported": line.reported,
            "recomputed": line.recomputed,
        })
    };
    let of_rounds = found.rounds.iter().flat_map(|round| {
        round.differences.iter().map(move |found| line(Some(round.round.0), found))
    });
    let of_ledger = found.ledger.iter().map(|found| line(None, found));
    let differences: Vec<Value> = of_rounds.chain(of_ledger).collect();
    json!({
        "task": found.task,
        "audited": found.rounds.len(),
        "rounds": found.recomputed(),
        "differences": differences,
        "untold": found.untold,
    })
}
