//! Validation of update bytes: which are rejected and by which code, and that all ways of reading
//! agree.

use florin_protocol::{ErrorCode, UpdateFormat};

use crate::tests::{TestRound, decoded, world};
use crate::*;

#[test]
fn invalid_update_bytes_are_refused_with_their_code() {
    let TestRound { spec, updates, .. } = world();
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
        (ErrorCode::UpdateNotFinite, float(3, f32::NAN)),
        (ErrorCode::UpdateNotFinite, float(0, f32::INFINITY)),
        (ErrorCode::UpdateNormTooLarge, float(0, 1e9)),
        (ErrorCode::UpdateWrongSchema, edited("layer0.weight", "layer9.weight")),
        (ErrorCode::UpdateWrongSchema, edited("[10,64]", "[64,10]")),
        (ErrorCode::UpdateWrongSchema, edited("F32", "I32")),
        (ErrorCode::TooLarge, huge_header),
        (ErrorCode::TooLarge, longer),
        (ErrorCode::Truncated, good[..good.len() - 1].to_vec()),
        (ErrorCode::Truncated, vec![]),
    ] {
        let error = decoded(&spec, &bytes).expect_err(code.as_str());
        assert_eq!(error.code, code, "{error}");
        assert_eq!(inspect_update(&spec, &bytes), Err(error));
    }
    let delta = decoded(&spec, good).unwrap();
    let norm = florin_learning::params::norm(&delta);
    assert_eq!(inspect_update(&spec, good).unwrap().norm.to_bits(), norm.to_bits());
    assert_eq!(update_bytes(&spec), good.len() as u64);
}

#[test]
fn all_ways_of_reading_agree_for_every_format() {
    let TestRound { mut spec, updates, .. } = world();
    let plain = decoded(&spec, &updates[0]).unwrap();
    for format in [
        UpdateFormat::F32,
        UpdateFormat::Bf16,
        UpdateFormat::Int8,
        UpdateFormat::TopK { permille: 30 },
    ] {
        spec.rounds.format = format;
        let bytes = encode_update(&spec, plain.clone(), None, 7).unwrap().bytes;
        assert_eq!(update_bytes(&spec), bytes.len() as u64, "{format:?}");
        let delta = decoded(&spec, &bytes).unwrap();
        let norm = florin_learning::params::norm(&delta);
        assert_eq!(inspect_update(&spec, &bytes).unwrap().norm.to_bits(), norm.to_bits());
        // The previous contents of the buffer are overwritten.
        let mut out = vec![f32::NAN; delta.len()];
        decode_update_into(&spec, &bytes, &mut out).unwrap();
        assert_eq!(out, delta, "{format:?}");
        assert_eq!(delta == plain, format == UpdateFormat::F32);
        // A delta above the norm limit is clipped such that its decoded form is within the limit.
        let longer: Vec<f32> = plain.iter().map(|value| value * 1e4).collect();
        let bytes = encode_update(&spec, longer, None, 7).unwrap().bytes;
        let norm = inspect_update(&spec, &bytes).unwrap().norm;
        // Omitted parameters do not count in the norm.
        let least = if matches!(format, UpdateFormat::TopK { .. }) { 1.0 } else { 9.9 };
        assert!((least..=10.00001).contains(&norm), "{format:?}: {norm}");
        let error = encode_update(&spec, vec![f32::NAN; plain.len()], None, 7).unwrap_err();
        assert_eq!(error.code, ErrorCode::UpdateNotFinite);
        let short = inspect_update(&spec, &bytes[..bytes.len() - 1]).unwrap_err();
        assert_eq!(short.code, ErrorCode::Truncated, "{format:?}");
    }
}

#[test]
fn an_update_beyond_the_norm_is_refused_in_every_format() {
    let TestRound { mut spec, updates, .. } = world();
    let delta = decoded(&spec, &updates[0]).unwrap();
    for format in [UpdateFormat::Bf16, UpdateFormat::Int8, UpdateFormat::TopK { permille: 100 }] {
        spec.rounds.format = format;
        spec.rounds.delta_norm_max = "10".parse().unwrap();
        let long: Vec<f32> = delta.iter().map(|value| value * 1e4).collect();
        let bytes = encode_update(&spec, long, None, 7).unwrap().bytes;
        spec.rounds.delta_norm_max = "1".parse().unwrap();
        let error = inspect_update(&spec, &bytes).unwrap_err();
        assert_eq!(error.code, ErrorCode::UpdateNormTooLarge, "{format:?}: {error}");
        assert_eq!(decoded(&spec, &bytes).unwrap_err(), error);
    }
}

#[test]
fn the_residual_is_carried_to_the_next_round() {
    let TestRound { mut spec, updates, .. } = world();
    let delta = decoded(&spec, &updates[0]).unwrap();
    spec.rounds.format = UpdateFormat::TopK { permille: 100 };
    let first = encode_update(&spec, delta.clone(), None, 7).unwrap();
    let left = first.residual.unwrap();
    let sent = decoded(&spec, &first.bytes).unwrap();
    let second = encode_update(&spec, vec![0.0; delta.len()], Some(&left), 7).unwrap();
    let later = decoded(&spec, &second.bytes).unwrap();
    let left = second.residual.unwrap();
    for (at, meant) in delta.iter().enumerate() {
        assert_eq!(sent[at] + later[at] + left[at], *meant, "number {at}");
        assert!(sent[at] == 0.0 || later[at] == 0.0, "number {at} is sent twice");
    }
    assert!(later.iter().any(|value| *value != 0.0));
}
