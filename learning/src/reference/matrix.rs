//! Matrix products (GEMM) for `f32` and `f64` with a fixed order of additions.

use pulp::{Arch, Simd, WithSimd};

use super::real::Real;

/// The size of a product: `c` has `rows` × `columns` elements, each a sum of `depth` terms.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProductSize {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) depth: usize,
}

/// A matrix view that is contiguous along its rows or along its columns.
#[derive(Clone, Copy)]
pub(super) struct Strided<'a, T> {
    numbers: &'a [T],
    row: usize,
    column: usize,
}

impl<'a, T> Strided<'a, T> {
    /// Rows of `width` elements.
    pub(super) fn rows(numbers: &'a [T], width: usize) -> Self {
        Self { numbers, row: width, column: 1 }
    }

    /// The transpose of rows of `width` elements.
    pub(super) fn transposed(numbers: &'a [T], width: usize) -> Self {
        Self { numbers, row: 1, column: width }
    }
}

/// The operation that combines a product with the output.
#[derive(Clone, Copy)]
pub(super) enum OutputMode<'a, T> {
    /// Accumulates: `c + a·b`.
    Accumulate,
    /// Overwrites with a bias per row of `c`: `bias + a·b`.
    Bias(&'a [T]),
    /// A gradient step: `c − rate · (a·b)`.
    Descent(T),
}

/// Multiplies `a` by `b` and combines the product with `c`. See [`Product`].
pub(super) fn product<T: Real>(
    size: ProductSize,
    a: Strided<'_, T>,
    b: &[T],
    onto: OutputMode<'_, T>,
    c: &mut [T],
) {
    Arch::new().dispatch(Product { size, a, b, onto, c });
}

/// `a · b` combined with `c`; `b` and `c` are row-major. Every element sums its terms one after
/// another in the order of `depth`, with each product and each sum rounded separately, so that the
/// sizes of tiles and registers affect the speed and no bit of the result.
struct Product<'a, T> {
    size: ProductSize,
    a: Strided<'a, T>,
    b: &'a [T],
    onto: OutputMode<'a, T>,
    c: &'a mut [T],
}

/// Position of a tile of `c`, and its width in elements if it is not a whole number of registers
/// (else 0).
#[derive(Clone, Copy)]
struct TilePosition {
    row: usize,
    column: usize,
    width: usize,
}

impl<T: Real> WithSimd for Product<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        if self.a.row == 1 {
            self.multiply::<S, true>(simd);
        } else {
            self.multiply::<S, false>(simd);
        }
    }
}

impl<T: Real> Product<'_, T> {
    #[inline(always)]
    fn multiply<S: Simd, const ALONG_ROWS: bool>(&mut self, simd: S) {
        let (columns, lanes) = (self.size.columns, T::lanes::<S>());
        let mut column = 0;
        while columns - column >= 2 * lanes {
            self.panel::<S, 2, ALONG_ROWS>(simd, column, 0);
            column += 2 * lanes;
        }
        if columns - column >= lanes {
            self.panel::<S, 1, ALONG_ROWS>(simd, column, 0);
            column += lanes;
        }
        if columns > column {
            self.panel::<S, 1, ALONG_ROWS>(simd, column, columns - column);
        }
    }

    /// The panel of all rows of some columns: `V` registers, or `width` elements. The tile height
    /// is chosen such that the sums stay in registers.
    #[inline(always)]
    fn panel<S: Simd, const V: usize, const ALONG_ROWS: bool>(
        &mut self,
        simd: S,
        column: usize,
        width: usize,
    ) {
        let rows = self.size.rows;
        let mut row = 0;
        while S::REGISTER_COUNT >= 32 && rows - row >= 8 {
            self.tile::<S, 8, V, ALONG_ROWS>(simd, TilePosition { row, column, width });
            row += 8;
        }
        while rows - row >= 4 {
            self.tile::<S, 4, V, ALONG_ROWS>(simd, TilePosition { row, column, width });
            row += 4;
        }
        if rows - row >= 2 {
            self.tile::<S, 2, V, ALONG_ROWS>(simd, TilePosition { row, column, width });
            row += 2;
        }
        if rows > row {
            self.tile::<S, 1, V, ALONG_ROWS>(simd, TilePosition { row, column, width });
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const K: usize, const V: usize, const ALONG_ROWS: bool>(
        &mut self,
        simd: S,
        at: TilePosition,
    ) {
        let mut sums = self.initial_sums::<S, K, V>(simd, at);
        self.micro_kernel::<S, K, V, ALONG_ROWS>(simd, at, &mut sums);
        for (row, sums) in sums.iter().enumerate() {
            let from = (at.row + row) * self.size.columns + at.column;
            if at.width > 0 {
                let own = &mut self.c[from..from + at.width];
                let before = T::load_part(simd, own);
                T::store_part(simd, own, output_value(simd, self.onto, before, sums[0]));
                continue;
            }
            let own = &mut self.c[from..from + V * T::lanes::<S>()];
            for (own, sum) in T::registers_mut::<S>(own).iter_mut().zip(sums) {
                *own = output_value(simd, self.onto, *own, *sum);
            }
        }
    }

    /// The initial sums of a tile.
    #[inline(always)]
    fn initial_sums<S: Simd, const K: usize, const V: usize>(
        &self,
        simd: S,
        at: TilePosition,
    ) -> [[T::Register<S>; V]; K] {
        let mut sums = [[T::splat(simd, T::ZERO); V]; K];
        for (row, sums) in sums.iter_mut().enumerate() {
            let from = (at.row + row) * self.size.columns + at.column;
            match self.onto {
                OutputMode::Descent(_) => {}
                OutputMode::Bias(bias) => *sums = [T::splat(simd, bias[at.row + row]); V],
                OutputMode::Accumulate if at.width > 0 => {
                    sums[0] = T::load_part(simd, &self.c[from..from + at.width]);
                }
                OutputMode::Accumulate => {
                    let own = &self.c[from..from + V * T::lanes::<S>()];
                    sums.copy_from_slice(T::registers(own));
                }
            }
        }
        sums
    }

    #[inline(always)]
    fn micro_kernel<S: Simd, const K: usize, const V: usize, const ALONG_ROWS: bool>(
        &self,
        simd: S,
        at: TilePosition,
        sums: &mut [[T::Register<S>; V]; K],
    ) {
        let ProductSize { columns, depth, .. } = self.size;
        let lanes = T::lanes::<S>();
        let a = &self.a;
        // If the rows are not contiguous in memory, each has its own slice.
        let own: [&[T]; K] = std::array::from_fn(|row| match ALONG_ROWS {
            true => &[][..],
            false => &a.numbers[(at.row + row) * a.row..][..depth],
        });
        for (depth, line) in (0..depth).zip(self.b.chunks_exact(columns)) {
            let factors: [T::Register<S>; V] = if at.width > 0 {
                [T::load_part(simd, &line[at.column..at.column + at.width]); V]
            } else {
                let whole = T::registers::<S>(&line[at.column..at.column + V * lanes]);
                std::array::from_fn(|v| whole[v])
            };
            let values: [T; K] = if ALONG_ROWS {
                let side_by_side = &a.numbers[depth * a.column + at.row..][..K];
                std::array::from_fn(|row| side_by_side[row])
            } else {
                std::array::from_fn(|row| own[row][depth])
            };
            for (sums, value) in sums.iter_mut().zip(values) {
                let value = T::splat(simd, value);
                for (sum, factor) in sums.iter_mut().zip(&factors) {
                    *sum = T::add_product(simd, *sum, value, *factor);
                }
            }
        }
    }
}

/// The output for a sum, given the previous content `before`.
#[inline(always)]
fn output_value<T: Real, S: Simd>(
    simd: S,
    onto: OutputMode<'_, T>,
    before: T::Register<S>,
    sum: T::Register<S>,
) -> T::Register<S> {
    match onto {
        OutputMode::Accumulate | OutputMode::Bias(_) => sum,
        OutputMode::Descent(rate) => T::subtract_product(simd, before, T::splat(simd, rate), sum),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference implementation of the product.
    fn plain(size: ProductSize, a: &[f64], b: &[f64], c: &mut [f64]) {
        for row in 0..size.rows {
            for column in 0..size.columns {
                for depth in 0..size.depth {
                    c[row * size.columns + column] +=
                        a[row * size.depth + depth] * b[depth * size.columns + column];
                }
            }
        }
    }

    /// The transpose of `from`, rows of `width` elements.
    fn transpose(from: &[f64], width: usize) -> Vec<f64> {
        let rows = from.len() / width;
        (0..from.len()).map(|at| from[at % rows * width + at / rows]).collect()
    }

    /// Checks all output modes, on registers of any width.
    fn check(size: ProductSize, a: Strided<'_, f64>, b: &[f64], begun: &[f64], sums: [&[f64]; 3]) {
        let bias: Vec<f64> = (0..size.rows).map(|row| row as f64 / 3.0).collect();
        let [plain, on_bias, down] = sums;
        let onto = [
            (OutputMode::Accumulate, plain),
            (OutputMode::Bias(&bias), on_bias),
            (OutputMode::Descent(0.3), down),
        ];
        for (onto, expected) in onto {
            let mut fast = begun.to_vec();
            product(size, a, b, onto, &mut fast);
            assert_eq!(fast, expected, "{size:?}");
            let mut narrow = begun.to_vec();
            Product { size, a, b, onto, c: &mut narrow }.with_simd(pulp::Scalar::new());
            assert_eq!(narrow, expected, "{size:?} on scalar registers");
        }
    }

    #[test]
    fn tiles_give_the_bits_of_the_reference_product_for_every_remainder() {
        let numbers = |count: usize, salt: usize| -> Vec<f64> {
            (0..count).map(|at| ((at * 37 + salt) % 101) as f64 / 7.0 - 6.5).collect()
        };
        for rows in (1..10).chain([16, 19]) {
            for columns in (1..12).chain([16, 17, 31, 40]) {
                for depth in [1, 2, 5] {
                    let size = ProductSize { rows, columns, depth };
                    let (a, b) = (numbers(rows * depth, 1), numbers(depth * columns, 2));
                    let begun = numbers(rows * columns, 3);
                    let mut sum = begun.clone();
                    plain(size, &a, &b, &mut sum);
                    let bias = |at: usize| (at / columns) as f64 / 3.0;
                    let mut on_bias: Vec<f64> = (0..begun.len()).map(bias).collect();
                    plain(size, &a, &b, &mut on_bias);
                    let mut alone = vec![0.0; begun.len()];
                    plain(size, &a, &b, &mut alone);
                    let step = |(own, alone): (&f64, &f64)| own - 0.3 * alone;
                    let down: Vec<f64> = begun.iter().zip(&alone).map(step).collect();
                    let sums = [sum.as_slice(), &on_bias, &down];
                    check(size, Strided::rows(&a, depth), &b, &begun, sums);
                    let turned = transpose(&a, depth);
                    check(size, Strided::transposed(&turned, rows), &b, &begun, sums);
                }
            }
        }
    }
}
