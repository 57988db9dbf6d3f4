//! The size of a quote's simulations: how the holdout rows are divided, and how many simulations
//! fit into the time of a command.

use florin_contribution::PERMUTATION_PAIRS;
use florin_learning::graph::{GraphModel, ROW_BYTES_MAX};
use florin_learning::{ModelSpec, Reference};
use florin_protocol::{Admission, Digest, Estimator, TaskSpec, Timestamp};

use crate::market::{BUYER, COORDINATOR, ENROL_MS};

/// Share of the labels of the member with wrong labels that are wrong, in per cent.
pub const WRONG_LABELS_PERCENT: u32 = 40;

/// Simulations of a quote: at least and at most. Fewer show no range.
const SEEDS_MIN: u32 = 3;
const SEEDS_MAX: u32 = 16;
/// Honest members of a simulation: at least and at most.
const HONEST_MIN: u32 = 2;
const HONEST_MAX: u32 = 8;
/// Training rows of a simulated member: at least and at most.
const MEMBER_ROWS_MIN: u32 = 20;
const MEMBER_ROWS_MAX: u32 = 100;
/// Largest share of the holdout that simulated members train on: two thirds.
const TRAINED: [u32; 2] = [2, 3];
/// Rows on which the labels are checked, at most.
pub(super) const LABEL_ROWS_MAX: u32 = 2_000;
/// Number of times that the labels are shuffled to measure the accuracy of chance.
pub(super) const SHUFFLES: u64 = 20;
/// Epochs of the training that checks the labels, at most.
const LABEL_EPOCHS_MAX: u32 = 60;

/// Limit on the work of a quote in multiplications, an estimate: a few seconds in a development
/// build. A measured time would let two runs of one task differ.
const WORK_MAX: f64 = 4e10;
/// Work of a round that does not depend on its size, of one of its parameters in one update (encoding,
/// digests, comparisons), and of one value of its rows.
const ROUND_WORK: f64 = 1e6;
const PARAMETER_WORK: f64 = 20.0;
const VALUE_WORK: f64 = 100.0;
/// Work of a multiplication in a graph, which runs operator by operator.
const GRAPH_WORK: f64 = 4.0;
/// Time of each phase in the simulation, its challenge window and its unbonding delay, in
/// milliseconds of virtual time.
const PHASE_MS: u64 = 1_000;
const UNBOND_MS: u64 = 24 * 3_600 * 1_000;

/// The size of the simulations of a quote.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuotePlan {
    /// Number of simulations.
    pub seeds: u32,
    /// Honest members in each.
    pub honest: u32,
    /// `rounds.cohort_target` of the task: pay is stated for that many honest members.
    pub cohort_target: u32,
    /// Training rows of each member that trains, on average.
    pub member_rows: u32,
    /// Holdout rows that no member trains on: they value the rounds.
    pub valuation_rows: u32,
    /// Epochs of the training that checks the labels.
    pub(super) label_epochs: u32,
    /// Multiplications of a forward pass of one row.
    row_work: f64,
}

/// Fewest holdout rows of a simulation.
pub const HOLDOUT_ROWS_MIN: u32 = (HONEST_MIN + 1) * MEMBER_ROWS_MIN / TRAINED[0] * TRAINED[1];

/// Why a task has no quote. The limits that the task itself sets hold without one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoQuote {
    /// The plain-Rust engine lacks the model.
    #[error("the simulation runs on the plain-Rust engine: {0}")]
    Model(String),
    /// The holdout is too small to divide.
    #[error(
        "the holdout has {rows} rows: a simulation divides it among members and valuation, and needs \
         at least {needed}"
    )]
    TooFewRows {
        /// Rows of the holdout.
        rows: u32,
        /// Rows that a simulation needs.
        needed: u32,
    },
    /// A few simulations exceed the limit on work.
    #[error("model, rows and rounds are too large to simulate within seconds")]
    TooLarge,
    /// The rules need more members than the simulation has.
    #[error("a simulation of {members} members does not fit the task: {reason}")]
    Rules {
        /// Members of the simulation.
        members: u32,
        /// The broken rule.
        reason: String,
    },
}

impl QuotePlan {
    /// Plans the simulations of a task with this model.
    ///
    /// # Errors
    /// [`NoQuote`].
    pub fn new(spec: &TaskSpec, model: &ModelSpec) -> Result<Self, NoQuote> {
        let batch = usize::try_from(spec.training.batch).unwrap_or(usize::MAX);
        let batch = batch.min(LABEL_ROWS_MAX as usize);
        if model.is_trainer() {
            let why = "its trainer is a program, and a simulation runs none".to_owned();
            return Err(NoQuote::Model(why));
        }
        Reference::check_model(model, batch).map_err(|error| NoQuote::Model(error.to_string()))?;
        let row_work = match model {
            ModelSpec::Graph(graph) => graph_work(graph)?,
            _ => spec.model.parameters().unwrap_or(u64::MAX) as f64,
        };
        let rows = spec.holdout.rows;
        let trained = rows / TRAINED[1] * TRAINED[0];
        // One more member trains: the one with wrong labels.
        let fitting = (trained / MEMBER_ROWS_MIN).saturating_sub(1);
        let honest = spec.rounds.cohort_target.clamp(HONEST_MIN, HONEST_MAX).min(fitting);
        if honest < HONEST_MIN {
            return Err(NoQuote::TooFewRows { rows, needed: HOLDOUT_ROWS_MIN });
        }
        let member_rows = (trained / (honest + 1)).min(MEMBER_ROWS_MAX);
        let epochs = spec.training.epochs.saturating_mul(spec.rounds.count);
        let mut plan = Self {
            seeds: 0,
            honest,
            cohort_target: spec.rounds.cohort_target,
            member_rows,
            valuation_rows: rows - member_rows * (honest + 1),
            label_epochs: epochs.min(LABEL_EPOCHS_MAX),
            row_work,
        };
        let left = WORK_MAX - plan.label_work(spec);
        let seeds = (left / plan.seed_work(spec)).floor().min(SEEDS_MAX.into());
        if seeds < f64::from(SEEDS_MIN) {
            return Err(NoQuote::TooLarge);
        }
        plan.seeds = seeds as u32;
        Ok(plan)
    }

    /// Number of members of a simulation: honest ones, one with wrong labels, one that sends noise.
    #[must_use]
    pub const fn members(&self) -> u32 {
        self.honest + 2
    }

    /// Holdout rows on which members train.
    pub(super) const fn trained_rows(&self) -> u32 {
        self.member_rows * (self.honest + 1)
    }

    /// The pay of a member of the simulation in a task with `cohort_target` honest members: a round's
    /// pool is shared by all of them. Debits depend on the member's own update only.
    #[must_use]
    pub fn scaled_pay(&self, units: i128) -> i128 {
        match units > 0 {
            true => {
                units.saturating_mul(self.honest.into()) / i128::from(self.cohort_target.max(1))
            }
            false => units,
        }
    }

    /// Rows that value a round of the simulation.
    pub(super) fn simulated_rows(&self, task: &TaskSpec) -> u32 {
        task.holdout.rows_per_round.min(self.valuation_rows)
    }

    fn seed_work(&self, spec: &TaskSpec) -> f64 {
        let (nodes, cross_check_pairs) = match spec.estimator {
            Estimator::Path { nodes, cross_check_pairs } => (nodes, cross_check_pairs.into()),
            // Pairs of random orders, or all coalitions of a few members: no more passes than these.
            Estimator::Coalitions => (0, PERMUTATION_PAIRS),
        };
        let parameters = spec.model.parameters().unwrap_or(u64::MAX) as f64;
        let members = f64::from(self.members());
        let trained = f64::from(self.honest + 1)
            * f64::from(self.member_rows)
            * f64::from(spec.training.epochs)
            * 3.0;
        let passes =
            f64::from(nodes) * (3.0 + members) + 2.0 * f64::from(cross_check_pairs) * members + 3.0;
        let valued = f64::from(spec.holdout.rows_per_round);
        let values = valued * f64::from(spec.data.width);
        let round = self.row_work * (trained + valued * passes)
            + parameters * members * PARAMETER_WORK
            + values * VALUE_WORK
            + ROUND_WORK;
        round * f64::from(spec.rounds.count)
    }

    fn label_work(&self, spec: &TaskSpec) -> f64 {
        let rows = f64::from(spec.holdout.rows.min(LABEL_ROWS_MAX));
        rows * (f64::from(self.label_epochs) * 3.0 + SHUFFLES as f64) * self.row_work
    }

    /// The task as it is simulated: all members are selected in every round, and virtual time is
    /// short.
    ///
    /// # Errors
    /// [`NoQuote::Rules`].
    pub(super) fn simulated_spec(&self, task: &TaskSpec) -> Result<TaskSpec, NoQuote> {
        let mut spec = task.clone();
        let example = TaskSpec::example();
        (spec.market, spec.arbiter) = (example.market, example.arbiter);
        (spec.buyer, spec.coordinator) = (BUYER, COORDINATOR);
        // The simulated members are no real accounts, which a list or invitations would admit.
        spec.admission = Admission::Open;
        spec.expires = Timestamp(u64::MAX >> 2);
        let rounds = &mut spec.rounds;
        rounds.cohort_target = self.members();
        rounds.cohort_min = rounds.cohort_min.min(self.members());
        rounds.over_selection = 0;
        rounds.enrol_ms = ENROL_MS;
        (rounds.train_ms, rounds.reveal_ms, rounds.value_ms) = (PHASE_MS, PHASE_MS, PHASE_MS);
        (spec.budget.challenge_ms, spec.budget.unbond_ms) = (PHASE_MS, UNBOND_MS);
        // Rows of one round must differ.
        spec.holdout.rows_per_round = self.simulated_rows(task);
        // The drawn rows repeat the rows that value the rounds as often as necessary.
        spec.holdout.rows = spec.holdout.rows_per_round.saturating_mul(spec.rounds.count);
        spec.holdout.root = Digest([1; 32]);
        spec.check().map_err(|error| NoQuote::Rules {
            members: self.members(),
            reason: error.to_string(),
        })?;
        Ok(spec)
    }
}

/// The work of a row's forward pass through a graph.
fn graph_work(graph: &GraphModel) -> Result<f64, NoQuote> {
    let flops =
        graph.row_flops(ROW_BYTES_MAX).map_err(|error| NoQuote::Model(error.to_string()))?;
    Ok(flops as f64 / 2.0 * GRAPH_WORK)
}
