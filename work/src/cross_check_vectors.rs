//! Golden vectors of the cross-check: the coalitions that a seed draws, and the scores that follow
//! from their values alone. The games select every prior of the regression.
//! `protocol/vectors/cross_check.py` recomputes both. `FLORIN_BLESS=1 cargo test -p florin-work
//! --lib cross_check_vectors` rewrites the file.

use std::path::Path;

use florin_contribution::{ClosureSource, GameError};
use serde_json::{Value, json};

use crate::cross_check::cross_check;

/// The loss of a game in the members' parts, which are 0 or 1.
type Loss = fn(&[f64]) -> f64;

fn additive(parts: &[f64]) -> f64 {
    -parts.iter().zip(1_u8..).map(|(part, own)| part * f64::from(own)).sum::<f64>()
}

/// Products of three members, all alike.
fn triples(parts: &[f64]) -> f64 {
    let sum: f64 = parts.iter().sum();
    additive(parts) - sum * (sum - 1.0) * (sum - 2.0) / 4.0
}

/// Members that repeat each other, each by its own strength.
fn overlaps(parts: &[f64]) -> f64 {
    let strengths = [0.9, 0.5, 0.5, 0.1, 0.1, 0.05, 0.05];
    10.0 * parts.iter().zip(strengths).map(|(part, own)| 1.0 - part * own).product::<f64>()
}

/// Five members that are of use only together, and others of little use.
fn together(parts: &[f64]) -> f64 {
    let few: f64 = parts.iter().sum::<f64>() / 10.0;
    -10.0 * parts[..5].iter().product::<f64>() - few
}

/// An additive game with noise.
fn scattered(parts: &[f64]) -> f64 {
    let bits = parts.iter().rev().fold(0_u32, |bits, part| 2 * bits + u32::from(*part > 0.5));
    additive(parts) - f64::from(bits.wrapping_mul(2_654_435_761)) / 4_294_967_296.0
}

/// A majority wins.
fn majority(parts: &[f64]) -> f64 {
    let votes = parts.iter().zip([3.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    let sum: f64 = votes.map(|(part, own)| part * own).sum();
    if sum > 5.5 { -1.0 } else { 0.0 }
}

fn vector(name: &str, players: usize, pairs: u8, loss: Loss) -> Value {
    let seed = 0x0102_0304_0506_0708 + players as u64;
    let share = players as f64;
    let losses = |coefficients: &[f64]| {
        let parts: Vec<f64> = coefficients.iter().map(|own| (own * share).round()).collect();
        Ok::<_, GameError>(vec![loss(&parts)])
    };
    let slopes = |_: &[f64]| -> Result<Vec<Vec<f64>>, GameError> { unreachable!("no gradients") };
    let mut source = ClosureSource::new(players, losses, slopes);
    let members: Vec<usize> = (0..players).collect();
    let checked = cross_check(&mut source, &vec![1; players], &members, seed, pairs).unwrap();
    let (check, _) = checked.unwrap();
    json!({
        "name": name, "players": players, "pairs": pairs, "seed": seed.to_string(),
        "table": check.table, "scores_nano": check.scores_nano,
    })
}

fn vectors() -> Vec<Value> {
    vec![
        vector("2 members", 2, 1, additive),
        vector("all coalitions of 4 members", 4, 2, overlaps),
        vector("too few pairs to compare priors", 7, 1, overlaps),
        vector("the additive model is the best", 7, 3, scattered),
        vector("interactions of three that are alike", 7, 7, triples),
        vector("scales from the members' values", 6, 2, overlaps),
        vector("scales from partners", 7, 2, overlaps),
        vector("five partners", 8, 3, together),
        vector("jumps and 10 pairs for each member", 8, 10, majority),
    ]
}

#[test]
fn cross_check_vectors_match_the_committed_ones() {
    let lines: Vec<String> = vectors().iter().map(Value::to_string).collect();
    let text = format!("[\n{}\n]\n", lines.join(",\n"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol/vectors/cross_checks.json");
    if std::env::var_os("FLORIN_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    let same = text == committed;
    assert!(same, "{}: was a rule of the cross-check changed on purpose?", path.display());
}
