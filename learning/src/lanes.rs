//! Scalar products side by side, eight lanes each: one kernel for all who multiply many vectors.

use pulp::Simd;

/// Number j of a vector belongs to lane j mod 8; a product is the sum over each lane in order, and
/// then over the lanes.
pub(crate) const LANES: usize = 8;
/// Vectors that are multiplied side by side.
pub(crate) const ABREAST: usize = 4;
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

/// Adds the products of `one` with each of `many`, blocks of [`BLOCK`] numbers of which as many count
/// as `one` has, onto the lanes of each.
#[inline(always)]
pub(crate) fn one_by_many<S: Simd>(simd: S, one: &[f64], many: &[f64], lanes: &mut [[f64; LANES]]) {
    let sums = lanes.chunks_mut(ABREAST).zip(many.chunks(ABREAST * BLOCK));
    for (lanes, many) in sums {
        match lanes.len() {
            1 => abreast::<S, 1>(simd, one, many, lanes),
            2 => abreast::<S, 2>(simd, one, many, lanes),
            3 => abreast::<S, 3>(simd, one, many, lanes),
            _ => abreast::<S, ABREAST>(simd, one, many, lanes),
        }
    }
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

/// Adds the products of `one` with `U` others onto their lanes, in as many registers as
/// eight lanes fill.
#[inline(always)]
fn abreast<S: Simd, const U: usize>(
    simd: S,
    one: &[f64],
    block: &[f64],
    lanes: &mut [[f64; LANES]],
) {
    match S::F64_LANES {
        8 => registers::<S, U, 1>(simd, one, block, lanes),
        4 => registers::<S, U, 2>(simd, one, block, lanes),
        2 => registers::<S, U, 4>(simd, one, block, lanes),
        _ => registers::<S, U, 8>(simd, one, block, lanes),
    }
}

#[inline(always)]
fn registers<S: Simd, const U: usize, const V: usize>(
    simd: S,
    one: &[f64],
    block: &[f64],
    lanes: &mut [[f64; LANES]],
) {
    let (whole, rest) = one.split_at(one.len() / LANES * LANES);
    let own = |other: usize| &block[other * BLOCK..][..one.len()];
    let mut sums = [[simd.splat_f64s(0.0); V]; U];
    for (sums, lanes) in sums.iter_mut().zip(&*lanes) {
        sums.copy_from_slice(S::as_simd_f64s(lanes).0);
    }
    let others: [&[S::f64s]; U] =
        std::array::from_fn(|other| S::as_simd_f64s(&own(other)[..whole.len()]).0);
    for (at, one) in S::as_simd_f64s(whole).0.chunks_exact(V).enumerate() {
        for (sums, other) in sums.iter_mut().zip(&others) {
            let other = &other[at * V..at * V + V];
            for ((sum, &other), &one) in sums.iter_mut().zip(other).zip(one) {
                *sum = simd.add_f64s(*sum, simd.mul_f64s(other, one));
            }
        }
    }
    for (other, (sums, lanes)) in sums.iter().zip(lanes).enumerate() {
        S::as_mut_simd_f64s(lanes).0.copy_from_slice(sums);
        let rest = own(other)[whole.len()..].iter().zip(rest);
        for (lane, (own, one)) in lanes.iter_mut().zip(rest) {
            *lane += own * one;
        }
    }
}
