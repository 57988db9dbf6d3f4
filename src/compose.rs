//! The only place that picks concrete parts: which engine computes, which ledger keeps the money.

use florin_learning::Engine;
use florin_learning::select::EngineError;

use crate::cli::EngineArg;
use crate::failure::Failure;

/// The engine that was asked for.
///
/// # Errors
/// [`Failure`] with code `NO_ENGINE`: what is missing and what to do.
pub(crate) fn engine(arg: EngineArg) -> anyhow::Result<Box<dyn Engine>> {
    florin_learning::engine(arg.engine, arg.threads.into()).map_err(|error| no_engine(&error))
}

fn no_engine(error: &EngineError) -> anyhow::Error {
    let message = format!("{error}; `florin doctor` says what this machine has");
    Failure::input("NO_ENGINE", message).into()
}
