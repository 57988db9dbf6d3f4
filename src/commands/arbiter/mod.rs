//! `florin arbiter …`: the commands of an independent arbiter.

mod cancel;
mod slash;
mod watch;

use std::io::IsTerminal;

use crate::cli::ArbiterCommand;
use crate::commands::participate::is_yes;
use crate::failure::{Exit, Failure};

pub(super) fn run(command: &ArbiterCommand) -> anyhow::Result<Exit> {
    match command {
        ArbiterCommand::Watch(arguments) => watch::run(arguments),
        ArbiterCommand::Cancel(arguments) => cancel::run(arguments),
        ArbiterCommand::Slash(arguments) => slash::run(arguments),
    }
}

/// How a command that cannot be undone is confirmed.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct Confirmation {
    /// Whether --yes is given.
    pub(in crate::commands) yes: bool,
    /// Whether the output is JSON, which no person reads.
    pub(in crate::commands) json: bool,
}

impl Confirmation {
    /// Without a terminal no person can answer: then `--yes` does.
    ///
    /// # Errors
    /// `CONFIRMATION_REQUIRED`.
    pub(in crate::commands) fn require(self) -> anyhow::Result<()> {
        let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        if self.yes || is_terminal && !self.json {
            return Ok(());
        }
        let message = "this cannot be undone: without a terminal or with --json, confirm it with \
                       --yes";
        Err(Failure::input("CONFIRMATION_REQUIRED", message).into())
    }

    /// Asks, unless `--yes` is given.
    ///
    /// # Errors
    /// `DECLINED`.
    pub(in crate::commands) fn ask(self, question: &str) -> anyhow::Result<()> {
        if self.yes {
            return Ok(());
        }
        anstream::eprint!("{question} [y/N] ");
        match is_yes() {
            true => Ok(()),
            false => Err(Failure::negative("DECLINED", "nothing was changed").into()),
        }
    }
}
