//! Golden vectors of the gap rules: the figures of every estimator that a stage tried, and the
//! decision. A program in another language makes the same decisions from the same figures
//! (`protocol/vectors/rounds.py`). `FLORIN_BLESS=1 cargo test -p florin-work gap_rule` rewrites the
//! file.

use std::cell::RefCell;
use std::path::Path;

use florin_contribution::{ClosureSource, GameError, RoundRules, RoundValuation, value_round};
use florin_protocol::void::is_gap_resolved;
use serde_json::{Value, json};

use crate::round::valuation_stage;

thread_local! {
    /// Improvement and gap of every estimator that the current valuation tried.
    static TRIED: RefCell<Vec<(i64, i64)>> = const { RefCell::new(Vec::new()) };
}

/// The production rule, which also records its arguments.
fn recorded(gap_nano: i64, total_nano: i64) -> bool {
    TRIED.with_borrow_mut(|tried| tried.push((total_nano, gap_nano)));
    is_gap_resolved(gap_nano, total_nano)
}

/// A loss along the round's path, without functions whose last bit depends on the machine.
#[derive(Clone, Copy)]
enum Loss {
    /// `1 − xᵏ`: n nodes integrate its derivative exactly up to k = 2n.
    Power(u32),
    /// One below a threshold and zero above it: no gradient sees the step.
    Step,
}

impl Loss {
    fn at(self, x: f64) -> f64 {
        match self {
            Self::Power(k) => 1.0 - (0..k).fold(1.0, |power, _| power * x),
            Self::Step => f64::from(u8::from(x < 0.371_234_5)),
        }
    }

    fn derivative(self, x: f64) -> f64 {
        match self {
            Self::Power(k) => -f64::from(k) * (1..k).fold(1.0, |power, _| power * x),
            Self::Step => 0.0,
        }
    }
}

/// The sampling errors of two rows whose losses differ by a tenth.
const ROWS: [f64; 2] = [1.0, 0.9];

/// Values updates of equal weights that move the model by `moves`.
fn valued(nodes: u8, loss: Loss, moves: &[f64]) -> RoundValuation {
    let helpful = moves.iter().filter(|step| **step > 0.0);
    let whole = helpful.sum::<f64>().max(1.0);
    let players = moves.len() as f64;
    // The updates that help move it from 0 to 1 together.
    let point = move |coefficients: &[f64]| {
        coefficients.iter().zip(moves).map(|(c, step)| c * step * players / whole).sum::<f64>()
    };
    let losses = |c: &[f64]| Ok::<_, GameError>(ROWS.map(|row| row * loss.at(point(c))).to_vec());
    let slopes = |c: &[f64]| {
        let slope = loss.derivative(point(c)) * players / whole;
        let of = |step: &f64| ROWS.map(|row| row * slope * step).to_vec();
        Ok::<_, GameError>(moves.iter().map(of).collect())
    };
    let mut source = ClosureSource::new(moves.len(), losses, slopes)
        .with_random_direction_std(|_: &[f64]| Ok::<_, GameError>(vec![0.0; moves.len()]));
    let rules =
        RoundRules { z_micro: 2_000_000, nodes: Some(nodes), seed: 7, is_resolved: recorded };
    TRIED.take();
    value_round(&mut source, &vec![1; moves.len()], rules).unwrap()
}

fn vector(name: &str, nodes: u8, loss: Loss, moves: &[f64]) -> Value {
    let valuation = valued(nodes, loss, moves);
    let mut tried = TRIED.take().into_iter();
    let stages: Vec<Value> = valuation
        .stages
        .iter()
        .map(|stage| {
            let mut figures = Vec::new();
            for (total_nano, gap_nano) in tried.by_ref() {
                figures.push(json!({ "total_nano": total_nano, "gap_nano": gap_nano }));
                if is_gap_resolved(gap_nano, total_nano) {
                    break;
                }
            }
            json!({ "tried": figures, "stage": valuation_stage(stage) })
        })
        .collect();
    assert_eq!(tried.next(), None, "{name}: a figure of no stage");
    let excluded = valuation.rows.iter().filter(|row| row.excluded).map(|row| row.player);
    json!({
        "name": name,
        "nodes": nodes,
        "updates": moves.len(),
        "stages": stages,
        "excluded": excluded.collect::<Vec<_>>(),
        "resolved": valuation.is_resolved(),
        "units": valuation.passes(),
    })
}

/// Moves 1, 2, … of a number of updates.
fn ascending(updates: u32) -> Vec<f64> {
    (1..=updates).map(f64::from).collect()
}

fn vectors() -> Value {
    use Loss::{Power, Step};
    json!([
        vector("3 nodes are enough", 3, Power(4), &ascending(5)),
        vector("6 nodes are enough", 3, Power(12), &ascending(5)),
        vector("12 nodes are enough", 3, Power(40), &ascending(5)),
        vector("a task with 8 nodes continues with 12", 8, Power(60), &ascending(5)),
        vector("8 updates are enumerated", 3, Step, &ascending(8)),
        vector("9 updates are permuted", 3, Step, &ascending(9)),
        vector("64 updates are permuted", 3, Step, &ascending(64)),
        vector("65 updates stay unresolved", 3, Step, &ascending(65)),
        vector("a second stage without a harmful update", 3, Power(2), &[1.0, 2.0, -1.0, 3.0]),
        vector("two stages on different rungs", 3, Power(12), &[2.0, 3.0, -4.0, 4.0]),
        vector("without any update that helps", 3, Power(1), &[-1.0, -2.0]),
    ])
}

#[test]
fn gap_rule_vectors_match_the_committed_ones() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol/vectors/gap_rules.json");
    let text = serde_json::to_string_pretty(&vectors()).unwrap() + "\n";
    if std::env::var_os("FLORIN_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, committed, "{}: was a gap rule changed on purpose?", path.display());
}
