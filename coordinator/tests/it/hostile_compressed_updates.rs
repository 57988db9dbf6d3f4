//! Hostile updates in the compressed formats: wrong scales and indices. Each is rejected with its
//! code, and the round's result is bit-identical to one without it.

use florin_protocol::*;

use crate::hostile_updates::{HostileChange, SafetensorsBytes, check_hostile_updates};

const SCHEMA: ErrorCode = ErrorCode::UpdateWrongSchema;
/// Parameters of the digits model, which has two tensors.
const NUMBERS: usize = 650;
/// Parameters that remain at 100 permille.
const TOP_K_PARAMETERS: usize = 65;

fn scale(bytes: SafetensorsBytes, scale: f32) -> Vec<u8> {
    bytes.set(0, &scale.to_le_bytes())
}

/// The update with each quantised code changed.
fn coded(bytes: SafetensorsBytes, change: impl Fn(i8) -> i8) -> Vec<u8> {
    let codes = &bytes.data[8..8 + NUMBERS];
    let codes: Vec<u8> = codes.iter().map(|code| change(*code as i8) as u8).collect();
    bytes.set(8, &codes)
}

const INT8: [HostileChange; 15] = [
    ("a scale that is NaN", SCHEMA, |b| scale(b, f32::NAN)),
    ("an infinite scale", SCHEMA, |b| scale(b, f32::INFINITY)),
    ("a negative scale", SCHEMA, |b| scale(b, -1e-3)),
    ("a scale of minus zero", SCHEMA, |b| scale(b, -0.0)),
    ("a subnormal scale", SCHEMA, |b| scale(b, 1e-40)),
    ("a scale whose values overflow", SCHEMA, |b| scale(b, 3e36)),
    ("a zero scale with non-zero codes", SCHEMA, |b| scale(b, 0.0)),
    ("a scale that is far too large", ErrorCode::UpdateNormTooLarge, |b| scale(b, 1e6)),
    ("the largest scale", ErrorCode::UpdateNormTooLarge, |b| scale(b, 2.6e36)),
    ("a code beyond the scale", SCHEMA, |b| {
        coded(b, |code| if code.abs() == 127 { -128 } else { code })
    }),
    ("a scale that no code reaches", SCHEMA, |b| coded(b, |code| code / 2)),
    ("a scale with only zero codes", SCHEMA, |b| coded(b, |_| 0)),
    ("codes declared as 32-bit integers", SCHEMA, |b| b.changed("\"I8\"", "\"I32\"")),
    ("a scale for each parameter", SCHEMA, |b| b.changed("[1]", "[10]")),
    ("a scale of another tensor", SCHEMA, |b| b.changed("layer0.bias.scale", "layer9.bias.scale")),
];

fn index(bytes: SafetensorsBytes, place: usize, index: u32) -> Vec<u8> {
    bytes.set(4 * place, &index.to_le_bytes())
}

fn value(bytes: SafetensorsBytes, place: usize, value: f32) -> Vec<u8> {
    bytes.set(4 * (TOP_K_PARAMETERS + place), &value.to_le_bytes())
}

fn index_at(bytes: &SafetensorsBytes, place: usize) -> u32 {
    u32::from_le_bytes(bytes.data[4 * place..4 * place + 4].try_into().unwrap())
}

const TOP_K: [HostileChange; 14] = [
    ("an index past the end", SCHEMA, |b| index(b, TOP_K_PARAMETERS - 1, NUMBERS as u32)),
    ("an index far past the end", SCHEMA, |b| index(b, TOP_K_PARAMETERS - 1, u32::MAX)),
    ("an index whose byte offset overflows", SCHEMA, |b| index(b, TOP_K_PARAMETERS - 1, 1 << 30)),
    ("the same index twice", SCHEMA, |b| {
        let first = index_at(&b, 0);
        index(b, 1, first)
    }),
    ("a descending index", SCHEMA, |b| index(b, TOP_K_PARAMETERS - 1, 0)),
    ("all indices zero", SCHEMA, |b| b.set(0, &[0; 4 * TOP_K_PARAMETERS])),
    ("all indices the last", SCHEMA, |b| {
        b.set(0, &(NUMBERS as u32 - 1).to_le_bytes().repeat(TOP_K_PARAMETERS))
    }),
    ("a value that is NaN", ErrorCode::UpdateNotFinite, |b| value(b, 0, f32::NAN)),
    ("an infinite last value", ErrorCode::UpdateNotFinite, |b| {
        value(b, TOP_K_PARAMETERS - 1, f32::INFINITY)
    }),
    ("a value that is far too large", ErrorCode::UpdateNormTooLarge, |b| value(b, 3, 1e6)),
    ("the largest value", ErrorCode::UpdateNormTooLarge, |b| value(b, 3, f32::MAX)),
    ("indices declared as signed", SCHEMA, |b| b.changed("\"U32\"", "\"I32\"")),
    ("more values than indices", SCHEMA, |b| b.changed("[65]", "[66]")),
    ("values in place of the indices", SCHEMA, |b| b.changed("indices", "valuess")),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_int8_updates_are_rejected_and_change_nothing() {
    check_hostile_updates(Aggregation::Mean, UpdateFormat::Int8, &INT8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_top_k_updates_are_rejected_and_change_nothing() {
    let format = UpdateFormat::TopK { permille: 100 };
    check_hostile_updates(Aggregation::Mean, format, &TOP_K).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_bf16_updates_are_rejected_and_change_nothing() {
    let halves: [HostileChange; 5] = [
        ("a value that is NaN", ErrorCode::UpdateNotFinite, |b| b.set(0, &[0xc0, 0x7f])),
        ("an infinite value", ErrorCode::UpdateNotFinite, |b| {
            b.set(2 * NUMBERS - 2, &[0x80, 0x7f])
        }),
        ("the largest value", ErrorCode::UpdateNormTooLarge, |b| b.set(0, &[0x7f, 0x7f])),
        ("only largest values", ErrorCode::UpdateNormTooLarge, |b| b.set(0, &[0x7f; 2 * NUMBERS])),
        ("values declared as F16", SCHEMA, |b| b.changed("\"BF16\"", "\"F16\"")),
    ];
    check_hostile_updates(Aggregation::Median, UpdateFormat::Bf16, &halves).await;
}
