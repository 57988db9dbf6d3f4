//! An exported model with other values of some of its tensors: the trained model as PyTorch loads it.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom, Write};

use zip::write::FileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::archive::Archive;
use super::error::GraphErrorKind::Weights;
use super::weights::Strided;
use super::{GraphError, WEIGHT_BYTES_MAX};
use crate::model::TensorSpec;

/// Why no archive was written.
#[derive(Debug, thiserror::Error)]
pub enum RewriteError {
    /// The archive is invalid, or lacks a tensor.
    #[error(transparent)]
    Source(#[from] GraphError),
    /// The copy cannot be written.
    #[error("the new archive cannot be written: {0}")]
    Output(#[source] io::Error),
}

/// Copies an archive of `torch.export.save` to `out`, with the numbers of `tensors`, one tensor after
/// another, in place of their own.
///
/// # Errors
/// [`RewriteError`].
///
/// # Panics
/// If `values` has fewer numbers than `tensors` have elements (a caller's error).
pub fn write_archive(
    source: impl Read + Seek,
    tensors: &[TensorSpec],
    values: &[f32],
    out: impl Write + Seek,
) -> Result<(), RewriteError> {
    let mut failure = None;
    let out = ArchiveOutput { inner: out, at: 0, end: 0, failure: &mut failure };
    let copied = copy(source, tensors, values, out);
    match failure {
        Some(failure) => Err(RewriteError::Output(failure)),
        None => Ok(copied?),
    }
}

fn copy(
    source: impl Read + Seek,
    tensors: &[TensorSpec],
    values: &[f32],
    out: impl Write + Seek,
) -> Result<(), GraphError> {
    let mut archive = Archive::open(source)?;
    archive.check_version()?;
    let table = archive.read_table("data/weights/model_weights_config.json")?;
    let mut replaced: BTreeMap<String, Vec<(Strided, &[f32])>> = BTreeMap::new();
    let mut from = 0;
    for tensor in tensors {
        let own = &values[from..from + tensor.elements()];
        from += tensor.elements();
        let refuse = |why: &str| GraphError::new(Weights, format!("{}: {why}", tensor.name));
        let entry = table.config.get(&tensor.name).ok_or_else(|| refuse("no such weight"))?;
        let meta = entry.tensor_meta.as_ref().ok_or_else(|| refuse("it has no type"))?;
        let sizes: Vec<u64> = tensor.shape.iter().map(|&size| size as u64).collect();
        let place = Strided::new(meta, &sizes).map_err(|why| refuse(&why))?;
        replaced.entry(format!("data/weights/{}", entry.path_name)).or_default().push((place, own));
    }
    let mut writer = ZipWriter::new(out);
    let failed = |error: zip::result::ZipError| GraphError::archive(error.to_string());
    for (name, number) in archive.entries() {
        let Some(tensors) = replaced.remove(&name) else {
            writer.raw_copy_file(archive.entry(number)?).map_err(failed)?;
            continue;
        };
        // Several tensors can share an entry, each with its own strides.
        let mut bytes = archive.read(&name, WEIGHT_BYTES_MAX)?;
        for (place, numbers) in tensors {
            place.scatter(numbers, &mut bytes).map_err(|why| GraphError::new(Weights, why))?;
        }
        let options = FileOptions::default().compression_method(CompressionMethod::Stored);
        writer.start_file(archive.full_name(&name), options).map_err(failed)?;
        writer.write_all(&bytes)?;
    }
    writer.finish().map_err(failed)?;
    Ok(())
}

/// A writer that records its first failure. Behind it bytes are discarded: the archive's writer completes itself when
/// it is dropped, and would print a failure on standard error.
struct ArchiveOutput<'a, W> {
    inner: W,
    /// The position, and the length.
    at: u64,
    end: u64,
    failure: &'a mut Option<io::Error>,
}

impl<W> ArchiveOutput<'_, W> {
    /// Records a failure, unless the call is repeated. Returns one of the same kind.
    fn fail(&mut self, error: io::Error) -> io::Error {
        if error.kind() == io::ErrorKind::Interrupted {
            return error;
        }
        let shown = io::Error::new(error.kind(), error.to_string());
        self.failure.get_or_insert(error);
        shown
    }

    fn go_to(&mut self, at: u64) {
        self.at = at;
        self.end = self.end.max(at);
    }
}

impl<W: Write> Write for ArchiveOutput<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self.failure {
            Some(_) => bytes.len(),
            None => match self.inner.write(bytes) {
                Ok(0) if !bytes.is_empty() => {
                    return Err(self.fail(io::ErrorKind::WriteZero.into()));
                }
                written => written.map_err(|error| self.fail(error))?,
            },
        };
        self.go_to(self.at + written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.failure {
            Some(_) => Ok(()),
            None => self.inner.flush().map_err(|error| self.fail(error)),
        }
    }
}

impl<W: Seek> Seek for ArchiveOutput<'_, W> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match (&self.failure, to) {
            (None, to) => self.inner.seek(to).map_err(|error| self.fail(error))?,
            (Some(_), SeekFrom::Start(at)) => at,
            (Some(_), SeekFrom::Current(by)) => self.at.saturating_add_signed(by),
            (Some(_), SeekFrom::End(by)) => self.end.saturating_add_signed(by),
        };
        self.go_to(at);
        Ok(at)
    }
}
