//! Files in canonical form: mapped for reading if they are large, and written row after row.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::canonical::{CanonicalError, Header, MAGIC, from_canonical_bytes, little_endian};
use super::chunks::{CanonicalRows, ChunkError, RowChunks};
use super::features::MappedFeatures;
use super::file::read;
use super::{Dataset, DatasetError, LoadError, MAPPED_FEATURES_MAX, ROWS_MAX};
use crate::mapped::MappedFile;

/// Least size of a `florin:` file that is mapped, in bytes: 64 MiB. A smaller one is read, and may be
/// changed afterwards.
pub const MAPPED_BYTES_MIN: u64 = 64 << 20;
/// Features that are checked at a time.
const CHECKED_FEATURES: usize = 1 << 20;
/// Size of the buffer in front of a file that is written, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// Loads a file in canonical form, plain or gzipped. A large plain one is mapped.
pub(super) fn load(path: &Path) -> Result<Dataset, LoadError> {
    let unreadable = |source| LoadError::Unreadable { path: path.to_owned(), source };
    match is_mappable(path).map_err(unreadable)? {
        true => map(path),
        false => from_canonical_bytes(&read(path)?).map_err(|error| not_canonical(path, error)),
    }
}

fn is_mappable(path: &Path) -> io::Result<bool> {
    // The numbers of a file are little-endian. A pipe cannot be mapped.
    let known = fs::metadata(path)?;
    if cfg!(target_endian = "big") || !known.is_file() || known.len() < MAPPED_BYTES_MIN {
        return Ok(false);
    }
    let mut start = [0; MAGIC.len()];
    File::open(path)?.read_exact(&mut start)?;
    Ok(start == *MAGIC)
}

/// Maps a file in canonical form, after one pass over it that checks all rows.
///
/// # Errors
/// [`LoadError::NotCanonical`], also for more features than [`MAPPED_FEATURES_MAX`], and
/// [`LoadError::Changed`] if the file was changed during the pass.
pub(crate) fn map(path: &Path) -> Result<Dataset, LoadError> {
    let unreadable = |source| LoadError::Unreadable { path: path.to_owned(), source };
    let failed = |error| match error {
        ChunkError::Canonical { path, why } => not_canonical(&path, why),
        ChunkError::Io { path, why } => LoadError::Unreadable { path, source: why },
        ChunkError::Size { rows, width } => {
            not_canonical(path, DatasetError::FileTooLarge { rows, width }.into())
        }
    };
    let mut rows = CanonicalRows::open_in_parts(path, CHECKED_FEATURES).map_err(failed)?;
    let (file, header) = rows.file();
    let Header { rows: count, width, classes } = header;
    // Each is within its limit, so the product is far below 2⁶⁴.
    if count * width > MAPPED_FEATURES_MAX {
        let error = DatasetError::FileTooLarge { rows: count, width };
        return Err(not_canonical(path, error.into()));
    }
    let state = |file: &File| -> io::Result<_> {
        let known = file.metadata()?;
        Ok((known.len(), known.modified()?))
    };
    let before = state(file).map_err(unreadable)?;
    let mut labels = Vec::with_capacity(count);
    rows.each_chunk(&mut |chunk| {
        labels.extend_from_slice(chunk.labels());
        ControlFlow::Continue(())
    })
    .map_err(failed)?;
    let (file, _) = rows.file();
    let mapped = MappedFile::new(file).map_err(unreadable)?;
    if state(file).map_err(unreadable)? != before || before.0 != header.total_bytes() {
        return Err(LoadError::Changed { path: path.to_owned() });
    }
    let bytes = Header::BYTES..Header::BYTES + count * width * size_of::<f32>();
    let features = MappedFeatures::new(mapped, bytes);
    Dataset::from_mapped(features, labels, width, classes)
        .map_err(|error| not_canonical(path, error.into()))
}

fn not_canonical(path: &Path, source: CanonicalError) -> LoadError {
    LoadError::NotCanonical { path: path.to_owned(), source }
}

/// The shape of the rows of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowShape {
    /// Features per row.
    pub width: usize,
    /// Number of possible classes.
    pub classes: usize,
}

/// A file in canonical form while it is written, part after part, so that it may exceed the memory.
/// It is a temporary file beside its path, which is removed if the writer is dropped.
#[derive(Debug)]
pub struct CanonicalWriter {
    file: BufWriter<NamedTempFile>,
    path: PathBuf,
    shape: RowShape,
    /// They follow the features, so they are in memory until the end.
    labels: Vec<u32>,
}

impl CanonicalWriter {
    /// A file without rows, which gets this path at the end.
    ///
    /// # Errors
    /// [`LoadError::Unwritable`].
    pub fn create(path: &Path, shape: RowShape) -> Result<Self, LoadError> {
        let start = || {
            let mut builder = tempfile::Builder::new();
            builder.prefix(".florin-");
            // The permissions of any new file, of which the system's mask takes some away.
            #[cfg(unix)]
            builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
            let mut file =
                BufWriter::with_capacity(BUFFER_BYTES, builder.tempfile_in(folder(path))?);
            // The header follows at the end, when the number of rows is known.
            file.write_all(&[0; Header::BYTES])?;
            Ok(file)
        };
        let file = start().map_err(|source| unwritable(path, source))?;
        Ok(Self { file, path: path.to_owned(), shape, labels: Vec::new() })
    }

    /// Number of rows so far.
    pub fn rows(&self) -> usize {
        self.labels.len()
    }

    /// Appends all rows of a data set of the same shape.
    ///
    /// # Errors
    /// [`LoadError::InvalidDataset`] for another shape, or beyond [`ROWS_MAX`] rows or
    /// [`MAPPED_FEATURES_MAX`] features, and [`LoadError::Unwritable`].
    pub fn append(&mut self, data: &Dataset) -> Result<(), LoadError> {
        let invalid = |source| LoadError::InvalidDataset { path: self.path.clone(), source };
        let RowShape { width, classes } = self.shape;
        if data.width() != width {
            return Err(invalid(DatasetError::Width { width: data.width() }));
        }
        if data.classes() != classes {
            return Err(invalid(DatasetError::Classes { classes: data.classes() }));
        }
        let rows = self.labels.len() + data.rows();
        if rows > ROWS_MAX || rows * width > MAPPED_FEATURES_MAX {
            return Err(invalid(DatasetError::FileTooLarge { rows, width }));
        }
        self.labels.extend_from_slice(data.labels());
        let written =
            self.file.write_all(&little_endian(data.features(), |value| value.to_le_bytes()));
        written.map_err(|source| unwritable(&self.path, source))
    }

    /// Writes labels and header, syncs the file to disk and gives it its path, unless a file has it.
    ///
    /// # Errors
    /// [`LoadError::Unwritable`].
    pub fn finish(self) -> Result<(), LoadError> {
        self.complete(|file, path| file.persist_noclobber(path).map_err(|error| error.error))
    }

    /// As [`finish`](Self::finish), but replaces an existing file.
    ///
    /// # Errors
    /// [`LoadError::Unwritable`].
    pub fn replace(self) -> Result<(), LoadError> {
        self.complete(|file, path| file.persist(path).map_err(|error| error.error))
    }

    fn complete(
        self,
        publish: impl FnOnce(NamedTempFile, &Path) -> io::Result<File>,
    ) -> Result<(), LoadError> {
        let Self { mut file, path, shape, labels } = self;
        let end = || {
            file.write_all(&little_endian(&labels, |label| label.to_le_bytes()))?;
            let header = Header { rows: labels.len(), width: shape.width, classes: shape.classes };
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&header.to_bytes())?;
            let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.as_file().sync_all()?;
            publish(file, &path)?;
            // The name is on disk as well.
            File::open(folder(&path))?.sync_all()
        };
        end().map_err(|source| unwritable(&path, source))
    }
}

fn unwritable(path: &Path, source: io::Error) -> LoadError {
    LoadError::Unwritable { path: path.to_owned(), source }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataSource, canonical_bytes, load_table};

    const ROWS: usize = 300;

    fn owned() -> Dataset {
        crate::data::load(&DataSource::Digits).unwrap().slice(0..ROWS).unwrap()
    }

    fn written(bytes: &[u8]) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn mapped_rows_equal_the_rows_in_memory() {
        let owned = owned();
        let file = written(&canonical_bytes(&owned));
        let mapped = map(file.path()).unwrap();
        assert!(mapped.is_mapped() && !owned.is_mapped());
        assert_eq!(mapped, owned);
        assert_eq!(format!("{mapped:?}"), format!("{owned:?}"));
        assert_eq!((mapped.rows(), mapped.width(), mapped.classes()), (ROWS, 64, 10));
        assert_eq!((mapped.features(), mapped.labels()), (owned.features(), owned.labels()));
        assert_eq!(mapped.row(ROWS - 1), owned.row(ROWS - 1));
        assert_eq!(mapped.class_counts(), owned.class_counts());
        assert_eq!(canonical_bytes(&mapped), canonical_bytes(&owned));
        let order = [7, 0, 7, ROWS - 1];
        let some = mapped.subset(&order).unwrap();
        assert_eq!((some.is_mapped(), some), (false, owned.subset(&order).unwrap()));
        let part = mapped.slice(10..200).unwrap().slice(5..9).unwrap();
        assert_eq!((part.is_mapped(), &part), (true, &owned.slice(15..19).unwrap()));
        assert_eq!(part.features().as_ptr(), mapped.row(15).as_ptr(), "a slice shares the map");
        assert_eq!(mapped.slice(0..ROWS + 1), owned.slice(0..ROWS + 1));
        let zeros = vec![0; ROWS];
        let relabelled = mapped.with_labels(zeros.clone()).unwrap();
        assert_eq!(relabelled, owned.with_labels(zeros).unwrap());
        assert_eq!((relabelled.labels(), relabelled.is_mapped()), (&[0; ROWS][..], true));
        for wrong in [vec![0; ROWS - 1], vec![10; ROWS]] {
            assert!(owned.with_labels(wrong.clone()).is_err(), "{wrong:?}");
            assert_eq!(mapped.with_labels(wrong.clone()), owned.with_labels(wrong));
        }
        drop((mapped, file));
        assert_eq!(part, owned.slice(15..19).unwrap(), "a part outlives the file's name");
    }

    #[test]
    fn a_large_file_is_mapped_and_a_small_or_gzipped_one_is_read() {
        let rows = MAPPED_BYTES_MIN as usize / (4 << 12);
        let large = Dataset::new(vec![0.25; rows << 12], vec![1; rows], 1 << 12, 2).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("large.florin");
        crate::data::save(&large, &file).unwrap();
        let source = DataSource::Florin { file: file.clone() };
        let loaded = crate::data::load(&source).unwrap();
        assert!(loaded.is_mapped());
        assert!(loaded == large);
        assert_eq!(load_table(&source).unwrap().rows(), rows);
        let zipped = folder.path().join("zipped.florin");
        let mut encoder =
            flate2::write::GzEncoder::new(File::create(&zipped).unwrap(), Default::default());
        encoder.write_all(&canonical_bytes(&owned())).unwrap();
        encoder.finish().unwrap();
        crate::data::save(&owned(), &file).unwrap();
        for file in [zipped, file] {
            let data = load(&file).unwrap();
            assert_eq!((data.is_mapped(), data), (false, owned()));
        }
        assert!(loaded == large, "the map has the replaced file");
    }

    #[test]
    fn a_mapped_file_is_checked_as_a_whole() {
        let good = canonical_bytes(&owned());
        let error = |bytes: &[u8]| map(written(bytes).path()).unwrap_err().to_string();
        let changed = |at: usize, number: [u8; 4]| {
            let mut bytes = good.clone();
            bytes[at..at + 4].copy_from_slice(&number);
            error(&bytes)
        };
        let feature = |row: usize, at: usize| Header::BYTES + 4 * (64 * row + at);
        let last = feature(ROWS - 1, 63);
        let not_finite = changed(last, f32::NAN.to_le_bytes());
        assert!(not_finite.contains("row 299, feature 63 is NaN"), "{not_finite}");
        let label = changed(good.len() - 4, 10_u32.to_le_bytes());
        assert!(label.contains("row 299 has label 10: must be below 10"), "{label}");
        let width = changed(12, 0_u32.to_le_bytes());
        assert!(width.contains("its header declares 1232"), "{width}");
        for bytes in [&good[..good.len() - 4], &[&good[..], &[0]].concat()] {
            let length = error(bytes);
            assert!(length.contains("its header declares 78032"), "{length}");
        }
        assert!(error(&good[..31]).contains("its header declares 32"));
        assert!(error(b"PK").contains("FLORINDS"));
        let narrow = Header { rows: 0, width: 0, classes: 10 };
        assert!(error(&narrow.to_bytes()).contains("rows have 0 features"));
    }

    #[test]
    fn more_features_than_a_file_may_have_are_refused_before_they_are_read() {
        // A file without blocks: only its length is on disk.
        let file = NamedTempFile::new().unwrap();
        let declare = |rows: usize| {
            let header = Header { rows, width: 1 << 20, classes: 1 };
            fs::write(file.path(), header.to_bytes()).unwrap();
            file.as_file().set_len(header.total_bytes()).unwrap();
        };
        declare((1 << 16) + 1);
        let error = map(file.path()).unwrap_err().to_string();
        assert!(error.contains("a file has at most 10000000 rows and 68719476736"), "{error}");
        // A little more than 1 GiB of zeros, which a map may have and the memory may not.
        declare(257);
        let data = load(file.path()).unwrap();
        assert!(data.is_mapped());
        let too_large = || Err(DatasetError::TooLarge { rows: 257, width: 1 << 20 });
        assert_eq!(data.check_fits_memory(), too_large());
        assert!(data.subset(&(0..257).collect::<Vec<_>>()) == too_large().map(|()| data.clone()));
        assert_eq!(data.slice(0..256).unwrap().check_fits_memory(), Ok(()));
        let source = DataSource::Florin { file: file.path().to_owned() };
        let error = load_table(&source).unwrap_err().to_string();
        assert!(error.contains("268435456 features in memory"), "{error}");
    }

    #[test]
    fn a_file_written_in_parts_has_the_bytes_of_the_whole() {
        let (owned, folder) = (owned(), tempfile::tempdir().unwrap());
        let path = folder.path().join("rows.florin");
        let shape = RowShape { width: 64, classes: 10 };
        let files = || fs::read_dir(folder.path()).unwrap().count();
        let write = || {
            let mut writer = CanonicalWriter::create(&path, shape).unwrap();
            for rows in [0..7, 7..7, 7..299, 299..ROWS] {
                writer.append(&owned.slice(rows).unwrap()).unwrap();
            }
            assert_eq!((writer.rows(), files()), (ROWS, 1 + usize::from(path.exists())));
            writer
        };
        write().finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), canonical_bytes(&owned));
        assert_eq!(files(), 1);
        fs::write(&path, "mine").unwrap();
        let error = write().finish().unwrap_err();
        assert!(matches!(error, LoadError::Unwritable { .. }), "{error}");
        assert_eq!((fs::read(&path).unwrap(), files()), (b"mine".to_vec(), 1));
        write().replace().unwrap();
        assert_eq!(fs::read(&path).unwrap(), canonical_bytes(&owned));
        drop(write());
        assert_eq!(files(), 1, "a dropped writer leaves nothing");
        let mut writer =
            CanonicalWriter::create(&path, RowShape { width: 63, classes: 10 }).unwrap();
        let error = writer.append(&owned).unwrap_err();
        assert!(matches!(error, LoadError::InvalidDataset { .. }), "{error}");
        let nowhere = folder.path().join("absent/rows.florin");
        assert!(CanonicalWriter::create(&nowhere, shape).is_err());
    }
}
