//! `florin sim replay`: replays one game with the program that played it, and compares it with a
//! results folder.

use std::path::Path;

use florin_sim::Scenario;
use florin_sim::results::{ReplayReport, Results, RunId};

use super::{PROGRAM, read, refused, run::print, run_games};
use crate::cli::{ScenarioArg, SimReplay};
use crate::failure::{Exit, Failure};
use crate::show::{self, BAD, DIM, GOOD};

/// The file of the scenario in a results folder.
const SCENARIO: &str = "scenario.toml";

pub(super) fn run(command: &SimReplay) -> anyhow::Result<Exit> {
    let game: RunId =
        command.game.parse().map_err(|why: String| Failure::input("INVALID_RUN_ID", why))?;
    check_program(&game)?;
    let folder = Path::new(&command.what.scenario);
    let folder = folder.is_dir().then_some(folder);
    let mut scenario = match folder {
        Some(folder) => scenario_in_folder(folder, &command.what)?,
        None => read(&command.what)?,
    };
    scenario.seeds.first = game.seed;
    scenario.seeds.count = 1;
    // The replay does not search, so its seed need not differ from the seeds of a search.
    scenario.search = None;
    scenario.check().map_err(|error| refused(&error))?;
    let results = run_games(&scenario, 1, &game.to_string())?;
    let Some(folder) = folder else { return print_results(&results, command) };
    let replayed = results.compare_with(game.seed, folder, &PROGRAM);
    let replayed =
        replayed.map_err(|error| Failure::input("REPLAY_UNREADABLE", error.to_string()))?;
    if command.json.json {
        show::json(&replayed)?;
    } else {
        print_comparison(&replayed);
    }
    Ok(if replayed.mismatch_count == 0 { Exit::Done } else { Exit::Negative })
}

/// Refuses a game of another commit, because another program may play another game.
fn check_program(game: &RunId) -> anyhow::Result<()> {
    if game.was_run_by(&PROGRAM) {
        return Ok(());
    }
    let commit = game.commit.trim_end_matches("-changed");
    let why = format!(
        "{game} was played by commit {}, but this program is built from {}: check out {commit} \
         (`git checkout {commit}`), build it, and replay again",
        game.commit, PROGRAM.commit
    );
    Err(Failure::input("REPLAY_OTHER_COMMIT", why).into())
}

/// Reads the scenario in a results folder; the files that it names are in the same folder.
fn scenario_in_folder(folder: &Path, what: &ScenarioArg) -> anyhow::Result<Scenario> {
    if !what.changes.is_empty() {
        let why = "a results folder is replayed unchanged: remove --set, or give a scenario";
        return Err(Failure::input("REPLAY_WITH_CHANGES", why).into());
    }
    let path = folder.join(SCENARIO);
    let text = std::fs::read_to_string(&path).map_err(|error| {
        let right = "give a folder that `florin sim run --out` wrote";
        Failure::input("REPLAY_UNREADABLE", format!("{}: {error}; {right}", path.display()))
    })?;
    Scenario::read_in(folder, &text, &[]).map_err(|error| refused(&error))
}

fn print_results(results: &Results, command: &SimReplay) -> anyhow::Result<Exit> {
    if command.json.json {
        show::json(&results.to_json(&PROGRAM))?;
    } else {
        print(results);
        super::fit::print(results);
    }
    Ok(if results.all_hold() { Exit::Done } else { Exit::Negative })
}

fn print_comparison(replayed: &ReplayReport) {
    let ReplayReport { run: game, rows, mismatch_count: different, mismatches: differences } =
        replayed;
    if *different == 0 {
        anstream::println!("{GOOD}identical{GOOD:#}  {game}: {rows} rows, to the last digit");
        return;
    }
    anstream::println!("{BAD}DIFFERENT{BAD:#}  {game}: {different} of {rows} rows");
    for one in differences {
        let line = |line: &Option<String>| line.clone().unwrap_or_else(|| "no such row".to_owned());
        anstream::println!("  {}", one.file);
        anstream::println!("    {DIM}recorded{DIM:#} {}", line(&one.recorded));
        anstream::println!("    {DIM}played  {DIM:#} {}", line(&one.repeated));
    }
}
