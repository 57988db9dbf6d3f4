//! A task that a client can serve, and the parts of it that stay.

use florin_protocol::{Amount, TaskSpec};

use super::plan::OpenTask;
use super::prediction::TaskPrediction;

/// Longest name of a task in messages, in characters.
const NAME_CHARS_MAX: usize = 40;

/// A task that the client can serve.
#[derive(Clone, Debug)]
pub struct TaskFacts {
    /// Its specification.
    pub spec: TaskSpec,
    /// Its name, without characters that change a terminal.
    pub name: String,
    /// The set of rows: its place in the policy.
    pub data: usize,
    /// Whether no more rounds start.
    pub is_over: bool,
    /// The predicted pay.
    pub prediction: TaskPrediction,
    /// The bond with which the first row counts.
    pub bond_least: Amount,
    /// The bond for all rows.
    pub bond_wanted: Amount,
}

impl TaskFacts {
    /// The inputs of a plan.
    pub(super) fn open_task(&self) -> OpenTask {
        let Self { bond_least, bond_wanted, .. } = *self;
        let per_hour = self.prediction.per_hour;
        OpenTask { task: self.spec.id(), per_hour, bond_least, bond_wanted }
    }
}

/// A name without control characters and marks that change the direction of a text, shortened.
pub(super) fn printable(name: &str) -> String {
    let changes = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || c == '\u{feff}'
    };
    let shown = name.chars().map(|c| if changes(c) { '\u{fffd}' } else { c });
    shown.take(NAME_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_changes_no_terminal() {
        assert_eq!(printable("a\u{1b}[2J\nb\u{202e}c"), "a\u{fffd}[2J\u{fffd}b\u{fffd}c");
        assert_eq!(printable(&"é".repeat(100)).chars().count(), NAME_CHARS_MAX);
    }
}
