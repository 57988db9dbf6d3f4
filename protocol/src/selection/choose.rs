//! Chooses a cohort: the best by weighted chance, the others by exploration.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use super::complement::{POOL_FACTOR, complementary};
use super::levels::{BALANCED_PLACES_MAX, LEVEL_MAX, Scale, reliability_level};
use super::race::Race;
use super::{Candidates, SelectionKnob, Standing, TaskHistory, draw_cohort};
use crate::id::{Address, RoundNumber};
use crate::micro::Micro;
use crate::task::RoundRules;

/// A participant is among the best from this share of the score of the last place on, as in Oort
/// (OSDI 2021), in percent.
const CUT_OFF_PERCENT: u64 = 95;
/// The share of places that explore while no participant was tried, in thousandths, and its decay
/// per round: Oort's constants.
const EXPLORE_FIRST: u64 = 900;
const EXPLORE_DECAY: u64 = 950;

/// Why a participant was selected.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum SelectionReason {
    /// Drawn from all eligible participants: by random selection, or because there were not more
    /// of them than places.
    Drawn,
    /// Drawn from those with the best scores.
    Best,
    /// Drawn from the others.
    Explored,
    /// A newcomer, for a place that the others left.
    Newcomer,
    /// It sat out, but the round could not start without it.
    Reserve,
    /// It was selected for an earlier round, and its training goes on.
    Continues,
    /// Chosen because its data complement those of the others: it improves classes on which the
    /// model's loss is large.
    Complements,
}

impl SelectionReason {
    /// Its name, as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drawn => "drawn",
            Self::Best => "best",
            Self::Explored => "explored",
            Self::Newcomer => "newcomer",
            Self::Reserve => "reserve",
            Self::Continues => "continues",
            Self::Complements => "complements",
        }
    }
}

/// A selected participant.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Selected {
    /// Its account.
    pub account: Address,
    /// Why.
    pub reason: SelectionReason,
}

/// Selects the cohort of a round, ascending by account.
///
/// Participants whose trainings go on have the first places. Random selection draws from all other
/// eligible participants with the smallest hashes. Every other knob scores them; a share of the
/// places explores.
#[must_use]
pub fn select_cohort(
    rules: &RoundRules,
    round: RoundNumber,
    candidates: &Candidates,
    history: &TaskHistory,
) -> Vec<Selected> {
    let continuing = continuing(rules, candidates, history);
    let is_free = |account: &Address| continuing.binary_search(account).is_err();
    let eligible: Vec<Address> = candidates.with(Standing::Eligible).filter(is_free).collect();
    let places = number_of_places(rules, history, &eligible).saturating_sub(continuing.len());
    let selected = |reason| move |account| Selected { account, reason };
    let draw = |standing, places| {
        let accounts = candidates.with(standing).filter(is_free);
        draw_cohort(candidates.seed, round, accounts, places).into_iter()
    };
    let is_random = rules.selection.knob == SelectionKnob::Random;
    let mut cohort: Vec<Selected> = if is_random || eligible.len() <= places {
        draw(Standing::Eligible, places).map(selected(SelectionReason::Drawn)).collect()
    } else {
        by_score(rules, round, (candidates, history), &eligible, places)
    };
    let more = places.saturating_sub(cohort.len());
    cohort.extend(draw(Standing::Newcomer, more).map(selected(SelectionReason::Newcomer)));
    cohort.extend(continuing.iter().copied().map(selected(SelectionReason::Continues)));
    if cohort.len() < size(rules.cohort_min) {
        let more = places.saturating_add(continuing.len()).saturating_sub(cohort.len());
        cohort.extend(draw(Standing::Reserve, more).map(selected(SelectionReason::Reserve)));
    }
    cohort.sort_unstable();
    cohort
}

/// The participants whose trainings go on and that can still be selected, ascending. They have the
/// first places.
fn continuing(rules: &RoundRules, candidates: &Candidates, history: &TaskHistory) -> Vec<Address> {
    let can_deliver = |account: &Address| {
        let standing = candidates.accounts.get(account).map(|candidate| candidate.standing);
        matches!(standing, Some(Standing::Eligible | Standing::Newcomer))
    };
    history.continuing().filter(can_deliver).take(size(rules.selection_size())).collect()
}

/// How many participants to ask for `cohort_target` updates by the part of earlier cohorts that committed, without
/// regard to the task's places; no more than can be chosen by classes, if the knob does that. `None` where all
/// places are taken in any case: for random selection, and where late updates count.
#[must_use]
pub fn asked_by_attendance(rules: &RoundRules, history: &TaskHistory) -> Option<u64> {
    let knob = rules.selection.knob;
    if knob == SelectionKnob::Random || rules.staleness.admits_late() {
        return None;
    }
    let limit = if knob.reads_classes() { BALANCED_PLACES_MAX } else { u64::MAX };
    Some(history.asked_for(rules.cohort_target).min(limit))
}

/// Number of participants to select. Random selection, and every rule by which late updates count,
/// take the whole over-selection; every other knob as many as deliver `cohort_target` updates, predicted by the
/// mean reliability or by [`asked_by_attendance`], whichever are more.
fn number_of_places(rules: &RoundRules, history: &TaskHistory, eligible: &[Address]) -> usize {
    let most = size(rules.selection_size());
    let Some(by_attendance) = asked_by_attendance(rules, history) else { return most };
    let levels = eligible.iter().map(|account| reliability_level(&history.member(*account)));
    let sum = levels.fold(0_u64, u64::saturating_add);
    let all = u64::try_from(eligible.len()).unwrap_or(u64::MAX).saturating_mul(LEVEL_MAX);
    let needed = u128::from(rules.cohort_target)
        .saturating_mul(all.into())
        .checked_div(sum.into())
        .map(|needed| needed.max(by_attendance.into()))
        .and_then(|needed| usize::try_from(needed).ok());
    needed.unwrap_or(most).clamp(size(rules.cohort_target), most)
}

/// The cohort by score, with exploration.
fn by_score(
    rules: &RoundRules,
    round: RoundNumber,
    inputs: (&Candidates, &TaskHistory),
    eligible: &[Address],
    places: usize,
) -> Vec<Selected> {
    let seed = inputs.0.seed;
    let scale = Scale::new(rules.selection.knob, round, inputs, eligible, places);
    let tried: Vec<(Address, u32)> = eligible
        .iter()
        .filter(|account| !scale.is_untried(**account))
        .map(|account| (*account, scale.score(*account)))
        .filter(|(_, score)| *score > 0)
        .collect();
    let untried = eligible.iter().filter(|account| scale.is_untried(**account)).count();
    let explored = explored_places(rules.selection.explore, round, places, untried);
    let exploited = places.saturating_sub(explored).min(tried.len());
    let race = Race { seed, round, number: 0 };
    let (best, reason) = if scale.balances_classes {
        let chosen = complements(rules.selection.knob, inputs.1, &tried, &race, exploited);
        (chosen, SelectionReason::Complements)
    } else {
        let cut = cut_off(&tried, exploited);
        let best = tried.iter().copied().filter(|(_, score)| *score >= cut);
        (race.winners(best, exploited), SelectionReason::Best)
    };
    // The untried first, then all others.
    let others = |is_untried: bool| {
        let left = eligible.iter().copied().filter(|account| best.binary_search(account).is_err());
        let left = left.filter(|account| scale.is_untried(*account) == is_untried);
        left.map(|account| (account, scale.explore_weight(account))).collect::<Vec<_>>()
    };
    let explored = places.saturating_sub(best.len());
    let mut others_drawn =
        Race { seed, round, number: 1 }.winners(others(true).into_iter(), explored);
    let more = explored.saturating_sub(others_drawn.len());
    others_drawn.extend(Race { seed, round, number: 2 }.winners(others(false).into_iter(), more));
    let best = best.into_iter().map(|account| (account, reason));
    let others = others_drawn.into_iter().map(|account| (account, SelectionReason::Explored));
    best.chain(others).map(|(account, reason)| Selected { account, reason }).collect()
}

/// Up to `places` participants that complement each other, ascending.
fn complements(
    knob: SelectionKnob,
    history: &TaskHistory,
    tried: &[(Address, u32)],
    race: &Race,
    places: usize,
) -> Vec<Address> {
    let classes = history.classes();
    let known = tried.iter().copied().filter(|(account, _)| classes.shares(*account).is_some());
    let finishers = race.finishers(known, places.saturating_mul(POOL_FACTOR));
    let mut chosen = complementary(knob, classes, &finishers, places);
    chosen.sort_unstable();
    chosen
}

/// The lowest score of the best: a share of the score of the last exploited place.
fn cut_off(tried: &[(Address, u32)], exploited: usize) -> u32 {
    let mut scores: Vec<u32> = tried.iter().map(|(_, score)| *score).collect();
    scores.sort_unstable_by(|one, other| other.cmp(one));
    let last = scores.get(exploited.saturating_sub(1)).copied().unwrap_or_default();
    let cut = u64::from(last).saturating_mul(CUT_OFF_PERCENT).checked_div(100);
    u32::try_from(cut.unwrap_or_default()).unwrap_or(u32::MAX)
}

/// Number of places that explore: the task's share, rounded up, and more of them in the first rounds as long as
/// there are participants that were never selected.
fn explored_places(least: Micro, round: RoundNumber, places: usize, untried: usize) -> usize {
    let count = u64::try_from(places).unwrap_or(u64::MAX);
    let least = count.saturating_mul(least.0).div_ceil(Micro::ONE.0);
    let mut early = EXPLORE_FIRST;
    for _ in 1..round.0 {
        early = early.saturating_mul(EXPLORE_DECAY).checked_div(1_000).unwrap_or_default();
    }
    let early = count.saturating_mul(early).div_ceil(1_000);
    let early = early.min(u64::try_from(untried).unwrap_or(u64::MAX));
    usize::try_from(least.max(early)).unwrap_or(places).min(places)
}

fn size(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{account, report, rules};
    use super::*;
    use crate::message::MissingReason;

    /// Two of twelve commit before the deadline: nine are asked for each commit, but no more than can be chosen by
    /// classes.
    #[test]
    fn attendance_asks_no_more_than_the_classes_can_choose() {
        let missing: Vec<_> = (2..12).map(|number| (number, MissingReason::NoCommit)).collect();
        let report = report(100, &[(0, 10), (1, 10)], &missing);
        let places = |knob| {
            let rules = RoundRules { cohort_target: 20, over_selection: 200, ..rules(knob) };
            let mut history = TaskHistory::default();
            history.add_round(rules.staleness, &report);
            number_of_places(&rules, &history, &(0..100).map(account).collect::<Vec<_>>())
        };
        assert_eq!(places(SelectionKnob::FairWork), 180);
        assert_eq!(places(SelectionKnob::Fast), 180);
        assert_eq!(places(SelectionKnob::FairAccuracy), 128);
        assert_eq!(places(SelectionKnob::Performance), 128);
        assert_eq!(places(SelectionKnob::Random), 220);
    }
}
