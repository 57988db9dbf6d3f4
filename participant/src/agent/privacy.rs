//! Clip and noise of the agent's updates: the conditions under which ε holds, the charge of each
//! round, and the secret seed of its noise.

use florin_learning::Dataset;
use florin_learning::privacy::{ClipAndNoise, PrivateSteps};
use florin_protocol::{Digest, Micro, Offer, RoundNumber, RoundScope, TaskPhase, TaskView};

use super::task_folder::TaskFolder;
use super::{Agent, AgentError};
use crate::event::ParticipantEvent;
use crate::privacy::{
    Charge, Epsilon, NoiseError, PrivacyConfig, PrivacyPlan, PrivacyRecord, RoundPrivacy,
    epsilon_of,
};

/// Key-derivation context of the key for seeds of noise.
const SEED_CONTEXT: &str = "florin v1 noise seeds of a wallet";
/// Key-derivation context of the digest of a training's inputs.
const INPUTS_CONTEXT: &str = "florin v1 inputs of a private training";
/// The largest product of δ and the number of rows.
const DELTA_TIMES_ROWS_MAX: f64 = 0.1;

/// The noise of a round's update.
pub(super) enum RoundNoise {
    /// The participation adds none.
    None,
    /// The seed of the noise; the round is charged.
    Charged([u8; 32]),
    /// The round would exceed the limit; the participation ends.
    Exhausted,
}

impl Agent<'_, '_> {
    /// Refuses a participation for which the stated ε would not be true.
    pub(super) fn check_privacy(&mut self, phase: TaskPhase) -> Result<(), AgentError> {
        let folder = &self.config.folder;
        // Then only claims and the bond are left.
        if matches!(phase, TaskPhase::Closing | TaskPhase::Done) {
            return Ok(());
        }
        let given = self.config.privacy.map(|config| Micro(config.noise.settings().noise_micro));
        let least = self.spec.training.noise_min;
        if given.unwrap_or(Micro::ZERO) < least && !self.context.behaviour.is_experiment() {
            return Err(NoiseError::BelowTask { least, given }.into());
        }
        let Some(PrivacyConfig { delta, .. }) = self.config.privacy else {
            return match PrivacyRecord::exists(folder)? {
                true => Err(NoiseError::Missing { folder: folder.clone() }.into()),
                false => Ok(()),
            };
        };
        if self.context.behaviour.is_experiment() {
            return Err(NoiseError::Experiment.into());
        }
        let rows = self.context.data.rows();
        if delta.value() * rows as f64 > DELTA_TIMES_ROWS_MAX {
            return Err(NoiseError::DeltaTooLarge { delta: delta.value(), rows }.into());
        }
        let record = self.guard.privacy_record()?;
        let mut updates = 0;
        for (market, task, round) in self.guard.signed_updates() {
            // A late update is charged for the round that it was trained in.
            let trained_in = TaskFolder::new(folder, task).trained_in(round)?;
            updates += usize::from(!record.has_round(market, task, trained_in));
        }
        if updates > 0 {
            return Err(NoiseError::UnprotectedUpdates { updates, folder: folder.clone() }.into());
        }
        self.privacy_record = Some(record);
        Ok(())
    }

    /// Emits the privacy loss of the rounds that are left, before the bond. Refuses a task whose
    /// next round would exceed the limit, unless that round is charged.
    pub(super) fn plan_privacy(&mut self, view: &TaskView) -> Result<(), AgentError> {
        let (Some(config), Some(record)) = (self.config.privacy, &self.privacy_record) else {
            return Ok(());
        };
        let steps = self.steps_of_round(config);
        let rounds_left = self.spec.rounds.count.saturating_sub(view.reported);
        let with = |rounds: u32| {
            let steps = PrivateSteps { steps: steps.steps.saturating_mul(rounds.into()), ..steps };
            record.epsilon_with(Some(steps), config.delta)
        };
        let next = RoundNumber(view.reported.saturating_add(1));
        let is_charged = record.has_round(self.spec.market, self.config.task, next);
        let settings = config.noise.settings();
        let plan = PrivacyPlan {
            clip: Micro(settings.clip_micro),
            noise: Micro(settings.noise_micro),
            delta: config.delta.value().to_string(),
            epsilon: with(0),
            epsilon_next: with(u32::from(!is_charged)),
            rounds_left,
            epsilon_all: with(rounds_left.saturating_sub(u32::from(is_charged))),
            epsilon_max: config.epsilon_max,
        };
        if plan.epsilon_next > config.epsilon_max && !is_charged {
            let (next, limit) = (plan.epsilon_next, config.epsilon_max);
            return Err(NoiseError::EpsilonExhausted { next, limit }.into());
        }
        self.emit(&ParticipantEvent::PrivacyPlanned { plan });
        Ok(())
    }

    /// Charges the round's training, before it begins.
    pub(super) fn charge_privacy(&mut self, offer: &Offer) -> Result<RoundNoise, AgentError> {
        let Some(config) = self.config.privacy else {
            return Ok(RoundNoise::None);
        };
        let steps = self.steps_of_round(config);
        let inputs = PrivateInputs {
            scope: offer.scope,
            base_model: offer.base_model,
            rows: rows_digest(self.context.data),
            noise: config.noise.settings(),
            variant: self.config.seed,
            engine: self.context.engine.name(),
        };
        let inputs = inputs.digest();
        let PrivateSteps { rows, batch, steps: count, noise_micro } = steps;
        let (scope, round) = (offer.scope, offer.scope.round);
        let (market, task) = (scope.market, scope.task);
        let charge = Charge { market, task, round, inputs, rows, batch, steps: count, noise_micro };
        let seed = self.noise_seed(inputs);
        let Some(record) = &self.privacy_record else {
            // The phase was over at the start of this process, and no training follows.
            return Ok(RoundNoise::Exhausted);
        };
        let is_new = !record.has(&charge);
        let next = record.epsilon_with(is_new.then_some(steps), config.delta);
        if is_new && next > config.epsilon_max {
            let error = NoiseError::EpsilonExhausted { next, limit: config.epsilon_max };
            self.fail_round(error.code(), &error);
            self.is_leaving = true;
            return Ok(RoundNoise::Exhausted);
        }
        record.charge(charge)?;
        let spent = RoundPrivacy {
            round,
            epsilon_round: epsilon_of(steps, config.delta),
            epsilon: next,
            delta: config.delta.value().to_string(),
        };
        self.emit(&ParticipantEvent::PrivacySpent { spent });
        Ok(RoundNoise::Charged(seed))
    }

    /// ε of all updates of the data folder.
    pub(super) fn epsilon_spent(&self) -> Option<Epsilon> {
        let (config, record) = (self.config.privacy?, self.privacy_record.as_ref()?);
        Some(record.epsilon_with(None, config.delta))
    }

    /// Whether an update on disk may be sent: with noise required, only one that was charged.
    pub(super) fn may_send_update(&self, round: RoundNumber) -> bool {
        match (&self.config.privacy, &self.privacy_record) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(_), Some(record)) => record.has_round(self.spec.market, self.config.task, round),
        }
    }

    /// The steps of one round's training.
    fn steps_of_round(&self, config: PrivacyConfig) -> PrivateSteps {
        let how = florin_work::training(&self.spec, RoundNumber::FIRST);
        let rows = self.context.data.rows();
        PrivateSteps {
            rows: rows as u64,
            batch: how.batch.into(),
            steps: how.steps(rows),
            noise_micro: config.noise.settings().noise_micro,
        }
    }

    /// The seed of a training's sampling and noise. It cannot be computed without the wallet, and
    /// two trainings with any different input have independent noise.
    fn noise_seed(&self, inputs: Digest) -> [u8; 32] {
        let key = self.context.wallet.derive_secret(SEED_CONTEXT);
        *blake3::keyed_hash(&key, &inputs.0).as_bytes()
    }
}

/// Everything that an update depends on, besides the wallet. The task's id stands for its model and
/// its hyperparameters.
#[derive(Clone, Copy)]
struct PrivateInputs {
    scope: RoundScope,
    base_model: Digest,
    rows: [u8; 32],
    noise: ClipAndNoise,
    variant: u64,
    engine: &'static str,
}

impl PrivateInputs {
    fn digest(&self) -> Digest {
        let RoundScope { market, task, round } = self.scope;
        let ClipAndNoise { clip_micro, noise_micro } = self.noise;
        let mut hasher = blake3::Hasher::new_derive_key(INPUTS_CONTEXT);
        hasher.update(&market.chain.0.to_le_bytes()).update(&market.genesis.0);
        hasher.update(&task.0).update(&round.0.to_le_bytes());
        hasher.update(&self.base_model.0).update(&self.rows);
        hasher.update(&clip_micro.to_le_bytes()).update(&noise_micro.to_le_bytes());
        hasher.update(&self.variant.to_le_bytes()).update(self.engine.as_bytes());
        Digest(*hasher.finalize().as_bytes())
    }
}

fn rows_digest(data: &Dataset) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(data.width() as u64).to_le_bytes());
    for (row, label) in data.labels().iter().enumerate() {
        hasher.update(&label.to_le_bytes());
        for value in data.row(row) {
            hasher.update(&value.to_le_bytes());
        }
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use florin_protocol::{ChainId, MarketId, TaskId};

    use super::*;
    use crate::testing::rows;

    /// Two updates with equal noise and different inputs would differ by their gradients alone.
    #[test]
    fn no_two_different_trainings_share_their_noise() {
        let market = MarketId { chain: ChainId(1), genesis: Digest([1; 32]) };
        let scope = RoundScope { market, task: TaskId([2; 32]), round: RoundNumber(3) };
        let noise = ClipAndNoise { clip_micro: 1, noise_micro: 2 };
        let data = rows(4, 1);
        let one = PrivateInputs {
            scope,
            base_model: Digest([4; 32]),
            rows: rows_digest(&data),
            noise,
            variant: 5,
            engine: "reference",
        };
        let other_market = MarketId { chain: ChainId(2), ..market };
        let relabelled = Dataset::new(data.features().to_vec(), vec![1, 1, 2, 0], 4, 3).unwrap();
        let others = [
            PrivateInputs { scope: RoundScope { market: other_market, ..scope }, ..one },
            PrivateInputs { scope: RoundScope { task: TaskId([9; 32]), ..scope }, ..one },
            PrivateInputs { scope: RoundScope { round: RoundNumber(4), ..scope }, ..one },
            PrivateInputs { base_model: Digest([9; 32]), ..one },
            PrivateInputs { rows: rows_digest(&rows(4, 2)), ..one },
            PrivateInputs { rows: rows_digest(&relabelled), ..one },
            PrivateInputs { rows: rows_digest(&rows(3, 1)), ..one },
            PrivateInputs { noise: ClipAndNoise { clip_micro: 3, ..noise }, ..one },
            PrivateInputs { noise: ClipAndNoise { noise_micro: 3, ..noise }, ..one },
            PrivateInputs { variant: 6, ..one },
            PrivateInputs { engine: "torch", ..one },
        ];
        let mut digests: Vec<Digest> = others.iter().map(PrivateInputs::digest).collect();
        digests.push(one.digest());
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), others.len() + 1);
        assert_eq!(one.digest(), PrivateInputs { rows: rows_digest(&data), ..one }.digest());
    }
}
