//! Matrix products for `f32` and `f64`, in one order of additions.

use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Sub, SubAssign};

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

    /// Adds `a · b` onto `c`. See [`product`].
    fn product(size: Size, a: Strided<'_, Self>, b: &[Self], c: &mut [Self]);
}

impl Real for f32 {
    const ZERO: Self = 0.0;

    fn exp(self) -> Self {
        self.exp()
    }

    fn to_f64(self) -> f64 {
        self.into()
    }

    fn product(size: Size, a: Strided<'_, Self>, b: &[Self], c: &mut [Self]) {
        product::<Self, 8>(size, a, b, c);
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

    fn product(size: Size, a: Strided<'_, Self>, b: &[Self], c: &mut [Self]) {
        product::<Self, 4>(size, a, b, c);
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

/// Adds `a · b` onto `c`, with `b` and `c` row-major. Every number of `c` takes its terms one after
/// the other in the order of `depth`, so that tiles change the speed and not a bit of the result.
/// A tile is `LANES` columns wide, as much as the registers of any x86-64 hold.
fn product<T: Real, const LANES: usize>(size: Size, a: Strided<'_, T>, b: &[T], c: &mut [T]) {
    let Size { rows, columns, .. } = size;
    let whole_rows = rows - rows % TILE_ROWS;
    let whole_columns = columns - columns % LANES;
    for column in (0..whole_columns).step_by(LANES) {
        for row in (0..whole_rows).step_by(TILE_ROWS) {
            tile::<T, TILE_ROWS, LANES>(size, row, column, a, b, c);
        }
        for row in whole_rows..rows {
            tile::<T, 1, LANES>(size, row, column, a, b, c);
        }
    }
    for column in whole_columns..columns {
        for row in (0..whole_rows).step_by(TILE_ROWS) {
            tile::<T, TILE_ROWS, 1>(size, row, column, a, b, c);
        }
        for row in whole_rows..rows {
            tile::<T, 1, 1>(size, row, column, a, b, c);
        }
    }
}

#[inline(always)]
fn tile<T: Real, const ROWS: usize, const LANES: usize>(
    size: Size,
    row: usize,
    column: usize,
    a: Strided<'_, T>,
    b: &[T],
    c: &mut [T],
) {
    let mut sums = [[T::ZERO; LANES]; ROWS];
    for (at, lanes) in sums.iter_mut().enumerate() {
        let from = (row + at) * size.columns + column;
        lanes.copy_from_slice(&c[from..from + LANES]);
    }
    let b = &b[..size.depth * size.columns];
    for depth in 0..size.depth {
        let from = depth * size.columns + column;
        let factors = &b[from..from + LANES];
        for (at, lanes) in sums.iter_mut().enumerate() {
            let value = a.numbers[(row + at) * a.row + depth * a.column];
            for (sum, &factor) in lanes.iter_mut().zip(factors) {
                *sum += value * factor;
            }
        }
    }
    for (at, lanes) in sums.iter().enumerate() {
        let from = (row + at) * size.columns + column;
        c[from..from + LANES].copy_from_slice(lanes);
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
            for columns in 1..12 {
                for depth in [1, 2, 5] {
                    let size = Size { rows, columns, depth };
                    let (a, b) = (numbers(rows * depth, 1), numbers(depth * columns, 2));
                    let (mut fast, mut slow) =
                        (numbers(rows * columns, 3), numbers(rows * columns, 3));
                    plain(size, &a, &b, &mut slow);
                    f64::product(size, Strided::rows(&a, depth), &b, &mut fast);
                    assert_eq!(fast, slow, "{size:?}");
                    let mut turned = numbers(rows * columns, 3);
                    let a = transpose(&a, depth);
                    f64::product(size, Strided::transposed(&a, rows), &b, &mut turned);
                    assert_eq!(turned, slow, "{size:?}");
                }
            }
        }
    }
}
