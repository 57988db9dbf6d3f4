//! Bytes that claim to be an update: what is refused, by which code, and that every way of reading agrees.

use florin_protocol::Code;

use crate::tests::{World, world};
use crate::*;

#[test]
fn bytes_that_are_no_update_are_refused_with_their_code() {
    let World { spec, updates, .. } = world();
    let good = &updates[0];
    let float = |at: usize, value: f32| {
        let mut bytes = good.clone();
        let from = bytes.len() - 4 * (at + 1);
        bytes[from..from + 4].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    let edited = |from: &str, to: &str| {
        let mut bytes = good.clone();
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        bytes
    };
    let mut huge_header = 99_000_000u64.to_le_bytes().to_vec();
    huge_header.extend_from_slice(&good[8..]);
    let mut longer = good.clone();
    longer.extend_from_slice(&[0; 4]);
    for (code, bytes) in [
        (Code::UpdateNotFinite, float(3, f32::NAN)),
        (Code::UpdateNotFinite, float(0, f32::INFINITY)),
        (Code::UpdateNormTooLarge, float(0, 1e9)),
        (Code::UpdateWrongSchema, edited("layer0.weight", "layer9.weight")),
        (Code::UpdateWrongSchema, edited("[10,64]", "[64,10]")),
        (Code::UpdateWrongSchema, edited("F32", "I32")),
        (Code::TooLarge, huge_header),
        (Code::TooLarge, longer),
        (Code::Truncated, good[..good.len() - 1].to_vec()),
        (Code::Truncated, vec![]),
    ] {
        let error = check_update(&spec, &bytes).expect_err(code.as_str());
        assert_eq!(error.code, code, "{error}");
        assert_eq!(inspect_update(&spec, &bytes), Err(error));
    }
    let delta = check_update(&spec, good).unwrap();
    let norm = florin_learning::params::norm(&delta);
    assert_eq!(inspect_update(&spec, good).unwrap().norm.to_bits(), norm.to_bits());
    assert_eq!(update_bytes(&spec), good.len() as u64);
}
