//! The files of a run: what the program reads, and the checks of what it writes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, View, serialize_to_file};
use tempfile::TempDir;

use crate::data::little_endian;
use crate::{Dataset, ModelSpec, TensorSpec, Training};

/// Version of the files.
const FORMAT: u32 = 1;
/// The file that the program writes: one for each verb, so that a program can write no other's.
const UPDATE: &str = "update.safetensors";
const LOSSES: &str = "losses.safetensors";
const GRADIENT: &str = "gradient.safetensors";
/// Largest header of the output besides its tensors' entries, in bytes.
const HEADER_BYTES_MAX: u64 = 64 << 10;
/// Largest entry of a tensor in the header, in bytes.
const ENTRY_BYTES_MAX: u64 = 1 << 10;

/// A request to a program.
#[derive(Debug, Clone, Copy)]
pub(super) enum Verb<'a> {
    /// To train from these parameters.
    Train { start: &'a [f32], how: &'a Training, seed: u64 },
    /// To compute the loss of each row at each of these models.
    Losses { models: &'a [&'a [f64]] },
    /// To compute the gradient of the weighted sum of the rows' losses at a model.
    Gradient { params: &'a [f64], weights: &'a [f64] },
}

/// The losses of models on rows.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Losses {
    /// `[model][row]`, as the program wrote them.
    pub(super) losses: Vec<Vec<f64>>,
    /// Whether the prediction of each row is right, `[model][row]`; empty without classes.
    pub(super) correct: Vec<Vec<bool>>,
}

/// A run of a program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) model: &'a ModelSpec,
    pub(super) data: &'a Dataset,
    pub(super) verb: Verb<'a>,
}

impl Verb<'_> {
    /// The verb's name, the program's first argument.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Train { .. } => "train",
            Self::Losses { .. } => "losses",
            Self::Gradient { .. } => "gradient",
        }
    }

    /// The file that the program writes.
    pub(super) const fn output(self) -> &'static str {
        match self {
            Self::Train { .. } => UPDATE,
            Self::Losses { .. } => LOSSES,
            Self::Gradient { .. } => GRADIENT,
        }
    }
}

impl Job<'_> {
    /// Writes the files into a new folder in `scratch`, with an empty output file.
    pub(super) fn write(&self, scratch: &Path) -> io::Result<TempDir> {
        fs::create_dir_all(scratch)?;
        let folder = tempfile::Builder::new()
            .prefix("training-")
            .permissions(Permissions::from_mode(super::PRIVATE))
            .tempdir_in(scratch)?;
        let file = |name: &str| folder.path().join(name);
        let data = self.data;
        let mut rows = vec![
            Numbers::new("features", Dtype::F32, vec![data.rows(), data.width()], {
                little_endian(data.features(), |value| value.to_le_bytes())
            }),
            Numbers::new("labels", Dtype::I64, vec![data.rows()], {
                let labels = data.labels().iter().map(|label| i64::from(*label));
                labels.flat_map(i64::to_le_bytes).collect::<Vec<u8>>().into()
            }),
        ];
        let mut settings = serde_json::json!({
            "format": FORMAT,
            "rows": data.rows(),
            "width": data.width(),
            "classes": self.model.classes(),
        });
        match self.verb {
            Verb::Train { start, how, seed } => {
                settings["training"] = serde_json::json!(how);
                settings["seed"] = seed.into();
                save(&self.parameters(start), &file("base.safetensors"))?;
            }
            Verb::Losses { models } => {
                settings["models"] = models.len().into();
                save(&self.stack(models), &file("models.safetensors"))?;
            }
            Verb::Gradient { params, weights } => {
                settings["models"] = 1.into();
                save(&self.stack(&[params]), &file("models.safetensors"))?;
                let bytes: Vec<u8> = weights.iter().flat_map(|value| value.to_le_bytes()).collect();
                rows.push(Numbers::new("weights", Dtype::F64, vec![data.rows()], bytes.into()));
            }
        }
        save(&rows, &file("rows.safetensors"))?;
        fs::write(file("job.json"), settings.to_string())?;
        File::create(file(self.verb.output()))?;
        Ok(folder)
    }

    /// The parameters before a training, by name.
    fn parameters<'a>(&self, mut rest: &'a [f32]) -> Vec<Numbers<'a>> {
        let tensor = |tensor: TensorSpec| {
            let (own, others) = rest.split_at(tensor.elements().min(rest.len()));
            rest = others;
            Numbers::new(
                &tensor.name,
                Dtype::F32,
                tensor.shape,
                little_endian(own, |value| value.to_le_bytes()),
            )
        };
        self.model.tensors().into_iter().map(tensor).collect()
    }

    /// The parameters of several models, by name: `[models, …]`.
    fn stack(&self, models: &[&[f64]]) -> Vec<Numbers<'static>> {
        let mut from = 0;
        let tensor = |tensor: TensorSpec| {
            let range = from..from + tensor.elements();
            from = range.end;
            let own = |params: &&[f64]| params[range.clone()].to_vec();
            let numbers = models.iter().flat_map(own);
            let bytes: Vec<u8> = numbers.flat_map(f64::to_le_bytes).collect();
            let shape = [&[models.len()], tensor.shape.as_slice()].concat();
            Numbers::new(&tensor.name, Dtype::F64, shape, bytes.into())
        };
        self.model.tensors().into_iter().map(tensor).collect()
    }

    /// Largest size of the output, in bytes.
    pub(super) fn output_bytes_max(&self) -> u64 {
        let (entries, numbers) = match self.verb {
            Verb::Train { start, .. } => (self.model.tensors(), bytes_of::<f32>(start.len())),
            Verb::Gradient { params, .. } => (self.model.tensors(), bytes_of::<f64>(params.len())),
            Verb::Losses { models } => {
                let rows = models.len().saturating_mul(self.data.rows());
                (Vec::new(), bytes_of::<f64>(rows).saturating_add(rows as u64))
            }
        };
        let names: usize = entries.iter().map(|tensor| tensor.name.len()).sum();
        let entries = ENTRY_BYTES_MAX.saturating_mul(entries.len() as u64);
        let header = HEADER_BYTES_MAX.saturating_add(entries).saturating_add(names as u64);
        header.saturating_add(numbers)
    }

    /// Reads the trained parameters: the tensors of the model and no others, as finite `f32`.
    pub(super) fn read_update(&self, folder: &Path) -> Result<Vec<f32>, String> {
        let bytes = self.read_output(folder)?;
        let mut file = Output::new(&bytes)?;
        let mut params = Vec::new();
        for tensor in self.model.tensors() {
            let own = file.take(&tensor.name, Dtype::F32, &tensor.shape)?;
            append_finite(&mut params, floats(own), &tensor.name)?;
        }
        file.end().map(|()| params)
    }

    /// Reads the gradient: the tensors of the model and no others, as finite `f64`.
    pub(super) fn read_gradient(&self, folder: &Path) -> Result<Vec<f64>, String> {
        let bytes = self.read_output(folder)?;
        let mut file = Output::new(&bytes)?;
        let mut gradient = Vec::new();
        for tensor in self.model.tensors() {
            let shape = [&[1], tensor.shape.as_slice()].concat();
            let own = file.take(&tensor.name, Dtype::F64, &shape)?;
            append_finite(&mut gradient, doubles(own), &tensor.name)?;
        }
        file.end().map(|()| gradient)
    }

    /// Reads the losses of `models` models: any numbers, and with classes whether predictions are
    /// right.
    pub(super) fn read_losses(&self, folder: &Path, models: usize) -> Result<Losses, String> {
        let bytes = self.read_output(folder)?;
        let mut file = Output::new(&bytes)?;
        let rows = self.data.rows();
        let numbers = doubles(file.take("losses", Dtype::F64, &[models, rows])?);
        let losses: Vec<f64> = numbers.collect();
        let mut correct = Vec::new();
        if self.model.classes() > 1 {
            correct.extend(file.take("correct", Dtype::U8, &[models, rows])?);
            if correct.iter().any(|right| *right > 1) {
                return Err("has a number in \"correct\" that is neither 0 nor 1".to_owned());
            }
        }
        file.end()?;
        let right = |rows: &[u8]| rows.iter().map(|right| *right == 1).collect();
        Ok(Losses {
            losses: losses.chunks(rows.max(1)).map(<[f64]>::to_vec).collect(),
            correct: correct.chunks(rows.max(1)).map(right).collect(),
        })
    }

    fn read_output(&self, folder: &Path) -> Result<Vec<u8>, String> {
        let bytes = read_bounded(&folder.join(self.verb.output()), self.output_bytes_max())?;
        match bytes.is_empty() {
            true => Err("the program wrote nothing to it".to_owned()),
            false => Ok(bytes),
        }
    }
}

fn bytes_of<T>(numbers: usize) -> u64 {
    (numbers as u64).saturating_mul(size_of::<T>() as u64)
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

fn doubles(bytes: &[u8]) -> impl Iterator<Item = f64> {
    bytes.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes))
}

fn append_finite<T: Copy + Into<f64>>(
    to: &mut Vec<T>,
    numbers: impl Iterator<Item = T>,
    name: &str,
) -> Result<(), String> {
    let first = to.len();
    to.extend(numbers);
    match to[first..].iter().all(|value| (*value).into().is_finite()) {
        true => Ok(()),
        false => Err(format!("has a number in {name:?} that is not finite")),
    }
}

/// The tensors of an output that are not read yet.
struct Output<'a>(BTreeMap<String, safetensors::tensor::TensorView<'a>>);

impl<'a> Output<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, String> {
        let file = SafeTensors::deserialize(bytes)
            .map_err(|error| format!("is no safetensors file: {error}"))?;
        Ok(Self(file.tensors().into_iter().collect()))
    }

    fn take(&mut self, name: &str, kind: Dtype, shape: &[usize]) -> Result<&'a [u8], String> {
        let own = self.0.remove(name).ok_or_else(|| format!("has no tensor {name:?}"))?;
        if own.dtype() != kind || own.shape() != shape {
            return Err(format!(
                "has {name:?} as {:?} of {:?}: must be {kind:?} of {shape:?}",
                own.dtype(),
                own.shape(),
            ));
        }
        Ok(own.data())
    }

    fn end(self) -> Result<(), String> {
        match self.0.into_keys().next() {
            Some(name) => Err(format!("has a tensor {name:?}, which is not asked for")),
            None => Ok(()),
        }
    }
}

/// The tensors of a safetensors file in the order of their names, each with its numbers: the initial
/// parameters of a model that is a trainer.
///
/// # Errors
/// The first mistake, in words: another type than F32, or a number that is not finite.
pub fn read_parameters(bytes: &[u8]) -> Result<Vec<(TensorSpec, Vec<f32>)>, String> {
    let mut file = Output::new(bytes)?.0;
    let mut all = Vec::with_capacity(file.len());
    while let Some((name, tensor)) = file.pop_first() {
        if tensor.dtype() != Dtype::F32 {
            return Err(format!("has {name:?} as {:?}: must be F32", tensor.dtype()));
        }
        let mut numbers = Vec::new();
        append_finite(&mut numbers, floats(tensor.data()), &name)?;
        all.push((TensorSpec { name, shape: tensor.shape().to_vec() }, numbers));
    }
    Ok(all)
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
struct Numbers<'a> {
    name: String,
    kind: Dtype,
    shape: Vec<usize>,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Numbers<'a> {
    fn new(name: &str, kind: Dtype, shape: Vec<usize>, bytes: Cow<'a, [u8]>) -> Self {
        Self { name: name.to_owned(), kind, shape, bytes }
    }
}

impl View for &Numbers<'_> {
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

fn save(tensors: &[Numbers<'_>], path: &Path) -> io::Result<()> {
    let named = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor));
    serialize_to_file(named, None, path).map_err(io::Error::other)
}
