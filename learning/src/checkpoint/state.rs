//! A training between two steps.

use std::collections::HashMap;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::training::{Precision, Training};

/// The entry of the header with the numbers beside the tensors.
const NUMBERS: &str = "training";
/// The entry with the key of the training, in a file of its own.
const KEY: &str = "key";
/// Longest header in bytes: the numbers, a key and three tensors take some hundred.
const HEADER_BYTES_MAX: u64 = 4_096;
/// The most tensors of a state: the parameters and what an optimizer carries.
const TENSORS_MAX: usize = 3;

/// A training between two steps: with the model, the rows and the settings, everything that its next steps
/// follow from.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingState {
    pub(crate) numbers: StateNumbers,
    /// Parameters, and what the optimizer carries, each with as many numbers as the model has parameters.
    pub(crate) tensors: Vec<Vec<f32>>,
}

/// The numbers of a state. Those with a fraction are bits, so that they return as they were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateNumbers {
    /// Steps that were done.
    pub(crate) step: u64,
    /// Bits of the losses of the epoch so far.
    pub(crate) sum: u64,
    /// Bits of the mean loss of the epoch before.
    pub(crate) mean_loss: u64,
    /// Bits of the scale of the loss, and the steps since its last change.
    pub(crate) scale: (u64, u32),
}

/// Bytes are not a state of a training.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("not a state of this training: {why}; fetch it again, or from another provider")]
pub struct StateError {
    /// The reason.
    pub why: String,
}

fn invalid(why: impl Into<String>) -> StateError {
    StateError { why: why.into() }
}

fn failed(error: impl Into<Box<dyn std::error::Error>>) -> StateError {
    invalid(error.into().to_string())
}

impl TrainingState {
    /// The state before the first step, from the initial parameters.
    #[must_use]
    pub fn initial(start: &[f32], how: &Training) -> Self {
        let carried = (0..how.state_tensors()).map(|_| vec![0.0; start.len()]);
        let tensors = std::iter::once(start.to_vec()).chain(carried).collect();
        Self { numbers: StateNumbers::default(), tensors }
    }

    /// Number of steps that were done.
    #[must_use]
    pub const fn step(&self) -> u64 {
        self.numbers.step
    }

    /// The parameters of the model.
    #[must_use]
    pub fn params(&self) -> &[f32] {
        self.tensors.first().map_or(&[], Vec::as_slice)
    }

    /// The mean loss of the last epoch that ended, in nats; 0 before.
    #[must_use]
    pub const fn mean_loss(&self) -> f64 {
        f64::from_bits(self.numbers.mean_loss)
    }

    /// BLAKE3 of all bits.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let StateNumbers { step, sum, mean_loss, scale } = self.numbers;
        let mut hasher = blake3::Hasher::new_derive_key("florin v1 training state");
        for number in [step, sum, mean_loss, scale.0, scale.1.into()] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(&(self.tensors.len() as u64).to_le_bytes());
        for tensor in &self.tensors {
            hasher.update(&(tensor.len() as u64).to_le_bytes());
            hasher.update(bytemuck::cast_slice(tensor));
        }
        *hasher.finalize().as_bytes()
    }

    /// The state in the format of safetensors.
    ///
    /// # Errors
    /// [`StateError`] if the format cannot have it.
    pub fn to_bytes(&self) -> Result<Vec<u8>, StateError> {
        self.encode(None)
    }

    /// The reverse, for a model with this number of parameters and a training with these settings. A state has one
    /// form.
    ///
    /// # Errors
    /// [`StateError`] for any other bytes, and for numbers that are not finite.
    pub fn from_bytes(bytes: &[u8], parameters: usize, how: &Training) -> Result<Self, StateError> {
        let (state, _) = Self::decode(bytes, parameters)?;
        state.check(parameters, how)?;
        match state.encode(None)? == bytes {
            true => Ok(state),
            false => Err(invalid("its bytes are not in canonical form")),
        }
    }

    /// Whether a training can continue from it.
    pub(crate) fn check(&self, parameters: usize, how: &Training) -> Result<(), StateError> {
        let expected = 1 + how.state_tensors() as usize;
        if self.tensors.len() != expected {
            let found = self.tensors.len();
            return Err(invalid(format!("it has {found} tensors and not {expected}")));
        }
        if let Some(tensor) = self.tensors.iter().find(|tensor| tensor.len() != parameters) {
            let found = tensor.len();
            let why = format!("a tensor has {found} numbers, and the model {parameters}");
            return Err(invalid(why));
        }
        if how.execution.precision == Precision::F32 && self.numbers.scale != (0, 0) {
            return Err(invalid("it has a scale of the loss, and the training has none"));
        }
        let losses = [self.numbers.sum, self.numbers.mean_loss].map(f64::from_bits);
        let is_finite = losses.iter().all(|loss| loss.is_finite())
            && self.tensors.iter().flatten().all(|number| number.is_finite());
        match is_finite {
            true => Ok(()),
            false => Err(invalid("a number of it is not finite")),
        }
    }

    /// The state after a step that is left out, because it would diverge: only the count of steps changes.
    #[must_use]
    pub fn without_next_step(&self) -> Self {
        let step = self.numbers.step.saturating_add(1);
        Self { numbers: StateNumbers { step, ..self.numbers }, ..self.clone() }
    }

    pub(super) fn encode(&self, key: Option<&str>) -> Result<Vec<u8>, StateError> {
        let json = serde_json::to_string(&self.numbers).map_err(failed)?;
        let mut header: HashMap<String, String> = [(NUMBERS.to_owned(), json)].into();
        header.extend(key.map(|key| (KEY.to_owned(), key.to_owned())));
        let views = self.tensors.iter().enumerate().map(|(number, tensor)| {
            let bytes = bytemuck::cast_slice(tensor);
            let view = TensorView::new(Dtype::F32, vec![tensor.len()], bytes);
            view.map(|view| (number.to_string(), view))
        });
        let views = views.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        safetensors::serialize(views, Some(header)).map_err(failed)
    }

    /// The state with its key, if its tensors have this length.
    pub(super) fn decode(
        bytes: &[u8],
        parameters: usize,
    ) -> Result<(Self, Option<String>), StateError> {
        let length = bytes.first_chunk().map(|length| u64::from_le_bytes(*length));
        if length.is_none_or(|length| length > HEADER_BYTES_MAX) {
            return Err(invalid("its header is missing or too long"));
        }
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(failed)?;
        let entries = header.metadata().as_ref();
        let entry = |name: &str| entries.and_then(|entries| entries.get(name));
        let json = entry(NUMBERS).ok_or_else(|| invalid("its header has no numbers"))?;
        let numbers = serde_json::from_str(json).map_err(failed)?;
        let found = SafeTensors::deserialize(bytes).map_err(failed)?;
        if found.len() > TENSORS_MAX {
            return Err(invalid("it has too many tensors"));
        }
        let tensors = (0..found.len()).map(|number| {
            let view = found.tensor(&number.to_string()).map_err(failed)?;
            match view.dtype() == Dtype::F32 && view.shape() == [parameters] {
                true => Ok(bytemuck::pod_collect_to_vec(view.data())),
                false => Err(invalid("a tensor is not a vector of all parameters in f32")),
            }
        });
        let tensors = tensors.collect::<Result<_, _>>()?;
        Ok((Self { numbers, tensors }, entry(KEY).cloned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> TrainingState {
        let (sum, mean_loss) = (0.1_f64.to_bits(), 0.5_f64.to_bits());
        let numbers = StateNumbers { step: 7, sum, mean_loss, scale: (0, 0) };
        TrainingState { numbers, tensors: vec![vec![1.5, -0.0, 1e-30], vec![0.25, 0.5, 0.75]] }
    }

    #[test]
    fn a_state_returns_from_its_bytes_and_other_bytes_are_refused() {
        let how = Training { momentum: 0.5, ..Training::sgd(1, 1, 0.1) };
        let bytes = state().to_bytes().unwrap();
        let read = TrainingState::from_bytes(&bytes, 3, &how).unwrap();
        assert_eq!(read, state());
        assert_eq!(read.digest(), state().digest());
        let why = |bytes: &[u8], parameters, how: &Training| {
            TrainingState::from_bytes(bytes, parameters, how).unwrap_err().why
        };
        assert!(why(&bytes, 4, &how).contains("a vector of all parameters"));
        assert!(why(&bytes, 3, &Training::sgd(1, 1, 0.1)).contains("2 tensors and not 1"));
        for length in [0, 7, bytes.len() / 2, bytes.len() - 1] {
            why(&bytes[..length], 3, &how);
        }
        why(&[bytes, vec![0]].concat(), 3, &how);
        // The same state with a key has other bytes.
        let keyed = state().encode(Some("a")).unwrap();
        assert!(why(&keyed, 3, &how).contains("canonical form"));
        let long = [5_000_u64.to_le_bytes().to_vec(), vec![b' '; 5_000]].concat();
        assert!(why(&long, 3, &how).contains("header is missing or too long"));
    }

    #[test]
    fn numbers_from_which_no_training_continues_are_refused() {
        let how = Training { momentum: 0.5, ..Training::sgd(1, 1, 0.1) };
        type Change = fn(&mut TrainingState);
        let changes: [(Change, &str); 5] = [
            (|state| state.tensors[0][1] = f32::NAN, "not finite"),
            (|state| state.tensors[1][0] = f32::INFINITY, "not finite"),
            (|state| state.numbers.sum = f64::NAN.to_bits(), "not finite"),
            (|state| state.numbers.mean_loss = f64::INFINITY.to_bits(), "not finite"),
            (|state| state.numbers.scale = (0, 1), "scale of the loss"),
        ];
        for (change, why) in changes {
            let mut other = state();
            change(&mut other);
            let bytes = other.to_bytes().unwrap();
            let error = TrainingState::from_bytes(&bytes, 3, &how).unwrap_err();
            assert!(error.why.contains(why), "{error}");
        }
    }

    #[test]
    fn a_step_that_is_left_out_changes_the_count_alone() {
        let after = state().without_next_step();
        assert_eq!((after.step(), &after.tensors), (8, &state().tensors));
        assert_eq!(after.numbers.sum, state().numbers.sum);
        assert_ne!(after.digest(), state().digest());
    }

    #[test]
    fn each_bit_of_a_state_changes_its_digest() {
        let digest = state().digest();
        let changes: [fn(&mut TrainingState); 8] = [
            |state| state.numbers.step += 1,
            |state| state.numbers.sum += 1,
            |state| state.numbers.mean_loss += 1,
            |state| state.numbers.scale.0 += 1,
            |state| state.numbers.scale.1 += 1,
            |state| state.tensors[0][1] = 0.0,
            |state| state.tensors[1][2] += 1.0,
            |state| {
                let moved = state.tensors[1].remove(0);
                state.tensors[0].push(moved);
            },
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut other = state();
            change(&mut other);
            assert_ne!(other.digest(), digest, "change {number}");
        }
    }

    #[test]
    fn the_initial_state_has_zeros_for_the_optimizer() {
        let how = Training { momentum: 0.5, ..Training::sgd(1, 1, 0.1) };
        let initial = TrainingState::initial(&[1.0, 2.0], &how);
        assert_eq!((initial.step(), initial.params()), (0, &[1.0, 2.0][..]));
        assert_eq!(initial.tensors[1], [0.0, 0.0]);
        assert_eq!(initial.check(2, &how), Ok(()));
    }
}
