//! Late updates: trained from the base model of an earlier round, they count in a later one.
//!
//! With a rule that admits them, a participant that is still training when a round's commits end
//! stays in the next cohort, and its update is valued against the model to which it is added. A
//! task whose cohort is much larger than its target number of updates so runs buffered asynchronous
//! rounds: every `cohort_target` updates make a version of the model (FedBuff, AISTATS 2022).

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::id::Digest;
use crate::spec_error::{SpecError, require};

/// Most rounds by which an update may be late.
pub const STALENESS_ROUNDS_MAX: u32 = 64;

/// How late updates count. By default none does.
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
pub struct StalenessRule {
    /// Most rounds by which an update may be late, at most [`STALENESS_ROUNDS_MAX`]; 0 for none.
    pub rounds: u32,
    /// How its weight falls with its staleness.
    pub weight: StalenessWeight,
}

/// The factor of a stale update's weight. Its staleness τ is the number of versions of the model
/// since its sender was selected: reports prove it. The model that the sender names does not count,
/// because a false name would raise the weight.
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
pub enum StalenessWeight {
    /// 1.
    Equal,
    /// 1 / √(1 + τ), as in FedBuff (Nguyen et al., 2022).
    #[default]
    InverseRoot,
    /// 1 / (1 + τ).
    Inverse,
}

impl StalenessWeight {
    /// All weights.
    pub const ALL: [Self; 3] = [Self::Equal, Self::InverseRoot, Self::Inverse];

    /// Its name in task files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::InverseRoot => "inverse_root",
            Self::Inverse => "inverse",
        }
    }

    /// The weight of an update of `rows` counted rows, rounded down; at least 1 if it has any.
    #[must_use]
    pub fn weigh(self, rows: u64, staleness: u32) -> u64 {
        let versions = u64::from(staleness).saturating_add(1);
        let weight = match self {
            Self::Equal => rows,
            Self::Inverse => rows.checked_div(versions).unwrap_or_default(),
            Self::InverseRoot => {
                let square = u128::from(rows).saturating_mul(rows.into());
                let part = square.checked_div(versions.into()).unwrap_or_default();
                u64::try_from(part.isqrt()).unwrap_or(rows)
            }
        };
        weight.max(rows.min(1))
    }
}

impl StalenessRule {
    /// Whether late updates count.
    #[must_use]
    pub const fn admits_late(self) -> bool {
        self.rounds > 0
    }

    /// Whether a round accepts an update that was trained from the model `from`. `current` is the base
    /// model of the round, and `earlier` has those of the rounds before it, the latest first.
    #[must_use]
    pub fn accepts(
        self,
        from: Digest,
        current: Digest,
        earlier: impl IntoIterator<Item = Digest>,
    ) -> bool {
        let rounds = usize::try_from(self.rounds).unwrap_or(usize::MAX);
        from == current || earlier.into_iter().take(rounds).any(|base| base == from)
    }

    pub(crate) fn check(self) -> Result<(), SpecError> {
        require(
            self.rounds <= STALENESS_ROUNDS_MAX,
            "rounds.staleness.rounds",
            self.rounds,
            "use 0 (no late updates) to 64 rounds",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_fall_with_the_staleness_and_never_to_zero() {
        use StalenessWeight::{Equal, Inverse, InverseRoot};
        let table = [
            (Equal, 100, 9, 100),
            (Inverse, 100, 0, 100),
            (Inverse, 100, 1, 50),
            (Inverse, 100, 2, 33),
            (Inverse, 3, 9, 1),
            (Inverse, 0, 9, 0),
            (InverseRoot, 100, 0, 100),
            (InverseRoot, 100, 1, 70),
            (InverseRoot, 100, 3, 50),
            (InverseRoot, 1, 63, 1),
            (InverseRoot, 0, 63, 0),
            (InverseRoot, u64::MAX, 0, u64::MAX),
        ];
        for (weight, rows, staleness, expected) in table {
            assert_eq!(weight.weigh(rows, staleness), expected, "{weight:?} {rows} {staleness}");
        }
    }

    #[test]
    fn the_base_models_of_the_last_rounds_are_accepted() {
        let [one, two, three] = [1, 2, 3].map(|byte| Digest([byte; 32]));
        // The round before last changed nothing.
        let earlier = [two, two, one];
        let of = |rounds, from| {
            StalenessRule { rounds, weight: StalenessWeight::Equal }.accepts(from, three, earlier)
        };
        assert_eq!([0, 1, 2, 3].map(|rounds| of(rounds, three)), [true; 4]);
        assert_eq!([0, 1, 2, 3].map(|rounds| of(rounds, two)), [false, true, true, true]);
        assert_eq!([0, 1, 2, 3].map(|rounds| of(rounds, one)), [false, false, false, true]);
        assert!(!of(64, Digest([9; 32])));
    }
}
