//! The inputs of a selection, account by account, for people.

use super::choose::{SelectionReason, select_cohort};
use super::levels::{Scale, ScorePart};
use super::{Candidates, MemberHistory, SelectionKnob, Standing, TaskHistory};
use crate::id::{Address, RoundNumber};
use crate::task::RoundRules;

/// A candidate with all that its selection depends on, but chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExplainedCandidate {
    /// Its account.
    pub account: Address,
    /// Its standing.
    pub standing: Standing,
    /// Its part in earlier rounds.
    pub history: MemberHistory,
    /// The predicted time from an offer to its commit, in milliseconds; `None` if unknown.
    pub predicted_ms: Option<u64>,
    /// Its score, at most 256; `None` for one that is not eligible, and for random selection.
    pub score: Option<u32>,
    /// The parts of the score, in the order of [`SCORE_PARTS`](super::SCORE_PARTS); `None` without a score.
    pub parts: Option<[ScorePart; 5]>,
    /// Why it is selected; `None` if it is not.
    pub reason: Option<SelectionReason>,
}

/// Explains a cohort: every candidate, ascending by account.
#[must_use]
pub fn explain_cohort(
    rules: &RoundRules,
    round: RoundNumber,
    candidates: &Candidates,
    history: &TaskHistory,
) -> Vec<ExplainedCandidate> {
    let cohort = select_cohort(rules, round, candidates, history);
    let is_free = |account: &Address| history.member(*account).ongoing.is_none();
    let eligible: Vec<Address> = candidates.with(Standing::Eligible).filter(is_free).collect();
    let knob = rules.selection.knob;
    let places = cohort.iter().filter(|one| one.reason != SelectionReason::Continues).count();
    let scale = Scale::new(knob, round, (candidates, history), &eligible, places);
    let is_scored = |standing| standing == Standing::Eligible && knob != SelectionKnob::Random;
    let explained = |(account, candidate): (&Address, &super::Candidate)| {
        let place = cohort.binary_search_by_key(account, |one| one.account).ok();
        ExplainedCandidate {
            account: *account,
            standing: candidate.standing,
            history: history.member(*account),
            predicted_ms: scale.predicted_ms(*account),
            score: is_scored(candidate.standing).then(|| scale.score(*account)),
            parts: is_scored(candidate.standing).then(|| scale.parts(*account)),
            reason: place.and_then(|place| cohort.get(place)).map(|one| one.reason),
        }
    };
    candidates.accounts.iter().map(explained).collect()
}
