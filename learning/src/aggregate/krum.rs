//! Krum (Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries, 2017):
//! selects the updates with the smallest distances to their nearest neighbours.

use super::AggregateError;

/// Number of coordinates per block in the comparison of updates.
const BLOCK: usize = 1024;

/// Indices of the selected updates, ascending. The score of an update is the sum of squared
/// distances to its `n − byzantine − 2` nearest others; the lowest scores are selected, among ties
/// the earlier update.
pub(super) fn select(
    deltas: &[&[f32]],
    byzantine: usize,
    selected: usize,
    threads: usize,
) -> Result<Vec<usize>, AggregateError> {
    let count = deltas.len();
    let needed = (2 * byzantine + 3).max(selected + byzantine);
    if count < needed {
        return Err(AggregateError::TooFew { needed, got: count });
    }
    let distances = distances(deltas, threads);
    let score = |own: usize| {
        let mut near: Vec<f64> = (0..count)
            .filter(|&other| other != own)
            .map(|other| distances[own.max(other)][own.min(other)])
            .collect();
        near.sort_unstable_by(f64::total_cmp);
        near[..count - byzantine - 2].iter().sum::<f64>()
    };
    let scores: Vec<f64> = (0..count).map(score).collect();
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| scores[a].total_cmp(&scores[b]).then(a.cmp(&b)));
    order.truncate(selected);
    order.sort_unstable();
    Ok(order)
}

/// Squared distance of every pair, `[later][earlier]`. Each pair belongs to one thread and is
/// summed block by block in order, so the result does not depend on the threads.
fn distances(deltas: &[&[f32]], threads: usize) -> Vec<Vec<f64>> {
    let count = deltas.len();
    let mut table = vec![vec![0.0; count]; count];
    std::thread::scope(|scope| {
        // Update i has i pairs with earlier ones; the round-robin assignment balances the
        // threads.
        let mut dealt: Vec<Vec<(usize, &mut Vec<f64>)>> = Vec::new();
        dealt.resize_with(threads, Vec::new);
        for (own, row) in table.iter_mut().enumerate() {
            dealt[own % threads].push((own, row));
        }
        for mut rows in dealt {
            scope.spawn(move || {
                let length = deltas[0].len();
                for from in (0..length).step_by(BLOCK) {
                    let block = from..length.min(from + BLOCK);
                    for (own, row) in &mut rows {
                        for (other, sum) in row.iter_mut().enumerate().take(*own) {
                            *sum += squared_distance(
                                &deltas[*own][block.clone()],
                                &deltas[other][block.clone()],
                            );
                        }
                    }
                }
            });
        }
    });
    table
}

/// Squared distance of two blocks, over four interleaved lanes.
fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; 4];
    let (a, b) = (a.chunks(4), b.chunks(4));
    for (a, b) in a.zip(b) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            let gap = f64::from(a) - f64::from(b);
            *lane += gap * gap;
        }
    }
    (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
}
