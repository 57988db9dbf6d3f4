//! The embedded UCI handwritten digits: 1,797 scans of 8×8 pixels.

use std::io::Read;
use std::path::PathBuf;

use flate2::read::GzDecoder;

use super::table::MatrixValues;
use super::{Dataset, LoadError, Table};

const PACKED: &[u8] = include_bytes!("../../data/digits.csv.gz");
const WIDTH: usize = 64;
const CLASSES: usize = 10;
const BRIGHTEST: f32 = 16.0;

/// The digits, with brightness scaled to 0..=1. An error means that the program itself is damaged.
pub(super) fn load() -> Result<Dataset, LoadError> {
    let (pixels, labels) = read()?;
    let features = pixels.into_iter().map(|pixel| f32::from(pixel) / BRIGHTEST).collect();
    Dataset::new(features, labels.into_iter().map(u32::from).collect(), WIDTH, CLASSES)
        .map_err(|source| LoadError::InvalidDataset { path: path(), source })
}

/// The digits with brightness from 0 to 16, as published.
pub(super) fn table() -> Result<Table, LoadError> {
    let (pixels, labels) = read()?;
    let labels = labels.into_iter().map(f64::from).collect();
    let table = Table::from_matrix(WIDTH, MatrixValues::Bytes(pixels), labels);
    Ok(Table { classes_min: CLASSES, ..table })
}

fn path() -> PathBuf {
    PathBuf::from("digits.csv.gz (embedded)")
}

/// All pixels, and the label of each row.
fn read() -> Result<(Vec<u8>, Vec<u8>), LoadError> {
    let mut text = String::new();
    GzDecoder::new(PACKED)
        .read_to_string(&mut text)
        .map_err(|source| LoadError::BrokenGzip { path: path(), source })?;
    let mut all = Vec::new();
    let mut labels = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let damaged = || LoadError::DamagedProgram { path: path(), line: at + 1 };
        let numbers: Vec<u8> = line
            .split(',')
            .map(|number| number.parse().map_err(|_| damaged()))
            .collect::<Result<_, _>>()?;
        let [pixels @ .., label] = numbers.as_slice() else { return Err(damaged()) };
        if pixels.len() != WIDTH {
            return Err(damaged());
        }
        all.extend_from_slice(pixels);
        labels.push(*label);
    }
    Ok((all, labels))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_digits_are_complete() {
        let digits = load().unwrap();
        assert_eq!((digits.rows(), digits.width(), digits.classes()), (1797, 64, 10));
        // The published counts per class.
        assert_eq!(digits.class_counts(), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        // The first row of the file: 0,0,5,13,9,1,… is a zero.
        assert_eq!(digits.row(0)[..6], [0.0, 0.0, 0.3125, 0.8125, 0.5625, 0.0625]);
        assert_eq!(digits.labels()[..3], [0, 1, 2]);
        assert!(digits.features().iter().all(|pixel| (0.0..=1.0).contains(pixel)));
    }
}
