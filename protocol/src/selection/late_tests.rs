//! Trainings that go on after their round: places, times and failures.

use super::super::tests::{account, candidates, report, rules};
use super::*;
use crate::message::MissingReason;
use crate::staleness::StalenessWeight;
use crate::{
    DeadlineRule, Micro, RoundRules, SelectionKnob, SelectionReason, Standing, commit_deadline_ms,
    select_cohort,
};

const SILENT: MissingReason = MissingReason::NoCommit;

fn late(rounds: u32) -> StalenessRule {
    StalenessRule { rounds, weight: StalenessWeight::Equal }
}

/// A round of this number that opened a second after the one before it. Its commits end after
/// `closed` of 100 milliseconds.
fn round(
    number: u32,
    closed: u64,
    commits: &[(u8, u64)],
    missing: &[(u8, MissingReason)],
) -> Report {
    let mut one = report(closed, commits, missing);
    one.scope.round = RoundNumber(number);
    let later = |at: Timestamp| at.saturating_add_ms(1_000 * u64::from(number));
    let times = &mut one.times;
    (times.opened, times.commit_by) = (later(times.opened), later(times.commit_by));
    times.commits_closed = later(times.commits_closed);
    times.commits.iter_mut().for_each(|at| *at = later(*at));
    one
}

fn figures(history: &TaskHistory, number: u8) -> (u32, u32, u32, u64, Option<u32>) {
    let member = history.member(account(number));
    let since = member.ongoing.map(|ongoing| ongoing.since.0);
    (member.selected, member.delivered, member.failed, member.commit_ms, since)
}

#[test]
fn a_training_that_goes_on_is_one_selection_with_one_time() {
    let mut history = TaskHistory::default();
    history.add_round(late(2), &round(1, 40, &[(1, 40)], &[(2, SILENT)]));
    assert_eq!(figures(&history, 1), (1, 1, 0, 40, None));
    assert_eq!(figures(&history, 2), (1, 0, 0, 40, Some(1)), "at least this slow");
    history.add_round(late(2), &round(2, 40, &[(3, 40)], &[(2, SILENT)]));
    assert_eq!(figures(&history, 2), (1, 0, 0, 1_040, Some(1)), "from the first offer");
    history.add_round(late(2), &round(3, 40, &[(2, 20)], &[]));
    // (3 · 1040 + 2020) / 4
    assert_eq!(figures(&history, 2), (1, 1, 0, 1_285, None));
    assert_eq!(history.member(account(2)).last_selected, 1);
}

#[test]
fn a_training_that_is_too_old_fails_also_if_commits_ended_early() {
    for closed in [40, 101] {
        let mut history = TaskHistory::default();
        history.add_round(late(1), &round(1, closed, &[(1, 40)], &[(2, SILENT)]));
        assert_eq!(figures(&history, 2).4, Some(1));
        assert!(!history.may_continue(late(1), account(2), RoundNumber(2)));
        assert!(history.may_continue(late(1), account(9), RoundNumber(2)));
        history.add_round(late(1), &round(2, closed, &[(1, 40)], &[(2, SILENT)]));
        let (selected, _, failed, _, since) = figures(&history, 2);
        assert_eq!((selected, failed, since), (1, 1, None), "{closed}");
    }
}

#[test]
fn a_training_ends_with_any_other_reason_and_outside_of_the_cohort() {
    let rejected = MissingReason::Rejected(crate::ErrorCode::Truncated);
    for reason in [MissingReason::NoReveal, rejected] {
        let mut history = TaskHistory::default();
        history.add_round(late(9), &round(1, 40, &[(1, 40), (2, 40)], &[(2, reason)]));
        let (_, _, failed, _, since) = figures(&history, 2);
        assert_eq!((failed, since), (1, None), "{reason:?}");
    }
    let mut history = TaskHistory::default();
    history.add_round(late(9), &round(1, 40, &[(1, 40)], &[(2, SILENT)]));
    history.add_round(late(9), &round(2, 40, &[(1, 40)], &[]));
    assert_eq!(figures(&history, 2), (1, 0, 0, 40, None));
}

#[test]
fn trainings_that_go_on_have_the_first_places() {
    let all = candidates(7, |_| 0);
    for knob in SelectionKnob::ALL {
        let rules = RoundRules { staleness: late(3), ..rules(knob) };
        let mut history = TaskHistory::default();
        let silent: Vec<(u8, MissingReason)> = (10..18).map(|number| (number, SILENT)).collect();
        history.add_round(rules.staleness, &round(1, 40, &[(1, 40), (2, 40)], &silent));
        let mut some = all.clone();
        for (number, standing) in [(10, Standing::BondTooSmall), (11, Standing::Newcomer)] {
            some.accounts.get_mut(&account(number)).unwrap().standing = standing;
        }
        let cohort = select_cohort(&rules, RoundNumber(2), &some, &history);
        assert_eq!(cohort.len(), 15, "{knob:?}: all places are taken");
        let goes_on = cohort.iter().filter(|one| one.reason == SelectionReason::Continues);
        let goes_on: Vec<Address> = goes_on.map(|one| one.account).collect();
        assert_eq!(goes_on, (11..18).map(account).collect::<Vec<_>>(), "{knob:?}");
        assert!(cohort.is_sorted_by(|a, b| a.account < b.account), "{knob:?}");
    }
}

#[test]
fn a_deadline_counts_the_trainings_that_begin() {
    let rules = RoundRules {
        staleness: late(3),
        train_ms: 1_600,
        deadline: DeadlineRule::Predicted { quantile: Micro::ONE, slack: Micro::ONE },
        ..rules(SelectionKnob::Fast)
    };
    let mut history = TaskHistory::default();
    history.add_round(rules.staleness, &round(1, 101, &[(1, 90)], &[(2, SILENT), (3, SILENT)]));
    history.add_round(rules.staleness, &round(2, 101, &[(2, 90)], &[(3, SILENT)]));
    let all = candidates(7, |_| 0);
    let of = |cohort: &[u8]| {
        let cohort: Vec<Address> = cohort.iter().copied().map(account).collect();
        commit_deadline_ms(&rules, RoundNumber(3), &all, &history, &cohort)
    };
    assert_eq!(of(&[1]), 100, "a sixteenth of the task's time");
    // (3 · 100 + 1090) / 4
    assert_eq!(of(&[1, 2]), 347);
    assert_eq!(of(&[1, 3]), 100, "the training of 3 goes on");
    assert_eq!(of(&[3]), 1_600);
}
