//! Messages: their bytes, and those that are refused.

use super::*;
use crate::rng::{Purpose, below, rng};

fn form(sizes: &[u64], strides: &[u64]) -> TensorForm {
    let (sizes, strides) = (sizes.to_vec(), strides.to_vec());
    TensorForm { data_type: DataType::F32, sizes, strides, offset: 0 }
}

fn tensor(form: TensorForm) -> PipelineTensor {
    let bytes = form.elements().unwrap().count() as usize * form.data_type.bytes();
    PipelineTensor { form, has_gradient: true, bytes: (0..bytes).map(|at| at as u8).collect() }
}

fn values() -> Vec<PipelineValue> {
    let mut placed = form(&[2], &[1]);
    placed.offset = 8;
    vec![
        PipelineValue::Absent,
        PipelineValue::Int(-3),
        PipelineValue::Float(-0.0),
        PipelineValue::Bool(true),
        PipelineValue::Tensor(tensor(form(&[3, 2], &[1, 3]))),
        PipelineValue::Tensors(vec![tensor(placed), tensor(form(&[], &[]))]),
    ]
}

#[test]
fn a_message_has_the_bytes_of_the_format() {
    let small = PipelineTensor {
        form: TensorForm { data_type: DataType::I16, sizes: vec![1], strides: vec![1], offset: 2 },
        has_gradient: false,
        bytes: vec![7, 8],
    };
    let bytes = encode_message(&[PipelineValue::Bool(true), PipelineValue::Tensor(small)]);
    let mut expected = b"flpm\x02\0\0\0\x29\0\0\0\0\0\0\0\x03\x01\x04\x02\0\x02\x01".to_vec();
    expected.extend([1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 8]);
    assert_eq!(bytes.unwrap(), expected);
}

#[test]
fn messages_are_read_back() {
    for values in [Vec::new(), values()] {
        let bytes = encode_message(&values).unwrap();
        let lead = bytes.first_chunk().unwrap();
        assert_eq!(message_length(lead), Ok(bytes.len() as u64));
        assert_eq!(decode_message(&bytes).unwrap(), values);
    }
}

#[test]
fn expanded_elements_are_sent_once_and_overlapping_ones_as_a_span() {
    use FormElements::{Distinct, Span};
    let count = |sizes: &[u64], strides: &[u64]| form(sizes, strides).elements().unwrap();
    assert_eq!(count(&[4, 3], &[3, 1]), Distinct(12));
    assert_eq!(count(&[4, 3], &[0, 1]), Distinct(3));
    assert_eq!(count(&[], &[]), Distinct(1));
    assert_eq!(count(&[5, 0], &[1, 1]), Distinct(0));
    assert_eq!(count(&[1, 3], &[900, 2]), Distinct(3));
    // Windows of three elements, each one behind the other.
    assert_eq!(count(&[4, 3], &[1, 1]), Span(6));
    assert_eq!(count(&[2, 2], &[1, 1]), Span(3));
}

#[test]
fn malformed_messages_are_refused() {
    let bytes = encode_message(&values()).unwrap();
    for length in 0..bytes.len() {
        assert!(decode_message(&bytes[..length]).is_err(), "{length} bytes");
        // With a length that fits.
        let mut cut = bytes[..length].to_vec();
        if length >= LEAD_BYTES {
            cut[8..LEAD_BYTES].copy_from_slice(&(length as u64).to_le_bytes());
            assert!(decode_message(&cut).is_err(), "{length} bytes, stated");
        }
    }
    let mut foreign = bytes.clone();
    foreign[0] = b'x';
    assert_eq!(decode_message(&foreign), Err(MessageError::Foreign));
    let mut longer = bytes;
    longer.push(0);
    let length = longer.len() as u64;
    assert!(matches!(decode_message(&longer), Err(MessageError::Length { .. })));
    longer[8..LEAD_BYTES].copy_from_slice(&length.to_le_bytes());
    assert_eq!(decode_message(&longer), Err(invalid("bytes behind its last value")));
}

#[test]
fn limits_are_checked_before_memory_is_taken() {
    let huge = form(&[1 << 20, 1 << 20], &[1 << 20, 1]);
    assert!(huge.elements().is_err());
    assert!(form(&[2, 2], &[u64::MAX, 1]).elements().is_err());
    assert!(form(&[1; 17], &[1; 17]).elements().is_err());
    let mut odd = form(&[2], &[1]);
    odd.offset = 2;
    assert!(odd.elements().is_err());
    let mut other = tensor(form(&[2], &[1]));
    other.bytes.pop();
    assert!(encode_message(&[PipelineValue::Tensor(other)]).is_err());
    let mut lead = *encode_message(&[]).unwrap().first_chunk::<LEAD_BYTES>().unwrap();
    lead[8..].copy_from_slice(&(MESSAGE_BYTES_MAX + 1).to_le_bytes());
    assert!(message_length(&lead).is_err());
    lead[4..8].copy_from_slice(&(MESSAGE_VALUES_MAX + 1).to_le_bytes());
    assert!(message_length(&lead).is_err());
}

#[test]
fn changed_bytes_are_refused_or_read_as_another_message() {
    let bytes = encode_message(&values()).unwrap();
    for seed in 0..2_000 {
        let mut random = rng(seed, Purpose::Directions, 0);
        let mut changed = bytes.clone();
        for _ in 0..=below(&mut random, 3) {
            let at = below(&mut random, changed.len() as u64) as usize;
            changed[at] = below(&mut random, 256) as u8;
        }
        if let Ok(values) = decode_message(&changed) {
            assert_eq!(encode_message(&values).unwrap(), changed, "seed {seed}");
        }
    }
}
