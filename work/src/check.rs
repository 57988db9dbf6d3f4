//! Bytes that claim to be a model or an update: what they must be before anybody works with them.

use florin_learning::params::norm as norm_of;
use florin_learning::tensors::{self, DecodeError, decode, encoded_len};
use florin_learning::{ModelSpec, TensorSpec};
use florin_protocol::{Code, Model, Rejection, TaskSpec};

use crate::convert::{model_spec, norm_max};
use crate::round::WorkError;

/// A sender that clips to the limit in `f32` may land a rounding error above it: so much is forgiven, relatively.
const NORM_SLACK: f64 = 1e-6;

/// The parameters that round 1 begins with: drawn from `seed`, but with the last layer at zero, as canonical
/// safetensors bytes. Such a model holds every label for equally likely. A random last layer would be confidently wrong
/// instead, and then any update at all, flipped labels included, would earn by making it less confident.
///
/// # Errors
/// [`WorkError::Model`] for a model that cannot be built.
pub fn initial_model(model: &Model, seed: u64) -> Result<Vec<u8>, WorkError> {
    let model = model_spec(model);
    model.check().map_err(|error| WorkError::Model(error.to_string()))?;
    let mut params = model.init(seed).into_vec();
    let last: usize = model.tensors().iter().rev().take(2).map(TensorSpec::numbers).sum();
    let from = params.len() - last;
    params[from..].fill(0.0);
    Ok(bytes_of(&model, &params))
}

/// The exact length in bytes of a model, and of an update, of this task.
#[must_use]
pub fn model_bytes(spec: &TaskSpec) -> u64 {
    u64::try_from(encoded_len(&model_spec(&spec.model))).unwrap_or(u64::MAX)
}

/// The canonical safetensors bytes of parameters or of a delta.
///
/// # Panics
/// If `values` is not as long as the model has parameters: a mistake of the caller.
#[must_use]
pub fn encode(spec: &TaskSpec, values: &[f32]) -> Vec<u8> {
    bytes_of(&model_spec(&spec.model), values)
}

fn bytes_of(model: &ModelSpec, values: &[f32]) -> Vec<u8> {
    tensors::encode(model, values).expect("the caller's values are the model's parameters")
}

fn rejection(error: &DecodeError) -> Rejection {
    let code = match error {
        DecodeError::NotFinite { .. } => Code::UpdateNotFinite,
        DecodeError::Truncated { .. } => Code::Truncated,
        DecodeError::HeaderTooLarge { .. } | DecodeError::TrailingBytes { .. } => Code::TooLarge,
        _ => Code::UpdateWrongSchema,
    };
    Rejection::new(code, error.to_string())
}

/// Reads a model of this task: exact names, shapes and types, finite, canonical.
///
/// # Errors
/// A [`Rejection`] that names what is wrong.
pub fn check_model(spec: &TaskSpec, bytes: &[u8]) -> Result<Vec<f32>, Rejection> {
    let model = model_spec(&spec.model);
    let values = decode(&model, bytes).map_err(|error| rejection(&error))?;
    if bytes_of(&model, &values) != bytes {
        let message = "the tensors are right, but not in canonical form: write them in the model's \
                       order, without metadata, as docs/protocol.md says";
        return Err(Rejection::new(Code::UpdateWrongSchema, message));
    }
    Ok(values)
}

/// Reads an update of this task: as a model, and within the task's norm.
///
/// # Errors
/// A [`Rejection`] that names what is wrong.
pub fn check_update(spec: &TaskSpec, bytes: &[u8]) -> Result<Vec<f32>, Rejection> {
    let delta = check_model(spec, bytes)?;
    let (norm, max) = (norm_of(&delta), norm_max(spec.rounds.delta_norm_max));
    if norm > max * (1.0 + NORM_SLACK) {
        let message = format!("the update's norm is {norm:.6}: clip it to at most {max}");
        return Err(Rejection::new(Code::UpdateNormTooLarge, message));
    }
    Ok(delta)
}

/// Shortens a delta to the task's norm where it is longer.
pub fn clip_update(spec: &TaskSpec, delta: &mut [f32]) {
    let (norm, max) = (norm_of(delta), norm_max(spec.rounds.delta_norm_max));
    if norm > max {
        let factor = max / norm;
        for value in delta {
            #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is meant")]
            let shorter = (f64::from(*value) * factor) as f32;
            *value = shorter;
        }
    }
}
