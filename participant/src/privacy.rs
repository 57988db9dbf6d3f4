//! The privacy loss of a participant's rows: the record of all private trainings in a data folder,
//! and ε as it is shown.
//!
//! The record is `FOLDER/privacy`, for all tasks together: the rows of two tasks may be the same.
//! A training is charged before it begins, so that no crash can forget a cost. The same training of
//! the same inputs draws the same noise and gives the same update, and is charged once. The record
//! cannot count what other data folders, other wallets or an older backup spend on the same rows.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use borsh::{BorshDeserialize, BorshSerialize};
use florin_learning::privacy::{Delta, PrivacyLoss, PrivateSteps, RowPrivacy};
use florin_protocol::{Digest, MarketId, Micro, RoundNumber, TaskId};
use serde::{Serialize, Serializer};

use crate::hash_chain::{HashChainError, HashChainLog};

/// Key-derivation context of the record's hash chain.
const CONTEXT: &str = "florin v1 privacy record";

/// Clip and noise of a participation, and the most that it may reveal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrivacyConfig {
    /// Clip and noise.
    pub noise: RowPrivacy,
    /// δ of every ε.
    pub delta: Delta,
    /// The participation ends before a round after which ε would be above this.
    pub epsilon_max: Epsilon,
}

/// ε in millionths, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epsilon(u64);

impl Epsilon {
    /// No finite bound is known.
    const UNBOUNDED: Self = Self(u64::MAX);
    /// Millionths in a hundredth, the unit of the text.
    const MICRO_PER_CENT: u64 = 10_000;

    fn of_loss(loss: &PrivacyLoss, delta: Delta) -> Self {
        // More than all rounding errors of the accountant.
        const SLACK: f64 = 1.0 + 1e-9;
        let micro = (loss.epsilon(delta) * SLACK * 1e6).ceil();
        // A conversion makes the largest integer of a number beyond it.
        if micro.is_finite() { Self(micro as u64) } else { Self::UNBOUNDED }
    }

    /// Millionths.
    #[must_use]
    pub const fn micro(self) -> u64 {
        self.0
    }
}

impl From<Micro> for Epsilon {
    fn from(micro: Micro) -> Self {
        Self(micro.0)
    }
}

/// Two decimals, rounded up.
impl fmt::Display for Epsilon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::UNBOUNDED {
            return f.pad("unbounded");
        }
        let cents = self.0.div_ceil(Self::MICRO_PER_CENT);
        f.pad(&format!("{}.{:02}", cents / 100, cents % 100))
    }
}

/// Its millionths.
impl Serialize for Epsilon {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

/// The privacy loss that a participation can expect, before its bond.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PrivacyPlan {
    /// The clip.
    pub clip: Micro,
    /// The noise, in multiples of the clip.
    pub noise: Micro,
    /// δ.
    pub delta: String,
    /// ε of all updates so far.
    #[serde(rename = "epsilon_micro")]
    pub epsilon: Epsilon,
    /// ε after one more round.
    #[serde(rename = "epsilon_next_micro")]
    pub epsilon_next: Epsilon,
    /// Number of rounds that the task has left.
    pub rounds_left: u32,
    /// ε after all of them.
    #[serde(rename = "epsilon_all_micro")]
    pub epsilon_all: Epsilon,
    /// The limit.
    #[serde(rename = "epsilon_max_micro")]
    pub epsilon_max: Epsilon,
}

impl fmt::Display for PrivacyPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            clip,
            noise,
            delta,
            epsilon,
            epsilon_next,
            rounds_left,
            epsilon_all,
            epsilon_max,
        } = self;
        write!(
            f,
            "clip {clip}, noise {noise}: ε for one row is {epsilon} so far, {epsilon_next} after \
             the next round, {epsilon_all} after all {rounds_left} that are left (δ {delta}); the \
             limit is {epsilon_max}"
        )?;
        match epsilon_all > epsilon_max {
            true => f.write_str(", so this participation ends before the task does"),
            false => Ok(()),
        }
    }
}

/// The privacy loss of one round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoundPrivacy {
    /// The round.
    pub round: RoundNumber,
    /// ε of this round alone.
    #[serde(rename = "epsilon_round_micro")]
    pub epsilon_round: Epsilon,
    /// ε of all updates of the data folder up to this one, of every task.
    #[serde(rename = "epsilon_micro")]
    pub epsilon: Epsilon,
    /// δ.
    pub delta: String,
}

impl fmt::Display for RoundPrivacy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { round, epsilon_round, epsilon, delta } = self;
        write!(
            f,
            "round {round}: clipped, with noise; ε for one row {epsilon_round} in this round, \
             {epsilon} in total (δ {delta})"
        )
    }
}

/// Errors of a participation with noise, or without it where it is needed.
#[derive(Debug, thiserror::Error)]
pub enum NoiseError {
    /// Earlier updates of the folder have noise, and this participation would add none.
    #[error(
        "earlier updates of {folder} have noise, and one without it would reveal the same rows: \
         repeat the command with --clip and --noise, or name another folder with --state",
        folder = folder.display()
    )]
    Missing {
        /// The data folder.
        folder: PathBuf,
    },
    /// Earlier updates of the folder have no noise, so that no ε holds for its rows.
    #[error(
        "{updates} earlier updates of {folder} were sent without noise, so that no ε holds for \
         their rows. For rows that took part in none of them, name another folder with --state",
        folder = folder.display()
    )]
    UnprotectedUpdates {
        /// Number of updates.
        updates: usize,
        /// The data folder.
        folder: PathBuf,
    },
    /// The task asks for more noise.
    #[error(
        "the task asks for noise of at least {least} times the clip (training.noise_min), and {}: \
         repeat the command with --clip C and --noise {least} or more, or choose another task",
        match given {
            Some(given) => format!("--noise is {given}"),
            None => "this participation adds none".to_string(),
        }
    )]
    BelowTask {
        /// The least noise of the task.
        least: Micro,
        /// The noise of the participation, if it adds any.
        given: Option<Micro>,
    },
    /// δ allows that a row is published.
    #[error(
        "--delta {delta} is too large for {rows} rows: with one in {rows} or more, publishing a \
         row at random would be allowed. Choose less than a tenth of that"
    )]
    DeltaTooLarge {
        /// δ.
        delta: f64,
        /// Number of rows.
        rows: usize,
    },
    /// The next round would exceed the limit.
    #[error(
        "ε for one row would be {next} after the next round, above the limit of {limit}. Raise \
         --noise, or accept more with --epsilon-max; `florin claim` collects earlier pay, and after \
         the task has ended the same command withdraws the bond"
    )]
    EpsilonExhausted {
        /// ε after the next round.
        next: Epsilon,
        /// The limit.
        limit: Epsilon,
    },
    /// Experiments do not train as they should.
    #[error("an experiment cannot add noise: its updates do not come from training")]
    Experiment,
    /// The rows change from round to round.
    #[error(
        "--noise needs rows that all rounds share, and a sample of a producer's rows changes: leave out          --clip and --noise, or write the rows to a file and give it as --data"
    )]
    Producer,
    /// The record has an entry of another version.
    #[error("the record of the privacy loss has an unknown entry, by another version: {0}")]
    UnknownRecord(String),
    /// The record cannot be used.
    #[error(transparent)]
    File(#[from] HashChainError),
}

impl NoiseError {
    /// The stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "NOISE_MISSING",
            Self::UnprotectedUpdates { .. } => "UNPROTECTED_UPDATES",
            Self::BelowTask { .. } => "NOISE_TOO_LOW",
            Self::DeltaTooLarge { .. } => "DELTA_TOO_LARGE",
            Self::EpsilonExhausted { .. } => "EPSILON_EXHAUSTED",
            Self::Experiment => "INVALID_NOISE",
            Self::Producer => "NOISE_UNSUPPORTED",
            Self::UnknownRecord(_) => "PRIVACY_RECORD_CORRUPT",
            Self::File(error) => error.code(),
        }
    }
}

/// One private training: its identity and its cost.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct Charge {
    pub(crate) market: MarketId,
    pub(crate) task: TaskId,
    pub(crate) round: RoundNumber,
    /// Digest of everything that the update depends on, besides the wallet.
    pub(crate) inputs: Digest,
    pub(crate) rows: u64,
    pub(crate) batch: u64,
    pub(crate) steps: u64,
    pub(crate) noise_micro: u64,
}

impl Charge {
    const fn steps(&self) -> PrivateSteps {
        let Self { rows, batch, steps, noise_micro, .. } = *self;
        PrivateSteps { rows, batch, steps, noise_micro }
    }
}

/// The record of all private trainings of a data folder, open and locked.
#[derive(Debug)]
pub(crate) struct PrivacyRecord {
    log: HashChainLog,
    charges: Vec<Charge>,
}

impl PrivacyRecord {
    /// Path of the record in a data folder.
    pub(crate) fn path(folder: &Path) -> PathBuf {
        folder.join("privacy")
    }

    /// Whether a data folder has a private training.
    pub(crate) fn exists(folder: &Path) -> Result<bool, NoiseError> {
        Ok(!read_charges(folder)?.is_empty())
    }

    /// Opens or creates the record of a data folder.
    pub(crate) fn open(folder: &Path) -> Result<Self, NoiseError> {
        let (log, records) = HashChainLog::open(&Self::path(folder), CONTEXT)?;
        Ok(Self { log, charges: parse_charges(&records)? })
    }

    /// Whether a round of a task was charged.
    pub(crate) fn has_round(&self, market: MarketId, task: TaskId, round: RoundNumber) -> bool {
        let is_of =
            |charge: &Charge| (charge.market, charge.task, charge.round) == (market, task, round);
        self.charges.iter().any(is_of)
    }

    /// Whether this very training was charged.
    pub(crate) fn has(&self, charge: &Charge) -> bool {
        self.charges.contains(charge)
    }

    /// Records a training, unless it is recorded. It is on disk when this returns.
    pub(crate) fn charge(&mut self, charge: Charge) -> Result<(), NoiseError> {
        if !self.has(&charge) {
            let bytes = borsh::to_vec(&charge).expect("writing to memory does not fail");
            self.log.append(&bytes)?;
            self.charges.push(charge);
        }
        Ok(())
    }

    /// ε of all trainings, and of further steps.
    pub(crate) fn epsilon_with(&self, further: Option<PrivateSteps>, delta: Delta) -> Epsilon {
        let all = self.charges.iter().map(Charge::steps).chain(further);
        Epsilon::of_loss(&total_loss(all), delta)
    }
}

/// The privacy loss of each round of a task by the record of a data folder, ascending by charge.
///
/// # Errors
/// [`NoiseError`] if the record cannot be read.
pub fn recorded_privacy(
    folder: &Path,
    task: TaskId,
    delta: Delta,
) -> Result<Vec<RoundPrivacy>, NoiseError> {
    let mut so_far = Vec::new();
    let mut rounds = Vec::new();
    for charge in read_charges(folder)? {
        so_far.push(charge.steps());
        if charge.task == task {
            rounds.push(RoundPrivacy {
                round: charge.round,
                epsilon_round: Epsilon::of_loss(&total_loss([charge.steps()]), delta),
                epsilon: Epsilon::of_loss(&total_loss(so_far.iter().copied()), delta),
                delta: delta.value().to_string(),
            });
        }
    }
    Ok(rounds)
}

/// ε of one training.
pub(crate) fn epsilon_of(steps: PrivateSteps, delta: Delta) -> Epsilon {
    Epsilon::of_loss(&total_loss([steps]), delta)
}

/// The loss of all steps; equal kinds of steps are computed once.
fn total_loss(all: impl IntoIterator<Item = PrivateSteps>) -> PrivacyLoss {
    let mut kinds: BTreeMap<PrivateSteps, u64> = BTreeMap::new();
    for one in all {
        let steps = kinds.entry(PrivateSteps { steps: 0, ..one }).or_default();
        *steps = steps.saturating_add(one.steps);
    }
    let mut loss = PrivacyLoss::default();
    for (kind, steps) in kinds {
        loss.add(&PrivateSteps { steps, ..kind });
    }
    loss
}

fn read_charges(folder: &Path) -> Result<Vec<Charge>, NoiseError> {
    parse_charges(&HashChainLog::read(&PrivacyRecord::path(folder), CONTEXT)?)
}

fn parse_charges(records: &[Vec<u8>]) -> Result<Vec<Charge>, NoiseError> {
    let parse = |bytes: &Vec<u8>| {
        borsh::from_slice(bytes).map_err(|error| NoiseError::UnknownRecord(error.to_string()))
    };
    records.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use florin_protocol::ChainId;

    use super::*;

    fn charge(round: u32, inputs: u8) -> Charge {
        Charge {
            market: MarketId { chain: ChainId(1), genesis: Digest([1; 32]) },
            task: TaskId([2; 32]),
            round: RoundNumber(round),
            inputs: Digest([inputs; 32]),
            rows: 40,
            batch: 8,
            steps: 10,
            noise_micro: 1_000_000,
        }
    }

    fn delta() -> Delta {
        Delta::try_from(1e-5).unwrap()
    }

    #[test]
    fn the_loss_goes_on_after_a_restart_and_counts_each_training_once() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!PrivacyRecord::exists(folder.path()).unwrap());
        let mut record = PrivacyRecord::open(folder.path()).unwrap();
        assert_eq!(record.epsilon_with(None, delta()), Epsilon(0));
        record.charge(charge(1, 1)).unwrap();
        let once = record.epsilon_with(None, delta());
        record.charge(charge(1, 1)).unwrap();
        assert_eq!(record.epsilon_with(None, delta()), once, "the same training");
        let forecast = record.epsilon_with(Some(charge(2, 2).steps()), delta());
        // The same round with another base model is another training.
        record.charge(charge(1, 2)).unwrap();
        assert_eq!(record.epsilon_with(None, delta()), forecast);
        assert!(forecast > once);
        drop(record);
        let record = PrivacyRecord::open(folder.path()).unwrap();
        assert_eq!(record.epsilon_with(None, delta()), forecast);
        assert!(record.has_round(charge(1, 1).market, TaskId([2; 32]), RoundNumber(1)));
        assert!(!record.has_round(charge(1, 1).market, TaskId([3; 32]), RoundNumber(1)));
        // Readers need no lock, and another task's rounds count in the total.
        let rounds = recorded_privacy(folder.path(), TaskId([2; 32]), delta()).unwrap();
        let epsilons: Vec<_> = rounds.iter().map(|r| (r.epsilon_round, r.epsilon)).collect();
        assert_eq!(epsilons, [(once, once), (once, forecast)]);
        assert!(recorded_privacy(folder.path(), TaskId([3; 32]), delta()).unwrap().is_empty());
    }

    #[test]
    fn a_damaged_record_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        PrivacyRecord::open(folder.path()).unwrap().charge(charge(1, 1)).unwrap();
        let path = PrivacyRecord::path(folder.path());
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(PrivacyRecord::open(folder.path()).is_err());
        assert!(PrivacyRecord::exists(folder.path()).is_err());
    }

    #[test]
    fn epsilon_is_rounded_up() {
        for (micro, text) in [
            (0, "0.00"),
            (1, "0.01"),
            (10_000, "0.01"),
            (7_990_001, "8.00"),
            (u64::MAX, "unbounded"),
        ] {
            assert_eq!(Epsilon(micro).to_string(), text);
        }
        let burnt = PrivateSteps { rows: 1, batch: 1, steps: u64::MAX, noise_micro: 100_000 };
        assert_eq!(epsilon_of(burnt, delta()), Epsilon::UNBOUNDED);
    }
}
