//! `florin ledger …`: deploys a market's contracts, shows their state, and verifies either ledger.

#[cfg(feature = "ethereum")]
mod contracts;
#[cfg(not(feature = "ethereum"))]
#[path = "without_contracts.rs"]
mod contracts;
mod embedded;
mod served;

use florin_protocol::LedgerInfo;

use crate::cli::{LedgerCommand, LedgerVerify};
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;

pub(super) fn run(command: LedgerCommand) -> anyhow::Result<Exit> {
    match command {
        LedgerCommand::Deploy(arguments) => contracts::deploy(&arguments),
        LedgerCommand::Status(arguments) => contracts::status(&arguments),
        LedgerCommand::Head(arguments) => served::head(&arguments),
        LedgerCommand::Verify(arguments) => verify(&arguments),
    }
}

/// Verifies a file, the embedded ledger that a coordinator serves, or a market's contracts.
fn verify(arguments: &LedgerVerify) -> anyhow::Result<Exit> {
    if let Some(data) = &arguments.data {
        return embedded::verify(data, arguments.json);
    }
    if let Some(market) = arguments.chain.market() {
        let connection = MarketConnection::connect(&market)?;
        if *connection.client().ledger() == LedgerInfo::Embedded {
            return served::verify(&connection, &arguments.head, arguments.json);
        }
    }
    if !arguments.head.is_empty() {
        let message = "--head needs a market with an embedded ledger, by --market";
        return Err(Failure::input("HEAD_NOT_NEEDED", message).into());
    }
    contracts::verify(&arguments.chain, arguments.json)
}
