//! The fit of single players and triples to complementary pairs.
//!
//! The model is `d(z) = Σ_i a_i·z_i + Σ_{|T|=3} a_T·Π_{i∈T} z_i` over signs z (+1 on the side, −1
//! off it), with `d(1, …, 1) = total/2`, and the values are `φ_i = 2·a_i + (2/3)·Σ_{T∋i} a_T`. It
//! minimises `Σ_k w_k·(d_k − d(z_k))² + λ·(Σ_T a_T² + Σ_i a_i²/c)`: a ridge that is tiny on triples
//! and next to nothing on players. The same minimum is reached two ways: over the unknowns, or,
//! where the pairs are fewer, over the pairs, in whose kernel the triples never appear one by one.

use super::weighted::{Fit, Observed, add_scaled, linear_fit};
use crate::linear::{Cholesky, dot};

/// Most equations in one system: 72 MiB, and some seconds.
pub(crate) const SYSTEM_MAX: usize = 3_072;

/// λ: what a triple's square costs against a pair's squared residual.
const RIDGE: f64 = 0.03;

/// c: how much larger players may be than triples before the ridge minds, times n².
const PLAYERS_FREER: f64 = 10.0;

/// The grand pair is without noise; this part of the ridge keeps its equation apart from others.
const GRAND_RIDGE: f64 = 1e-6;

/// Pairs that are turned into features at once.
const BLOCK: usize = 256;

/// Most pairs that the fit takes for so many players: no limit where the unknowns fit a system.
pub(crate) fn pairs_max(players: usize) -> usize {
    if unknowns(players) <= SYSTEM_MAX { usize::MAX } else { SYSTEM_MAX }
}

fn unknowns(players: usize) -> usize {
    let below = |less: usize| players.saturating_sub(less);
    players.saturating_add(players.saturating_mul(below(1)).saturating_mul(below(2)) / 6)
}

fn freedom(players: usize) -> f64 {
    PLAYERS_FREER * (players * players) as f64
}

/// The fit, over whichever of pairs and unknowns are fewer. With all pairs seen the Shapley kernel
/// makes the linear part of this fit the linear fit, so that one is taken, which has no ridge.
pub(crate) fn triple_fit(observed: &Observed<'_>) -> Option<Fit> {
    if observed.is_complete() {
        return linear_fit(observed);
    }
    if observed.sides.len() <= unknowns(observed.players()) {
        over_pairs(observed)
    } else {
        over_unknowns(observed)
    }
}

/// The dual: `α = (K + λ/w)⁻¹·d` with `K(z, z') = c·t + (t³ − (3n − 2)·t)/6`, `t = z·z'`, the second
/// term being the sum over all triples. Errors leave out each pair in closed form: without pair k
/// the values move by `(R·G)_k·α_k/G_kk`, with `G` the inverse and `R` what reads the values off.
fn over_pairs(observed: &Observed<'_>) -> Option<Fit> {
    let players = observed.players();
    let n = players as f64;
    let free = freedom(players);
    let mut signs = observed.signs();
    signs.resize(signs.len() + players, 1.0);
    let size = observed.sides.len() + 1;
    let mut kernel = vec![0.0; size * size];
    let rows: Vec<&[f64]> = signs.chunks_exact(players).collect();
    for (row, sums) in kernel.chunks_exact_mut(size).enumerate() {
        for column in 0..=row {
            let t = dot(rows[row], rows[column]);
            sums[column] = free * t + (t * t * t - (3.0 * n - 2.0) * t) / 6.0;
        }
    }
    for (k, weight) in observed.weights().into_iter().enumerate() {
        kernel[k * size + k] += RIDGE / weight;
    }
    kernel[size * size - 1] += RIDGE * GRAND_RIDGE;
    let factor = Cholesky::of(kernel, size)?;
    let mut wanted = observed.halves.to_vec();
    wanted.push(0.5 * observed.total);
    let alpha = factor.solve(&wanted);

    let readers: Vec<Vec<f64>> = (0..players).map(|player| reader(&rows, player, free)).collect();
    let values = readers.iter().map(|reader| dot(reader, &alpha)).collect();
    let own = factor.inverse_diagonal();
    let unseen = observed.unseen();
    let error = |reader: &Vec<f64>| {
        let moved = factor.solve(reader);
        let moves = (0..unseen.len()).map(|k| (moved[k] * alpha[k] / own[k], unseen[k]));
        moves.map(|(by, unseen)| unseen * by * by).sum::<f64>().sqrt()
    };
    let errors = Some(readers.iter().map(error).collect());
    Some(efficient(Fit { values, errors }, observed.total))
}

/// How much `player`'s value covaries with each row's difference: `2·c·z_i` through the player alone,
/// and `(2/3)·z_i·((D − z_i)² − (n − 1))/2` through its triples, D being the sum of the row.
fn reader(rows: &[&[f64]], player: usize, free: f64) -> Vec<f64> {
    let of = |row: &&[f64]| {
        let sign = row[player];
        let others = row.iter().sum::<f64>() - sign;
        sign * (2.0 * free + (others * others - (row.len() - 1) as f64) / 3.0)
    };
    rows.iter().map(of).collect()
}

/// Spreads what the grand pair's little ridge left over equally.
fn efficient(mut fit: Fit, total: f64) -> Fit {
    let gap = (total - fit.values.iter().sum::<f64>()) / fit.values.len() as f64;
    fit.values.iter_mut().for_each(|value| *value += gap);
    fit
}

/// The primal: the normal equations over players and triples, with the grand pair as a constraint.
/// Errors leave out each pair with the leverage that pairs have on average, unknowns by pairs.
fn over_unknowns(observed: &Observed<'_>) -> Option<Fit> {
    let players = observed.players();
    let size = unknowns(players);
    let (signs, weights) = (observed.signs(), observed.weights());
    let (mut a, mut b) = (vec![0.0; size * size], vec![0.0; size]);
    let blocks = || signs.chunks(BLOCK * players).zip(weights.chunks(BLOCK));
    for ((signs, weights), halves) in blocks().zip(observed.halves.chunks(BLOCK)) {
        let columns = Columns::of(signs, players);
        for row in 0..size {
            let weighted: Vec<f64> =
                columns.column(row).iter().zip(weights).map(|(x, weight)| x * weight).collect();
            b[row] += dot(&weighted, halves);
            for column in 0..=row {
                a[row * size + column] += dot(&weighted, columns.column(column));
            }
        }
    }
    for at in 0..size {
        a[at * size + at] += if at < players { RIDGE / freedom(players) } else { RIDGE };
    }
    let factor = Cholesky::of(a, size)?;
    let along = factor.solve(&vec![1.0; size]);
    let stiffness = along.iter().sum::<f64>();
    let constrained = |mut x: Vec<f64>, sum: f64| {
        let missing = (sum - x.iter().sum::<f64>()) / stiffness;
        add_scaled(&mut x, missing, &along);
        x
    };
    let solution = constrained(factor.solve(&b), 0.5 * observed.total);
    let readers = readers(players, size);
    let values = readers.iter().map(|reader| dot(reader, &solution)).collect();

    let moved: Vec<Vec<f64>> =
        readers.iter().map(|reader| constrained(factor.solve(reader), 0.0)).collect();
    let free = 1.0 - (size - 1) as f64 / observed.sides.len() as f64;
    let unseen = observed.unseen();
    let mut variances = vec![0.0; players];
    for (at, (signs, weights)) in blocks().enumerate() {
        let columns = Columns::of(signs, players);
        let fitted = columns.combine(&solution);
        let moves: Vec<Vec<f64>> = moved.iter().map(|moved| columns.combine(moved)).collect();
        for (k, weight) in weights.iter().enumerate() {
            let pull = weight * (observed.halves[at * BLOCK + k] - fitted[k]) / free;
            for (variance, moves) in variances.iter_mut().zip(&moves) {
                *variance += unseen[at * BLOCK + k] * (pull * moves[k]) * (pull * moves[k]);
            }
        }
    }
    let errors = Some(variances.into_iter().map(f64::sqrt).collect());
    Some(efficient(Fit { values, errors }, observed.total))
}

/// Triples of `0..players`, ascending.
fn triples(players: usize) -> impl Iterator<Item = [usize; 3]> {
    (0..players).flat_map(move |third| {
        (0..third).flat_map(move |second| (0..second).map(move |first| [first, second, third]))
    })
}

/// For each player what its value takes from each unknown: 2 of its own, 2/3 of its triples.
fn readers(players: usize, size: usize) -> Vec<Vec<f64>> {
    let mut readers = vec![vec![0.0; size]; players];
    for (player, reader) in readers.iter_mut().enumerate() {
        reader[player] = 2.0;
    }
    for (at, triple) in triples(players).enumerate() {
        triple.iter().for_each(|&player| readers[player][players + at] = 2.0 / 3.0);
    }
    readers
}

/// The features of some pairs, one column per unknown.
struct Columns {
    length: usize,
    numbers: Vec<f64>,
}

impl Columns {
    fn of(signs: &[f64], players: usize) -> Self {
        let length = signs.len() / players;
        let mut numbers = Vec::with_capacity(unknowns(players) * length);
        for player in 0..players {
            numbers.extend(signs.iter().skip(player).step_by(players));
        }
        for [i, j, l] in triples(players) {
            let of = |row: usize| {
                numbers[i * length + row] * numbers[j * length + row] * numbers[l * length + row]
            };
            let product: Vec<f64> = (0..length).map(of).collect();
            numbers.extend(product);
        }
        Self { length, numbers }
    }

    fn column(&self, at: usize) -> &[f64] {
        &self.numbers[at * self.length..(at + 1) * self.length]
    }

    /// `Σ_j coefficients[j]·column_j`.
    fn combine(&self, coefficients: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; self.length];
        for (at, coefficient) in coefficients.iter().enumerate() {
            add_scaled(&mut sums, *coefficient, self.column(at));
        }
        sums
    }
}
