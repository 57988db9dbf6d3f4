//! Dot products of a few updates with many gradients, and with themselves.

use pulp::{Arch, Simd, WithSimd};

use crate::lanes::{LANES, summed};
use crate::parallel::on_threads;

/// Largest number of updates multiplied with the gradients at a time, so that a gradient is read
/// from memory once for all of them.
pub(super) const UPDATES_AT_A_TIME: usize = 32;
/// Size of the micro-kernel: number of updates and of gradients whose products are in registers.
const ABREAST: usize = 4;
const LINES: usize = 3;
/// Number of chunks of eight elements in one cached block.
const BLOCK: usize = 32;

/// The dot products of one update.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Products {
    /// Its squared norm, with the same bits as in [`norm`](crate::params::norm).
    pub(super) square: f64,
    /// One for each gradient.
    pub(super) with: Vec<f64>,
}

/// Number of updates to multiply with `lines` gradients at a time. Few gradients are cheap to read
/// again, and few updates are still in the cache when they are multiplied.
pub(super) fn at_a_time(lines: usize, threads: usize) -> usize {
    let few = (2 * ABREAST).saturating_mul(threads.max(1));
    if lines <= LINES { few.min(UPDATES_AT_A_TIME) } else { UPDATES_AT_A_TIME }
}

/// The products of each update; `gradients` are rows of `width` numbers. An update is read from
/// memory once.
pub(super) fn dots(
    gradients: &[f64],
    width: usize,
    updates: &[Vec<f32>],
    threads: usize,
) -> Vec<Products> {
    let lines: Vec<&[f64]> = gradients.chunks(width.max(1)).collect();
    let each = updates.len().div_ceil(threads.max(1)).max(1);
    let parts = on_threads(threads, updates.chunks(each).collect(), |updates| {
        Arch::new().dispatch(Tile { lines: &lines, width, updates })
    });
    parts.into_iter().flatten().collect()
}

/// The partial sums of one product: element j of a vector belongs to lane j mod 8.
type Lanes = [f64; LANES];

/// The partial sums of a few updates with a few gradients.
type Sums = [[Lanes; LINES]; ABREAST];

struct Tile<'a> {
    lines: &'a [&'a [f64]],
    width: usize,
    updates: &'a [Vec<f32>],
}

impl WithSimd for Tile<'_> {
    type Output = Vec<Products>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Self::Output {
        let few = self.lines.len().div_ceil(LINES);
        let mut squares = vec![[[0.0; LANES]; ABREAST]; self.updates.len().div_ceil(ABREAST)];
        let mut with = vec![[[[0.0; LANES]; LINES]; ABREAST]; squares.len() * few];
        for from in (0..self.width).step_by(BLOCK * LANES) {
            let until = self.width.min(from + BLOCK * LANES);
            let updates = self.updates.chunks(ABREAST).zip(&mut squares);
            for ((updates, squares), with) in updates.zip(with.chunks_mut(few)) {
                let updates = abreast(updates, |update| &update[from..until]);
                for (at, (lines, with)) in self.lines.chunks(LINES).zip(with).enumerate() {
                    let lines = abreast(lines, |line| &line[from..until]);
                    match at {
                        0 => multiply(updates, lines, with, Some(squares)),
                        _ => multiply(updates, lines, with, None),
                    }
                }
            }
        }
        let products = |at: usize| {
            let (tile, place) = (at / ABREAST, at % ABREAST);
            let with = with[tile * few..][..few].iter().flat_map(|sums| &sums[place]);
            let with = with.take(self.lines.len()).map(summed).collect();
            Products { square: summed(&squares[tile][place]), with }
        };
        (0..self.updates.len()).map(products).collect()
    }
}

/// Slices of `N` vectors; if there are fewer, the last one is repeated, and the extra results are
/// ignored.
#[inline(always)]
fn abreast<'a, T, P, const N: usize>(
    all: &'a [T],
    piece: impl Fn(&'a T) -> &'a [P],
) -> [&'a [P]; N] {
    std::array::from_fn(|at| piece(&all[at.min(all.len() - 1)]))
}

/// Adds the products of slices to their sums; all slices but the last have a multiple of eight
/// elements.
#[inline(always)]
fn multiply(
    updates: [&[f32]; ABREAST],
    lines: [&[f64]; LINES],
    with: &mut Sums,
    squares: Option<&mut [Lanes; ABREAST]>,
) {
    match squares {
        Some(squares) => eights::<true>(updates, lines, with, squares),
        None => eights::<false>(updates, lines, with, &mut [[0.0; LANES]; ABREAST]),
    }
}

#[inline(always)]
fn eights<const SQUARES: bool>(
    updates: [&[f32]; ABREAST],
    lines: [&[f64]; LINES],
    with: &mut Sums,
    squares: &mut [Lanes; ABREAST],
) {
    let (own, slopes) = (updates.map(eights_of), lines.map(eights_of));
    // // In local variables, so that they stay in registers.
    let (mut sums, mut own_sums) = (*with, *squares);
    for at in 0..own[0].len() {
        eight::<SQUARES>(own, slopes, at, &mut sums, &mut own_sums);
    }
    (*with, *squares) = (sums, own_sums);
    for (update, (with, square)) in updates.iter().zip(with.iter_mut().zip(squares)) {
        let rest = update.as_chunks::<LANES>().1;
        for (lane, own) in rest.iter().map(|&own| f64::from(own)).enumerate() {
            square[lane] = own.mul_add(own, square[lane]);
            for (sums, line) in with.iter_mut().zip(lines) {
                sums[lane] = own.mul_add(line[line.len() - rest.len() + lane], sums[lane]);
            }
        }
    }
}

/// Adds the products of eight elements of each vector. The plain loops over arrays let the compiler
/// use the widest available registers. Multiply-add is fused on every machine; the square of an
/// `f32` is exact in `f64` in any case.
#[inline(always)]
fn eight<const SQUARES: bool>(
    updates: [&[[f32; LANES]]; ABREAST],
    lines: [&[[f64; LANES]]; LINES],
    at: usize,
    with: &mut Sums,
    squares: &mut [Lanes; ABREAST],
) {
    for update in 0..ABREAST {
        let mut own = [0.0; LANES];
        for lane in 0..LANES {
            own[lane] = f64::from(updates[update][at][lane]);
        }
        if SQUARES {
            for lane in 0..LANES {
                squares[update][lane] = own[lane].mul_add(own[lane], squares[update][lane]);
            }
        }
        for line in 0..LINES {
            let slopes = &lines[line][at];
            for lane in 0..LANES {
                with[update][line][lane] =
                    own[lane].mul_add(slopes[lane], with[update][line][lane]);
            }
        }
    }
}

/// The complete chunks of eight elements of a slice.
#[inline(always)]
fn eights_of<T>(piece: &[T]) -> &[[T; LANES]] {
    piece.as_chunks().0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::norm;

    #[test]
    fn products_match_the_reference_sum_with_any_threads() {
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
                let lines: Vec<&[f64]> = gradients.chunks(width).collect();
                let narrow = Tile { lines: &lines, width, updates: &updates };
                assert_eq!(narrow.with_simd(pulp::Scalar::new()), products);
            }
        }
    }
}
