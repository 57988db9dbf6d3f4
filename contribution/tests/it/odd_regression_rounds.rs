//! Training rounds small enough to enumerate: a network with one hidden layer, clients with few of
//! the classes each, fixed weights. Odd regression must be within 1 % of the exact values after 40
//! evaluations.

use florin_contribution::games::TableGame;
use florin_contribution::{
    Coalition, Game, GameError, OddRegression, RunOptions, SeededRng, value,
};

const FEATURES: usize = 64;
const HIDDEN: usize = 16;
const CLASSES: usize = 10;
const ROWS_OF_CLIENT: usize = 60;
const ROWS_JUDGED: usize = 60;
const LEARNING_RATE: f64 = 1.5;
const STEPS: usize = 10;

/// The weights of both layers, one after the other, by rows of inputs.
type Weights = Vec<f64>;

/// Rows with their classes.
struct Rows {
    features: Vec<Vec<f64>>,
    classes: Vec<usize>,
}

/// A round: `v(S) = loss(w) − loss(w + Σ_{i∈S} Δ_i/n)`.
struct NetworkRound {
    start: Weights,
    updates: Vec<Weights>,
    judged: Rows,
}

/// An approximately normal number: the sum of twelve uniform ones.
fn approximately_normal(draw: &mut SeededRng) -> f64 {
    (0..12).map(|_| draw.uniform()).sum::<f64>() - 6.0
}

fn rows(draw: &mut SeededRng, centres: &[Vec<f64>], of: &[usize], count: usize) -> Rows {
    let classes: Vec<usize> = (0..count).map(|_| of[draw.index(of.len())]).collect();
    let mut row =
        |class: &usize| centres[*class].iter().map(|x| x + approximately_normal(draw)).collect();
    let features = classes.iter().map(&mut row).collect();
    Rows { features, classes }
}

/// Activations of the hidden layer, and the probability of each class.
fn forward(weights: &[f64], features: &[f64]) -> ([f64; HIDDEN], [f64; CLASSES]) {
    let (first, second) = weights.split_at(FEATURES * HIDDEN);
    let (mut hidden, mut scores) = ([0.0; HIDDEN], [0.0; CLASSES]);
    for (x, row) in features.iter().zip(first.chunks_exact(HIDDEN)) {
        hidden.iter_mut().zip(row).for_each(|(sum, weight)| *sum += x * weight);
    }
    hidden.iter_mut().for_each(|sum| *sum = sum.tanh());
    for (x, row) in hidden.iter().zip(second.chunks_exact(CLASSES)) {
        scores.iter_mut().zip(row).for_each(|(sum, weight)| *sum += x * weight);
    }
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - top).exp()).sum();
    scores.iter_mut().for_each(|score| *score = (*score - top).exp() / sum);
    (hidden, scores)
}

fn loss(weights: &[f64], rows: &Rows) -> f64 {
    let of = |(features, class): (&Vec<f64>, &usize)| -forward(weights, features).1[*class].ln();
    rows.features.iter().zip(&rows.classes).map(of).sum::<f64>() / rows.classes.len() as f64
}

/// One gradient step on the mean loss.
fn step(weights: &mut Weights, rows: &Rows) {
    let mut gradient = vec![0.0; weights.len()];
    for (features, class) in rows.features.iter().zip(&rows.classes) {
        let (hidden, mut blame) = forward(weights, features);
        blame[*class] -= 1.0;
        let second = &weights[FEATURES * HIDDEN..];
        for (unit, activation) in hidden.iter().enumerate() {
            let row = &second[unit * CLASSES..(unit + 1) * CLASSES];
            let back: f64 = row.iter().zip(&blame).map(|(weight, blame)| weight * blame).sum();
            let back = back * (1.0 - activation * activation);
            for (feature, x) in features.iter().enumerate() {
                gradient[feature * HIDDEN + unit] += x * back;
            }
            for (class, blame) in blame.iter().enumerate() {
                gradient[FEATURES * HIDDEN + unit * CLASSES + class] += activation * blame;
            }
        }
    }
    let rate = LEARNING_RATE / rows.classes.len() as f64;
    weights.iter_mut().zip(&gradient).for_each(|(weight, slope)| *weight -= rate * slope);
}

impl NetworkRound {
    /// A round of `players` clients with three classes each, after 0 rounds of training for an even
    /// seed and 3 for an odd one.
    fn new(players: usize, seed: u64) -> Self {
        let mut draw = SeededRng::new(seed, 64);
        let centres: Vec<Vec<f64>> = (0..CLASSES)
            .map(|_| (0..FEATURES).map(|_| 0.4 * approximately_normal(&mut draw)).collect())
            .collect();
        let clients: Vec<Rows> = (0..players)
            .map(|_| {
                let held: Vec<usize> = draw.coalition(CLASSES, 3).players().collect();
                rows(&mut draw, &centres, &held, ROWS_OF_CLIENT)
            })
            .collect();
        let all: Vec<usize> = (0..CLASSES).collect();
        let judged = rows(&mut draw, &centres, &all, ROWS_JUDGED);
        let size = FEATURES * HIDDEN + HIDDEN * CLASSES;
        let start: Weights = (0..size).map(|_| 0.15 * approximately_normal(&mut draw)).collect();
        let mut round = Self { start, updates: Vec::new(), judged };
        for _ in 0..=3 * (seed % 2) {
            let moved = round.moved(&Coalition::full(round.updates.len()));
            round.start = moved;
            round.updates = clients.iter().map(|rows| trained(&round.start, rows)).collect();
        }
        round
    }

    fn moved(&self, coalition: &Coalition) -> Weights {
        let mut weights = self.start.clone();
        for player in coalition.players() {
            let share = 1.0 / self.updates.len() as f64;
            let update = &self.updates[player];
            weights.iter_mut().zip(update).for_each(|(weight, delta)| *weight += share * delta);
        }
        weights
    }
}

fn trained(start: &Weights, rows: &Rows) -> Weights {
    let mut weights = start.clone();
    (0..STEPS).for_each(|_| step(&mut weights, rows));
    weights.iter().zip(start).map(|(after, before)| after - before).collect()
}

impl Game for NetworkRound {
    fn players(&self) -> usize {
        self.updates.len()
    }

    fn value(&mut self, coalition: &Coalition) -> Result<f64, GameError> {
        Ok(loss(&self.start, &self.judged) - loss(&self.moved(coalition), &self.judged))
    }
}

/// The median relative error over some rounds, after `passes`.
fn median_miss(players: usize, seeds: std::ops::Range<u64>, passes: u64) -> f64 {
    let ids: Vec<usize> = (0..players).collect();
    let mut misses: Vec<f64> = seeds
        .map(|seed| {
            let mut table = TableGame::from_game(&mut NetworkRound::new(players, seed)).unwrap();
            let right = table.shapley();
            let run = RunOptions::seeded(seed).with_budget(passes);
            let found = value(&OddRegression, &mut table, &ids, run).unwrap();
            let off = found.scores.iter().zip(&right);
            let off: f64 = off.map(|(score, right)| (score.value - right).powi(2)).sum();
            (off / right.iter().map(|right| right * right).sum::<f64>()).sqrt()
        })
        .collect();
    misses.sort_by(f64::total_cmp);
    println!("{players} players, {passes} passes: {misses:.4?}");
    misses[misses.len() / 2]
}

#[test]
fn ten_clients_are_valued_within_one_percent_after_forty_evaluations() {
    assert!(median_miss(10, 0..15, 40) < 0.01);
}

#[test]
fn two_evaluations_per_player_are_within_three_percent() {
    assert!(median_miss(10, 0..6, 20) < 0.03);
}
