//! Micro-kernel of the dot products between the vectors of a tile, blocked so that it is bound by
//! arithmetic and not by memory bandwidth.
//!
//! The lanes are those of [`crate::dot_lanes`]. The product of two `f32` numbers is exact in `f64`, so
//! that fused and separate multiply-add give the same bits, and the kernel may use either.

use pulp::{Simd, WithSimd};

use crate::dot_lanes::{BLOCK, LANES, load_blocks, sum_lanes};

/// The dot products of `rows` with `columns`, all vectors of one length: `[row][column]`.
pub(crate) struct TileProducts<'a> {
    pub(crate) rows: &'a [&'a [f32]],
    pub(crate) columns: &'a [&'a [f32]],
    /// Whether the columns are the rows. Entries below the diagonal are then not needed and may be
    /// zero.
    pub(crate) symmetric: bool,
}

impl WithSimd for TileProducts<'_> {
    type Output = Vec<f64>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        let (rows, columns) = (self.rows.len(), self.columns.len());
        let width = self.rows.first().map_or(0, |row| row.len());
        let mut lanes = vec![[0.0; LANES]; rows * columns];
        let (mut own, mut others) = (vec![0.0; rows * BLOCK], vec![0.0; columns * BLOCK]);
        for from in (0..width).step_by(BLOCK) {
            load_blocks(&mut own, self.rows.iter().copied(), from);
            let others = if self.symmetric {
                &own
            } else {
                load_blocks(&mut others, self.columns.iter().copied(), from);
                &others
            };
            let size = BLOCK.min(width - from);
            let block = CachedBlock { own: &own, others, size, symmetric: self.symmetric };
            match S::F64_LANES {
                8 => block.multiply_tile::<S, 4, 4, 1>(simd, &mut lanes),
                4 => block.multiply_tile::<S, 2, 2, 2>(simd, &mut lanes),
                2 => block.multiply_tile::<S, 1, 2, 4>(simd, &mut lanes),
                _ => block.multiply_tile::<S, 1, 1, 8>(simd, &mut lanes),
            }
        }
        lanes.iter().map(sum_lanes).collect()
    }
}

/// One cached block of all vectors: [`BLOCK`] elements of each, of which `size` are valid.
struct CachedBlock<'a> {
    own: &'a [f64],
    others: &'a [f64],
    size: usize,
    symmetric: bool,
}

impl CachedBlock<'_> {
    /// Adds all products of the block to their lanes, in tiles of `K` rows by `U` columns; `V`
    /// registers contain eight lanes.
    #[inline(always)]
    fn multiply_tile<S: Simd, const K: usize, const U: usize, const V: usize>(
        &self,
        simd: S,
        lanes: &mut [[f64; LANES]],
    ) {
        let (rows, columns) = (self.own.len() / BLOCK, self.others.len() / BLOCK);
        let mut row = 0;
        while row < rows {
            let first = if self.symmetric { row / U * U } else { 0 };
            if rows - row >= K {
                self.multiply_rows::<S, K, U, V>(simd, [row, first, columns], lanes);
                row += K;
            } else {
                self.multiply_rows::<S, 1, U, V>(simd, [row, first, columns], lanes);
                row += 1;
            }
        }
    }

    /// `K` rows from `row` on, by all columns from `first` on.
    #[inline(always)]
    fn multiply_rows<S: Simd, const K: usize, const U: usize, const V: usize>(
        &self,
        simd: S,
        [row, first, columns]: [usize; 3],
        lanes: &mut [[f64; LANES]],
    ) {
        let mut column = first;
        while column < columns {
            if columns - column >= U {
                self.micro_kernel::<S, K, U, V>(simd, [row, column, columns], lanes);
                column += U;
            } else {
                self.micro_kernel::<S, K, 1, V>(simd, [row, column, columns], lanes);
                column += 1;
            }
        }
    }

    #[inline(always)]
    fn micro_kernel<S: Simd, const K: usize, const U: usize, const V: usize>(
        &self,
        simd: S,
        [row, column, columns]: [usize; 3],
        lanes: &mut [[f64; LANES]],
    ) {
        let whole = self.size / LANES * LANES;
        let mut sums = [[[simd.splat_f64s(0.0); V]; U]; K];
        for (at, sums) in sums.iter_mut().enumerate() {
            let lanes = &lanes[(row + at) * columns + column..][..U];
            for (sums, lanes) in sums.iter_mut().zip(lanes) {
                sums.copy_from_slice(S::as_simd_f64s(lanes).0);
            }
        }
        let own: [&[S::f64s]; K] =
            std::array::from_fn(|k| S::as_simd_f64s(&self.own[(row + k) * BLOCK..][..whole]).0);
        let others: [&[S::f64s]; U] = std::array::from_fn(|u| {
            S::as_simd_f64s(&self.others[(column + u) * BLOCK..][..whole]).0
        });
        for at in 0..whole / LANES {
            let own: [[S::f64s; V]; K] =
                std::array::from_fn(|k| std::array::from_fn(|v| own[k][at * V + v]));
            for (u, other) in others.iter().enumerate() {
                for v in 0..V {
                    let other = other[at * V + v];
                    for (sums, own) in sums.iter_mut().zip(&own) {
                        sums[u][v] = simd.mul_add_e_f64s(other, own[v], sums[u][v]);
                    }
                }
            }
        }
        for (k, sums) in sums.iter().enumerate() {
            let own = &self.own[(row + k) * BLOCK..][whole..self.size];
            for (u, sums) in sums.iter().enumerate() {
                let lanes = &mut lanes[(row + k) * columns + column + u];
                S::as_mut_simd_f64s(lanes).0.copy_from_slice(sums);
                let other = &self.others[(column + u) * BLOCK..][whole..self.size];
                for (lane, (own, other)) in lanes.iter_mut().zip(own.iter().zip(other)) {
                    *lane += own * other;
                }
            }
        }
    }
}
