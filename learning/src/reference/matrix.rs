//! Matrix products for `f32` and `f64`, in one order of additions.

use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Sub, SubAssign};

use pulp::{Arch, Simd, WithSimd};

/// The numbers a net computes with.
pub(super) trait Real:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
{
    const ZERO: Self;

    fn exp(self) -> Self;
    fn to_f64(self) -> f64;

    /// A register of so many numbers as the machine has room for.
    type Register<S: Simd>: Copy;

    /// How many numbers a register has.
    fn lanes<S: Simd>() -> usize;
    /// One number in every lane.
    fn splat<S: Simd>(simd: S, value: Self) -> Self::Register<S>;
    /// At most as many numbers as there are lanes; zeros behind them.
    fn load<S: Simd>(simd: S, from: &[Self]) -> Self::Register<S>;
    /// As many of the lanes as there is room for.
    fn store<S: Simd>(simd: S, to: &mut [Self], value: Self::Register<S>);
    /// `sum + a · b` in every lane: the product is rounded, and then the sum, as without registers.
    fn add_product<S: Simd>(
        simd: S,
        sum: Self::Register<S>,
        a: Self::Register<S>,
        b: Self::Register<S>,
    ) -> Self::Register<S>;

    /// Adds `a · b` onto `c`. See [`product`].
    fn product(size: Size, a: Strided<'_, Self>, b: &[Self], c: &mut [Self]) {
        Arch::new().dispatch(Product { size, a, b, c });
    }
}

impl Real for f32 {
    const ZERO: Self = 0.0;

    fn exp(self) -> Self {
        self.exp()
    }

    fn to_f64(self) -> f64 {
        self.into()
    }

    type Register<S: Simd> = S::f32s;

    #[inline(always)]
    fn lanes<S: Simd>() -> usize {
        S::F32_LANES
    }

    #[inline(always)]
    fn splat<S: Simd>(simd: S, value: Self) -> S::f32s {
        simd.splat_f32s(value)
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self]) -> S::f32s {
        match S::as_simd_f32s(from).0.first() {
            Some(whole) => *whole,
            None => simd.partial_load_f32s(from),
        }
    }

    #[inline(always)]
    fn store<S: Simd>(simd: S, to: &mut [Self], value: S::f32s) {
        match S::as_mut_simd_f32s(to).0.first_mut() {
            Some(whole) => *whole = value,
            None => simd.partial_store_f32s(to, value),
        }
    }

    #[inline(always)]
    fn add_product<S: Simd>(simd: S, sum: S::f32s, a: S::f32s, b: S::f32s) -> S::f32s {
        simd.add_f32s(sum, simd.mul_f32s(a, b))
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;

    fn exp(self) -> Self {
        self.exp()
    }

    fn to_f64(self) -> f64 {
        self
    }

    type Register<S: Simd> = S::f64s;

    #[inline(always)]
    fn lanes<S: Simd>() -> usize {
        S::F64_LANES
    }

    #[inline(always)]
    fn splat<S: Simd>(simd: S, value: Self) -> S::f64s {
        simd.splat_f64s(value)
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self]) -> S::f64s {
        match S::as_simd_f64s(from).0.first() {
            Some(whole) => *whole,
            None => simd.partial_load_f64s(from),
        }
    }

    #[inline(always)]
    fn store<S: Simd>(simd: S, to: &mut [Self], value: S::f64s) {
        match S::as_mut_simd_f64s(to).0.first_mut() {
            Some(whole) => *whole = value,
            None => simd.partial_store_f64s(to, value),
        }
    }

    #[inline(always)]
    fn add_product<S: Simd>(simd: S, sum: S::f64s, a: S::f64s, b: S::f64s) -> S::f64s {
        simd.add_f64s(sum, simd.mul_f64s(a, b))
    }
}

/// Of a product: `c` has `rows` × `columns`, and each of its numbers is a sum of `depth` terms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) depth: usize,
}

/// A matrix that is read either along its rows or along its columns.
#[derive(Clone, Copy)]
pub(super) struct Strided<'a, T> {
    numbers: &'a [T],
    row: usize,
    column: usize,
}

impl<'a, T> Strided<'a, T> {
    /// Rows of `width` numbers.
    pub(super) fn rows(numbers: &'a [T], width: usize) -> Self {
        Self { numbers, row: width, column: 1 }
    }

    /// The transpose of rows of `width` numbers.
    pub(super) fn transposed(numbers: &'a [T], width: usize) -> Self {
        Self { numbers, row: 1, column: width }
    }
}

/// Rows of `c` that a tile covers.
const TILE_ROWS: usize = 4;
/// Registers side by side that a tile covers.
const TILE_REGISTERS: usize = 2;

/// Adds `a · b` onto `c`, with `b` and `c` row-major. Every number of `c` takes its terms one after
/// the other in the order of `depth`, each product and each sum rounded by itself, so that tiles and
/// registers of any size change the speed and not a bit of the result.
struct Product<'a, T> {
    size: Size,
    a: Strided<'a, T>,
    b: &'a [T],
    c: &'a mut [T],
}

impl<T: Real> WithSimd for Product<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (columns, lanes) = (self.size.columns, T::lanes::<S>());
        let mut column = 0;
        while columns - column >= TILE_REGISTERS * lanes {
            self.panel::<S, TILE_REGISTERS>(simd, column, lanes);
            column += TILE_REGISTERS * lanes;
        }
        if columns - column >= lanes {
            self.panel::<S, 1>(simd, column, lanes);
            column += lanes;
        }
        if columns > column {
            self.panel::<S, 1>(simd, column, columns - column);
        }
    }
}

impl<T: Real> Product<'_, T> {
    /// All rows of some columns: `V` registers, each of `width` numbers.
    #[inline(always)]
    fn panel<S: Simd, const V: usize>(&mut self, simd: S, column: usize, width: usize) {
        let rows = self.size.rows;
        let whole = rows - rows % TILE_ROWS;
        for row in (0..whole).step_by(TILE_ROWS) {
            self.tile::<S, TILE_ROWS, V>(simd, row, column, width);
        }
        match rows - whole {
            1 => self.tile::<S, 1, V>(simd, whole, column, width),
            2 => self.tile::<S, 2, V>(simd, whole, column, width),
            3 => self.tile::<S, 3, V>(simd, whole, column, width),
            _ => {}
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize, const V: usize>(
        &mut self,
        simd: S,
        row: usize,
        column: usize,
        width: usize,
    ) {
        let Size { columns, depth, .. } = self.size;
        let mut sums = [[T::splat(simd, T::ZERO); V]; ROWS];
        for (at, sums) in sums.iter_mut().enumerate() {
            let from = (row + at) * columns + column;
            for (sum, own) in sums.iter_mut().zip(self.c[from..].chunks(width)) {
                *sum = T::load(simd, own);
            }
        }
        for depth in 0..depth {
            let from = depth * columns + column;
            let mut factors = [T::splat(simd, T::ZERO); V];
            for (factor, own) in factors.iter_mut().zip(self.b[from..].chunks(width)) {
                *factor = T::load(simd, own);
            }
            for (at, sums) in sums.iter_mut().enumerate() {
                let value = self.a.numbers[(row + at) * self.a.row + depth * self.a.column];
                let value = T::splat(simd, value);
                for (sum, factor) in sums.iter_mut().zip(&factors) {
                    *sum = T::add_product(simd, *sum, value, *factor);
                }
            }
        }
        for (at, sums) in sums.iter().enumerate() {
            let from = (row + at) * columns + column;
            for (sum, own) in sums.iter().zip(self.c[from..].chunks_mut(width)) {
                T::store(simd, own, *sum);
            }
        }
    }
}

/// `from`, rows of `width`, as rows of columns.
pub(super) fn transpose<T: Copy>(from: &[T], width: usize) -> Vec<T> {
    let height = from.len().checked_div(width).unwrap_or(0);
    let mut to = Vec::with_capacity(from.len());
    for column in 0..width {
        to.extend((0..height).map(|row| from[row * width + column]));
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The product as it is written in a book.
    fn plain(size: Size, a: &[f64], b: &[f64], c: &mut [f64]) {
        for row in 0..size.rows {
            for column in 0..size.columns {
                for depth in 0..size.depth {
                    c[row * size.columns + column] +=
                        a[row * size.depth + depth] * b[depth * size.columns + column];
                }
            }
        }
    }

    #[test]
    fn tiles_give_the_bits_of_the_plain_product_for_every_remainder() {
        let numbers = |count: usize, salt: usize| -> Vec<f64> {
            (0..count).map(|at| ((at * 37 + salt) % 101) as f64 / 7.0 - 6.5).collect()
        };
        for rows in 1..10 {
            for columns in (1..12).chain([16, 17, 31, 40]) {
                for depth in [1, 2, 5] {
                    let size = Size { rows, columns, depth };
                    let (a, b) = (numbers(rows * depth, 1), numbers(depth * columns, 2));
                    let (mut fast, mut slow) =
                        (numbers(rows * columns, 3), numbers(rows * columns, 3));
                    plain(size, &a, &b, &mut slow);
                    f64::product(size, Strided::rows(&a, depth), &b, &mut fast);
                    assert_eq!(fast, slow, "{size:?}");
                    let mut turned = numbers(rows * columns, 3);
                    let lines = transpose(&a, depth);
                    f64::product(size, Strided::transposed(&lines, rows), &b, &mut turned);
                    assert_eq!(turned, slow, "{size:?}");
                    let mut narrow = numbers(rows * columns, 3);
                    let a = Strided::rows(&a, depth);
                    Product { size, a, b: &b, c: &mut narrow }.with_simd(pulp::Scalar::new());
                    assert_eq!(narrow, slow, "{size:?}");
                }
            }
        }
    }
}
