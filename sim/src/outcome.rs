//! The outcome of a simulation: its members, its rounds and its model.

use crate::devices::DeviceRound;
use crate::market::RoundTimeline;

/// The outcome of one member.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberOutcome {
    /// Index of its group among the group names.
    pub group: usize,
    /// Whether its strategy is the one that the task asks for.
    pub honest: bool,
    /// Number of its rows.
    pub rows: usize,
    /// Number of accepted updates of all its identities.
    pub rounds: u32,
    /// How often one of its identities was selected into a cohort.
    pub selected: u32,
    /// How many of its updates were excluded as harmful or rejected as near-duplicates.
    pub rejected: u32,
    /// How many of its updates led to a debit of its bond.
    pub debited: u32,
    /// Change of its balance since the start, in florins: pay minus debits.
    pub earned: f64,
    /// Cost of its work, in florins.
    pub cost: f64,
    /// Sum of its scores, in nats.
    pub score: f64,
    /// Sum of the standard errors of its scores, in nats.
    pub error: f64,
    /// Pay minus debits in each round.
    pub by_round: Vec<f64>,
    /// How many of its trainings ended too late for every round that could count them.
    pub late: u32,
    /// Its honest work by its devices; `None` without devices.
    pub devices: Option<DeviceRound>,
}

impl MemberOutcome {
    /// The outcome of a member before the first round.
    pub(crate) const fn initial(group: usize, honest: bool, rows: usize) -> Self {
        Self {
            group,
            honest,
            rows,
            rounds: 0,
            selected: 0,
            rejected: 0,
            debited: 0,
            earned: 0.0,
            cost: 0.0,
            score: 0.0,
            error: 0.0,
            by_round: Vec::new(),
            late: 0,
            devices: None,
        }
    }

    /// Earnings minus costs, in florins.
    #[must_use]
    pub fn profit(&self) -> f64 {
        self.earned - self.cost
    }
}

/// The outcome of one round.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundOutcomeRow {
    /// Round number, from 1.
    pub round: u32,
    /// When the round ended, in virtual milliseconds.
    pub at_ms: u64,
    /// Whether it ended with a settlement; false when there were too few updates.
    pub settled: bool,
    /// Number of members that were online at the start of the round and took part.
    pub online: usize,
    /// Number of accounts selected into the cohort.
    pub selected: usize,
    /// Number of accepted updates.
    pub updates: usize,
    /// How many of them were excluded from the aggregate as harmful.
    pub excluded: usize,
    /// How many of them were rejected as near-duplicates.
    pub near_duplicates: usize,
    /// Decrease of the loss on the round's holdout rows, in nats.
    pub improvement: f64,
    /// Paid for data, in florins.
    pub spent: f64,
    /// Accuracy of the new model on the test rows.
    pub accuracy: f64,
    /// Number of trainings that ended with this round, too late for every round that could count them.
    pub late: usize,
    /// Number of selected accounts whose devices have too little memory for a step.
    pub too_small: usize,
    /// Milliseconds from the offer to the end of the round: until the last update, or until the
    /// deadlines if an update is missing. Without the time of the valuation.
    pub duration_ms: u64,
}

/// The outcome of the simulation of one seed.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulationOutcome {
    /// The seed.
    pub seed: u64,
    /// Names of the groups.
    pub groups: Vec<String>,
    /// The outcome of every member.
    pub members: Vec<MemberOutcome>,
    /// The outcome of every round.
    pub rounds: Vec<RoundOutcomeRow>,
    /// The times of every round's messages; empty if the simulation draws scores.
    pub timelines: Vec<RoundTimeline>,
    /// Accuracy on the test rows before the first round.
    pub accuracy_before: f64,
    /// Backdoor success rate: fraction of triggered test rows that the final model assigns to the
    /// backdoor's target class.
    pub backdoor: f64,
    /// Unspent florins of the budget that the buyer received back.
    pub returned: f64,
    /// Whether the total of all accounts equals the supply at the end.
    pub balanced: bool,
    /// Number of rounds in which the scenario's selector had fewer than `cohort_min` members, so that
    /// the market's cohort was asked.
    pub market_cohorts: u32,
}
