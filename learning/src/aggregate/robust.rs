//! Coordinate-wise rules: median and trimmed mean.

use super::parallel_fill;

/// Number of coordinates that are transposed together, so that each one's values are contiguous:
/// whole cache lines of every update are used, and the transposed block stays in the cache.
const BLOCK: usize = 64;

/// The coordinate-wise median.
pub(super) fn median(deltas: &[&[f32]], threads: usize) -> Vec<f32> {
    map_coordinates(deltas, threads, |values| {
        let middle = values.len() / 2;
        let (below, upper, _) = values.select_nth_unstable_by(middle, f32::total_cmp);
        if deltas.len() % 2 == 1 {
            return *upper;
        }
        let lower = below.iter().copied().max_by(f32::total_cmp).unwrap_or(*upper);
        ((f64::from(lower) + f64::from(*upper)) / 2.0) as f32
    })
}

/// The coordinate-wise mean without the `trim` smallest and the `trim` largest values; `trim` is
/// less than half their number. Values are added from the smallest to the largest.
pub(super) fn trimmed_mean(deltas: &[&[f32]], trim: usize, threads: usize) -> Vec<f32> {
    map_coordinates(deltas, threads, |values| {
        values.sort_unstable_by(f32::total_cmp);
        let trimmed = &values[trim..values.len() - trim];
        let mut sum = 0.0;
        for &value in trimmed {
            sum += f64::from(value);
        }
        (sum / trimmed.len() as f64) as f32
    })
}

/// The median of finite numbers, which are sorted in place; 0 for none.
pub(super) fn median_of(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => values[middle],
        _ => values[middle - 1].midpoint(values[middle]),
    }
}

fn map_coordinates(
    deltas: &[&[f32]],
    threads: usize,
    choose: impl Fn(&mut [f32]) -> f32 + Sync,
) -> Vec<f32> {
    let length = deltas.first().map_or(0, |delta| delta.len());
    let count = deltas.len();
    let mut result = vec![0.0; length];
    parallel_fill(&mut result, threads, BLOCK, |start, part| {
        let mut turned = vec![0.0; BLOCK * count];
        for (at, block) in part.chunks_mut(BLOCK).enumerate() {
            let from = start + at * BLOCK;
            for (row, delta) in deltas.iter().enumerate() {
                for (column, &value) in delta[from..from + block.len()].iter().enumerate() {
                    turned[column * count + row] = value;
                }
            }
            for (chosen, values) in block.iter_mut().zip(turned.chunks_exact_mut(count)) {
                *chosen = choose(values);
            }
        }
    });
    result
}
