//! The CIFAR-10 binary format: one label byte, then 3×32×32 bytes, channel after channel.

use std::path::PathBuf;

use super::file::read;
use super::table::MatrixValues;
use super::{Dataset, LoadError, Table};

const WIDTH: usize = 3 * 32 * 32;
const RECORD_BYTES: usize = 1 + WIDTH;
const CLASSES: usize = 10;

/// All files one after another, with brightness scaled to 0..=1.
pub(super) fn load(files: &[PathBuf]) -> Result<Dataset, LoadError> {
    let (pixels, labels) = read_all(files)?;
    let features = pixels.into_iter().map(|pixel| f32::from(pixel) / 255.0).collect();
    let path = files.first().cloned().unwrap_or_default();
    Dataset::new(features, labels.into_iter().map(u32::from).collect(), WIDTH, CLASSES)
        .map_err(|source| LoadError::InvalidDataset { path, source })
}

/// All files one after another, with brightness from 0 to 255.
pub(super) fn table(files: &[PathBuf]) -> Result<Table, LoadError> {
    let (pixels, labels) = read_all(files)?;
    let labels = labels.into_iter().map(f64::from).collect();
    let table = Table::from_matrix(WIDTH, MatrixValues::Bytes(pixels), labels);
    Ok(Table { classes_min: CLASSES, ..table })
}

/// All pixels, and the label of each row.
fn read_all(files: &[PathBuf]) -> Result<(Vec<u8>, Vec<u8>), LoadError> {
    let mut pixels = Vec::new();
    let mut labels = Vec::new();
    for path in files {
        let bytes = read(path)?;
        if bytes.is_empty() || bytes.len() % RECORD_BYTES != 0 {
            let (path, bytes) = (path.clone(), bytes.len() as u64);
            return Err(LoadError::CifarLength { path, bytes, record: RECORD_BYTES as u64 });
        }
        for (at, record) in bytes.chunks_exact(RECORD_BYTES).enumerate() {
            if usize::from(record[0]) >= CLASSES {
                let (path, offset) = (path.clone(), (at * RECORD_BYTES) as u64);
                return Err(LoadError::CifarLabel { path, offset, label: record[0] });
            }
            labels.push(record[0]);
            pixels.extend_from_slice(&record[1..]);
        }
    }
    Ok((pixels, labels))
}
