//! `florin task show`: prints a task, its rounds and its payments.

use florin_ledger::TaskState;
use florin_protocol::{AbandonReason, Amount, Report, RoundOutcome, TaskSpec, TaskView, nats};
use serde_json::json;

use super::file::{describe, spec_json};
use super::members;
use crate::cli::TaskShow;
use crate::failure::Exit;
use crate::loss_text;
use crate::market::MarketConnection;
use crate::show::{self, NOTE, TextTable};

pub(super) fn run(arguments: &TaskShow) -> anyhow::Result<Exit> {
    let market = MarketConnection::connect(&arguments.market)?;
    let id = market.find(&arguments.task)?;
    let view = market.task(id)?;
    let reports = market.reports(id)?;
    let ledger = market.ledger()?;
    let books = ledger.task(id)?;
    if arguments.json.json {
        show::json(&as_json(&view, &reports, books.as_ref())?)?;
        return Ok(Exit::Done);
    }
    describe(&view.spec)?;
    anstream::println!();
    show::facts(&[
        ("id", id.to_string()),
        ("phase", show::phase(view.phase).to_owned()),
        ("round", format!("{} of {}", view.round, view.spec.rounds.count)),
        ("members", view.enrolled.to_string()),
        ("this round", format!("{} commits, {} updates", view.committed, view.revealed)),
        ("model", format!("{}…", view.model.short())),
    ]);
    if let Some(text) = members::waiting(&view) {
        anstream::println!();
        show::paragraph("", &format!("The task {text}"), NOTE);
    }
    if let Some(why) = view.end {
        anstream::println!();
        show::paragraph("", &format!("No more rounds start: {}.", members::end(why)), NOTE);
    }
    if let Some(at) = books.as_ref().and_then(|books| books.closes_at) {
        anstream::println!();
        let text = format!(
            "The coordinator announced the close: the rest of the budget can be refunded from {at} on."
        );
        show::paragraph("", &text, NOTE);
    }
    if !reports.is_empty() {
        anstream::println!();
        rounds(&view.spec, &reports)?.print();
    }
    if let Some(books) = books {
        anstream::println!();
        money(&books)?;
    }
    Ok(Exit::Done)
}

/// Sum of a round's payouts for data.
pub(super) fn paid(report: &Report) -> anyhow::Result<Amount> {
    Ok(report.data_paid()?)
}

fn rounds(spec: &TaskSpec, reports: &[Report]) -> anyhow::Result<TextTable> {
    let mut table = TextTable::new(&[
        ">round",
        "outcome",
        ">excluded",
        if spec.model.is_loss_in_nats() { "loss, nats" } else { "loss" },
        ">accuracy",
        ">gap",
        "scores by",
        ">units",
        ">paid, FLN",
    ]);
    for report in reports {
        let outcome = match report.outcome {
            RoundOutcome::Settled => "settled",
            RoundOutcome::Void(reason) => show::void(reason),
            RoundOutcome::Abandoned(AbandonReason::TaskEnded) => "task ended",
            RoundOutcome::Abandoned(_) => "abandoned",
        };
        let valuation = report.valuation.as_ref();
        let excluded = valuation.map_or(0, |v| v.scores.iter().filter(|s| s.excluded).count());
        let stage = valuation.and_then(|valuation| valuation.stages.last());
        let units = valuation.map(|v| v.stages.iter().map(|stage| stage.units).sum());
        let loss = |nano: Option<i64>| nano.map_or("–".to_owned(), |nano| nats(nano.into()));
        table.row([
            report.scope.round.into(),
            outcome.into(),
            format!("{excluded} of {}", report.entries.len()).into(),
            format!(
                "{} → {}",
                loss(valuation.map(|v| v.loss_before_nano)),
                loss(report.metrics.map(|m| m.loss_after_nano))
            )
            .into(),
            report
                .metrics
                .map_or("–".to_owned(), |m| loss_text::accuracy_of(spec, m.correct_after, m.rows))
                .into(),
            loss(stage.map(|stage| stage.gap_nano)).into(),
            stage.map_or("–".to_owned(), |stage| stage.estimator.to_string()).into(),
            units.map_or("–".to_owned(), |units: u64| units.to_string()).into(),
            show::fln(paid(report)?).into(),
        ]);
    }
    Ok(table)
}

/// Prints the balance equation of the task's escrow.
fn money(books: &TaskState) -> anyhow::Result<()> {
    let locked = books.data_locked.plus(books.infrastructure_locked)?;
    show::sentence(&format!(
        "{} deposited = {} paid for data + {} paid for infrastructure + {} refunded + {} locked \
         (FLN)",
        show::fln(books.terms.data.plus(books.terms.infrastructure)?),
        show::fln(books.data_paid),
        show::fln(books.infrastructure_paid),
        show::fln(books.refunded),
        show::fln(locked)
    ));
    if !books.pending.is_empty() {
        show::hint(&match books.pending.len() {
            1 => "1 settlement is still in its challenge window.".to_owned(),
            count => format!("{count} settlements are still in their challenge windows."),
        });
    }
    Ok(())
}

/// The balance equation of the task's escrow, as JSON.
pub(crate) fn money_json(books: &TaskState) -> anyhow::Result<serde_json::Value> {
    Ok(json!({
        "deposited": show::units(books.terms.data.plus(books.terms.infrastructure)?),
        "data_paid": show::units(books.data_paid),
        "infrastructure_paid": show::units(books.infrastructure_paid),
        "refunded": show::units(books.refunded),
        "closes_at": books.closes_at,
        "locked": show::units(books.data_locked.plus(books.infrastructure_locked)?),
        "owed": show::units(books.owed),
        "pending": books.pending.len(),
        "closed": books.closed,
    }))
}

fn as_json(
    view: &TaskView,
    reports: &[Report],
    books: Option<&TaskState>,
) -> anyhow::Result<serde_json::Value> {
    let mut rounds = Vec::with_capacity(reports.len());
    for report in reports {
        rounds.push(json!({
            "round": report.scope.round,
            "outcome": report.outcome,
            "updates": report.entries.len(),
            "loss_before_nano": report.valuation.as_ref().map(|v| v.loss_before_nano),
            "loss_after_nano": report.metrics.map(|m| m.loss_after_nano),
            "correct_after": report.metrics.map(|m| m.correct_after),
            "rows": report.metrics.map(|m| m.rows),
            "stages": report.valuation.as_ref().map(|v| &v.stages),
            "baseline": report.baseline,
            "pool": show::units(report.pool),
            "paid": show::units(paid(report)?),
            "root": report.root,
            "model": report.model,
        }));
    }
    Ok(json!({
        "id": view.id,
        "spec": spec_json(&view.spec)?,
        "phase": view.phase,
        "round": view.round,
        "reported": view.reported,
        "finalised": view.finalised,
        "enrolled": view.enrolled,
        "committed": view.committed,
        "revealed": view.revealed,
        "model": view.model,
        "waiting": view.waiting,
        "end": view.end,
        "missing_blobs": view.missing_blobs,
        "holdout_missing": view.holdout_missing,
        "rounds": rounds,
        "money": books.map(money_json).transpose()?,
    }))
}
