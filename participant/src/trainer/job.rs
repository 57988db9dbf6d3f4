//! The files of a training: what the program reads, and the checks of what it writes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use florin_learning::{Dataset, ModelSpec, Training};
use safetensors::tensor::{Dtype, SafeTensors, View, serialize_to_file};
use tempfile::TempDir;

/// Version of the files.
const FORMAT: u32 = 1;
/// The file that the program writes.
pub(super) const OUTPUT: &str = "update.safetensors";
/// Largest header of the output besides its tensors' entries, in bytes.
const HEADER_BYTES_MAX: u64 = 64 << 10;
/// Largest entry of a tensor in the header, in bytes.
const ENTRY_BYTES_MAX: u64 = 1 << 10;

/// A training.
pub(super) struct Job<'a> {
    pub(super) model: &'a ModelSpec,
    pub(super) start: &'a [f32],
    pub(super) data: &'a Dataset,
    pub(super) how: &'a Training,
    pub(super) seed: u64,
}

impl Job<'_> {
    /// Writes the files into a new folder in `scratch`, with an empty output file.
    pub(super) fn write(&self, scratch: &Path) -> io::Result<TempDir> {
        fs::create_dir_all(scratch)?;
        let folder = tempfile::Builder::new().prefix("training-").tempdir_in(scratch)?;
        let file = |name: &str| folder.path().join(name);
        let data = self.data;
        let rows = [
            Numbers::new("features", Dtype::F32, vec![data.rows(), data.width()], {
                data.features().iter().flat_map(|value| value.to_le_bytes()).collect()
            }),
            Numbers::new("labels", Dtype::I64, vec![data.rows()], {
                let labels = data.labels().iter().map(|label| i64::from(*label));
                labels.flat_map(i64::to_le_bytes).collect()
            }),
        ];
        save(&rows, &file("rows.safetensors"))?;
        save(&self.base(), &file("base.safetensors"))?;
        let settings = serde_json::json!({
            "format": FORMAT,
            "seed": self.seed,
            "rows": data.rows(),
            "width": data.width(),
            "classes": self.model.classes(),
            "training": self.how,
        });
        fs::write(file("job.json"), settings.to_string())?;
        File::create(file(OUTPUT))?;
        Ok(folder)
    }

    /// The parameters before the training, by name.
    fn base(&self) -> Vec<Numbers> {
        let mut rest = self.start;
        let tensor = |tensor: florin_learning::TensorSpec| {
            let (own, others) = rest.split_at(tensor.elements().min(rest.len()));
            rest = others;
            let bytes = own.iter().flat_map(|value| value.to_le_bytes()).collect();
            Numbers::new(&tensor.name, Dtype::F32, tensor.shape, bytes)
        };
        self.model.tensors().into_iter().map(tensor).collect()
    }

    /// Largest size of the output, in bytes.
    pub(super) fn output_bytes_max(&self) -> u64 {
        let tensors = self.model.tensors();
        let names: usize = tensors.iter().map(|tensor| tensor.name.len()).sum();
        let entries = ENTRY_BYTES_MAX.saturating_mul(tensors.len() as u64);
        let header = HEADER_BYTES_MAX.saturating_add(entries).saturating_add(names as u64);
        header.saturating_add((self.start.len() as u64).saturating_mul(size_of::<f32>() as u64))
    }

    /// Reads the trained parameters: the tensors of the model and no others, as finite `f32`.
    pub(super) fn read(&self, folder: &Path) -> Result<Vec<f32>, String> {
        let bytes = read_bounded(&folder.join(OUTPUT), self.output_bytes_max())?;
        if bytes.is_empty() {
            return Err("the program wrote nothing to it".to_owned());
        }
        let file = SafeTensors::deserialize(&bytes)
            .map_err(|error| format!("is no safetensors file: {error}"))?;
        let mut found: BTreeMap<String, _> = file.tensors().into_iter().collect();
        let mut params = Vec::with_capacity(self.start.len());
        for tensor in self.model.tensors() {
            let name = tensor.name;
            let own = found.remove(&name).ok_or_else(|| format!("has no tensor {name:?}"))?;
            if own.dtype() != Dtype::F32 || own.shape() != tensor.shape {
                return Err(format!(
                    "has {name:?} as {:?} of {:?}: must be F32 of {:?}",
                    own.dtype(),
                    own.shape(),
                    tensor.shape
                ));
            }
            let (numbers, _) = own.data().as_chunks::<4>();
            params.extend(numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            if params.iter().rev().take(numbers.len()).any(|value| !value.is_finite()) {
                return Err(format!("has a number in {name:?} that is not finite"));
            }
        }
        match found.into_keys().next() {
            Some(name) => Err(format!("has a tensor {name:?}, which the model lacks")),
            None => Ok(params),
        }
    }
}

/// The bytes of a regular file of at most `most` bytes.
fn read_bounded(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let unread = |error: io::Error| format!("cannot be read: {error}");
    let found = fs::symlink_metadata(path).map_err(unread)?;
    if !found.is_file() {
        return Err("must stay the regular file that the program found".to_owned());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unread)?;
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(unread)?;
    match bytes.len() as u64 <= most {
        true => Ok(bytes),
        false => Err(format!("has more than {most} bytes")),
    }
}

/// A tensor of a file.
struct Numbers {
    name: String,
    kind: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Numbers {
    fn new(name: &str, kind: Dtype, shape: Vec<usize>, bytes: Vec<u8>) -> Self {
        Self { name: name.to_owned(), kind, shape, bytes }
    }
}

impl View for &Numbers {
    fn dtype(&self) -> Dtype {
        self.kind
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

fn save(tensors: &[Numbers], path: &Path) -> io::Result<()> {
    let named = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor));
    serialize_to_file(named, None, path).map_err(io::Error::other)
}
