//! Audit of one round: recomputes everything that can be computed.

use florin_learning::Engine;
use florin_protocol::limits::PUBLIC_STEPS_MAX;
use florin_protocol::{
    AbandonReason, Address, Canonical, Closing, Code, Digest, EarlierUpdates, Offer, Rejection,
    Report, RoundOutcome, TaskSpec, UpdateHeader, WorkResult, blob_digest, close_round, draw_rows,
    round_seed,
};
use serde_json::Value;

use crate::check::model_bytes;
use crate::contents::Contents;
use crate::holdout::check_shown;
use crate::round::{Inputs, WorkError, agree, carry_out};

/// A line of a report that differs from its recomputation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Path of the line in the report's JSON form.
    pub line: String,
    /// The reported value.
    pub reported: String,
    /// The recomputed value.
    pub recomputed: String,
}

/// A report and its inputs. The caller verifies the signatures.
#[derive(Clone, Copy)]
pub struct AuditInputs<'a> {
    /// The inputs of the valuation, as the report names them.
    pub round: Inputs<'a>,
    /// The round's offer.
    pub offer: &'a Offer,
    /// The report.
    pub report: &'a Report,
    /// The report of the preceding round.
    pub before: Option<&'a Report>,
    /// Digests of the base models of all earlier rounds, the latest first.
    pub earlier: &'a [Digest],
    /// The published updates of all earlier rounds.
    pub shown: &'a EarlierUpdates,
    /// Indices of the holdout rows that all earlier rounds used, in any order.
    pub exposed: &'a [u32],
    /// The headers of the updates, in the order of the entries.
    pub headers: &'a [UpdateHeader],
}

/// Recomputes one round and returns every line that differs. The result is empty for an honest
/// report.
///
/// Scores, standard errors and losses may differ by [`crate::TOLERANCE_NANO`]. Everything derived
/// from the stated values (weights, payouts, debits, totals, root) must be equal.
///
/// # Errors
/// [`WorkError`] if the inputs cannot be processed.
pub fn audit_round(
    inputs: &AuditInputs<'_>,
    engine: &mut dyn Engine,
) -> Result<Vec<Difference>, WorkError> {
    let mut found = inputs_differ(inputs);
    if !found.is_empty() {
        // With other inputs a recomputation is meaningless.
        return Ok(found);
    }
    let report = inputs.report;
    let stated = stated_result(report);
    match (&report.outcome, &stated) {
        (RoundOutcome::Settled, Some(stated)) => {
            let ours = carry_out(&inputs.round, engine)?.result;
            if let Err(differs) = agree(&ours, stated) {
                found.push(Difference {
                    line: differs.line,
                    reported: differs.theirs,
                    recomputed: differs.ours,
                });
            }
        }
        (RoundOutcome::Settled, None) => found.push(difference("valuation", &"absent", &"needed")),
        (RoundOutcome::Abandoned(reason), _) => abandoned(inputs, *reason, engine, &mut found),
    }
    money(inputs, stated.as_ref(), &mut found);
    Ok(found)
}

/// Differences between the given inputs and those that the report names.
pub(crate) fn inputs_differ(inputs: &AuditInputs<'_>) -> Vec<Difference> {
    let mut found = Vec::new();
    evidence(inputs, &mut found);
    holdout(inputs, &mut found);
    found
}

fn difference(line: &str, reported: &dyn ToString, recomputed: &dyn ToString) -> Difference {
    Difference {
        line: line.to_owned(),
        reported: reported.to_string(),
        recomputed: recomputed.to_string(),
    }
}

pub(crate) fn stated_result(report: &Report) -> Option<WorkResult> {
    let (valuation, metrics) = (report.valuation.clone()?, report.metrics?);
    Some(WorkResult { valuation, metrics, model: report.model })
}

/// Callback with a line, the reported value and the recomputed value.
type Equal<'a> = dyn FnMut(&str, &dyn ToString, &dyn ToString) + 'a;

/// Checks the global model deltas and earlier updates with which the round's updates are compared.
fn known(inputs: &AuditInputs<'_>, equal: &mut Equal<'_>) {
    let AuditInputs { round, earlier, shown, .. } = *inputs;
    let digests = |of: &dyn Contents| of.iter().map(blob_digest).collect::<Vec<Digest>>();
    let stated: Vec<&Digest> = earlier.iter().take(PUBLIC_STEPS_MAX).collect();
    let given = digests(round.previous);
    equal("earlier base models' bytes", &format!("{stated:?}"), &format!("{given:?}"));
    let stated = shown.held_against(round.spec.rounds.protection, model_bytes(round.spec));
    let given: Vec<(Address, Digest)> = round.last.named.to_vec();
    equal("updates of earlier rounds", &format!("{given:?}"), &format!("{stated:?}"));
    let stated: Vec<Digest> = stated.into_iter().map(|(_, update)| update).collect();
    let given = digests(round.last.bytes);
    let line = "bytes of the updates of earlier rounds";
    equal(line, &format!("{stated:?}"), &format!("{given:?}"));
}

/// Checks that the given bytes are those that the report names, and that its entries match the
/// signed headers.
fn evidence(inputs: &AuditInputs<'_>, found: &mut Vec<Difference>) {
    let AuditInputs { round, offer, report, before, headers, .. } = *inputs;
    let spec = round.spec;
    let mut equal = |line: &str, reported: &dyn ToString, recomputed: &dyn ToString| {
        let (reported, recomputed) = (reported.to_string(), recomputed.to_string());
        if reported != recomputed {
            found.push(difference(line, &reported, &recomputed));
        }
    };
    let previous = before.map_or_else(|| florin_protocol::Digest(spec.id().0), Report::digest);
    equal("previous", &report.previous, &previous);
    equal("offer.previous", &offer.previous, &previous);
    let base = before.map_or(spec.base_model, |report| report.model);
    equal("base_model", &report.base_model, &base);
    equal("offer.base_model", &offer.base_model, &base);
    equal("scope.task", &report.scope.task, &spec.id());
    equal("base model's bytes", &report.base_model, &blob_digest(round.base));
    known(inputs, &mut equal);
    let pool = spec.pool_of_round(report.scope.round, before);
    let pool = pool.map_or_else(|error| error.to_string(), |pool| pool.to_string());
    equal("offer.pool", &offer.pool, &pool);
    let asked = offer.cohort.windows(2).all(|pair| pair[0] < pair[1])
        && offer.cohort.len() <= usize::try_from(spec.rounds.asked()).unwrap_or(usize::MAX);
    equal("offer.cohort ascending and within the size limit", &asked, &true);
    let mut listed: Vec<_> = report.entries.iter().map(|entry| entry.sender).collect();
    listed.extend(report.missing.iter().map(|(sender, _)| *sender));
    listed.sort_unstable();
    equal("entries and missing are the cohort", &(listed == offer.cohort), &true);
    let enough = spec.is_round(report.entries.len()) || report.outcome != RoundOutcome::Settled;
    equal("entries are at least cohort_min", &enough, &true);
    equal("entries", &report.entries.len(), &headers.len());
    equal("entries' bytes", &report.entries.len(), &round.updates.len());
    let ascending = report.entries.windows(2).all(|pair| pair[0].sender < pair[1].sender);
    equal("entries ascending by sender", &ascending, &true);
    let mut orders: Vec<u32> = report.entries.iter().map(|entry| entry.order).collect();
    orders.sort_unstable();
    let last = u32::try_from(report.commits.len()).unwrap_or(u32::MAX);
    let distinct = orders.windows(2).all(|pair| pair[0] < pair[1])
        && orders.iter().all(|order| (1..=last).contains(order));
    equal("entries' commit positions distinct, from 1 to the number of commits", &distinct, &true);
    for (i, ((entry, header), bytes)) in
        report.entries.iter().zip(headers).zip(round.updates.iter()).enumerate()
    {
        let line = |field: &str| format!("entries[{i}].{field}");
        equal(&line("header"), &entry.header, &header.digest());
        equal(&line("sender"), &entry.sender, &header.sender);
        equal(&line("sender in the cohort"), &offer.cohort.contains(&entry.sender), &true);
        equal(&line("update"), &entry.update, &header.update);
        equal(&line("update's bytes"), &entry.update, &blob_digest(bytes));
        equal(&line("salt"), &entry.salt, &header.salt);
        equal(&line("rows_declared"), &entry.rows_declared, &header.rows);
        let counted = spec.rows_counted(header.rows, entry.bond);
        equal(&line("rows_counted"), &entry.rows_counted, &counted);
        equal(&line("scope"), &format!("{:?}", header.scope), &format!("{:?}", report.scope));
        equal(&line("base_model"), &header.base_model, &report.base_model);
        let committed = report.commits.iter().find(|(sender, _)| *sender == entry.sender);
        let committed = committed.map_or_else(|| "none".to_owned(), |(_, c)| c.to_string());
        equal(&line("commitment"), &committed, &header.commitment());
    }
}

/// Checks the draw of a round's validation rows: the seed is derived from the round's messages, and
/// the rows are those drawn by it from the rows that no earlier round used. `exposed` is the rows
/// of all earlier rounds. Returns the differences.
#[must_use]
pub fn draw_differs(spec: &TaskSpec, report: &Report, exposed: &[u32]) -> Vec<Difference> {
    let mut found = Vec::new();
    let stated = &report.holdout;
    let seed = round_seed(report.scope, &report.commits, &report.entries);
    if stated.seed != seed {
        found.push(difference("holdout.seed", &stated.seed, &seed));
    }
    let drawn = match spec.is_round(report.entries.len()) {
        true => draw_rows(&spec.holdout, exposed, seed),
        false => Ok(Vec::new()),
    };
    let drawn = match drawn {
        Ok(drawn) => drawn,
        Err(error) => {
            found.push(difference("holdout.rows", &format!("{} rows", stated.rows.len()), &error));
            return found;
        }
    };
    if stated.rows.len() != drawn.len() {
        let rows = |rows: &[u32]| format!("{} rows", rows.len());
        found.push(difference("holdout.rows", &rows(&stated.rows), &rows(&drawn)));
    }
    let mut pairs = stated.rows.iter().zip(&drawn).enumerate();
    if let Some((at, (stated, ours))) = pairs.find(|(_, (stated, ours))| stated != ours) {
        let again = if exposed.contains(stated) { ", disclosed in an earlier round" } else { "" };
        let reported = format!("row {stated}{again}");
        found.push(difference(&format!("holdout.rows[{at}]"), &reported, &format!("row {ours}")));
    }
    found
}

/// Checks that the round's validation rows are those drawn for it and those to which the task
/// committed.
fn holdout(inputs: &AuditInputs<'_>, found: &mut Vec<Difference>) {
    let AuditInputs { round, report, exposed, .. } = *inputs;
    let differs = draw_differs(round.spec, report, exposed);
    let drawn = &report.holdout.rows;
    if differs.is_empty()
        && !drawn.is_empty()
        && let Err(error) = check_shown(round.spec, drawn, round.holdout)
    {
        found.push(difference(&error.line(), &"disclosed", &error));
    }
    found.extend(differs);
}

/// Checks the stated reason of an abandoned round.
fn abandoned(
    inputs: &AuditInputs<'_>,
    reason: AbandonReason,
    engine: &mut dyn Engine,
    found: &mut Vec<Difference>,
) {
    let needed = inputs.round.spec.rounds.cohort_min;
    let got = u32::try_from(inputs.report.entries.len()).unwrap_or(u32::MAX);
    match reason {
        AbandonReason::TooFewUpdates { .. } => {
            let honest = AbandonReason::TooFewUpdates { got, needed };
            if reason != honest || got >= needed {
                found.push(difference(
                    "outcome",
                    &format!("{reason:?}"),
                    &format!("{got} accepted updates, {needed} required"),
                ));
            }
        }
        AbandonReason::ValuationFailed if got < needed => found.push(difference(
            "outcome",
            &"the valuation failed",
            &format!("{got} accepted updates, {needed} required"),
        )),
        AbandonReason::ValuationFailed => {
            if let Ok(outcome) = carry_out(&inputs.round, engine) {
                let total = outcome.result.valuation.total_nano;
                found.push(difference(
                    "outcome",
                    &"the valuation failed",
                    &format!("the valuation succeeds with v(N) = {total} nano-nats"),
                ));
            }
        }
    }
}

/// Checks everything that is derived from the stated scores.
pub(crate) fn money(
    inputs: &AuditInputs<'_>,
    stated: Option<&WorkResult>,
    found: &mut Vec<Difference>,
) {
    let AuditInputs { round, offer, report, before, .. } = *inputs;
    if report.infrastructure.len() > 1 {
        let paid = report.infrastructure.len();
        found.push(difference("infrastructure", &format!("{paid} records paid"), &"at most 1"));
    }
    for (i, line) in report.infrastructure.iter().enumerate() {
        let units = stated.map_or(0, |result| result.valuation.units);
        if line.units != units {
            let name = format!("infrastructure[{i}].units");
            found.push(difference(&name, &line.units, &units));
        }
    }
    let work: Vec<_> =
        report.infrastructure.iter().map(|i| (i.provider, i.record, i.units)).collect();
    let result = match (&report.outcome, stated) {
        (RoundOutcome::Abandoned(reason), _) => Err(*reason),
        (RoundOutcome::Settled, Some(result)) => Ok(result),
        (RoundOutcome::Settled, None) => return,
    };
    let closed = close_round(&Closing {
        spec: round.spec,
        offer,
        before,
        commits: &report.commits,
        entries: &report.entries,
        missing: &report.missing,
        rows: &report.holdout.rows,
        result,
        work: &work,
    });
    match closed {
        Ok(ours) => compare("", &json(report), &json(&ours), found),
        Err(error) => {
            let rejection = Rejection::new(Code::Internal, error.to_string());
            found.push(difference("lines", &"paid", &rejection));
        }
    }
}

fn json(report: &Report) -> Value {
    serde_json::to_value(report).expect("a report has a JSON form")
}

/// Compares two JSON values recursively and records every differing leaf.
fn compare(path: &str, reported: &Value, recomputed: &Value, found: &mut Vec<Difference>) {
    match (reported, recomputed) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let of = |map: &serde_json::Map<_, _>| map.get(key).cloned().unwrap_or_default();
                compare(&path, &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}[{i}]"), a, b, found);
            }
        }
        (a, b) if a != b => found.push(difference(path, a, b)),
        _ => {}
    }
}
