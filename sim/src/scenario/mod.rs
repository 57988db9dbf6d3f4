//! What is asked of the laboratory, as a TOML file. Unknown keys are refused, numbers have bounds, and every key may be
//! changed from the command line.

mod built_in;
mod check;
mod file;
mod search;
mod set;
mod speed;
mod stray;
mod trace;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::mechanism::Mechanism;
use crate::strategy::Strategy;

pub use built_in::{BuiltIn, built_in, built_ins};
pub use check::ScenarioError;
pub use search::{Family, Method, Search, Span};
pub use set::Change;
pub use speed::{Small, Speed};
pub use trace::{Trace, TraceError};

/// An experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name: letters, digits and hyphens.
    pub name: String,
    /// What it answers, as a question.
    pub question: String,
    /// Rounds of the task.
    pub rounds: u32,
    /// How it is played.
    #[serde(default)]
    pub speed: Speed,
    /// What a surrogate is fitted to.
    #[serde(default)]
    pub surrogate: Small,
    /// Over which seeds.
    #[serde(default)]
    pub seeds: Seeds,
    /// What is learned, from what.
    #[serde(default)]
    pub learning: Learning,
    /// What the buyer offers and asks for.
    #[serde(default)]
    pub task: Terms,
    /// How a round is paid.
    #[serde(default)]
    pub mechanism: Mechanism,
    /// Who takes part, by the names of groups.
    pub population: BTreeMap<String, Group>,
    /// What must come out; a run whose rules do not hold says so and ends with 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pass: Vec<Rule>,
    /// Which ways of deviating are tried against the mechanism.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<Search>,
}

/// Over which seeds an experiment is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Seeds {
    /// The first one.
    pub first: u64,
    /// How many, one after the other.
    pub count: u32,
}

impl Seeds {
    /// Every one, in order.
    pub fn all(self) -> impl Iterator<Item = u64> {
        // The check keeps the last one far from the end of 64 bits.
        (0..u64::from(self.count)).map(move |at| self.first.saturating_add(at))
    }
}

impl Default for Seeds {
    fn default() -> Self {
        Self { first: 1, count: 10 }
    }
}

/// What is learned, and from what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Learning {
    /// Units of the hidden layers; none for softmax regression.
    pub hidden: Vec<u32>,
    /// Passes over a member's rows in a round.
    pub epochs: u32,
    /// Rows of a step.
    pub batch: u32,
    /// Step size.
    pub learning_rate: f64,
    /// Rows of the digits that the buyer judges by, all rounds together.
    pub holdout_rows: u32,
    /// Of them, rows that judge one round and are used up by it.
    pub judged_rows: u32,
    /// Rows that nobody in the market sees: what accuracies are measured on.
    pub test_rows: u32,
    /// How far members' copies of a row may differ from it: the standard deviation of noise on each feature. With noise,
    /// members may have more rows together than there are digits.
    pub jitter: f64,
}

impl Default for Learning {
    fn default() -> Self {
        Self {
            hidden: vec![32],
            epochs: 5,
            batch: 16,
            learning_rate: 0.1,
            holdout_rows: 512,
            judged_rows: 64,
            test_rows: 300,
            jitter: 0.0,
        }
    }
}

/// What the buyer offers and asks for. Money in florins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Terms {
    /// Locked for data.
    pub budget: f64,
    /// Most that is paid for one nat of improvement.
    pub per_nat_max: f64,
    /// Standard errors withheld from a score until later rounds make it certain.
    pub withheld: f64,
    /// Smallest bond.
    pub bond_min: f64,
    /// Bond that one counted row takes.
    pub bond_per_row: f64,
    /// Most that one round may debit from a bond.
    pub debit_max: f64,
    /// Members asked in a round.
    pub cohort: u32,
    /// Fewest updates that make a round.
    pub cohort_min: u32,
    /// How updates combine.
    pub aggregation: Aggregation,
    /// Whether updates are brought to the length of the cohort's median.
    pub clip: bool,
    /// Whether updates that repeat others are set aside.
    pub set_aside: bool,
    /// Whether updates that harm beyond their error are kept out of the model, and debited.
    pub keep_out: bool,
    /// Whether updates are promised before any can be read. Without it a copier sees what it copies.
    pub commit_reveal: bool,
    /// Seconds from the offer to the last commit.
    pub train_s: f64,
    /// Seconds from there to the last upload.
    pub reveal_s: f64,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            budget: 1_000.0,
            per_nat_max: 500.0,
            withheld: 2.0,
            bond_min: 5.0,
            bond_per_row: 0.1,
            debit_max: 5.0,
            cohort: 64,
            cohort_min: 2,
            aggregation: Aggregation::Mean,
            clip: true,
            set_aside: true,
            keep_out: true,
            commit_reveal: true,
            train_s: 600.0,
            reveal_s: 120.0,
        }
    }
}

/// How updates combine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    /// Weighted by counted rows.
    #[default]
    Mean,
    /// Coordinate by coordinate.
    Median,
    /// Without a tenth at each end.
    TrimmedMean,
}

/// Members who are alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// How many.
    pub count: u32,
    /// What they do with what they have.
    #[serde(default)]
    pub strategy: Strategy,
    /// Fewest and most rows of one of them, every number between equally likely.
    #[serde(default = "default_rows")]
    pub rows: [u32; 2],
    /// How uneven their labels are: the concentration of a Dirichlet distribution, small for very uneven; none for rows
    /// drawn from all alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_skew: Option<f64>,
    /// Share of their rows whose label is another one, drawn once and not meant.
    #[serde(default)]
    pub label_noise: f64,
    /// Their machines.
    #[serde(default)]
    pub machine: Machine,
    /// When they are there: a pattern, or a trace from a file.
    #[serde(default)]
    pub online: Online,
    /// What their work costs them.
    #[serde(default)]
    pub cost: Cost,
    /// What a round elsewhere would bring them, in florins after costs: who has earned less on average over five rounds
    /// stays away for five. None for those who always come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<f64>,
}

const fn default_rows() -> [u32; 2] {
    [60, 120]
}

/// How fast a group's machines and lines are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    /// Training steps a second, median of the group.
    pub steps_per_second: f64,
    /// Megabits a second, median of the group.
    pub megabits_per_second: f64,
    /// Spread of both: the standard deviation of their logarithm.
    pub spread: f64,
}

impl Default for Machine {
    fn default() -> Self {
        Self { steps_per_second: 10.0, megabits_per_second: 10.0, spread: 0.0 }
    }
}

/// When members of a group are there to answer an offer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "pattern", deny_unknown_fields)]
pub enum Online {
    /// Always.
    #[default]
    Always,
    /// Each round with this probability.
    Often {
        /// The probability.
        share: f64,
    },
    /// By the hour of a virtual day: the probability swings as a cosine between `low` and `high`, highest at `peak` for
    /// the middle of the group; members' days are shifted against each other by up to `shift` hours.
    Daily {
        /// Lowest probability of the day.
        low: f64,
        /// Highest.
        high: f64,
        /// Hour of the highest.
        peak: f64,
        /// Hours by which members differ at most.
        shift: f64,
    },
    /// In every round from one to another. A time in which the market waits for members counts as a round here.
    Rounds {
        /// The first, from 1.
        first: u64,
        /// The last.
        last: u64,
    },
    /// As somebody wrote down who was there when: [`Trace`].
    Trace {
        /// A CSV file, by its path from the scenario's folder.
        file: String,
        /// What it says, once it is read.
        #[serde(skip)]
        trace: Option<Arc<Trace>>,
    },
}

/// What work costs a member, in florins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cost {
    /// A training step.
    pub per_step: f64,
    /// A megabyte sent or received.
    pub per_megabyte: f64,
}

/// Something that must come out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Which measure, as the results name it.
    pub measure: String,
    /// Of which group; none for measures of the whole market.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// What is held against the bounds.
    #[serde(default)]
    pub of: Bound,
    /// It must not be below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// It must not be above this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
}

/// Which figure of a measure a rule looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The mean over the seeds.
    #[default]
    Mean,
    /// The lower end of its 95 % interval.
    Lower,
    /// The upper end.
    Upper,
}
