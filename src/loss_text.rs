//! The loss and the accuracy of a task, as text.

use florin_protocol::TaskSpec;

use crate::show::accuracy;

/// The unit of a task's loss.
pub(crate) fn loss_unit(spec: &TaskSpec) -> &'static str {
    if spec.model.is_loss_in_nats() { "nat" } else { "unit of loss" }
}

/// The unit of a task's loss behind a number.
pub(crate) fn loss_units(spec: &TaskSpec) -> &'static str {
    if spec.model.is_loss_in_nats() { "nats" } else { "units of loss" }
}

/// The share of correct predictions of a task; a dash if its loss has none.
pub(crate) fn accuracy_of(spec: &TaskSpec, correct: u32, rows: u32) -> String {
    if spec.model.has_predictions() { accuracy(correct, rows) } else { "–".to_owned() }
}
