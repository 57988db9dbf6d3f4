//! The keys `rounds.selection`, `rounds.deadline` and `rounds.mode` of a task file.

use florin_protocol::limits::COHORT_MAX;
use florin_protocol::{
    DeadlineRule, Micro, STALENESS_ROUNDS_MAX, Selection, SelectionKnob, StalenessRule,
    StalenessWeight,
};
use serde::Deserialize;

use super::{Decimal, TaskFileError};

/// The share of places that explore, unless the file names one.
const EXPLORE: Micro = Micro(100_000);
/// The slack of a predicted deadline, unless the file names one.
const SLACK: Micro = Micro(1_500_000);
/// The most rounds by which an update may be late, unless the file names them.
const LATE_ROUNDS: u32 = 1;
const LATE_ROUNDS_BUFFERED: u32 = 8;
/// How many participants train at the same time for each update of a version, unless the file names
/// their number.
const CONCURRENCY_FACTOR: u32 = 3;

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

/// `mode = { kind = "buffered", k = 10, concurrency = 30, staleness = "inverse_root" }`
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub(super) enum ModeSection {
    Synchronous {
        staleness: Option<StalenessWeight>,
        late_rounds: Option<u32>,
    },
    Buffered {
        k: Option<u32>,
        concurrency: Option<u32>,
        staleness: Option<StalenessWeight>,
        late_rounds: Option<u32>,
    },
}

/// The numbers of participants of a round, and how late updates count.
pub(super) struct RoundMode {
    pub(super) target: u32,
    pub(super) over_selection: u32,
    pub(super) staleness: StalenessRule,
}

impl ModeSection {
    /// The rules of the mode, given `cohort_min`, `cohort_target` and `over_selection`.
    pub(super) fn rules(
        self,
        (least, target, over_selection): (u32, u32, u32),
    ) -> Result<RoundMode, TaskFileError> {
        match self {
            Self::Synchronous { staleness, late_rounds } => {
                let rounds = match (staleness, late_rounds) {
                    (None, None) => 0,
                    (_, rounds) => rounds.unwrap_or(LATE_ROUNDS),
                };
                if staleness.is_some() && rounds == 0 {
                    let right = "at least 1, or leave out staleness: no late update counts";
                    return Err(TaskFileError::key("rounds.mode.late_rounds", "0", right));
                }
                let staleness = staleness_rule(rounds, staleness)?;
                Ok(RoundMode { target, over_selection, staleness })
            }
            Self::Buffered { k, concurrency, staleness, late_rounds } => {
                let target = k.unwrap_or(target);
                if target < least {
                    let right = format!("at least rounds.cohort_min = {least}");
                    return Err(TaskFileError::key("rounds.mode.k", target.to_string(), right));
                }
                let concurrency = concurrency.unwrap_or(target.saturating_mul(CONCURRENCY_FACTOR));
                let Some(over_selection) = concurrency.checked_sub(target) else {
                    let right = format!(
                        "at least the {target} updates of a version: the number of participants that \
                         train at the same time"
                    );
                    let value = concurrency.to_string();
                    return Err(TaskFileError::key("rounds.mode.concurrency", value, right));
                };
                if concurrency > COHORT_MAX {
                    let right = format!("at most {COHORT_MAX} participants");
                    let value = concurrency.to_string();
                    return Err(TaskFileError::key("rounds.mode.concurrency", value, right));
                }
                let rounds = late_rounds.unwrap_or(LATE_ROUNDS_BUFFERED);
                if rounds == 0 {
                    let right = "at least 1: a buffered round goes on without slow participants";
                    return Err(TaskFileError::key("rounds.mode.late_rounds", "0", right));
                }
                let staleness = staleness_rule(rounds, staleness)?;
                Ok(RoundMode { target, over_selection, staleness })
            }
        }
    }
}

fn staleness_rule(
    rounds: u32,
    weight: Option<StalenessWeight>,
) -> Result<StalenessRule, TaskFileError> {
    if rounds > STALENESS_ROUNDS_MAX {
        let right = format!("at most {STALENESS_ROUNDS_MAX} rounds");
        return Err(TaskFileError::key("rounds.mode.late_rounds", rounds.to_string(), right));
    }
    Ok(StalenessRule { rounds, weight: weight.unwrap_or_default() })
}
