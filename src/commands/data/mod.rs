//! `florin data show|encode|split`: inspects rows, encodes them, and splits them into shards.

mod encode;
mod show;
mod show_images;
mod show_text;
mod split;

use crate::cli::DataCommand;
use crate::failure::Exit;

pub(super) fn run(command: DataCommand) -> anyhow::Result<Exit> {
    match command {
        DataCommand::Show(arguments) => show::run(&arguments),
        DataCommand::Encode(arguments) => encode::run(&arguments),
        DataCommand::Split(arguments) => split::run(&arguments),
    }
}
