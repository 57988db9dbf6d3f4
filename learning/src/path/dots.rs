//! Scalar products of a few updates with many gradients.

use pulp::{Arch, Simd, WithSimd};

use crate::lanes::{BLOCK, LANES, load_blocks, one_by_many, summed};
use crate::parallel::on_threads;

/// Updates that are held against the gradients at a time, so that a gradient is read from memory
/// once for all of them.
pub(super) const UPDATES_AT_A_TIME: usize = 32;

/// `[update][gradient]`, where `gradients` are rows of `width` numbers.
pub(super) fn dots(
    gradients: &[f64],
    width: usize,
    updates: &[Vec<f32>],
    threads: usize,
) -> Vec<Vec<f64>> {
    let lines = gradients.len().checked_div(width).unwrap_or(0);
    let each = lines.div_ceil(threads.max(1)).max(1);
    let tasks: Vec<&[f64]> = gradients.chunks(each * width.max(1)).collect();
    let parts = on_threads(threads, tasks, |gradients| {
        Arch::new().dispatch(Products { gradients, width, updates })
    });
    let mut all = vec![Vec::with_capacity(lines); updates.len()];
    for part in parts {
        for (update, all) in all.iter_mut().enumerate() {
            all.extend(part.iter().skip(update).step_by(updates.len()).map(summed));
        }
    }
    all
}

struct Products<'a> {
    gradients: &'a [f64],
    width: usize,
    updates: &'a [Vec<f32>],
}

impl WithSimd for Products<'_> {
    /// `[gradient][update]`, in lanes.
    type Output = Vec<[f64; LANES]>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        let lines = self.gradients.len() / self.width;
        let updates = self.updates.len();
        let mut lanes = vec![[0.0; LANES]; lines * updates];
        let mut block = vec![0.0; updates * BLOCK];
        for from in (0..self.width).step_by(BLOCK) {
            let size = BLOCK.min(self.width - from);
            load_blocks(&mut block, self.updates.iter().map(Vec::as_slice), from);
            for (line, lanes) in lanes.chunks_exact_mut(updates).enumerate() {
                let own = line * self.width + from;
                let gradient = &self.gradients[own..own + size];
                one_by_many(simd, gradient, &block, lanes);
            }
        }
        lanes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                    assert_eq!(products.len(), lines);
                    for (gradient, &product) in gradients.chunks(width).zip(products) {
                        let terms = update.iter().zip(gradient);
                        let plain: f64 = terms.map(|(&own, g)| f64::from(own) * g).sum();
                        let off = (product - plain).abs();
                        assert!(off < 1e-9, "{width}, {lines}, {count}: {off}");
                    }
                }
                for threads in [2, 3, 7] {
                    assert_eq!(dots(&gradients, width, &updates, threads), products);
                }
                let narrow = Products { gradients: &gradients, width, updates: &updates };
                let narrow = narrow.with_simd(pulp::Scalar::new());
                for (at, lanes) in narrow.iter().enumerate() {
                    assert_eq!(summed(lanes), products[at % count][at / count]);
                }
            }
        }
    }
}
