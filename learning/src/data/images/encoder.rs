//! The encoding of images as features.

use std::ops::Range;
use std::path::{Path, PathBuf};

use image::{DynamicImage, Rgb};
use serde::{Deserialize, Serialize};

use super::super::row_encoder::{EncodeError, NumberScale, uniform};
use super::super::{Table, TableFeatures};
use super::decode::decode;
use super::resample::{Window, windows};
use super::{IMAGES_PER_PART, cores, parallel_map};

/// The shape of an image as features: channel after channel, each row after row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageShape {
    /// 1 for shades of grey, 3 for red, green and blue.
    pub channels: usize,
    /// Rows of pixels.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
}

impl ImageShape {
    /// Number of features.
    pub const fn features(&self) -> usize {
        self.channels.saturating_mul(self.height).saturating_mul(self.width)
    }
}

/// An encoding of images: size, crop, channels and their scales.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageEncoder {
    /// Rows of pixels.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
    /// The shorter side is resized to this many pixels, at least the height and the width, and the
    /// middle is cut out. `None`: the image is resized to height and width.
    pub resize: Option<usize>,
    /// The scale of each channel, of values from 0 to 255: one for grey, three for red, green and
    /// blue.
    pub channels: Vec<NumberScale>,
}

impl ImageEncoder {
    /// The shape of a row.
    pub fn shape(&self) -> ImageShape {
        let (channels, height, width) = (self.channels.len(), self.height, self.width);
        ImageShape { channels, height, width }
    }

    /// The scale of a feature, counted from 0.
    ///
    /// # Panics
    /// If the row has no such feature.
    pub(in super::super) fn scale_of(&self, feature: usize) -> &NumberScale {
        &self.channels[feature / (self.height * self.width)]
    }

    /// The features of an image.
    fn features(&self, image: &DynamicImage) -> Vec<f32> {
        match Pixels::new(image) {
            Pixels::Bytes(pixels) => {
                self.resampled(|x, y| pixels.get_pixel(x, y).0.map(f64::from), image)
            }
            Pixels::Words(pixels) => {
                let byte = |value: u16| f64::from(value) / 257.0;
                self.resampled(|x, y| pixels.get_pixel(x, y).0.map(byte), image)
            }
        }
    }

    fn resampled(&self, pixel: impl Fn(u32, u32) -> [f64; 3], image: &DynamicImage) -> Vec<f32> {
        let sides = [image.height() as usize, image.width() as usize];
        let (rows, columns) = self.windows(sides);
        let needed = |windows: &[Window]| -> Range<usize> {
            let start = windows.iter().map(|window| window.first).min().unwrap_or(0);
            start..windows.iter().map(|window| window.range().end).max().unwrap_or(0)
        };
        let (lines, width) = (needed(&rows), columns.len());
        let mut features = Vec::with_capacity(self.shape().features());
        for (channel, scale) in self.channels.iter().enumerate() {
            let value = |x: usize, y: usize| {
                let [red, green, blue] = pixel(x as u32, y as u32);
                match self.channels.len() {
                    // ITU-R 601, as in Pillow.
                    1 => (299.0 * red + 587.0 * green + 114.0 * blue) / 1000.0,
                    _ => [red, green, blue][channel],
                }
            };
            let mut narrow = Vec::with_capacity(lines.len() * width);
            for y in lines.clone() {
                narrow.extend(columns.iter().map(|window| window.sum(|x| value(x, y))));
            }
            for window in &rows {
                for x in 0..width {
                    let sum = window.sum(|y| narrow[(y - lines.start) * width + x]);
                    features.push(scale.feature(sum));
                }
            }
        }
        features
    }

    /// The windows of the rows and columns of the result, for an image of this height and width.
    fn windows(&self, sides: [usize; 2]) -> (Vec<Window>, Vec<Window>) {
        let wanted = [self.height, self.width];
        let scaled = match self.resize {
            None => wanted,
            Some(short) => {
                let least = sides[0].min(sides[1]);
                sides.map(|side| (side as u64 * short as u64 / least as u64) as usize)
            }
        };
        // A task's resize is at least both sides.
        let scaled = [scaled[0].max(wanted[0]), scaled[1].max(wanted[1])];
        let line = |at: usize| {
            let start = (scaled[at] - wanted[at]) / 2;
            windows(sides[at], scaled[at], start..start + wanted[at])
        };
        (line(0), line(1))
    }
}

/// The pixels of an image without transparency.
enum Pixels<'a> {
    Bytes(std::borrow::Cow<'a, image::RgbImage>),
    Words(image::ImageBuffer<Rgb<u16>, Vec<u16>>),
}

impl<'a> Pixels<'a> {
    fn new(image: &'a DynamicImage) -> Self {
        use std::borrow::Cow;
        match image {
            DynamicImage::ImageRgb8(pixels) => Self::Bytes(Cow::Borrowed(pixels)),
            DynamicImage::ImageLuma16(_)
            | DynamicImage::ImageLumaA16(_)
            | DynamicImage::ImageRgb16(_)
            | DynamicImage::ImageRgba16(_) => Self::Words(image.to_rgb16()),
            _ => Self::Bytes(Cow::Owned(image.to_rgb8())),
        }
    }
}

/// The features of all files, one after another.
///
/// # Errors
/// [`EncodeError::Image`] for the first file that is no image within the limits.
pub(in super::super) fn features(
    files: &[PathBuf],
    encoder: &ImageEncoder,
) -> Result<Vec<f32>, EncodeError> {
    let mut features = Vec::with_capacity(files.len() * encoder.shape().features());
    each_image(files, encoder, |image| features.extend_from_slice(image))?;
    Ok(features)
}

/// The encoder whose channels have mean 0 and standard deviation 1 over the pixels of all rows, as
/// `encoder` cuts them.
///
/// # Errors
/// As [`features`], and [`EncodeError::Width`] for a table of numbers that is not as wide.
pub(in super::super) fn fit(
    table: &Table,
    encoder: &ImageEncoder,
) -> Result<ImageEncoder, EncodeError> {
    let plain =
        ImageEncoder { channels: vec![NumberScale::IDENTITY; encoder.channels.len()], ..*encoder };
    let pixels = encoder.height * encoder.width;
    let mut sums = vec![[0.0_f64; 2]; encoder.channels.len()];
    let look = |image: &[f32]| {
        for (sums, channel) in sums.iter_mut().zip(image.chunks_exact(pixels)) {
            let values = channel.iter().map(|value| f64::from(*value));
            sums[0] += values.clone().sum::<f64>();
            sums[1] += values.map(|value| value * value).sum::<f64>();
        }
    };
    match table.features() {
        TableFeatures::Images(files) => each_image(files, &plain, look)?,
        features => {
            let width = plain.shape().features();
            let values = uniform(table, features, width, |feature| plain.scale_of(feature))?;
            values.chunks_exact(width).for_each(look);
        }
    }
    let count = (table.rows() * pixels) as f64;
    let scale = |[sum, squares]: [f64; 2]| {
        let mean = sum / count;
        let sd = (squares / count - mean * mean).max(0.0).sqrt();
        // Less than a thousandth of a shade is rounding: the channel has one value.
        let factor = if sd > 1e-3 { 1.0 / sd } else { 1.0 };
        NumberScale { offset: mean, factor, fill: None }
    };
    Ok(ImageEncoder { channels: sums.into_iter().map(scale).collect(), ..*encoder })
}

/// Calls `look` with the features of each file, in order.
fn each_image(
    files: &[PathBuf],
    encoder: &ImageEncoder,
    mut look: impl FnMut(&[f32]),
) -> Result<(), EncodeError> {
    let encode = |file: &PathBuf| {
        let image = decode(file).map_err(|why| failed(file, why))?;
        Ok::<_, EncodeError>(encoder.features(&image))
    };
    for part in files.chunks(IMAGES_PER_PART) {
        for image in parallel_map(cores(), part.iter().collect(), encode) {
            look(&image?);
        }
    }
    Ok(())
}

fn failed(file: &Path, why: String) -> EncodeError {
    EncodeError::Image { file: file.to_owned(), why }
}
