//! Folders of images: one subfolder for each class, as torchvision's `ImageFolder` has them.
//!
//! A table of such a folder has the names of the files. Their pixels are read when the table is
//! encoded, a part of the files at a time, so that the folder may exceed the memory.

mod decode;
mod encoder;
mod folder;
mod resample;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use super::table::Cells;
use crate::parallel::{cores, parallel_map};

pub use encoder::{ImageEncoder, ImageShape};
pub(super) use encoder::{features, fit};
pub(super) use folder::table;

/// Largest size of the file of an image, in bytes: 64 MiB.
pub const IMAGE_FILE_BYTES_MAX: u64 = 64 << 20;
/// Most pixels of a side of an image.
pub const IMAGE_SIDE_MAX: u32 = 32_768;
/// Most pixels of an image: those of a camera with 134 megapixels.
pub const IMAGE_PIXELS_MAX: u64 = 1 << 27;
/// Most bytes that the decoder of an image allocates: 1 GiB.
pub const IMAGE_DECODED_BYTES_MAX: u64 = 1 << 30;
/// Images that are decoded at a time.
const IMAGES_PER_PART: usize = 256;

/// The size of an image file, or the reason why it cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSummary {
    /// The file.
    pub file: PathBuf,
    /// Height and width in pixels, upright. The error is a sentence.
    pub sides: Result<[u32; 2], String>,
}

/// Decodes all images of a table, and returns their sizes; none for another table.
pub fn image_summaries(table: &super::Table) -> Vec<ImageSummary> {
    let super::TableFeatures::Images(files) = table.features() else { return Vec::new() };
    parallel_map(cores(), files.iter().collect(), |file: &PathBuf| ImageSummary {
        file: file.clone(),
        sides: decode::decode(file).map(|image| [image.height(), image.width()]),
    })
}

/// The labels of the files: the names of their folders.
fn labels(classes: Vec<String>, of_files: Vec<u32>) -> Cells {
    Cells::Texts { texts: classes, cells: of_files.into_iter().map(Some).collect() }
}
