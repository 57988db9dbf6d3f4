//! Cohorts by classes: what a class gets, whom chance favours, and what a history keeps.

use std::collections::BTreeMap;

use super::super::tests::{account, candidates, report, rules};
use super::super::{ClassHistory, MemberHistory, SelectionReason, TaskHistory, select_cohort};
use super::*;
use crate::class_effects::ClassEffects;
use crate::id::RoundNumber;
use crate::report::{UpdateScore, Valuation, ValuationEvidence};
use crate::staleness::StalenessRule;

const LATE: RoundNumber = RoundNumber(50);
const WHOLE: u16 = ClassHistory::WHOLE;

/// Members 0 to 99 that delivered three updates each; each one improves the class of its number's
/// remainder alone, of as many classes as there are losses.
fn history(losses: &[u64]) -> TaskHistory {
    let member = MemberHistory { selected: 3, delivered: 3, ..MemberHistory::default() };
    let classes = u8::try_from(losses.len()).unwrap();
    let shares = |number: u8| {
        let share = |class| if number % classes == class { WHOLE } else { 0 };
        (0..classes).map(share).collect::<Vec<u16>>()
    };
    let members = (0..100).map(|number| (account(number), member)).collect();
    let shares = (0..100).map(|number| (account(number), shares(number))).collect();
    TaskHistory::from_members(members).with_classes(losses.to_vec(), shares)
}

/// The members of many cohorts that complement each other.
fn chosen(knob: SelectionKnob, history: &TaskHistory) -> Vec<u8> {
    let cohort = |seed| select_cohort(&rules(knob), LATE, &candidates(seed, |_| 0), history);
    let all = (0..40).flat_map(cohort);
    let chosen = all.filter(|one| one.reason == SelectionReason::Complements);
    chosen.map(|one| one.account.0[0]).collect()
}

/// The part of each class among the members.
fn parts(members: &[u8], classes: u8) -> Vec<f64> {
    let of = |class| members.iter().filter(|number| **number % classes == class).count() as f64;
    (0..classes).map(|class| of(class) / members.len() as f64).collect()
}

#[test]
fn each_class_has_a_part_by_the_models_loss_on_it() {
    let history = history(&[3_000, 1_000, 1_000, 0]);
    let near = |knob, wanted: [f64; 4]| {
        let found = parts(&chosen(knob, &history), 4);
        let all = found.iter().zip(wanted);
        assert!(all.clone().all(|(a, b)| (a - b).abs() < 0.06), "{knob:?}: {found:?}, {wanted:?}");
    };
    near(SelectionKnob::Performance, [0.6, 0.2, 0.2, 0.0]);
    // Squares: 9, 1 and 1 of 11.
    near(SelectionKnob::FairAccuracy, [0.82, 0.09, 0.09, 0.0]);
}

#[test]
fn equal_members_have_equal_chances_at_any_address() {
    let chosen = chosen(SelectionKnob::Performance, &history(&[1_000, 1_000]));
    let low = chosen.iter().filter(|number| **number < 50).count() as f64 / chosen.len() as f64;
    assert!((0.4..0.6).contains(&low), "{low} of the places for the lower half of the addresses");
}

#[test]
fn the_exploited_places_are_those_and_others_explore() {
    let history = history(&[1_000, 1_000, 1_000]);
    for knob in [SelectionKnob::Performance, SelectionKnob::FairAccuracy] {
        let cohort = select_cohort(&rules(knob), LATE, &candidates(1, |_| 0), &history);
        let with = |reason| cohort.iter().filter(|one| one.reason == reason).count();
        assert_eq!(with(SelectionReason::Explored), 2, "a tenth, rounded up");
        assert_eq!(with(SelectionReason::Complements), cohort.len() - 2);
    }
    let cohort = select_cohort(&rules(SelectionKnob::Fast), LATE, &candidates(1, |_| 0), &history);
    assert!(cohort.iter().all(|one| one.reason != SelectionReason::Complements));
}

#[test]
fn more_than_128_places_are_chosen_by_scores() {
    let member = MemberHistory { selected: 3, delivered: 3, ..MemberHistory::default() };
    let accounts: Vec<Address> = (0..200_u8)
        .map(|number| Address([[number; 10], [7; 10]].concat().try_into().unwrap()))
        .collect();
    let members = accounts.iter().map(|account| (*account, member)).collect();
    let shares = accounts.iter().map(|account| (*account, vec![WHOLE, 0])).collect();
    let history = TaskHistory::from_members(members).with_classes(vec![1_000, 1_000], shares);
    let one = super::super::Candidate { standing: super::super::Standing::Eligible, quote_ms: 0 };
    let all = candidates(1, |_| 0);
    let all = super::super::Candidates {
        accounts: accounts.iter().map(|account| (*account, one)).collect(),
        ..all
    };
    let with = |target| {
        let rules = crate::RoundRules {
            cohort_target: target,
            over_selection: 0,
            ..rules(SelectionKnob::Performance)
        };
        let cohort = select_cohort(&rules, LATE, &all, &history);
        cohort.iter().filter(|one| one.reason == SelectionReason::Complements).count()
    };
    assert!(with(128) > 100);
    assert_eq!(with(129), 0);
}

#[test]
fn members_without_shares_only_explore() {
    let member = MemberHistory { selected: 3, delivered: 3, ..MemberHistory::default() };
    let members = (0..100).map(|number| (account(number), member)).collect();
    let known = (0..5).map(|number| (account(number), vec![WHOLE, 0])).collect();
    let history = TaskHistory::from_members(members).with_classes(vec![1_000, 1_000], known);
    let chosen = chosen(SelectionKnob::Performance, &history);
    assert!(!chosen.is_empty() && chosen.iter().all(|number| *number < 5), "{chosen:?}");
}

/// A report whose updates, of members 1 to 3, have these shares; that of member 3 is excluded.
fn reported(losses_nano: Vec<Option<u64>>, shares: Vec<Vec<u8>>) -> crate::Report {
    let mut report = report(40, &[(1, 10), (2, 20), (3, 30)], &[]);
    let score = |number, excluded| UpdateScore {
        account: account(number),
        score_nano: 0,
        error_nano: 0,
        excluded,
        preprocessing: crate::Preprocessing::default(),
    };
    report.valuation = Some(Valuation {
        loss_before_nano: 0,
        loss_after_nano: 0,
        total_nano: 0,
        gap_nano: 0,
        model_loss_nano: 0,
        stages: Vec::new(),
        scores: vec![score(1, false), score(2, false), score(3, true)],
        units: 0,
        evidence: ValuationEvidence {
            class_effects: Some(ClassEffects { losses_nano, shares }),
            ..ValuationEvidence::default()
        },
    });
    report
}

#[test]
fn a_history_smooths_losses_and_shares() {
    let mut history = TaskHistory::default();
    let mut add = |losses, shares| {
        history.add_round(StalenessRule::default(), &reported(losses, shares));
        history.classes().clone()
    };
    let classes = add(vec![Some(800), None], vec![vec![255, 0], vec![], vec![0, 255]]);
    assert_eq!(classes.losses(), [800, 0]);
    assert_eq!(classes.shares(account(1)), Some(&[WHOLE, 0][..]));
    assert_eq!(classes.shares(account(2)), None, "it has no weight");
    let excluded = classes.shares(account(3));
    assert_eq!(excluded, Some(&[0, WHOLE][..]), "an excluded update shows its classes, too");
    let classes = add(vec![Some(400), Some(600)], vec![vec![127, 128], vec![5, 250], vec![126, 1]]);
    assert_eq!(classes.losses(), [700, 600], "(3 * 800 + 400) / 4, and the first of its class");
    let half = [(255 + 127) * 128, 128 * 128];
    assert_eq!(classes.shares(account(1)), Some(&half[..]));
    assert_eq!(classes.shares(account(2)), Some(&[5 * 256, 250 * 256][..]));
    assert_eq!(classes.shares(account(3)), Some(&[0, WHOLE][..]), "it improved too little");
    let classes = add(vec![None, None], vec![vec![], vec![], vec![]]);
    assert_eq!(classes.losses(), [700, 600]);
    assert_eq!(classes.shares(account(1)), Some(&half[..]));
}

#[test]
fn numbers_at_their_limits_choose_a_cohort() {
    let shares: BTreeMap<_, _> =
        (0..100).map(|number| (account(number), vec![u16::MAX; 64])).collect();
    let member = MemberHistory { selected: 3, delivered: 3, ..MemberHistory::default() };
    let members = (0..100).map(|number| (account(number), member)).collect();
    let history = TaskHistory::from_members(members).with_classes(vec![u64::MAX; 64], shares);
    assert!(!chosen(SelectionKnob::FairAccuracy, &history).is_empty());
    let none = history.with_classes(vec![0; 64], BTreeMap::new());
    assert!(chosen(SelectionKnob::FairAccuracy, &none).is_empty(), "all places explore");
}
