//! The workload that simulators are compared by: federated averaging of a small network on handwritten digits, over
//! clients whose labels are uneven, without a market and with one.
//!
//! Rows, partition and first model are drawn here and can be handed to another program ([`Workload::to_json`]), so that
//! all of them learn the same thing from the same rows.

use std::ops::ControlFlow;

use florin_learning::data::{DatasetError, LoadError, load};
use florin_learning::{
    AggregateError, DataSource, Dataset, Evaluator, ModelSpec, Part, Partition, Reference, Rule,
    Trainer, Training, aggregate_on, partition, split,
};
use serde_json::json;

use crate::draw::{below, stream};
use crate::parallel::each;
use crate::play::{Game, SimError};
use crate::population::{Member, Population};
use crate::scenario::Scenario;
use crate::strategy::{ActError, Strategy};

/// Share of the digits that clients own; the rest is what accuracies are measured on.
const TRAINED: f64 = 0.8;
/// How uneven labels are: the concentration of the Dirichlet distribution.
const ALPHA: f64 = 0.5;
/// Fewest rows of a client.
const ROWS_MIN: usize = 2;
/// Rows of each client where there are more clients than rows to deal.
const ROWS_EACH: usize = 20;
/// Units of the hidden layer.
const HIDDEN: u32 = 128;
/// Rows of a step.
const BATCH: u32 = 16;
/// Step size.
const LEARNING_RATE: f64 = 0.1;

/// Least bond of a client, and most that one round takes of it, in florins: so little that a client of two rows, who bonds
/// 0.2, is still asked after a hundred debits. A round of fewer clients would say nothing about the time that one takes.
const BOND_MIN: f64 = 0.01;
const DEBIT_MAX: f64 = 0.001;

/// Why there is no workload, or a round of it failed.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The digits could not be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// They could not be split.
    #[error(transparent)]
    Split(#[from] florin_learning::partition::SplitError),
    /// They could not be dealt to so many clients.
    #[error(transparent)]
    Partition(#[from] florin_learning::partition::PartitionError),
    /// Rows that make no data set.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// Somebody could not train.
    #[error(transparent)]
    Train(#[from] florin_learning::engine::TrainError),
    /// The updates do not combine.
    #[error(transparent)]
    Aggregate(#[from] AggregateError),
    /// A model could not be measured.
    #[error(transparent)]
    Measure(#[from] florin_learning::engine::EvalError),
    /// The market came to a halt.
    #[error(transparent)]
    Market(#[from] SimError),
    /// The market's scenario cannot be played.
    #[error(transparent)]
    Scenario(#[from] crate::ScenarioError),
}

/// Who owns which rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// So many, every row with one of them, labels as uneven as a draw from a Dirichlet distribution of concentration
    /// one half makes them.
    Uneven(usize),
    /// So many, 20 rows each, drawn from all: a row may be with many of them.
    Many(usize),
}

/// Clients with their rows, the rows that judge, a model and how it is trained.
#[derive(Clone, Debug)]
pub struct Workload {
    digits: Dataset,
    /// Rows of each client, by their places among the digits.
    owned: Vec<Vec<usize>>,
    clients: Vec<Dataset>,
    judged: Vec<usize>,
    test: Dataset,
    model: ModelSpec,
    how: Training,
    start: Vec<f32>,
    seed: u64,
}

impl Workload {
    /// Draws a workload.
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn draw(clients: Clients, seed: u64) -> Result<Self, WorkloadError> {
        let digits = load(&DataSource::Digits)?;
        let mut parts = split(digits.rows(), seed, &[Part::Fraction(TRAINED), Part::Rest])?;
        let judged = parts.pop().unwrap_or_default();
        let trained = parts.pop().unwrap_or_default();
        let owned: Vec<Vec<usize>> = match clients {
            Clients::Uneven(count) => {
                let how = Partition::Dirichlet { alpha: ALPHA };
                let cut = partition(&digits.subset(&trained)?, count, &how, ROWS_MIN, seed)?;
                let places = |rows: Vec<usize>| rows.into_iter().map(|row| trained[row]).collect();
                cut.into_iter().map(places).collect()
            }
            Clients::Many(count) => {
                let rng = &mut stream(seed, "many", [0, 0]);
                let mut row = || trained[below(rng, trained.len() as u64) as usize];
                (0..count).map(|_| (0..ROWS_EACH).map(|_| row()).collect()).collect()
            }
        };
        let own = owned.iter().map(|rows| digits.subset(rows)).collect::<Result<_, _>>()?;
        let test = digits.subset(&judged)?;
        let model = ModelSpec::Mlp { inputs: 64, hidden: vec![HIDDEN as usize], classes: 10 };
        let how = Training {
            epochs: 1,
            batch: BATCH,
            learning_rate: LEARNING_RATE,
            momentum: 0.0,
            weight_decay: 0.0,
            clip_gradient: None,
            fedprox: None,
        };
        let start = model.init(seed).into_vec();
        Ok(Self { digits, owned, clients: own, judged, test, model, how, start, seed })
    }

    /// Rows of all clients together.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.clients.iter().map(Dataset::rows).sum()
    }

    /// Everything another program needs to learn the same: all digits, whose rows are whose, by their places, and the
    /// numbers of the first model, layer by layer, each weight as rows of inputs, then the biases.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let rows: Vec<&[f32]> = (0..self.digits.rows()).map(|row| self.digits.row(row)).collect();
        json!({
            "rows": rows,
            "labels": self.digits.labels(),
            "clients": self.owned,
            "judged": self.judged,
            "start": self.start,
            "batch": self.how.batch,
            "learning_rate": self.how.learning_rate,
        })
    }

    /// Federated averaging from the first model.
    #[must_use]
    pub fn averaging(&self) -> Averaging<'_> {
        Averaging { workload: self, params: self.start.clone(), round: 0 }
    }

    /// The same clients in a market: every round is valued by `judged` rows, paid and booked. The rows that judge are
    /// the workload's, each as often as it takes.
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
            "name = \"workload\"\nquestion = \"What does a round take?\"\nrounds = {rounds}\n\
             [learning]\nhidden = [{HIDDEN}]\nepochs = 1\nbatch = {BATCH}\nlearning_rate = {LEARNING_RATE}\n\
             judged_rows = {judged}\nholdout_rows = {}\njitter = 1\n\
             [task]\ncohort = {cohort}\nbond_min = {BOND_MIN}\ndebit_max = {DEBIT_MAX}\n\
             [population.client]\ncount = {}\n",
            u64::from(judged) * u64::from(rounds),
            self.clients.len(),
        );
        Ok(Scenario::read(&text, &[])?)
    }

    /// The game of a [`scenario`](Self::scenario).
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn market<'a>(&self, scenario: &'a Scenario) -> Result<Game<'a>, WorkloadError> {
        let fast = 1e9;
        let member = |(number, rows): (usize, &Dataset)| Member {
            number,
            group: 0,
            place: number,
            strategy: Strategy::Honest,
            rows: rows.clone(),
            steps_per_second: fast,
            bytes_per_second: fast,
            shift: 0.0,
        };
        let needed = scenario.learning.holdout_rows as usize;
        let judging: Vec<usize> = self.judged.iter().copied().cycle().take(needed).collect();
        let population = Population {
            groups: scenario.population.keys().cloned().collect(),
            members: self.clients.iter().enumerate().map(member).collect(),
            holdout: self.digits.subset(&judging)?,
            test: self.test.clone(),
        };
        Ok(Game::among(scenario, self.seed, population)?)
    }
}

/// Federated averaging in the middle of its rounds.
#[derive(Clone, Debug)]
pub struct Averaging<'a> {
    workload: &'a Workload,
    params: Vec<f32>,
    round: u64,
}

impl Averaging<'_> {
    /// One round: so many clients train on so many threads, and the mean of what they learned, by rows, moves the model.
    /// The threads change nothing but the time.
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn round(&mut self, cohort: usize, threads: usize) -> Result<(), WorkloadError> {
        let Workload { clients, model, how, seed, .. } = self.workload;
        self.round += 1;
        let asked = drawn(clients.len(), cohort, *seed, self.round);
        let (round, base) = (self.round, &self.params);
        let learned = each(threads, asked, Reference::new, |engine, client| {
            let rows = &clients[client];
            let mut rng = stream(*seed, "batches", [client as u64, round]);
            let salt = below(&mut rng, u64::MAX);
            let go_on = &mut |_| ControlFlow::Continue(());
            let mut delta = engine.train(model, base, rows, how, salt, go_on)?.params;
            delta.iter_mut().zip(base).for_each(|(new, old)| *new -= old);
            Ok::<_, WorkloadError>((rows.rows() as u64, delta))
        });
        let learned = learned.into_iter().collect::<Result<Vec<_>, _>>()?;
        let updates: Vec<(u64, &[f32])> =
            learned.iter().map(|(rows, delta)| (*rows, delta.as_slice())).collect();
        let step = aggregate_on(Rule::Mean, &updates, 1)?;
        self.params.iter_mut().zip(step).for_each(|(param, step)| *param += step);
        Ok(())
    }

    /// Share of the rows that judge which the model gets right.
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn accuracy(&self) -> Result<f64, WorkloadError> {
        let Workload { model, test, .. } = self.workload;
        let wide: Vec<f64> = self.params.iter().map(|value| f64::from(*value)).collect();
        let right = Reference::new().correct(model, &wide, test)?;
        Ok(right as f64 / test.rows() as f64)
    }

    /// The model's numbers.
    #[must_use]
    pub fn params(&self) -> &[f32] {
        &self.params
    }
}

/// So many of `count`, ascending, every choice equally likely (Fisher and Yates, as far as needed).
fn drawn(count: usize, cohort: usize, seed: u64, round: u64) -> Vec<usize> {
    let rng = &mut stream(seed, "cohort", [round, 0]);
    let mut all: Vec<usize> = (0..count).collect();
    let cohort = cohort.min(count);
    for at in 0..cohort {
        let other = at + below(rng, (count - at) as u64) as usize;
        all.swap(at, other);
    }
    all.truncate(cohort);
    all.sort_unstable();
    all
}

impl From<ActError> for WorkloadError {
    fn from(error: ActError) -> Self {
        Self::Market(error.into())
    }
}
