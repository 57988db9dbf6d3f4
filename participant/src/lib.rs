//! wip
mod agent;
mod audit;
mod behaviour;
mod chained;
mod client;
mod durable;
mod event;
mod guard;
mod provider;
mod recheck;
mod retry;
mod secret;
mod shutdown;
mod statement;
#[cfg(test)]
mod testing;
mod wallet;
pub use agent::*;
pub use audit::*;
pub use behaviour::*;
pub use chained::ChainedError;
pub use client::*;
pub use durable::FileError;
pub use event::*;
pub use guard::*;
pub use provider::*;
pub use recheck::recheck;
pub use retry::*;
pub use secret::{SECRET_BYTES_MAX, Secret, SecretError};
pub use shutdown::*;
pub use statement::*;
pub use wallet::*;

use florin_ledger::LedgerError;

/// The stable code of a ledger's error.
#[must_use]
pub const fn ledger_code(error: &LedgerError) -> &'static str {
    match error {
        LedgerError::Refused(refusal) => refusal.code(),
        LedgerError::Unavailable(_) => "LEDGER_UNAVAILABLE",
        LedgerError::Corrupt(_) => "LEDGER_CORRUPT",
        LedgerError::Signing(_) => "SIGNING_FAILED",
    }
}
