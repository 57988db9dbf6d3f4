//! The quote of a task: what it will probably pay, cost and reach, before any money is locked.
//!
//! [`quote`] simulates the task on its own holdout with the production engine, valuation, pay rule
//! and ledger. Some of the holdout rows become training rows of simulated members: honest ones, one
//! with wrong labels, and one that sends noise. The other rows value the rounds. The simulation is
//! repeated over several seeds, which derive from the task, so that one task has one quote.
//!
//! * [`QuotePlan`] divides the rows and limits the work; [`NoQuote`] is the reason if it cannot.
//! * [`PayLimits`] needs no simulation: the limits that the task itself sets.
//! * [`Power`] decides whether an honest member can be paid at all.
//! * [`LabelCheck`] compares the holdout's labels with a model that trained on the other half.

mod labels;
mod limits;
mod plan;
mod power;
mod simulate;

use std::sync::atomic::{AtomicU32, Ordering};

use florin_learning::engine::TrainError;
use florin_learning::graph::GraphModel;
use florin_learning::{Dataset, parallel_map};
use florin_protocol::{Amount, Canonical, TaskSpec, Timestamp};
use florin_work::task_model;

use crate::error::SimError;
use crate::market::{BUYER, COORDINATOR};

pub use labels::{LabelCheck, LabelVerdict};
pub use limits::PayLimits;
pub use plan::{HOLDOUT_ROWS_MIN, NoQuote, QuotePlan, WRONG_LABELS_PERCENT};
pub use power::{Power, PowerVerdict};

use simulate::{MemberRole, QuoteTask, SeedOutcome};

/// A share of the pay of honest members, in per cent: what they retain if one person joins the task
/// as ten identities with much data. Measured by `cargo xtask bench pay`.
pub const HONEST_KEEP_PERCENT_WITH_TEN_IDENTITIES: u32 = 30;

/// Percentiles that bound a [`Spread`].
const LOW_PERCENT: usize = 10;
const HIGH_PERCENT: usize = 90;

/// A range of outcomes over members and seeds: the 10th percentile, the median and the 90th.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// The 10th percentile.
    pub low: i128,
    /// The median.
    pub median: i128,
    /// The 90th percentile.
    pub high: i128,
}

impl Spread {
    /// The range of `values`, by nearest rank; zeros for no values.
    #[must_use]
    pub fn from_values(mut values: Vec<i128>) -> Self {
        values.sort_unstable();
        let rank = |percent: usize| (values.len() * percent).div_ceil(100).saturating_sub(1);
        let at = |percent| values.get(rank(percent)).copied().unwrap_or_default();
        Self { low: at(LOW_PERCENT), median: at(50), high: at(HIGH_PERCENT) }
    }
}

/// The quote of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Quote {
    /// The size of the simulations.
    pub plan: QuotePlan,
    /// Pay minus debits of an honest member, in base units.
    pub honest: Spread,
    /// Pay minus debits of a member that sends noise, in base units.
    pub noise: Spread,
    /// Pay minus debits of a member with wrong labels, in base units.
    pub wrong_labels: Spread,
    /// Paid to members, in base units.
    pub data_spent: Spread,
    /// The most that the infrastructure budget pays for the verified work, in base units.
    pub infrastructure_spent: Spread,
    /// Correct predictions of the initial model on the rows that value the rounds, per million; zeros
    /// for a loss without right predictions.
    pub accuracy_before: Spread,
    /// Correct predictions of the last model on these rows, per million.
    pub accuracy: Spread,
    /// Mean loss of the initial model on these rows, in nano-units.
    pub loss_before: Spread,
    /// Mean loss of the last model on these rows, in nano-units.
    pub loss: Spread,
    /// Void rounds of a simulation.
    pub void_rounds: Spread,
    /// The power of the scores.
    pub power: Power,
    /// The check of the labels; `None` if the labels are no classes.
    pub labels: Option<LabelCheck>,
}

/// Why there is no quote.
#[derive(Debug, thiserror::Error)]
pub enum QuoteError {
    /// The task cannot be simulated.
    #[error(transparent)]
    NoQuote(#[from] NoQuote),
    /// The training of an honest member diverges.
    #[error("the training of an honest member diverges at step {step}")]
    Diverged {
        /// The step, from 1.
        step: u64,
    },
    /// The simulation failed.
    #[error(transparent)]
    Failed(#[from] SimError),
}

/// A task with its data, as `florin task check` reads them.
#[derive(Clone, Copy, Debug)]
pub struct QuoteInputs<'a> {
    /// The task.
    pub spec: &'a TaskSpec,
    /// The loaded graph, if the task's model is one.
    pub graph: Option<&'a GraphModel>,
    /// The initial parameters, as safetensors.
    pub base_model: &'a [u8],
    /// The holdout rows.
    pub holdout: &'a Dataset,
}

/// Simulates a task on up to `threads` threads; `progress` receives the numbers of finished and of
/// all simulations. The result depends on the task alone, not on its parties, its expiry or the
/// number of threads.
///
/// # Errors
/// [`QuoteError`].
pub fn quote(
    inputs: &QuoteInputs<'_>,
    threads: usize,
    progress: &(dyn Fn(u32, u32) + Sync),
) -> Result<Quote, QuoteError> {
    let model = task_model(inputs.spec, inputs.graph);
    let plan = QuotePlan::new(inputs.spec, &model)?;
    let spec = plan.simulated_spec(inputs.spec)?;
    let task = QuoteTask {
        seed: seed_of(inputs.spec),
        model,
        spec,
        base_model: inputs.base_model,
        holdout: inputs.holdout,
        plan,
    };
    let labels = task.has_classes().then(|| LabelCheck::new(&task)).transpose()?;
    let done = AtomicU32::new(0);
    progress(0, plan.seeds);
    let outcomes = parallel_map(threads, (0..plan.seeds).collect(), |number| {
        let outcome = task.simulate(number.into());
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, plan.seeds);
        outcome
    });
    let outcomes = outcomes.into_iter().collect::<Result<Vec<SeedOutcome>, _>>()?;
    Ok(summary(inputs.spec, plan, &outcomes, labels))
}

fn summary(
    spec: &TaskSpec,
    plan: QuotePlan,
    seeds: &[SeedOutcome],
    labels: Option<LabelCheck>,
) -> Quote {
    let earned = |role: MemberRole| {
        let own = seeds.iter().flat_map(|seed| &seed.earned).filter(|(of, _)| *of == role);
        Spread::from_values(own.map(|(_, units)| plan.scaled_pay(*units)).collect())
    };
    let each = |value: &dyn Fn(&SeedOutcome) -> i128| {
        Spread::from_values(seeds.iter().map(value).collect())
    };
    let infrastructure = |seed: &SeedOutcome| {
        let all = spec
            .budget
            .per_unit
            .mul_div_down(seed.work_units.into(), 1)
            .unwrap_or(spec.budget.infrastructure);
        signed(all.min(spec.budget.infrastructure))
    };
    Quote {
        plan,
        honest: earned(MemberRole::Honest),
        noise: earned(MemberRole::Noise),
        wrong_labels: earned(MemberRole::WrongLabels),
        data_spent: each(&|seed| signed(seed.data_spent)),
        infrastructure_spent: each(&infrastructure),
        accuracy_before: each(&|seed| seed.accuracy_before.into()),
        accuracy: each(&|seed| seed.accuracy.into()),
        loss_before: each(&|seed| seed.loss_before.into()),
        loss: each(&|seed| seed.loss.into()),
        void_rounds: each(&|seed| seed.void_rounds.into()),
        power: Power::measure(spec, plan.simulated_rows(spec), seeds),
        labels,
    }
}

/// An amount as a signed number of base units.
fn signed(amount: Amount) -> i128 {
    i128::try_from(amount.units()).unwrap_or(i128::MAX)
}

/// The seed of a task's simulations. Parties and expiry have no effect on it: they are not in the
/// task file, or depend on the time of the check.
fn seed_of(spec: &TaskSpec) -> u64 {
    let mut spec = spec.clone();
    (spec.buyer, spec.coordinator, spec.arbiter) = (BUYER, COORDINATOR, COORDINATOR);
    spec.market = TaskSpec::example().market;
    spec.expires = Timestamp(0);
    let first = spec.digest().0.first_chunk::<8>().copied();
    u64::from_le_bytes(first.unwrap_or_default())
}

/// The failure of a training: divergence is a property of the task, all others are faults.
fn training_error(error: TrainError) -> QuoteError {
    match error {
        TrainError::Diverged { step } => QuoteError::Diverged { step },
        other => SimError::Act(other.into()).into(),
    }
}

#[cfg(test)]
mod tests;
