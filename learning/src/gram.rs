//! The Gram matrix of many vectors: all their dot products.

use pulp::Arch;

use crate::parallel::parallel_map;
use crate::tile_kernel::TileProducts;

/// Number of vectors per side of a tile, so that their blocks fit the cache.
const TILE: usize = 16;

/// The symmetric Gram matrix of `vectors`, `len × len` numbers by rows. Each entry is a sum in
/// `f64` over eight interleaved lanes, then over the lanes: the same bits on every machine and with
/// any number of threads. All vectors have one length. Products between two of the last `apart`
/// vectors, except the squares, may be left out as zeros.
pub fn gram_matrix(vectors: &[&[f32]], apart: usize, threads: usize) -> Vec<f64> {
    let side = vectors.len();
    let tiles = side.div_ceil(TILE);
    let first_apart = side.saturating_sub(apart).div_ceil(TILE);
    let wanted = move |row: usize, column: usize| row < first_apart || row == column;
    let pairs = (0..tiles).flat_map(|row| (row..tiles).map(move |column| (row, column)));
    let pairs = pairs.filter(move |(row, column)| wanted(*row, *column));
    let tile = |at: usize| at * TILE..side.min((at + 1) * TILE);
    let found = parallel_map(threads, pairs.clone().collect(), |(row, column)| {
        let (rows, columns) = (&vectors[tile(row)], &vectors[tile(column)]);
        Arch::new().dispatch(TileProducts { rows, columns, symmetric: row == column })
    });
    let mut matrix = vec![0.0; side * side];
    for ((row, column), products) in pairs.zip(found) {
        let columns = tile(column);
        for (i, products) in tile(row).zip(products.chunks(columns.len())) {
            // Entries below the diagonal of a symmetric tile are not valid.
            for (j, &product) in columns.clone().zip(products).filter(|(j, _)| *j >= i) {
                matrix[i * side + j] = product;
                matrix[j * side + i] = product;
            }
        }
    }
    matrix
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dot_lanes::{LANES, sum_lanes};

    #[test]
    fn only_products_between_the_last_vectors_are_left_out() {
        let vectors = vectors(51, 40);
        let slices: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
        let whole = gram_matrix(&slices, 0, 1);
        for apart in [0, 1, 15, 16, 20, 35, 51, 60] {
            let part = gram_matrix(&slices, apart, 2);
            let wanted = 51_usize.saturating_sub(apart);
            // Tiles of 16: from 19 on, the last two tiles are left out.
            let mut left_out = 0;
            for (at, (part, whole)) in part.iter().zip(&whole).enumerate() {
                let (row, column) = (at / 51, at % 51);
                let asked_for = row.min(column) < wanted || row == column;
                assert!(part == whole || !asked_for, "{apart} apart: {row}, {column}");
                left_out += usize::from(part != whole);
            }
            assert_eq!(left_out > 0, apart >= 19, "{apart} apart: {left_out} left out");
        }
    }

    fn vectors(count: usize, width: usize) -> Vec<Vec<f32>> {
        let number = |at: usize| ((at * 7919 + 13) % 1009) as f32 / 31.0 - 16.0;
        (0..count).map(|row| (0..width).map(|at| number(row * width + at)).collect()).collect()
    }

    /// Reference implementation of the documented sum.
    fn plain(a: &[f32], b: &[f32]) -> f64 {
        let mut lanes = [0.0; LANES];
        for (at, (&a, &b)) in a.iter().zip(b).enumerate() {
            lanes[at % LANES] += f64::from(a) * f64::from(b);
        }
        sum_lanes(&lanes)
    }

    #[test]
    fn every_product_has_the_bits_of_the_reference_sum_with_any_threads() {
        for (count, width) in [(0, 5), (1, 0), (1, 1), (15, 7), (16, 128), (17, 129), (35, 300)] {
            let vectors = vectors(count, width);
            let slices: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
            let matrix = gram_matrix(&slices, 0, 1);
            assert_eq!(matrix.len(), count * count);
            for (i, a) in slices.iter().enumerate() {
                for (j, b) in slices.iter().enumerate() {
                    let product = matrix[i * count + j];
                    assert_eq!(product.to_bits(), plain(a, b).to_bits(), "{count} {width} {i} {j}");
                }
            }
            for threads in [2, 3, 8] {
                assert_eq!(gram_matrix(&slices, 0, threads), matrix);
            }
        }
    }
}
