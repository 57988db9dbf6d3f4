//! Encoded bytes of every format, bounds of the decoding error, and rejections.

use proptest::prelude::*;
use safetensors::{Dtype as Theirs, SafeTensors};

use super::*;
use crate::rng::{Purpose, rng, uniform};
use crate::tensors::PIECE;

const ALL: [WireFormat; 6] = [
    WireFormat::F32,
    WireFormat::Bf16,
    WireFormat::Int8,
    WireFormat::TopK { permille: 1 },
    WireFormat::TopK { permille: 100 },
    WireFormat::TopK { permille: 500 },
];

/// A norm limit above all deltas of the tests.
const FAR: f64 = 1e30;

fn small() -> ModelSpec {
    ModelSpec::Softmax { inputs: 2, classes: 2 }
}

/// Two tensors; the first is longer than a piece and its length is not a multiple of eight.
fn large() -> ModelSpec {
    ModelSpec::Softmax { inputs: 1001, classes: 5 }
}

fn written(model: &ModelSpec, format: WireFormat, delta: &[f32], seed: u64) -> Vec<u8> {
    encode(model, format, delta, FAR, seed).unwrap().bytes
}

/// All decoded numbers, with a check of the pieces.
fn read(model: &ModelSpec, format: WireFormat, bytes: &[u8]) -> Result<Vec<f32>, DecodeError> {
    let mut values = vec![0.0; model.parameters()];
    let mut reached = 0;
    walk(model, format, bytes, &mut |from, piece| {
        assert!(from >= reached && piece.len() <= PIECE, "{format:?}: {from}");
        reached = from + piece.len();
        values[from..reached].copy_from_slice(piece);
    })?;
    Ok(values)
}

fn drawn(numbers: usize, seed: u64) -> Vec<f32> {
    let mut rng = rng(seed, Purpose::Split, 0);
    (0..numbers).map(|_| (uniform(&mut rng) * 2.0 - 1.0).powi(3) as f32).collect()
}

/// The bytes after the header.
fn body(bytes: &[u8]) -> &[u8] {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    &bytes[8 + length..]
}

const DELTA: [f32; 6] = [127.0, -2.0, 0.5, 0.25, -254.0, 0.0];

#[test]
fn encoded_bytes_match_the_documented_layout() {
    let expect = |format, header: &str, expected: &[u8]| {
        let bytes = written(&small(), format, &DELTA, 0);
        let text = String::from_utf8(bytes[8..bytes.len() - expected.len()].to_vec()).unwrap();
        assert_eq!(text.trim_end(), header, "{format:?}");
        assert_eq!((text.len() % 8, body(&bytes)), (0, expected), "{format:?}");
    };
    expect(
        WireFormat::Bf16,
        r#"{"layer0.weight":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},"layer0.bias":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]}}"#,
        &[0xfe, 0x42, 0x00, 0xc0, 0x00, 0x3f, 0x80, 0x3e, 0x7e, 0xc3, 0x00, 0x00],
    );
    // Scales 1 and 2; 0.5 and 0.25 are rounded to 0 or 1 at random.
    let int8 = written(&small(), WireFormat::Int8, &DELTA, 0);
    assert_eq!(body(&int8)[..10], [0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 127, 254]);
    assert!(body(&int8)[10] <= 1 && body(&int8)[11] <= 1);
    assert_eq!(body(&int8)[12..], [129, 0]);
    assert!(
        String::from_utf8_lossy(&int8).contains(
            r#"{"layer0.weight.scale":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"layer0.bias.scale":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},"layer0.weight":{"dtype":"I8","shape":[2,2],"data_offsets":[8,12]},"layer0.bias":{"dtype":"I8","shape":[2],"data_offsets":[12,14]}}"#
        )
    );
    expect(
        WireFormat::TopK { permille: 500 },
        r#"{"indices":{"dtype":"U32","shape":[3],"data_offsets":[0,12]},"values":{"dtype":"F32","shape":[3],"data_offsets":[12,24]}}"#,
        &[0, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0xfe, 0x42, 0, 0, 0, 0xc0, 0, 0, 0x7e, 0xc3],
    );
    let plain = tensors::encode(&small(), &DELTA).unwrap();
    assert_eq!(written(&small(), WireFormat::F32, &DELTA, 0), plain);
}

#[test]
fn the_safetensors_crate_reads_every_format() {
    let dtypes = |format| {
        let bytes = written(&small(), format, &DELTA, 1);
        let theirs = SafeTensors::deserialize(&bytes).unwrap();
        let mut listed: Vec<(String, Theirs, usize)> = theirs
            .iter()
            .map(|(name, view)| (name.to_owned(), view.dtype(), view.data().len()))
            .collect();
        listed.sort_by(|a, b| a.0.cmp(&b.0));
        listed
    };
    let row = |name: &str, dtype, bytes| (name.to_owned(), dtype, bytes);
    let bias = row("layer0.bias", Theirs::BF16, 4);
    assert_eq!(dtypes(WireFormat::Bf16), [bias, row("layer0.weight", Theirs::BF16, 8)]);
    let (one, two) = (row("layer0.bias", Theirs::I8, 2), row("layer0.bias.scale", Theirs::F32, 4));
    let weights = [row("layer0.weight", Theirs::I8, 4), row("layer0.weight.scale", Theirs::F32, 4)];
    assert_eq!(dtypes(WireFormat::Int8), [[one, two], weights].concat());
    let places = row("indices", Theirs::U32, 4);
    assert_eq!(dtypes(WireFormat::TopK { permille: 1 }), [places, row("values", Theirs::F32, 4)]);
}

#[test]
fn an_update_has_the_length_of_its_format_and_no_other_is_accepted() {
    for format in ALL {
        let delta = drawn(large().parameters(), 3);
        let bytes = written(&large(), format, &delta, 3);
        assert_eq!(bytes.len(), encoded_len(&large(), format), "{format:?}");
        assert!(read(&large(), format, &bytes).is_ok());
        let longer = [bytes.clone(), vec![0]].concat();
        let code = |bytes: &[u8]| read(&large(), format, bytes).unwrap_err().code();
        assert_eq!(code(&longer), "UPDATE_TRAILING_BYTES", "{format:?}");
        for length in [0, 7, 8, 100, bytes.len() - 1] {
            assert_eq!(code(&bytes[..length]), "UPDATE_TRUNCATED", "{format:?}: {length}");
        }
        // An update of another format is refused.
        for other in ALL.into_iter().filter(|other| *other != format) {
            assert!(read(&large(), other, &bytes).is_err(), "{format:?} read as {other:?}");
        }
    }
    let count = |permille| top_k::selected_count(10_000, permille);
    assert_eq!([count(1), count(100), count(500)], [10, 1000, 5000]);
    assert_eq!(
        (top_k::selected_count(6, 1), top_k::selected_count(1001, 1)),
        (1, 2),
        "at least one, rounded up"
    );
}

#[test]
fn a_delta_that_cannot_be_encoded_is_refused() {
    let write = |delta: &[f32], format| encode(&small(), format, delta, 1.0, 0);
    for format in ALL {
        assert!(matches!(write(&DELTA[1..], format), Err(EncodeError::Params(_))));
        let mut broken = DELTA;
        broken[4] = f32::NEG_INFINITY;
        assert_eq!(write(&broken, format), Err(EncodeError::NotFinite { index: 4 }));
        for norm in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(encode(&small(), format, &DELTA, norm, 0).is_err(), "{format:?}: {norm}");
        }
    }
    for got in [0, 501, u16::MAX] {
        let format = WireFormat::TopK { permille: got };
        assert_eq!(write(&DELTA, format), Err(EncodeError::Permille { got }));
    }
}

#[test]
fn top_k_prefers_the_first_of_equal_numbers_and_returns_the_residual() {
    let delta = [1.0, -1.0, 2.0, 1.0, -1.0, 0.0];
    let format = WireFormat::TopK { permille: 500 };
    let Encoded { bytes, residual } = encode(&small(), format, &delta, FAR, 0).unwrap();
    assert_eq!(read(&small(), format, &bytes).unwrap(), [1.0, -1.0, 2.0, 0.0, 0.0, 0.0]);
    assert_eq!(residual.unwrap(), [0.0, 0.0, 0.0, 1.0, -1.0, 0.0]);
    // A smaller limit shortens the sent numbers; they are not part of the residual.
    let Encoded { bytes, residual } =
        encode(&small(), format, &delta, 6_f64.sqrt() / 2.0, 0).unwrap();
    let half = read(&small(), format, &bytes).unwrap();
    assert!((half[2] - 1.0).abs() < 1e-6 && (half[0] - 0.5).abs() < 1e-6, "{half:?}");
    assert_eq!(residual.unwrap(), [0.0, 0.0, 0.0, 1.0, -1.0, 0.0]);
    for format in ALL {
        let zeros = written(&small(), format, &[0.0; 6], 5);
        assert_eq!(read(&small(), format, &zeros).unwrap(), [0.0; 6], "{format:?}");
    }
}

/// Replaces bytes of the body.
fn forged(format: WireFormat, at: usize, with: &[u8]) -> Vec<u8> {
    let mut bytes = written(&small(), format, &DELTA, 0);
    let from = bytes.len() - body(&bytes).len() + at;
    bytes[from..from + with.len()].copy_from_slice(with);
    bytes
}

#[test]
fn every_forgery_is_refused_with_its_own_code() {
    let top_k = WireFormat::TopK { permille: 500 };
    let int8 = |at, with: &[u8]| (WireFormat::Int8, at, with.to_vec());
    let scale = |value: f32| int8(0, &value.to_le_bytes());
    type Forgery = (WireFormat, usize, Vec<u8>);
    let table: Vec<(Forgery, &str)> = vec![
        (scale(f32::NAN), "UPDATE_WRONG_SCALE"),
        (scale(f32::INFINITY), "UPDATE_WRONG_SCALE"),
        (scale(-1.0), "UPDATE_WRONG_SCALE"),
        (scale(-0.0), "UPDATE_WRONG_SCALE"),
        (scale(f32::MIN_POSITIVE / 2.0), "UPDATE_WRONG_SCALE"),
        (scale(f32::MAX / 126.0), "UPDATE_WRONG_SCALE"),
        (scale(0.0), "UPDATE_SCALE_NOT_MINIMAL"),
        (int8(8, &[126]), "UPDATE_SCALE_NOT_MINIMAL"),
        (int8(12, &[130]), "UPDATE_SCALE_NOT_MINIMAL"),
        (int8(9, &[0x80]), "UPDATE_WRONG_CODE"),
        ((top_k, 4, vec![0]), "UPDATE_WRONG_INDEX"),
        ((top_k, 0, vec![1]), "UPDATE_WRONG_INDEX"),
        ((top_k, 8, vec![6]), "UPDATE_WRONG_INDEX"),
        ((top_k, 8, vec![255; 4]), "UPDATE_WRONG_INDEX"),
        ((top_k, 0, vec![5]), "UPDATE_WRONG_INDEX"),
        ((top_k, 12, f32::NAN.to_le_bytes().to_vec()), "UPDATE_NOT_FINITE"),
        ((top_k, 20, f32::INFINITY.to_le_bytes().to_vec()), "UPDATE_NOT_FINITE"),
        ((WireFormat::Bf16, 10, vec![0x80, 0x7f]), "UPDATE_NOT_FINITE"),
        ((WireFormat::Bf16, 0, vec![0xc1, 0xff]), "UPDATE_NOT_FINITE"),
        ((WireFormat::F32, 20, f32::NAN.to_le_bytes().to_vec()), "UPDATE_NOT_FINITE"),
    ];
    for ((format, at, with), code) in table {
        let error = read(&small(), format, &forged(format, at, &with)).unwrap_err();
        assert_eq!(error.code(), code, "{format:?} {at} {with:?}: {error}");
    }
    let error = read(&small(), top_k, &forged(top_k, 8, &[9])).unwrap_err().to_string();
    assert_eq!(error, "index 2 is 9: must be at least 2 and below 6");
    let error = read(&small(), WireFormat::Int8, &forged(WireFormat::Int8, 12, &[1])).unwrap_err();
    let expected =
        "tensor `layer0.bias` has scale 2e0 and the largest code 1: the largest code must be 127";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn numbers_at_the_limits_of_f32_round_trip() {
    let edges = [f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45, -1e-45, f32::MAX / 2.0];
    for format in ALL {
        let bytes = encode(&small(), format, &edges, f64::MAX, 1).unwrap().bytes;
        let values = read(&small(), format, &bytes).unwrap();
        assert!(values.iter().all(|value| value.is_finite()), "{format:?}: {values:?}");
        assert!(values[0] >= f32::MAX * 0.995, "{format:?}: {values:?}");
    }
    // Too small for a normal scale: all numbers become zero, without an error.
    let tiny = written(&small(), WireFormat::Int8, &[1e-40; 6], 1);
    assert_eq!(read(&small(), WireFormat::Int8, &tiny).unwrap(), [0.0; 6]);
}

/// Proptest draws the seed and prints it on failure. Hoeffding: the mean of `n` independent draws,
/// each within an interval of the length of the scale, is further than `scale * sqrt(ln(2 / p) /
/// 2n)` from its expectation with a probability below `p`. With p = 1e-12 for each of 64 numbers
/// and their mean, 16 cases fail by chance once in 1e9 runs.
#[track_caller]
fn rounding_is_unbiased(seed: u64) -> Result<(), TestCaseError> {
    const TRIALS: u64 = 2_000;
    let model = ModelSpec::Softmax { inputs: 31, classes: 2 };
    let delta = drawn(64, seed);
    let mut sums = vec![0.0_f64; 64];
    for trial in 0..TRIALS {
        let bytes = written(&model, WireFormat::Int8, &delta, seed.wrapping_add(trial));
        for (sum, value) in sums.iter_mut().zip(read(&model, WireFormat::Int8, &bytes).unwrap()) {
            *sum += f64::from(value);
        }
    }
    let scale =
        |values: &[f32]| f64::from(values.iter().fold(0.0_f32, |m, v| m.max(v.abs()))) / 127.0;
    let scales = [scale(&delta[..62]), scale(&delta[62..])];
    let bound = |draws: f64| ((2.0 / 1e-12_f64).ln() / (2.0 * draws)).sqrt();
    let mut all = 0.0;
    for (at, (sum, meant)) in sums.iter().zip(&delta).enumerate() {
        let scale = scales[usize::from(at >= 62)];
        let off = (sum / TRIALS as f64 - f64::from(*meant)) / scale;
        // Scales are rounded to f32, and so are their products.
        let most = bound(TRIALS as f64) + 127.0 * 4.0 * f64::from(f32::EPSILON);
        prop_assert!(off.abs() <= most, "seed {}, number {}: {} scales off", seed, at, off);
        all += off / 64.0;
    }
    let most = bound(64.0 * TRIALS as f64) + 127.0 * 4.0 * f64::from(f32::EPSILON);
    prop_assert!(all.abs() <= most, "seed {}: {} scales off on average", seed, all);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn rounding_to_int8_is_unbiased(seed in any::<u64>()) {
        rounding_is_unbiased(seed)?;
    }
}

proptest! {
    #[test]
    fn decoded_numbers_are_within_the_format_s_bound(
        delta in prop::collection::vec(-1e3_f32..1e3, 6), seed in any::<u64>(),
    ) {
        for format in ALL {
            let Encoded { bytes, residual } = encode(&small(), format, &delta, FAR, seed).unwrap();
            prop_assert_eq!(&bytes, &written(&small(), format, &delta, seed));
            let values = read(&small(), format, &bytes).unwrap();
            let largest = |values: &[f32]| values.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
            for (at, (value, meant)) in values.iter().zip(&delta).enumerate() {
                let own = if at < 4 { &delta[..4] } else { &delta[4..] };
                let most = match format {
                    WireFormat::F32 => 0.0,
                    WireFormat::Bf16 => meant.abs() / 256.0,
                    WireFormat::Int8 => largest(own) / 127.0 * (1.0 + 127.0 * 2.0 * f32::EPSILON),
                    WireFormat::TopK { .. } => residual.as_ref().unwrap()[at].abs(),
                };
                let near = (value - meant).abs() <= most;
                prop_assert!(near, "{:?} {}: {} for {}", format, at, value, meant);
            }
            if let Some(residual) = residual {
                let both = values.iter().zip(&residual).map(|(sent, left)| sent + left);
                prop_assert_eq!(both.collect::<Vec<_>>(), delta.clone());
                let least = values.iter().filter(|value| **value != 0.0);
                let least = least.fold(f32::MAX, |m, v| m.min(v.abs()));
                prop_assert!(largest(&residual) <= least);
            }
        }
    }

    #[test]
    fn a_decoded_norm_is_within_the_limit_and_close_to_it(
        delta in prop::collection::vec(-1e3_f32..1e3, 6), max in 1e-3_f64..1e3,
        seed in any::<u64>(),
    ) {
        for format in ALL {
            let bytes = encode(&small(), format, &delta, max, seed).unwrap().bytes;
            let decoded = decoded_norm(&small(), format, &bytes).unwrap();
            // The tolerance of a receiver, see `florin_work::inspect_update`.
            prop_assert!(decoded <= max * (1.0 + 1e-6), "{:?}: {} above {}", format, decoded, max);
            let free = decoded_norm(&small(), format, &written(&small(), format, &delta, seed));
            let least = free.unwrap().min(max) * 0.99;
            prop_assert!(decoded >= least, "{:?}: {} below {}", format, decoded, least);
        }
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(
        mut changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        noise in prop::collection::vec(any::<u8>(), 0..400),
        delta in prop::collection::vec(-1.0_f32..1.0, 6),
    ) {
        for format in ALL {
            let mut bytes = written(&small(), format, &delta, 1);
            for (place, value) in &mut changes {
                let place = place.index(bytes.len());
                bytes[place] = *value;
            }
            if let Ok(values) = read(&small(), format, &bytes) {
                prop_assert!(values.iter().all(|value| value.is_finite()));
            }
            prop_assert!(read(&small(), format, &noise).is_err());
            // A valid header, followed by arbitrary numbers.
            let header = bytes.len() - body(&written(&small(), format, &delta, 1)).len();
            let mut behind = written(&small(), format, &delta, 1);
            for (byte, noise) in behind[header..].iter_mut().zip(&noise) {
                *byte = *noise;
            }
            if let Ok(values) = read(&small(), format, &behind) {
                prop_assert!(values.iter().all(|value| value.is_finite()));
            }
        }
    }
}

#[test]
fn encoding_is_deterministic_and_only_int8_uses_the_seed() {
    let delta = drawn(large().parameters(), 8);
    for format in ALL {
        let once = written(&large(), format, &delta, 8);
        assert_eq!(once, written(&large(), format, &delta, 8), "{format:?}");
        assert_eq!(once != written(&large(), format, &delta, 9), format == WireFormat::Int8);
    }
    // Training again after a crash must give the same bytes.
    let bytes = written(&large(), WireFormat::Int8, &delta, 8);
    assert_eq!(body(&bytes)[8..24], GOLDEN);
}

const GOLDEN: [u8; 16] = [30, 226, 56, 22, 3, 255, 11, 239, 55, 209, 0, 191, 33, 66, 57, 237];
