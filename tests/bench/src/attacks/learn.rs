//! A cohort that really trains: shards of the built-in digits data set, and honest updates.

use std::ops::ControlFlow;

use florin_learning::data::load;
use florin_learning::{
    DataSource, Dataset, ModelSpec, PartitionScheme, Reference, SplitPart, Trainer, Training,
    partition, split,
};

/// Rows of the digits that no member has, as in a market with a holdout.
const HOLDOUT_ROWS: usize = 800;
/// Minimum number of rows per shard.
const SHARD_ROWS_MIN: usize = 20;

/// The training setup of a cohort.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Setting {
    /// Partition of the rows into shards.
    pub(super) partition: PartitionScheme,
    /// Number of members.
    pub(super) members: usize,
    /// Training hyperparameters.
    pub(super) training: Training,
    /// Seed of the holdout, the shards, the initial model and the batches.
    pub(super) seed: u64,
}

/// A cohort with its data.
#[derive(Debug, Clone)]
pub(super) struct Cohort {
    pub(super) model: ModelSpec,
    pub(super) training: Training,
    pub(super) shards: Vec<Dataset>,
    pub(super) seed: u64,
}

/// Plain SGD.
pub(super) fn sgd(learning_rate: f64, batch: u32, epochs: u32) -> Training {
    Training::sgd(epochs, batch, learning_rate)
}

impl Cohort {
    pub(super) fn new(setting: &Setting) -> anyhow::Result<Self> {
        let digits = load(&DataSource::Digits)?;
        let parts =
            split(digits.rows(), setting.seed, &[SplitPart::Rows(HOLDOUT_ROWS), SplitPart::Rest])?;
        let rest = digits.subset(&parts[1])?;
        let owners =
            partition(&rest, setting.members, &setting.partition, SHARD_ROWS_MIN, setting.seed)?;
        let shards = owners.iter().map(|rows| rest.subset(rows)).collect::<Result<_, _>>()?;
        Ok(Self {
            model: ModelSpec::Mlp { inputs: 64, hidden: vec![32], classes: 10 },
            training: setting.training.clone(),
            shards,
            seed: setting.seed,
        })
    }

    /// The update from training on `data` from `base`. `salt` seeds the order of the batches.
    pub(super) fn train(
        &self,
        base: &[f32],
        data: &Dataset,
        how: &Training,
        salt: u64,
    ) -> anyhow::Result<Vec<f32>> {
        let go_on = &mut |_| ControlFlow::Continue(());
        let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(salt);
        let trained = Reference::new().train(&self.model, base, data, how, seed, go_on)?;
        Ok(trained.params.iter().zip(base).map(|(new, old)| new - old).collect())
    }

    /// The honest update of member `member` in `round`.
    pub(super) fn honest(
        &self,
        base: &[f32],
        member: usize,
        round: usize,
    ) -> anyhow::Result<Vec<f32>> {
        self.train(base, &self.shards[member], &self.training, (round * 1_000 + member) as u64)
    }

    /// Initial parameters that predict every label with equal probability, as in a market's tasks.
    pub(super) fn start(&self) -> Vec<f32> {
        let mut params = self.model.init(self.seed).into_vec();
        let last: usize = self
            .model
            .tensors()
            .iter()
            .rev()
            .take(2)
            .map(florin_learning::TensorSpec::elements)
            .sum();
        let from = params.len() - last;
        params[from..].fill(0.0);
        params
    }
}
