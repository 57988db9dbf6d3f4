//! From a member's information to its updates.

use std::ops::ControlFlow;

use florin_learning::data::DatasetError;
use florin_learning::engine::TrainError;
use florin_learning::{Dataset, ModelSpec, Reference, Trainer, Training, params};

use crate::population::Member;
use crate::random::{random_direction, stream, uniform, uniform_below};
use crate::strategy::{CopyMix, EarlierBytes, Strategy, SybilUpdates, scaled};

/// Number of features, from the first, that the backdoor trigger covers.
pub const TRIGGER_FEATURES: usize = 3;
/// Value of the triggered features.
const TRIGGER: f32 = 1.0;
/// Norm of the last public step in a mixed copy, relative to the copied update.
const MIXED_STEP: f64 = 0.3;
/// The backdoor's target class: the label of triggered rows.
const TRIGGER_LABEL: u32 = 0;

/// An update that one identity sends in a round.
#[derive(Clone, Debug, PartialEq)]
pub struct SentUpdate {
    /// The identity of the member, from 0.
    pub identity: u32,
    /// Number of rows that it declares.
    pub rows: u64,
    /// The update.
    pub delta: Vec<f32>,
}

/// Input of a member's training in a round.
#[derive(Clone, Copy, Debug)]
pub struct MemberTraining<'a> {
    /// The member.
    pub member: &'a Member,
    /// The training settings of the task.
    pub how: &'a Training,
    /// The model.
    pub model: &'a ModelSpec,
    /// The parameters of the round's base model.
    pub base: &'a [f32],
    /// The seed of the simulation.
    pub seed: u64,
    /// Round number, from 1.
    pub round: u64,
    /// Fraction of its rows on which a member with adaptive effort trains.
    pub effort: f64,
    /// The update of its first round, if its strategy repeats that one and it has sent it.
    pub first_update: Option<&'a [f32]>,
    /// The buyer's holdout rows.
    pub holdout: &'a Dataset,
    /// Indices of the holdout rows that earlier rounds disclosed.
    pub disclosed: &'a [usize],
    /// Index range of the members that collude with it, if its strategy is a collusion.
    pub colluders: (usize, usize),
}

/// A member's information about others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Knowledge<'a> {
    /// The public steps, newest first: the changes of the model in earlier rounds.
    pub steps: &'a [Vec<f32>],
    /// The updates to copy of every round whose updates are readable, newest first.
    pub copy_targets: &'a [CopyTargets],
    /// The updates of all colluders in this round, including its own.
    pub colluder_updates: &'a [&'a [f32]],
    /// The public data of an earlier task.
    pub earlier_task: Option<&'a PublicTask>,
}

/// The public data of an earlier task.
#[derive(Clone, Debug, PartialEq)]
pub struct PublicTask {
    /// The update of the honest member with the most rows in the first round.
    pub first_update: Vec<f32>,
    /// The parameters after the last round.
    pub last_model: Vec<f32>,
}

/// The updates of a round that a copier copies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CopyTargets {
    /// The update of the honest member with the most rows.
    pub best: Vec<f32>,
    /// The update of the one with the second most rows, if there is one.
    pub second: Option<Vec<f32>>,
}

/// Error of training.
#[derive(Debug, thiserror::Error)]
pub enum MemberTrainingError {
    /// The training failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The rows do not form a valid dataset.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
}

/// The result of training.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingResult {
    /// The updates, one for each part of the rows; empty for parts whose identity was not selected.
    /// No entry if the member does not train.
    pub deltas: Vec<Vec<f32>>,
    /// Number of training steps.
    pub steps: u64,
    /// Whether training diverged to non-finite values, so that there is no update to send.
    pub diverged: bool,
}

impl TrainingResult {
    /// The first non-empty update.
    #[must_use]
    pub fn first_update(&self) -> Option<&Vec<f32>> {
        self.deltas.iter().find(|delta| !delta.is_empty())
    }
}

impl MemberTraining<'_> {
    /// Trains as the member's strategy requires, if these of its identities were selected.
    ///
    /// # Errors
    /// [`MemberTrainingError`].
    pub fn train_by_strategy(
        &self,
        engine: &mut Reference,
        asked: &[u32],
    ) -> Result<TrainingResult, MemberTrainingError> {
        let rows = &self.member.rows;
        match self.member.strategy {
            Strategy::ZeroUpdate
            | Strategy::Noise { .. }
            | Strategy::Replay { .. }
            | Strategy::CopyEarlierTask { .. }
            | Strategy::Copy { .. } => Ok(TrainingResult::default()),
            Strategy::Repeat if self.first_update.is_some() => Ok(TrainingResult::default()),
            // Another colluder trains for all of them.
            Strategy::SharedTraining { .. } if self.member.number != self.colluders.0 => {
                Ok(TrainingResult::default())
            }
            Strategy::Lazy { fraction } => self.train_fraction(engine, fraction),
            Strategy::FewerEpochs { epochs } => {
                let how = Training { epochs: epochs.min(self.how.epochs), ..self.how.clone() };
                MemberTraining { how: &how, ..*self }.train(engine, rows, 0)
            }
            Strategy::DuplicateRows { factor } => {
                let again: Vec<usize> = (0..scaled(rows.rows() as u64, factor) as usize)
                    .map(|row| row % rows.rows())
                    .collect();
                self.train(engine, &rows.subset(&again)?, 0)
            }
            Strategy::TrainOnDisclosed if self.disclosed.is_empty() => {
                Ok(TrainingResult::default())
            }
            Strategy::TrainOnDisclosed => {
                self.train(engine, &self.holdout.subset(self.disclosed)?, 0)
            }
            Strategy::TrainOnHoldout { identities, .. } => {
                self.train_on_holdout(engine, identities)
            }
            Strategy::AdaptiveEffort => self.train_fraction(engine, self.effort),
            Strategy::FlipLabels { fraction } => {
                self.train(engine, &self.flipped_rows(fraction)?, 0)
            }
            Strategy::Backdoor { fraction, .. } => {
                self.train(engine, &with_trigger(rows, fraction)?, 0)
            }
            Strategy::Sybil { identities, updates }
            | Strategy::Replicate { identities, updates } => {
                let how = match updates {
                    SybilUpdates::Disjoint => self.how.clone(),
                    SybilUpdates::DisjointLonger => {
                        let epochs = self.how.epochs.saturating_mul(identities);
                        Training { epochs, ..self.how.clone() }
                    }
                    _ => return self.train(engine, rows, 0),
                };
                MemberTraining { how: &how, ..*self }.train_parts(engine, identities, asked)
            }
            _ => self.train(engine, rows, 0),
        }
    }

    /// The member's rows with a fraction of their labels mirrored.
    fn flipped_rows(&self, fraction: f64) -> Result<Dataset, DatasetError> {
        let rows = &self.member.rows;
        let rng = &mut stream(self.seed, "flipped", [self.member.number as u64, 0]);
        let last = rows.classes() as u32 - 1;
        let flip = |label: &u32| if uniform(rng) < fraction { last - label } else { *label };
        let labels = rows.labels().iter().map(flip).collect();
        Dataset::new(rows.features().to_vec(), labels, rows.width(), rows.classes())
    }

    /// Trains on the whole holdout, once for each identity.
    fn train_on_holdout(
        &self,
        engine: &mut Reference,
        identities: u32,
    ) -> Result<TrainingResult, MemberTrainingError> {
        let mut all = TrainingResult::default();
        for identity in 0..identities {
            let learned = self.train(engine, self.holdout, u64::from(identity))?;
            all.deltas.extend(learned.deltas);
            all.steps += learned.steps;
        }
        Ok(all)
    }

    /// Trains on each selected identity's part of the rows.
    fn train_parts(
        &self,
        engine: &mut Reference,
        identities: u32,
        asked: &[u32],
    ) -> Result<TrainingResult, MemberTrainingError> {
        let rows = &self.member.rows;
        let (n, parts) = (rows.rows(), identities as usize);
        let mut all = TrainingResult::default();
        for (at, identity) in (0..identities).enumerate() {
            if !asked.contains(&identity) {
                all.deltas.push(Vec::new());
                continue;
            }
            let part = rows.slice(n * at / parts..n * (at + 1) / parts)?;
            let learned = match part.rows() {
                0 => TrainingResult {
                    deltas: vec![vec![0.0; self.base.len()]],
                    ..TrainingResult::default()
                },
                _ => self.train(engine, &part, at as u64)?,
            };
            all.deltas.extend(learned.deltas);
            all.steps += learned.steps;
        }
        Ok(all)
    }

    fn train_fraction(
        &self,
        engine: &mut Reference,
        fraction: f64,
    ) -> Result<TrainingResult, MemberTrainingError> {
        let rows = &self.member.rows;
        let some = (rows.rows() as f64 * fraction).round() as usize;
        match some.min(rows.rows()) {
            0 => Ok(TrainingResult::default()),
            some => self.train(engine, &rows.slice(0..some)?, 0),
        }
    }

    fn train(
        &self,
        engine: &mut Reference,
        rows: &Dataset,
        salt: u64,
    ) -> Result<TrainingResult, MemberTrainingError> {
        let mut rng = stream(self.seed, "batches", [self.member.number as u64, self.round]);
        let seed = uniform_below(&mut rng, u64::MAX).wrapping_add(salt);
        let go_on = &mut |_| ControlFlow::Continue(());
        let trained = engine.train(self.model, self.base, rows, self.how, seed, go_on)?;
        let delta = trained.params.iter().zip(self.base).map(|(new, old)| new - old).collect();
        Ok(TrainingResult { deltas: vec![delta], steps: trained.steps, diverged: false })
    }
}

/// The rows with the trigger on the first `fraction` of them, which are labelled with the target
/// class.
fn with_trigger(rows: &Dataset, fraction: f64) -> Result<Dataset, DatasetError> {
    let some = (rows.rows() as f64 * fraction).round() as usize;
    let mut features = rows.features().to_vec();
    let mut labels = rows.labels().to_vec();
    for (row, label) in features.chunks_exact_mut(rows.width()).zip(&mut labels).take(some) {
        apply_trigger(row);
        *label = TRIGGER_LABEL;
    }
    Dataset::new(features, labels, rows.width(), rows.classes())
}

fn apply_trigger(row: &mut [f32]) {
    row.iter_mut().take(TRIGGER_FEATURES).for_each(|value| *value = TRIGGER);
}

/// All rows of other classes, with the trigger and the target class as label: the accuracy on them
/// is the success rate of a backdoor.
///
/// # Errors
/// [`DatasetError`].
pub fn triggered_rows(rows: &Dataset) -> Result<Dataset, DatasetError> {
    let mut features = Vec::new();
    for row in (0..rows.rows()).filter(|row| rows.labels()[*row] != TRIGGER_LABEL) {
        let from = features.len();
        features.extend_from_slice(rows.row(row));
        apply_trigger(&mut features[from..]);
    }
    let labels = vec![TRIGGER_LABEL; features.len() / rows.width()];
    Dataset::new(features, labels, rows.width(), rows.classes())
}

/// The updates that a member sends after training, one for each identity.
#[must_use]
pub fn updates_to_send(
    job: &MemberTraining<'_>,
    learned: &TrainingResult,
    knows: &Knowledge<'_>,
) -> Vec<SentUpdate> {
    let (member, size) = (job.member, job.base.len());
    let zero = || vec![0.0; size];
    let own = || learned.first_update().cloned().unwrap_or_else(zero);
    if learned.diverged {
        return Vec::new();
    }
    let rng = &mut stream(job.seed, "act", [member.number as u64, job.round]);
    let mut under = |delta: &[f32], noise: f64| {
        if noise == 0.0 {
            return delta.to_vec();
        }
        let aside = random_direction(rng, delta.len(), noise * params::norm(delta));
        sum(delta, &aside, 1.0)
    };
    let deltas = match member.strategy {
        Strategy::ZeroUpdate => vec![zero()],
        Strategy::Noise { scale } => {
            let length = scale * knows.step(0).map_or(1.0, params::norm);
            let rng = &mut stream(job.seed, "noise", [member.number as u64, job.round]);
            vec![random_direction(rng, size, length)]
        }
        Strategy::Replay { noise, rounds_back } => {
            vec![under(knows.step(rounds_back).unwrap_or(&zero()), noise)]
        }
        Strategy::Copy { noise, rounds_back, mix } => {
            vec![under(&knows.copied(rounds_back, mix).unwrap_or_else(zero), noise)]
        }
        Strategy::CopyEarlierTask { copies } => {
            vec![knows.of_earlier_task(copies, job.base).unwrap_or_else(zero)]
        }
        Strategy::TrainOnHoldout { .. } => learned.deltas.clone(),
        Strategy::Repeat => vec![job.first_update.map_or_else(own, <[f32]>::to_vec)],
        Strategy::Hedge { factor } => cancelling_pairs(&own(), 2, factor, rng),
        Strategy::Scale { factor } | Strategy::Backdoor { boost: factor, .. } => {
            vec![sum(&zero(), &own(), factor)]
        }
        Strategy::SignFlip { factor } => vec![sum(&zero(), &own(), -factor)],
        Strategy::Alie { z } => vec![mean_minus_z_std(knows.colluder_updates, size, z)],
        // The colluder that should have trained is offline.
        Strategy::SharedTraining { .. } if knows.colluder_updates.is_empty() => Vec::new(),
        Strategy::Collude { noise, .. } | Strategy::SharedTraining { noise, .. } => {
            vec![under(&mean_minus_z_std(knows.colluder_updates, size, 0.0), noise)]
        }
        Strategy::Sybil { identities, updates } | Strategy::Replicate { identities, updates } => {
            match updates {
                SybilUpdates::Same => vec![own(); identities as usize],
                SybilUpdates::Disjoint | SybilUpdates::DisjointLonger => learned.deltas.clone(),
                SybilUpdates::Noisy => (0..identities).map(|_| under(&own(), 0.2)).collect(),
                SybilUpdates::Rescaled => rescaled_copies(&own(), identities, rng),
                SybilUpdates::Hedged => cancelling_pairs(&own(), identities, 2.0, rng),
            }
        }
        _ => vec![own()],
    };
    let rows = member.rows.rows() as u64;
    let numbered = deltas.into_iter().zip(0..);
    let sent = |(delta, identity)| {
        let (rows, _) = member.strategy.declared_and_bonded_rows(rows, identity);
        SentUpdate { identity, rows, delta }
    };
    numbered.map(sent).collect()
}

/// The mean of updates minus `z` standard deviations in each component.
fn mean_minus_z_std(mates: &[&[f32]], size: usize, z: f64) -> Vec<f32> {
    let n = mates.len().max(1) as f64;
    let number = |at: usize| {
        let values = || mates.iter().map(|mate| f64::from(mate[at]));
        let mean = values().sum::<f64>() / n;
        let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
        (mean - z * variance.sqrt()) as f32
    };
    (0..size).map(number).collect()
}

impl Knowledge<'_> {
    /// The public step that is this many rounds older than the last one.
    fn step(&self, rounds_back: u32) -> Option<&[f32]> {
        self.steps.get(rounds_back as usize).map(Vec::as_slice)
    }

    /// The update that a copier of an earlier task sends; `None` if there was none.
    fn of_earlier_task(&self, copies: EarlierBytes, base: &[f32]) -> Option<Vec<f32>> {
        let PublicTask { first_update, last_model } = self.earlier_task?;
        Some(match copies {
            EarlierBytes::FirstUpdate => first_update.clone(),
            EarlierBytes::LastModel => sum(last_model, base, -1.0),
        })
    }

    /// The update that a copier sends, without noise; `None` while there is none to copy.
    fn copied(&self, rounds_back: u32, mix: CopyMix) -> Option<Vec<f32>> {
        let CopyTargets { best, second } = self.copy_targets.get(rounds_back as usize)?;
        let with = |other: Option<&[f32]>, factor: &dyn Fn(&[f32]) -> f64| {
            other.map_or_else(|| best.clone(), |other| sum(best, other, factor(other)))
        };
        Some(match mix {
            CopyMix::None => best.clone(),
            CopyMix::LastStep => with(self.step(0), &|step| {
                MIXED_STEP * params::norm(best) / params::norm(step).max(f64::MIN_POSITIVE)
            }),
            CopyMix::SecondBest => {
                let both = with(second.as_deref(), &|_| 1.0);
                sum(&vec![0.0; best.len()], &both, if second.is_some() { 0.5 } else { 1.0 })
            }
        })
    }
}

/// Copies of an update: the first is exact, the others have noise of a fifth of its norm and 0.7 to
/// 1.3 times the norm.
fn rescaled_copies(
    own: &[f32],
    identities: u32,
    rng: &mut rand_chacha::ChaCha8Rng,
) -> Vec<Vec<f32>> {
    let mut all = vec![own.to_vec()];
    for _ in 1..identities {
        let aside = random_direction(rng, own.len(), 0.2 * params::norm(own));
        let by = 0.7 + 0.6 * uniform(rng);
        all.push(sum(&vec![0.0; own.len()], &sum(own, &aside, 1.0), by));
    }
    all
}

/// Pairs of updates whose deviations from the member's update cancel; with an odd number of
/// identities the last one sends the update itself.
fn cancelling_pairs(
    own: &[f32],
    identities: u32,
    factor: f64,
    rng: &mut rand_chacha::ChaCha8Rng,
) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    for _ in 0..identities / 2 {
        let aside = random_direction(rng, own.len(), factor * params::norm(own));
        all.extend([sum(own, &aside, 1.0), sum(own, &aside, -1.0)]);
    }
    if identities % 2 == 1 {
        all.push(own.to_vec());
    }
    all
}

fn sum(a: &[f32], b: &[f32], factor: f64) -> Vec<f32> {
    let each = a.iter().zip(b);
    each.map(|(a, b)| (f64::from(*a) + factor * f64::from(*b)) as f32).collect()
}
