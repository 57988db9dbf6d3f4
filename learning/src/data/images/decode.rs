//! Decoding of one image, within the limits.

use std::fs::File;
use std::io::{Cursor, Read as _};
use std::path::Path;

use image::{DynamicImage, ImageDecoder as _, ImageFormat, ImageReader, Limits};

use super::{IMAGE_DECODED_BYTES_MAX, IMAGE_FILE_BYTES_MAX, IMAGE_PIXELS_MAX, IMAGE_SIDE_MAX};

/// The marker before the pixels of a JPEG file, and the one behind them.
const JPEG_SCAN: [u8; 2] = [0xff, 0xda];
const JPEG_END: [u8; 2] = [0xff, 0xd9];

/// The image of a PNG or JPEG file, upright as its EXIF orientation states. The format follows from
/// the content. The error is a sentence.
pub(super) fn decode(path: &Path) -> Result<DynamicImage, String> {
    let bytes = read(path)?;
    let mut reader = ImageReader::new(Cursor::new(&bytes))
        .with_guessed_format()
        .map_err(|error| error.to_string())?;
    match reader.format() {
        Some(ImageFormat::Png) => {}
        Some(ImageFormat::Jpeg) if is_whole_jpeg(&bytes) => {}
        Some(ImageFormat::Jpeg) => return Err("the JPEG file is cut off".to_owned()),
        _ => return Err("it is neither a PNG nor a JPEG file: remove or convert it".to_owned()),
    }
    let mut limits = Limits::default();
    limits.max_image_width = Some(IMAGE_SIDE_MAX);
    limits.max_image_height = Some(IMAGE_SIDE_MAX);
    limits.max_alloc = Some(IMAGE_DECODED_BYTES_MAX);
    reader.limits(limits);
    let damaged = |error: image::ImageError| format!("the image is damaged or too large: {error}");
    let mut decoder = reader.into_decoder().map_err(damaged)?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > IMAGE_PIXELS_MAX
        || decoder.total_bytes() > IMAGE_DECODED_BYTES_MAX
    {
        return Err(format!(
            "the image has {width} × {height} pixels: at most {IMAGE_PIXELS_MAX} are read"
        ));
    }
    let orientation = decoder.orientation().map_err(damaged)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(damaged)?;
    image.apply_orientation(orientation);
    Ok(image)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error: std::io::Error| format!("it cannot be read: {error}");
    // A pipe or a device would block, or never end.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("it is not a file".to_owned());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(IMAGE_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    match bytes.len() as u64 > IMAGE_FILE_BYTES_MAX {
        true => Err(format!("it has more than {IMAGE_FILE_BYTES_MAX} bytes")),
        false => Ok(bytes),
    }
}

/// Whether the pixels of a JPEG file have an end: the decoder fills missing ones with grey. Neither
/// marker can occur within the pixels, and a preview within the header has both.
fn is_whole_jpeg(bytes: &[u8]) -> bool {
    let last = |marker: [u8; 2]| bytes.windows(2).rposition(|pair| pair == marker);
    last(JPEG_SCAN).zip(last(JPEG_END)).is_some_and(|(scan, end)| scan < end)
}
