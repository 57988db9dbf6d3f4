//! Dot products of a few updates with many gradients, and with themselves.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use crate::dot_lanes::{LANES, sum_lanes};
use crate::parallel::parallel_map;

/// Largest number of updates multiplied with the gradients at a time, so that a gradient is read
/// from memory once for all of them.
pub(super) const UPDATES_AT_A_TIME: usize = 32;
/// Size of the micro-kernel: number of updates and of gradients whose products are in registers.
const TILE_UPDATES: usize = 4;
const TILE_GRADIENTS: usize = 3;
/// Number of chunks of eight elements in one cached block.
const BLOCK: usize = 32;
/// Number of elements of a window: a multiple of a block.
const WINDOW: usize = 1 << 20;

/// The dot products of one update.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct UpdateProducts {
    /// Its squared norm, with the same bits as in [`norm`](crate::params::norm).
    pub(super) square: f64,
    /// One for each gradient.
    pub(super) with: Vec<f64>,
}

/// Number of updates to multiply with `lines` gradients at a time. Few gradients are cheap to read
/// again, and few updates are still in the cache when they are multiplied.
pub(super) fn updates_per_batch(lines: usize, threads: usize) -> usize {
    let few = (2 * TILE_UPDATES).saturating_mul(threads.max(1));
    if lines <= TILE_GRADIENTS { few.min(UPDATES_AT_A_TIME) } else { UPDATES_AT_A_TIME }
}

/// The products of each update; `gradients` are rows of `width` numbers. An update is read from
/// memory once. The vectors are read in windows: `release` receives the range of each after its use.
pub(super) fn dot_products<U: AsRef<[f32]> + Sync>(
    gradients: &[f64],
    width: usize,
    updates: &[U],
    threads: usize,
    release: &mut dyn FnMut(Range<usize>),
) -> Vec<UpdateProducts> {
    let lines: Vec<&[f64]> = gradients.chunks(width.max(1)).collect();
    let each = updates.len().div_ceil(threads.max(1)).max(1);
    let parts = updates.chunks(each);
    let mut parts: Vec<(&[U], ProductSums)> =
        parts.map(|updates| (updates, ProductSums::new(updates.len(), lines.len()))).collect();
    for from in (0..width).step_by(WINDOW) {
        let window = from..width.min(from + WINDOW);
        let tasks = parts.iter_mut().collect();
        parallel_map(threads, tasks, |(updates, sums): &mut (&[U], ProductSums)| {
            let updates: Vec<&[f32]> = updates.iter().map(AsRef::as_ref).collect();
            let (lines, updates) = (lines.as_slice(), updates.as_slice());
            let window = window.clone();
            Arch::new().dispatch(GradientTile { lines, window, updates, sums });
        });
        release(window);
    }
    parts.iter().flat_map(|(updates, sums)| sums.products(updates.len(), lines.len())).collect()
}

/// The partial sums of one product: element j of a vector belongs to lane j mod 8.
type Lanes = [f64; LANES];

/// The partial sums of a few updates with a few gradients.
type TileSums = [[Lanes; TILE_GRADIENTS]; TILE_UPDATES];

/// The partial sums of all products of some updates.
struct ProductSums {
    squares: Vec<[Lanes; TILE_UPDATES]>,
    with: Vec<TileSums>,
}

impl ProductSums {
    fn new(updates: usize, lines: usize) -> Self {
        let squares = vec![[[0.0; LANES]; TILE_UPDATES]; updates.div_ceil(TILE_UPDATES)];
        let tiles = squares.len() * lines.div_ceil(TILE_GRADIENTS);
        Self { squares, with: vec![[[[0.0; LANES]; TILE_GRADIENTS]; TILE_UPDATES]; tiles] }
    }

    fn products(&self, updates: usize, lines: usize) -> Vec<UpdateProducts> {
        let few = lines.div_ceil(TILE_GRADIENTS);
        let products = |at: usize| {
            let (tile, place) = (at / TILE_UPDATES, at % TILE_UPDATES);
            let with = self.with[tile * few..][..few].iter().flat_map(|sums| &sums[place]);
            let with = with.take(lines).map(sum_lanes).collect();
            UpdateProducts { square: sum_lanes(&self.squares[tile][place]), with }
        };
        (0..updates).map(products).collect()
    }
}

struct GradientTile<'a> {
    lines: &'a [&'a [f64]],
    /// The elements to multiply; it begins at a multiple of the lanes.
    window: Range<usize>,
    updates: &'a [&'a [f32]],
    sums: &'a mut ProductSums,
}

impl WithSimd for GradientTile<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let few = self.lines.len().div_ceil(TILE_GRADIENTS);
        let ProductSums { squares, with } = self.sums;
        for from in self.window.clone().step_by(BLOCK * LANES) {
            let until = self.window.end.min(from + BLOCK * LANES);
            let updates = self.updates.chunks(TILE_UPDATES).zip(&mut *squares);
            for ((updates, squares), with) in updates.zip(with.chunks_mut(few)) {
                let updates = tile_slices(updates, |update| &update[from..until]);
                for (at, (lines, with)) in self.lines.chunks(TILE_GRADIENTS).zip(with).enumerate() {
                    let lines = tile_slices(lines, |line| &line[from..until]);
                    match at {
                        0 => multiply(updates, lines, with, Some(squares)),
                        _ => multiply(updates, lines, with, None),
                    }
                }
            }
        }
    }
}

/// Slices of `N` vectors; if there are fewer, the last one is repeated, and the extra results are
/// ignored.
#[inline(always)]
fn tile_slices<'a, T, P, const N: usize>(
    all: &'a [T],
    piece: impl Fn(&'a T) -> &'a [P],
) -> [&'a [P]; N] {
    std::array::from_fn(|at| piece(&all[at.min(all.len() - 1)]))
}

/// Adds the products of slices to their sums; all slices but the last have a multiple of eight
/// elements.
#[inline(always)]
fn multiply(
    updates: [&[f32]; TILE_UPDATES],
    lines: [&[f64]; TILE_GRADIENTS],
    with: &mut TileSums,
    squares: Option<&mut [Lanes; TILE_UPDATES]>,
) {
    match squares {
        Some(squares) => multiply_chunks::<true>(updates, lines, with, squares),
        None => multiply_chunks::<false>(updates, lines, with, &mut [[0.0; LANES]; TILE_UPDATES]),
    }
}

#[inline(always)]
fn multiply_chunks<const SQUARES: bool>(
    updates: [&[f32]; TILE_UPDATES],
    lines: [&[f64]; TILE_GRADIENTS],
    with: &mut TileSums,
    squares: &mut [Lanes; TILE_UPDATES],
) {
    let (own, slopes) = (updates.map(chunks_of_eight), lines.map(chunks_of_eight));
    // In local variables, so that they stay in registers.
    let (mut sums, mut own_sums) = (*with, *squares);
    for at in 0..own[0].len() {
        multiply_chunk::<SQUARES>(own, slopes, at, &mut sums, &mut own_sums);
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
fn multiply_chunk<const SQUARES: bool>(
    updates: [&[[f32; LANES]]; TILE_UPDATES],
    lines: [&[[f64; LANES]]; TILE_GRADIENTS],
    at: usize,
    with: &mut TileSums,
    squares: &mut [Lanes; TILE_UPDATES],
) {
    for update in 0..TILE_UPDATES {
        let mut own = [0.0; LANES];
        for lane in 0..LANES {
            own[lane] = f64::from(updates[update][at][lane]);
        }
        if SQUARES {
            for lane in 0..LANES {
                squares[update][lane] = own[lane].mul_add(own[lane], squares[update][lane]);
            }
        }
        for line in 0..TILE_GRADIENTS {
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
fn chunks_of_eight<T>(piece: &[T]) -> &[[T; LANES]] {
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
                let products = dot_products(&gradients, width, &updates, 1, &mut |_| {});
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
                    let found = dot_products(&gradients, width, &updates, threads, &mut |_| {});
                    assert_eq!(found, products);
                }
                let lines: Vec<&[f64]> = gradients.chunks(width).collect();
                let slices: Vec<&[f32]> = updates.iter().map(Vec::as_slice).collect();
                // In two windows.
                let mut sums = ProductSums::new(count, lines.len());
                let middle = width / 2 / LANES * LANES;
                for window in [0..middle, middle..width] {
                    let (lines, updates) = (lines.as_slice(), slices.as_slice());
                    let narrow = GradientTile { lines, window, updates, sums: &mut sums };
                    narrow.with_simd(pulp::Scalar::new());
                }
                assert_eq!(sums.products(count, lines.len()), products);
            }
        }
    }
}
