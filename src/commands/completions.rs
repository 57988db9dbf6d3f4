//! `florin completions`: prints a shell's completion script, generated from the command tree.

use clap::CommandFactory;

use crate::cli::{Cli, Completions};
use crate::failure::Exit;

pub(super) fn run(arguments: &Completions) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "florin", &mut script);
    anstream::print!("{}", String::from_utf8(script)?);
    Ok(Exit::Done)
}
