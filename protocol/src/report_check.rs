//! Checks of a report that need no blob: that it continues the previous report, matches its offer,
//! that its rows were drawn, and that its payouts follow from its scores.

use serde_json::Value;

use crate::bytes::Canonical;
use crate::close_round::{ReportInputs, close_round};
use crate::draw::{draw_rows, round_seed};
use crate::id::Digest;
use crate::message::{Offer, RoundOutcome};
use crate::report::Report;
use crate::task::TaskSpec;
use crate::work_order::WorkResult;

/// A line of a report that differs from its recomputation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Path of the line in the report's JSON form.
    pub line: String,
    /// The reported value.
    pub reported: String,
    /// The recomputed value.
    pub recomputed: String,
}

impl Mismatch {
    /// The mismatch of a line.
    #[must_use]
    pub fn new(
        line: impl Into<String>,
        reported: &dyn ToString,
        recomputed: &dyn ToString,
    ) -> Self {
        Self {
            line: line.into(),
            reported: reported.to_string(),
            recomputed: recomputed.to_string(),
        }
    }
}

/// Returns the mismatches of `report` with its offer, the previous report and its own scores, in
/// order. The last argument are the holdout rows that earlier rounds disclosed. Does not verify the
/// scores themselves: that requires the rows.
///
/// ```text
/// offer, report before ──┐
/// commits, entries ──────┼─► close_round ─► a report ─► compared, field by field
/// scores, metrics ───────┘
/// ```
#[must_use]
pub fn check_report(
    spec: &TaskSpec,
    offer: &Offer,
    report: &Report,
    before: Option<&Report>,
    disclosed: &[u32],
) -> Vec<Mismatch> {
    let mut found = check_continuity(spec, offer, report, before);
    found.extend(check_draw(spec, report, disclosed));
    if !found.is_empty() {
        return found;
    }
    let stated = match (&report.outcome, &report.valuation, report.metrics) {
        (RoundOutcome::Abandoned(reason), ..) => Err(*reason),
        (RoundOutcome::Settled | RoundOutcome::Void(_), Some(valuation), Some(metrics)) => {
            let (valuation, model) = (valuation.clone(), report.model);
            Ok(WorkResult { valuation, baseline: report.baseline, metrics, model })
        }
        (RoundOutcome::Settled | RoundOutcome::Void(_), ..) => {
            return vec![Mismatch::new("valuation", &"absent", &"required in a valued round")];
        }
    };
    let work: Vec<_> =
        report.infrastructure.iter().map(|line| (line.provider, line.record, line.units)).collect();
    let closed = close_round(&ReportInputs {
        spec,
        offer,
        previous_report: before,
        commits: &report.commits,
        entries: &report.entries,
        times: &report.times,
        missing: &report.missing,
        holdout_rows: &report.holdout.rows,
        result: stated.as_ref().map_err(|reason| *reason),
        verified_work: &work,
    });
    match closed {
        Ok(ours) => match (serde_json::to_value(report), serde_json::to_value(&ours)) {
            (Ok(reported), Ok(ours)) => {
                compare_json(String::new(), &reported, &ours, &mut found);
            }
            (Err(error), _) | (_, Err(error)) => {
                found.push(Mismatch::new("report", &"readable", &error));
            }
        },
        Err(error) => found.push(Mismatch::new("lines", &"paid", &error)),
    }
    found
}

/// Checks that offer and report belong together and continue the previous report.
fn check_continuity(
    spec: &TaskSpec,
    offer: &Offer,
    report: &Report,
    before: Option<&Report>,
) -> Vec<Mismatch> {
    let previous = before.map_or(Digest(spec.id().0), Report::digest);
    let base = before.map_or(spec.base_model, |report| report.model);
    let table = [
        ("offer.previous_report", offer.previous_report, previous),
        ("offer.base_model", offer.base_model, base),
        ("previous_report", report.previous_report, previous),
        ("base_model", report.base_model, base),
        ("offer", report.offer, offer.digest()),
    ];
    let wrong = table.iter().filter(|(_, reported, ours)| reported != ours);
    let mut found: Vec<Mismatch> =
        wrong.map(|(line, reported, ours)| Mismatch::new(*line, reported, ours)).collect();
    found.extend(check_cohort(spec, offer, report, before));
    found
}

/// Checks that the offer's pool is what the task has left for the round, and that the report
/// accounts for every member of its cohort.
fn check_cohort(
    spec: &TaskSpec,
    offer: &Offer,
    report: &Report,
    before: Option<&Report>,
) -> Vec<Mismatch> {
    let mut found = Vec::new();
    let pool = spec.pool_for_round(report.scope.round, before);
    let pool = pool.map_or_else(|error| error.to_string(), |pool| pool.to_string());
    if offer.pool.to_string() != pool {
        found.push(Mismatch::new("offer.pool", &offer.pool, &pool));
    }
    let asked = usize::try_from(spec.rounds.selection_size()).unwrap_or(usize::MAX);
    let mut members: Vec<_> = report.entries.iter().map(|entry| entry.sender).collect();
    members.extend(report.missing.iter().map(|(sender, _)| *sender));
    members.sort_unstable();
    let enough = spec.has_quorum(report.entries.len()) || !report.outcome.is_valued();
    let ascending = offer.cohort.is_sorted_by(|a, b| a < b);
    let rules = [
        ("offer.cohort ascending and within the size limit", {
            ascending && offer.cohort.len() <= asked
        }),
        ("entries and missing are the cohort", members == offer.cohort),
        ("entries are at least cohort_min", enough),
        ("entries ascending by sender", {
            report.entries.is_sorted_by(|a, b| a.sender < b.sender)
        }),
    ];
    found.extend(
        rules.iter().filter(|rule| !rule.1).map(|rule| Mismatch::new(rule.0, &false, &true)),
    );
    for (i, entry) in report.entries.iter().enumerate() {
        let counted = spec.rows_counted(entry.rows_declared, entry.bond);
        if entry.rows_counted != counted {
            let line = format!("entries[{i}].rows_counted");
            found.push(Mismatch::new(line, &entry.rows_counted, &counted));
        }
    }
    found
}

/// Checks the draw of a round's validation rows: the seed is derived from the round's messages, and
/// the rows are those drawn by it from the rows that no earlier round used. `exposed` is the rows
/// of all earlier rounds. Returns the differences.
#[must_use]
pub fn check_draw(spec: &TaskSpec, report: &Report, exposed: &[u32]) -> Vec<Mismatch> {
    let mut found = Vec::new();
    let stated = &report.holdout;
    let seed = round_seed(report.scope, &report.commits, &report.entries);
    if stated.seed != seed {
        found.push(Mismatch::new("holdout.seed", &stated.seed, &seed));
    }
    let drawn = match spec.has_quorum(report.entries.len()) {
        true => draw_rows(&spec.holdout, exposed, seed),
        false => Ok(Vec::new()),
    };
    let drawn = match drawn {
        Ok(drawn) => drawn,
        Err(error) => {
            found.push(Mismatch::new(
                "holdout.rows",
                &format!("{} rows", stated.rows.len()),
                &error,
            ));
            return found;
        }
    };
    if stated.rows.len() != drawn.len() {
        let rows = |rows: &[u32]| format!("{} rows", rows.len());
        found.push(Mismatch::new("holdout.rows", &rows(&stated.rows), &rows(&drawn)));
    }
    let mut pairs = stated.rows.iter().zip(&drawn).enumerate();
    if let Some((at, (stated, ours))) = pairs.find(|(_, (stated, ours))| stated != ours) {
        let again = if exposed.contains(stated) { ", disclosed in an earlier round" } else { "" };
        let reported = format!("row {stated}{again}");
        found.push(Mismatch::new(format!("holdout.rows[{at}]"), &reported, &format!("row {ours}")));
    }
    found
}

/// Compares two JSON values, and appends a mismatch for every leaf that differs.
fn compare_json(line: String, reported: &Value, ours: &Value, found: &mut Vec<Mismatch>) {
    match (reported, ours) {
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
            for (key, value) in a {
                let line = if line.is_empty() { key.clone() } else { format!("{line}.{key}") };
                compare_json(line, value, b.get(key).unwrap_or(&Value::Null), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                compare_json(format!("{line}[{i}]"), a, b, found);
            }
        }
        (a, b) if a != b => found.push(Mismatch::new(line, a, b)),
        _ => {}
    }
}
