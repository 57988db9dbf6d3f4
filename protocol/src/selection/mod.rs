//! The selection of a round's cohort by the task's rule: each participant has a score from what
//! earlier rounds prove, and chance decides among the best and among the others.
//!
//! ```text
//! reports ─▶ history ─▶ levels ─▶ score ─▶ best by weighted chance ─┐
//! enrolled accounts ─▶ candidates ──────▶ others ─▶ explored by chance ─────┴▶ cohort, reasons
//! ```
//!
//! Everything is a function of public values, so that anyone recomputes a cohort: [`select_cohort`]
//! of the offer's candidates and of the [`TaskHistory`] of all earlier reports. Levels
//! are small integers: a coordinator that states a time or a score a little wrong changes none of
//! most participants.

mod attendance;
mod choose;
mod cohort;
mod complement;
mod deadline;
mod explain;
mod history;
mod levels;
mod race;
mod sharing;
#[cfg(test)]
mod tests;

pub use choose::{Selected, SelectionReason, asked_by_attendance, select_cohort};
pub use cohort::{draw_cohort, first_cohort_seed};
pub use deadline::{DeadlineRule, commit_deadline_ms};
pub use explain::{ExplainedCandidate, explain_cohort};
pub use history::{ClassHistory, MemberHistory, OngoingTraining, TaskHistory};
pub use levels::{SCORE_PARTS, ScorePart};
pub use sharing::{SharedTask, reserved_for_others};

use std::collections::BTreeMap;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::bytes::Canonical;
use crate::id::{Address, Digest, TaskId};
use crate::limits::ENROLLED_MAX;
use crate::micro::Micro;
use crate::spec_error::{SpecError, require};

/// The aim of a task's selection.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum SelectionKnob {
    /// Every eligible participant with the same probability.
    #[default]
    Random,
    /// Short rounds: fast and reliable participants, and those with large scores.
    Fast,
    /// Equal work: participants that were asked least often.
    FairWork,
    /// Equal accuracy over the participants' data: those whose updates still improve the model.
    FairAccuracy,
    /// A good final model: participants with large scores, and those that were not asked for long.
    Performance,
}

impl SelectionKnob {
    /// All knobs.
    pub const ALL: [Self; 5] =
        [Self::Random, Self::Fast, Self::FairWork, Self::FairAccuracy, Self::Performance];

    /// Whether it balances the classes of the members' data: reports have
    /// [`ClassEffects`](crate::ClassEffects) then.
    #[must_use]
    pub const fn reads_classes(self) -> bool {
        matches!(self, Self::FairAccuracy | Self::Performance)
    }

    /// Its name in task files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Fast => "fast",
            Self::FairWork => "fair_work",
            Self::FairAccuracy => "fair_accuracy",
            Self::Performance => "performance",
        }
    }
}

/// A task's rule of selection.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Selection {
    /// The aim.
    pub knob: SelectionKnob,
    /// Smallest share of the places for participants that are not among the best: from 0 to 1. Has
    /// no effect on random selection.
    pub explore: Micro,
}

impl Selection {
    pub(crate) fn check(self) -> Result<(), SpecError> {
        require(
            self.explore <= Micro::ONE,
            "rounds.selection.explore",
            self.explore,
            "must be from 0 to 1: 0.1 explores with a tenth of the places",
        )
    }
}

/// The part that an enrolled participant can have in the next round.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum Standing {
    /// It can be selected.
    Eligible,
    /// It enrolled when the seed may have been known: it takes places that the others leave.
    Newcomer,
    /// It sits this round out after it did not deliver: it is selected if the round could not start
    /// otherwise.
    Reserve,
    /// It did not deliver and has not enrolled again.
    Absent,
    /// Its bond is too small.
    BondTooSmall,
    /// It works for a round of this task, and for as many rounds as it stated to work on at a time.
    Busy(TaskId),
    /// It is left to this task, which needs it: this round has more than enough others.
    Reserved(TaskId),
}

/// An enrolled participant when a round opened.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Candidate {
    /// Its standing.
    pub standing: Standing,
    /// Its signed prediction of the time from an offer to its commit, in milliseconds; 0 for none.
    pub quote_ms: u64,
}

/// The public inputs of a cohort: with the task and all earlier rounds, the cohort follows from
/// them. An offer names their digest.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Candidates {
    /// The seed: that of the last round with an accepted update, or [`first_cohort_seed`].
    pub seed: Digest,
    /// Every enrolled participant.
    pub accounts: BTreeMap<Address, Candidate>,
}

impl Canonical for Candidates {
    const DOMAIN: &'static str = "florin v1 candidates";
}

impl Candidates {
    /// Whether their number is within the limit of a task.
    #[must_use]
    pub fn has_valid_length(&self) -> bool {
        self.accounts.len() <= ENROLLED_MAX
    }

    /// The participants with a standing, ascending.
    fn with(&self, standing: Standing) -> impl Iterator<Item = Address> + '_ {
        self.accounts
            .iter()
            .filter(move |(_, candidate)| candidate.standing == standing)
            .map(|(account, _)| *account)
    }
}
