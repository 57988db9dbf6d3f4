//! `florin-fuzz`: mutation fuzzing of every parser of untrusted or user input.
//!
//! Each target runs in its own process, so that an abort, a hang or excessive memory use ends only
//! that process. Every input is written to a file before the target receives it, so a failing input
//! is never lost. It is added to the corpus, and the next run tries it first.

mod arguments;
mod mutate;
mod pool;
mod run;
mod targets;
mod transcript;

use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};

use clap::Parser;
use florin::failure::Exit;
use florin::log;
use florin::program::{self, FailureFormat};

use arguments::FuzzArgs;
use pool::Pool;
use targets::{TARGETS, Target};

fn main() -> ExitCode {
    let arguments = FuzzArgs::parse();
    log::start(arguments.log, None);
    program::run(FailureFormat::Text, || run(&arguments))
}

/// Runs one target in this process, or all targets in parallel.
fn run(arguments: &FuzzArgs) -> anyhow::Result<Exit> {
    match &arguments.target {
        Some(name) => one(name, arguments),
        None => all(arguments),
    }
}

fn one(name: &str, arguments: &FuzzArgs) -> anyhow::Result<Exit> {
    let names = TARGETS.map(|target| target.name).join(", ");
    let target = TARGETS.iter().find(|target| target.name == name);
    let target =
        target.with_context(|| format!("unknown target {name:?}; the targets are {names}"))?;
    let pool = Pool::open(&arguments.corpus, target.name)?;
    run::run(target, pool, arguments)
}

/// Runs every target in its own process, in parallel.
fn all(arguments: &FuzzArgs) -> anyhow::Result<Exit> {
    let begun = Instant::now();
    let program = std::env::current_exe().context("cannot find this program's executable")?;
    let inputs = tempfile::tempdir()?;
    let start = |target: &'static Target| {
        let input = inputs.path().join(target.name);
        let mut child = Command::new(&program);
        child.args(["--target", target.name]).arg("--input").arg(&input);
        child.args(["--seconds", &arguments.seconds.to_string()]);
        child.args(["--seed", &arguments.seed.to_string()]).arg("--corpus").arg(&arguments.corpus);
        child.args(["--add", &arguments.add.to_string()]);
        let child = child.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        Ok((target, input, child.with_context(|| target.name)?))
    };
    let running = TARGETS.iter().map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let mut broken = 0;
    for (target, input, mut child) in running {
        let mut output = String::new();
        if let Some(out) = &mut child.stdout {
            out.read_to_string(&mut output)?;
        }
        let status = child.wait()?;
        anstream::print!("{output}");
        if status.success() {
            continue;
        }
        broken += 1;
        if status.code() != Some(Exit::Negative as i32) {
            // The process could not report a failing input: it is the last one it wrote.
            let saved = save_last_input(&arguments.corpus, target, &input);
            let what = saved.unwrap_or_else(|error| format!("(its input is unknown: {error})"));
            anstream::println!("{}: ended with {status} on {what}", target.name);
        }
    }
    let seconds = begun.elapsed().as_secs();
    anstream::println!("fuzz: {} targets, {broken} failed, {seconds} s", TARGETS.len());
    Ok(if broken == 0 { Exit::Done } else { Exit::Negative })
}

fn save_last_input(corpus: &Path, target: &Target, input: &Path) -> anyhow::Result<String> {
    let bytes = run::last_input(input)?;
    ensure!(!bytes.is_empty(), "the process ended before its first input");
    Ok(pool::save(corpus, target.name, "crash", &bytes)?.display().to_string())
}
