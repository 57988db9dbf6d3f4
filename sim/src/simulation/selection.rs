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

    /// Replaces the cohort of the open round by that of the scenario's selector, if it has one.
    pub(super) fn replace_cohort(&mut self) -> Result<(), SimError> {
        let (Some(state), Some(candidates)) = (self.selector.as_mut(), self.market.candidates())
        else {
            return Ok(());
        };
        let moment = self.rounds.len() as u64 + 1 + self.waits;
        let now = self.market.now().0;
        let bytes = super::member_work::update_bytes(self.scenario, &self.model);
        let eligible = candidates.accounts.iter().filter(|(_, candidate)| {
            matches!(candidate.standing, Standing::Eligible | Standing::Newcomer)
        });
        let mut members = Vec::new();
        let mut seen = BTreeSet::new();
        for (number, _) in eligible.filter_map(|(account, _)| self.owner.get(account)) {
            let member = &self.population.members[*number];
            if member.sends_nothing() || !seen.insert(*number) {
                continue;
            }
            let online = &self.groups[member.group].online;
            members.push(SelectableMember {
                number: *number,
                seconds: honest_seconds(self.scenario, member, bytes),
                availability: member.probability_online(online, moment, now),
            });
        }
        let rules = &self.market.spec().rounds;
        let places = rules.selection_size() as usize;
        let round = self.rounds.len() as u64 + 1;
        let rng = &mut stream(self.seed, "selector", [round, 0]);
        let selected = state.select(&members, places.min(members.len()), round, rng);
        let identities = |number: usize| {
            let count = self.population.members[number].strategy.identities();
            (0..count).map(move |identity| account(number, identity))
        };
        let cohort: BTreeSet<Address> = selected.into_iter().flat_map(identities).collect();
        if cohort.len() >= rules.cohort_min as usize {
            self.market.replace_cohort(cohort.into_iter().collect());
        }
        Ok(())
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
