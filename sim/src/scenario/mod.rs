//! The scenario: the definition of an experiment as a TOML file. Unknown keys are rejected, values
//! have bounds, and the command line can change every key.

mod any_market;
mod built_in;
mod check;
mod devices;
mod error;
mod file;
mod rounds;
mod search;
mod setting_override;
mod simulation_mode;
mod table;
mod trace;
mod unknown_keys;

use std::collections::BTreeMap;
use std::sync::Arc;

use florin_protocol::StalenessRule;
use serde::{Deserialize, Serialize};

use crate::mechanism::Mechanism;
use crate::strategy::Strategy;

pub use any_market::AnyScenario;
pub use built_in::{BuiltInScenario, built_in, built_ins};
pub(crate) use check::{Check, GROUPS_MAX};
pub use devices::{DeviceLink, DeviceSpeed, GroupDevices, StepPlan, TaskStep};
pub use error::ScenarioError;
pub(crate) use file::malformed;
pub use rounds::{PredictedDeadline, SelectionTerms, Selector, StaleWeights};
pub use search::{ParameterRange, Search, SearchMethod, StrategyFamily};
pub use setting_override::SettingOverride;
pub use simulation_mode::{SimulationMode, SurrogateSettings};
pub use table::{DataShape, DataTable, FeatureScale, TableScales};
pub use trace::{AvailabilityTrace, TraceError};
pub(crate) use unknown_keys::unknown_key;

/// The definition of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name: letters, digits and hyphens.
    pub name: String,
    /// The question that the experiment answers.
    pub question: String,
    /// Number of rounds of the task.
    pub rounds: u32,
    /// Real or surrogate simulation.
    #[serde(default)]
    pub mode: SimulationMode,
    /// How a surrogate is fitted and validated.
    #[serde(default)]
    pub surrogate: SurrogateSettings,
    /// The seeds of the experiment.
    #[serde(default)]
    pub seeds: SeedRange,
    /// The model, its training and the evaluation rows.
    #[serde(default)]
    pub learning: Learning,
    /// The buyer's terms.
    #[serde(default)]
    pub task: BuyerTerms,
    /// The mechanism that scores a round.
    #[serde(default)]
    pub mechanism: Mechanism,
    /// The groups of members by name.
    pub population: BTreeMap<String, Group>,
    /// Criteria that the results must satisfy; otherwise the command reports failure with exit code
    /// 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub criteria: Vec<PassCriterion>,
    /// Search for the best deviation from the mechanism.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<Search>,
}

/// The seeds over which an experiment is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SeedRange {
    /// The first seed.
    pub first: u64,
    /// Number of consecutive seeds.
    pub count: u32,
}

impl SeedRange {
    /// All seeds, in order.
    pub fn all(self) -> impl Iterator<Item = u64> {
        // Validation keeps the last seed far below 2^64.
        (0..u64::from(self.count)).map(move |at| self.first.saturating_add(at))
    }
}

impl Default for SeedRange {
    fn default() -> Self {
        Self { first: 1, count: 10 }
    }
}

/// The model, its training and the evaluation rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Learning {
    /// Units of the hidden layers; empty for softmax regression.
    pub hidden: Vec<u32>,
    /// Epochs per round.
    pub epochs: u32,
    /// Batch size.
    pub batch: u32,
    /// Learning rate.
    pub learning_rate: f64,
    /// Number of the buyer's holdout rows for all rounds together.
    pub holdout_rows: u32,
    /// Number of holdout rows that value one round; each is used once.
    pub holdout_rows_per_round: u32,
    /// Number of test rows, which no participant sees: accuracy is measured on them.
    pub test_rows: u32,
    /// Standard deviation of the noise on each feature of a drawn row. With noise, rows are drawn
    /// with replacement, so that the members can have more rows together than there are digits.
    pub feature_noise: f64,
    /// Fraction of the holdout rows with a wrong label; the test rows keep theirs.
    pub holdout_label_noise: f64,
    /// A table from which all rows are drawn; `None` for the handwritten digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<DataTable>,
}

impl Default for Learning {
    fn default() -> Self {
        Self {
            hidden: vec![32],
            epochs: 5,
            batch: 16,
            learning_rate: 0.1,
            holdout_rows: 512,
            holdout_rows_per_round: 64,
            test_rows: 300,
            feature_noise: 0.0,
            holdout_label_noise: 0.0,
            table: None,
        }
    }
}

/// The buyer's terms. Amounts are in florins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BuyerTerms {
    /// Budget for data.
    pub budget: f64,
    /// Maximum price of one nat of improvement.
    pub per_nat_max: f64,
    /// Share of the budget that is paid as the floor.
    pub floor_share: f64,
    /// Number of standard errors that are subtracted from a score before it is paid; later rounds
    /// pay the rest when it becomes certain.
    pub confidence_z: f64,
    /// Minimum bond.
    pub bond_min: f64,
    /// Bond per counted row.
    pub bond_per_row: f64,
    /// Maximum debit of a bond per round.
    pub debit_max: f64,
    /// Cohort size of a round.
    pub cohort: u32,
    /// Participants that are selected beyond the cohort.
    pub over_selection: u32,
    /// How the cohort is selected.
    pub selection: SelectionTerms,
    /// A deadline by prediction; `None` always waits for `train_s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<PredictedDeadline>,
    /// How late updates count; `None` if they do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness: Option<StalenessRule>,
    /// Weights of stale updates by a rule of the literature, in place of `staleness.weight`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale_weights: Option<StaleWeights>,
    /// A selector of the literature in place of the market's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// Minimum number of updates of a round.
    pub cohort_min: u32,
    /// Aggregation rule.
    pub aggregation: Aggregation,
    /// Largest weight of an update, as a multiple of the median of the round's counted rows; 0 for
    /// no limit.
    pub weight_cap: u16,
    /// Passes over the validation rows of earlier rounds by which the model trains after each
    /// productive round; 0 for none. A surrogate has none.
    pub baseline_epochs: u32,
    /// Pairs of coalitions per member that check the scores of a round; 0 for none. A task file's
    /// default is 1, which costs as many passes as several valuations.
    pub cross_check_pairs: u8,
    /// Whether updates are scaled to the median norm of the cohort.
    pub clip: bool,
    /// Whether near-duplicate updates are rejected.
    pub reject_near_duplicates: bool,
    /// Whether updates whose harm exceeds their error are excluded from the aggregate and debited.
    pub exclude_harmful: bool,
    /// Whether participants commit to their updates before any update is readable. Without it a
    /// copier can read the update that it copies.
    pub commit_reveal: bool,
    /// Seconds from the offer to the commit deadline.
    pub train_s: f64,
    /// Seconds from the commit deadline to the upload deadline.
    pub reveal_s: f64,
    /// A step of the task's model on one virtual worker's rows, which devices of members compute;
    /// `None` if no group has devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<TaskStep>,
    /// A task of the same model and table that ended before this one; `None` for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earlier_task: Option<EarlierTask>,
}

impl Default for BuyerTerms {
    fn default() -> Self {
        Self {
            budget: 1_000.0,
            per_nat_max: 500.0,
            floor_share: 0.2,
            confidence_z: 2.0,
            bond_min: 5.0,
            bond_per_row: 0.1,
            debit_max: 5.0,
            cohort: 64,
            over_selection: 0,
            selection: SelectionTerms::default(),
            deadline: None,
            staleness: None,
            stale_weights: None,
            selector: None,
            cohort_min: 2,
            aggregation: Aggregation::Mean,
            weight_cap: 3,
            baseline_epochs: 2,
            cross_check_pairs: 0,
            clip: true,
            reject_near_duplicates: true,
            exclude_harmful: true,
            commit_reveal: true,
            train_s: 600.0,
            reveal_s: 120.0,
            step: None,
            earlier_task: None,
        }
    }
}

/// The part of an earlier task in this one: its updates and model are public. The groups of
/// honest members, with other rows of the same table, were its participants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EarlierTask {
    /// Nothing: the initial parameters follow from the task.
    Ignored,
    /// Its model, as initial parameters.
    Continued,
}

/// Aggregation rule of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    /// Mean, weighted by counted rows.
    #[default]
    Mean,
    /// Coordinate-wise median.
    Median,
    /// Coordinate-wise mean without the lowest and the highest tenth.
    TrimmedMean,
}

/// A group of members with the same distributions and strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Number of members.
    pub count: u32,
    /// Strategy of the members.
    #[serde(default)]
    pub strategy: Strategy,
    /// Minimum and maximum number of rows of a member; uniformly distributed.
    #[serde(default = "default_rows")]
    pub rows: [u32; 2],
    /// Label skew: the concentration of a Dirichlet distribution, where a small value means a
    /// strong skew; `None` draws rows uniformly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_skew: Option<f64>,
    /// Fraction of their rows with a wrong label, drawn once; unintended.
    #[serde(default)]
    pub label_noise: f64,
    /// Speed of the members' machines and connections.
    #[serde(default)]
    pub machine: MachineSettings,
    /// Devices in place of a machine; `None` for members with a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<GroupDevices>,
    /// When the members are online: a pattern, or a trace from a file.
    #[serde(default)]
    pub online: Availability,
    /// Factor of the true time in the members' quotes: 1 for honest ones, 0 for none.
    #[serde(default = "default_quote")]
    pub quote: f64,
    /// Cost of the members' work.
    #[serde(default)]
    pub cost: WorkCosts,
    /// Outside option: the profit per round in another market, in florins. A member whose average
    /// profit over five rounds is lower stays away for five rounds. `None` for members that always
    /// take part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside_option: Option<f64>,
}

const fn default_quote() -> f64 {
    1.0
}

const fn default_rows() -> [u32; 2] {
    [60, 120]
}

/// Speed of a group's machines and connections.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MachineSettings {
    /// Training steps per second, median of the group.
    pub steps_per_second: f64,
    /// Megabits per second, median of the group.
    pub megabits_per_second: f64,
    /// Standard deviation of the logarithm of both.
    pub spread: f64,
    /// That of the line alone, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line_spread: Option<f64>,
}

impl Default for MachineSettings {
    fn default() -> Self {
        Self { steps_per_second: 10.0, megabits_per_second: 10.0, spread: 0.0, line_spread: None }
    }
}

impl MachineSettings {
    /// Standard deviation of the logarithm of the line.
    pub(crate) fn line_spread(&self) -> f64 {
        self.line_spread.unwrap_or(self.spread)
    }
}

/// When the members of a group are online.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "pattern", deny_unknown_fields)]
pub enum Availability {
    /// Always.
    #[default]
    Always,
    /// In each round with this probability.
    Random {
        /// The probability.
        probability: f64,
    },
    /// By the hour of a virtual day: the probability follows a cosine between `low` and `high` with
    /// its maximum at the hour `peak`. The days of the members are shifted by up to
    /// `shift_hours` in total.
    Daily {
        /// Minimum probability.
        low: f64,
        /// Maximum probability.
        high: f64,
        /// Hour of the maximum.
        peak: f64,
        /// Width of the interval of the members' shifts.
        shift_hours: f64,
    },
    /// On and off in turn, for times from exponential distributions: churn.
    Churn {
        /// Mean hours online.
        online_hours: f64,
        /// Mean hours offline.
        offline_hours: f64,
    },
    /// In every round from `first` to `last`. A wait of the market for members counts as a round
    /// here.
    Rounds {
        /// The first round, from 1.
        first: u64,
        /// The last round.
        last: u64,
    },
    /// According to a recorded [`AvailabilityTrace`].
    Trace {
        /// Path of a CSV file, relative to the scenario's folder.
        file: String,
        /// The trace, after it was read.
        #[serde(skip)]
        trace: Option<Arc<AvailabilityTrace>>,
    },
}

/// Costs of work, in florins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkCosts {
    /// Cost of a training step.
    pub per_step: f64,
    /// Cost of a megabyte sent or received.
    pub per_megabyte: f64,
    /// Cost of an hour of training on each device that computes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_device_hour: Option<f64>,
}

/// A criterion that the results must satisfy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassCriterion {
    /// The measure, as named in the results.
    pub measure: String,
    /// The group; `None` for measures of the whole market.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The statistic that is compared with the bounds.
    #[serde(default)]
    pub statistic: Statistic,
    /// Minimum of the statistic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// Maximum of the statistic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// Whether it is known not to be shown: a gain that the rules leave open. Its failure does not fail the scenario.
    #[serde(default, rename = "open", skip_serializing_if = "std::ops::Not::not")]
    pub is_open: bool,
}

/// Statistic of a measure over the seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    /// The mean.
    #[default]
    Mean,
    /// The lower bound of the 95 % confidence interval.
    Lower,
    /// The upper bound of the 95 % confidence interval.
    Upper,
}
