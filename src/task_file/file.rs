//! The sections and keys of a task file, as serde types, and the settings that they stand for.

mod selection;

use std::fmt;
use std::path::PathBuf;

use florin_protocol::{
    Address, Admission, Aggregation, Amount, Augmentation, Budget, DuplicatePolicy, Estimator,
    Micro, NormScaling, Optimizer, PreprocessingRules, RoundRules, Schedule, Training,
    UpdateFormat,
};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use self::selection::{RoundKind, RoundMode};
use super::TaskFileError;
use super::data_section::DataSection;
use super::graph_section::{BuffersName, LossName};

/// Default of `estimator.cross_check_pairs`: coalition pairs per participant that check the scores.
const CROSS_CHECK_PAIRS: u8 = 1;
/// Default of `training.betas`.
const ADAM_BETAS: [Micro; 2] = [Micro(900_000), Micro(999_000)];
/// The largest learning rate, in millionths.
const LEARNING_RATE_MAX: u64 = 100_000_000;
/// Batches for which a learning rate can be stated.
const BATCHES: std::ops::RangeInclusive<u32> = 1..=65_536;
/// Default of `rounds.stall`, in milliseconds: a day.
const STALL_MS: u64 = 24 * 3_600 * 1_000;
/// Default of `rounds.abandoned_max`.
const ABANDONED_ROUNDS_MAX: u32 = 8;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskFile {
    pub(super) name: String,
    pub(super) salt: u64,
    pub(super) expires: String,
    pub(super) arbiter: Option<Address>,
    pub(super) trust: Option<Trust>,
    pub(super) model: ModelSection,
    pub(super) data: DataSection,
    pub(super) holdout: HoldoutSection,
    pub(super) training: TrainingSection,
    pub(super) rounds: RoundsSection,
    #[serde(default)]
    pub(super) members: MembersSection,
    pub(super) estimator: EstimatorSection,
    pub(super) budget: BudgetSection,
}

/// Values of `trust`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Trust {
    /// The coordinator is its own arbiter.
    Coordinator,
}

/// `[model]`: the union of the keys of all kinds, so that a misplaced key is reported with its
/// line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelSection {
    pub(super) kind: ModelKind,
    pub(super) inputs: Option<u32>,
    pub(super) hidden: Option<HiddenUnits>,
    pub(super) channels: Option<u32>,
    pub(super) height: Option<u32>,
    pub(super) width: Option<u32>,
    pub(super) filters: Option<[u32; 2]>,
    pub(super) classes: Option<u32>,
    /// A file of initial parameters, as `florin task model` writes it.
    pub(super) initial: Option<PathBuf>,
    /// The folder with a trainer's code.
    pub(super) code: Option<PathBuf>,
    /// Whether a trainer computes gradients.
    pub(super) gradient: Option<bool>,
    /// A file of `torch.export.save`, for a graph.
    pub(super) file: Option<PathBuf>,
    pub(super) trainable: Option<Vec<String>>,
    pub(super) buffers: Option<BuffersName>,
    pub(super) loss: Option<LossName>,
    pub(super) label_smoothing: Option<Decimal>,
    pub(super) loss_bound: Option<Decimal>,
    pub(super) huber_delta: Option<Decimal>,
    pub(super) targets: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ModelKind {
    Softmax,
    Mlp,
    Cnn,
    Graph,
    Trainer,
}

/// The units of one hidden layer, or of several.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number of units, or a list of them such as [64, 32]")]
pub(super) enum HiddenUnits {
    One(u32),
    Many(Vec<u32>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HoldoutSection {
    pub(super) source: String,
    pub(super) rows: Option<String>,
    pub(super) rows_per_round: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TrainingSection {
    epochs: u32,
    batch: u32,
    learning_rate: Decimal,
    /// The batch for which the learning rate is stated; `None` for the task's own.
    learning_rate_batch: Option<u32>,
    #[serde(default)]
    momentum: Decimal,
    #[serde(default)]
    weight_decay: Decimal,
    #[serde(default)]
    clip_gradient: Decimal,
    #[serde(default)]
    fedprox: Decimal,
    #[serde(default)]
    noise_min: Decimal,
    #[serde(default)]
    optimizer: OptimizerKind,
    betas: Option<[Decimal; 2]>,
    #[serde(default)]
    schedule: ScheduleKind,
    #[serde(default)]
    warmup_steps: u32,
    #[serde(default)]
    flip: bool,
    #[serde(default)]
    crop_padding: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OptimizerKind {
    #[default]
    Sgd,
    Adam,
    #[serde(rename = "adamw")]
    AdamW,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ScheduleKind {
    #[default]
    Constant,
    Linear,
    Cosine,
}

impl TrainingSection {
    pub(super) fn settings(&self) -> Result<Training, TaskFileError> {
        Ok(Training {
            epochs: self.epochs,
            batch: self.batch,
            learning_rate: self.step_size()?,
            momentum: self.momentum.0,
            weight_decay: self.weight_decay.0,
            clip_gradient: self.clip_gradient.0,
            fedprox: self.fedprox.0,
            noise_min: self.noise_min.0,
            optimizer: self.optimizer()?,
            schedule: match self.schedule {
                ScheduleKind::Constant => Schedule::Constant,
                ScheduleKind::Linear => Schedule::Linear,
                ScheduleKind::Cosine => Schedule::Cosine,
            },
            warmup_steps: self.warmup_steps,
            augmentation: Augmentation { flip: self.flip, crop_padding: self.crop_padding },
        })
    }

    /// The step size for the task's batch: larger batches take larger steps, in proportion to their size with `sgd` (Goyal et al.,
    /// *Accurate, Large Minibatch SGD*, 2017), and to its root with `adam` and `adamw` (Malladi et al., 2022).
    fn step_size(&self) -> Result<Micro, TaskFileError> {
        let stated = self.learning_rate.0;
        let Some(of) = self.learning_rate_batch else { return Ok(stated) };
        if !BATCHES.contains(&of) {
            let right = "use 1 to 65536 rows: the batch for which learning_rate is stated";
            return Err(TaskFileError::key("training.learning_rate_batch", of.to_string(), right));
        }
        let (rate, batch, of) = (u128::from(stated.0), u128::from(self.batch), u128::from(of));
        let scaled = match self.optimizer {
            OptimizerKind::Sgd => (rate.saturating_mul(batch) + of / 2) / of,
            // In parts of a thousandth: a root of whole millionths would round small rates.
            OptimizerKind::Adam | OptimizerKind::AdamW => {
                (rate.saturating_mul(rate).saturating_mul(1_000_000).saturating_mul(batch) / of)
                    .isqrt()
                    .saturating_add(500)
                    / 1_000
            }
        };
        match u64::try_from(scaled) {
            Ok(scaled @ 1..=LEARNING_RATE_MAX) => Ok(Micro(scaled)),
            _ => {
                let right = format!(
                    "learning_rate {stated} for a batch of {of} is {} for one of {}: above 0, at most 100",
                    Micro(u64::try_from(scaled).unwrap_or(u64::MAX)),
                    self.batch
                );
                Err(TaskFileError::key("training.learning_rate_batch", of.to_string(), right))
            }
        }
    }

    fn optimizer(&self) -> Result<Optimizer, TaskFileError> {
        let [beta1, beta2] = match self.betas {
            Some([first, second]) => [first.0, second.0],
            None => ADAM_BETAS,
        };
        Ok(match self.optimizer {
            OptimizerKind::Sgd if self.betas.is_some() => {
                let right = "only the optimizers \"adam\" and \"adamw\" have this key: remove it, or \
                             choose one of them";
                return Err(TaskFileError::key("training.betas", "…", right));
            }
            OptimizerKind::Sgd => Optimizer::Sgd,
            OptimizerKind::Adam => Optimizer::Adam { beta1, beta2 },
            OptimizerKind::AdamW => Optimizer::AdamW { beta1, beta2 },
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RoundsSection {
    count: u32,
    cohort_min: u32,
    cohort_target: u32,
    #[serde(default)]
    over_selection: u32,
    selection: Option<toml::Value>,
    deadline: Option<toml::Value>,
    mode: Option<toml::Value>,
    enrol: Duration,
    train: Duration,
    reveal: Duration,
    value: Duration,
    stall: Option<Duration>,
    abandoned_max: Option<u32>,
    format: Option<FormatSection>,
    delta_norm_max: Decimal,
    aggregation: AggregationSection,
    #[serde(default)]
    norm_scaling: NormScaling,
    #[serde(default)]
    near_duplicates: DuplicatePolicy,
    weight_cap: Option<u16>,
    baseline_epochs: Option<u32>,
}

impl RoundsSection {
    pub(super) fn rules(&self) -> Result<RoundRules, TaskFileError> {
        let mode = self.mode.as_ref().map(RoundKind::from_value).transpose()?;
        let mode = mode.unwrap_or(RoundKind::DEFAULT);
        let selected = self.selection.as_ref().map(selection::selection).transpose()?;
        let deadline = self.deadline.as_ref().map(selection::deadline).transpose()?;
        let RoundMode { target, over_selection, staleness } =
            mode.rules((self.cohort_min, self.cohort_target, self.over_selection))?;
        Ok(RoundRules {
            count: self.count,
            cohort_min: self.cohort_min,
            cohort_target: target,
            over_selection,
            selection: selected.unwrap_or_default(),
            deadline: deadline.unwrap_or_default(),
            staleness,
            enrol_ms: self.enrol.0,
            train_ms: self.train.0,
            reveal_ms: self.reveal.0,
            value_ms: self.value.0,
            stall_ms: self.stall.map_or(STALL_MS, |stall| stall.0),
            abandoned_max: self.abandoned_max.unwrap_or(ABANDONED_ROUNDS_MAX),
            format: format(self.format.as_ref())?,
            delta_norm_max: self.delta_norm_max.0,
            aggregation: aggregation(&self.aggregation)?,
            preprocessing: PreprocessingRules {
                norm_scaling: self.norm_scaling,
                near_duplicates: self.near_duplicates,
                weight_cap: self.weight_cap.unwrap_or(PreprocessingRules::DEFAULT.weight_cap),
            },
            baseline_epochs: self.baseline_epochs.unwrap_or_default(),
        })
    }
}

/// `[members]`; a file without it describes an open task.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MembersSection {
    admission: AdmissionKind,
    accounts: Option<Vec<Address>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AdmissionKind {
    #[default]
    Open,
    AllowList,
    Invitation,
}

impl MembersSection {
    /// The admission rule, with the accounts of a list in ascending order.
    pub(super) fn admission(&self) -> Result<Admission, TaskFileError> {
        const KEY: &str = "members.accounts";
        let rule = match (self.admission, &self.accounts) {
            (AdmissionKind::AllowList, Some(accounts)) => {
                let mut accounts = accounts.clone();
                accounts.sort_unstable();
                if let Some([twice, _]) = accounts.array_windows().find(|[a, b]| a == b) {
                    let right = "the list names this account twice: remove one";
                    return Err(TaskFileError::key(KEY, twice.to_string(), right));
                }
                Admission::AllowList { accounts }
            }
            (AdmissionKind::AllowList, None) => {
                let right = "the admission \"allow_list\" requires this key: a list of addresses";
                return Err(TaskFileError::key(KEY, "nothing", right));
            }
            (_, Some(_)) => {
                let right = "only the admission \"allow_list\" has this key: remove it";
                return Err(TaskFileError::key(KEY, "…", right));
            }
            (AdmissionKind::Open, None) => Admission::Open,
            (AdmissionKind::Invitation, None) => Admission::Invitation,
        };
        Ok(rule)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FormatSection {
    kind: FormatKind,
    permille: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FormatKind {
    F32,
    Bf16,
    Int8,
    TopK,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AggregationSection {
    rule: AggregationKind,
    trim: Option<Decimal>,
    byzantine: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AggregationKind {
    Mean,
    Median,
    TrimmedMean,
    Krum,
    ClippedMean,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EstimatorSection {
    kind: EstimatorKind,
    nodes: Option<u8>,
    cross_check_pairs: Option<u8>,
}

impl EstimatorSection {
    pub(super) fn estimator(&self) -> Result<Estimator, TaskFileError> {
        let wrong = |key: &str, value: &str, right: &str| TaskFileError::key(key, value, right);
        match (self.kind, self.nodes) {
            (EstimatorKind::Path, Some(nodes)) => {
                let cross_check_pairs = self.cross_check_pairs.unwrap_or(CROSS_CHECK_PAIRS);
                Ok(Estimator::Path { nodes, cross_check_pairs })
            }
            (EstimatorKind::Path, None) => {
                let right =
                    "the estimator \"path\" requires this key; 3 is the default of new files";
                Err(wrong("estimator.nodes", "nothing", right))
            }
            (EstimatorKind::Coalitions, None) if self.cross_check_pairs.is_none() => {
                Ok(Estimator::Coalitions)
            }
            (EstimatorKind::Coalitions, nodes) => {
                let key = if nodes.is_some() { "nodes" } else { "cross_check_pairs" };
                let right = "the estimator \"coalitions\" has no such key: remove it";
                Err(wrong(&format!("estimator.{key}"), "…", right))
            }
        }
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EstimatorKind {
    Path,
    Coalitions,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BudgetSection {
    data: Amount,
    infrastructure: Amount,
    per_nat_max: Amount,
    #[serde(default)]
    floor_share: Decimal,
    confidence_z: Decimal,
    bond_min: Amount,
    bond_per_row: Amount,
    debit_max: Amount,
    stake_min: Amount,
    per_unit: Amount,
    challenge: Duration,
    unbond: Duration,
}

impl BudgetSection {
    pub(super) const fn budget(&self) -> Budget {
        Budget {
            data: self.data,
            infrastructure: self.infrastructure,
            per_nat_max: self.per_nat_max,
            floor_share: self.floor_share.0,
            confidence_z: self.confidence_z.0,
            bond_min: self.bond_min,
            bond_per_row: self.bond_per_row,
            debit_max: self.debit_max,
            stake_min: self.stake_min,
            per_unit: self.per_unit,
            challenge_ms: self.challenge.0,
            unbond_ms: self.unbond.0,
        }
    }
}

/// A decimal number, written as a TOML number or as text; exact to six decimals.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Decimal(pub(super) Micro);

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DecimalVisitor;
        impl Visitor<'_> for DecimalVisitor {
            type Value = Decimal;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number with at most six decimals, such as 0.05")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Decimal, E> {
                text.parse().map(Decimal).map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Decimal, E> {
                self.visit_str(&value.to_string())
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Decimal, E> {
                self.visit_str(&value.to_string())
            }
            // The shortest decimal that parses to this float equals the text in the file.
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Decimal, E> {
                value.to_string().parse().map(Decimal).map_err(|_| {
                    E::custom(format!("{value:?} is not a number from 0 on with at most six decimals, such as 0.05"))
                })
            }
        }
        deserializer.deserialize_any(DecimalVisitor)
    }
}

/// Milliseconds, written as a duration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Duration(pub(super) u64);

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <String as Deserialize>::deserialize(deserializer)?;
        super::duration::parse_ms(&text).map(Self).map_err(de::Error::custom)
    }
}

fn aggregation(section: &AggregationSection) -> Result<Aggregation, TaskFileError> {
    let needs = |key: &str, rule: &str| {
        TaskFileError::key(key, "nothing", format!("the rule {rule:?} requires this key"))
    };
    let rule = section.rule;
    if section.trim.is_some() && rule != AggregationKind::TrimmedMean {
        let right = "only the rule \"trimmed_mean\" has this key: remove it";
        return Err(TaskFileError::key("rounds.aggregation.trim", "…", right));
    }
    if section.byzantine.is_some() && rule != AggregationKind::Krum {
        let right = "only the rule \"krum\" has this key: remove it";
        return Err(TaskFileError::key("rounds.aggregation.byzantine", "…", right));
    }
    Ok(match rule {
        AggregationKind::Mean => Aggregation::Mean,
        AggregationKind::Median => Aggregation::Median,
        AggregationKind::ClippedMean => Aggregation::ClippedMean,
        AggregationKind::TrimmedMean => {
            let trim =
                section.trim.ok_or_else(|| needs("rounds.aggregation.trim", "trimmed_mean"))?;
            Aggregation::TrimmedMean { trim: trim.0 }
        }
        AggregationKind::Krum => {
            let byzantine =
                section.byzantine.ok_or_else(|| needs("rounds.aggregation.byzantine", "krum"))?;
            Aggregation::Krum { byzantine }
        }
    })
}

/// The update format; the default format (f32) if the section is missing.
fn format(section: Option<&FormatSection>) -> Result<UpdateFormat, TaskFileError> {
    const KEY: &str = "rounds.format.permille";
    let Some(FormatSection { kind, permille }) = section else {
        return Ok(UpdateFormat::default());
    };
    match (kind, permille) {
        (FormatKind::TopK, Some(permille)) => Ok(UpdateFormat::TopK { permille: *permille }),
        (FormatKind::TopK, None) => {
            let right = "the kind \"top_k\" requires this key: write 1 to 500 thousandths of the \
                parameters";
            Err(TaskFileError::key(KEY, "nothing", right))
        }
        (_, Some(permille)) => {
            let right = "only the kind \"top_k\" has this key: remove it";
            Err(TaskFileError::key(KEY, permille.to_string(), right))
        }
        (FormatKind::F32, None) => Ok(UpdateFormat::F32),
        (FormatKind::Bf16, None) => Ok(UpdateFormat::Bf16),
        (FormatKind::Int8, None) => Ok(UpdateFormat::Int8),
    }
}
