//! `florin sim`: experiments on the earnings of honest and dishonest strategies.

mod attack;
mod cache;
mod compare;
mod compute;
mod faults;
mod fit;
mod replay;
mod run;
mod sweep;

use std::path::Path;

use florin_sim::results::{Program, Results, WriteError};
use florin_sim::scenario::{
    AnyScenario, ScenarioError, SeedRange, SettingOverride, built_in, built_ins,
};
use florin_sim::{ProgressFn, Scenario, SimError, SimulationFailed};
use indicatif::ProgressDrawTarget;
use serde_json::json;

use crate::cli::{PlayArg, ScenarioArg, SimCommand, SimList};
use crate::failure::{Exit, Failure};
use crate::progress::progress_bar;
use crate::show::{self, TextTable};

pub(super) fn run(command: SimCommand) -> anyhow::Result<Exit> {
    match command {
        SimCommand::List(list) => self::list(&list),
        SimCommand::Show(one) => {
            let scenario = read_any(&one.scenario)?;
            match (&scenario, one.json.json) {
                (AnyScenario::Tasks(scenario), true) => show::json(scenario)?,
                (AnyScenario::Compute(scenario), true) => show::json(scenario)?,
                (_, false) => anstream::print!("{}", scenario.to_toml()),
            }
            Ok(Exit::Done)
        }
        SimCommand::Run(run) => match read_any(&run.what)? {
            AnyScenario::Tasks(scenario) => run::run(&run, *scenario),
            AnyScenario::Compute(scenario) => compute::run(&run, *scenario),
        },
        SimCommand::Attack(attack) => attack::run(&attack),
        SimCommand::Replay(replay) => replay::run(&replay),
        SimCommand::Sweep(sweep) => sweep::run(&sweep),
        SimCommand::Compare(compare) => compare::run(&compare),
        SimCommand::Faults(faults) => faults::run(&faults),
    }
}

fn list(list: &SimList) -> anyhow::Result<Exit> {
    let here = Path::new(".");
    let all = built_ins().iter().map(|scenario| AnyScenario::read_in(here, scenario.text, &[]));
    let all = all.collect::<Result<Vec<_>, _>>().map_err(|error| refused(&error))?;
    if list.json.json {
        let all: Vec<_> =
            all.iter().map(|s| json!({"name": s.name(), "question": s.question()})).collect();
        show::json(&all)?;
        return Ok(Exit::Done);
    }
    let mut table = TextTable::new(&["scenario", "question"]);
    for scenario in &all {
        table.row([scenario.name().into(), scenario.question().into()]);
    }
    table.print();
    Ok(Exit::Done)
}

/// Reads a built-in scenario or a file, and applies the changes.
fn read(what: &ScenarioArg) -> anyhow::Result<Scenario> {
    let text = scenario_text(&what.scenario)?;
    read_text(what, &text, &what.changes)
}

/// As [`read`], a scenario of either market.
fn read_any(what: &ScenarioArg) -> anyhow::Result<AnyScenario> {
    let text = scenario_text(&what.scenario)?;
    AnyScenario::read_in(scenario_folder(what), &text, &what.changes)
        .map_err(|error| refused(&error))
}

fn scenario_folder(what: &ScenarioArg) -> &Path {
    Path::new(&what.scenario).parent().unwrap_or(Path::new("."))
}

/// As [`read`], from the scenario's text.
fn read_text(
    what: &ScenarioArg,
    text: &str,
    changes: &[SettingOverride],
) -> anyhow::Result<Scenario> {
    Scenario::read_in(scenario_folder(what), text, changes).map_err(|error| refused(&error))
}

fn scenario_text(name: &str) -> anyhow::Result<String> {
    if Path::new(name).extension().is_some_and(|end| end == "toml") {
        return std::fs::read_to_string(name).map_err(|error| {
            let right = "give a readable file, or a scenario of `florin sim list`";
            Failure::input("SCENARIO_UNREADABLE", format!("{name}: {error}; {right}")).into()
        });
    }
    let unknown = || refused(&ScenarioError::Unknown { name: name.to_owned() });
    Ok(built_in(name).ok_or_else(unknown)?.text.to_owned())
}

fn refused(error: &ScenarioError) -> anyhow::Error {
    Failure::input(error.code(), error.to_string()).into()
}

/// Checks that the results folder is writable before any simulation starts.
fn check_writable(folder: Option<&Path>) -> anyhow::Result<()> {
    folder.map_or(Ok(()), |folder| {
        florin_sim::results::check_writable(folder).map_err(|error| not_written(&error).into())
    })
}

/// Checks that the results folder is writable before any simulation starts, and refuses to
/// overwrite other results. `file` is the last file that this command writes: a folder that has it
/// and the same scenario belongs to this experiment.
fn check_results_folder(
    folder: Option<&Path>,
    scenario: &Scenario,
    file: &str,
) -> anyhow::Result<()> {
    let attached: Vec<_> = scenario.attached_files().collect();
    check_folder(folder, &scenario.to_toml(), &attached, file)
}

/// As [`check_results_folder`], with the text of the scenario and the files that it names.
fn check_folder(
    folder: Option<&Path>,
    scenario: &str,
    attached: &[(&str, &str)],
    file: &str,
) -> anyhow::Result<()> {
    let Some(folder) = folder else { return Ok(()) };
    let is_empty = std::fs::read_dir(folder).map_or(true, |mut names| names.next().is_none());
    let has = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let is_own = || {
        has(file).is_some()
            && has("scenario.toml").as_deref() == Some(scenario)
            && attached.iter().all(|(name, text)| has(name).as_deref() == Some(*text))
    };
    if !is_empty && !is_own() {
        return Err(results_folder_in_use(folder));
    }
    check_writable(Some(folder))
}

/// Refuses to write a comparison page over the results of a run or a search.
fn refuse_run_folder(folder: &Path) -> anyhow::Result<()> {
    if folder.join("scenario.toml").exists() { Err(results_folder_in_use(folder)) } else { Ok(()) }
}

fn results_folder_in_use(folder: &Path) -> anyhow::Error {
    let why = "contains something other than the results of this experiment: give a new folder \
        with --out, or remove it";
    Failure::input("RESULTS_FOLDER_IN_USE", format!("{} {why}", folder.display())).into()
}

fn not_written(error: &WriteError) -> Failure {
    Failure::fault("RESULTS_NOT_WRITTEN", error.to_string())
}

/// The error of an aborted simulation; a failed training is a mistake in the scenario.
fn halted(error: &SimulationFailed) -> anyhow::Error {
    let message = format!("{}: {}", PROGRAM.run_id(error.seed), error.error);
    match &error.error {
        SimError::Act(_) => Failure::input("SIM_INVALID_TRAINING", message).into(),
        _ => Failure::fault("SIM_ABORTED", message).into(),
    }
}

/// Overrides the scenario's seeds with those of the arguments.
fn with_seeds(mut scenario: Scenario, play: &PlayArg) -> anyhow::Result<Scenario> {
    scenario.seeds = overridden(scenario.seeds, play);
    scenario.check().map_err(|error| refused(&error))?;
    Ok(scenario)
}

/// Seeds, changed by the arguments.
fn overridden(seeds: SeedRange, play: &PlayArg) -> SeedRange {
    let (first, count) = (play.seed.unwrap_or(seeds.first), play.seeds.unwrap_or(seeds.count));
    SeedRange { first, count }
}

fn threads(asked: Option<u16>) -> usize {
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    asked.map_or_else(all, usize::from)
}

/// Runs the simulations with a progress bar on the terminal.
fn run_simulations(scenario: &Scenario, threads: usize, what: &str) -> anyhow::Result<Results> {
    let results = with_progress(what, |watch| florin_sim::run_experiment(scenario, threads, watch));
    results.map_err(|error: SimulationFailed| halted(&error))
}

fn with_progress<T>(what: &str, play: impl FnOnce(ProgressFn<'_>) -> T) -> T {
    let template = "{spinner} {pos}/{len} simulations {bar:24} {eta} left  {msg}";
    let bar = progress_bar(ProgressDrawTarget::stderr(), template).with_message(what.to_owned());
    let watch = |done: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    };
    let result = play(&watch);
    bar.finish_and_clear();
    result
}

/// The version and the commit of this program, as recorded in results.
const PROGRAM: Program<'static> =
    Program { version: env!("CARGO_PKG_VERSION"), commit: env!("FLORIN_COMMIT") };
