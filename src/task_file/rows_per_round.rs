//! Number of holdout rows that a round needs for significant scores.

/// Fewest rows of a round, for the estimate of a standard error.
const ROWS_MIN: u32 = 8;
/// Standard errors by which the first rounds' scores should exceed 0: `budget.confidence_z` of the
/// template, and as much again, so that chance rarely withholds an honest score.
const STANDARD_ERRORS: u32 = 4;
/// Most rounds of a task whose file a program writes.
pub(crate) const ROUNDS_MAX: u32 = 10;
/// Fewest rounds, if the rows allow them: averaged updates need some rounds to converge.
const ROUNDS_MIN: u32 = 5;

/// Rows per round for a holdout of `rows` rows: those that the power calculation asks for, at most an
/// equal part of the rows, at least [`ROWS_MIN`] if the rows allow it.
///
/// A score is a mean over n rows, so its standard error is s·φ/√n, where s is the ratio of the
/// standard deviation between rows to the mean φ. It exceeds k standard errors if n ≥ (k·s)². In the
/// first rounds the improvement of a row depends on whether its class is among those that the update
/// has improved. An update that improves one of C classes, the least that an honest participant
/// does, has s² = C − 1. Rows of an improved class differ by about as much as their mean, which adds
/// C: n = k²·(2C − 1). For many classes an update improves several, so C counts at most as
/// [`CLASSES_COUNTED_MAX`].
pub(crate) fn rows_per_round(rows: u32, classes: u32, rounds: u32) -> u32 {
    let share = rows.checked_div(rounds).unwrap_or_default();
    rows_needed(classes).max(ROWS_MIN).min(share)
}

/// Most classes that the power calculation counts.
const CLASSES_COUNTED_MAX: u32 = 10;

fn rows_needed(classes: u32) -> u32 {
    STANDARD_ERRORS.pow(2) * (2 * classes.clamp(2, CLASSES_COUNTED_MAX) - 1)
}

/// The number of rounds of a holdout of `rows` rows: as many as have the rows that they need, within
/// the limits. Scores accumulate over the rounds, and so do their rows: a task of more and shorter
/// rounds pays honest work later, and not less.
pub(crate) fn rounds_for(rows: u32, classes: u32) -> u32 {
    let rounds = (rows / rows_needed(classes).max(ROWS_MIN)).clamp(ROUNDS_MIN, ROUNDS_MAX);
    rounds.min(rows / ROWS_MIN).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_gets_the_rows_that_it_needs_and_never_more_than_its_part() {
        for (rows, classes, rounds, expected) in [
            (10_000, 2, 10, 48),
            (10_000, 3, 10, 80),
            (10_000, 10, 10, 304),
            (10_000, 1_000, 10, 304),
            (114, 2, 3, 38),
            (36, 3, 3, 12),
            (20, 2, 10, 2),
        ] {
            assert_eq!(rows_per_round(rows, classes, rounds), expected, "{rows} rows");
        }
        assert_eq!(rows_per_round(10, 2, 0), 0, "no rounds, no rows");
    }

    #[test]
    fn a_small_holdout_has_fewer_rounds() {
        for (rows, classes, expected) in
            [(10_000, 10, 10), (114, 2, 5), (288, 2, 6), (36, 3, 4), (9, 2, 1)]
        {
            assert_eq!(rounds_for(rows, classes), expected, "{rows} rows");
        }
    }
}
