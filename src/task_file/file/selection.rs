//! The keys `rounds.selection` and `rounds.deadline` of a task file.

use florin_protocol::{DeadlineRule, Micro, Selection, SelectionKnob};
use serde::Deserialize;

use super::Decimal;

/// The share of places that explore, unless the file names one.
const EXPLORE: Micro = Micro(100_000);
/// The slack of a predicted deadline, unless the file names one.
const SLACK: Micro = Micro(1_500_000);

/// `selection = { knob = "fast", explore = 0.1 }`
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SelectionSection {
    knob: SelectionKnob,
    explore: Option<Decimal>,
}

impl SelectionSection {
    pub(super) fn rule(self) -> Selection {
        let default = if self.knob == SelectionKnob::Random { Micro::ZERO } else { EXPLORE };
        Selection { knob: self.knob, explore: self.explore.map_or(default, |share| share.0) }
    }
}

/// `deadline = { quantile = 0.9, slack = 1.5 }`
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeadlineSection {
    quantile: Decimal,
    slack: Option<Decimal>,
}

impl DeadlineSection {
    pub(super) fn rule(self) -> DeadlineRule {
        let slack = self.slack.map_or(SLACK, |slack| slack.0);
        DeadlineRule::Predicted { quantile: self.quantile.0, slack }
    }
}
