//! The fit of single players and triples to complementary pairs.
//!
//! The model is `d(z) = Σ_i a_i·z_i + Σ_{|T|=3} a_T·Π_{i∈T} z_i` over signs z (+1 on the side, −1
//! off it), with `d(1, …, 1) = total/2`, and the values are `φ_i = 2·a_i + (2/3)·Σ_{T∋i} a_T`. It
//! minimises `Σ_k w_k·(d_k − d(z_k))² + λ·Σ_T a_T²`: a small ridge penalty on triples, and none on
//! players. The same minimum is computed in two ways: over the unknowns (primal) or, if there are
//! fewer pairs, over the pairs (dual), with a kernel in which the triples never appear one by one.

use super::weighted::{Fit, ObservedPairs, add_scaled, linear_fit};
use crate::linear::{Cholesky, dot};

/// Largest number of equations of one system: 72 MiB, and some seconds.
pub(crate) const SYSTEM_MAX: usize = 3_072;

/// λ: the penalty on a triple's square relative to a pair's squared residual.
const RIDGE: f64 = 0.03;

/// The grand pair has no noise; this part of the ridge keeps its equation independent of the
/// others.
const GRAND_RIDGE: f64 = 1e-6;

/// A pair that alone determines a direction of the fit has no residual to estimate its error from;
/// a pair counts as such if its diagonal entry of P is below this share of the largest.
const SLACK: f64 = 1e-9;

/// Number of pairs that are converted to features at once.
const BLOCK: usize = 256;

/// Largest number of pairs of the fit for `players` players: unlimited if the unknowns fit one
/// system.
pub(crate) fn pairs_max(players: usize) -> usize {
    if unknowns(players) <= SYSTEM_MAX { usize::MAX } else { SYSTEM_MAX }
}

fn unknowns(players: usize) -> usize {
    let below = |less: usize| players.saturating_sub(less);
    players.saturating_add(players.saturating_mul(below(1)).saturating_mul(below(2)) / 6)
}

/// The fit, over the pairs or over the unknowns, whichever are fewer. With all pairs observed, the
/// Shapley kernel makes the linear part of this fit equal to the linear fit; that one is used,
/// since it has no ridge.
pub(crate) fn triple_fit(observed: &ObservedPairs<'_>) -> Option<Fit> {
    if observed.is_complete() {
        return linear_fit(observed);
    }
    if observed.sides.len() <= unknowns(observed.players()) {
        dual_fit(observed)
    } else {
        primal_fit(observed)
    }
}

/// The dual, with unpenalised players: `d(z) = Σ a_i·z_i + Σ_k α_k·K(z, z_k)`, where `K(z, z') =
/// (t³ − (3n − 2)·t)/6`, `t = z·z'`, is the sum over all triples. With `G = (K + λ/w)⁻¹` and Z the
/// signs, `α = P·d` and `a = (Zᵀ·G·Z)⁻¹·Zᵀ·G·d`, where P is G minus its part along Z.
///
/// The errors leave out each pair in closed form: without pair k the values change by their
/// coefficient of `d_k`, times `α_k/P_kk`.
fn dual_fit(observed: &ObservedPairs<'_>) -> Option<Fit> {
    let players = observed.players();
    let mut signs = observed.signs();
    signs.resize(signs.len() + players, 1.0);
    let rows: Vec<&[f64]> = signs.chunks_exact(players).collect();
    let factor = Cholesky::factor(kernel(&rows, &observed.weights()), rows.len())?;
    let mut wanted = observed.half_differences.to_vec();
    wanted.push(0.5 * observed.total);

    let columns: Vec<Vec<f64>> =
        (0..players).map(|player| rows.iter().map(|row| row[player]).collect()).collect();
    let through: Vec<Vec<f64>> = columns.iter().map(|column| factor.solve(column)).collect();
    let inner = columns.iter().flat_map(|one| through.iter().map(|other| dot(one, other)));
    let inner = Cholesky::factor(inner.collect(), players)?;
    // Removes from `x` its part along the players; the result is multiplied by G.
    let apart = |x: &[f64]| {
        let along: Vec<f64> = through.iter().map(|through| dot(through, x)).collect();
        let along = inner.solve(&along);
        let mut rest = factor.solve(x);
        for (through, along) in through.iter().zip(&along) {
            add_scaled(&mut rest, -along, through);
        }
        rest
    };
    let alpha = apart(&wanted);
    let mut own = factor.inverse_diagonal();
    let (mut values, mut variances) = (Vec::new(), Vec::new());
    let directs = linear_coefficients(&through, &inner);
    for (through, direct) in through.iter().zip(&directs) {
        own.iter_mut().zip(through).zip(direct).for_each(|((own, g), direct)| *own -= g * direct);
    }
    let unseen = observed.finite_population_corrections();
    let freest = own.iter().copied().fold(0.0, f64::max);
    let errors_determined = rows.len() > players
        && own.iter().zip(&unseen).all(|(own, unseen)| *unseen == 0.0 || *own > SLACK * freest);
    for (player, direct) in directs.iter().enumerate() {
        let mut coefficients = apart(&kernel_coefficients(&rows, player));
        add_scaled(&mut coefficients, 2.0, direct);
        values.push(dot(&coefficients, &wanted));
        let moves = (0..unseen.len()).map(|k| (coefficients[k] * alpha[k] / own[k], unseen[k]));
        let of_unseen = moves.filter(|(_, unseen)| *unseen > 0.0);
        variances.push(of_unseen.map(|(by, unseen)| unseen * by * by).sum::<f64>());
    }
    let errors = errors_determined.then(|| variances.into_iter().map(f64::sqrt).collect());
    Some(enforce_efficiency(Fit { values, errors }, observed.total))
}

/// Row i of `(Zᵀ·G·Z)⁻¹·Zᵀ·G` from the rows of `Zᵀ·G`: the coefficient of each difference in `a_i`.
fn linear_coefficients(through: &[Vec<f64>], inner: &Cholesky) -> Vec<Vec<f64>> {
    let of = |player: usize| {
        let mut unit = vec![0.0; through.len()];
        unit[player] = 1.0;
        let mut direct = vec![0.0; through[player].len()];
        for (through, share) in through.iter().zip(inner.solve(&unit)) {
            add_scaled(&mut direct, share, through);
        }
        direct
    };
    (0..through.len()).map(of).collect()
}

/// `K + λ/w` by rows (its lower triangle); the last row is the grand pair.
fn kernel(rows: &[&[f64]], weights: &[f64]) -> Vec<f64> {
    let size = rows.len();
    let mut kernel = vec![0.0; size * size];
    for (row, sums) in kernel.chunks_exact_mut(size).enumerate() {
        let slope = 3.0 * rows[row].len() as f64 - 2.0;
        for column in 0..=row {
            let t = dot(rows[row], rows[column]);
            sums[column] = (t * t * t - slope * t) / 6.0;
        }
        sums[row] += weights.get(row).map_or(RIDGE * GRAND_RIDGE, |weight| RIDGE / weight);
    }
    kernel
}

/// The coefficient of each row's kernel in `player`'s value through its triples: `(2/3)·z_i·((D −
/// z_i)² − (n − 1))/2`, with D the sum of the row.
fn kernel_coefficients(rows: &[&[f64]], player: usize) -> Vec<f64> {
    let of = |row: &&[f64]| {
        let sign = row[player];
        let others = row.iter().sum::<f64>() - sign;
        sign * (others * others - (row.len() - 1) as f64) / 3.0
    };
    rows.iter().map(of).collect()
}

/// Distributes the gap that the ridge on the grand pair leaves, equally over the players.
fn enforce_efficiency(mut fit: Fit, total: f64) -> Fit {
    let gap = (total - fit.values.iter().sum::<f64>()) / fit.values.len() as f64;
    fit.values.iter_mut().for_each(|value| *value += gap);
    fit
}

/// The primal: the normal equations over players and triples, with the grand pair as a constraint.
/// The errors leave out each pair with the mean leverage, which is unknowns divided by pairs.
fn primal_fit(observed: &ObservedPairs<'_>) -> Option<Fit> {
    let players = observed.players();
    let size = unknowns(players);
    let (signs, weights) = (observed.signs(), observed.weights());
    let (mut a, mut b) = (vec![0.0; size * size], vec![0.0; size]);
    let blocks = || signs.chunks(BLOCK * players).zip(weights.chunks(BLOCK));
    for ((signs, weights), halves) in blocks().zip(observed.half_differences.chunks(BLOCK)) {
        let columns = FeatureColumns::new(signs, players);
        for row in 0..size {
            let weighted: Vec<f64> =
                columns.column(row).iter().zip(weights).map(|(x, weight)| x * weight).collect();
            b[row] += dot(&weighted, halves);
            for column in 0..=row {
                a[row * size + column] += dot(&weighted, columns.column(column));
            }
        }
    }
    for at in players..size {
        a[at * size + at] += RIDGE;
    }
    let factor = Cholesky::factor(a, size)?;
    let along = factor.solve(&vec![1.0; size]);
    let stiffness = along.iter().sum::<f64>();
    let constrained = |mut x: Vec<f64>, sum: f64| {
        let missing = (sum - x.iter().sum::<f64>()) / stiffness;
        add_scaled(&mut x, missing, &along);
        x
    };
    let solution = constrained(factor.solve(&b), 0.5 * observed.total);
    let readers = value_coefficients(players, size);
    let values = readers.iter().map(|reader| dot(reader, &solution)).collect();

    let moved: Vec<Vec<f64>> =
        readers.iter().map(|reader| constrained(factor.solve(reader), 0.0)).collect();
    let free = 1.0 - (size - 1) as f64 / observed.sides.len() as f64;
    let unseen = observed.finite_population_corrections();
    let mut variances = vec![0.0; players];
    for (at, (signs, weights)) in blocks().enumerate() {
        let columns = FeatureColumns::new(signs, players);
        let fitted = columns.combine(&solution);
        let moves: Vec<Vec<f64>> = moved.iter().map(|moved| columns.combine(moved)).collect();
        for (k, weight) in weights.iter().enumerate() {
            let pull = weight * (observed.half_differences[at * BLOCK + k] - fitted[k]) / free;
            for (variance, moves) in variances.iter_mut().zip(&moves) {
                *variance += unseen[at * BLOCK + k] * (pull * moves[k]) * (pull * moves[k]);
            }
        }
    }
    let errors = Some(variances.into_iter().map(f64::sqrt).collect());
    Some(enforce_efficiency(Fit { values, errors }, observed.total))
}

/// Triples of `0..players`, ascending.
fn triples(players: usize) -> impl Iterator<Item = [usize; 3]> {
    (0..players).flat_map(move |third| {
        (0..third).flat_map(move |second| (0..second).map(move |first| [first, second, third]))
    })
}

/// The coefficients of each player's value: 2 for its own unknown, 2/3 for each of its triples.
fn value_coefficients(players: usize, size: usize) -> Vec<Vec<f64>> {
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
struct FeatureColumns {
    length: usize,
    numbers: Vec<f64>,
}

impl FeatureColumns {
    fn new(signs: &[f64], players: usize) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regression::reference_fit::{self, RandomPairs, assert_close};

    #[test]
    fn dual_fit_and_errors_match_explicit_leave_one_out_fits() {
        for (players, count, seed) in [(4, 5, 1), (5, 9, 2), (6, 14, 3), (7, 30, 4)] {
            let sample = RandomPairs::new(players, count, seed);
            let fit = dual_fit(&sample.observed()).unwrap();
            let plain = reference_fit::fit(&sample.observed(), &[1, 3], RIDGE);
            assert_close(&fit.values, &plain.values, 1e-5);
            assert_close(&fit.errors.unwrap(), &plain.errors.unwrap(), 1e-5);
        }
    }

    #[test]
    fn primal_fit_equals_the_dual_fit_with_similar_errors() {
        for (players, count, seed) in [(6, 30, 1), (7, 60, 2), (8, 110, 3)] {
            let sample = RandomPairs::new(players, count, seed);
            let fit = primal_fit(&sample.observed()).unwrap();
            let other = dual_fit(&sample.observed()).unwrap();
            assert_close(&fit.values, &other.values, 1e-5);
            // The mean leverage replaces each pair's own: the errors are similar, not equal.
            for (error, other) in fit.errors.unwrap().iter().zip(other.errors.unwrap()) {
                assert!((0.4..2.5).contains(&(error / other)), "{error} {other}");
            }
        }
    }

    #[test]
    fn as_many_equations_as_players_give_the_linear_fit_without_errors() {
        let sample = RandomPairs::new(9, 8, 5);
        let fit = dual_fit(&sample.observed()).unwrap();
        assert_close(&fit.values, &linear_fit(&sample.observed()).unwrap().values, 1e-9);
        assert_eq!(fit.errors, None);
    }

    #[test]
    fn unknowns_are_all_players_and_all_triples() {
        assert_eq!((unknowns(1), unknowns(3), unknowns(20)), (1, 4, 1_160));
        assert_eq!(triples(5).count(), 10);
        assert_eq!((pairs_max(26), pairs_max(28)), (usize::MAX, SYSTEM_MAX));
        assert!(unknowns(usize::MAX) > SYSTEM_MAX);
    }
}
