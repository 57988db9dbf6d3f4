//! `florin task …`: the buyer's commands.

mod close;
mod code;
mod cohort;
mod file;
mod follow;
mod graph_check;
mod invite;
mod list;
mod members;
mod model;
mod publish;
mod quote;
mod show;

pub(super) use file::prepared_task;
pub(super) use model::write_whole;

use crate::cli::TaskCommand;
use crate::failure::Exit;

pub(super) fn run(command: TaskCommand) -> anyhow::Result<Exit> {
    match command {
        TaskCommand::New(arguments) => file::new(&arguments),
        TaskCommand::Check(arguments) => file::check(&arguments),
        TaskCommand::Publish(arguments) => publish::run(&arguments),
        TaskCommand::List(arguments) => list::run(&arguments),
        TaskCommand::Show(arguments) => show::run(&arguments),
        TaskCommand::Follow(arguments) => follow::run(&arguments),
        TaskCommand::Cohort(arguments) => cohort::run(&arguments),
        TaskCommand::Model(arguments) => model::run(&arguments),
        TaskCommand::Code(arguments) => code::run(&arguments),
        TaskCommand::Invite(arguments) => invite::run(&arguments),
        TaskCommand::Close(arguments) => close::run(&arguments),
    }
}
