//! The gradient of the mean loss, and the check of its parts.

use super::TranscriptError;
use super::sample::RowGroups;

/// Random vectors that a stated gradient is multiplied with.
pub(super) const PROJECTIONS: usize = 3;
/// Largest difference of a product, relative to the norms of its factors: engines differ by about 1e-14.
const PRODUCT_TOLERANCE: f64 = 1e-9;
/// The same for sums of stated numbers, which only differ by their rounding.
const SUM_TOLERANCE: f64 = 1e-11;
/// Smallest norm to which products are relative: rounding has an absolute size, too.
const NORM_MIN: f64 = 1e-3;
const WHAT: &str = "the gradient halfway";

/// Random vectors of numbers from −1 to 1 that follow from a gradient: a writer that changes the gradient changes
/// all of them. Signs would not do: two changes that cancel for three signs are found after a few tries. For three
/// numbers of 32 bits, and a change by a thousandth, it takes some (1e-3 / 1e-11)³, or 2⁸⁰.
pub(super) struct Multipliers {
    bytes: Vec<u8>,
    length: usize,
}

/// Bytes of a multiplier.
const MULTIPLIER_BYTES: usize = size_of::<u32>();

impl Multipliers {
    pub(super) fn of(gradient: &[f64]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("florin v1 transcript gradient");
        for number in gradient {
            hasher.update(&number.to_le_bytes());
        }
        let length = gradient.len();
        let mut bytes = vec![0; PROJECTIONS * length * MULTIPLIER_BYTES];
        hasher.finalize_xof().fill(&mut bytes);
        Self { bytes, length }
    }

    /// The product of a vector with each vector of multipliers.
    pub(super) fn products(&self, vector: &[f64]) -> [f64; PROJECTIONS] {
        let all = self.bytes.as_chunks::<MULTIPLIER_BYTES>().0;
        std::array::from_fn(|projection| {
            let own = &all[projection * self.length..(projection + 1) * self.length];
            let multiplied = vector.iter().zip(own).map(|(number, bytes)| {
                number * (f64::from(u32::from_le_bytes(*bytes)) / HALF - 1.0)
            });
            multiplied.sum()
        })
    }
}

/// 2³¹: divides a number of 32 bits into the range from 0 to 2.
const HALF: f64 = 2_147_483_648.0;

pub(super) fn length(vector: &[f64]) -> f64 {
    vector.iter().map(|number| number * number).sum::<f64>().sqrt()
}

/// Whether the stated products of the groups have the products of the stated gradient as their mean.
pub(super) fn check_sum(
    multipliers: &Multipliers,
    gradient: &[f64],
    products: &[[f64; PROJECTIONS]],
    groups: RowGroups,
) -> Result<(), TranscriptError> {
    let whole = multipliers.products(gradient);
    for (projection, whole) in whole.into_iter().enumerate() {
        let parts = || {
            let parts = products.iter().enumerate();
            parts.map(|(group, products)| products[projection] * groups.share(group))
        };
        let sum = parts().sum::<f64>() / groups.count as f64;
        let size = parts().map(f64::abs).sum::<f64>() / groups.count as f64 + length(gradient);
        // A NaN differs, too.
        let is_near = (sum - whole).abs() <= SUM_TOLERANCE * size;
        if !is_near || !size.is_finite() {
            return Err(differs(whole, sum));
        }
    }
    Ok(())
}

/// Compares the products of a group with those of its own gradient.
pub(super) fn check_group(
    multipliers: &Multipliers,
    stated: [f64; PROJECTIONS],
    gradient: &[f64],
) -> Result<(), TranscriptError> {
    let size = length(gradient).max(NORM_MIN);
    for (stated, own) in stated.into_iter().zip(multipliers.products(gradient)) {
        let is_near = (stated - own).abs() <= PRODUCT_TOLERANCE * size;
        if !is_near || !size.is_finite() {
            return Err(differs(stated, own));
        }
    }
    Ok(())
}

fn differs(stated: f64, recomputed: f64) -> TranscriptError {
    let [stated, recomputed] = [stated, recomputed].map(|number| number.to_string());
    TranscriptError::Differs { what: WHAT, stated, recomputed }
}
