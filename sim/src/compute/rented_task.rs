//! A task whose members rent the training of each round: tokens flow to data by the task, and to infrastructure by the
//! leases.

use super::scenario::{ComputeScenario, RentedTask};
use super::{ComputeError, HOUR_MS};
use crate::scenario::{Check, Scenario, ScenarioError, built_in};

/// The trainings and the pay of the members of a task.
#[derive(Clone, Debug)]
pub(super) struct TaskMembers {
    /// Of each member: pay minus debits in florins.
    pub(super) paid: Vec<f64>,
    /// Of each member: accepted updates.
    pub(super) rounds: Vec<u32>,
    /// Member, moment of the offer in milliseconds, and steps of a segment of its order.
    pub(super) trainings: Vec<(usize, u64, u32)>,
}

impl RentedTask {
    /// The scenario of the task.
    ///
    /// # Errors
    /// [`ScenarioError`] for a name that no scenario of tasks has.
    pub(super) fn scenario(&self) -> Result<Scenario, ScenarioError> {
        let unknown = || ScenarioError::Unknown { name: self.scenario.clone() };
        Scenario::read(built_in(&self.scenario).ok_or_else(unknown)?.text, &[])
    }

    /// Checks that each member of the task is a renter.
    pub(super) fn check(&self, scenario: &ComputeScenario) -> Result<(), ScenarioError> {
        let task = self.scenario()?;
        Check::require_range("task.hours_per_row", self.hours_per_row, 1e-9, 1e3)?;
        Check::require_range("task.round_minutes", self.round_minutes, 1e-3, 1e6)?;
        let right = "must name a group of renters";
        let renters = scenario.renters.get(&self.renters);
        Check::require(renters.is_some(), "task.renters", &self.renters, right)?;
        let members: u32 = task.population.values().map(|group| group.count).sum();
        let count = renters.map_or(0, |renters| renters.count);
        let right = format!("must be {members}: each member of the task is a renter");
        let key = format!("renters.{}.count", self.renters);
        Check::require(count == members, key, &count, &right)
    }

    /// Milliseconds from one offer to the next.
    pub(super) fn round_ms(&self) -> u64 {
        (self.round_minutes * 60e3).round() as u64
    }

    /// Simulates the task with a seed.
    ///
    /// # Errors
    /// [`ComputeError`] of the simulation.
    pub(super) fn play(
        &self,
        scenario: &ComputeScenario,
        seed: u64,
    ) -> Result<TaskMembers, ComputeError> {
        let missing = |error: ScenarioError| ComputeError::Wallet(error.to_string());
        let task = self.scenario().map_err(missing)?;
        let played = crate::batch::simulate(&task, seed, 1)?;
        let order = &scenario.order;
        let segment_ms = order.step_ms * f64::from(order.segments);
        let steps = |rows: usize| {
            let ms = self.hours_per_row * rows as f64 * HOUR_MS as f64;
            (ms / segment_ms).round().max(1.0) as u32
        };
        let mut trainings = Vec::new();
        for (number, member) in played.members.iter().enumerate() {
            let offers =
                (0..member.rounds).map(|round| self.round_ms().saturating_mul(round.into()));
            trainings.extend(offers.map(|at_ms| (number, at_ms, steps(member.rows))));
        }
        let paid = played.members.iter().map(|member| member.earned).collect();
        let rounds = played.members.iter().map(|member| member.rounds).collect();
        Ok(TaskMembers { paid, rounds, trainings })
    }
}
