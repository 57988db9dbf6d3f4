//! Dot products over eight interleaved lanes, shared by the kernels that multiply many vectors.

/// Element j of a vector belongs to lane j mod 8; a dot product is the sum over each lane in order,
/// and then over the lanes.
pub(crate) const LANES: usize = 8;
/// Number of elements of each vector in one cached block.
pub(crate) const BLOCK: usize = 128;

/// Adds up the lanes of a dot product.
pub(crate) fn sum_lanes(lanes: &[f64; LANES]) -> f64 {
    let mut sum = 0.0;
    for lane in lanes {
        sum += lane;
    }
    sum
}

/// Copies the elements from index `from` on of each vector, at most [`BLOCK`] of them, into its
/// block.
pub(crate) fn load_blocks<'a>(
    blocks: &mut [f64],
    vectors: impl Iterator<Item = &'a [f32]>,
    from: usize,
) {
    for (block, vector) in blocks.chunks_exact_mut(BLOCK).zip(vectors) {
        for (to, &value) in block.iter_mut().zip(&vector[from..]) {
            *to = f64::from(value);
        }
    }
}
