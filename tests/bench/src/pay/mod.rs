//! `florin-bench pay`: what honest members and attackers earn, on real tables.
//!
//! Every figure comes from tasks that the laboratory simulates on the production code. A figure is
//! a ratio of means over all seeds.

mod attack;
mod game;
mod market;
mod raw;

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use florin::progress::progress_bar;
use florin::show::{Cell, TextTable};
use florin_learning::parallel_map;
use indicatif::ProgressDrawTarget;

use super::Measurement;
use crate::arguments::check_only;
use attack::{ATTACKS, Attack, BUYERS, NOBODY};
use game::Game;
use market::{Market, markets};

/// The script that writes the tables.
const SCRIPT: &str = include_str!("../../../../xtask/peers/tables.py");
/// Progress of the simulations.
const BAR: &str = "{bar:40} {pos} of {len} tasks, {eta} left";
/// Number of threads; each simulates one task at a time.
const THREADS: usize = 2;
/// Share of the pay that honest members may forfeit: of all, and of the one that loses most.
const FORFEITED_MAX: [f64; 2] = [0.05, 0.25];
/// The most passes of a valuation on scaled data, relative to one that never climbs.
const UNITS_MAX: f64 = 1.2;
/// Share of the budget that the floor pays in a task, at least, if every round is void.
const FLOOR_SHARE: f64 = 0.2;
/// Below one by more than the rounding of amounts.
const ROUNDING: f64 = 0.999_999;
/// Florins of a task.
const BUDGET: f64 = 1_000.0;

/// Runs the benchmark with seeds from `first`.
pub(super) fn run(
    python: Option<&Path>,
    first: u64,
    seeds: u64,
    only: Option<&str>,
) -> anyhow::Result<Vec<Measurement>> {
    let python = python.context(
        "the tables come with Python packages: run `cargo xtask bench pay`, or name a folder with \
         scikit-learn and palmerpenguins by --python",
    )?;
    let folder = tempfile::tempdir()?;
    write_tables(python, folder.path())?;
    let mut attacks = vec![NOBODY];
    attacks.extend(ATTACKS);
    attacks.extend(BUYERS);
    let mut names: Vec<String> = markets().iter().map(ToString::to_string).collect();
    names.push(raw::NAME.to_owned());
    check_only(only, &names)?;
    let markets: Vec<Market> = markets()
        .into_iter()
        .filter(|market| only.is_none_or(|only| market.to_string().contains(only)))
        .collect();
    let measures_raw = only.is_none_or(|only| raw::NAME.contains(only));
    let mut jobs = Vec::new();
    for market in &markets {
        for attack in &attacks {
            let scenario = market.scenario(attack, folder.path())?;
            jobs.extend((first..first + seeds).map(|seed| (scenario.clone(), seed)));
        }
    }
    let bar = progress_bar(ProgressDrawTarget::stderr(), BAR);
    let raw_tasks = if measures_raw { raw::tasks(seeds) } else { 0 };
    bar.set_length(jobs.len() as u64 + raw_tasks);
    let games = parallel_map(THREADS, jobs, |(scenario, seed)| {
        let game = game::play(&scenario, seed);
        bar.inc(1);
        game
    });
    let raw = match measures_raw {
        true => raw::measure(python, &folder.path().join("raw"), first, seeds, &bar)?,
        false => Vec::new(),
    };
    bar.finish_and_clear();
    let games = games.into_iter().collect::<anyhow::Result<Vec<Game>>>()?;
    let per_cell = usize::try_from(seeds)?;
    let cells: Vec<&[Game]> = games.chunks(per_cell).collect();
    let mut rows = Vec::new();
    for (market, cells) in markets.iter().zip(cells.chunks(attacks.len())) {
        rows.extend(report_market(market, &attacks, cells)?);
    }
    rows.extend(raw);
    Ok(rows)
}

fn write_tables(python: &Path, folder: &Path) -> anyhow::Result<()> {
    python_output(python, SCRIPT, folder).context("the tables cannot be written").map(drop)
}

/// Runs a script with the packages in `python`; its argument is a folder. Returns its output.
fn python_output(python: &Path, script: &str, folder: &Path) -> anyhow::Result<String> {
    let output = Command::new("python3")
        .args(["-c", script])
        .arg(folder)
        .env("PYTHONPATH", python)
        .output()
        .context("cannot start python3")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "the script failed: {}", errors.trim());
    Ok(String::from_utf8(output.stdout)?)
}

fn mean(games: &[Game], value: impl Fn(&Game) -> f64) -> f64 {
    games.iter().map(value).sum::<f64>() / games.len().max(1) as f64
}

/// Prints the table of a market, and returns its measurements.
fn report_market(
    market: &Market,
    attacks: &[Attack],
    cells: &[&[Game]],
) -> anyhow::Result<Vec<Measurement>> {
    let nobody = *cells.first().context("the first row has no attacker")?;
    let base = mean(nobody, |game| game.honest);
    anstream::println!("\n{market}: an honest member earns {base:.1} FLN");
    let mut table =
        TextTable::new(&["attack", ">pay", ">honest keep", ">worst", ">accuracy", ">void"]);
    let mut rows = properties(market, nobody);
    for (attack, games) in attacks.iter().zip(cells) {
        let honest = mean(games, |game| game.honest);
        let pay = mean(games, |game| game.attackers / game.attacker_count.max(1) as f64) / honest;
        let kept = honest / base;
        let number = |value: f64| Cell::from(format!("{value:.3}"));
        table.row([
            attack.name.into(),
            if attack.attacker.is_some() { number(pay) } else { "".into() },
            number(kept),
            number(mean(games, |game| game.worst) / honest),
            number(mean(games, |game| game.accuracy)),
            number(mean(games, |game| f64::from(game.void))),
        ]);
        let name = |what: &str| format!("{market}: {}{what}", attack.name);
        if let Some(bar) = attack.pay_max {
            rows.push(Measurement::at_most(name(""), pay, "× honest pay", bar));
        } else if attack.attacker.is_some() {
            rows.push(Measurement::plain(name(""), pay, "× honest pay"));
        }
        match (attack.kept_min, attack.attacker) {
            (Some(bar), _) => {
                rows.push(Measurement::at_least(name(", honest keep"), kept, "×", bar));
            }
            (None, Some(_)) => {
                rows.push(Measurement::plain(name(", honest keep"), kept, "×"));
            }
            (None, None) => {}
        }
        if BUYERS.iter().any(|buyer| buyer.name == attack.name) {
            let floor = ROUNDING * BUDGET * FLOOR_SHARE / f64::from(market.table.members);
            let paid = mean(games, |game| game.honest);
            rows.push(Measurement::at_least(name(", honest pay"), paid, "FLN", floor));
            let debits = mean(games, |game| f64::from(game.debits));
            rows.push(Measurement::at_most(name(", honest debits"), debits, "", 0.0));
        }
        let is_sound = games.iter().all(|game| game.balanced && game.overpaid == 0);
        let is_sound = is_sound && games.iter().all(|game| game.unresolved == 0);
        if !is_sound {
            rows.push(Measurement::failed(name(", money without improvement"), 1.0, ""));
        }
    }
    table.print();
    Ok(rows)
}

/// The properties of a market without an attacker.
fn properties(market: &Market, games: &[Game]) -> Vec<Measurement> {
    let name = |what: &str| format!("{market}: {what}");
    let [all, worst] = [0, 1].map(|at| mean(games, |game| game.forfeited[at]));
    let mut rows = vec![
        Measurement::plain(name("accuracy"), mean(games, |game| game.accuracy), ""),
        Measurement::plain(name("honest pay"), mean(games, |game| game.honest), "FLN"),
    ];
    let ended = mean(games, |game| f64::from(game.rounds));
    if market.table.scaled {
        rows.push(Measurement::at_most(name("forfeited"), all, "", FORFEITED_MAX[0]));
        rows.push(Measurement::at_most(name("forfeited, worst"), worst, "", FORFEITED_MAX[1]));
        let settled: Vec<u64> =
            games.iter().flat_map(|game| game.settled_units.iter().copied()).collect();
        let usual = settled.iter().sum::<u64>() as f64 / settled.len().max(1) as f64;
        let rounds: usize =
            games.iter().map(|game| game.settled_units.len() + game.climbed as usize).sum();
        let units = games.iter().map(|game| game.units).sum::<u64>() as f64;
        let ratio = units / (usual * rounds.max(1) as f64);
        rows.push(Measurement::at_most(name("passes"), ratio, "×", UNITS_MAX));
    } else {
        rows.push(Measurement::plain(name("forfeited"), all, ""));
        rows.push(Measurement::plain(name("forfeited, worst"), worst, ""));
    }
    rows.push(Measurement::plain(name("rounds"), ended, ""));
    rows
}
