//! The file with the state of a training.

use std::io::Write;
use std::path::Path;

use super::state::TrainingState;

/// The state of a training, with the key of the training.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Checkpoint {
    pub(crate) key: String,
    pub(crate) state: TrainingState,
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
        let folder = file.parent().unwrap_or(Path::new("."));
        let bytes = self.state.encode(Some(&self.key)).map_err(|error| failed(error.why))?;
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
        let (state, found) = TrainingState::decode(&bytes, length).ok()?;
        let key = found.filter(|found| found == key)?;
        Some(Self { key, state })
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::StateNumbers;
    use super::*;

    #[test]
    fn a_state_returns_with_its_bits() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("own/training.safetensors");
        let numbers = StateNumbers {
            step: 7,
            sum: 0.1_f64.to_bits(),
            mean_loss: f64::MIN_POSITIVE.to_bits(),
            scale: (65_536.0_f64.to_bits(), 3),
        };
        let tensors = vec![vec![1.5, -0.0, 1e-30], vec![0.25, 0.5, 0.75]];
        let state = Checkpoint { key: "a".to_owned(), state: TrainingState { numbers, tensors } };
        state.write(&file).unwrap();
        let read = Checkpoint::read(&file, "a", 3).unwrap();
        assert_eq!(read, state);
        assert_eq!(read.state.tensors[0][1].to_bits(), (-0.0_f32).to_bits());
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
