//! Scalar products of a few updates with many gradients.

use pulp::{Arch, Simd, WithSimd};

use crate::lanes::{BLOCK, LANES, load_blocks, one_by_many, squares, summed};
use crate::parallel::on_threads;

/// Updates that are held against the gradients at a time, so that a gradient is read from memory
/// once for all of them.
pub(super) const UPDATES_AT_A_TIME: usize = 32;

/// What an update gives, with itself and with all gradients.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Products {
    /// The square of its length, with the bits of [`norm`](crate::params::norm)'s.
    pub(super) square: f64,
    /// One for each gradient.
    pub(super) with: Vec<f64>,
}

/// Of each update its products, where `gradients` are rows of `width` numbers. An update is read
/// from memory once.
pub(super) fn dots(
    gradients: &[f64],
    width: usize,
    updates: &[Vec<f32>],
    threads: usize,
) -> Vec<Products> {
    let each = updates.len().div_ceil(threads.max(1)).max(1);
    let tasks: Vec<&[Vec<f32>]> = updates.chunks(each).collect();
    let parts = on_threads(threads, tasks, |updates| {
        Arch::new().dispatch(Tile { gradients, width, updates })
    });
    parts.into_iter().flatten().collect()
}

struct Tile<'a> {
    gradients: &'a [f64],
    width: usize,
    updates: &'a [Vec<f32>],
}

impl WithSimd for Tile<'_> {
    type Output = Vec<Products>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        let lines = self.gradients.len().checked_div(self.width).unwrap_or(0);
        let updates = self.updates.len();
        let mut own = vec![[0.0; LANES]; updates];
        let mut with = vec![[0.0; LANES]; lines * updates];
        let mut block = vec![0.0; updates * BLOCK];
        for from in (0..self.width).step_by(BLOCK) {
            let size = BLOCK.min(self.width - from);
            load_blocks(&mut block, self.updates.iter().map(Vec::as_slice), from);
            squares(simd, &block, size, &mut own);
            for (line, lanes) in with.chunks_exact_mut(updates).enumerate() {
                let gradient = &self.gradients[line * self.width + from..][..size];
                one_by_many(simd, gradient, &block, lanes);
            }
        }
        let products = |(update, own): (usize, &[f64; LANES])| Products {
            square: summed(own),
            with: with.iter().skip(update).step_by(updates).map(summed).collect(),
        };
        own.iter().enumerate().map(products).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::norm;

    #[test]
    fn products_are_those_of_the_plain_sum_for_every_remainder_and_any_threads() {
        for width in [1, 7, 8, 130, 300] {
            for (lines, count) in [(1, 1), (5, 3), (11, 6), (3, 32)] {
                let number = |at: usize| ((at * 37 + 11) % 101) as f64 / 7.0 - 6.5;
                let gradients: Vec<f64> = (0..lines * width).map(number).collect();
                let update = |update: usize| -> Vec<f32> {
                    (0..width).map(|at| number(at * 3 + update) as f32).collect()
                };
                let updates: Vec<Vec<f32>> = (0..count).map(update).collect();
                let products = dots(&gradients, width, &updates, 1);
                for (update, products) in updates.iter().zip(&products) {
                    assert_eq!(products.with.len(), lines);
                    assert_eq!(products.square.sqrt().to_bits(), norm(update).to_bits());
                    for (gradient, &product) in gradients.chunks(width).zip(&products.with) {
                        let terms = update.iter().zip(gradient);
                        let plain: f64 = terms.map(|(&own, g)| f64::from(own) * g).sum();
                        let off = (product - plain).abs();
                        assert!(off < 1e-9, "{width}, {lines}, {count}: {off}");
                    }
                }
                for threads in [2, 3, 7] {
                    assert_eq!(dots(&gradients, width, &updates, threads), products);
                }
                let narrow = Tile { gradients: &gradients, width, updates: &updates };
                assert_eq!(narrow.with_simd(pulp::Scalar::new()), products);
            }
        }
    }
}
