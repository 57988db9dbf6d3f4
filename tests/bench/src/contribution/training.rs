//! Real training rounds to value: the updates in the first rounds of a federated training.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Context;
use florin_learning::data::load;
use florin_learning::{
    DataSource, Dataset, Engine, ModelSpec, PartitionScheme, SplitPart, Training, partition, split,
};

/// Rows per step.
const BATCH: u32 = 16;
/// Fraction of the rows for the holdout.
const HOLDOUT: f64 = 0.2;
/// Minimum number of rows per participant.
const ROWS_MIN: usize = 8;
/// Number of rows taken from IDX data; more rows would make the training of a participant take
/// minutes.
const IDX_ROWS: usize = 6_000;

/// The partition of the data and the amount of local training.
pub(super) struct Regime {
    /// Name for display.
    pub(super) name: &'static str,
    partition: PartitionScheme,
    learning_rate: f64,
    epochs: u32,
}

/// The regimes of every training run: IID or not, little or much local training.
pub(super) fn regimes() -> Vec<Regime> {
    let skewed = PartitionScheme::Dirichlet { alpha: 0.4 };
    let regime =
        |name, partition, learning_rate, epochs| Regime { name, partition, learning_rate, epochs };
    vec![
        regime("IID, rate 0.1, 1 epoch", PartitionScheme::Iid, 0.1, 1),
        regime("IID, rate 0.3, 5 epochs", PartitionScheme::Iid, 0.3, 5),
        regime("Dirichlet 0.4, rate 0.1, 1 epoch", skewed.clone(), 0.1, 1),
        regime("Dirichlet 0.4, rate 0.3, 5 epochs", skewed, 0.3, 5),
    ]
}

/// A model with its training rows and its holdout.
pub(super) struct TrainingTask {
    /// Name in file names.
    pub(super) name: &'static str,
    /// The model.
    pub(super) model: ModelSpec,
    learn: Dataset,
    /// The holdout rows.
    pub(super) holdout: Dataset,
}

/// A round: its base model, and each participant's update and number of rows.
pub(super) struct TrainingRound {
    /// Name of its regime.
    pub(super) regime: &'static str,
    /// Seed of the training run.
    pub(super) seed: u64,
    /// Parameters of the base model.
    pub(super) base: Vec<f32>,
    /// One update per participant.
    pub(super) deltas: Vec<Vec<f32>>,
    /// Rows per participant.
    pub(super) rows: Vec<u64>,
}

impl TrainingTask {
    fn new(name: &'static str, model: ModelSpec, data: &Dataset) -> anyhow::Result<Self> {
        let parts = split(data.rows(), 1, &[SplitPart::Fraction(HOLDOUT), SplitPart::Rest])?;
        let [holdout, learn] = [data.subset(&parts[0])?, data.subset(&parts[1])?];
        Ok(Self { name, model, learn, holdout })
    }

    /// The built-in digits with an MLP of 64-32-10.
    pub(super) fn digits_mlp() -> anyhow::Result<Self> {
        let model = ModelSpec::Mlp { inputs: 64, hidden: vec![32], classes: 10 };
        Self::new("mlp", model, &load(&DataSource::Digits)?)
    }

    /// The same digits with a small convolutional network.
    pub(super) fn digits_cnn() -> anyhow::Result<Self> {
        let model = ModelSpec::Cnn {
            channels: 1,
            height: 8,
            width: 8,
            filters: [8, 16],
            hidden: 32,
            classes: 10,
        };
        Self::new("cnn", model, &load(&DataSource::Digits)?)
    }

    /// Images from a folder with MNIST's training files, or similar ones.
    pub(super) fn idx(folder: &Path) -> anyhow::Result<Self> {
        let file =
            |stem: &str| {
                let names = [stem.to_owned(), format!("{stem}.gz")];
                names.iter().map(|name| folder.join(name)).find(|path| path.is_file()).with_context(
                    || format!("{} has neither {stem} nor {stem}.gz", folder.display()),
                )
            };
        let images = file("train-images-idx3-ubyte")?;
        let labels = file("train-labels-idx1-ubyte")?;
        let data = load(&DataSource::Idx { images, labels })?;
        let some: Vec<usize> = (0..data.rows().min(IDX_ROWS)).collect();
        let data = data.subset(&some)?;
        let model =
            ModelSpec::Mlp { inputs: data.width(), hidden: vec![64], classes: data.classes() };
        Self::new("idx", model, &data)
    }

    /// The first `rounds` rounds of `players` participants, who all submit in each round.
    pub(super) fn rounds(
        &self,
        regime: &Regime,
        players: usize,
        rounds: u32,
        seed: u64,
        engine: &mut dyn Engine,
    ) -> anyhow::Result<Vec<TrainingRound>> {
        let shards = partition(&self.learn, players, &regime.partition, ROWS_MIN, seed)?
            .iter()
            .map(|rows| self.learn.subset(rows))
            .collect::<Result<Vec<_>, _>>()?;
        let rows: Vec<u64> = shards.iter().map(|shard| shard.rows() as u64).collect();
        let all = rows.iter().sum::<u64>() as f64;
        let how = Training::sgd(regime.epochs, BATCH, regime.learning_rate);
        let mut base = self.model.init(seed).into_vec();
        let mut done = Vec::new();
        for round in 0..rounds {
            let mut deltas = Vec::with_capacity(players);
            for (player, shard) in shards.iter().enumerate() {
                let drawn = (seed << 32) + u64::from(round) * players as u64 + player as u64;
                let go_on = &mut |_| ControlFlow::Continue(());
                let trained = engine.train(&self.model, &base, shard, &how, drawn, go_on)?;
                let moved = trained.params.iter().zip(&base).map(|(after, before)| after - before);
                deltas.push(moved.collect::<Vec<f32>>());
            }
            let mut next: Vec<f64> = base.iter().map(|&value| value.into()).collect();
            for (delta, &own) in deltas.iter().zip(&rows) {
                let share = own as f64 / all;
                next.iter_mut().zip(delta).for_each(|(sum, &step)| *sum += share * f64::from(step));
            }
            let before = std::mem::replace(&mut base, next.iter().map(|&v| v as f32).collect());
            let rows = rows.clone();
            done.push(TrainingRound { regime: regime.name, seed, base: before, deltas, rows });
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use florin_learning::Reference;

    #[test]
    fn the_next_base_model_is_the_base_plus_the_weighted_mean_of_the_updates() {
        let task = TrainingTask::digits_mlp().unwrap();
        let regime = &regimes()[2];
        let rounds = task.rounds(regime, 4, 2, 7, &mut Reference::new()).unwrap();
        let [first, second] = rounds.as_slice() else { panic!("two rounds") };
        let all: u64 = first.rows.iter().sum();
        assert_eq!(all as usize, task.learn.rows());
        for at in [0, 100, 2_000] {
            let shares = first.rows.iter().map(|&rows| rows as f64 / all as f64);
            let moved: f64 =
                shares.zip(&first.deltas).map(|(share, delta)| share * f64::from(delta[at])).sum();
            let reached = f64::from(first.base[at]) + moved;
            assert!((reached - f64::from(second.base[at])).abs() < 1e-6, "parameter {at}");
        }
    }
}
