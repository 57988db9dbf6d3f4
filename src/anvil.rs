//! The program anvil, a development chain: its path, and the error if it is missing.

use std::path::{Path, PathBuf};

use crate::cli::AnvilArg;
use crate::failure::Failure;

/// The remedy if anvil is missing.
pub(crate) const REMEDY: &str = "`cargo xtask demo --ledger ethereum` installs anvil from npm; \
    otherwise install Foundry (https://getfoundry.sh), or set the path with --anvil or \
    FLORIN_ANVIL";

/// The given anvil, or the one on PATH.
pub(crate) fn program(named: &AnvilArg) -> PathBuf {
    named.anvil.clone().unwrap_or_else(|| PathBuf::from("anvil"))
}

/// The error if anvil cannot be started.
pub(crate) fn missing(program: &Path, error: &std::io::Error) -> anyhow::Error {
    let message = format!("{} cannot be started ({error}): {REMEDY}", program.display());
    Failure::input("TOOL_MISSING", message).into()
}
