//! The project's own commands: `cargo xtask setup | demo | test | bench NAME | fuzz | contracts |
//! page | deny`.
//!
//! It depends on the standard library only, so that the first command in a fresh clone starts
//! within seconds. It builds nothing itself: it fetches tools, calls cargo, and replaces itself by
//! the built program.

mod bench;
mod cargo;
mod contracts;
mod debian;
mod deny;
mod failure;
mod installation;
mod keys;
mod page;
mod process;
mod program;
mod python;
mod sandbox;
mod setup;
mod slurm;
mod tally;
mod tools;
mod torch;

use std::process::ExitCode;

use crate::failure::Failure;

const USAGE: &str = "\
cargo xtask COMMAND

  setup                    fetch libtorch and the test tools; a second run does nothing
  demo [--seed N] [--ledger embedded|ethereum] [--rounds N] [--format F] [--json FILE] ...
                           set up, build, and run a complete market on this machine; with --compute
                           a market for compute
  test [CARGO TEST ARGUMENTS]
                           set up, then run every test of the workspace
  bench NAME [--json FILE] set up, make a release build, and measure: aggregate, train, ledger,
                           server, round, listener, recovery, uploads, soak, contribution, attacks,
                           wire, sim, compute, page
  fuzz [--seconds N] [--seed N] [--target NAME] [--add N]
                           fuzz every parser with malformed inputs, each target in its own process
  contracts build|test|check|prove|lint
                           compile the contracts and write their ABI; test them; compare the ABI;
                           prove their arithmetic; run static analysis
  page                     compile what the coordinator's page computes in a browser
  deny                     check licences, bans, sources and advisories of the dependencies
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<ExitCode, Failure> {
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", arguments),
    };
    match command {
        "setup" => expect_no_arguments("setup", rest).and_then(|()| setup::run()),
        "demo" => program::demo(rest),
        "test" => program::test(rest),
        "bench" => bench::run(rest),
        "fuzz" => program::fuzz(rest),
        "contracts" => contracts::run(rest),
        "page" => expect_no_arguments("page", rest).and_then(|()| page::run()),
        "deny" => expect_no_arguments("deny", rest).and_then(|()| deny::run()),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        other => Err(Failure::new(
            "COMMAND_UNKNOWN",
            format!("there is no command `{other}`"),
            format!("choose one of these\n\n{USAGE}"),
        )),
    }
}

fn expect_no_arguments(command: &str, rest: &[String]) -> Result<(), Failure> {
    match rest.first() {
        None => Ok(()),
        Some(argument) => Err(Failure::new(
            "ARGUMENT_UNKNOWN",
            format!("`{command}` takes no arguments, and got `{argument}`"),
            format!("run `cargo xtask {command}`"),
        )),
    }
}
