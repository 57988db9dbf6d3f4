//! Virtual workers: the gradient of a batch, with bits that do not depend on the devices.
//!
//! A batch is cut into the parts of `V` virtual workers, on any number of devices (VirtualFlow: Or, Zhang
//! and Freedman, MLSys 2022). The gradients of the parts are added along a fixed binary tree over the
//! workers' numbers, so that the sum has the same bits on one process and on many. An [`Assignment`]
//! gives each rank a range of workers; it decides how long a step takes, and nothing else.

mod assignment;

use std::ops::Range;

pub use assignment::{
    Assignment, AssignmentError, RANKS_EXACT_MAX, RankCost, TransferCost, assign,
};

/// Most virtual workers of a training.
pub const VIRTUAL_WORKERS_MAX: u32 = 1_024;

/// The parts of a batch of `rows` rows for `workers` virtual workers: consecutive ranges whose sizes
/// differ by at most one. A batch with fewer than `rows_min` rows for each worker has fewer parts, and
/// at least one.
pub fn parts(rows: usize, workers: u32, rows_min: usize) -> Vec<Range<usize>> {
    let count = (workers as usize).min(rows / rows_min.max(1)).max(1);
    (0..count).map(|part| part * rows / count..(part + 1) * rows / count).collect()
}

/// An addition of the tree: the sum at `from` is added to the sum at `into`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merge {
    /// The part whose place receives the sum; the smaller number.
    pub into: usize,
    /// The part whose place had the other sum.
    pub from: usize,
}

/// The additions of the tree over `parts` parts, level by level: in the level of distance `d`, the sum at
/// an odd multiple of `d` is added to the one `d` before it. After all of them the total is at part 0.
pub fn merges(parts: usize) -> impl Iterator<Item = Merge> {
    let distances = std::iter::successors(Some(1_usize), |distance| distance.checked_mul(2));
    distances.take_while(move |&distance| distance < parts).flat_map(move |distance| {
        let firsts = (0..parts - distance).step_by(2 * distance);
        firsts.map(move |into| Merge { into, from: into + distance })
    })
}

/// The additions that a process can make as soon as it has computed part `part`, the last one so far of
/// its `own` parts: those of subtrees whose parts are all its own.
pub fn merges_after(part: usize, own: &Range<usize>, parts: usize) -> Vec<Merge> {
    let mut found = Vec::new();
    let mut distance = 1;
    while distance < parts {
        let into = part / (2 * distance) * (2 * distance);
        let from = into + distance;
        if from <= part {
            let end = (into + 2 * distance).min(parts);
            if part + 1 != end || into < own.start {
                break;
            }
            found.push(Merge { into, from });
        } else if from < parts {
            // The right half is still to be computed.
            break;
        }
        distance *= 2;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn parts_cover_a_batch_and_differ_by_one_row() {
        for rows in 0..70 {
            for workers in 1..20 {
                for rows_min in 1..4 {
                    let parts = parts(rows, workers, rows_min);
                    assert!((1..=workers as usize).contains(&parts.len()));
                    let joined: Vec<usize> = parts.iter().cloned().flatten().collect();
                    assert_eq!(joined, (0..rows).collect::<Vec<_>>());
                    let sizes = parts.iter().map(Range::len);
                    let (least, most) = (sizes.clone().min().unwrap(), sizes.max().unwrap());
                    assert!(most - least <= 1);
                    assert!(parts.len() == 1 || least >= rows_min);
                }
            }
        }
    }

    /// The tree as an expression, by all merges in order.
    fn tree(parts: usize) -> String {
        let mut sums: Vec<String> = (0..parts).map(|part| part.to_string()).collect();
        for Merge { into, from } in merges(parts) {
            sums[into] = format!("({} {})", sums[into], sums[from]);
        }
        sums.swap_remove(0)
    }

    #[test]
    fn the_tree_is_fixed_by_the_number_of_parts() {
        assert_eq!(tree(1), "0");
        assert_eq!(tree(2), "(0 1)");
        assert_eq!(tree(3), "((0 1) 2)");
        assert_eq!(tree(5), "(((0 1) (2 3)) 4)");
        assert_eq!(tree(7), "(((0 1) (2 3)) ((4 5) 6))");
        assert_eq!(tree(8), "(((0 1) (2 3)) ((4 5) (6 7)))");
    }

    fn add(sums: &mut BTreeMap<usize, String>, into: usize, right: &str) {
        let left = sums.get_mut(&into).unwrap();
        *left = format!("({left} {right})");
    }

    /// Every division of the parts over processes builds the same expression, whether a process merges
    /// early or not.
    #[test]
    fn early_merges_build_the_same_tree() {
        for parts in 1..=9_usize {
            for cuts in 0..1_u32 << (parts - 1) {
                let mut bounds = vec![0];
                bounds.extend((1..parts).filter(|part| cuts >> (part - 1) & 1 == 1));
                bounds.push(parts);
                let mut sums: BTreeMap<usize, String> = BTreeMap::new();
                for own in bounds.windows(2).map(|pair| pair[0]..pair[1]) {
                    for part in own.clone() {
                        sums.insert(part, part.to_string());
                        for Merge { into, from } in merges_after(part, &own, parts) {
                            assert!(own.contains(&into) && own.contains(&from));
                            let right = sums.remove(&from).unwrap();
                            add(&mut sums, into, &right);
                        }
                    }
                    let alive = sums.range(own.start..).count();
                    assert!(alive <= 8, "{alive} sums are in memory");
                }
                for Merge { into, from } in merges(parts) {
                    let Some(right) = sums.remove(&from) else { continue };
                    add(&mut sums, into, &right);
                }
                assert_eq!(sums.into_values().collect::<Vec<_>>(), [tree(parts)], "{bounds:?}");
            }
        }
    }
}
