//! The cohort of a selector of the literature, in place of the market's, and the members' quotes.

use std::collections::BTreeSet;

use florin_learning::Evaluator;
use florin_protocol::{Address, Report, Standing};

use super::Simulation;
use crate::error::SimError;
use crate::market::account;
use crate::population::Member;
use crate::random::stream;
use crate::scenario::{Group, Scenario};
use crate::selectors::{MemberFeedback, SelectableMember};

const MS_PER_SECOND: f64 = 1e3;
/// Weight of the earlier rounds in the moving average of their durations, as in REFL.
const EARLIER_ROUNDS: f64 = 0.25;

/// A member's signed prediction of its time from an offer to its commit, in milliseconds.
pub(super) fn quoted_ms(
    scenario: &Scenario,
    group: &Group,
    member: &Member,
    update_bytes: f64,
) -> u64 {
    let seconds = honest_seconds(scenario, member, update_bytes);
    // Saturates.
    (seconds * group.quote * MS_PER_SECOND).ceil() as u64
}

/// Seconds from an offer to an honest member's commit.
fn honest_seconds(scenario: &Scenario, member: &Member, update_bytes: f64) -> f64 {
    let learning = &scenario.learning;
    let batches = (member.rows.rows() as u64).div_ceil(learning.batch.into());
    let steps = batches * u64::from(learning.epochs);
    match &member.devices {
        Some(round) => round.times.commit_ms(steps) as f64 / MS_PER_SECOND,
        None => steps as f64 / member.steps_per_second + update_bytes / member.bytes_per_second,
    }
}

impl Simulation<'_> {
    /// The time in which an honest cohort would have the round's updates: that of the slowest one that is needed.
    pub(super) fn expected_seconds(&self, cohort: &[Address]) -> f64 {
        let bytes = super::member_work::update_bytes(self.scenario, &self.model);
        let members = cohort.iter().filter_map(|account| self.owner.get(account));
        let members = members.map(|(number, _)| &self.population.members[*number]);
        let mut seconds: Vec<f64> =
            members.map(|member| honest_seconds(self.scenario, member, bytes)).collect();
        seconds.sort_by(f64::total_cmp);
        let needed = self.market.spec().rounds.cohort_target as usize;
        seconds.get(needed.min(seconds.len()).saturating_sub(1)).copied().unwrap_or_default()
    }

    /// Replaces the cohort of the open round by that of the scenario's selector, if it has one. Members
    /// whose trainings go on stay; with fewer members than a round needs the market's cohort stays.
    pub(super) fn replace_cohort(&mut self) {
        let Some(mut state) = self.selector.take() else { return };
        let asked = self.market.offer().map(|offer| offer.cohort.clone()).unwrap_or_default();
        let goes_on = |account: &Address| self.market.training_goes_on(*account);
        let mut cohort: BTreeSet<Address> = asked.into_iter().filter(goes_on).collect();
        let members = self.selectable_members(&cohort);
        let rules = &self.market.spec().rounds;
        let places = (rules.selection_size() as usize).saturating_sub(cohort.len());
        let least = rules.cohort_min as usize;
        let round = self.rounds.len() as u64 + 1;
        let rng = &mut stream(self.seed, "selector", [round, 0]);
        let selected = state.select(&members, places.min(members.len()), round, rng);
        let identities = |number: usize| {
            let count = self.population.members[number].strategy.identities();
            (0..count).map(move |identity| account(number, identity))
        };
        cohort.extend(selected.into_iter().flat_map(identities));
        self.selector = Some(state);
        if cohort.len() >= least {
            self.market.replace_cohort(cohort.into_iter().collect());
        } else {
            self.market_cohorts += 1;
        }
    }

    /// The members that a selector may select: those that the market may ask and that check in now, by
    /// the draw that decides which members answer the offer. Not those of `continuing` accounts.
    fn selectable_members(&mut self, continuing: &BTreeSet<Address>) -> Vec<SelectableMember> {
        let Some(candidates) = self.market.candidates() else { return Vec::new() };
        let eligible = candidates.accounts.iter().filter(|(account, candidate)| {
            matches!(candidate.standing, Standing::Eligible | Standing::Newcomer)
                && !continuing.contains(account)
        });
        let (moment, now) = (self.availability_index(), self.market.now().0);
        let later_ms = self.expected_round_ms();
        let bytes = super::member_work::update_bytes(self.scenario, &self.model);
        let mut members = Vec::new();
        let mut seen = BTreeSet::new();
        for (number, _) in eligible.filter_map(|(account, _)| self.owner.get(account)) {
            let member = &self.population.members[*number];
            let group = self.groups[member.group];
            let checks_in = member.is_online(&group.online, moment, now, self.seed)
                && self.habits[*number].participates(group.outside_option, moment);
            if !checks_in || !seen.insert(*number) {
                continue;
            }
            members.push(SelectableMember {
                number: *number,
                seconds: honest_seconds(self.scenario, member, bytes),
                later: member.probability_still_online(&group.online, moment, now, later_ms),
            });
        }
        members
    }

    /// REFL's estimate of a round's duration: a moving average of the durations so far; before the first
    /// round the longest time of a training.
    fn expected_round_ms(&self) -> u64 {
        let durations = self.rounds.iter().map(|round| round.duration_ms as f64);
        let average = durations
            .reduce(|average, last| last * (1.0 - EARLIER_ROUNDS) + average * EARLIER_ROUNDS);
        average.map_or_else(|| self.commit_deadline_ms(), |ms| ms as u64)
    }

    /// Shows the selector the round's results: the losses of the senders on their own rows.
    pub(super) fn show_results(&mut self, base: &[f32], report: &Report) -> Result<(), SimError> {
        let Some(state) = self.selector.as_mut() else { return Ok(()) };
        let wide: Vec<f64> = base.iter().map(|value| f64::from(*value)).collect();
        let mut results = Vec::new();
        for entry in &report.entries {
            let Some((number, _)) = self.owner.get(&entry.sender) else { continue };
            let rows = &self.population.members[*number].rows;
            let losses = self.worker.row_losses(&self.model, &wide, rows)?;
            let right = self.worker.correct_predictions(&self.model, &wide, rows)?;
            let count = rows.rows().max(1) as f64;
            let squares: f64 = losses.iter().map(|loss| loss * loss).sum();
            results.push(MemberFeedback {
                number: *number,
                utility: count * (squares / count).sqrt(),
                accuracy: right as f64 / count,
            });
        }
        state.observe(&results, u64::from(report.scope.round.0));
        Ok(())
    }

    /// Accuracy of the newest model on the rows of each member.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn accuracies_of_members(&mut self) -> Result<Vec<f64>, SimError> {
        let wide: Vec<f64> = self.market.newest_model()?.into_iter().map(f64::from).collect();
        let mut all = Vec::with_capacity(self.population.members.len());
        for member in &self.population.members {
            let right = self.worker.correct_predictions(&self.model, &wide, &member.rows)?;
            all.push(right as f64 / member.rows.rows().max(1) as f64);
        }
        Ok(all)
    }
}
