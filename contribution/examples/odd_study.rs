//! Relative error of the estimator [`OddRegression`] against its number of evaluations, on the synthetic
//! games.
//!
//! `cargo run -p florin-contribution --example odd_study -- saturating 20 15 80 110 150 230`
//! prints, at each budget and over 15 games: the median of `‖φ̂ − φ‖/‖φ‖`, the ratio of the
//! estimated to the true error (median and lower decile), and the shortest time of one estimate
//! without evaluations.

use std::collections::BTreeMap;
use std::time::Instant;

use florin_contribution::games::{SyntheticGame, TableGame};
use florin_contribution::{
    Game, LeverageShap, OddRegression, RunOptions, Valuation, ValuationError, value,
};

/// The results at one budget.
#[derive(Default)]
struct Column {
    odd: Vec<f64>,
    leverage: Vec<f64>,
    /// The estimated error divided by the true one.
    own: Vec<f64>,
    millis: Vec<f64>,
    remarks: BTreeMap<String, u32>,
}

fn game(name: &str, players: usize, seed: u64) -> Option<SyntheticGame> {
    match name {
        "saturating" => Some(SyntheticGame::saturating(players, seed)),
        "coverage" => Some(SyntheticGame::coverage(players, seed)),
        "interaction" => Some(SyntheticGame::interaction(players, seed)),
        "voting" => Some(SyntheticGame::voting(players, seed)),
        _ => None,
    }
}

fn norm(of: impl Iterator<Item = f64>) -> f64 {
    of.map(|x| x * x).sum::<f64>().sqrt()
}

fn relative_error(found: &Valuation<usize>, right: &[f64]) -> f64 {
    let off = norm(found.scores.iter().zip(right).map(|(score, right)| score.value - right));
    off / norm(right.iter().copied())
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

fn lower_decile(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 10).copied().unwrap_or(f64::NAN)
}

fn measure(
    column: &mut Column,
    table: &mut TableGame,
    right: &[f64],
    seed: u64,
    budget: u64,
) -> Result<(), ValuationError> {
    let ids: Vec<usize> = (0..table.players()).collect();
    let run = || RunOptions::seeded(seed).with_budget(budget);
    let started = Instant::now();
    let found = value(&OddRegression, table, &ids, run())?;
    column.millis.push(started.elapsed().as_secs_f64() * 1e3);
    let true_error = relative_error(&found, right);
    column.odd.push(true_error);
    let own = norm(found.scores.iter().filter_map(|score| score.estimator_error));
    column.own.push(own / (true_error * norm(right.iter().copied())));
    let remark = found.remark.unwrap_or_default();
    let model = remark.split_once("; ").map_or(remark.as_str(), |(_, model)| model);
    *column.remarks.entry(model.to_owned()).or_default() += 1;
    column.leverage.push(relative_error(&value(&LeverageShap, table, &ids, run())?, right));
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, players, games, budgets @ ..] = arguments.as_slice() else {
        return Err("usage: odd_study GAME PLAYERS GAMES BUDGET...".into());
    };
    let (players, games): (usize, u64) = (players.parse()?, games.parse()?);
    let budgets: Vec<u64> =
        budgets.iter().map(|budget| budget.parse()).collect::<Result<_, _>>()?;
    let mut columns: BTreeMap<u64, Column> = BTreeMap::new();
    for seed in 0..games {
        let mut table = TableGame::from_game(
            &mut game(name, players, seed)
                .ok_or("unknown game; use saturating, coverage, interaction or voting")?,
        )?;
        let right = table.shapley();
        for &budget in &budgets {
            let column = columns.entry(budget).or_default();
            measure(column, &mut table, &right, seed, budget)?;
        }
    }
    println!("{name}, {players} players, medians over {games} games");
    println!(
        "{:>8} {:>9} {:>9} {:>7} {:>7} {:>9}",
        "passes", "odd %", "lever. %", "own", "low", "ms"
    );
    for (budget, mut column) in columns {
        let (odd, leverage) = (median(&mut column.odd), median(&mut column.leverage));
        let (own, lowest) = (median(&mut column.own), lower_decile(&mut column.own));
        let millis = column.millis.iter().copied().fold(f64::INFINITY, f64::min);
        let (odd, leverage) = (100.0 * odd, 100.0 * leverage);
        println!(
            "{budget:>8} {odd:>9.3} {leverage:>9.3} {own:>7.2} {lowest:>7.2} {millis:>9.2}  {:?}",
            column.remarks
        );
    }
    Ok(())
}
