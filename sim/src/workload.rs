//! The workload for comparisons with other simulators: federated averaging of a small network on
//! handwritten digits, over clients with a skewed label distribution, with and without a market.
//!
//! The rows, the partition and the initial model are drawn here. [`Workload::to_json`] exports them
//! to other programs, so that all of them train the same model on the same rows.

use std::ops::ControlFlow;

use florin_learning::data::{DatasetError, LoadError, load};
use florin_learning::{
    AggregateError, AggregationRule, DataSource, Dataset, Evaluator, ModelSpec, PartitionScheme,
    Reference, SplitPart, Trainer, Training, aggregate_on, parallel_map, partition, split,
};
use serde_json::json;

use crate::error::SimError;
use crate::member_updates::MemberTrainingError;
use crate::population::{Member, Population};
use crate::random::{stream, uniform_below};
use crate::scenario::Scenario;
use crate::simulation::Simulation;
use crate::strategy::Strategy;

/// Fraction of the digits that the clients own; the rest is the test set.
const TRAINED: f64 = 0.8;
/// Label skew: the concentration of the Dirichlet distribution.
const DIRICHLET_ALPHA: f64 = 0.5;
/// Minimum rows per client.
const ROWS_MIN: usize = 2;
/// Rows per client when rows are drawn with replacement.
const ROWS_EACH: usize = 20;
/// Units of the hidden layer.
const HIDDEN: u32 = 128;
/// Batch size.
const BATCH: u32 = 16;
/// Learning rate.
const LEARNING_RATE: f64 = 0.1;

/// Minimum bond of a client, and maximum debit per round, in florins. They are small enough that a
/// client with two rows and a bond of 0.2 is still selected after a hundred debits. Rounds with
/// fewer clients would distort the measured time of a round.
const BOND_MIN: f64 = 0.01;
const DEBIT_MAX: f64 = 0.001;

/// Error of drawing a workload or running a round of it.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The digits dataset cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The digits cannot be split into training and test rows.
    #[error(transparent)]
    Split(#[from] florin_learning::partition::SplitError),
    /// The training rows cannot be partitioned among this number of clients.
    #[error(transparent)]
    Partition(#[from] florin_learning::partition::PartitionError),
    /// The rows do not form a valid dataset.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// A client failed to train.
    #[error(transparent)]
    Train(#[from] florin_learning::engine::TrainError),
    /// The updates cannot be aggregated.
    #[error(transparent)]
    Aggregate(#[from] AggregateError),
    /// A model cannot be evaluated.
    #[error(transparent)]
    Measure(#[from] florin_learning::engine::EvalError),
    /// The market simulation failed.
    #[error(transparent)]
    Market(#[from] SimError),
    /// The scenario of the market is invalid.
    #[error(transparent)]
    Scenario(#[from] crate::ScenarioError),
}

/// The number of clients and how rows are assigned to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// This number of clients with disjoint rows; the label skew follows a Dirichlet distribution
    /// with concentration 0.5.
    Dirichlet(usize),
    /// This number of clients with 20 rows each, drawn with replacement: several clients can own
    /// one row.
    WithReplacement(usize),
}

/// Clients with their rows, the test rows, the model and its training settings.
#[derive(Clone, Debug)]
pub struct Workload {
    digits: Dataset,
    /// Rows of each client, as indices into the digits.
    client_rows: Vec<Vec<usize>>,
    clients: Vec<Dataset>,
    test_rows: Vec<usize>,
    test: Dataset,
    model: ModelSpec,
    how: Training,
    initial_params: Vec<f32>,
    seed: u64,
}

impl Workload {
    /// Draws a workload for `seed`.
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn draw(clients: Clients, seed: u64) -> Result<Self, WorkloadError> {
        let digits = load(&DataSource::Digits)?;
        let mut parts =
            split(digits.rows(), seed, &[SplitPart::Fraction(TRAINED), SplitPart::Rest])?;
        let judged = parts.pop().unwrap_or_default();
        let trained = parts.pop().unwrap_or_default();
        let owned: Vec<Vec<usize>> = match clients {
            Clients::Dirichlet(count) => {
                let how = PartitionScheme::Dirichlet { alpha: DIRICHLET_ALPHA };
                let cut = partition(&digits.subset(&trained)?, count, &how, ROWS_MIN, seed)?;
                let places = |rows: Vec<usize>| rows.into_iter().map(|row| trained[row]).collect();
                cut.into_iter().map(places).collect()
            }
            Clients::WithReplacement(count) => {
                let rng = &mut stream(seed, "many", [0, 0]);
                let mut row = || trained[uniform_below(rng, trained.len() as u64) as usize];
                (0..count).map(|_| (0..ROWS_EACH).map(|_| row()).collect()).collect()
            }
        };
        let own = owned.iter().map(|rows| digits.subset(rows)).collect::<Result<_, _>>()?;
        let test = digits.subset(&judged)?;
        let model = ModelSpec::Mlp { inputs: 64, hidden: vec![HIDDEN as usize], classes: 10 };
        let how = Training::sgd(1, BATCH, LEARNING_RATE);
        let initial_params = model.init(seed).into_vec();
        Ok(Self {
            digits,
            client_rows: owned,
            clients: own,
            test_rows: judged,
            test,
            model,
            how,
            initial_params,
            seed,
        })
    }

    /// Number of rows of all clients together.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.clients.iter().map(Dataset::rows).sum()
    }

    /// Everything that another program needs to train the same model: all digits, the row indices
    /// of each client, and the initial model's parameters, layer by layer: the weights, row by row
    /// of the inputs, then the biases.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let rows: Vec<&[f32]> = (0..self.digits.rows()).map(|row| self.digits.row(row)).collect();
        json!({
            "rows": rows,
            "labels": self.digits.labels(),
            "clients": self.client_rows,
            "test_rows": self.test_rows,
            "initial_params": self.initial_params,
            "batch": self.how.batch,
            "learning_rate": self.how.learning_rate,
        })
    }

    /// Federated averaging, starting from the initial model.
    #[must_use]
    pub fn fedavg(&self) -> FedAvg<'_> {
        FedAvg { workload: self, params: self.initial_params.clone(), round: 0 }
    }

    /// The same clients in a market: every round is valued on `judged` holdout rows, paid and
    /// booked. The holdout rows are the workload's test rows, repeated as often as necessary.
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn scenario(
        &self,
        cohort: u32,
        rounds: u32,
        judged: u32,
    ) -> Result<Scenario, WorkloadError> {
        let text = format!(
            "name = \"workload\"\nquestion = \"How long does a round take?\"\nrounds = {rounds}\n\
             [learning]\nhidden = [{HIDDEN}]\nepochs = 1\nbatch = {BATCH}\nlearning_rate = \
             {LEARNING_RATE}\n\
             holdout_rows_per_round = {judged}\nholdout_rows = {}\nfeature_noise = 1\n\
             [task]\ncohort = {cohort}\nbond_min = {BOND_MIN}\ndebit_max = {DEBIT_MAX}\n\
             [population.client]\ncount = {}\n",
            u64::from(judged) * u64::from(rounds),
            self.clients.len(),
        );
        Ok(Scenario::read(&text, &[])?)
    }

    /// The simulation of a [`scenario`](Self::scenario).
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn simulation<'a>(&self, scenario: &'a Scenario) -> Result<Simulation<'a>, WorkloadError> {
        let fast = 1e9;
        let member = |(number, rows): (usize, &Dataset)| Member {
            number,
            group: 0,
            index_in_group: number,
            strategy: Strategy::Honest,
            rows: rows.clone(),
            steps_per_second: fast,
            bytes_per_second: fast,
            day_shift_hours: 0.0,
            devices: None,
        };
        let needed = scenario.learning.holdout_rows as usize;
        let judging: Vec<usize> = self.test_rows.iter().copied().cycle().take(needed).collect();
        let population = Population {
            groups: scenario.population.keys().cloned().collect(),
            members: self.clients.iter().enumerate().map(member).collect(),
            holdout: self.digits.subset(&judging)?,
            test: self.test.clone(),
        };
        Ok(Simulation::new(scenario, self.seed, population)?)
    }
}

/// Federated averaging between two rounds.
#[derive(Clone, Debug)]
pub struct FedAvg<'a> {
    workload: &'a Workload,
    params: Vec<f32>,
    round: u64,
}

impl FedAvg<'_> {
    /// Runs one round: `cohort` clients train on up to `threads` threads, and the mean of their
    /// updates, weighted by rows, is added to the model. The number of threads changes only the run
    /// time.
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn round(&mut self, cohort: usize, threads: usize) -> Result<(), WorkloadError> {
        let Workload { clients, model, how, seed, .. } = self.workload;
        self.round += 1;
        let asked = sample_clients(clients.len(), cohort, *seed, self.round);
        let (round, base) = (self.round, &self.params);
        let learned = parallel_map(threads, asked, |client| {
            let rows = &clients[client];
            let mut rng = stream(*seed, "batches", [client as u64, round]);
            let salt = uniform_below(&mut rng, u64::MAX);
            let go_on = &mut |_| ControlFlow::Continue(());
            let mut delta = Reference::new().train(model, base, rows, how, salt, go_on)?.params;
            delta.iter_mut().zip(base).for_each(|(new, old)| *new -= old);
            Ok::<_, WorkloadError>((rows.rows() as u64, delta))
        });
        let learned = learned.into_iter().collect::<Result<Vec<_>, _>>()?;
        let updates: Vec<(u64, &[f32])> =
            learned.iter().map(|(rows, delta)| (*rows, delta.as_slice())).collect();
        let step = aggregate_on(AggregationRule::Mean, &updates, 1)?;
        self.params.iter_mut().zip(step).for_each(|(param, step)| *param += step);
        Ok(())
    }

    /// Accuracy of the model on the test rows.
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn accuracy(&self) -> Result<f64, WorkloadError> {
        let Workload { model, test, .. } = self.workload;
        let wide: Vec<f64> = self.params.iter().map(|value| f64::from(*value)).collect();
        let right = Reference::new().correct_predictions(model, &wide, test)?;
        Ok(right as f64 / test.rows() as f64)
    }

    /// The parameters of the model.
    #[must_use]
    pub fn params(&self) -> &[f32] {
        &self.params
    }
}

/// A uniform sample of `cohort` out of `count` indices, in ascending order (partial Fisher–Yates
/// shuffle).
fn sample_clients(count: usize, cohort: usize, seed: u64, round: u64) -> Vec<usize> {
    let rng = &mut stream(seed, "cohort", [round, 0]);
    let mut all: Vec<usize> = (0..count).collect();
    let cohort = cohort.min(count);
    for at in 0..cohort {
        let other = at + uniform_below(rng, (count - at) as u64) as usize;
        all.swap(at, other);
    }
    all.truncate(cohort);
    all.sort_unstable();
    all
}

impl From<MemberTrainingError> for WorkloadError {
    fn from(error: MemberTrainingError) -> Self {
        Self::Market(error.into())
    }
}
