//! `florin sim run` with a scenario of the market for compute.

use florin_sim::compute::{
    ComputeError, ComputeResults, ComputeScenario, Role, run_compute_experiment,
};
use florin_sim::results::{RESULTS, Verdict, format_count};

use super::run::{mean, print_criteria, range};
use super::{PROGRAM, check_folder, not_written, overridden, refused, threads, with_progress};
use crate::cli::SimRun;
use crate::failure::{Exit, Failure};
use crate::show::{self, DIM, HEAD, TextTable};

pub(super) fn run(command: &SimRun, mut scenario: ComputeScenario) -> anyhow::Result<Exit> {
    scenario.seeds = overridden(scenario.seeds, &command.play);
    scenario.check().map_err(|error| refused(&error))?;
    if command.trace.trace.is_some() {
        let message = "--trace requires a scenario of tasks: a lease is played without messages";
        return Err(Failure::input("TRACE_UNSUPPORTED", message).into());
    }
    let folder = command.out.as_deref();
    check_folder(folder, &scenario.to_toml(), &[], RESULTS)?;
    let results = with_progress(&scenario.name, |watch| {
        run_compute_experiment(&scenario, threads(command.play.threads), watch)
    });
    let results = results.map_err(|(seed, error)| {
        let run = PROGRAM.run_id(seed);
        match error {
            ComputeError::Rules(_) => {
                let right = "the rules of production refuse these terms: change the keys of [order], [listing] or of \
                    the group";
                Failure::input("SCENARIO_REFUSED", format!("{run}: {error}; {right}"))
            }
            _ => Failure::fault("SIM_ABORTED", format!("{run}: {error}")),
        }
    })?;
    if let Some(folder) = folder {
        results.write(folder, &PROGRAM).map_err(|error| not_written(&error))?;
    }
    if command.json.json {
        show::json(&results.to_json(&PROGRAM))?;
    } else {
        print(&results);
        if let Some(folder) = folder {
            anstream::println!("\n{DIM}written to{DIM:#} {}", folder.display());
        }
    }
    Ok(if results.verdict() == Verdict::Passed { Exit::Done } else { Exit::Negative })
}

/// Prints the groups, then the market, then the pass criteria.
fn print(results: &ComputeResults) {
    let scenario = &results.scenario;
    let hours = format_count(scenario.hours.into(), "hour");
    let seeds = format_count(scenario.seeds.count.into(), "seed");
    anstream::println!("{HEAD}{}{HEAD:#}", scenario.question);
    anstream::println!("{DIM}market for compute, {hours} of orders, {seeds}{DIM:#}\n");
    let mut table = TextTable::new(&[
        "group", "role", ">members", ">profit", "95 %", ">gain", "95 %", ">works", ">slashed",
    ]);
    for (name, role, count) in scenario.groups() {
        let of = |measure: &str| results.measure(measure, Some(name));
        let slashed = of("slashed").filter(|_| role == Role::Provider);
        table.row([
            name.into(),
            role.name().into(),
            count.into(),
            mean(of("profit")),
            range(of("profit")),
            mean(of("gain")),
            range(of("gain")),
            mean(of("works")),
            mean(slashed),
        ]);
    }
    table.print();
    anstream::println!();
    let mut table = TextTable::new(&["market", ">mean", "95 %"]);
    for measured in results.measures.iter().filter(|measured| measured.key.group.is_none()) {
        let (name, one) = (measured.key.measure.replace('_', " "), Some(measured));
        table.row([name.into(), mean(one), range(one)]);
    }
    table.print();
    print_criteria(&results.criteria);
}
