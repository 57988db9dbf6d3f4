//! `florin ledger …`: deploys a market's contracts, shows their state, and verifies either ledger.

#[cfg(feature = "ethereum")]
mod contracts;
#[cfg(not(feature = "ethereum"))]
#[path = "without_contracts.rs"]
mod contracts;
mod embedded;

use crate::cli::LedgerCommand;
use crate::failure::Exit;

pub(super) fn run(command: LedgerCommand) -> anyhow::Result<Exit> {
    match command {
        LedgerCommand::Deploy(arguments) => contracts::deploy(&arguments),
        LedgerCommand::Status(arguments) => contracts::status(&arguments),
        LedgerCommand::Verify(arguments) => match &arguments.data {
            Some(data) => embedded::verify(data, arguments.json),
            None => contracts::verify(&arguments.chain, arguments.json),
        },
    }
}
