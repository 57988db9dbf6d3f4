//! Cohorts by every knob: what decides them, and what does not.

use super::*;
use crate::id::RoundNumber;
use crate::message::MissingReason;
use crate::report::{Report, RoundTimes, UpdateEntry};
use crate::staleness::StalenessRule;
use crate::task::{RoundRules, TaskSpec};
use crate::time::Timestamp;

const MEMBERS: u8 = 100;

pub(super) fn account(number: u8) -> Address {
    Address([number; 20])
}

pub(super) fn candidates(seed: u8, quote: impl Fn(u8) -> u64) -> Candidates {
    let one = |i: u8| (account(i), Candidate { standing: Standing::Eligible, quote_ms: quote(i) });
    Candidates { seed: Digest([seed; 32]), accounts: (0..MEMBERS).map(one).collect() }
}

pub(super) fn rules(knob: SelectionKnob) -> RoundRules {
    RoundRules {
        cohort_min: 2,
        cohort_target: 10,
        over_selection: 5,
        train_ms: 1_000_000,
        selection: Selection { knob, explore: Micro(100_000) },
        ..TaskSpec::example().rounds
    }
}

/// A history in which each member delivered `times` updates after `ms` milliseconds each, with
/// `rows` rows and `score` nano-nats.
fn history(figures: impl Fn(u8) -> (u32, u64, u64, i64)) -> TaskHistory {
    let one = |i: u8| {
        let (delivered, commit_ms, rows, score_nano) = figures(i);
        let member = MemberHistory {
            selected: delivered,
            delivered,
            last_selected: 49,
            commit_ms,
            rows,
            score_nano,
            ..MemberHistory::default()
        };
        (account(i), member)
    };
    TaskHistory::from_members((0..MEMBERS).map(one).collect())
}

fn numbers(cohort: &[Selected]) -> Vec<u8> {
    cohort.iter().map(|one| one.account.0[0]).collect()
}

const LATE: RoundNumber = RoundNumber(50);

#[test]
fn a_cohort_is_ascending_complete_and_follows_from_its_inputs_alone() {
    let history = history(|i| (3, 1_000 + u64::from(i), u64::from(i), i.into()));
    for knob in SelectionKnob::ALL {
        let (rules, all) = (rules(knob), candidates(7, |_| 0));
        let cohort = select_cohort(&rules, LATE, &all, &history);
        assert!(cohort.is_sorted_by(|a, b| a.account < b.account), "{knob:?}");
        assert_eq!(cohort, select_cohort(&rules, LATE, &all, &history));
        let least = if knob == SelectionKnob::Random { 15 } else { 10 };
        assert!((least..=15).contains(&cohort.len()), "{knob:?}: {}", cohort.len());
        let other = Candidates { seed: Digest([8; 32]), ..all.clone() };
        assert_ne!(cohort, select_cohort(&rules, LATE, &other, &history), "{knob:?}");
        let next = RoundNumber(LATE.0 + 1);
        assert_ne!(cohort, select_cohort(&rules, next, &all, &history), "{knob:?}");
    }
}

#[test]
fn random_selection_is_the_draw_by_tickets() {
    let (rules, all) = (rules(SelectionKnob::Random), candidates(7, |_| 0));
    let history = history(|i| (3, i.into(), 0, 0));
    let drawn = draw_cohort(all.seed, LATE, (0..MEMBERS).map(account), 15);
    let cohort = select_cohort(&rules, LATE, &all, &history);
    assert_eq!(cohort.iter().map(|one| one.account).collect::<Vec<_>>(), drawn);
    assert!(cohort.iter().all(|one| one.reason == SelectionReason::Drawn));
}

/// The share of the best places over many seeds that members below `bound` have.
fn share_below(knob: SelectionKnob, history: &TaskHistory, bound: u8) -> f64 {
    let (mut below, mut all) = (0, 0);
    for seed in 0..40 {
        let cohort = select_cohort(&rules(knob), LATE, &candidates(seed, |_| 0), history);
        for one in cohort.iter().filter(|one| one.reason == SelectionReason::Best) {
            all += 1;
            below += u32::from(one.account.0[0] < bound);
        }
    }
    f64::from(below) / f64::from(all)
}

#[test]
fn each_knob_prefers_what_it_is_for() {
    let fast = history(|i| (3, 1_000 + 500 * u64::from(i), 0, 0));
    assert!(share_below(SelectionKnob::Fast, &fast, 35) > 0.99);
    let idle = history(|i| (u32::from(i), 1_000, 0, 0));
    assert!(share_below(SelectionKnob::FairWork, &idle, 35) > 0.99);
    let valued = history(|i| (3, 1_000, 0, 1_000 - 10 * i64::from(i)));
    assert!(share_below(SelectionKnob::Performance, &valued, 50) > 0.95);
    let per_row = history(|i| (3, 1_000, 30 * (1 + u64::from(i)), 10_000_000));
    assert!(share_below(SelectionKnob::FairAccuracy, &per_row, 35) > 0.95);
}

#[test]
fn a_small_error_in_a_time_or_a_score_changes_few_cohorts() {
    let history_of = |wrong: u64| {
        history(|i| {
            let time = (20 + u64::from(i) * 7 % 97) * 1_000;
            (3, time * wrong / 1_000, 40, 1_000 * (i64::from(i) * 13 % 89))
        })
    };
    let (right, wrong) = (history_of(1_000), history_of(1_001));
    for knob in [SelectionKnob::Fast, SelectionKnob::Performance] {
        let changed = (0..100_u8)
            .filter(|seed| {
                let all = candidates(*seed, |_| 0);
                let of = |history| select_cohort(&rules(knob), LATE, &all, history);
                of(&right) != of(&wrong)
            })
            .count();
        assert!(changed <= 5, "{knob:?}: {changed} of 100 cohorts");
    }
}

/// Half of a cohort of 12 commit before the deadline: 30 are asked for 10 updates then, as far as the task's
/// places go.
#[test]
fn where_members_are_away_the_spare_places_are_used() {
    let commits: Vec<(u8, u64)> = (0..6).map(|number| (number, 10)).collect();
    let missing: Vec<_> = (6..12).map(|number| (number, MissingReason::NoCommit)).collect();
    let (at_deadline, early) = (report(100, &commits, &missing), report(99, &commits, &missing));
    let size = |knob, over_selection, rule: StalenessRule, report: &Report| {
        let mut history = TaskHistory::default();
        history.add_round(rule, report);
        let rules = RoundRules { over_selection, staleness: rule, ..rules(knob) };
        select_cohort(&rules, LATE, &candidates(1, |_| 0), &history).len()
    };
    let none = StalenessRule::default();
    for knob in SelectionKnob::ALL {
        let is_random = knob == SelectionKnob::Random;
        assert_eq!(size(knob, 30, none, &at_deadline), if is_random { 40 } else { 30 });
        assert_eq!(size(knob, 5, none, &at_deadline), 15, "{knob:?}: the task's places");
        assert_eq!(size(knob, 30, none, &early), if is_random { 40 } else { 11 });
        // Where late updates count, all places are used in any case, and no round is waited for.
        let late = StalenessRule { rounds: 2, ..none };
        assert_eq!(size(knob, 5, late, &at_deadline), 15);
    }
}

#[test]
fn exploration_has_its_share_of_the_places() {
    let known = history(|i| (3, 1_000, 0, i.into()));
    let cohort =
        select_cohort(&rules(SelectionKnob::Performance), LATE, &candidates(1, |_| 0), &known);
    let explored = cohort.iter().filter(|one| one.reason == SelectionReason::Explored).count();
    assert_eq!(explored, cohort.len().div_ceil(10));
    // In the first rounds those that were never selected have nine of ten places.
    let half = history(|i| if i < 50 { (1, 1_000, 0, 0) } else { (0, 0, 0, 0) });
    let cohort =
        select_cohort(&rules(SelectionKnob::Fast), RoundNumber(1), &candidates(1, |_| 0), &half);
    let new = numbers(&cohort).into_iter().filter(|i| *i >= 50).count();
    assert_eq!(new, (cohort.len() * 9).div_ceil(10), "{cohort:?}");
}

#[test]
fn a_quote_counts_only_until_the_first_round() {
    let none = TaskHistory::default();
    // Five quote a tenth of the time of the others: they are explored more often.
    let quotes = |i: u8| if i < 5 { 1_000 } else { 10_000 };
    let (mut liars, mut before) = (0, 0);
    for seed in 0..100 {
        let rules = rules(SelectionKnob::Fast);
        let all = candidates(seed, quotes);
        let first = select_cohort(&rules, RoundNumber(1), &all, &none);
        before += numbers(&first).into_iter().filter(|i| *i < 5).count();
        // Their true times are the longest.
        let tried = history(|i| (1, if i < 5 { 50_000 } else { 10_000 }, 0, 0));
        let cohort = select_cohort(&rules, LATE, &all, &tried);
        let best = cohort.iter().filter(|one| one.reason == SelectionReason::Best);
        liars += best.filter(|one| one.account.0[0] < 5).count();
    }
    assert_eq!(liars, 0);
    assert!(before > 0);
}

#[test]
fn newcomers_and_reserves_take_only_places_that_are_left() {
    for knob in SelectionKnob::ALL {
        let mut all = candidates(3, |_| 0);
        for (number, candidate) in all.accounts.values_mut().enumerate() {
            candidate.standing = match number {
                0..8 => Standing::Eligible,
                8..10 => Standing::Newcomer,
                10..30 => Standing::Reserve,
                30..50 => Standing::Absent,
                _ => Standing::BondTooSmall,
            };
        }
        let cohort = select_cohort(&rules(knob), LATE, &all, &TaskHistory::default());
        assert_eq!(numbers(&cohort), (0..10).collect::<Vec<u8>>(), "{knob:?}");
        let reasons = cohort.iter().map(|one| one.reason);
        assert_eq!(reasons.filter(|one| *one == SelectionReason::Newcomer).count(), 2);
        let alone = RoundRules { cohort_min: 12, cohort_target: 12, ..rules(knob) };
        let cohort = select_cohort(&alone, LATE, &all, &TaskHistory::default());
        assert!(numbers(&cohort).iter().all(|i| *i < 30));
        assert!(cohort.iter().any(|one| one.reason == SelectionReason::Reserve), "{knob:?}");
        assert!(cohort.len() >= 12);
    }
}

#[test]
fn over_selection_grows_with_predicted_dropouts() {
    let of = |failed: u32| {
        let one = |i: u8| {
            let member = MemberHistory { delivered: 6, failed, selected: 6, ..Default::default() };
            (account(i), member)
        };
        let history = TaskHistory::from_members((0..MEMBERS).map(one).collect());
        let rules = rules(SelectionKnob::Performance);
        select_cohort(&rules, LATE, &candidates(1, |_| 0), &history).len()
    };
    // All 13 of 14 tries, 13 of 16, and fewer than half.
    assert_eq!([of(0), of(2), of(40)], [11, 12, 15]);
}

fn entry(number: u8, rows_counted: u64) -> UpdateEntry {
    UpdateEntry {
        sender: account(number),
        header: Digest::default(),
        update: Digest::default(),
        salt: Digest::default(),
        rows_declared: rows_counted,
        rows_counted,
        bond: crate::Amount::ZERO,
        commit_position: 1,
        staleness: 0,
    }
}

/// The report of a round that closed its commits after `closed` of 100 milliseconds.
pub(super) fn report(
    closed: u64,
    commits: &[(u8, u64)],
    missing: &[(u8, MissingReason)],
) -> Report {
    let spec = TaskSpec::example();
    let scope = crate::RoundScope { market: spec.market, task: spec.id(), round: RoundNumber(4) };
    let offer = crate::Offer {
        scope,
        base_model: spec.base_model,
        previous_report: Digest::default(),
        cohort: Vec::new(),
        reasons: Vec::new(),
        candidates: Digest::default(),
        opened: Timestamp(1_000),
        commit_by: Timestamp(1_100),
        reveal_by: Timestamp(1_200),
        pool: crate::Amount::ZERO,
    };
    let missing: Vec<_> = missing.iter().map(|(who, why)| (account(*who), *why)).collect();
    let delivered = commits.iter().filter(|(who, _)| !missing.iter().any(|m| m.0 == account(*who)));
    let entries: Vec<UpdateEntry> = delivered.map(|(who, _)| entry(*who, 30)).collect();
    crate::close_round(&crate::ReportInputs {
        spec: &spec,
        offer: &offer,
        previous_report: None,
        commits: &commits.iter().map(|(i, _)| (account(*i), Digest::default())).collect::<Vec<_>>(),
        entries: &entries,
        times: &RoundTimes {
            commits: commits.iter().map(|(_, at)| Timestamp(1_000 + at)).collect(),
            commits_closed: Timestamp(1_000 + closed),
            ..RoundTimes::default()
        },
        missing: &missing,
        holdout_rows: &[],
        result: Err(crate::AbandonReason::ValuationFailed),
        verified_work: &[],
    })
    .unwrap()
}

#[test]
fn a_history_has_times_failures_and_rows() {
    let mut history = TaskHistory::default();
    let silent = MissingReason::NoCommit;
    history.add_round(
        StalenessRule::default(),
        &report(40, &[(1, 10), (2, 40)], &[(2, MissingReason::NoReveal), (3, silent)]),
    );
    let of = |history: &TaskHistory, i| {
        let member = history.member(account(i));
        let MemberHistory { selected, delivered, failed, last_selected, commit_ms, rows, .. } =
            member;
        (selected, delivered, failed, last_selected, commit_ms, rows)
    };
    assert_eq!(of(&history, 1), (1, 1, 0, 4, 10, 30));
    assert_eq!(of(&history, 2), (1, 0, 1, 4, 40, 0), "no reveal is a failure");
    assert_eq!(of(&history, 3), (1, 0, 0, 4, 40, 0), "the round ended early: at least this slow");
    assert_eq!(of(&history, 4), (0, 0, 0, 0, 0, 0));
    history.add_round(StalenessRule::default(), &report(101, &[(1, 50)], &[(3, silent)]));
    assert_eq!(of(&history, 1), (2, 2, 0, 4, 20, 60), "(3 * 10 + 50) / 4");
    assert_eq!(of(&history, 3), (2, 0, 1, 4, 100, 0), "its time ends at the deadline");
}

#[test]
fn a_model_is_stalled_if_the_newer_rounds_gain_an_eighth_of_the_older() {
    let of = |gains: &[u64]| {
        let mut history = TaskHistory::default();
        gains.iter().for_each(|gain| history.push_improvement(*gain));
        history.is_stalled()
    };
    assert!(!of(&[80; 9]), "too few rounds");
    assert!(!of(&[80, 80, 80, 80, 80, 10, 10, 10, 10, 10]));
    assert!(of(&[80, 80, 80, 80, 80, 10, 10, 10, 10, 9]));
    assert!(!of(&[80, 80, 80, 80, 80, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9]), "only the last ten count");
}

#[test]
fn a_deadline_is_a_quantile_of_the_predicted_times() {
    let cohort: Vec<Address> = (0..10).map(account).collect();
    let known = history(|i| (3, 10_000 * (1 + u64::from(i)), 0, 0));
    let rule = |quantile, slack| RoundRules {
        deadline: DeadlineRule::Predicted { quantile: Micro(quantile), slack: Micro(slack) },
        ..rules(SelectionKnob::Fast)
    };
    let of = |rules: &RoundRules, history: &TaskHistory, quote: u64| {
        commit_deadline_ms(rules, LATE, &candidates(1, |_| quote), history, &cohort)
    };
    assert_eq!(of(&rules(SelectionKnob::Fast), &known, 0), 1_000_000, "fixed");
    assert_eq!(of(&rule(1_000_000, 1_000_000), &known, 0), 100_000);
    assert_eq!(of(&rule(500_000, 1_500_000), &known, 0), 90_000, "position 5 of 0 to 9");
    assert_eq!(of(&rule(0, 1_000_000), &known, 0), 62_500, "at least a sixteenth");
    assert_eq!(of(&rule(1_000_000, 100_000_000), &known, 0), 1_000_000, "at most train_ms");
    let none = TaskHistory::default();
    assert_eq!(of(&rule(900_000, 1_500_000), &none, 0), 1_000_000, "no prediction");
    assert_eq!(of(&rule(900_000, 1_500_000), &none, 200_000), 300_000, "by the quotes");
    assert_eq!(of(&rule(900_000, 1_500_000), &none, 1), 62_500, "a lie does not close a round");
    // The quotes of those that are known were a quarter of the truth.
    let slow = history(|i| if i < 50 { (1, 800_000, 0, 0) } else { (0, 0, 0, 0) });
    let others: Vec<Address> = (60..70).map(account).collect();
    let corrected = commit_deadline_ms(
        &rule(900_000, 1_000_000),
        LATE,
        &candidates(1, |_| 200_000),
        &slow,
        &others,
    );
    assert_eq!(corrected, 800_000);
}

#[test]
fn every_part_of_the_candidates_enters_their_digest() {
    let all = candidates(1, |_| 5);
    let mut others = vec![Candidates { seed: Digest([2; 32]), ..all.clone() }];
    let mut fewer = all.clone();
    fewer.accounts.pop_last();
    others.push(fewer);
    for candidate in [
        Candidate { standing: Standing::Newcomer, quote_ms: 5 },
        Candidate { standing: Standing::Eligible, quote_ms: 6 },
    ] {
        let mut changed = all.clone();
        changed.accounts.insert(account(3), candidate);
        others.push(changed);
    }
    assert!(others.iter().all(|other| other.digest() != all.digest()));
}

#[test]
fn those_that_never_deliver_are_not_preferred() {
    // Half of the members were asked as often as the others and never delivered.
    let one = |i: u8| {
        let (delivered, failed) = if i < 50 { (0, 4) } else { (4, 0) };
        let score_nano = if i < 50 { 0 } else { 1_000 };
        let member = MemberHistory {
            selected: 4,
            delivered,
            failed,
            last_selected: 49,
            commit_ms: 1_000,
            score_nano,
            ..MemberHistory::default()
        };
        (account(i), member)
    };
    let history = TaskHistory::from_members((0..MEMBERS).map(one).collect());
    for knob in [SelectionKnob::Fast, SelectionKnob::FairWork, SelectionKnob::Performance] {
        assert!(share_below(knob, &history, 50) < 0.1, "{knob:?}");
    }
}

#[test]
fn work_is_what_was_delivered_and_absence_is_a_part_of_it() {
    let share = |away: (u32, u32), others: (u32, u32)| {
        let one = |i: u8| {
            let (selected, delivered) = if i < 50 { away } else { others };
            let failed = selected - delivered;
            let member = MemberHistory { selected, delivered, failed, ..Default::default() };
            (account(i), member)
        };
        let history = TaskHistory::from_members((0..MEMBERS).map(one).collect());
        share_below(SelectionKnob::FairWork, &history, 50)
    };
    assert!(share((6, 3), (6, 6)) > 0.9, "asked as often, half of the work");
    assert!(share((6, 4), (4, 4)) < 0.1, "as much work, and two rounds in vain");
    // Three rounds in vain count as one update, or as three before the first.
    assert!(share((9, 6), (8, 8)) > 0.9);
    assert!(share((12, 3), (8, 8)) > 0.9);
    assert!(share((21, 3), (8, 8)) < 0.1);
    assert!(share((9, 0), (8, 8)) < 0.1);
}

#[test]
fn the_scores_of_few_count_among_many_that_were_never_asked() {
    let one = |i: u8| {
        let (selected, delivered, failed) = match i {
            0..4 => (2, 2, 0),
            4..8 => (2, 0, 2),
            _ => (0, 0, 0),
        };
        let score_nano = if i < 4 { 1_000 } else { 0 };
        let member =
            MemberHistory { selected, delivered, failed, score_nano, ..Default::default() };
        (account(i), member)
    };
    let few = TaskHistory::from_members((0..MEMBERS).map(one).collect());
    assert!(share_below(SelectionKnob::FairAccuracy, &few, 4) > 0.6);
}

#[test]
fn the_untried_are_explored_in_every_round_of_a_small_cohort() {
    let half = history(|i| if i < 50 { (3, 1_000, 0, 10) } else { (0, 0, 0, 0) });
    for knob in [SelectionKnob::Performance, SelectionKnob::FairWork, SelectionKnob::Fast] {
        let small = RoundRules { cohort_target: 3, over_selection: 0, ..rules(knob) };
        let all = candidates(1, |_| 0);
        let cohort = select_cohort(&small, RoundNumber(5_000), &all, &half);
        assert!(numbers(&cohort).iter().any(|i| *i >= 50), "{knob:?}: {cohort:?}");
    }
}

#[test]
fn too_few_commits_are_no_failure_of_those_that_committed() {
    let mut history = TaskHistory::default();
    let mut short = report(101, &[(1, 10)], &[(1, MissingReason::NoReveal)]);
    short.outcome =
        crate::RoundOutcome::Abandoned(crate::AbandonReason::TooFewUpdates { got: 0, needed: 2 });
    history.add_round(StalenessRule::default(), &short);
    assert_eq!(history.member(account(1)).failed, 0);
    assert!(history.had_too_few_updates());
    history.add_round(StalenessRule::default(), &report(40, &[(1, 10)], &[]));
    assert!(!history.had_too_few_updates());
}
