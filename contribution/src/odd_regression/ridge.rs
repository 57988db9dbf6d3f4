//! Kernel ridge regression of one part of a game: an unpenalised part (linear, or the mean), and
//! the interactions under a kernel's prior.
//!
//! With M = K + noise and the unpenalised part's columns H, the fit is `β = (HᵀM⁻¹H)⁻¹HᵀM⁻¹d` and
//! `α = A·d` with `A = M⁻¹ − M⁻¹H(HᵀM⁻¹H)⁻¹HᵀM⁻¹`. The leave-one-out residual of pair k is
//! `α_k/A_kk`. A game in the span of H is fitted exactly under any kernel.

use super::kernel::{GamePart, GramMatrix, sign_dot, sign_of};
use crate::Coalition;
use crate::linear::{Cholesky, dot};
use crate::regression::weighted::add_scaled;

/// The prior variance that approximates "unpenalised" during model selection: so large that the
/// bias of the unpenalised part is far below a thousandth of any residual.
const UNPENALISED_VARIANCE: f64 = 1e6;

/// The grand pair is not sampled: its noise is this share of the others'.
const GRAND_SHARE: f64 = 1e-3;

/// If the predictive variance of a pair exceeds the kernel's own variance by this factor, the pair
/// alone determines an unpenalised direction, and it does not enter the comparison of models.
const UNCERTAIN_MAX: f64 = 1e3;

/// The leave-one-out result of a model.
pub(crate) struct LeaveOneOutResult {
    /// Root mean square of the residuals, each pair predicted from all others.
    pub(crate) rmse: f64,
    /// `(M + free·HHᵀ)⁻¹·d`.
    pub(crate) alpha: Vec<f64>,
}

/// `H·Hᵀ·FREE` over the sides, by rows.
pub(crate) fn unpenalised_gram(part: GamePart, sides: &[Coalition]) -> Vec<f64> {
    let n = sides[0].universe() as f64;
    let mut free = Vec::with_capacity(sides.len() * sides.len());
    for a in sides {
        free.extend(sides.iter().map(|b| match part {
            GamePart::Odd => UNPENALISED_VARIANCE * sign_dot(a, b) / n,
            GamePart::Even => UNPENALISED_VARIANCE,
        }));
    }
    free
}

/// The values of the linear part under `alpha`: `2·β_i`.
pub(crate) fn unpenalised_values(sides: &[Coalition], alpha: &[f64]) -> Vec<f64> {
    let players = sides[0].universe();
    let value = |player: usize| -> f64 {
        sides.iter().zip(alpha).map(|(side, alpha)| sign_of(side, player) * alpha).sum()
    };
    (0..players).map(|player| 2.0 * UNPENALISED_VARIANCE / players as f64 * value(player)).collect()
}

/// Computes the leave-one-out error of a kernel with a noise level; without a kernel, of the
/// unpenalised part alone. The grand pair is the first one and is not predicted. `None` if the
/// system is singular.
pub(crate) fn leave_one_out_error(
    gram: Option<&GramMatrix>,
    noise: f64,
    free: &[f64],
    data: &[f64],
) -> Option<LeaveOneOutResult> {
    let m = data.len();
    let mut a = free.to_vec();
    if let Some(gram) = gram {
        add_scaled(&mut a, 1.0, &gram.matrix);
    }
    add_noise(&mut a, m, noise);
    let factor = Cholesky::factor(a, m)?;
    let alpha = factor.solve(data);
    let inverse = factor.inverse_diagonal();
    let (mut squares, mut predicted) = (0.0, 0_u32);
    let uncertain = UNCERTAIN_MAX * f64::max(noise, if gram.is_some() { 1.0 } else { 0.0 });
    for (alpha, inverse) in alpha.iter().zip(&inverse).skip(1) {
        if inverse * uncertain > 1.0 {
            squares += (alpha / inverse) * (alpha / inverse);
            predicted += 1;
        }
    }
    let miss = (squares / f64::from(predicted)).sqrt();
    miss.is_finite().then_some(LeaveOneOutResult { rmse: miss, alpha })
}

fn add_noise(a: &mut [f64], m: usize, noise: f64) {
    a[0] += GRAND_SHARE * noise;
    (1..m).for_each(|k| a[k * m + k] += noise);
}

/// A fit of the odd part, with closed forms for leaving pairs out.
pub(crate) struct OddFit {
    players: usize,
    /// The linear part, one coefficient per player.
    beta: Vec<f64>,
    alpha: Vec<f64>,
    /// `L⁻¹` of `M = L·Lᵀ`, by rows.
    inverse_lower: Vec<f64>,
    /// `A = M⁻¹ − UᵀU`; U by rows of one number per pair.
    u: Vec<f64>,
    /// `β = Bᵀ·d`; B by players, rows of one number per pair.
    b: Vec<f64>,
}

impl OddFit {
    /// Fits `data`, one number per side. `None` if the sides do not determine the fit.
    pub(crate) fn new(
        gram: &GramMatrix,
        noise: f64,
        sides: &[Coalition],
        data: &[f64],
    ) -> Option<Self> {
        let (m, players) = (sides.len(), sides[0].universe());
        let mut a = gram.matrix.clone();
        add_noise(&mut a, m, noise);
        let inverse_lower = Cholesky::factor(a, m)?.inverse_lower();
        let row = |k: usize| &inverse_lower[k * m..k * m + k + 1];
        let whitened = |column: &[f64]| (0..m).map(|k| dot(row(k), column)).collect::<Vec<f64>>();
        let column = |player| sides.iter().map(|side| sign_of(side, player)).collect::<Vec<f64>>();
        let flat: Vec<Vec<f64>> = (0..players).map(|player| whitened(&column(player))).collect();
        let mut rest = whitened(data);

        let mut g = vec![0.0; players * players];
        for (i, one) in flat.iter().enumerate() {
            flat[..=i]
                .iter()
                .enumerate()
                .for_each(|(j, other)| g[i * players + j] = dot(one, other));
        }
        let factor = Cholesky::factor(g, players)?;
        let seen: Vec<f64> = flat.iter().map(|one| dot(one, &rest)).collect();
        let beta = factor.solve(&seen);
        flat.iter().zip(&beta).for_each(|(one, beta)| add_scaled(&mut rest, -beta, one));

        // U = chol(G)⁻¹·Hᵀ·M⁻¹, and B = chol(G)⁻ᵀ·U.
        let root = factor.inverse_lower();
        let (mut u, mut b) = (vec![0.0; players * m], vec![0.0; players * m]);
        let mut alpha = vec![0.0; m];
        let mut straight = vec![0.0; players * m];
        for k in 0..m {
            add_scaled(&mut alpha, rest[k], row(k));
            for (one, sums) in flat.iter().zip(straight.chunks_exact_mut(m)) {
                add_scaled(sums, one[k], row(k));
            }
        }
        for i in 0..players {
            for j in 0..=i {
                let (u, root) = (&mut u[i * m..(i + 1) * m], root[i * players + j]);
                add_scaled(u, root, &straight[j * m..(j + 1) * m]);
            }
            for j in 0..=i {
                let (b, root) = (&mut b[j * m..(j + 1) * m], root[i * players + j]);
                add_scaled(b, root, &u[i * m..(i + 1) * m]);
            }
        }
        Some(Self { players, beta, alpha, inverse_lower, u, b })
    }

    /// The values: twice the linear part, and the contribution of the interactions by `read_out` (a
    /// row of values per side).
    pub(crate) fn values(&self, read_out: &[f64]) -> Vec<f64> {
        let mut values: Vec<f64> = self.beta.iter().map(|beta| 2.0 * beta).collect();
        for (alpha, row) in self.alpha.iter().zip(read_out.chunks_exact(self.players)) {
            add_scaled(&mut values, *alpha, row);
        }
        values
    }

    /// The prediction for `side`, whose kernel to the sides is `row`.
    pub(crate) fn predict(&self, side: &Coalition, row: &[f64]) -> f64 {
        let flat: f64 = self.beta.iter().enumerate().map(|(i, beta)| beta * sign_of(side, i)).sum();
        flat + dot(row, &self.alpha)
    }

    /// The entries of `A` between the sides of `group`, by rows.
    fn block(&self, group: &[usize]) -> Vec<f64> {
        let m = self.alpha.len();
        let mut block = vec![0.0; group.len() * group.len()];
        let mut add = |of: &[f64], sign: f64| {
            let picked: Vec<f64> = group.iter().map(|&k| of[k]).collect();
            for (row, x) in block.chunks_exact_mut(group.len()).zip(&picked) {
                add_scaled(row, sign * x, &picked);
            }
        };
        self.inverse_lower.chunks_exact(m).for_each(|row| add(row, 1.0));
        self.u.chunks_exact(m).for_each(|row| add(row, -1.0));
        block
    }

    /// The residuals of the sides in `group` when all of them are left out. `None` if the others do
    /// not determine the fit.
    pub(crate) fn leave_out_residuals(&self, group: &[usize]) -> Option<Vec<f64>> {
        let block = self.block(group);
        let factor = Cholesky::factor(block, group.len())?;
        Some(factor.solve(&group.iter().map(|&k| self.alpha[k]).collect::<Vec<f64>>()))
    }

    /// The sensitivity of the values to each side's datum: for each player a row of one number per
    /// side.
    pub(crate) fn sensitivities(&self, read_out: &[f64]) -> Vec<f64> {
        let (m, players) = (self.alpha.len(), self.players);
        let mut responses: Vec<f64> = self.b.iter().map(|b| 2.0 * b).collect();
        for (player, response) in responses.chunks_exact_mut(m).enumerate() {
            let column: Vec<f64> = read_out.chunks_exact(players).map(|row| row[player]).collect();
            for (k, row) in self.inverse_lower.chunks_exact(m).enumerate() {
                let known = dot(&row[..=k], &column[..=k]);
                add_scaled(&mut response[..=k], known, &row[..=k]);
            }
            for row in self.u.chunks_exact(m) {
                add_scaled(response, -dot(row, &column), row);
            }
        }
        responses
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::{InteractionKernel, ProductKernel};
    use super::*;
    use crate::complementary_pairs::{InitialPairs, PairSampler};

    const PLAYERS: usize = 6;
    const NOISE: f64 = 0.01;

    fn sample(pairs: usize) -> (Vec<Coalition>, Vec<f64>) {
        let mut sides = vec![Coalition::full(PLAYERS)];
        sides.extend(PairSampler::new(PLAYERS, 5, InitialPairs::Singles).take(pairs));
        let mut draw = crate::SeededRng::new(17, 0);
        let data = sides.iter().map(|_| draw.uniform() - 0.5).collect();
        (sides, data)
    }

    fn kernels() -> [InteractionKernel; 2] {
        let scales = vec![vec![0.9, 0.2, 0.5, 0.1, 0.7, 0.4], vec![0.1, 0.1, 0.6, 0.3, 0.2, 0.8]];
        [InteractionKernel::Uniform, InteractionKernel::Products(ProductKernel::new(scales))]
    }

    /// The fit without `group`, at the same scale.
    fn without(
        kernel: &InteractionKernel,
        group: &[usize],
        sides: &[Coalition],
        data: &[f64],
    ) -> (OddFit, Vec<Coalition>) {
        let remaining = (0..sides.len()).filter(|k| !group.contains(k));
        let (sides, data): (Vec<Coalition>, Vec<f64>) =
            remaining.map(|k| (sides[k].clone(), data[k])).unzip();
        let gram = kernel.gram(GamePart::Odd, &sides).unwrap();
        (OddFit::new(&gram, NOISE, &sides, &data).unwrap(), sides)
    }

    fn assert_close(ours: f64, plain: f64) {
        assert!((ours - plain).abs() < 1e-9 * (1.0 + plain.abs()), "{ours}, {plain}");
    }

    #[test]
    fn closed_form_leave_out_equals_refitting_without_the_group() {
        let (sides, data) = sample(20);
        for kernel in kernels() {
            let gram = kernel.gram(GamePart::Odd, &sides).unwrap();
            let fit = OddFit::new(&gram, NOISE, &sides, &data).unwrap();
            let read_out = kernel.shapley_values(&sides, gram.scale);
            let (values, responses) = (fit.values(&read_out), fit.sensitivities(&read_out));
            for group in [vec![3], vec![1, 8, 15], vec![2, 9, 16, 20]] {
                let (again, remaining) = without(&kernel, &group, &sides, &data);
                let misses = fit.leave_out_residuals(&group).unwrap();
                for (&k, miss) in group.iter().zip(&misses) {
                    let row = kernel.row(&sides[k], &remaining, gram.scale);
                    assert_close(*miss, data[k] - again.predict(&sides[k], &row));
                }
                let plain = again.values(&kernel.shapley_values(&remaining, gram.scale));
                for (player, response) in responses.chunks_exact(sides.len()).enumerate() {
                    let moved: f64 =
                        group.iter().zip(&misses).map(|(&k, miss)| response[k] * miss).sum();
                    assert_close(values[player] - moved, plain[player]);
                }
            }
        }
    }

    #[test]
    fn leave_one_out_error_matches_fits_without_each_pair() {
        let (sides, data) = sample(20);
        let free = unpenalised_gram(GamePart::Odd, &sides);
        for kernel in kernels() {
            let gram = kernel.gram(GamePart::Odd, &sides).unwrap();
            let trial = leave_one_out_error(Some(&gram), NOISE, &free, &data).unwrap();
            let fit = OddFit::new(&gram, NOISE, &sides, &data).unwrap();
            let squares: f64 =
                (1..=20).map(|k| fit.leave_out_residuals(&[k]).unwrap()[0].powi(2)).sum();
            let plain = (squares / 20.0).sqrt();
            assert!((trial.rmse / plain - 1.0).abs() < 1e-4, "{} {plain}", trial.rmse);
        }
    }

    #[test]
    fn an_additive_game_is_fitted_exactly_under_any_kernel() {
        let (sides, _) = sample(9);
        let worth = |side: &Coalition| -> f64 {
            (0..PLAYERS).map(|player| (player + 1) as f64 * sign_of(side, player)).sum()
        };
        let data: Vec<f64> = sides.iter().map(worth).collect();
        for kernel in kernels() {
            let gram = kernel.gram(GamePart::Odd, &sides).unwrap();
            let fit = OddFit::new(&gram, NOISE, &sides, &data).unwrap();
            let values = fit.values(&kernel.shapley_values(&sides, gram.scale));
            values
                .iter()
                .enumerate()
                .for_each(|(i, value)| assert_close(*value, 2.0 * (i + 1) as f64));
        }
    }
}
