//! The only place that picks concrete parts: which engine computes, which ledger keeps the money.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use florin_learning::Engine;
use florin_learning::select::EngineError;
use florin_ledger::{Clock, Ledger, LedgerError, LocalChain, RemoteLedger};
use florin_protocol::NodeSigner;

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

/// The ledger of a market, as its coordinator serves it.
///
/// # Errors
/// `LEDGER_UNAVAILABLE`.
pub(crate) fn ledger(market: &str) -> Result<Box<dyn Ledger>, LedgerError> {
    Ok(Box::new(RemoteLedger::connect(market)?))
}

/// The embedded chain's file within a coordinator's data folder.
pub(crate) fn chain_file(data: &Path) -> PathBuf {
    data.join("ledger.redb")
}

/// Opens the embedded chain of a coordinator, which is its operator.
///
/// # Errors
/// Those of [`LocalChain::open`].
pub(crate) fn local_chain(data: &Path, operator: NodeSigner) -> anyhow::Result<LocalChain> {
    let clock: Clock = Arc::new(crate::commands::now);
    Ok(LocalChain::open(&chain_file(data), operator, clock)?)
}

/// A number that nobody else has drawn; 63 bits, as TOML integers have.
pub(crate) fn random_number() -> anyhow::Result<u64> {
    use rand::TryRng;
    let mut bytes = [0u8; 8];
    rand::rngs::SysRng
        .try_fill_bytes(&mut bytes)
        .context("no randomness from the operating system")?;
    Ok(u64::from_le_bytes(bytes) >> 1)
}
