//! `florin task …`: what a buyer does.

mod file;

use crate::cli::Task;
use crate::failure::Exit;

pub(super) fn run(command: Task) -> anyhow::Result<Exit> {
    match command {
        Task::New(arguments) => file::new(&arguments),
        Task::Check(arguments) => file::check(&arguments),
        _ => anyhow::bail!("not joined yet"),
    }
}
