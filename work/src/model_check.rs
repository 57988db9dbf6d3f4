//! Recomputation of a round's model without its scores.
//!
//! A participant trains from the model that the coordinator serves, and a chosen model can read rows
//! out of updates. This check takes the stated exclusions from the report and recomputes the rest:
//! the treatment of each update, the aggregate, and the step of the public baseline. It evaluates
//! no coalition, so it costs a small part of an audit.

use florin_protocol::{Mismatch, Valuation, blob_digest};

use crate::audit::{AuditInputs, check_inputs, stated_result};
use crate::codec::encode_parameters;
use crate::evaluations::PlainBaseline;
use crate::round::{DecodedRound, WorkError, compare_preprocessing};
use crate::round_model::{FinalParameters, aggregate_updates};

/// A round's model, as it follows from public bytes and the stated exclusions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCheck {
    /// The lines of the report that differ; empty if the stated model follows.
    pub mismatches: Vec<Mismatch>,
    /// Bytes of the recomputed model. `None` if the inputs differ from those that the report names,
    /// and in a round without a valuation, which does not change the model.
    pub model: Option<Vec<u8>>,
}

/// Recomputes the model of a round from its updates and disclosed rows. Does not verify scores and
/// exclusions: see [`audit_round`](crate::audit_round).
///
/// # Errors
/// [`WorkError`] if the inputs cannot be processed.
pub fn check_model(inputs: &AuditInputs<'_>) -> Result<ModelCheck, WorkError> {
    let (round, report) = (&inputs.round, inputs.report);
    let mut mismatches = check_inputs(inputs);
    let stated = stated_result(report).filter(|_| report.outcome.is_valued());
    let Some(stated) = stated.filter(|_| mismatches.is_empty()) else {
        if !report.outcome.is_valued() && report.model != report.base_model {
            mismatches.push(Mismatch::new("model", &report.model, &report.base_model));
        }
        return Ok(ModelCheck { mismatches, model: None });
    };
    let opened = DecodedRound::decode(round)?;
    if let Some(differs) = check_preprocessing(&opened, &stated.valuation) {
        return Ok(ModelCheck { mismatches: vec![differs], model: None });
    }
    let aggregate = aggregate_updates(round, &opened, &stated.valuation)?;
    let ours =
        FinalParameters::new(round, &opened, &stated.valuation, aggregate, &mut PlainBaseline)?;
    let model = encode_parameters(round.spec, &ours.params);
    if ours.baseline != stated.baseline {
        let (reported, ours) = (format!("{:?}", stated.baseline), format!("{:?}", ours.baseline));
        mismatches.push(Mismatch::new("baseline", &reported, &ours));
    }
    if blob_digest(&model) != stated.model {
        mismatches.push(Mismatch::new("model", &stated.model, &blob_digest(&model)));
    }
    Ok(ModelCheck { mismatches, model: Some(model) })
}

/// The first difference between the stated treatment of the updates and the recomputed one.
fn check_preprocessing(opened: &DecodedRound, stated: &Valuation) -> Option<Mismatch> {
    let (ours, scores) = (&opened.updates, &stated.scores);
    if scores.len() != ours.rows.len() {
        return Some(Mismatch::new("valuation.scores", &scores.len(), &ours.rows.len()));
    }
    scores.iter().enumerate().find_map(|(i, score)| {
        let line = format!("valuation.scores[{i}].preprocessing");
        compare_preprocessing(&line, ours.preprocessing(i), score.preprocessing).err().map(
            |differs| Mismatch {
                line: differs.line,
                reported: differs.stated,
                recomputed: differs.recomputed,
            },
        )
    })
}
