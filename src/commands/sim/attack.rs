//! `florin sim attack`: finds the most profitable deviation, and measures it on fresh seeds.

use florin_sim::SimulationFailed;
use florin_sim::results::{SEARCH, format_bounds, format_count, format_number};
use florin_sim::search::{SearchResults, search_deviations};

use super::{
    PROGRAM, check_results_folder, halted, not_written, read, threads, with_progress, with_seeds,
};
use crate::cli::SimRun;
use crate::failure::{Exit, Failure};
use crate::show::{self, Cell, DIM, HEAD, NOTE, TextTable};

pub(super) fn run(command: &SimRun) -> anyhow::Result<Exit> {
    let scenario = with_seeds(read(&command.what)?, &command.play)?;
    check_results_folder(command.out.as_deref(), &scenario, SEARCH)?;
    let threads = threads(command.play.threads);
    let found = with_progress(&scenario.name, |watch| search_deviations(&scenario, threads, watch));
    let found = found.map_err(|error: SimulationFailed| halted(&error))?;
    let found = found.ok_or_else(|| {
        let why = format!(
            "{} has no [search] section: add one, or use a scenario that has one, such as attacks",
            scenario.name
        );
        Failure::input("SCENARIO_WITHOUT_SEARCH", why)
    })?;
    if let Some(folder) = &command.out {
        found.write(folder, &PROGRAM).map_err(|error| not_written(&error))?;
    }
    if command.json.json {
        show::json(&found.to_json(&PROGRAM))?;
        return Ok(Exit::Done);
    }
    print(&found);
    if let Some(folder) = &command.out {
        anstream::println!("\n{DIM}written to{DIM:#} {}", folder.display());
    }
    Ok(Exit::Done)
}

fn print(found: &SearchResults) {
    let scenario = &found.scenario;
    anstream::println!("{HEAD}{}{HEAD:#}", scenario.question);
    anstream::println!(
        "{DIM}mechanism {}, {}, {}, measured on {}{DIM:#}\n",
        scenario.mechanism.name(),
        format_count(scenario.rounds.into(), "round"),
        format_count(found.candidates.len() as u64, "candidate"),
        format_count(scenario.seeds.count.into(), "fresh seed")
    );
    let mut table = TextTable::new(&[
        "strategy",
        "best parameters",
        ">candidates",
        ">gain",
        "95 %",
        ">profit",
        "95 %",
        ">rejected",
        ">accuracy",
    ]);
    for one in &found.strategies {
        let range =
            |i: &florin_sim::measure::ConfidenceInterval| Cell::styled(format_bounds(i), DIM);
        let gain = format_number(one.gain.mean);
        let gain = if one.gain.low().is_some_and(|low| low > 0.0) {
            Cell::styled(gain, NOTE)
        } else {
            gain.into()
        };
        table.row([
            one.name.as_str().into(),
            one.display_text().into(),
            one.candidate_count.into(),
            gain,
            range(&one.gain),
            format_number(one.profit.mean).into(),
            range(&one.profit),
            format!("{:.0} %", one.rejected.mean * 100.0).into(),
            format!("{:.1} %", one.accuracy.mean * 100.0).into(),
        ]);
    }
    table.print();
    if let (Some(epsilon), Some(best)) = (found.epsilon(), found.strategies.get(found.best)) {
        anstream::println!(
            "\nepsilon of the most profitable deviation: {HEAD}{}{HEAD:#} FLN [{}], {}",
            format_number(epsilon.mean),
            format_bounds(&epsilon),
            best.name
        );
    }
}
