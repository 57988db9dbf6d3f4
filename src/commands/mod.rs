//! One file per command: each reads its arguments, asks the library that does the work, and shows the result.

mod data;
mod doctor;
mod task;
mod wallet;

use crate::cli::{Cli, Command};
use crate::failure::Exit;

/// Does what was asked.
pub(crate) fn run(cli: Cli) -> anyhow::Result<Exit> {
    match cli.command {
        Command::Data(command) => data::run(command),
        Command::Doctor(command) => doctor::run(&command),
        Command::Task(command) => task::run(command),
        Command::Wallet(command) => wallet::run(command),
        _ => anyhow::bail!("not joined yet"),
    }
}
