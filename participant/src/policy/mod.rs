//! One client in many tasks: it lists the tasks of a market, refuses those that its policy or its
//! device does not allow, predicts the pay of the others from public values, and takes part in the
//! best of them.
//!
//! ```text
//! listed tasks ─▶ examined: refusals ─▶ predictions ─▶ plan ─▶ one agent for each task
//!                 by the policy, the     pay, time      joins,   trainings one at a time
//!                 ledger and the rows    and risk       leaves
//! ```
//!
//! A prediction rests on the tokens that the ledger holds and has paid, not on the specification. The
//! agents are those of [`participate`](crate::participate): this module starts and ends them.

mod examine;
mod facts;
mod plan;
mod prediction;
mod refusal;
mod rules;
mod supervisor;
#[cfg(test)]
mod supervisor_tests;
mod timing;

pub use examine::{DryRun, examine_market};
pub use facts::TaskFacts;
pub use plan::{OpenTask, OwnTask, Plan, PlanInputs, plan};
pub use prediction::{PayRecord, TaskPrediction, TaskTerms, predict};
pub use refusal::TaskRefusal;
pub use rules::{DailyHours, DataRule, ModelFamily, ModelRules, Policy, SchemaRule, TaskRules};
pub use supervisor::{
    EngineForTask, ManyConfig, ManyContext, ManyEvent, ManySummary, Obstacle, RowsForTask,
    TaskDecision, TaskVerdict, participate_in_many,
};

/// Most tasks of one client at the same time.
pub const TASKS_AT_ONCE_MAX: usize = 16;
/// Most tasks that one review examines, beside those that the client takes part in: those that were
/// not examined for longest, and the largest stated pools first.
pub const EXAMINED_MAX: usize = 256;
/// Most listed tasks that are read.
pub const LISTED_MAX: usize = 10_000;
/// Most reports on which a prediction rests: the last final ones.
pub const HISTORY_ROUNDS: u32 = 8;
/// Time between two reviews without a reported round, in milliseconds, unless the policy has another.
pub const REVIEW_MS: u64 = 600_000;
/// A task is left for low pay only below this part of the policy's least pay, in percent.
pub const LEAVE_BELOW_PERCENT: f64 = 80.0;
/// A task gives its place to another one only if that pays this many percent of its pay.
pub const REPLACE_ABOVE_PERCENT: f64 = 150.0;
/// Reviews in a row in which one of both holds before the task is left.
pub const WEAK_REVIEWS: u32 = 3;
/// Ends of a participation by an error after which the task is left.
pub const FAILURES_MAX: u32 = 3;
