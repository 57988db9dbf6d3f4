//! Audit of one round: recomputes everything that can be computed.

use florin_learning::Engine;
use florin_protocol::limits::GLOBAL_DELTAS_MAX;
use florin_protocol::{
    AbandonReason, Address, Canonical, Digest, EarlierUpdates, ErrorCode, Mismatch, Offer,
    Rejection, Report, ReportInputs, RoundOutcome, UpdateHeader, WorkResult, blob_digest,
    check_draw, close_round,
};
use serde_json::Value;

use crate::blob_source::BlobSource;
use crate::codec::model_bytes;
use crate::holdout::verify_disclosed_rows;
use crate::public_baseline::{baseline_rows, disclosed_indices};
use crate::round::{ValuationInputs, WorkError, compare_results, value_and_aggregate};

/// A report and its inputs. The caller verifies the signatures.
#[derive(Clone, Copy)]
pub struct AuditInputs<'a> {
    /// The inputs of the valuation, as the report names them.
    pub round: ValuationInputs<'a>,
    /// The round's offer.
    pub offer: &'a Offer,
    /// The report.
    pub report: &'a Report,
    /// The report of the preceding round.
    pub previous_report: Option<&'a Report>,
    /// Digests of the base models of all earlier rounds, the latest first.
    pub earlier_models: &'a [Digest],
    /// The published updates of all earlier rounds.
    pub earlier_updates: &'a EarlierUpdates,
    /// Indices of the holdout rows that all earlier rounds used, round by round.
    pub used_rows: &'a [u32],
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
) -> Result<Vec<Mismatch>, WorkError> {
    let mut found = check_inputs(inputs);
    if !found.is_empty() {
        // With other inputs a recomputation is meaningless.
        return Ok(found);
    }
    let report = inputs.report;
    let stated = stated_result(report);
    match (&report.outcome, &stated) {
        (RoundOutcome::Settled | RoundOutcome::Void(_), Some(stated)) => {
            let ours = value_and_aggregate(&inputs.round, engine)?.result;
            if let Err(differs) = compare_results(&ours, stated) {
                found.push(Mismatch {
                    line: differs.line,
                    reported: differs.stated,
                    recomputed: differs.recomputed,
                });
            }
        }
        (RoundOutcome::Settled | RoundOutcome::Void(_), None) => {
            found.push(Mismatch::new("valuation", &"absent", &"needed"))
        }
        (RoundOutcome::Abandoned(reason), _) => {
            check_abandonment(inputs, *reason, engine, &mut found)
        }
    }
    check_pay(inputs, stated.as_ref(), &mut found);
    Ok(found)
}

/// Differences between the given inputs and those that the report names.
pub(crate) fn check_inputs(inputs: &AuditInputs<'_>) -> Vec<Mismatch> {
    let mut found = Vec::new();
    check_entries(inputs, &mut found);
    check_validation_rows(inputs, &mut found);
    found
}

pub(crate) fn stated_result(report: &Report) -> Option<WorkResult> {
    let (valuation, metrics) = (report.valuation.clone()?, report.metrics?);
    Some(WorkResult { valuation, baseline: report.baseline, metrics, model: report.model })
}

/// Callback with a line, the reported value and the recomputed value.
type CompareFn<'a> = dyn FnMut(&str, &dyn ToString, &dyn ToString) + 'a;

/// Checks the global model deltas and earlier updates with which the round's updates are compared.
fn check_public_vectors(inputs: &AuditInputs<'_>, equal: &mut CompareFn<'_>) {
    let AuditInputs { round, earlier_models: earlier, earlier_updates: shown, .. } = *inputs;
    let digests = |of: &dyn BlobSource| of.iter().map(blob_digest).collect::<Vec<Digest>>();
    let stated: Vec<&Digest> = earlier.iter().take(GLOBAL_DELTAS_MAX).collect();
    let given = digests(round.previous_models);
    equal("earlier base models' bytes", &format!("{stated:?}"), &format!("{given:?}"));
    let stated = shown.reference_updates(round.spec.rounds.preprocessing, model_bytes(round.spec));
    let given: Vec<(Address, Digest)> = round.earlier_updates.ids.to_vec();
    equal("updates of earlier rounds", &format!("{given:?}"), &format!("{stated:?}"));
    let stated: Vec<Digest> = stated.into_iter().map(|(_, update)| update).collect();
    let given = digests(round.earlier_updates.bytes);
    let line = "bytes of the updates of earlier rounds";
    equal(line, &format!("{stated:?}"), &format!("{given:?}"));
}

/// Checks that the given bytes are those that the report names, and that its entries match the
/// signed headers.
fn check_entries(inputs: &AuditInputs<'_>, found: &mut Vec<Mismatch>) {
    let AuditInputs { round, offer, report, previous_report: before, headers, .. } = *inputs;
    let spec = round.spec;
    let mut equal = |line: &str, reported: &dyn ToString, recomputed: &dyn ToString| {
        let (reported, recomputed) = (reported.to_string(), recomputed.to_string());
        if reported != recomputed {
            found.push(Mismatch::new(line, &reported, &recomputed));
        }
    };
    let previous = before.map_or_else(|| florin_protocol::Digest(spec.id().0), Report::digest);
    equal("previous_report", &report.previous_report, &previous);
    equal("offer.previous_report", &offer.previous_report, &previous);
    let ended = before.is_some_and(Report::ends_task);
    equal("scope.round after the task's end", &ended, &false);
    let base = before.map_or(spec.base_model, |report| report.model);
    equal("base_model", &report.base_model, &base);
    equal("offer.base_model", &offer.base_model, &base);
    equal("scope.task", &report.scope.task, &spec.id());
    equal("base model's bytes", &report.base_model, &blob_digest(round.base));
    check_public_vectors(inputs, &mut equal);
    let pool = spec.pool_for_round(report.scope.round, before);
    let pool = pool.map_or_else(|error| error.to_string(), |pool| pool.to_string());
    equal("offer.pool", &offer.pool, &pool);
    let asked = offer.cohort.windows(2).all(|pair| pair[0] < pair[1])
        && offer.cohort.len()
            <= usize::try_from(spec.rounds.selection_size()).unwrap_or(usize::MAX);
    equal("offer.cohort ascending and within the size limit", &asked, &true);
    let mut listed: Vec<_> = report.entries.iter().map(|entry| entry.sender).collect();
    listed.extend(report.missing.iter().map(|(sender, _)| *sender));
    listed.sort_unstable();
    equal("entries and missing are the cohort", &(listed == offer.cohort), &true);
    let enough = spec.has_quorum(report.entries.len()) || !report.outcome.is_valued();
    equal("entries are at least cohort_min", &enough, &true);
    equal("entries", &report.entries.len(), &headers.len());
    equal("entries' bytes", &report.entries.len(), &round.updates.len());
    let ascending = report.entries.windows(2).all(|pair| pair[0].sender < pair[1].sender);
    equal("entries ascending by sender", &ascending, &true);
    let mut orders: Vec<u32> = report.entries.iter().map(|entry| entry.commit_position).collect();
    orders.sort_unstable();
    let last = u32::try_from(report.commits.len()).unwrap_or(u32::MAX);
    let distinct = orders.windows(2).all(|pair| pair[0] < pair[1])
        && orders.iter().all(|order| (1..=last).contains(order));
    equal("entries' commit positions distinct, from 1 to the number of commits", &distinct, &true);
    let is_accepted = |header: &UpdateHeader| {
        let earlier = inputs.earlier_models.iter().copied();
        spec.rounds.staleness.accepts(header.base_model, report.base_model, earlier)
    };
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
        equal(&line("base_model that the round accepts"), &is_accepted(header), &true);
        let committed = report.commits.iter().find(|(sender, _)| *sender == entry.sender);
        let committed = committed.map_or_else(|| "none".to_owned(), |(_, c)| c.to_string());
        equal(&line("commitment"), &committed, &header.commitment());
    }
}

/// Checks that the round's validation rows are those drawn for it and those to which the task
/// committed.
fn check_validation_rows(inputs: &AuditInputs<'_>, found: &mut Vec<Mismatch>) {
    let AuditInputs { round, report, used_rows: exposed, .. } = *inputs;
    let expected = baseline_rows(round.spec, exposed);
    match disclosed_indices(round.earlier_rows) {
        Ok(given) if given == expected => {}
        Ok(given) => {
            let rows = |rows: &[u32]| format!("{rows:?}");
            found.push(Mismatch::new("rows of earlier rounds", &rows(&given), &rows(expected)));
        }
        Err(error) => found.push(Mismatch::new("rows of earlier rounds", &"disclosed", &error)),
    }
    let differs = check_draw(round.spec, report, exposed);
    let drawn = &report.holdout.rows;
    if differs.is_empty()
        && !drawn.is_empty()
        && let Err(error) = verify_disclosed_rows(round.spec, drawn, round.disclosed_rows)
    {
        found.push(Mismatch::new(error.report_path(), &"disclosed", &error));
    }
    found.extend(differs);
}

/// Checks the stated reason of an abandoned round.
fn check_abandonment(
    inputs: &AuditInputs<'_>,
    reason: AbandonReason,
    engine: &mut dyn Engine,
    found: &mut Vec<Mismatch>,
) {
    let needed = inputs.round.spec.rounds.cohort_min;
    let got = u32::try_from(inputs.report.entries.len()).unwrap_or(u32::MAX);
    match reason {
        AbandonReason::TooFewUpdates { .. } => {
            let honest = AbandonReason::TooFewUpdates { got, needed };
            if reason != honest || got >= needed {
                found.push(Mismatch::new(
                    "outcome",
                    &format!("{reason:?}"),
                    &format!("{got} accepted updates, {needed} required"),
                ));
            }
        }
        AbandonReason::TaskEnded => {
            let (asked, commits) = (inputs.offer.cohort.len(), inputs.report.commits.len());
            if asked > 0 || commits > 0 {
                let stated = format!("{asked} participants were asked, {commits} commits");
                found.push(Mismatch::new("outcome", &"the task ended before the round", &stated));
            }
        }
        AbandonReason::ValuationFailed if got < needed => found.push(Mismatch::new(
            "outcome",
            &"the valuation failed",
            &format!("{got} accepted updates, {needed} required"),
        )),
        AbandonReason::ValuationFailed => {
            if let Ok(outcome) = value_and_aggregate(&inputs.round, engine) {
                let total = outcome.result.valuation.total_nano;
                found.push(Mismatch::new(
                    "outcome",
                    &"the valuation failed",
                    &format!("the valuation succeeds with v(N) = {total} nano-nats"),
                ));
            }
        }
    }
}

/// Checks everything that is derived from the stated scores.
pub(crate) fn check_pay(
    inputs: &AuditInputs<'_>,
    stated: Option<&WorkResult>,
    found: &mut Vec<Mismatch>,
) {
    let AuditInputs { round, offer, report, previous_report: before, .. } = *inputs;
    if report.infrastructure.len() > 1 {
        let paid = report.infrastructure.len();
        found.push(Mismatch::new("infrastructure", &format!("{paid} records paid"), &"at most 1"));
    }
    for (i, line) in report.infrastructure.iter().enumerate() {
        let units = stated.map_or(0, |result| result.valuation.units);
        if line.units != units {
            let name = format!("infrastructure[{i}].units");
            found.push(Mismatch::new(&name, &line.units, &units));
        }
    }
    let work: Vec<_> =
        report.infrastructure.iter().map(|i| (i.provider, i.record, i.units)).collect();
    let result = match (&report.outcome, stated) {
        (RoundOutcome::Abandoned(reason), _) => Err(*reason),
        (RoundOutcome::Settled | RoundOutcome::Void(_), Some(result)) => Ok(result),
        (RoundOutcome::Settled | RoundOutcome::Void(_), None) => return,
    };
    let closed = close_round(&ReportInputs {
        spec: round.spec,
        offer,
        previous_report: before,
        commits: &report.commits,
        entries: &report.entries,
        times: &report.times,
        missing: &report.missing,
        holdout_rows: &report.holdout.rows,
        result,
        verified_work: &work,
    });
    match closed {
        Ok(ours) => compare_json("", &to_json(report), &to_json(&ours), found),
        Err(error) => {
            let rejection = Rejection::new(ErrorCode::Internal, error.to_string());
            found.push(Mismatch::new("lines", &"paid", &rejection));
        }
    }
}

fn to_json(report: &Report) -> Value {
    serde_json::to_value(report).expect("a report has a JSON form")
}

/// Compares two JSON values recursively and records every differing leaf.
fn compare_json(path: &str, reported: &Value, recomputed: &Value, found: &mut Vec<Mismatch>) {
    match (reported, recomputed) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let of = |map: &serde_json::Map<_, _>| map.get(key).cloned().unwrap_or_default();
                compare_json(&path, &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                compare_json(&format!("{path}[{i}]"), a, b, found);
            }
        }
        (a, b) if a != b => found.push(Mismatch::new(path, a, b)),
        _ => {}
    }
}
