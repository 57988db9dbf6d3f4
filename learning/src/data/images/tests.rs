//! Folders of images: their files, hostile ones among them, and their features.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use image::{DynamicImage, GrayImage, ImageBuffer, ImageFormat, Luma, Rgb, RgbImage, RgbaImage};
use tempfile::TempDir;

use super::super::{Table, TableFeatures};
use super::*;
use crate::data::{
    DataSource, EncodeError, FeatureEncoder, LoadError, NumberScale, RowEncoder, ScaleKind,
    fit_class_names, fit_images, load, load_table,
};

fn put(folder: &TempDir, path: &str, image: &DynamicImage, format: ImageFormat) {
    let path = folder.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, encoded(image, format)).unwrap();
}

fn encoded(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// A grey image with these shades.
fn grey(width: u32, shades: &[u8]) -> DynamicImage {
    let height = shades.len() as u32 / width;
    GrayImage::from_raw(width, height, shades.to_vec()).unwrap().into()
}

fn source(folder: &TempDir) -> DataSource {
    DataSource::Images { folder: folder.path().to_owned() }
}

fn table_error(folder: &TempDir) -> String {
    load_table(&source(folder)).unwrap_err().to_string()
}

/// An encoder of labels a and b, without a scale.
fn encoder(channels: usize, height: usize, width: usize, resize: Option<usize>) -> RowEncoder {
    let channels = vec![NumberScale::IDENTITY; channels];
    RowEncoder {
        classes: 2,
        class_names: vec!["a".to_owned(), "b".to_owned()],
        features: FeatureEncoder::Images(ImageEncoder { height, width, resize, channels }),
        target: None,
    }
}

/// The features of one image.
fn features(image: &DynamicImage, format: ImageFormat, encoder: &RowEncoder) -> Vec<f32> {
    let folder = TempDir::new().unwrap();
    put(&folder, "a/x", image, format);
    encoder.encode(&load_table(&source(&folder)).unwrap()).unwrap().features().to_vec()
}

/// The error of a file with these bytes.
fn refused(bytes: &[u8]) -> String {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("a")).unwrap();
    fs::write(folder.path().join("a/x.png"), bytes).unwrap();
    let table = load_table(&source(&folder)).unwrap();
    let error = encoder(1, 2, 2, None).encode(&table).unwrap_err();
    assert!(matches!(error, EncodeError::Image { .. }), "{error}");
    assert!(image_summaries(&table)[0].sides.is_err());
    error.to_string()
}

#[test]
fn classes_are_the_subfolders_in_alphabetical_order() {
    let folder = TempDir::new().unwrap();
    let image = grey(2, &[1, 2, 3, 4]);
    for (path, format) in [
        ("b/2.jpg", ImageFormat::Jpeg),
        ("b/10.png", ImageFormat::Png),
        ("a/no_ending", ImageFormat::Png),
        ("a/.hidden", ImageFormat::Png),
    ] {
        put(&folder, path, &image, format);
    }
    fs::write(folder.path().join("b/Thumbs.db"), "x").unwrap();
    fs::write(folder.path().join(".DS_Store"), "x").unwrap();
    let table = load_table(&source(&folder)).unwrap();
    let TableFeatures::Images(files) = table.features() else { panic!("no images") };
    let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap()).collect();
    assert_eq!(names, ["no_ending", "10.png", "2.jpg"]);
    assert_eq!(fit_class_names(&table).unwrap(), (vec!["a".to_owned(), "b".to_owned()], 2));
    let data = encoder(1, 2, 2, None).encode(&table).unwrap();
    assert_eq!(data.labels(), [0, 1, 1]);
    assert_eq!(data.row(0), [1.0, 2.0, 3.0, 4.0]);
    let second = table.slice(1..2).unwrap();
    assert_eq!(encoder(1, 2, 2, None).encode(&second).unwrap().labels(), [1]);
    assert_eq!(source(&folder).to_string().parse(), Ok(source(&folder)));
}

#[test]
fn folders_of_numbers_are_classes_by_their_names() {
    let folder = TempDir::new().unwrap();
    for class in ["0", "1", "10", "2"] {
        put(&folder, &format!("{class}/x"), &grey(1, &[7]), ImageFormat::Png);
    }
    let (names, classes) = fit_class_names(&load_table(&source(&folder)).unwrap()).unwrap();
    assert_eq!((names, classes), (["0", "1", "10", "2"].map(str::to_owned).to_vec(), 4));
}

#[test]
fn folders_of_another_form_are_refused_with_their_path() {
    let folder = TempDir::new().unwrap();
    assert!(table_error(&folder).contains("no subfolders"));
    put(&folder, "a/x", &grey(1, &[7]), ImageFormat::Png);
    fs::create_dir(folder.path().join("empty")).unwrap();
    assert!(table_error(&folder).contains("empty: a class without images"));
    fs::remove_dir(folder.path().join("empty")).unwrap();
    fs::create_dir(folder.path().join("a/inner")).unwrap();
    assert!(table_error(&folder).contains("inner: a folder within a class"));
    fs::remove_dir(folder.path().join("a/inner")).unwrap();
    fs::write(folder.path().join("notes.txt"), "x").unwrap();
    assert!(table_error(&folder).contains("notes.txt: a file beside the folders"));
    let absent = DataSource::Images { folder: folder.path().join("absent") };
    assert!(matches!(load_table(&absent), Err(LoadError::Unreadable { .. })));
    fs::remove_file(folder.path().join("notes.txt")).unwrap();
    let error = load(&source(&folder)).unwrap_err().to_string();
    assert!(error.contains("the task takes no images"), "{error}");
}

#[cfg(unix)]
#[test]
fn links_out_of_the_folder_are_refused() {
    use std::os::unix::fs::symlink;
    let (folder, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    put(&folder, "a/x", &grey(1, &[7]), ImageFormat::Png);
    put(&outside, "b/y", &grey(1, &[7]), ImageFormat::Png);
    symlink("x", folder.path().join("a/within")).unwrap();
    assert_eq!(load_table(&source(&folder)).unwrap().rows(), 2);
    symlink(outside.path().join("b/y"), folder.path().join("a/z")).unwrap();
    assert!(table_error(&folder).contains("z: a symbolic link out of the folder"));
    fs::remove_file(folder.path().join("a/z")).unwrap();
    symlink(outside.path().join("b"), folder.path().join("b")).unwrap();
    assert!(table_error(&folder).contains("b: a symbolic link out of the folder"));
}

#[test]
fn damaged_and_oversized_files_are_refused() {
    let image: DynamicImage = RgbImage::from_fn(64, 64, |x, y| {
        Rgb([(x * 37 % 256) as u8, (y * 91 % 256) as u8, (x * y % 256) as u8])
    })
    .into();
    let (png, jpeg) = (encoded(&image, ImageFormat::Png), encoded(&image, ImageFormat::Jpeg));
    assert!(refused(b"GIF89a").contains("neither a PNG nor a JPEG"));
    assert!(refused(b"").contains("neither a PNG nor a JPEG"));
    assert!(refused(&png[..png.len() / 2]).contains("damaged"));
    assert!(refused(&jpeg[..jpeg.len() / 2]).contains("cut off"));
    let mut flipped = png.clone();
    flipped[png.len() / 2] ^= 1;
    assert!(refused(&flipped).contains("damaged"));
    // A header that declares 100000 × 100000 pixels, with its checksum.
    let mut bomb = png[..33].to_vec();
    bomb[16..20].copy_from_slice(&100_000_u32.to_be_bytes());
    bomb[20..24].copy_from_slice(&100_000_u32.to_be_bytes());
    let mut checksum = flate2::Crc::new();
    checksum.update(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&checksum.sum().to_be_bytes());
    bomb.extend_from_slice(&png[33..]);
    assert!(refused(&bomb).contains("too large"), "{}", refused(&bomb));
}

#[test]
fn every_kind_of_pixel_becomes_shades_from_0_to_255() {
    let (one, three) = (encoder(1, 1, 1, None), encoder(3, 1, 1, None));
    let png = |image: DynamicImage, encoder| features(&image, ImageFormat::Png, encoder);
    let rgb: DynamicImage = RgbImage::from_pixel(1, 1, Rgb([10, 20, 30])).into();
    assert_eq!(png(rgb.clone(), &three), [10.0, 20.0, 30.0]);
    assert_eq!(png(rgb, &one), [18.15]);
    assert_eq!(png(grey(1, &[9]), &three), [9.0; 3]);
    let clear = RgbaImage::from_pixel(1, 1, image::Rgba([10, 20, 30, 0]));
    assert_eq!(png(clear.into(), &three), [10.0, 20.0, 30.0], "transparency is dropped");
    let deep: ImageBuffer<Luma<u16>, _> = ImageBuffer::from_pixel(1, 1, Luma([257 * 7 + 128]));
    assert_eq!(png(deep.into(), &one), [(7.0 + 128.0 / 257.0) as f32]);
    let jpeg = features(&grey(8, &[200; 64]), ImageFormat::Jpeg, &encoder(1, 8, 8, None));
    assert!(jpeg.iter().all(|shade| (shade - 200.0).abs() <= 1.0), "{jpeg:?}");
}

#[test]
fn the_shorter_side_is_resized_and_the_middle_cut_out() {
    // Two rows of four pixels; halves of the resized image are means of pairs.
    let image = grey(4, &[0, 10, 20, 30, 0, 10, 20, 30]);
    let whole = features(&image, ImageFormat::Png, &encoder(1, 2, 2, Some(2)));
    assert_eq!(whole, [10.0, 20.0, 10.0, 20.0]);
    let squeezed = features(&image, ImageFormat::Png, &encoder(1, 2, 2, None));
    // Weights 3/7, 3/7 and 1/7 at the edge.
    let edge = ((10.0 * 3.0 + 20.0) / 7.0) as f32;
    assert!(
        squeezed
            .iter()
            .zip([edge, 30.0 - edge, edge, 30.0 - edge])
            .all(|(a, b)| (a - b).abs() < 1e-5)
    );
    let upright =
        features(&grey(1, &[1, 2, 3, 4, 5]), ImageFormat::Png, &encoder(1, 1, 1, Some(1)));
    assert_eq!(upright, [3.0]);
}

#[test]
fn exif_turns_an_image_upright() {
    // Orientation 6: the first row of the upright image is the first column, from below.
    let exif: &[u8] = &[
        0xff, 0xe1, 0x00, 0x22, b'E', b'x', b'i', b'f', 0, 0, b'M', b'M', 0, 42, 0, 0, 0, 8, 0, 1,
        0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0,
    ];
    let wide = grey(16, &[[0_u8; 8], [255; 8]].concat().repeat(8));
    let jpeg = encoded(&wide, ImageFormat::Jpeg);
    let turned = [&jpeg[..2], exif, &jpeg[2..]].concat();
    let folder = TempDir::new().unwrap();
    put(&folder, "a/x", &wide, ImageFormat::Jpeg);
    fs::write(folder.path().join("a/y"), turned).unwrap();
    let table = load_table(&source(&folder)).unwrap();
    let sides: Vec<_> = image_summaries(&table).into_iter().map(|image| image.sides).collect();
    assert_eq!(sides, [Ok([8, 16]), Ok([16, 8])]);
    let data = encoder(1, 2, 2, None).encode(&table).unwrap();
    let is_light =
        |row: usize| data.row(row).iter().map(|shade| *shade > 127.0).collect::<Vec<_>>();
    assert_eq!(is_light(0), [false, true, false, true]);
    assert_eq!(is_light(1), [false, false, true, true]);
}

#[test]
fn a_fitted_scale_gives_each_channel_mean_0_and_deviation_1() {
    let folder = TempDir::new().unwrap();
    for (path, shade) in [("a/x", [10, 100, 7]), ("b/y", [30, 200, 7])] {
        let image = RgbImage::from_pixel(3, 3, Rgb(shade)).into();
        put(&folder, path, &image, ImageFormat::Png);
    }
    let table = load_table(&source(&folder)).unwrap();
    let shape = ImageShape { channels: 3, height: 2, width: 2 };
    let images = fit_images(&table, shape, Some(2), ScaleKind::Standard).unwrap();
    let scales: Vec<_> = images.channels.iter().map(|scale| (scale.offset, scale.factor)).collect();
    assert_eq!(scales, [(20.0, 0.1), (150.0, 0.02), (7.0, 1.0)]);
    let encoder = RowEncoder { features: FeatureEncoder::Images(images), ..encoder(1, 1, 1, None) };
    let data = encoder.encode(&table).unwrap();
    assert_eq!(data.row(1), [[1.0; 4], [1.0; 4], [0.0; 4]].concat());
}

#[test]
fn numbers_of_another_source_are_channel_after_channel() {
    let folder = TempDir::new().unwrap();
    let csv = folder.path().join("t.csv");
    fs::write(&csv, "p,q,r,y\n1,2,3,b\n").unwrap();
    let table = load_table(&DataSource::Csv { file: csv, label: "y".to_owned() }).unwrap();
    let mut encoder = encoder(3, 1, 1, None);
    let FeatureEncoder::Images(images) = &mut encoder.features else { panic!("no images") };
    images.channels[2].factor = 10.0;
    assert_eq!(encoder.encode(&table).unwrap().row(0), [1.0, 2.0, 30.0]);
    images_of_another_size_are_refused(&table);
}

fn images_of_another_size_are_refused(table: &Table) {
    let error = encoder(1, 2, 2, None).encode(table).unwrap_err();
    assert_eq!(error, EncodeError::Width { found: 3, width: 4 });
}

#[test]
fn the_limits_allow_the_largest_image_to_be_decoded() {
    const { assert!(IMAGE_PIXELS_MAX * 8 <= IMAGE_DECODED_BYTES_MAX) };
    assert!(decode::decode(Path::new("/dev/null")).unwrap_err().contains("not a file"));
}
