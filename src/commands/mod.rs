//! The commands, one file each: a command reads its arguments, calls the library that does the
//! work, and prints the result.

mod anvil;
mod arbiter;
mod audit;
mod backup;
mod balance;
mod claim;
mod completions;
mod coordinate;
mod data;
mod doctor;
mod event_printer;
mod execute_segments;
mod ledger;
mod man;
pub(crate) mod market;
mod model;
mod openapi;
mod out_file;
mod page;
mod participate;
mod participate_all;
mod predict;
mod producer;
mod provide;
mod provide_list;
mod provide_orders;
mod quote;
mod ranks;
mod rent;
mod rented_rounds;
mod restore;
mod set_aside;
mod silo;
mod sim;
mod statement;
mod task;
mod trace;
mod transfer;
pub(crate) mod wallet;

use std::time::{SystemTime, UNIX_EPOCH};

use florin_protocol::Timestamp;

use crate::cli::{Cli, Command, ModelCommand};
use crate::demo;
use crate::failure::Exit;
use crate::trace::TraceSession;

/// Runs the command.
pub(crate) fn run(cli: Cli, trace: Option<&TraceSession>) -> anyhow::Result<Exit> {
    let log = cli.log;
    match cli.command {
        Command::Anvil(command) => anvil::run(&command),
        Command::Arbiter(command) => arbiter::run(&command),
        Command::Audit(command) => audit::run(&command),
        Command::Backup(command) => backup::run(&command),
        Command::Balance(command) => balance::run(&command),
        Command::Claim(command) => claim::run(&command),
        Command::Completions(command) => completions::run(&command),
        Command::Coordinate(command) => coordinate::run(&command, log, trace),
        Command::Data(command) => data::run(command),
        Command::Quote(arguments) => quote::run(&arguments),
        Command::Market(command) => market::run(&command),
        Command::Model(ModelCommand::Show(arguments)) => model::show(&arguments),
        Command::Demo(command) => demo::run(&command),
        Command::Doctor(command) => doctor::run(&command),
        Command::Ledger(command) => ledger::run(command),
        Command::Man(command) => man::run(&command),
        Command::Openapi(json) => openapi::run(json),
        Command::ExecuteSegments(command) => execute_segments::run(&command),
        Command::Page(command) => page::run(&command),
        Command::Predict(command) => predict::run(&command),
        Command::Participate(command) => participate::run(&command),
        Command::Provide(command) => provide::run(&command),
        Command::Rent(command) => rent::run(command),
        Command::Restore(command) => restore::run(&command),
        Command::Silo(command) => silo::run(command),
        Command::Sim(command) => sim::run(command),
        Command::Statement(command) => statement::run(&command),
        Command::Task(command) => task::run(command),
        Command::Trace(command) => trace::run(command),
        Command::Transfer(command) => transfer::run(&command),
        Command::Wallet(command) => wallet::run(command),
    }
}

/// The clock of this machine; the market's own clock is authoritative.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
