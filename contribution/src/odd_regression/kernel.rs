//! Kernels over coalitions: priors of a game's interactions of three and more players.
//!
//! A game is a sum of products of signs, `v(z) = Σ_T a_T·Π_{i∈T} z_i` with z_i = +1 in and −1 out.
//! A kernel `K(z, z') = Σ_T w_T·Π_{i∈T} z_i·z'_i` is a prior with variance w_T of each a_T. Only
//! products of an odd number of players affect the Shapley value, `φ_i = Σ_{T∋i, |T| odd}
//! 2·a_T/|T|`; those of an even number reveal which players interact.

use crate::{Coalition, quadrature};

/// Quadrature nodes of the integral for the Shapley values. It is exact up to 16 players and nearly
/// exact beyond, since interactions of very many players have small weight.
const NODES: usize = 8;

/// Number of values of one byte of a coalition.
const BYTE: usize = 256;

/// The prior of the interactions.
pub(crate) enum InteractionKernel {
    /// Interactions of two (even part) and of three players (odd part), all with the same variance.
    Uniform,
    /// Variances are products of the players' scales.
    Products(ProductKernel),
}

/// `Σ_r Π_i (1 + τ_ri·z_i·z'_i)`: in each term r, the variance of an interaction is the product of
/// its players' scales.
pub(crate) struct ProductKernel {
    scales: Vec<Vec<f64>>,
    /// The factors of eight players at once: `[group of eight][byte of z ⊕ z'][term]`.
    factors: Vec<f64>,
    /// `Σ_r Σ_i τ_ri·z_i·z'_i` of eight players at once: `[group of eight][byte]`.
    singles: Vec<f64>,
}

/// The half of a game that a kernel models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GamePart {
    /// `(v(S) − v(Sᶜ))/2`, beyond its linear part.
    Odd,
    /// `(v(S) + v(Sᶜ))/2`, beyond its mean.
    Even,
}

impl ProductKernel {
    /// The kernel of these scales, `[term][player]`, each in `0..1`.
    pub(crate) fn new(scales: Vec<Vec<f64>>) -> Self {
        let (players, terms) = (scales.first().map_or(0, Vec::len), scales.len());
        let mut factors = Vec::with_capacity(players.div_ceil(8) * BYTE * terms);
        let mut singles = Vec::with_capacity(players.div_ceil(8) * BYTE);
        for first in (0..players).step_by(8) {
            let (from, from_single) = (factors.len(), singles.len());
            factors.resize(from + terms, 1.0);
            singles.push(0.0);
            // Each player doubles the table: one half where the signs agree, and one where they
            // differ.
            for player in first..first + 8 {
                let scale = |term: &Vec<f64>| term.get(player).copied().unwrap_or(0.0);
                let taus: Vec<f64> = scales.iter().map(scale).collect();
                let sum: f64 = taus.iter().sum();
                let until = factors.len();
                factors.extend_from_within(from..until);
                let (agree, differ) = factors[from..].split_at_mut(until - from);
                let rows = agree.chunks_exact_mut(terms).zip(differ.chunks_exact_mut(terms));
                for (agree, differ) in rows {
                    for ((agree, differ), tau) in agree.iter_mut().zip(differ).zip(&taus) {
                        *agree *= 1.0 + tau;
                        *differ *= 1.0 - tau;
                    }
                }
                let until = singles.len();
                singles.extend_from_within(from_single..until);
                singles[from_single..until].iter_mut().for_each(|single| *single += sum);
                singles[until..].iter_mut().for_each(|single| *single -= sum);
            }
        }
        Self { scales, factors, singles }
    }

    /// `K(z, z')` of one part; `products` is scratch space for two numbers per term.
    fn of(&self, part: GamePart, a: &Coalition, b: &Coalition, products: &mut [f64]) -> f64 {
        let terms = self.scales.len();
        products.fill(1.0);
        let (same, opposite) = products.split_at_mut(terms);
        let mut single = 0.0;
        for eight in 0..self.singles.len() / BYTE {
            let word = a.words()[eight / 8] ^ b.words()[eight / 8];
            let byte = (word >> (8 * (eight % 8))) as usize % BYTE;
            let at = |byte: usize| &self.factors[(eight * BYTE + byte) * terms..][..terms];
            let pairs = at(byte).iter().zip(at(BYTE - 1 - byte));
            for ((same, opposite), (factor, turned)) in
                same.iter_mut().zip(opposite.iter_mut()).zip(pairs)
            {
                *same *= factor;
                *opposite *= turned;
            }
            single += self.singles[eight * BYTE + byte];
        }
        let (same, opposite) = (same.iter().sum::<f64>(), opposite.iter().sum::<f64>());
        match part {
            GamePart::Odd => 0.5 * (same - opposite) - single,
            GamePart::Even => 0.5 * (same + opposite) - terms as f64,
        }
    }

    /// `Σ_r τ_ri·τ_rj`, by rows: the prior variance of each pairwise interaction.
    pub(crate) fn pairwise_variances(&self, players: usize) -> Vec<f64> {
        let mut twos = vec![0.0; players * players];
        for term in &self.scales {
            for (i, row) in twos.chunks_exact_mut(players).enumerate() {
                crate::regression::weighted::add_scaled(row, term[i], term);
            }
        }
        twos
    }
}

/// The Gram matrix of a kernel over coalitions, and the factor that normalised its diagonal to 1.
pub(crate) struct GramMatrix {
    /// By rows; only the lower triangle is filled.
    pub(crate) matrix: Vec<f64>,
    pub(crate) scale: f64,
}

impl InteractionKernel {
    fn of(&self, part: GamePart, a: &Coalition, b: &Coalition, products: &mut [f64]) -> f64 {
        match self {
            Self::Uniform => {
                let n = a.universe() as f64;
                let t = sign_dot(a, b);
                match part {
                    GamePart::Odd => (t * t * t - (3.0 * n - 2.0) * t) / 6.0,
                    GamePart::Even => (t * t - n) / 2.0,
                }
            }
            Self::Products(kernel) => kernel.of(part, a, b, products),
        }
    }

    /// Scratch space for [`of`](Self::of).
    fn scratch(&self) -> Vec<f64> {
        match self {
            Self::Uniform => Vec::new(),
            Self::Products(kernel) => vec![1.0; 2 * kernel.scales.len()],
        }
    }

    /// The Gram matrix over `sides`. `None` if the kernel is zero.
    pub(crate) fn gram(&self, part: GamePart, sides: &[Coalition]) -> Option<GramMatrix> {
        let mut room = self.scratch();
        let alone = self.of(part, &sides[0], &sides[0], &mut room);
        let scale = 1.0 / alone;
        if !(alone > 0.0 && scale.is_finite()) {
            return None;
        }
        let mut matrix = vec![0.0; sides.len() * sides.len()];
        for (k, row) in matrix.chunks_exact_mut(sides.len()).enumerate() {
            for (entry, other) in row[..=k].iter_mut().zip(sides) {
                *entry = scale * self.of(part, &sides[k], other, &mut room);
            }
        }
        Some(GramMatrix { matrix, scale })
    }

    /// The odd kernel between `of` and each of `sides`, times `scale`.
    pub(crate) fn row(&self, of: &Coalition, sides: &[Coalition], scale: f64) -> Vec<f64> {
        let mut room = self.scratch();
        sides.iter().map(|side| scale * self.of(GamePart::Odd, of, side, &mut room)).collect()
    }

    /// The Shapley values of the game `z ↦ scale·K(z, side)` (odd part), for each of `sides`.
    pub(crate) fn shapley_values(&self, sides: &[Coalition], scale: f64) -> Vec<f64> {
        let players = sides[0].universe();
        let mut values = vec![0.0; sides.len() * players];
        let mut signs = vec![0.0; players];
        for (side, row) in sides.iter().zip(values.chunks_exact_mut(players)) {
            signs.iter_mut().enumerate().for_each(|(player, sign)| *sign = sign_of(side, player));
            match self {
                Self::Uniform => add_triple_values(&signs, scale, row),
                Self::Products(kernel) => {
                    kernel
                        .scales
                        .iter()
                        .for_each(|term| add_product_values(term, &signs, scale, row));
                }
            }
        }
        values
    }
}

/// The sign of `player`: +1 on the side, −1 off it.
pub(crate) fn sign_of(side: &Coalition, player: usize) -> f64 {
    if side.contains(player) { 1.0 } else { -1.0 }
}

/// The dot product of the sign vectors, `Σ_i z_i·z'_i`.
pub(crate) fn sign_dot(a: &Coalition, b: &Coalition) -> f64 {
    let words = a.words().iter().zip(b.words());
    let differ: u32 = words.map(|(a, b)| (a ^ b).count_ones()).sum();
    a.universe() as f64 - 2.0 * f64::from(differ)
}

/// Adds the values of the uniform kernel. A player gets two thirds of every product of three that
/// contains it: `z_i·((D − z_i)² − (n − 1))/2` of them, with D the sum of all signs.
fn add_triple_values(signs: &[f64], scale: f64, values: &mut [f64]) {
    let sum: f64 = signs.iter().sum();
    let others = signs.len() as f64 - 1.0;
    for (value, sign) in values.iter_mut().zip(signs) {
        let rest = sum - sign;
        *value += scale * sign * (rest * rest - others) / 3.0;
    }
}

/// Adds the values of one product term: `2·τ_i·z_i·∫₀¹ ½[Π_{j≠i}(1 + sτ_jz_j) + Π_{j≠i}(1 −
/// sτ_jz_j)] ds`, minus its linear part.
fn add_product_values(scales: &[f64], signs: &[f64], scale: f64, values: &mut [f64]) {
    let rule = quadrature::gauss_legendre(NODES).expect("8 is within 1..=MAX_NODES");
    for &(node, weight) in rule {
        let (mut with, mut against) = (1.0, 1.0);
        for (tau, sign) in scales.iter().zip(signs) {
            with *= 1.0 + node * tau * sign;
            against *= 1.0 - node * tau * sign;
        }
        for ((value, tau), sign) in values.iter_mut().zip(scales).zip(signs) {
            let own = tau * sign;
            let half = 0.5 * (with / (1.0 + node * own) + against / (1.0 - node * own));
            *value += scale * weight * 2.0 * own * (half - 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::games::TableGame;

    const PLAYERS: usize = 5;

    fn all() -> Vec<Coalition> {
        (0..1 << PLAYERS).map(|mask| Coalition::from_mask(PLAYERS, mask)).collect()
    }

    fn kernels() -> Vec<(InteractionKernel, Vec<Vec<f64>>)> {
        let scales = vec![vec![0.9, 0.2, 0.5, 0.1, 0.7], vec![0.1, 0.1, 0.6, 0.3, 0.2]];
        let products = InteractionKernel::Products(ProductKernel::new(scales.clone()));
        vec![(InteractionKernel::Uniform, Vec::new()), (products, scales)]
    }

    /// The definition: the sum over sets of players, by the parity of their sizes.
    fn plain(scales: &[Vec<f64>], part: GamePart, a: &Coalition, b: &Coalition) -> f64 {
        all()
            .iter()
            .filter(|set| match (part, scales.is_empty()) {
                (GamePart::Odd, true) => set.len() == 3,
                (GamePart::Even, true) => set.len() == 2,
                (GamePart::Odd, false) => set.len() % 2 == 1 && set.len() > 1,
                (GamePart::Even, false) => set.len() % 2 == 0 && !set.is_empty(),
            })
            .map(|set| {
                let signs: f64 = set.players().map(|i| sign_of(a, i) * sign_of(b, i)).product();
                let weight = |term: &Vec<f64>| set.players().map(|i| term[i]).product::<f64>();
                let all = if scales.is_empty() { 1.0 } else { scales.iter().map(weight).sum() };
                signs * all
            })
            .sum()
    }

    #[test]
    fn kernels_equal_their_sums_over_sets_of_players() {
        for (kernel, scales) in kernels() {
            for part in [GamePart::Odd, GamePart::Even] {
                let gram = kernel.gram(part, &all()).unwrap();
                for (i, a) in all().iter().enumerate() {
                    for (j, b) in all().iter().enumerate().take(i + 1) {
                        let right = plain(&scales, part, a, b) * gram.scale;
                        assert!(
                            (gram.matrix[i * 32 + j] - right).abs() < 1e-12,
                            "{a} {b} {part:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn closed_form_values_equal_the_shapley_values_of_the_kernel_as_a_game() {
        for (kernel, _) in kernels() {
            let read = kernel.shapley_values(&all(), 0.3);
            for (side, read) in all().iter().zip(read.chunks_exact(PLAYERS)) {
                let worths = kernel.row(side, &all(), 0.3);
                let right = TableGame::new(PLAYERS, worths).unwrap().shapley();
                assert!(read.iter().zip(&right).all(|(a, b)| (a - b).abs() < 1e-12), "{side}");
            }
        }
    }

    #[test]
    fn two_players_have_no_interactions_of_three() {
        assert!(InteractionKernel::Uniform.gram(GamePart::Odd, &[Coalition::full(2)]).is_none());
    }
}
