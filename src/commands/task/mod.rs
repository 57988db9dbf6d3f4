//! `florin task …`: the buyer's commands.

mod close;
mod file;
mod list;
mod look;
mod model;
mod publish;

pub(crate) use model::measure;

use crate::cli::Task;
use crate::failure::Exit;

pub(super) fn run(command: Task) -> anyhow::Result<Exit> {
    match command {
        Task::New(arguments) => file::new(&arguments),
        Task::Check(arguments) => file::check(&arguments),
        Task::Publish(arguments) => publish::run(&arguments),
        Task::List(arguments) => list::run(&arguments),
        Task::Show(arguments) => look::run(&arguments),
        Task::Model(arguments) => model::run(&arguments),
        Task::Close(arguments) => close::run(&arguments),
    }
}
