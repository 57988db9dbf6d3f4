//! Training: from the round's base model to an update on disk.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use florin_learning::engine::{CommandError, TrainError, TrainingQuote, TrainingStep};
use florin_learning::memory::MemoryError;
use florin_learning::privacy::{PrivateTraining, train_privately};
use florin_learning::{Training, mean};
use florin_protocol::{ModelArchitecture, Offer, RoundNumber, TaskId, blob_digest};

use super::privacy::RoundNoise;
use super::state_machine::RoundStage;
use super::training_time::{RoundTrainingTime, TrainingVerdict};
use super::{Agent, AgentError};
use crate::event::ParticipantEvent;
use crate::trace::{StepSpans, Work};
use crate::wallet::Wallet;

/// Key-derivation context of the key for training seeds.
const SEED_CONTEXT: &str = "florin v1 training seeds of a wallet";
/// A training has diverged if it raises the loss on the participant's own rows by more than this
/// share of the loss of a guess, ln of the number of labels.
const DIVERGED_RISE_SHARE: f64 = 0.5;
/// A training has also diverged if the mean loss of its batches, which has no bound, exceeds this
/// multiple of the loss of a guess. The bounded loss that evaluates models hides rows of a wrong
/// scale; no training that learns anything comes near.
const DIVERGED_LOSS_FACTOR: f64 = 100.0;
/// Micro-nats per nat.
const MICRO_PER_NAT: f64 = 1e6;
const MICROS_PER_SECOND: f64 = 1e6;
/// Rows on which the losses before and after a training are compared, at most.
const COMPARED_ROWS: usize = 1_024;
/// Features of these rows, at most: 256 MiB. They are copied, also from a mapped file.
const COMPARED_FEATURES_MAX: usize = 1 << 26;

impl Agent<'_, '_> {
    /// Fetches the base model, trains, encodes the update in the task's format and within its norm
    /// limit, and stores the bytes until the round is reported.
    pub(super) fn train(&mut self, offer: &Offer) -> Result<(), AgentError> {
        let round = offer.scope.round;
        let Some(_turn) = self.wait_for_turn(offer)? else { return Ok(()) };
        let fetch = Work::FetchModel.span(offer.scope.task, round).entered();
        let base = self.base_model(offer)?;
        self.load_graph()?;
        drop(fetch);
        let _span = Work::Train.span(offer.scope.task, round).entered();
        let start = Instant::now();
        let noise = match self.charge_privacy(offer)? {
            RoundNoise::Exhausted => return Ok(()),
            RoundNoise::None => None,
            RoundNoise::Charged(seed) => Some(seed),
        };
        let seed = training_seed(self.context.wallet, self.config.seed, offer.scope.task, round);
        let Some(delta) = self.useful_delta(&base, seed, noise)? else { return Ok(()) };
        let carried = self.residual_to_add(offer)?;
        let written = florin_work::encode_update(&self.spec, delta, carried.as_deref(), seed)
            .and_then(|written| {
                // Do not commit to an update that the coordinator would reject.
                florin_work::inspect_update(&self.spec, &written.bytes).map(|_| written)
            });
        let written = match written {
            Ok(written) => written,
            Err(rejection) => {
                self.fail_round(rejection.code.as_str(), &rejection.message);
                return Ok(());
            }
        };
        // Written before the update: if the update exists, so does its residual.
        if let Some(residual) = &written.residual {
            self.store
                .write_residual(round, &florin_work::encode_parameters(&self.spec, residual))?;
        }
        self.store.remove_late(round)?;
        self.store_rows(round, blob_digest(&written.bytes))?;
        self.store.write_update(round, &written.bytes)?;
        self.current.stage = RoundStage::Trained;
        let rows = self.data().rows();
        let ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let loss_micro = self.current.loss_micronats;
        self.emit(&ParticipantEvent::Trained { round, rows, loss_micro, ms });
        Ok(())
    }

    /// The update of a training; `None` if the round goes on without one, or if the training was stopped.
    fn useful_delta(
        &mut self,
        base: &[f32],
        seed: u64,
        noise: Option<[u8; 32]>,
    ) -> Result<Option<Vec<f32>>, AgentError> {
        match self.delta_unless_diverged(base, seed, noise) {
            Err(AgentError::Training { source: TrainError::Stopped { .. }, .. }) => Ok(None),
            // No update is better than a broken one, and the next round starts from another model.
            Err(AgentError::Training { source: source @ TrainError::Diverged { .. }, .. }) => {
                self.fail_round("TRAINING_DIVERGED", &source);
                Ok(None)
            }
            // Other programs may have left more of it by the next round.
            Err(AgentError::Training { source: TrainError::Memory(error), .. }) => {
                self.fail_round(MemoryError::CODE, &error);
                Ok(None)
            }
            // The next round has other parameters, and its training may succeed.
            Err(AgentError::Training {
                source: TrainError::Command(CommandError { code, why }),
                ..
            }) => {
                self.fail_round(code, &why);
                Ok(None)
            }
            trained => trained,
        }
    }

    /// Trains, and fails the round if the loss of the training or of its rows is too large.
    fn delta_unless_diverged(
        &mut self,
        base: &[f32],
        seed: u64,
        noise: Option<[u8; 32]>,
    ) -> Result<Option<Vec<f32>>, AgentError> {
        let delta = self.delta(base, seed, noise)?;
        if let Some(loss) = self.diverged_loss() {
            let why = format!(
                "the training diverged: the mean loss of its batches was {loss:.3e} nats. The rows of \
                 this participant probably have other units or another scale than the task's \
                 holdout: compare them with `florin data show`"
            );
            self.fail_round("TRAINING_DIVERGED", &why);
            return Ok(None);
        }
        if let Some(LossRise { before, after }) = self.loss_rise(base, &delta)? {
            let why = format!(
                "the training diverged: the loss on this participant's rows rose from {before:.3} \
                 to {after:.3} nats; the task's learning rate is too high for them"
            );
            self.fail_round("TRAINING_DIVERGED", &why);
            return Ok(None);
        }
        Ok(Some(delta))
    }

    /// Whether a training may be refused for its loss. With noise, whether an update is sent must not
    /// depend on the values of the rows.
    fn may_judge_training(&self) -> bool {
        !self.context.behaviour.is_experiment() && self.config.privacy.is_none()
    }

    /// The number of classes between which the model decides.
    fn classes(&self) -> u32 {
        match &self.spec.model {
            ModelArchitecture::Graph(graph) => graph.outputs.max(2),
            model => model.classes().max(2),
        }
    }

    /// The mean loss of this round's training, in nats, if it is too large for any but a diverged one.
    fn diverged_loss(&self) -> Option<f64> {
        if !self.may_judge_training() {
            return None;
        }
        if !self.spec.model.is_loss_in_nats() {
            return None;
        }
        let loss = self.current.loss_micronats? as f64 / MICRO_PER_NAT;
        let guess = f64::from(self.classes()).ln();
        (loss > DIVERGED_LOSS_FACTOR * guess).then_some(loss)
    }

    /// The rise of the loss on some of the participant's rows by an honest training, if it is too
    /// large for any but a diverged one. An update that is not finite has an infinite loss.
    fn loss_rise(&mut self, base: &[f32], delta: &[f32]) -> Result<Option<LossRise>, AgentError> {
        if !self.may_judge_training() || !self.spec.model.is_loss_in_nats() {
            return Ok(None);
        }
        let round = self.current.round;
        let failed = |source| AgentError::Training { round, source };
        let data = self.data();
        let rows_max = COMPARED_ROWS.min(COMPARED_FEATURES_MAX / data.width()).max(1);
        let step = data.rows().div_ceil(rows_max).max(1);
        let some = data.subset(&(0..data.rows()).step_by(step).collect::<Vec<_>>())?;
        let model = florin_work::task_model(&self.spec, self.graph.as_ref());
        let engine = &mut *self.context.engine;
        let mut loss = |params: Vec<f64>| match params.iter().all(|value| value.is_finite()) {
            true => engine.row_losses(&model, &params, &some).map(|losses| mean(&losses)),
            false => Ok(f64::INFINITY),
        };
        let start = base.iter().map(|value| f64::from(*value)).collect();
        let end = base.iter().zip(delta).map(|(a, b)| f64::from(*a) + f64::from(*b)).collect();
        let before = loss(start).map_err(|error| failed(TrainError::from(error)))?;
        let after = loss(end).map_err(|error| failed(TrainError::from(error)))?;
        let rise_max = DIVERGED_RISE_SHARE * f64::from(self.classes()).ln();
        // Written so that a loss that is not a number is too large.
        let is_sound = after - before <= rise_max;
        Ok((!is_sound).then_some(LossRise { before, after }))
    }

    /// The base model: the recomputed one of the last round, or fetched from the coordinator.
    fn base_model(&mut self, offer: &Offer) -> Result<Vec<f32>, AgentError> {
        let (client, limit) = (self.context.client, florin_work::model_bytes(&self.spec));
        let bytes = match self.auditor.cached_model(offer.base_model) {
            Some(recomputed) => recomputed,
            None => {
                let fetched = Arc::new(self.with_client(|| client.blob(offer.base_model, limit))?);
                self.auditor.cache_model(offer.base_model, &fetched);
                fetched
            }
        };
        let round = offer.scope.round;
        florin_work::decode_model(&self.spec, &bytes)
            .map_err(|rejection| AgentError::BadModel { round, why: rejection.to_string() })
    }

    /// The training of a round.
    fn training(&self, round: RoundNumber) -> Training {
        Training { execution: self.config.execution, ..florin_work::training(&self.spec, round) }
    }

    /// Predicts the time and the memory of a training, before a deposit depends on them.
    pub(super) fn quote_training(&mut self) -> Result<(), AgentError> {
        let is_graph = matches!(self.spec.model, ModelArchitecture::Graph(_));
        // A graph that is not public yet cannot be measured.
        let is_missing = is_graph && self.graph.is_none();
        let has_other_steps =
            self.config.privacy.is_some() || self.context.behaviour.is_experiment();
        if is_missing || has_other_steps {
            return Ok(());
        }
        let round = self.current.round;
        let model = florin_work::task_model(&self.spec, self.graph.as_ref());
        let how = self.training(round);
        let longest = self.rows_of_longest_training()?;
        let rows = longest.as_ref().unwrap_or(self.context.data);
        let quoted = self.context.engine.quote(&model, rows, &how);
        let quoted = quoted.map_err(|source| AgentError::Training { round, source })?;
        let Some(quoted) = quoted else { return Ok(()) };
        let TrainingQuote { steps, step_seconds, step_bytes, .. } = quoted;
        let step_micros = (step_seconds * MICROS_PER_SECOND) as u64;
        self.emit(&ParticipantEvent::TrainingQuoted { steps, step_micros, step_bytes });
        self.check_training_time(&quoted)
    }

    /// Refuses a training that takes longer than a round, and warns of one that takes half of it.
    fn check_training_time(&mut self, quoted: &TrainingQuote) -> Result<(), AgentError> {
        let download = self.downloads.time_of(florin_work::model_bytes(&self.spec));
        let (round_ms, processes) = (self.spec.rounds.train_ms, self.config.processes);
        let time = RoundTrainingTime::new(quoted, download, round_ms, processes);
        self.quote_ms = time.total_ms();
        let verdict = time.verdict();
        if verdict == TrainingVerdict::Fits {
            return Ok(());
        }
        self.emit(&ParticipantEvent::TrainingSlow { time });
        // Where late updates count, a training may take longer than a round.
        let must_fit = !self.spec.rounds.staleness.admits_late();
        if verdict == TrainingVerdict::Beyond && must_fit && !self.config.accepts_slow_training {
            let has_threads = self.config.execution.virtual_workers.is_none();
            let task = self.config.task;
            return Err(AgentError::TrainingTooSlow { task, time, has_threads });
        }
        Ok(())
    }

    /// The behaviour's update: honest training, with the noise of a seed if there is one, or an
    /// experiment.
    fn delta(
        &mut self,
        base: &[f32],
        seed: u64,
        noise: Option<[u8; 32]>,
    ) -> Result<Vec<f32>, AgentError> {
        let round = self.current.round;
        let model = florin_work::task_model(&self.spec, self.graph.as_ref());
        let how = self.training(round);
        let privacy = self.config.privacy.map(|config| config.noise);
        let (parts, shutdown) = (&mut self.context, self.shutdown);
        let data = parts.behaviour.data(self.produced.or(parts.data))?;
        let engine = &mut *parts.engine;
        let mut loss = None;
        let mut train = || {
            let mut spans = StepSpans::default();
            let mut progress = |done: TrainingStep| {
                spans.note(done.step);
                match shutdown.is_requested() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            };
            let trained = match (privacy, &noise) {
                (Some(privacy), Some(seed)) => {
                    let (model, data, how, start) = (&model, &*data, &how, base);
                    let training = PrivateTraining { model, start, data, how, privacy, seed };
                    train_privately(engine, &training, &mut progress)?
                }
                _ => engine.train(&model, base, &data, &how, seed, &mut progress)?,
            };
            loss = Some(trained.mean_loss);
            Ok(trained.params.iter().zip(base).map(|(own, base)| own - base).collect())
        };
        let delta = parts
            .behaviour
            .delta(base.len(), seed, &mut train)
            .map_err(|source| AgentError::Training { round, source })?;
        // It is not sent: for display, and to recognise a diverged training.
        self.current.loss_micronats = loss.map(|nats| (nats.max(0.0) * MICRO_PER_NAT) as u64);
        Ok(delta)
    }
}

/// A loss before and after the training, in nats.
struct LossRise {
    before: f64,
    after: f64,
}

/// The seed of one round's training and of the rounding of its update: always the same for a round,
/// and different for every round, task and `variant`. It cannot be computed without the wallet, so
/// that no other account can predict an update of known rows, or the order of its batches.
#[must_use]
pub(super) fn training_seed(
    wallet: &Wallet,
    variant: u64,
    task: TaskId,
    round: RoundNumber,
) -> u64 {
    let key = wallet.derive_secret(SEED_CONTEXT);
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher.update(&variant.to_le_bytes()).update(&task.0).update(&round.0.to_le_bytes());
    let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::wallet;

    #[test]
    fn the_training_seed_differs_by_wallet_variant_task_and_round() {
        let task = TaskId([1; 32]);
        let seed = training_seed(&wallet(4), 7, task, RoundNumber(1));
        assert_eq!(seed, training_seed(&wallet(4), 7, task, RoundNumber(1)));
        for other in [
            training_seed(&wallet(5), 7, task, RoundNumber(1)),
            training_seed(&wallet(4), 8, task, RoundNumber(1)),
            training_seed(&wallet(4), 7, TaskId([2; 32]), RoundNumber(1)),
            training_seed(&wallet(4), 7, task, RoundNumber(2)),
        ] {
            assert_ne!(seed, other);
        }
    }
}
