//! `florin man`: writes the manual pages, generated from the command tree.

use anyhow::Context;
use clap::CommandFactory;

use crate::cli::{Cli, ManualPages};
use crate::failure::Exit;
use crate::show;

pub(super) fn run(arguments: &ManualPages) -> anyhow::Result<Exit> {
    let shown = arguments.out.display();
    std::fs::create_dir_all(&arguments.out).with_context(|| shown.to_string())?;
    clap_mangen::generate_to(Cli::command(), &arguments.out).with_context(|| shown.to_string())?;
    anstream::println!("Wrote the manual pages to {shown}.");
    show::hint(&format!("Read one: man {}", arguments.out.join("florin.1").display()));
    Ok(Exit::Done)
}
