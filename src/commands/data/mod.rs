//! `florin data show|split`: inspects rows, and splits them into shards.

mod show;
mod show_images;
mod show_text;
mod split;

use crate::cli::DataCommand;
use crate::failure::Exit;

pub(super) fn run(command: DataCommand) -> anyhow::Result<Exit> {
    match command {
        DataCommand::Show(arguments) => show::run(&arguments),
        DataCommand::Split(arguments) => split::run(&arguments),
    }
}
