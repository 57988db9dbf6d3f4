//! The CIFAR-10 binary format: one label byte, then 3×32×32 bytes, channel after channel.

use std::path::PathBuf;

use super::file::read;
use super::{Dataset, LoadError};

const WIDTH: usize = 3 * 32 * 32;
const RECORD_BYTES: usize = 1 + WIDTH;
const CLASSES: usize = 10;

/// All files one after another, with brightness scaled to 0..=1.
pub(super) fn load(files: &[PathBuf]) -> Result<Dataset, LoadError> {
    let mut features = Vec::new();
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
            labels.push(u32::from(record[0]));
            features.extend(record[1..].iter().map(|&pixel| f32::from(pixel) / 255.0));
        }
    }
    let path = files.first().cloned().unwrap_or_default();
    Dataset::new(features, labels, WIDTH, CLASSES)
        .map_err(|source| LoadError::InvalidDataset { path, source })
}
