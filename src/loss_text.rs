//! The loss and the accuracy of a task, as text.

use florin_protocol::{ModelArchitecture, TaskSpec};

use crate::show::accuracy;

/// The unit of a task's loss.
pub(crate) fn loss_unit(spec: &TaskSpec) -> &'static str {
    if is_in_nats(spec) { "nat" } else { "unit of loss" }
}

/// The unit of a task's loss behind a number.
pub(crate) fn loss_units(spec: &TaskSpec) -> &'static str {
    if is_in_nats(spec) { "nats" } else { "units of loss" }
}

/// Whether a task's loss is a cross-entropy, in nats.
pub(crate) const fn is_in_nats(spec: &TaskSpec) -> bool {
    match &spec.model {
        ModelArchitecture::Graph(graph) => graph.loss.is_in_nats(),
        _ => true,
    }
}

/// The share of correct predictions of a task; a dash if its loss has none.
pub(crate) fn accuracy_of(spec: &TaskSpec, correct: u32, rows: u32) -> String {
    if has_predictions(spec) { accuracy(correct, rows) } else { "–".to_owned() }
}

/// Whether a task's predictions are right or wrong.
pub(crate) fn has_predictions(spec: &TaskSpec) -> bool {
    match &spec.model {
        ModelArchitecture::Graph(graph) => graph.loss.has_predictions(),
        _ => true,
    }
}
