//! The file with the state of a training.

use std::io::Write;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

/// The entry of the header with the numbers beside the tensors.
const ENTRY: &str = "training";

/// A training between two steps.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Checkpoint {
    pub(crate) numbers: CheckpointNumbers,
    /// Parameters, and what the optimizer carries.
    pub(crate) tensors: Vec<Vec<f32>>,
}

/// The numbers of a state. Those with a fraction are bits, so that they return as they were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckpointNumbers {
    /// The key of the training.
    pub(crate) key: String,
    /// Steps that were done.
    pub(crate) step: u64,
    /// Bits of the losses of the epoch so far.
    pub(crate) sum: u64,
    /// Bits of the mean loss of the epoch before.
    pub(crate) mean_loss: u64,
    /// Bits of the scale of the loss, and the steps since its last change.
    pub(crate) scale: (u64, u32),
}

impl Checkpoint {
    /// Replaces the file: after a crash it has the old state or the new one.
    ///
    /// # Errors
    /// The reason, with the file.
    pub(crate) fn write(&self, file: &Path) -> Result<(), String> {
        let name = file.display();
        let failed =
            |why: String| format!("{name}: the state of the training cannot be stored: {why}");
        let json =
            serde_json::to_string(&self.numbers).map_err(|error| failed(error.to_string()))?;
        let header = [(ENTRY.to_owned(), json)].into();
        let views = self.tensors.iter().enumerate().map(|(number, tensor)| {
            let bytes = bytemuck::cast_slice(tensor);
            let view = TensorView::new(Dtype::F32, vec![tensor.len()], bytes);
            view.map(|view| (number.to_string(), view))
        });
        let views =
            views.collect::<Result<Vec<_>, _>>().map_err(|error| failed(error.to_string()))?;
        let folder = file.parent().unwrap_or(Path::new("."));
        let bytes = safetensors::serialize(views, Some(header));
        let bytes = bytes.map_err(|error| failed(error.to_string()))?;
        let write = || {
            std::fs::create_dir_all(folder)?;
            let mut new = tempfile::NamedTempFile::new_in(folder)?;
            new.write_all(&bytes)?;
            new.as_file().sync_all()?;
            new.persist(file).map_err(|error| error.error)?;
            std::fs::File::open(folder)?.sync_all()
        };
        write().map_err(|error| failed(error.to_string()))
    }

    /// The state in the file, if it belongs to the training with this key and has tensors of this
    /// length. A file that cannot be read counts as none: the training begins anew.
    pub(crate) fn read(file: &Path, key: &str, length: usize) -> Option<Self> {
        let bytes = std::fs::read(file).ok()?;
        let (_, header) = SafeTensors::read_metadata(&bytes).ok()?;
        let json = header.metadata().as_ref()?.get(ENTRY)?;
        let numbers: CheckpointNumbers = serde_json::from_str(json).ok()?;
        if numbers.key != key {
            return None;
        }
        let found = SafeTensors::deserialize(&bytes).ok()?;
        let tensors = (0..found.len()).map(|number| {
            let view = found.tensor(&number.to_string()).ok()?;
            let is_ours = view.dtype() == Dtype::F32 && view.shape() == [length];
            is_ours.then(|| bytemuck::pod_collect_to_vec(view.data()))
        });
        Some(Self { tensors: tensors.collect::<Option<_>>()?, numbers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_returns_with_its_bits() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("own/training.safetensors");
        let numbers = CheckpointNumbers {
            key: "a".to_owned(),
            step: 7,
            sum: 0.1_f64.to_bits(),
            mean_loss: f64::MIN_POSITIVE.to_bits(),
            scale: (65_536.0_f64.to_bits(), 3),
        };
        let tensors = vec![vec![1.5, -0.0, 1e-30], vec![0.25, 0.5, 0.75]];
        let state = Checkpoint { numbers, tensors };
        state.write(&file).unwrap();
        let read = Checkpoint::read(&file, "a", 3).unwrap();
        assert_eq!(read, state);
        assert_eq!(read.tensors[0][1].to_bits(), (-0.0_f32).to_bits());
        assert_eq!(Checkpoint::read(&file, "b", 3), None, "another training");
        assert_eq!(Checkpoint::read(&file, "a", 4), None, "another model");
        let whole = std::fs::read(&file).unwrap();
        for length in [0, 7, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&file, &whole[..length]).unwrap();
            assert_eq!(Checkpoint::read(&file, "a", 3), None, "{length} bytes");
        }
        assert_eq!(Checkpoint::read(&folder.path().join("none"), "a", 3), None);
    }
}
