//! The quote in `florin task check`: what a task will probably pay, cost and reach, and the
//! settings that it refuses.

mod findings;
mod output;

use std::path::Path;

use florin_learning::cores;
use florin_learning::data::from_canonical_bytes;
use florin_protocol::TaskSpec;
use florin_sim::quote::{PayLimits, Quote, QuoteError, QuoteInputs, quote};

use crate::progress::Progress;
use crate::task_file::PreparedTask;
use findings::{QuoteFinding, diverges, labels, pay};

/// Why a task has no simulation.
const NOT_REQUESTED: &str = "--no-quote";

/// The quote of a task: its limits, and the outcome of its simulations.
pub(in crate::commands::task) struct TaskQuote {
    limits: PayLimits,
    simulated: Result<Quote, String>,
    /// Stable codes and sentences.
    warnings: Vec<(&'static str, String)>,
}

impl TaskQuote {
    /// The limits of a task, without simulations.
    pub(in crate::commands::task) fn without_simulation(spec: &TaskSpec) -> anyhow::Result<Self> {
        let simulated = Err(NOT_REQUESTED.to_owned());
        Ok(Self { limits: PayLimits::new(spec)?, simulated, warnings: Vec::new() })
    }

    /// Simulates a task.
    ///
    /// # Errors
    /// [`Failure`] with code `TRAINING_DIVERGES`, `LABELS_RANDOM`, `NO_IMPROVEMENT` or
    /// `PAY_IMPOSSIBLE`.
    pub(in crate::commands::task) fn simulate(
        file: &Path,
        ready: &PreparedTask,
    ) -> anyhow::Result<Self> {
        let spec = &ready.spec;
        let holdout = from_canonical_bytes(&ready.holdout)?;
        let inputs = QuoteInputs { spec, base_model: &ready.base_model, holdout: &holdout };
        let shown = Progress::start("simulating the task");
        let step = |done, all| shown.step(format!("simulating the task: {done} of {all}"));
        let simulated = match quote(&inputs, cores(), &step) {
            Ok(quote) => Ok(quote),
            Err(QuoteError::NoQuote(reason)) => Err(reason.to_string()),
            Err(QuoteError::Diverged { step }) => {
                return Err(diverges(spec, step).into_failure(file).into());
            }
            Err(QuoteError::Failed(error)) => return Err(error.into()),
        };
        drop(shown);
        let mut warnings = Vec::new();
        if let Ok(quote) = &simulated {
            for found in [labels(spec, &quote.labels), pay(spec, quote)].into_iter().flatten() {
                match found {
                    QuoteFinding::Refused(refusal) => {
                        return Err(refusal.into_failure(file).into());
                    }
                    QuoteFinding::Warned(code, sentence) => warnings.push((code, sentence)),
                }
            }
        }
        Ok(Self { limits: PayLimits::new(spec)?, simulated, warnings })
    }
}
