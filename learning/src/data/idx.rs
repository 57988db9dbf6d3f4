//! The IDX format of MNIST and Fashion-MNIST: a big-endian header, followed by bytes.

use std::path::Path;

use super::file::read;
use super::table::MatrixValues;
use super::{Dataset, LoadError, Table};

/// Unsigned bytes in three dimensions: images, rows, columns.
const IMAGES_MAGIC: u32 = 0x0000_0803;
/// Unsigned bytes in one dimension.
const LABELS_MAGIC: u32 = 0x0000_0801;
/// Smallest number of classes: data sets of this format have ten; more if the labels require it.
const CLASSES_MIN: usize = 10;

/// Images scaled to 0..=1, with their labels.
pub(super) fn load(images: &Path, labels: &Path) -> Result<Dataset, LoadError> {
    let (pixels, marks) = read_both(images, labels)?;
    let width = pixels.sizes[1] * pixels.sizes[2];
    let features = pixels.body().iter().map(|&pixel| f32::from(pixel) / 255.0).collect();
    let labels_read: Vec<u32> = marks.body().iter().map(|&label| u32::from(label)).collect();
    let classes = labels_read.iter().map(|&label| label as usize + 1).max().unwrap_or(0);
    let width = usize::try_from(width).unwrap_or(usize::MAX);
    Dataset::new(features, labels_read, width, classes.max(CLASSES_MIN))
        .map_err(|source| LoadError::InvalidDataset { path: images.to_owned(), source })
}

/// Images with brightness from 0 to 255, with their labels.
pub(super) fn table(images: &Path, labels: &Path) -> Result<Table, LoadError> {
    let (pixels, marks) = read_both(images, labels)?;
    let width = usize::try_from(pixels.sizes[1] * pixels.sizes[2]).unwrap_or(usize::MAX);
    if width == 0 || !Table::fits(marks.body().len(), width) {
        let (rows, columns) = (marks.body().len(), width);
        return Err(LoadError::TableSize { path: images.to_owned(), rows, columns });
    }
    let numbers = marks.body().iter().map(|&label| f64::from(label)).collect();
    let table = Table::from_matrix(width, MatrixValues::Bytes(pixels.body().to_vec()), numbers);
    Ok(Table { classes_min: CLASSES_MIN, ..table })
}

/// Both files, with equal counts.
fn read_both(images: &Path, labels: &Path) -> Result<(Idx, Idx), LoadError> {
    let pixels = Idx::read(images, IMAGES_MAGIC, 3)?;
    let marks = Idx::read(labels, LABELS_MAGIC, 1)?;
    let count = pixels.sizes[0];
    if count != marks.sizes[0] {
        return Err(LoadError::IdxCountsDiffer {
            images: images.to_owned(),
            images_count: count,
            labels: labels.to_owned(),
            labels_count: marks.sizes[0],
        });
    }
    Ok((pixels, marks))
}

struct Idx {
    bytes: Vec<u8>,
    header: usize,
    sizes: Vec<u64>,
}

impl Idx {
    /// Reads a file, and checks its magic number and its length.
    fn read(path: &Path, magic: u32, dimensions: usize) -> Result<Self, LoadError> {
        let bytes = read(path)?;
        let header = 4 + 4 * dimensions;
        let wrong_length = |expected: u64| LoadError::IdxLength {
            path: path.to_owned(),
            expected,
            got: bytes.len() as u64,
        };
        if bytes.len() < 4 {
            return Err(wrong_length(header as u64));
        }
        let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| bytes[4 * at + i]));
        if number(0) != magic {
            let path = path.to_owned();
            return Err(LoadError::IdxMagic { path, expected: magic, got: number(0) });
        }
        if bytes.len() < header {
            return Err(wrong_length(header as u64));
        }
        let sizes: Vec<u64> = (1..=dimensions).map(|at| u64::from(number(at))).collect();
        // Three 32-bit sizes may exceed 64 bits; no such file exists.
        let body = sizes.iter().try_fold(1_u64, |product, &size| product.checked_mul(size));
        let expected = body.and_then(|body| body.checked_add(header as u64)).unwrap_or(u64::MAX);
        if bytes.len() as u64 != expected {
            return Err(wrong_length(expected));
        }
        Ok(Self { bytes, header, sizes })
    }

    fn body(&self) -> &[u8] {
        &self.bytes[self.header..]
    }
}
