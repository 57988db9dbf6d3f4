//! `florin sim run`: runs a scenario and prints its results.

use std::path::Path;

use florin_sim::Scenario;
use florin_sim::measure::{MeasureSummary, RATIOS};
use florin_sim::results::{
    CriterionResult, RESULTS, Results, Verdict, format_bounds, format_count, format_number,
};

use super::{PROGRAM, check_results_folder, not_written, run_simulations, threads, with_seeds};
use crate::cli::SimRun;
use crate::failure::{Exit, Failure};
use crate::show::{self, BAD, Cell, DIM, GOOD, HEAD, NOTE, TextTable};
use crate::trace::analysis::read::is_trace_name;
use crate::trace::{trace_not_written, write_simulation};

pub(super) fn run(command: &SimRun, scenario: Scenario) -> anyhow::Result<Exit> {
    let scenario = with_seeds(scenario, &command.play)?;
    let traces = command.trace.trace.as_deref();
    if traces.is_some() && !scenario.mode.is_real() {
        let message = "--trace requires a scenario with `mode = \"real\"`: a simulation that draws \
            scores has no messages";
        return Err(Failure::input("TRACE_UNSUPPORTED", message).into());
    }
    traces.map_or(Ok(()), check_trace_folder)?;
    check_results_folder(command.out.as_deref(), &scenario, RESULTS)?;
    let results = run_simulations(&scenario, threads(command.play.threads), &scenario.name)?;
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
    // After the results, which a trace that cannot be written must not lose.
    write_traces(&results, traces)?;
    Ok(if results.verdict() == Verdict::Passed { Exit::Done } else { Exit::Negative })
}

/// Refuses a folder that has traces: `florin trace show` would put the rounds of two runs together.
fn check_trace_folder(folder: &Path) -> anyhow::Result<()> {
    // A folder that cannot be read is refused when the trace is written.
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    let is_trace = |entry: std::fs::DirEntry| is_trace_name(&entry.file_name().to_string_lossy());
    if !entries.flatten().any(is_trace) {
        return Ok(());
    }
    let why = "already has traces, whose rounds would mix with those of this run: give a new folder \
        with --trace, or remove its traces";
    Err(Failure::input("TRACE_FOLDER_IN_USE", format!("{} {why}", folder.display())).into())
}

/// Writes the rounds of each seed as a trace in virtual time.
fn write_traces(results: &Results, folder: Option<&Path>) -> anyhow::Result<()> {
    let Some(folder) = folder else { return Ok(()) };
    for outcome in &results.outcomes {
        write_simulation(folder, &results.scenario.name, outcome)
            .map_err(|error| trace_not_written(folder, &error))?;
    }
    Ok(())
}

/// Prints the findings in words, the groups, then the market, then the pass criteria.
pub(super) fn print(results: &Results) {
    let scenario = &results.scenario;
    let rounds = format_count(scenario.rounds.into(), "round");
    let seeds = format_count(scenario.seeds.count.into(), "seed");
    let rule = scenario.mechanism.name();
    anstream::println!("{HEAD}{}{HEAD:#}", scenario.question);
    anstream::println!("{DIM}mechanism {rule}, {rounds}, {seeds}{DIM:#}\n");
    let mut table = TextTable::new(&["group", "finding"]);
    for finding in results.findings() {
        table.row([Cell::from(finding.subject), finding.text.into()]);
    }
    table.print();
    anstream::println!();
    let mut table = TextTable::new(&[
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
            percent(of("rejected")),
            percent(of("participation")),
        ]);
    }
    table.print();
    anstream::println!();
    print_devices(results);
    let mut table = TextTable::new(&["market", ">mean", "95 %"]);
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
    print_criteria(&results.criteria);
}

/// Prints the pass criteria; nothing without any.
pub(super) fn print_criteria(criteria: &[CriterionResult]) {
    if criteria.is_empty() {
        return;
    }
    anstream::println!();
    let mut table = TextTable::new(&["criterion", ">value", ""]);
    for judged in criteria {
        let worst = judged.worst_seed.map(|seed| format!(", worst in {}", PROGRAM.run_id(seed)));
        let (mark, style) = match judged.verdict {
            Verdict::Passed => ("passed", GOOD),
            Verdict::Failed => ("FAILED", BAD),
            Verdict::Open => ("open: not shown to hold", NOTE),
            Verdict::Undecided => ("not decided: it needs at least two seeds", NOTE),
        };
        let mark = format!("{mark}{}", worst.unwrap_or_default());
        let value = judged.value.map_or_else(|| "undefined".to_owned(), format_number);
        table.row([judged.criterion.as_str().into(), value.into(), Cell::styled(mark, style)]);
    }
    table.print();
}

/// Prints the times of the groups' devices; nothing without devices.
fn print_devices(results: &Results) {
    if !results.scenario.has_devices() {
        return;
    }
    let heads = ["devices of", ">seconds of a round", "95 %", ">late", ">too little memory"];
    let mut table = TextTable::new(&heads);
    for (name, _) in results.scenario.population.iter().filter(|(_, of)| of.devices.is_some()) {
        let of = |measure: &str| results.measure(measure, Some(name));
        table.row([
            name.as_str().into(),
            mean(of("round_seconds")),
            range(of("round_seconds")),
            percent(of("late")),
            percent(of("too_small")),
        ]);
    }
    table.print();
    anstream::println!();
}

pub(super) fn mean(measured: Option<&MeasureSummary>) -> Cell {
    measured.map_or_else(String::new, |measured| format_number(measured.interval.mean)).into()
}

pub(super) fn range(measured: Option<&MeasureSummary>) -> Cell {
    Cell::styled(
        measured.map_or_else(String::new, |measured| format_bounds(&measured.shown_interval())),
        DIM,
    )
}

fn percent(measured: Option<&MeasureSummary>) -> Cell {
    measured.map_or_else(String::new, |m| format!("{:.0} %", m.interval.mean * 100.0)).into()
}
