//! What only the shorter formats make possible: scales and places that lie. Each is refused by its name, and the round is
//! the same, bit for bit, as if it had never been sent.

use florin_protocol::*;

use crate::a_crowd_of_cheats::{Bytes, Spoil, hold_against};

const SCHEMA: Code = Code::UpdateWrongSchema;
/// Numbers of the digits' model, which has two tensors.
const NUMBERS: usize = 650;
/// Numbers that 100 permille of them keep.
const KEPT: usize = 65;

fn scale(bytes: Bytes, scale: f32) -> Vec<u8> {
    bytes.set(0, &scale.to_le_bytes())
}

/// With each code through this.
fn coded(bytes: Bytes, change: impl Fn(i8) -> i8) -> Vec<u8> {
    let codes = &bytes.numbers[8..8 + NUMBERS];
    let codes: Vec<u8> = codes.iter().map(|code| change(*code as i8) as u8).collect();
    bytes.set(8, &codes)
}

const INT8: [Spoil; 15] = [
    ("a scale that is no number", SCHEMA, |b| scale(b, f32::NAN)),
    ("an infinite scale", SCHEMA, |b| scale(b, f32::INFINITY)),
    ("a negative scale", SCHEMA, |b| scale(b, -1e-3)),
    ("a scale of minus zero", SCHEMA, |b| scale(b, -0.0)),
    ("a scale that is too small to be normal", SCHEMA, |b| scale(b, 1e-40)),
    ("a scale whose numbers overflow", SCHEMA, |b| scale(b, 3e36)),
    ("a scale of zero for numbers", SCHEMA, |b| scale(b, 0.0)),
    ("a scale that is far too long", Code::UpdateNormTooLarge, |b| scale(b, 1e6)),
    ("the longest scale of all", Code::UpdateNormTooLarge, |b| scale(b, 2.6e36)),
    ("a number beyond the scale", SCHEMA, |b| {
        coded(b, |code| if code.abs() == 127 { -128 } else { code })
    }),
    ("a scale that no number fills", SCHEMA, |b| coded(b, |code| code / 2)),
    ("a scale for nothing", SCHEMA, |b| coded(b, |_| 0)),
    ("codes that say they are whole numbers of 32 bits", SCHEMA, |b| {
        b.changed("\"I8\"", "\"I32\"")
    }),
    ("a scale for each number", SCHEMA, |b| b.changed("[1]", "[10]")),
    ("a scale of another tensor", SCHEMA, |b| b.changed("layer0.bias.scale", "layer9.bias.scale")),
];

fn index(bytes: Bytes, place: usize, index: u32) -> Vec<u8> {
    bytes.set(4 * place, &index.to_le_bytes())
}

fn value(bytes: Bytes, place: usize, value: f32) -> Vec<u8> {
    bytes.set(4 * (KEPT + place), &value.to_le_bytes())
}

fn index_at(bytes: &Bytes, place: usize) -> u32 {
    u32::from_le_bytes(bytes.numbers[4 * place..4 * place + 4].try_into().unwrap())
}

const TOP_K: [Spoil; 14] = [
    ("a place behind the last number", SCHEMA, |b| index(b, KEPT - 1, NUMBERS as u32)),
    ("a place far behind it", SCHEMA, |b| index(b, KEPT - 1, u32::MAX)),
    ("a place that overflows when it is counted in bytes", SCHEMA, |b| index(b, KEPT - 1, 1 << 30)),
    ("the same place twice", SCHEMA, |b| {
        let first = index_at(&b, 0);
        index(b, 1, first)
    }),
    ("a place before the one before", SCHEMA, |b| index(b, KEPT - 1, 0)),
    ("all places zero", SCHEMA, |b| b.set(0, &[0; 4 * KEPT])),
    ("all places the last", SCHEMA, |b| b.set(0, &(NUMBERS as u32 - 1).to_le_bytes().repeat(KEPT))),
    ("a value that is no number", Code::UpdateNotFinite, |b| value(b, 0, f32::NAN)),
    ("an infinite value behind", Code::UpdateNotFinite, |b| value(b, KEPT - 1, f32::INFINITY)),
    ("a value that is far too large", Code::UpdateNormTooLarge, |b| value(b, 3, 1e6)),
    ("the largest value", Code::UpdateNormTooLarge, |b| value(b, 3, f32::MAX)),
    ("places that say they are negative", SCHEMA, |b| b.changed("\"U32\"", "\"I32\"")),
    ("more values than places", SCHEMA, |b| b.changed("[65]", "[66]")),
    ("values where the places are", SCHEMA, |b| b.changed("indices", "valuess")),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scales_that_lie_change_nothing() {
    hold_against(Aggregation::Mean, UpdateFormat::Int8, &INT8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_that_lie_change_nothing() {
    let format = UpdateFormat::TopK { permille: 100 };
    hold_against(Aggregation::Mean, format, &TOP_K).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_numbers_that_are_none_change_nothing() {
    let halves: [Spoil; 5] = [
        ("a half that is no number", Code::UpdateNotFinite, |b| b.set(0, &[0xc0, 0x7f])),
        ("an infinite half", Code::UpdateNotFinite, |b| b.set(2 * NUMBERS - 2, &[0x80, 0x7f])),
        ("the largest half", Code::UpdateNormTooLarge, |b| b.set(0, &[0x7f, 0x7f])),
        ("only largest halves", Code::UpdateNormTooLarge, |b| b.set(0, &[0x7f; 2 * NUMBERS])),
        ("halves of another kind", SCHEMA, |b| b.changed("\"BF16\"", "\"F16\"")),
    ];
    hold_against(Aggregation::Median, UpdateFormat::Bf16, &halves).await;
}
