//! Scalar products over eight interleaved lanes: what the kernels that multiply many vectors share.

/// Number j of a vector belongs to lane j mod 8; a product is the sum over each lane in order, and
/// then over the lanes.
pub(crate) const LANES: usize = 8;
/// Numbers of each vector that stay in the cache while all others pass by.
pub(crate) const BLOCK: usize = 128;

/// A product from its lanes.
pub(crate) fn summed(lanes: &[f64; LANES]) -> f64 {
    let mut sum = 0.0;
    for lane in lanes {
        sum += lane;
    }
    sum
}

/// Puts the numbers `from` of each vector, at most [`BLOCK`], into its block.
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
