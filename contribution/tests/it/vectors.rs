//! Vectors of the estimators, which the Python package reproduces: whole games as tables, and the
//! values that each estimator gives them for a seed and a budget.

use std::fmt::Write;
use std::path::Path;

use florin_contribution::games::{SyntheticGame, TableGame};
use florin_contribution::{
    AntitheticPermutation, Estimator, Exact, LeaveOneOut, OddRegression, Permutation, RunOptions,
    TruncatedMonteCarlo, value,
};

const SEED: u64 = 20;

/// A game as its table, with a name.
struct NamedGame {
    name: String,
    players: usize,
    table: Vec<f64>,
}

/// Games of sums and comparisons only, so that every machine computes the same table.
fn games() -> Vec<NamedGame> {
    let named = |name: &str, players: usize, mut game: SyntheticGame| {
        let table = TableGame::from_game(&mut game).unwrap().value_table().to_vec();
        NamedGame { name: format!("{name} of {players}"), players, table }
    };
    let interaction =
        |players| named("interaction", players, SyntheticGame::interaction(players, 5));
    let voting = |players| named("voting", players, SyntheticGame::voting(players, 5));
    vec![interaction(1), interaction(2), interaction(7), voting(6), interaction(10), voting(9)]
}

/// A JSON object with the valuation of one game by one estimator.
fn case<E: Estimator<TableGame>>(game: &NamedGame, estimator: &E, budget: u64) -> String {
    let mut played = TableGame::new(game.players, game.table.clone()).unwrap();
    let ids: Vec<usize> = (0..game.players).collect();
    let run = RunOptions::seeded(SEED).with_budget(budget);
    let found = value(estimator, &mut played, &ids, run).unwrap();
    let values: Vec<f64> = found.scores.iter().map(|score| score.value).collect();
    let errors: Option<Vec<f64>> = found.scores.iter().map(|score| score.estimator_error).collect();
    let errors = errors.map_or("null".to_owned(), |errors| format!("{errors:?}"));
    format!(
        "{{\"estimator\":\"{}\",\"budget\":{budget},\"evaluations\":{},\"gap\":{:?},\
         \"values\":{values:?},\"errors\":{errors}}}",
        estimator.name(),
        found.evaluations,
        found.gap
    )
}

fn cases(game: &NamedGame) -> Vec<String> {
    let n = game.players as u64;
    let all = 1 << n;
    let mut cases = vec![case(game, &Exact, all), case(game, &LeaveOneOut, n + 2)];
    for budget in [2 * n, 4 * n, 9 * n + 1, 24 * n] {
        let budget = budget.min(all);
        cases.push(case(game, &Permutation, budget));
        cases.push(case(game, &AntitheticPermutation, budget));
        cases.push(case(game, &TruncatedMonteCarlo::default(), budget));
        if budget >= 2 * n {
            cases.push(case(game, &OddRegression, budget));
        }
    }
    cases
}

#[test]
fn estimators_match_the_vectors_that_python_reproduces() {
    let mut text = String::from("[\n");
    for (at, game) in games().iter().enumerate() {
        let NamedGame { name, players, table } = game;
        let between = if at == 0 { "" } else { ",\n" };
        let cases = cases(game).join(",\n");
        write!(
            text,
            "{between}{{\"name\":\"{name}\",\"players\":{players},\"seed\":{SEED},\n\
             \"table\":{table:?},\n\"cases\":[\n{cases}]}}"
        )
        .unwrap();
    }
    text.push_str("\n]\n");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/estimators.json");
    if std::env::var_os("FLORIN_BLESS").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let recorded = std::fs::read_to_string(&file).unwrap();
    assert!(text == recorded, "{} differs: FLORIN_BLESS=1 writes it again", file.display());
}
