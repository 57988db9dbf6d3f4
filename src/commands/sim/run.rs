//! `florin sim run`.

use florin_sim::measure::Measured;
use florin_sim::results::Results;

use super::{VERSION, played, read, threads, with_seeds};
use crate::cli::SimRun;
use crate::failure::{Exit, Failure};
use crate::show::{self, BAD, Cell, DIM, GOOD, HEAD, Table};

pub(super) fn run(command: &SimRun) -> anyhow::Result<Exit> {
    let scenario = with_seeds(read(&command.what)?, &command.play)?;
    let results = played(&scenario, threads(command.play.threads), &scenario.name)?;
    if let Some(folder) = &command.out {
        let failed = |error: florin_sim::results::WriteError| {
            Failure::fault("RESULTS_NOT_WRITTEN", error.to_string())
        };
        results.write(folder, VERSION).map_err(failed)?;
    }
    if command.json.json {
        show::json(&results.to_json(VERSION))?;
    } else {
        print(&results);
        super::fit::print(&results);
        if let Some(folder) = &command.out {
            anstream::println!("\n{DIM}written to{DIM:#} {}", folder.display());
        }
    }
    Ok(if results.hold() { Exit::Done } else { Exit::No })
}

/// Groups first, then the market, then the rules.
pub(super) fn print(results: &Results) {
    let scenario = &results.scenario;
    let (rounds, seeds) = (scenario.rounds, scenario.seeds.count);
    let rule = scenario.mechanism.name();
    anstream::println!("{HEAD}{}{HEAD:#}", scenario.question);
    anstream::println!("{DIM}paid by {rule}, {rounds} rounds, {seeds} seeds{DIM:#}\n");
    let mut table = Table::new(&[
        "group",
        ">members",
        ">profit",
        "95 %",
        ">gain",
        "95 %",
        ">refused",
        ">took part",
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
    table.print();
    if results.rules.is_empty() {
        return;
    }
    anstream::println!();
    let mut table = Table::new(&["rule", ">value", ""]);
    for judged in &results.rules {
        let (mark, style) = if judged.holds { ("holds", GOOD) } else { ("BROKEN", BAD) };
        let value = judged.value.map_or_else(|| "no such measure".to_owned(), figure);
        table.row([judged.rule.as_str().into(), value.into(), Cell::styled(mark, style)]);
    }
    table.print();
}

fn mean(measured: Option<&Measured>) -> Cell {
    measured.map_or_else(String::new, |measured| figure(measured.interval.mean)).into()
}

fn range(measured: Option<&Measured>) -> Cell {
    let text = measured.map_or_else(String::new, |measured| {
        format!("{} to {}", figure(measured.interval.low), figure(measured.interval.high))
    });
    Cell::styled(text, DIM)
}

fn percent(measured: Option<&Measured>) -> Cell {
    measured.map_or_else(String::new, |m| format!("{:.0} %", m.interval.mean * 100.0)).into()
}

/// A figure with as many decimals as it needs to be told from its neighbours.
pub(super) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 1_000.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    // No minus before zeros.
    let text = format!("{value:.decimals$}");
    let is_zero = text.chars().all(|c| matches!(c, '-' | '0' | '.'));
    if is_zero { text.trim_start_matches('-').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::figure;

    #[test]
    fn figures_have_the_decimals_they_need() {
        for (value, text) in [
            (0.0, "0.000"),
            (-0.0001, "0.000"),
            (0.1234, "0.123"),
            (-3.456, "-3.46"),
            (12.34, "12.3"),
            (12_345.6, "12346"),
        ] {
            assert_eq!(figure(value), text);
        }
    }
}
