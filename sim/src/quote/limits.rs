//! The limits that a task itself sets on pay and debits, without a simulation.

use florin_learning::BoundedLoss;
use florin_protocol::pay::{NANO_PER_NAT, round_pool};
use florin_protocol::{Amount, AmountError, Micro, ModelArchitecture, ModelLoss, TaskSpec};

/// The limits of a task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PayLimits {
    /// Locked in all: for data and infrastructure.
    pub locked: Amount,
    /// The most that the first round pays for data. Unspent pools roll over.
    pub round_pool: Amount,
    /// The floor of a round.
    pub round_floor: Amount,
    /// The floor of all rounds.
    pub floor: Amount,
    /// The part of it for each of `cohort_target` members of equal weight, if the holdout separates
    /// no update from noise.
    pub member_floor: Amount,
    /// The most that all scores together earn, if the model becomes perfect: the loss of equally
    /// likely labels at `per_nat_max`, and at most the data budget without the floor. An
    /// approximation: each round measures its improvement on other rows.
    pub score_pay: Amount,
    /// The most that a round debits from one bond.
    pub round_debit: Amount,
    /// The most that all rounds together debit from one minimum bond.
    pub debit: Amount,
    /// The loss of equally likely labels, in nats; of a graph with another loss, the largest.
    pub initial_loss: f64,
}

impl PayLimits {
    /// The limits of a task.
    ///
    /// # Errors
    /// [`AmountError`] on overflow.
    pub fn new(spec: &TaskSpec) -> Result<Self, AmountError> {
        let budget = &spec.budget;
        let rounds = u128::from(spec.rounds.count);
        let round_floor = spec.round_floor()?;
        let floor = round_floor.mul_div_down(rounds, 1)?;
        let initial_loss = initial_loss(spec);
        let nano = (initial_loss * NANO_PER_NAT as f64) as u128;
        // An overflow exceeds every budget.
        let priced = budget.per_nat_max.mul_div_down(nano, NANO_PER_NAT).unwrap_or(budget.data);
        let debits = budget.debit_max.mul_div_down(rounds, 1)?;
        Ok(Self {
            locked: budget.data.plus(budget.infrastructure)?,
            round_pool: round_pool(budget.data, spec.rounds.count),
            round_floor,
            floor,
            member_floor: floor.mul_div_down(1, spec.rounds.cohort_target.max(1).into())?,
            score_pay: priced.min(budget.data.minus(floor)?),
            round_debit: budget.debit_max,
            debit: debits.min(budget.bond_min),
            initial_loss,
        })
    }
}

/// The loss of equally likely labels, or the largest loss.
fn initial_loss(spec: &TaskSpec) -> f64 {
    let classes = match &spec.model {
        ModelArchitecture::Graph(graph) => match graph.loss {
            ModelLoss::CrossEntropy { .. } | ModelLoss::TokenCrossEntropy { .. } => graph.outputs,
            ModelLoss::Binary => 2,
            ModelLoss::Squared { bound }
            | ModelLoss::Absolute { bound }
            | ModelLoss::Huber { bound, .. }
            | ModelLoss::Output { bound } => return bound.0 as f64 / Micro::ONE.0 as f64,
        },
        _ => spec.data.classes,
    };
    let classes = classes.max(1);
    let uniform = f64::from(classes).ln();
    BoundedLoss::new(classes as usize).of_cross_entropy(uniform).0
}
