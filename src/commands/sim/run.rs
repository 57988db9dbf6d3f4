//! `florin sim run`: runs a scenario and prints its results.

use florin_sim::measure::{Measured, RATIOS};
use florin_sim::results::{RESULTS, Results, counted, ends, figure};

use super::{PROGRAM, not_written, own_folder, played, read, threads, with_seeds};
use crate::cli::SimRun;
use crate::failure::Exit;
use crate::show::{self, BAD, Cell, DIM, GOOD, HEAD, Table};

pub(super) fn run(command: &SimRun) -> anyhow::Result<Exit> {
    let scenario = with_seeds(read(&command.what)?, &command.play)?;
    own_folder(command.out.as_deref(), &scenario, RESULTS)?;
    let results = played(&scenario, threads(command.play.threads), &scenario.name)?;
    if let Some(folder) = &command.out {
        results.write(folder, &PROGRAM).map_err(|error| not_written(&error))?;
    }
    if command.json.json {
        show::json(&results.to_json(&PROGRAM))?;
    } else {
        print(&results);
        super::fit::print(&results);
        if let Some(folder) = &command.out {
            anstream::println!("\n{DIM}written to{DIM:#} {}", folder.display());
        }
    }
    Ok(if results.hold() { Exit::Done } else { Exit::No })
}

/// Prints the groups, then the market, then the rules.
pub(super) fn print(results: &Results) {
    let scenario = &results.scenario;
    let rounds = counted(scenario.rounds.into(), "round");
    let seeds = counted(scenario.seeds.count.into(), "seed");
    let rule = scenario.mechanism.name();
    anstream::println!("{HEAD}{}{HEAD:#}", scenario.question);
    anstream::println!("{DIM}mechanism {rule}, {rounds}, {seeds}{DIM:#}\n");
    let mut table = Table::new(&[
        "group",
        ">members",
        ">profit",
        "95 %",
        ">gain",
        "95 %",
        ">rejected",
        ">participation",
    ]);
    for (name, group) in &scenario.population {
        let of = |measure: &str| results.measure(measure, Some(name));
        table.row([
            name.as_str().into(),
            group.count.into(),
            mean(of("profit")),
            range(of("profit")),
            mean(of("gain")),
            range(of("gain")),
            percent(of("refused")),
            percent(of("participation")),
        ]);
    }
    table.print();
    anstream::println!();
    let mut table = Table::new(&["market", ">mean", "95 %"]);
    for measured in results.measures.iter().filter(|measured| measured.key.group.is_none()) {
        let (name, one) = (measured.key.measure.replace('_', " "), Some(measured));
        table.row([name.into(), mean(one), range(one)]);
    }
    // A ratio with a denominator near zero is undefined; print the reason.
    for (name, _, below) in RATIOS.iter().filter(|(name, ..)| results.measure(name, None).is_none())
    {
        let why = Cell::styled(format!("{below} is not significantly positive"), DIM);
        table.row([name.replace('_', " ").into(), "undefined".into(), why]);
    }
    table.print();
    if results.rules.is_empty() {
        return;
    }
    anstream::println!();
    let mut table = Table::new(&["rule", ">value", ""]);
    for judged in &results.rules {
        let worst = judged.worst.map(|seed| format!(", worst in {}", PROGRAM.game(seed)));
        let (mark, style) = if judged.holds { ("holds", GOOD) } else { ("VIOLATED", BAD) };
        let mark = format!("{mark}{}", worst.unwrap_or_default());
        let value = judged.value.map_or_else(|| "undefined".to_owned(), figure);
        table.row([judged.rule.as_str().into(), value.into(), Cell::styled(mark, style)]);
    }
    table.print();
}

fn mean(measured: Option<&Measured>) -> Cell {
    measured.map_or_else(String::new, |measured| figure(measured.interval.mean)).into()
}

fn range(measured: Option<&Measured>) -> Cell {
    Cell::styled(measured.map_or_else(String::new, |measured| ends(&measured.interval)), DIM)
}

fn percent(measured: Option<&Measured>) -> Cell {
    measured.map_or_else(String::new, |m| format!("{:.0} %", m.interval.mean * 100.0)).into()
}
