//! Mutations of inputs: flipped bits, boundary values, and parts deleted, duplicated, moved or
//! taken from another input.

use std::ops::Range;

use rand::RngExt;
use rand::rngs::StdRng;

use super::pool::INPUT_BYTES_MAX;

/// Maximum number of mutations per input.
const CHANGES_MAX: u32 = 6;
/// Boundary values.
const BOUNDARY_VALUES: [u64; 16] = [
    0,
    1,
    2,
    7,
    8,
    127,
    255,
    256,
    65_535,
    65_536,
    1 << 24,
    i32::MAX as u64,
    u32::MAX as u64,
    1 << 32,
    i64::MAX as u64,
    u64::MAX,
];
/// Boundary values and other critical tokens as text.
const BOUNDARY_TEXTS: [&str; 19] = [
    "0",
    "-1",
    "65536",
    "1e999",
    "NaN",
    "18446744073709551615",
    "18446744073709551616",
    "340282366920938463463374607431768211456",
    "0.0000000000000000001",
    "null",
    "true",
    "{}",
    "[]",
    "\"\"",
    "[[[[[[[[[[[[[[[[",
    "{\"a\":{\"a\":{\"a\":",
    "\\u0000",
    "\u{feff}",
    "\u{202e}é日",
];

/// A random mutation of one of the inputs.
pub(super) fn variant(inputs: &[Vec<u8>], rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = inputs[rng.random_range(0..inputs.len())].clone();
    for _ in 0..rng.random_range(1..=CHANGES_MAX) {
        change(&mut bytes, inputs, rng);
        bytes.truncate(INPUT_BYTES_MAX);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, inputs: &[Vec<u8>], rng: &mut StdRng) {
    if bytes.is_empty() {
        bytes.push(rng.random());
        return;
    }
    let at = rng.random_range(0..bytes.len());
    match rng.random_range(0..11) {
        0 => bytes[at] ^= 1 << rng.random_range(0..8),
        1 => bytes[at] = rng.random(),
        2 => write_boundary_value(bytes, at, rng),
        3 => {
            bytes.drain(piece(bytes.len(), rng));
        }
        4 => {
            let copy = bytes[piece(bytes.len(), rng)].to_vec();
            insert(bytes, at, &copy);
        }
        5 => {
            let other = &inputs[rng.random_range(0..inputs.len())];
            let stolen = other[piece(other.len(), rng)].to_vec();
            insert(bytes, at, &stolen);
        }
        6 => bytes.truncate(at),
        7 => {
            insert(bytes, at, BOUNDARY_TEXTS[rng.random_range(0..BOUNDARY_TEXTS.len())].as_bytes())
        }
        8 => replace_word(bytes, at, rng),
        9 => swap_words(bytes, at, rng),
        _ => {
            let fill = rng.random();
            let range = piece(bytes.len(), rng);
            bytes[range].fill(fill);
        }
    }
}

/// A random range, mostly a short one.
fn piece(length: usize, rng: &mut StdRng) -> Range<usize> {
    if length == 0 {
        return 0..0;
    }
    let start = rng.random_range(0..length);
    let most = if rng.random_bool(0.8) { 16 } else { length };
    start..length.min(start + rng.random_range(1..=most))
}

fn insert(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    bytes.splice(at..at, piece.iter().copied());
}

/// Overwrites one, two, four or eight bytes with a boundary value, in either byte order.
fn write_boundary_value(bytes: &mut [u8], at: usize, rng: &mut StdRng) {
    let figure = BOUNDARY_VALUES[rng.random_range(0..BOUNDARY_VALUES.len())];
    let width = 1 << rng.random_range(0..4);
    let (little, big) = (figure.to_le_bytes(), figure.to_be_bytes());
    let written = if rng.random() { &little[..width] } else { &big[8 - width..] };
    for (byte, new) in bytes[at..].iter_mut().zip(written) {
        *byte = *new;
    }
}

/// The word at a position: letters, digits and the other characters of numbers.
fn word(bytes: &[u8], at: usize) -> Range<usize> {
    let inside = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-+".contains(byte);
    let start = bytes[..at].iter().rposition(|byte| !inside(byte)).map_or(0, |i| i + 1);
    let end = bytes[at..].iter().position(|byte| !inside(byte)).map_or(bytes.len(), |i| at + i);
    start.min(end)..end
}

fn replace_word(bytes: &mut Vec<u8>, at: usize, rng: &mut StdRng) {
    let text = BOUNDARY_TEXTS[rng.random_range(0..BOUNDARY_TEXTS.len())];
    bytes.splice(word(bytes, at), text.bytes());
}

/// Replaces a word by another word of the same input.
fn swap_words(bytes: &mut Vec<u8>, at: usize, rng: &mut StdRng) {
    let other = word(bytes, rng.random_range(0..bytes.len()));
    let other = bytes[other].to_vec();
    bytes.splice(word(bytes, at), other);
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_seed_gives_the_same_variants_within_the_size_limit() {
        let inputs = vec![b"{\"key\": 12, \"other\": [1, 2]}".to_vec(), vec![0; 40], Vec::new()];
        let made = |seed| {
            let mut rng = StdRng::seed_from_u64(seed);
            (0..2_000).map(|_| variant(&inputs, &mut rng)).collect::<Vec<_>>()
        };
        let first = made(1);
        assert_eq!(first, made(1));
        assert_ne!(first, made(2));
        assert!(first.iter().all(|input| input.len() <= INPUT_BYTES_MAX));
        let distinct: std::collections::BTreeSet<_> = first.iter().collect();
        assert!(distinct.len() > 1_500, "{} of 2,000 differ", distinct.len());
    }
}
