//! `florin sim`: experiments on what honesty and its alternatives earn.

mod compare;
mod faults;
mod fit;
mod run;
mod sweep;

use std::io::IsTerminal;
use std::path::Path;

use florin_sim::scenario::{ScenarioError, built_in, built_ins};
use florin_sim::{Scenario, SimError};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::cli::{PlayArg, ScenarioArg, Sim, SimList};
use crate::failure::{Exit, Failure};
use crate::show::{self, Table};

pub(super) fn run(command: Sim) -> anyhow::Result<Exit> {
    match command {
        Sim::List(list) => self::list(&list),
        Sim::Show(show) => {
            anstream::print!("{}", read(&show.what)?.to_toml());
            Ok(Exit::Done)
        }
        Sim::Run(run) => run::run(&run),
        Sim::Sweep(sweep) => sweep::run(&sweep),
        Sim::Compare(compare) => compare::run(&compare),
        Sim::Faults(faults) => faults::run(&faults),
    }
}

fn list(list: &SimList) -> anyhow::Result<Exit> {
    let all = built_ins().iter().map(|scenario| Scenario::read(scenario.text, &[]));
    let all = all.collect::<Result<Vec<_>, _>>().map_err(|error| refused(&error))?;
    if list.json.json {
        let all: Vec<_> =
            all.iter().map(|s| json!({"name": s.name, "question": s.question})).collect();
        show::json(&all)?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["scenario", "what it asks"]);
    for scenario in &all {
        table.row([scenario.name.as_str().into(), scenario.question.as_str().into()]);
    }
    table.print();
    Ok(Exit::Done)
}

/// A scenario that comes with the program, or a file, with its changes.
fn read(what: &ScenarioArg) -> anyhow::Result<Scenario> {
    let text = text_of(&what.scenario)?;
    Scenario::read(&text, &what.changes).map_err(|error| refused(&error))
}

fn text_of(name: &str) -> anyhow::Result<String> {
    if Path::new(name).extension().is_some_and(|end| end == "toml") {
        return std::fs::read_to_string(name).map_err(|error| {
            let right = "name a file that can be read, or one of `florin sim list`";
            Failure::input("SCENARIO_UNREADABLE", format!("{name}: {error}; {right}")).into()
        });
    }
    let unknown = || refused(&ScenarioError::Unknown { name: name.to_owned() });
    Ok(built_in(name).ok_or_else(unknown)?.text.to_owned())
}

fn refused(error: &ScenarioError) -> anyhow::Error {
    let code = match error {
        ScenarioError::Malformed(_) => "SCENARIO_MALFORMED",
        ScenarioError::Value { .. } => "SCENARIO_VALUE",
        ScenarioError::Change(_) => "SCENARIO_CHANGE",
        ScenarioError::Unknown { .. } => "SCENARIO_UNKNOWN",
    };
    Failure::input(code, error.to_string()).into()
}

/// The scenario with the seeds that were asked for.
fn with_seeds(mut scenario: Scenario, play: &PlayArg) -> anyhow::Result<Scenario> {
    scenario.seeds.first = play.seed.unwrap_or(scenario.seeds.first);
    scenario.seeds.count = play.seeds.unwrap_or(scenario.seeds.count);
    scenario.check().map_err(|error| refused(&error))?;
    Ok(scenario)
}

fn threads(asked: Option<u16>) -> usize {
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    asked.map_or_else(all, usize::from)
}

/// Plays with a bar that says how much is left, on a terminal.
fn played(
    scenario: &Scenario,
    threads: usize,
    what: &str,
) -> anyhow::Result<florin_sim::results::Results> {
    let bar = std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new(0);
        let template = "{spinner} {pos}/{len} games {bar:24} {eta} left  {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━━─"));
        }
        bar.set_message(what.to_owned());
        bar
    });
    let watch = |done: usize, all: usize| {
        if let Some(bar) = &bar {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        }
    };
    let results = florin_sim::results::run(scenario, threads, &watch);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    results.map_err(|error: SimError| Failure::fault("SIM_HALTED", error.to_string()).into())
}

/// The program's version, as results carry it.
const VERSION: &str = env!("CARGO_PKG_VERSION");
