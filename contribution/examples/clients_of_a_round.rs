//! The contribution of each client of a federated round: a softmax regression on synthetic rows.
//!
//! `cargo run -p florin-contribution --example clients_of_a_round`
//!
//! One client sends a zero update: weights are fixed for the cohort, so its value is exactly zero,
//! and a sampling estimator finds that within its error. Another client has permuted its labels,
//! and its value is negative.

use florin_contribution::{
    AffineGame, AffineSource, FixedWeights, GameError, LeaveOneOut, OddRegression, Path,
    RunOptions, Score, SeededRng, Valuation, value,
};

const FEATURES: usize = 4;
const CLASSES: usize = 3;
const WEIGHTS: usize = FEATURES * CLASSES;

/// Full-batch gradient steps of one client in a round, and the step size.
const STEPS: usize = 10;
const STEP: f64 = 0.5;

/// A client: its rows, and its behaviour.
struct Client {
    name: &'static str,
    rows: usize,
    classes: &'static [usize],
    deed: ClientBehaviour,
}

#[derive(PartialEq)]
enum ClientBehaviour {
    Trains,
    FreeRides,
    FlipsLabels,
}

const CLIENTS: [Client; 6] = [
    Client { name: "large", rows: 120, classes: &[0, 1, 2], deed: ClientBehaviour::Trains },
    Client { name: "small", rows: 30, classes: &[0, 1, 2], deed: ClientBehaviour::Trains },
    Client { name: "two classes", rows: 80, classes: &[0, 1], deed: ClientBehaviour::Trains },
    Client { name: "rare class", rows: 40, classes: &[2], deed: ClientBehaviour::Trains },
    Client { name: "free rider", rows: 100, classes: &[0, 1, 2], deed: ClientBehaviour::FreeRides },
    Client {
        name: "label flipper",
        rows: 60,
        classes: &[0, 1, 2],
        deed: ClientBehaviour::FlipsLabels,
    },
];

/// One row: its features, of which the last is always 1, and its class.
struct LabelledRow {
    features: [f64; FEATURES],
    class: usize,
}

/// Rows of `classes` in turn, each around its class's corner, with noise that overlaps the other
/// classes.
fn rows(draw: &mut SeededRng, count: usize, classes: &[usize]) -> Vec<LabelledRow> {
    let of = |at: usize, draw: &mut SeededRng| {
        let class = classes[at % classes.len()];
        let mut features = [1.0; FEATURES];
        for (feature, x) in features.iter_mut().take(FEATURES - 1).enumerate() {
            // The sum of two uniform numbers has a triangular density, close enough to a normal
            // one.
            let noise = 2.5 * (draw.uniform() + draw.uniform() - 1.0);
            *x = noise + if feature == class { 1.5 } else { 0.0 };
        }
        LabelledRow { features, class }
    };
    (0..count).map(|at| of(at, draw)).collect()
}

/// The probability of each class under `weights`.
fn softmax(weights: &[f64], row: &LabelledRow) -> [f64; CLASSES] {
    let mut scores = [0.0; CLASSES];
    for (score, of_class) in scores.iter_mut().zip(weights.chunks_exact(FEATURES)) {
        *score = of_class.iter().zip(&row.features).map(|(w, x)| w * x).sum();
    }
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
    let sum: f64 = scores.iter().sum();
    scores.map(|score| score / sum)
}

/// The gradient of one row's loss.
fn gradient(weights: &[f64], row: &LabelledRow) -> [f64; WEIGHTS] {
    let mut gradient = [0.0; WEIGHTS];
    let probabilities = softmax(weights, row);
    for (class, of_class) in gradient.chunks_exact_mut(FEATURES).enumerate() {
        let off = probabilities[class] - f64::from(u8::from(class == row.class));
        of_class.iter_mut().zip(&row.features).for_each(|(g, x)| *g = off * x);
    }
    gradient
}

/// The update of a client: the difference between its locally trained weights and `start`.
fn update(client: &Client, start: &[f64], draw: &mut SeededRng) -> Vec<f64> {
    let mut own = rows(draw, client.rows, client.classes);
    if client.deed == ClientBehaviour::FreeRides {
        return vec![0.0; WEIGHTS];
    }
    if client.deed == ClientBehaviour::FlipsLabels {
        own.iter_mut().for_each(|row| row.class = (row.class + 1) % CLASSES);
    }
    let mut weights = start.to_vec();
    for _ in 0..STEPS {
        let mut sum = [0.0; WEIGHTS];
        for row in &own {
            sum.iter_mut().zip(gradient(&weights, row)).for_each(|(sum, g)| *sum += g);
        }
        weights.iter_mut().zip(sum).for_each(|(w, g)| *w -= STEP * g / own.len() as f64);
    }
    weights.iter().zip(start).map(|(after, before)| after - before).collect()
}

/// The holdout's loss at any linear combination of the updates.
struct HoldoutLoss {
    start: Vec<f64>,
    updates: Vec<Vec<f64>>,
    holdout: Vec<LabelledRow>,
}

impl HoldoutLoss {
    fn at(&self, coefficients: &[f64]) -> Vec<f64> {
        let mut weights = self.start.clone();
        for (update, coefficient) in self.updates.iter().zip(coefficients) {
            weights.iter_mut().zip(update).for_each(|(w, d)| *w += coefficient * d);
        }
        weights
    }
}

impl AffineSource for HoldoutLoss {
    fn players(&self) -> usize {
        self.updates.len()
    }

    fn losses(&mut self, coefficients: &[f64]) -> Result<Vec<f64>, GameError> {
        let weights = self.at(coefficients);
        Ok(self.holdout.iter().map(|row| -softmax(&weights, row)[row.class].ln()).collect())
    }

    fn directional_derivatives(
        &mut self,
        coefficients: &[f64],
    ) -> Result<Vec<Vec<f64>>, GameError> {
        let weights = self.at(coefficients);
        let gradients: Vec<_> = self.holdout.iter().map(|row| gradient(&weights, row)).collect();
        let along = |update: &Vec<f64>| {
            let dot = |gradient: &[f64; WEIGHTS]| -> f64 {
                gradient.iter().zip(update).map(|(g, d)| g * d).sum()
            };
            gradients.iter().map(dot).collect()
        };
        Ok(self.updates.iter().map(along).collect())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let start = vec![0.0; WEIGHTS];
    let updates = (1..).zip(&CLIENTS);
    let updates =
        updates.map(|(stream, client)| update(client, &start, &mut SeededRng::new(7, stream)));
    let updates: Vec<Vec<f64>> = updates.collect();
    let holdout = rows(&mut SeededRng::new(7, 0), 300, &[0, 1, 2]);
    let shares = FixedWeights::over_all(&CLIENTS.map(|client| client.rows as u64))?;
    let mut game = AffineGame::new(HoldoutLoss { start, updates, holdout }, shares)?;

    let names = CLIENTS.map(|client| client.name);
    let path = value(&Path::default(), &mut game, &names, RunOptions::seeded(1))?;
    let odd = value(&OddRegression, &mut game, &names, RunOptions::seeded(1).with_budget(24))?;
    let alone = value(&LeaveOneOut, &mut game, &names, RunOptions::seeded(1))?;
    print(&path, &odd, &alone);
    Ok(())
}

fn print(path: &Valuation<&str>, odd: &Valuation<&str>, alone: &Valuation<&str>) {
    println!("Reduction of the holdout loss by each client, in nats:\n");
    println!("{:<14} {:>19} {:>19} {:>12}", "client", "path ± rows", "odd ± pairs", "leave-1-out");
    for ((path, odd), alone) in path.scores.iter().zip(&odd.scores).zip(&alone.scores) {
        let (by_path, by_odd) = (bar(path, path.standard_error), bar(odd, odd.estimator_error));
        println!("{:<14} {by_path:>19} {by_odd:>19} {:>12.5}", path.id, alone.value);
    }
    let cost = |of: &Valuation<&str>| format!("{} + {}", of.evaluations, of.gradients);
    println!("{:<14} {:>19.5} {:>19.5} {:>12.5}", "total", path.total, odd.total, alone.total);
    let gap = |of: &Valuation<&str>| (of.gap * 1e5).round() / 1e5 + 0.0; // avoids a negative zero
    let gaps = [path, odd, alone].map(gap);
    println!("{:<14} {:>19.5} {:>19.5} {:>12.5}", "gap", gaps[0], gaps[1], gaps[2]);
    println!("{:<14} {:>19} {:>19} {:>12}", "evals + grads", cost(path), cost(odd), cost(alone));
}

fn bar(score: &Score<&str>, error: Option<f64>) -> String {
    let error = error.map_or_else(|| "unknown".to_owned(), |error| format!("{error:.5}"));
    format!("{:.5} ± {error}", score.value)
}
