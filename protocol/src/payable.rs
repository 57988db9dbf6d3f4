//! Settings by which honest work is practically never paid, as far as the specification alone shows
//! them. The coordinator refuses such a task, and a participant can check it without the holdout.
//!
//! A score is paid once it exceeds `confidence_z` standard errors. Members whose scores never do so
//! train a model for nothing. Whether they do also depends on the rows and the model, which the
//! buyer's program measures; the rules here refuse only settings that no honest buyer needs.

use crate::micro::Micro;
use crate::spec_error::{SpecError, require, spec_error};
use crate::task::TaskSpec;

/// The highest confidence threshold: noise exceeds four standard errors once in 30,000 scores.
pub const CONFIDENCE_Z_MAX: Micro = Micro(4_000_000);

/// With fewer rows a round, the standard error of a score is itself uncertain by a quarter or more,
/// and a high threshold depends on chance.
pub const FEW_ROWS: u32 = 8;

/// The highest confidence threshold with fewer than [`FEW_ROWS`] rows a round.
pub const FEW_ROWS_Z_MAX: Micro = Micro(3_000_000);

/// The floor share below which a task has practically no floor, the pay for work whose scores do not
/// differ from noise.
pub const FLOOR_SHARE_MIN: Micro = Micro(100_000);

/// The highest confidence threshold with fewer than [`FEW_ROWS`] rows a round and a floor share below
/// [`FLOOR_SHARE_MIN`].
pub const FEW_ROWS_WITHOUT_FLOOR_Z_MAX: Micro = Micro(1_000_000);

impl TaskSpec {
    /// Checks that the settings do not exclude pay for honest work. [`TaskSpec::check`] includes it.
    ///
    /// # Errors
    /// The first [`SpecError`], with the key, its value and what is valid.
    pub fn check_pay(&self) -> Result<(), SpecError> {
        let (z, rows) = (self.budget.confidence_z, self.holdout.rows_per_round);
        require(
            z <= CONFIDENCE_Z_MAX,
            "budget.confidence_z",
            z,
            "use 0 to 4 standard errors: with more, honest work is not paid; 2 is the default",
        )?;
        if rows >= FEW_ROWS {
            return Ok(());
        }
        if z > FEW_ROWS_Z_MAX {
            let right = format!(
                "with budget.confidence_z = {z}, use at least {FEW_ROWS} rows per round: the \
                 standard errors of fewer rows exceed every honest score; or lower it to \
                 {FEW_ROWS_Z_MAX}"
            );
            return Err(spec_error("holdout.rows_per_round", rows, right));
        }
        if self.budget.floor_share < FLOOR_SHARE_MIN && z > FEW_ROWS_WITHOUT_FLOOR_Z_MAX {
            let right = format!(
                "with {rows} rows per round and budget.confidence_z = {z}, honest work is not paid \
                 without a floor: set it to {FLOOR_SHARE_MIN} or more, use at least {FEW_ROWS} rows \
                 per round, or lower budget.confidence_z to {FEW_ROWS_WITHOUT_FLOOR_Z_MAX}"
            );
            return Err(spec_error("budget.floor_share", self.budget.floor_share, right));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key that is refused for these rows per round, z and floor share in millionths.
    fn refused(rows: u32, z: u64, floor: u64) -> Option<&'static str> {
        let mut spec = TaskSpec::example();
        spec.holdout.rows_per_round = rows;
        (spec.budget.confidence_z, spec.budget.floor_share) = (Micro(z), Micro(floor));
        let error = spec.check_pay().err();
        assert_eq!(spec.check(), error.clone().map_or(Ok(()), Err), "check() includes it");
        error.map(|error| error.key)
    }

    #[test]
    fn settings_without_pay_for_honest_work_are_refused() {
        let (z, rows, floor) = (
            Some("budget.confidence_z"),
            Some("holdout.rows_per_round"),
            Some("budget.floor_share"),
        );
        for (per_round, confidence_z, floor_share, key) in [
            (36, 4_000_000, 0, None),
            (36, 4_000_001, 1_000_000, z),
            (2, 10_000_000, 200_000, z),
            (8, 4_000_000, 0, None),
            (7, 3_000_001, 200_000, rows),
            (7, 3_000_000, 200_000, None),
            (7, 3_000_000, 0, floor),
            (2, 1_000_001, 0, floor),
            (2, 1_000_000, 0, None),
            (2, 2_000_000, 99_999, floor),
            (2, 2_000_000, 100_000, None),
        ] {
            let found = refused(per_round, confidence_z, floor_share);
            assert_eq!(found, key, "{per_round} rows, z {confidence_z}, floor {floor_share}");
        }
    }
}
