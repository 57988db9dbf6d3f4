//! Rows of data in a tiled layout: a line is one feature or unit for all rows of a tile.
//!
//! A lane of a register is then a row, so that a layer's weights are read in their own order, one
//! at a time, and no model parameters are transposed. A row's sums are the same at every position.

use super::real::Real;

/// Number of rows of a tile, and of elements of a line. Missing rows are zeros.
pub(super) const TILE: usize = 16;

/// Converts rows of `width` elements to tiles.
pub(super) fn rows_to_tiles<T: Real>(rows: &[T], width: usize, lines: &mut Vec<T>) {
    let tiles = (rows.len() / width).div_ceil(TILE);
    lines.clear();
    lines.resize(tiles * TILE * width, T::ZERO);
    for (rows, tile) in rows.chunks(TILE * width).zip(lines.chunks_exact_mut(TILE * width)) {
        for (at, row) in rows.chunks_exact(width).enumerate() {
            for (line, &value) in tile.as_chunks_mut::<TILE>().0.iter_mut().zip(row) {
                line[at] = value;
            }
        }
    }
}

/// Converts the first `count` rows of tiles with `width` lines back to rows.
pub(super) fn tiles_to_rows<T: Real>(lines: &[T], width: usize, count: usize, rows: &mut Vec<T>) {
    rows.clear();
    rows.reserve(count * width);
    for (from, tile) in (0..count).step_by(TILE).zip(lines.chunks_exact(TILE * width)) {
        for at in 0..TILE.min(count - from) {
            rows.extend(tile.as_chunks::<TILE>().0.iter().map(|line| line[at]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_through_tiles_at_the_documented_positions() {
        for (count, width) in [(1, 1), (3, 2), (16, 5), (17, 3), (40, 64)] {
            let rows: Vec<f64> = (0..count * width).map(|at| at as f64 + 1.0).collect();
            let (mut lines, mut back) = (vec![9.0; 7], vec![9.0; 7]);
            rows_to_tiles(&rows, width, &mut lines);
            assert_eq!(lines.len(), count.div_ceil(TILE) * TILE * width);
            for (at, &value) in rows.iter().enumerate() {
                let (row, unit) = (at / width, at % width);
                assert_eq!(lines[(row / TILE * width + unit) * TILE + row % TILE], value);
            }
            assert_eq!(
                lines.iter().filter(|value| **value == 0.0).count(),
                lines.len() - rows.len()
            );
            tiles_to_rows(&lines, width, count, &mut back);
            assert_eq!(back, rows);
        }
    }
}
