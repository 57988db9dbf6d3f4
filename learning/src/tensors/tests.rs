//! Encoded bytes of the codec, and its rejections.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::*;

fn model() -> ModelSpec {
    ModelSpec::Softmax { inputs: 2, classes: 2 }
}

const VALUES: [f32; 6] = [1.0, -2.0, 0.5, 0.25, 3.0, -0.0];

/// [`VALUES`] with this header in front.
fn with_header(header: &str) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend(VALUES.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

const WEIGHT: &str = r#""layer0.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}"#;
const BIAS: &str = r#""layer0.bias":{"dtype":"F32","shape":[2],"data_offsets":[16,24]}"#;

#[test]
fn encoded_bytes_match_the_documented_layout() {
    let bytes = encode(&model(), &VALUES).unwrap();
    let mut header = format!("{{{WEIGHT},{BIAS}}}");
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    assert_eq!(bytes, with_header(&header));
    assert_eq!(bytes.len(), encoded_len(&model()));
    assert_eq!(decode(&model(), &bytes).unwrap(), VALUES);
}

#[test]
fn the_safetensors_crate_reads_our_bytes_and_its_order_is_refused() {
    let ours = encode(&model(), &VALUES).unwrap();
    let theirs = SafeTensors::deserialize(&ours).unwrap();
    let bias = theirs.tensor("layer0.bias").unwrap();
    assert_eq!(
        (bias.dtype(), bias.shape(), bias.data()),
        (Dtype::F32, &[2][..], &ours[ours.len() - 8..])
    );

    let data = &ours[ours.len() - 24..];
    let view = |shape: &[usize], data| TensorView::new(Dtype::F32, shape.to_vec(), data).unwrap();
    let listed =
        [("layer0.weight", view(&[2, 2], &data[..16])), ("layer0.bias", view(&[2], &data[16..]))];
    let written = safetensors::serialize(listed, None).unwrap();
    assert_ne!(written, ours, "the safetensors crate sorts by name");
    assert_eq!(decode(&model(), &written), Err(DecodeError::NotCanonical));
}

#[test]
fn walking_several_pieces_equals_decoding() {
    let model = ModelSpec::Softmax { inputs: 999, classes: 9 };
    let mut values = model.init(3).into_vec();
    let bytes = encode(&model, &values).unwrap();
    let mut seen = vec![];
    crate::wire::walk(&model, crate::wire::WireFormat::F32, &bytes, &mut |from, piece| {
        assert_eq!(from, seen.len());
        seen.extend_from_slice(piece);
    })
    .unwrap();
    assert!(seen == values && decode(&model, &bytes).unwrap() == values);
    // In the second and third pieces.
    for (at, tensor, index) in [(5000, "layer0.weight", 5000), (8999, "layer0.bias", 8)] {
        let good = std::mem::replace(&mut values[at], f32::NAN);
        let bytes = encode(&model, &values).unwrap();
        let error = decode(&model, &bytes).unwrap_err();
        assert_eq!(error, DecodeError::NotFinite { tensor: tensor.into(), index });
        values[at] = good;
    }
}

#[test]
fn every_invalid_header_is_refused_with_its_own_code() {
    let change = |from: &str, to: &str| format!("{{{WEIGHT},{BIAS}}}").replace(from, to);
    let table = [
        (format!("{{{WEIGHT}}}"), "UPDATE_MISSING_TENSOR"),
        (format!("{{{WEIGHT},{BIAS},{BIAS}}}"), "UPDATE_DUPLICATE_TENSOR"),
        (change("layer0.bias", "../../etc/x"), "UPDATE_WRONG_NAME"),
        (
            format!("{{\"__metadata__\":{{\"a\":\"b\"}},{WEIGHT},{BIAS}}}"),
            "UPDATE_HEADER_MALFORMED",
        ),
        (change("[2,2]", "[4]"), "UPDATE_WRONG_SHAPE"),
        (change("[2,2]", "[0,1152921504606846976]"), "UPDATE_WRONG_SHAPE"),
        (change("[2,2]", "[2,-2]"), "UPDATE_HEADER_MALFORMED"),
        (change("F32\",\"shape\":[2,2]", "F64\",\"shape\":[2,2]"), "UPDATE_WRONG_DTYPE"),
        (change("[0,16]", "[0,12]"), "UPDATE_WRONG_OFFSETS"),
        (change("[16,24]", "[8,16]"), "UPDATE_WRONG_OFFSETS"),
        (change("[16,24]", "[20,28]"), "UPDATE_WRONG_OFFSETS"),
        (change("[16,24]", "[24,16]"), "UPDATE_WRONG_OFFSETS"),
        (change("[16,24]", "[18446744073709551608,18446744073709551615]"), "UPDATE_WRONG_OFFSETS"),
        (change("[16,24]", "[1,2,3]"), "UPDATE_HEADER_MALFORMED"),
        (change("\"dtype\":\"F32\",\"shape\":[2]", "\"shape\":[2]"), "UPDATE_HEADER_MALFORMED"),
        (change("\"shape\":[2],", "\"shape\":[2],\"shape\":[2],"), "UPDATE_HEADER_MALFORMED"),
        (change("\"shape\":[2],", "\"shape\":[2],\"x\":1,"), "UPDATE_HEADER_MALFORMED"),
        (format!("[{WEIGHT}]"), "UPDATE_HEADER_MALFORMED"),
        (format!("{{{WEIGHT},{BIAS}"), "UPDATE_HEADER_MALFORMED"),
        (format!("{{{WEIGHT}, {BIAS}}}"), "UPDATE_NOT_CANONICAL"),
        (format!("{{{BIAS},{WEIGHT}}}"), "UPDATE_NOT_CANONICAL"),
        (String::new(), "UPDATE_HEADER_MALFORMED"),
        ("[".repeat(300), "UPDATE_HEADER_MALFORMED"),
    ];
    for (header, code) in table {
        let error = decode(&model(), &with_header(&header)).unwrap_err();
        assert_eq!(error.code(), code, "{header}: {error}");
    }
}

#[test]
fn a_99_mb_header_is_refused_without_reading_it() {
    let mut bytes = 99_000_000_u64.to_le_bytes().to_vec();
    bytes.resize(99_000_008, b' ');
    let start = Instant::now();
    let error = decode(&model(), &bytes).unwrap_err();
    assert!(matches!(error, DecodeError::HeaderTooLarge { bytes: 99_000_000, .. }), "{error}");
    assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
    let huge = u64::MAX.to_le_bytes();
    assert_eq!(decode(&model(), &huge).unwrap_err().code(), "UPDATE_HEADER_TOO_LARGE");
}

#[test]
fn truncated_and_extended_bytes_are_refused() {
    let bytes = encode(&model(), &VALUES).unwrap();
    for length in 0..bytes.len() {
        let error = decode(&model(), &bytes[..length]).unwrap_err();
        assert!(matches!(error, DecodeError::Truncated { .. }), "{length}: {error}");
    }
    let longer = [bytes, vec![0]].concat();
    assert_eq!(decode(&model(), &longer).unwrap_err().code(), "UPDATE_TRAILING_BYTES");
}

#[test]
fn nan_and_infinity_are_refused_with_their_index() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = VALUES;
        values[5] = bad;
        let error = decode(&model(), &encode(&model(), &values).unwrap()).unwrap_err();
        assert_eq!(error, DecodeError::NotFinite { tensor: "layer0.bias".into(), index: 1 });
        assert_eq!(error.code(), "UPDATE_NOT_FINITE");
    }
    assert!(encode(&model(), &VALUES[1..]).is_err());
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(
        mut at in prop::collection::vec((0_usize..1000, any::<u8>()), 1..6),
    ) {
        let mut bytes = encode(&model(), &VALUES).unwrap();
        for (place, value) in at.drain(..) {
            let place = place % bytes.len();
            bytes[place] = value;
        }
        if let Ok(values) = decode(&model(), &bytes) {
            prop_assert!(values.len() == 6 && values.iter().all(|value| value.is_finite()));
        }
    }
}

/// The canonical bytes with a part replaced by another of the same length.
fn replaced(from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = encode(&model(), &VALUES).unwrap();
    let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    bytes
}

#[test]
fn a_header_check_is_incomplete_until_its_last_byte() {
    let bytes = encode(&model(), &VALUES).unwrap();
    let end = bytes.len() - 4 * VALUES.len();
    for n in 0..=bytes.len() {
        let right = header::check(&sections(&model()), &bytes[..n], bytes.len() as u64).unwrap();
        assert_eq!(right, n >= end, "{n} of {end} bytes");
    }
}

#[test]
fn header_errors_are_reported_before_the_numbers_with_the_same_error() {
    let good = encode(&model(), &VALUES).unwrap();
    let mut large = good.clone();
    large[..8].copy_from_slice(&99_000_000u64.to_le_bytes());
    let table = [
        ("UPDATE_WRONG_NAME", replaced("layer0.bias", "layer9.bias")),
        ("UPDATE_DUPLICATE_TENSOR", with_header(&format!("{{{WEIGHT},{WEIGHT}}}"))),
        ("UPDATE_MISSING_TENSOR", with_header(&format!("{{{WEIGHT}}}"))),
        ("UPDATE_WRONG_SHAPE", replaced("[2,2]", "[4,1]")),
        ("UPDATE_WRONG_DTYPE", replaced("\"F32\"", "\"I32\"")),
        ("UPDATE_WRONG_OFFSETS", replaced("[0,16]", "[4,20]")),
        ("UPDATE_HEADER_MALFORMED", replaced("{\"layer0", "[\"layer0")),
        ("UPDATE_NOT_CANONICAL", with_header(&format!("{{{BIAS},{WEIGHT}}}"))),
        ("UPDATE_HEADER_TOO_LARGE", large),
        ("UPDATE_TRAILING_BYTES", [good.clone(), vec![0; 4]].concat()),
        ("UPDATE_TRUNCATED", good[..good.len() - 1].to_vec()),
        ("UPDATE_TRUNCATED", vec![1, 2, 3]),
    ];
    for (code, wrong) in table {
        let numbers = 4 * VALUES.len();
        let first = &wrong[..wrong.len().saturating_sub(numbers).max(8).min(wrong.len())];
        let early = header::check(&sections(&model()), first, wrong.len() as u64).unwrap_err();
        assert_eq!(early.code(), code, "{early}");
        assert_eq!(decode(&model(), &wrong).unwrap_err(), early);
    }
}
