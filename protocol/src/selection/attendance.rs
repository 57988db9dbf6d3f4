//! How many participants a round asks so that enough of them commit, where members are away.
//!
//! A round that waited for its deadline shows which part of its cohort commits; one that ended early shows that
//! enough were asked. So the number for each commit follows the first at once, with a margin, and falls slowly
//! after the second. Nothing depends on who is away, so that no participant is judged by it.

use borsh::{BorshDeserialize, BorshSerialize};

use crate::message::{AbandonReason, RoundOutcome};
use crate::report::Report;

/// Parts of a participant.
const PARTS: u64 = 256;
/// Most participants that are asked for each commit.
const ASKED_MAX: u64 = 16;
/// After a deadline this many halves of those that would have sufficed are asked: members come and go.
const MARGIN_HALVES: u64 = 3;
/// After a round that ended early the number falls by one part of this many.
const DECAY: u64 = 32;

/// The number of participants that are asked for each commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct Attendance {
    /// In parts of [`PARTS`]; fewer than one participant counts as one.
    asked: u64,
}

impl Attendance {
    /// How many participants to ask so that `wanted` commit, rounded up.
    pub(super) fn asked_for(self, wanted: u32) -> u64 {
        u64::from(wanted).saturating_mul(self.for_each()).div_ceil(PARTS)
    }

    fn for_each(self) -> u64 {
        self.asked.max(PARTS)
    }

    /// Adds a reported round that asked `cohort` participants. After a deadline with too few commits for a round
    /// the number doubles, and follows from nothing: the coordinator may have been away itself.
    pub(super) fn add_round(&mut self, report: &Report, cohort: usize) {
        if report.times.commits_closed < report.times.commit_by {
            self.asked = self.asked.saturating_sub(self.asked.div_ceil(DECAY));
            return;
        }
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let committed = count(report.commits.len());
        let needed = match report.outcome {
            RoundOutcome::Abandoned(AbandonReason::TooFewUpdates { needed, .. }) => needed,
            _ => 1,
        };
        let asked = if committed < needed.into() {
            self.for_each().saturating_mul(2)
        } else {
            let halves = count(cohort).saturating_mul(PARTS).saturating_mul(MARGIN_HALVES);
            halves.checked_div(committed.saturating_mul(2)).unwrap_or_default()
        };
        self.asked = asked.min(ASKED_MAX.saturating_mul(PARTS));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    const COHORT: usize = 26;

    /// The participants that are asked for 20 commits after rounds with a number of commits, that closed at a
    /// time; their deadline is 100.
    fn after(rounds: &[(u8, u64)]) -> u64 {
        let mut attendance = Attendance::default();
        for (commits, closed) in rounds {
            let commits: Vec<(u8, u64)> = (0..*commits).map(|number| (number, 1)).collect();
            attendance.add_round(&report(*closed, &commits, &[]), COHORT);
        }
        attendance.asked_for(20)
    }

    #[test]
    fn a_deadline_shows_how_many_would_have_sufficed() {
        assert_eq!(after(&[]), 20, "nothing is known");
        assert_eq!(after(&[(20, 99)]), 20, "enough were asked");
        // Half of the cohort commits: 40 would suffice, and a half more are asked.
        assert_eq!(after(&[(13, 100)]), 60);
        assert_eq!(after(&[(13, 101)]), 60);
        // 20 * 26 / 19 * 3 / 2 = 41.05, in parts of 256 rounded down before.
        assert_eq!(after(&[(19, 100)]), 42);
        // The last deadline counts alone.
        assert_eq!(after(&[(2, 100), (13, 100)]), 60);
        assert_eq!(after(&[(1, 100)]), 320, "at most 16 for each commit");
        // More commits than asked for are no part of a participant.
        assert_eq!(after(&[(200, 100)]), 20);
    }

    #[test]
    fn after_rounds_that_end_early_fewer_are_asked() {
        // 768 of 256 parts, then 744, 720, 697.
        assert_eq!(after(&[(13, 100), (20, 50)]), 59);
        assert_eq!(after(&[(13, 100), (20, 50), (20, 99)]), 57);
        assert_eq!(after(&[(13, 100), (20, 50), (20, 50), (20, 50)]), 55);
        let mut many = vec![(20, 50); 200];
        many.insert(0, (1, 100));
        assert_eq!(after(&many), 20);
    }

    /// The first commits of a round whose coordinator stopped then.
    #[test]
    fn too_few_commits_for_a_round_double_the_number() {
        let after = |commits: u8, needed: u32| {
            let commits: Vec<(u8, u64)> = (0..commits).map(|number| (number, 1)).collect();
            let mut report = report(100, &commits, &[]);
            let reason = AbandonReason::TooFewUpdates { got: 0, needed };
            report.outcome = RoundOutcome::Abandoned(reason);
            let mut attendance = Attendance::default();
            attendance.add_round(&report, COHORT);
            attendance.asked_for(20)
        };
        assert_eq!(after(4, 5), 40);
        // Enough commits, too few uploads.
        assert_eq!(after(5, 5), 156);
    }

    #[test]
    fn without_a_commit_twice_as_many_are_asked() {
        assert_eq!(after(&[(0, 100)]), 40);
        assert_eq!(after(&[(0, 100), (0, 100)]), 80);
        assert_eq!(after(&[(13, 100), (0, 100)]), 120);
        assert_eq!(after(&[(0, 100); 9]), 320);
    }
}
