//! An exported model with other values of some of its tensors: the trained model as PyTorch loads it.

use std::collections::BTreeMap;
use std::io::{Read, Seek, Write};

use zip::write::FileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::archive::Archive;
use super::error::GraphErrorKind::Weights;
use super::weights::Strided;
use super::{GraphError, WEIGHT_BYTES_MAX};
use crate::model::TensorSpec;

/// Copies an archive of `torch.export.save` to `out`, with the numbers of `tensors`, one tensor after
/// another, in place of their own.
///
/// # Errors
/// [`GraphError`] if the archive is invalid, if it lacks one of the tensors, and if writing fails.
///
/// # Panics
/// If `values` has fewer numbers than `tensors` have elements (a caller's error).
pub fn write_archive(
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
