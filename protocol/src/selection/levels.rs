//! The levels of a participant, and its score by the task's knob.

use super::history::{MemberHistory, TaskHistory};
use super::{Candidates, SelectionKnob};
use crate::id::{Address, RoundNumber};

/// The highest level of anything.
pub(super) const LEVEL_MAX: u64 = 16;
/// Successes that a participant without history counts as having, and tries.
const PRIOR_SUCCESSES: u64 = 7;
const PRIOR_TRIES: u64 = 8;
/// The utility of a participant that delivered nothing yet.
const PRIOR_UTILITY: u64 = LEVEL_MAX >> 1;
/// An update is as much work as this many rounds without one.
const UPDATE_PARTS: u64 = 3;
/// The share of the scores, in percent, above which a score counts as the highest.
const CLIP_PERCENT: usize = 95;

/// The names of the parts of a score.
pub const SCORE_PARTS: [&str; 5] = ["speed", "reliability", "utility", "waiting", "work"];

/// One part of a score: the product of its weight and its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScorePart {
    /// The weight by the task's knob; 0 for a part without effect.
    pub weight: u64,
    /// The level, from 0 to 16.
    pub level: u64,
}

/// The weights of the levels in a score.
#[derive(Clone, Copy)]
struct LevelWeights {
    speed: u64,
    reliability: u64,
    utility: u64,
    /// Rounds since the last selection.
    waiting: u64,
    /// Little work so far.
    work: u64,
}

impl LevelWeights {
    /// The weights with this history. A knob that balances classes leaves the choice to them.
    fn with(knob: SelectionKnob, history: &TaskHistory, balances_classes: bool) -> Self {
        match balances_classes {
            true => Self { reliability: 16, ..Self::of(SelectionKnob::Random, false) },
            false => Self::of(knob, history.is_stalled()),
        }
    }

    /// The preset of a knob. If the model no longer improves, utility and waiting weigh more than
    /// speed.
    const fn of(knob: SelectionKnob, is_stalled: bool) -> Self {
        let none = Self { speed: 0, reliability: 0, utility: 0, waiting: 0, work: 0 };
        match (knob, is_stalled) {
            (SelectionKnob::Random, _) => none,
            (SelectionKnob::Fast, false) => Self { speed: 10, reliability: 4, utility: 2, ..none },
            (SelectionKnob::Fast, true) => {
                Self { speed: 6, reliability: 4, utility: 4, waiting: 2, ..none }
            }
            (SelectionKnob::FairWork, _) => Self { work: 12, reliability: 4, ..none },
            (SelectionKnob::FairAccuracy, _) => Self { utility: 16, ..none },
            (SelectionKnob::Performance, false) => {
                Self { utility: 6, waiting: 8, reliability: 2, ..none }
            }
            (SelectionKnob::Performance, true) => {
                Self { utility: 4, waiting: 10, reliability: 2, ..none }
            }
        }
    }
}

/// The scale of the levels of one round.
pub(super) struct Scale<'a> {
    candidates: &'a Candidates,
    history: &'a TaskHistory,
    weights: LevelWeights,
    /// Whether the cohort follows from the classes of the participants' data.
    pub(super) balances_classes: bool,
    round: RoundNumber,
    knob: SelectionKnob,
    /// A participant with at most this predicted time is fast.
    fast_ms: u64,
    utility_max: u64,
    work_max: u64,
    /// Ratio of observed to quoted times, in parts of [`QUOTE_PARTS`].
    quote_factor: u64,
}

/// The parts of a correction of quotes.
const QUOTE_PARTS: u64 = 256;

impl<'a> Scale<'a> {
    /// The scale for a cohort of `places` among `accounts`.
    pub(super) fn new(
        knob: SelectionKnob,
        round: RoundNumber,
        (candidates, history): (&'a Candidates, &'a TaskHistory),
        accounts: &[Address],
        places: usize,
    ) -> Self {
        let has_classes = !history.classes().losses().is_empty();
        let is_within = u64::try_from(places).is_ok_and(|places| places <= BALANCED_PLACES_MAX);
        let balances_classes = knob.reads_classes() && has_classes && is_within;
        let mut scale = Self {
            candidates,
            history,
            weights: LevelWeights::with(knob, history, balances_classes),
            balances_classes,
            round,
            knob,
            fast_ms: u64::MAX,
            utility_max: 0,
            work_max: 0,
            quote_factor: quote_factor(candidates, history),
        };
        let mut times: Vec<u64> =
            accounts.iter().filter_map(|account| scale.predicted_ms(*account)).collect();
        times.sort_unstable();
        // Twice as many as there are places are fast.
        let pool = places.saturating_mul(2).min(times.len()).saturating_sub(1);
        scale.fast_ms = times.get(pool).copied().unwrap_or(u64::MAX);
        let known = || accounts.iter().map(|account| history.member(*account));
        let mut utilities: Vec<u64> = known()
            .filter(|member| member.delivered > 0)
            .map(|member| scale.utility(&member))
            .collect();
        utilities.sort_unstable();
        let clip = utilities.len().saturating_mul(CLIP_PERCENT).checked_div(100);
        let clip = clip.unwrap_or_default().min(utilities.len().saturating_sub(1));
        scale.utility_max = utilities.get(clip).copied().unwrap_or_default();
        scale.work_max = known().map(|member| work(&member)).max().unwrap_or_default();
        scale
    }

    /// The predicted time from an offer to the participant's commit, in milliseconds: the smoothed
    /// time of its commits, else its quote, corrected by those of the others.
    pub(super) fn predicted_ms(&self, account: Address) -> Option<u64> {
        let member = self.history.member(account);
        if member.commit_ms > 0 {
            return Some(member.commit_ms);
        }
        let quote = self.candidates.accounts.get(&account)?.quote_ms;
        (quote > 0).then(|| quote.saturating_mul(self.quote_factor).div_ceil(QUOTE_PARTS))
    }

    /// Whether the participant has no score: it was never selected. Where speed counts, a quote
    /// gives it one.
    pub(super) fn is_untried(&self, account: Address) -> bool {
        let is_quoted = self.weights.speed > 0 && self.predicted_ms(account).is_some();
        self.history.member(account).selected == 0 && !is_quoted
    }

    /// The weight with which the participant is explored: more for fast ones where speed counts.
    pub(super) fn explore_weight(&self, account: Address) -> u32 {
        let level = self.speed_level(account);
        let is_timed = self.weights.speed > 0;
        u32::try_from(if is_timed { level.saturating_mul(level) } else { 1 }).unwrap_or(1)
    }

    /// The participant's score, at most 256.
    pub(super) fn score(&self, account: Address) -> u32 {
        let product = |part: ScorePart| part.weight.saturating_mul(part.level);
        let sum =
            self.parts(account).iter().fold(0_u64, |sum, part| sum.saturating_add(product(*part)));
        u32::try_from(sum).unwrap_or(u32::MAX)
    }

    /// The parts of the score, in the order of [`SCORE_PARTS`].
    pub(super) fn parts(&self, account: Address) -> [ScorePart; 5] {
        let member = self.history.member(account);
        let weights = self.weights;
        let part = |weight: u64, level: u64| ScorePart { weight, level };
        [
            part(weights.speed, self.speed_level(account)),
            part(weights.reliability, reliability_level(&member)),
            part(weights.utility, self.utility_level(&member)),
            part(weights.waiting, self.waiting_level(&member)),
            part(weights.work, self.work_level(&member)),
        ]
    }

    /// The highest level up to the time of the fast ones; then falling with the square of the time,
    /// as in Oort (OSDI 2021, α = 2).
    fn speed_level(&self, account: Address) -> u64 {
        let Some(predicted) = self.predicted_ms(account) else { return 0 };
        if predicted <= self.fast_ms {
            return LEVEL_MAX;
        }
        let square = |ms: u64| u128::from(ms).saturating_mul(ms.into());
        let level = square(self.fast_ms)
            .saturating_mul(LEVEL_MAX.into())
            .checked_div(square(predicted))
            .unwrap_or_default();
        u64::try_from(level).unwrap_or(LEVEL_MAX)
    }

    /// The part of a score beyond its standard error; for equal accuracy per counted row.
    fn utility(&self, member: &MemberHistory) -> u64 {
        let certain = u64::try_from(member.score_nano).unwrap_or_default();
        let certain = certain.saturating_sub(member.error_nano);
        if self.knob != SelectionKnob::FairAccuracy {
            return certain;
        }
        let rows = member.rows.checked_div(member.delivered.max(1).into()).unwrap_or(1).max(1);
        certain.checked_div(rows).unwrap_or(certain)
    }

    fn utility_level(&self, member: &MemberHistory) -> u64 {
        if member.delivered == 0 {
            return if member.failed == 0 { PRIOR_UTILITY } else { 0 };
        }
        share_level(self.utility(member), self.utility_max)
    }

    /// Grows with the logarithm of the rounds since the last selection.
    fn waiting_level(&self, member: &MemberHistory) -> u64 {
        let rounds = self.round.0.saturating_sub(member.last_selected).max(1);
        u64::from(rounds.ilog2()).saturating_mul(4).min(LEVEL_MAX)
    }

    fn work_level(&self, member: &MemberHistory) -> u64 {
        LEVEL_MAX.saturating_sub(share_level(work(member), self.work_max))
    }
}

/// Most places that are chosen by classes: the choice takes a step for each place, each of five times
/// as many participants, and each class.
pub(super) const BALANCED_PLACES_MAX: u64 = 128;

/// The work of a participant in thirds of an update. A round that asked it in vain counts a third,
/// so that those that are away by day get as much work. Before its first update such a round counts
/// whole, or else those that never deliver would be asked first.
fn work(member: &MemberHistory) -> u64 {
    let (selected, delivered) = (u64::from(member.selected), u64::from(member.delivered));
    if delivered == 0 {
        return selected.saturating_mul(UPDATE_PARTS);
    }
    let parts = UPDATE_PARTS.saturating_sub(1);
    selected.saturating_add(delivered.saturating_mul(parts))
}

/// How reliably a participant delivers, with a prior for those without history.
pub(super) fn reliability_level(member: &MemberHistory) -> u64 {
    let tries = u64::from(member.delivered)
        .saturating_add(member.failed.into())
        .saturating_add(PRIOR_TRIES);
    let successes = u64::from(member.delivered).saturating_add(PRIOR_SUCCESSES);
    successes.saturating_mul(LEVEL_MAX).checked_div(tries).unwrap_or_default()
}

/// The level of a value in proportion to the highest one.
fn share_level(value: u64, highest: u64) -> u64 {
    let scaled = u128::from(value.min(highest)).saturating_mul(LEVEL_MAX.into());
    let level = scaled.checked_div(highest.into()).unwrap_or_default();
    u64::try_from(level).unwrap_or(LEVEL_MAX)
}

/// The median ratio of observed to quoted times of all participants that have both.
fn quote_factor(candidates: &Candidates, history: &TaskHistory) -> u64 {
    let ratio = |account: &Address, quote: u64| {
        let observed = history.member(*account).commit_ms;
        let ratio = observed.saturating_mul(QUOTE_PARTS).checked_div(quote)?;
        (observed > 0).then_some(ratio)
    };
    let mut ratios: Vec<u64> = candidates
        .accounts
        .iter()
        .filter_map(|(account, candidate)| ratio(account, candidate.quote_ms))
        .collect();
    ratios.sort_unstable();
    ratios.get(ratios.len() >> 1).copied().unwrap_or(QUOTE_PARTS).max(1)
}
