//! The quote in `florin task check`: what a task will probably pay, cost and reach, and the
//! settings that it refuses.

mod findings;
mod output;
mod settings;

use std::path::Path;

use florin_learning::cores;
use florin_learning::data::from_canonical_bytes;
use florin_learning::graph::GraphModel;
use florin_protocol::TaskSpec;
use florin_sim::quote::{PayLimits, Quote, QuoteError, QuoteInputs, quote};

use crate::progress::Progress;
use crate::task_file::PreparedTask;
use findings::{QuoteFinding, diverges, labels, noise, pay};
use settings::too_few_rows;
pub(in crate::commands::task) use settings::{Warning, warnings};

/// Why a task has no simulation.
const NOT_REQUESTED: &str = "--no-quote";

/// The quote of a task: its limits, and the outcome of its simulations.
pub(in crate::commands::task) struct TaskQuote {
    limits: PayLimits,
    simulated: Result<Quote, String>,
    warnings: Vec<Warning>,
}

impl TaskQuote {
    /// The limits of a task, without simulations.
    pub(in crate::commands::task) fn without_simulation(spec: &TaskSpec) -> anyhow::Result<Self> {
        let (simulated, limits) = (Err(NOT_REQUESTED.to_owned()), PayLimits::new(spec)?);
        let warnings = warnings(spec, &limits)?;
        Ok(Self { limits, simulated, warnings })
    }

    /// Simulates a task.
    ///
    /// # Errors
    /// [`Failure`] with code `TOO_FEW_ROWS`, `TRAINING_DIVERGES`, `LABELS_RANDOM`, `NO_IMPROVEMENT`
    /// or `PAY_IMPOSSIBLE`.
    pub(in crate::commands::task) fn simulate(
        file: &Path,
        ready: &PreparedTask,
        graph: Option<&GraphModel>,
    ) -> anyhow::Result<Self> {
        let spec = &ready.spec;
        if let Some(refusal) = too_few_rows(spec) {
            return Err(refusal.into_failure(file).into());
        }
        let holdout = from_canonical_bytes(&ready.holdout)?;
        let inputs = QuoteInputs { spec, graph, base_model: &ready.base_model, holdout: &holdout };
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
        let limits = PayLimits::new(spec)?;
        let mut warnings = warnings(spec, &limits)?;
        if let Ok(quote) = &simulated {
            let labels = quote.labels.as_ref().and_then(|check| labels(spec, check));
            let found = [labels, pay(spec, quote), noise(spec)];
            for found in found.into_iter().flatten() {
                match found {
                    QuoteFinding::Refused(refusal) => {
                        return Err(refusal.into_failure(file).into());
                    }
                    QuoteFinding::Warned(code, sentence) => warnings.push((code, sentence)),
                }
            }
        }
        Ok(Self { limits, simulated, warnings })
    }
}
