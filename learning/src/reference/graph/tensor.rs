//! Values of a run: arrays with sizes, and the indices of their rearrangements.

use std::sync::Arc;

use super::tape::{NONE, Var};

/// A tensor: real numbers on the tape, or whole numbers, which have no derivatives.
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    /// Outermost first; the elements are in this order in memory.
    pub(super) sizes: Vec<usize>,
    pub(super) elements: Elements,
}

#[derive(Debug, Clone)]
pub(super) enum Elements {
    Real(Var),
    /// Integers, and truth values as 0 and 1.
    Whole(Arc<Vec<i64>>),
}

impl Tensor {
    pub(super) fn real(sizes: Vec<usize>, var: Var) -> Self {
        Self { sizes, elements: Elements::Real(var) }
    }

    pub(super) fn whole(sizes: Vec<usize>, numbers: Vec<i64>) -> Self {
        Self { sizes, elements: Elements::Whole(Arc::new(numbers)) }
    }

    pub(super) fn count(&self) -> usize {
        count(&self.sizes)
    }
}

pub(super) fn count(sizes: &[usize]) -> usize {
    sizes.iter().product()
}

/// The steps in memory from an element to the next one of each dimension.
pub(super) fn strides(sizes: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; sizes.len()];
    for at in (1..sizes.len()).rev() {
        strides[at - 1] = strides[at] * sizes[at];
    }
    strides
}

/// Where the elements of a tensor of `sizes` are in its source: at `offset` plus the strides.
pub(super) fn strided(sizes: &[usize], strides: &[usize], offset: usize) -> Vec<u32> {
    let mut index = Vec::with_capacity(count(sizes));
    if count(sizes) == 0 {
        return index;
    }
    let Some((&last, outer)) = sizes.split_last() else { return vec![offset as u32] };
    let (&step, strides) = strides.split_last().unwrap_or((&1, &[]));
    each_place(outer, |place| {
        let from =
            place.iter().zip(strides).map(|(at, stride)| at * stride).sum::<usize>() + offset;
        index.extend((0..last).map(|at| (from + at * step) as u32));
    });
    index
}

/// The source of each element of a tensor of `sizes`, by its place; [`NONE`] for zero.
pub(super) fn indexed(
    sizes: &[usize],
    mut source: impl FnMut(&[usize]) -> Option<usize>,
) -> Vec<u32> {
    let mut index = Vec::with_capacity(count(sizes));
    each_place(sizes, |place| index.push(source(place).map_or(NONE, |at| at as u32)));
    index
}

/// Calls `look` with each place, the last dimension first.
pub(super) fn each_place(sizes: &[usize], mut look: impl FnMut(&[usize])) {
    let mut place = vec![0; sizes.len()];
    for _ in 0..count(sizes) {
        look(&place);
        for (at, &size) in place.iter_mut().zip(sizes).rev() {
            *at += 1;
            if *at < size {
                break;
            }
            *at = 0;
        }
    }
}

/// The strides with which a tensor of `own` sizes is read as one of `sizes`: 0 where it is repeated.
pub(super) fn broadcast_strides(own: &[usize], sizes: &[usize]) -> Vec<usize> {
    let mut all = vec![0; sizes.len()];
    let offset = sizes.len() - own.len();
    for (at, stride) in strides(own).into_iter().enumerate() {
        if own[at] == sizes[offset + at] {
            all[offset + at] = stride;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strided_index_reads_transposes_and_repetitions() {
        assert_eq!(strides(&[2, 3, 4]), [12, 4, 1]);
        assert_eq!(strided(&[3, 2], &[1, 3], 0), [0, 3, 1, 4, 2, 5]);
        let repeated = broadcast_strides(&[2, 1], &[3, 2, 2]);
        assert_eq!(strided(&[3, 2, 2], &repeated, 0), [0, 0, 1, 1].repeat(3));
        assert_eq!(strided(&[], &[], 7), [7]);
        assert_eq!(strided(&[0, 2], &[2, 1], 0), [0_u32; 0]);
        let padded = indexed(&[3], |place| place[0].checked_sub(1));
        assert_eq!(padded, [NONE, 0, 1]);
    }
}
