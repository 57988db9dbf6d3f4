//! An exported model with other values of some of its tensors: the trained model as PyTorch loads it.

use std::collections::BTreeMap;
use std::io::{Read, Seek, Write};

use zip::write::FileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::GraphError;
use super::archive::Archive;
use super::error::GraphErrorKind::Weights;
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
    let mut replaced: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut from = 0;
    for tensor in tensors {
        let own = &values[from..from + tensor.elements()];
        from += tensor.elements();
        let entry = table.config.get(&tensor.name).ok_or_else(|| {
            GraphError::new(Weights, format!("the archive has no weight {}", tensor.name))
        })?;
        let bytes = own.iter().flat_map(|value| value.to_le_bytes()).collect();
        replaced.insert(format!("data/weights/{}", entry.path_name), bytes);
    }
    let mut writer = ZipWriter::new(out);
    let failed = |error: zip::result::ZipError| GraphError::archive(error.to_string());
    for (name, number) in archive.entries() {
        match replaced.remove(&name) {
            None => writer.raw_copy_file(archive.entry(number)?).map_err(failed)?,
            Some(bytes) => {
                let stored = archive.entry(number)?.size();
                if stored != bytes.len() as u64 {
                    let why = format!(
                        "entry {name} has {stored} bytes, and the trained tensor {}: export the model \
                         with contiguous weights",
                        bytes.len()
                    );
                    return Err(GraphError::new(Weights, why));
                }
                let options = FileOptions::default().compression_method(CompressionMethod::Stored);
                writer.start_file(archive.full_name(&name), options).map_err(failed)?;
                writer.write_all(&bytes)?;
            }
        }
    }
    writer.finish().map_err(failed)?;
    Ok(())
}
