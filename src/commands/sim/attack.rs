//! `florin sim attack`: finds the most profitable deviation, and measures it on fresh seeds.

use florin_sim::Halted;
use florin_sim::results::{ATTACK, counted, ends, figure};
use florin_sim::search::{Attack, attack};

use super::{PROGRAM, halted, not_written, own_folder, read, threads, watched, with_seeds};
use crate::cli::SimRun;
use crate::failure::{Exit, Failure};
use crate::show::{self, Cell, DIM, HEAD, NOTE, Table};

pub(super) fn run(command: &SimRun) -> anyhow::Result<Exit> {
    let scenario = with_seeds(read(&command.what)?, &command.play)?;
    own_folder(command.out.as_deref(), &scenario, ATTACK)?;
    let threads = threads(command.play.threads);
    let found = watched(&scenario.name, |watch| attack(&scenario, threads, watch));
    let found = found.map_err(|error: Halted| halted(&error))?;
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

fn print(found: &Attack) {
    let scenario = &found.scenario;
    anstream::println!("{HEAD}{}{HEAD:#}", scenario.question);
    anstream::println!(
        "{DIM}mechanism {}, {}, {}, measured on {}{DIM:#}\n",
        scenario.mechanism.name(),
        counted(scenario.rounds.into(), "round"),
        counted(found.tried.len() as u64, "candidate"),
        counted(scenario.seeds.count.into(), "fresh seed")
    );
    let mut table = Table::new(&[
        "strategy",
        "best parameters",
        ">tries",
        ">gain",
        "95 %",
        ">profit",
        "95 %",
        ">rejected",
        ">accuracy",
    ]);
    for one in &found.found {
        let range = |i: &florin_sim::measure::Interval| Cell::styled(ends(i), DIM);
        let gain = figure(one.gain.mean);
        let gain = if one.gain.low().is_some_and(|low| low > 0.0) {
            Cell::styled(gain, NOTE)
        } else {
            gain.into()
        };
        table.row([
            one.name.as_str().into(),
            one.in_short().into(),
            one.tries.into(),
            gain,
            range(&one.gain),
            figure(one.profit.mean).into(),
            range(&one.profit),
            format!("{:.0} %", one.refused.mean * 100.0).into(),
            format!("{:.1} %", one.accuracy.mean * 100.0).into(),
        ]);
    }
    table.print();
    if let (Some(epsilon), Some(best)) = (found.epsilon(), found.found.get(found.best)) {
        anstream::println!(
            "\nepsilon of the most profitable deviation: {HEAD}{}{HEAD:#} FLN [{}], {}",
            figure(epsilon.mean),
            ends(&epsilon),
            best.name
        );
    }
}
