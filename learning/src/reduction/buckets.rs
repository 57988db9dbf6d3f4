//! Buckets of layers: tensors whose gradients are reduced together, as soon as the last one is
//! there.

use std::ops::Range;

use super::ELEMENT_BYTES;
use crate::virtual_workers::TransferCost;

/// The largest share of the time of a bucket's transfer that the latency may be.
pub const LATENCY_SHARE_MAX: f64 = 0.1;

/// The least bytes of a bucket: a transfer of them spends [`LATENCY_SHARE_MAX`] of its time in the
/// latency, from `alpha / (alpha + beta · bytes) = share`.
#[must_use]
pub fn bucket_bytes(link: TransferCost) -> u64 {
    let alpha_bytes = (1.0 - LATENCY_SHARE_MAX) / LATENCY_SHARE_MAX * link.alpha;
    // A link without alpha and beta gives NaN, which becomes 0: each tensor has its bucket.
    (alpha_bytes / link.beta).ceil() as u64
}

/// Groups consecutive tensors into buckets of at least `bytes_min` bytes each. `tensors` has the
/// elements of each tensor, in the order in which the backward pass finishes them. Returns ranges
/// of its indices. The last bucket also has the rest; less than `bytes_min` bytes in all are one
/// bucket.
#[must_use]
pub fn buckets(tensors: &[Range<u64>], bytes_min: u64) -> Vec<Range<usize>> {
    let mut buckets: Vec<Range<usize>> = Vec::new();
    let (mut start, mut bytes) = (0, 0_u64);
    for (at, elements) in tensors.iter().enumerate() {
        let size = elements.end.saturating_sub(elements.start).saturating_mul(ELEMENT_BYTES);
        bytes = bytes.saturating_add(size);
        if bytes >= bytes_min {
            buckets.push(start..at + 1);
            (start, bytes) = (at + 1, 0);
        }
    }
    match buckets.last_mut() {
        Some(last) => last.end = tensors.len(),
        None if !tensors.is_empty() => buckets.push(0..tensors.len()),
        None => {}
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_tensors_share_a_bucket_until_it_is_large_enough() {
        // Tensors of 40, 4, 8, 40 and 4 bytes, the last layer first.
        let tensors = [14..24, 13..14, 11..13, 1..11, 0..1];
        assert_eq!(buckets(&tensors, 40), [0..1, 1..5]);
        assert_eq!(buckets(&tensors, 12), [0..1, 1..3, 3..5]);
        assert_eq!(buckets(&tensors, 41), [0..2, 2..5]);
        assert_eq!(buckets(&tensors, 1_000), std::slice::from_ref(&(0..5)), "less than a bucket");
        assert_eq!(buckets(&tensors, 0).len(), 5);
        assert_eq!(buckets(&[], 12), Vec::<Range<usize>>::new());
    }

    #[test]
    fn the_latency_is_a_tenth_of_a_buckets_transfer() {
        let link = TransferCost { alpha: 20e-6, beta: 1.0 / 1.25e9 };
        let bytes = bucket_bytes(link);
        assert_eq!(bytes, 225_000);
        assert!((link.alpha / link.seconds(bytes) - LATENCY_SHARE_MAX).abs() < 1e-6);
        assert_eq!(bucket_bytes(TransferCost { alpha: 0.0, beta: 0.0 }), 0);
        assert_eq!(bucket_bytes(TransferCost { alpha: 1.0, beta: 0.0 }), u64::MAX, "one bucket");
    }
}
