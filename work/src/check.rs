//! Bytes that claim to be a model or an update: what they must be before anybody works with them.

use florin_learning::params::{Squares, norm as norm_of};
use florin_learning::tensors::{self, DecodeError, decode, encoded_len};
use florin_learning::wire::{self, EncodeError, Encoded, Format};
use florin_learning::{ModelSpec, TensorSpec};
use florin_protocol::{Code, Model, Rejection, TaskSpec};

use crate::convert::{format, model_spec, norm_max};
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

/// The exact length in bytes of a model of this task.
#[must_use]
pub fn model_bytes(spec: &TaskSpec) -> u64 {
    u64::try_from(encoded_len(&model_spec(&spec.model))).unwrap_or(u64::MAX)
}

/// The exact length in bytes of an update of this task, in the task's format.
#[must_use]
pub fn update_bytes(spec: &TaskSpec) -> u64 {
    let length = wire::encoded_len(&model_spec(&spec.model), format(spec.rounds.format));
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// The canonical safetensors bytes of parameters: a model, or what a participant keeps back.
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
    decode(&model_spec(&spec.model), bytes).map_err(|error| rejection(&error))
}

/// Checks a model of this task as [`check_model`] does, without keeping its numbers.
///
/// # Errors
/// A [`Rejection`] that names what is wrong.
pub fn inspect_model(spec: &TaskSpec, bytes: &[u8]) -> Result<(), Rejection> {
    wire::walk(&model_spec(&spec.model), Format::F32, bytes, &mut |_, _| {})
        .map_err(|error| rejection(&error))
}

/// What is known of an update that passed every check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inspected {
    /// Its L2 norm: the same bits, whichever way it was read.
    pub norm: f64,
}

/// Checks an update of this task: exact tensors in the task's format, canonical, its decoded delta finite and within the
/// task's norm. Beside `bytes`, which may be a mapped file, it takes a few kilobytes, however large the model is.
///
/// # Errors
/// A [`Rejection`] that names what is wrong.
pub fn inspect_update(spec: &TaskSpec, bytes: &[u8]) -> Result<Inspected, Rejection> {
    read_update(spec, bytes, &mut |_, _| {})
}

/// Checks an update as [`inspect_update`] does and writes its decoded delta to `out`, which must be as long as the model has parameters. After
/// an error the numbers in `out` mean nothing.
///
/// # Errors
/// A [`Rejection`] that names what is wrong.
///
/// # Panics
/// If `out` has another length: a mistake of the caller.
pub fn decode_update_into(spec: &TaskSpec, bytes: &[u8], out: &mut [f32]) -> Result<(), Rejection> {
    let parameters = model_spec(&spec.model).parameters();
    assert_eq!(out.len(), parameters, "a delta is as long as the model has parameters");
    let mut reached = 0;
    read_update(spec, bytes, &mut |from, piece| {
        // A format may leave zeros out.
        out[reached..from].fill(0.0);
        reached = from + piece.len();
        out[from..reached].copy_from_slice(piece);
    })?;
    out[reached..].fill(0.0);
    Ok(())
}

fn read_update(
    spec: &TaskSpec,
    bytes: &[u8],
    take: &mut dyn FnMut(usize, &[f32]),
) -> Result<Inspected, Rejection> {
    let mut squares = Squares::default();
    let (model, format) = (model_spec(&spec.model), format(spec.rounds.format));
    wire::walk(&model, format, bytes, &mut |from, piece| {
        squares.add(from, piece);
        take(from, piece);
    })
    .map_err(|error| rejection(&error))?;
    let (norm, max) = (squares.norm(), norm_max(spec.rounds.delta_norm_max));
    if norm > max * (1.0 + NORM_SLACK) {
        let message = format!("the update's norm is {norm:.6}: clip it to at most {max}");
        return Err(Rejection::new(Code::UpdateNormTooLarge, message));
    }
    Ok(Inspected { norm })
}

/// Whether the first of `total` bytes that are still arriving hold the whole header of an update of this task, and it is
/// right; `false` as long as more of it must come.
///
/// # Errors
/// The [`Rejection`] that [`inspect_update`] would give for the header or the length, as soon as it can be known.
pub fn check_update_header(spec: &TaskSpec, first: &[u8], total: u64) -> Result<bool, Rejection> {
    let (model, format) = (model_spec(&spec.model), format(spec.rounds.format));
    wire::check_header(&model, format, first, total).map_err(|error| rejection(&error))
}

/// Writes a delta in the task's format, so that what is decoded is within the task's norm. `carried` is what an earlier
/// round's update left out, and what this one leaves out is the answer's residual: see [`wire::Encoded`]. The same
/// arguments make the same bytes; `seed` decides how int8 rounds.
///
/// # Errors
/// A [`Rejection`] where numbers are not finite.
///
/// # Panics
/// If `delta` or `carried` is not as long as the model has parameters: a mistake of the caller.
pub fn encode_update(
    spec: &TaskSpec,
    mut delta: Vec<f32>,
    carried: Option<&[f32]>,
    seed: u64,
) -> Result<Encoded, Rejection> {
    // First the round's own work, so that what is left out stays bounded: each round adds the norm at most.
    clip_update(spec, &mut delta);
    if let Some(carried) = carried {
        assert_eq!(carried.len(), delta.len(), "both are as long as the model has parameters");
        delta.iter_mut().zip(carried).for_each(|(own, carried)| *own += carried);
    }
    let (model, format) = (model_spec(&spec.model), format(spec.rounds.format));
    let max = norm_max(spec.rounds.delta_norm_max);
    wire::encode(&model, format, &delta, max, seed).map_err(|error| match error {
        EncodeError::NotFinite { .. } => Rejection::new(Code::UpdateNotFinite, error.to_string()),
        other => unreachable!(
            "the caller's values are the model's parameters, and the task is checked: {other}"
        ),
    })
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
