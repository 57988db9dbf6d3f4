//! Validation, decoding and encoding of models and updates.

use florin_learning::params::{NormAccumulator, norm as norm_of};
use florin_learning::tensors::{self, DecodeError, decode, encoded_len};
use florin_learning::wire::{self, EncodeError, Encoded, WireFormat};
use florin_learning::{ModelSpec, TensorSpec};
use florin_protocol::{ErrorCode, ModelArchitecture, Rejection, TaskSpec};

use crate::convert::{model_spec, norm_max, update_format};
use crate::round::WorkError;

/// Relative tolerance of the norm check. A sender that clips to the limit in `f32` may exceed it by
/// a rounding error.
const NORM_SLACK: f64 = 1e-6;

/// The parameters that round 1 starts from, as canonical safetensors bytes: initialised from
/// `seed`, with zeros in the last layer, so that all classes are equally likely. A random last
/// layer would be confidently wrong; then any update, even one trained on flipped labels, would
/// earn by lowering that confidence.
///
/// # Errors
/// [`WorkError::ModelArchitecture`] if the model cannot be built.
pub fn initial_model(model: &ModelArchitecture, seed: u64) -> Result<Vec<u8>, WorkError> {
    if matches!(model, ModelArchitecture::Graph(_)) {
        return Err(WorkError::Model("the parameters of a graph come from its buyer".to_owned()));
    }
    let model = model_spec(model);
    model.check().map_err(|error| WorkError::Model(error.to_string()))?;
    let mut params = model.init(seed).into_vec();
    let last: usize = model.tensors().iter().rev().take(2).map(TensorSpec::elements).sum();
    let from = params.len() - last;
    params[from..].fill(0.0);
    Ok(encode_tensors(&model, &params))
}

/// The parameters that a task starts from unless its buyer brings a model: [`initial_model`] with
/// the seed that the specification implies.
///
/// # Errors
/// As [`initial_model`].
pub fn derived_model(spec: &TaskSpec) -> Result<Vec<u8>, WorkError> {
    initial_model(&spec.model, spec.model_seed())
}

/// The exact length in bytes of a model of this task.
#[must_use]
pub fn model_bytes(spec: &TaskSpec) -> u64 {
    u64::try_from(encoded_len(&model_spec(&spec.model))).unwrap_or(u64::MAX)
}

/// The exact length in bytes of an update of this task, in the task's format.
#[must_use]
pub fn update_bytes(spec: &TaskSpec) -> u64 {
    let length = wire::encoded_len(&model_spec(&spec.model), update_format(spec.rounds.format));
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Encodes parameters as canonical safetensors bytes: a model, or a participant's residual.
///
/// # Panics
/// If the length of `values` is not the model's number of parameters (a caller's error).
#[must_use]
pub fn encode_parameters(spec: &TaskSpec, values: &[f32]) -> Vec<u8> {
    encode_tensors(&model_spec(&spec.model), values)
}

fn encode_tensors(model: &ModelSpec, values: &[f32]) -> Vec<u8> {
    tensors::encode(model, values).expect("the caller passes one value per parameter of the model")
}

fn to_rejection(error: &DecodeError) -> Rejection {
    let code = match error {
        DecodeError::NotFinite { .. } => ErrorCode::UpdateNotFinite,
        DecodeError::Truncated { .. } => ErrorCode::Truncated,
        DecodeError::HeaderTooLarge { .. } | DecodeError::TrailingBytes { .. } => {
            ErrorCode::TooLarge
        }
        _ => ErrorCode::UpdateWrongSchema,
    };
    Rejection::new(code, error.to_string())
}

/// Decodes a model of this task and checks it: exact names, shapes and types, finite, canonical.
///
/// # Errors
/// A [`Rejection`] that names the error.
pub fn decode_model(spec: &TaskSpec, bytes: &[u8]) -> Result<Vec<f32>, Rejection> {
    decode(&model_spec(&spec.model), bytes).map_err(|error| to_rejection(&error))
}

/// Checks a model of this task like [`decode_model`], without storing its numbers.
///
/// # Errors
/// A [`Rejection`] that names the error.
pub fn inspect_model(spec: &TaskSpec, bytes: &[u8]) -> Result<(), Rejection> {
    wire::walk(&model_spec(&spec.model), WireFormat::F32, bytes, &mut |_, _| {})
        .map_err(|error| to_rejection(&error))
}

/// Properties of a valid update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InspectedUpdate {
    /// Its L2 norm; bit-identical for both ways of reading the update.
    pub norm: f64,
}

/// Checks an update of this task: exact tensors in the task's format, canonical, a finite decoded
/// delta within the task's norm. Besides `bytes`, which may be a mapped file, it uses a few
/// kilobytes for a model of any size.
///
/// # Errors
/// A [`Rejection`] that names the error.
pub fn inspect_update(spec: &TaskSpec, bytes: &[u8]) -> Result<InspectedUpdate, Rejection> {
    read_update(spec, bytes, &mut |_, _| {})
}

/// Checks an update like [`inspect_update`] and writes its decoded delta to `out`. After an error
/// the contents of `out` are unspecified.
///
/// # Errors
/// A [`Rejection`] that names the error.
///
/// # Panics
/// If the length of `out` is not the model's number of parameters (a caller's error).
pub fn decode_update_into(spec: &TaskSpec, bytes: &[u8], out: &mut [f32]) -> Result<(), Rejection> {
    let parameters = model_spec(&spec.model).parameters();
    assert_eq!(out.len(), parameters, "a delta has one value per parameter of the model");
    let mut reached = 0;
    read_update(spec, bytes, &mut |from, piece| {
        // Sparse formats omit zeros.
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
) -> Result<InspectedUpdate, Rejection> {
    let mut squares = NormAccumulator::default();
    let (model, format) = (model_spec(&spec.model), update_format(spec.rounds.format));
    wire::walk(&model, format, bytes, &mut |from, piece| {
        squares.add(from, piece);
        take(from, piece);
    })
    .map_err(|error| to_rejection(&error))?;
    let (norm, max) = (squares.norm(), norm_max(spec.rounds.delta_norm_max));
    if norm > max * (1.0 + NORM_SLACK) {
        let message = format!("the update's norm is {norm:.6}: clip it to at most {max}");
        return Err(Rejection::new(ErrorCode::UpdateNormTooLarge, message));
    }
    Ok(InspectedUpdate { norm })
}

/// Checks the header of an update that is still being received, from its `first` bytes and its
/// `total` length. Returns `true` once the header is complete and valid, `false` while it is
/// incomplete.
///
/// # Errors
/// The [`Rejection`] of the header or the length that [`inspect_update`] would return, as soon as
/// it can be determined.
pub fn check_update_header(spec: &TaskSpec, first: &[u8], total: u64) -> Result<bool, Rejection> {
    let (model, format) = (model_spec(&spec.model), update_format(spec.rounds.format));
    wire::check_header(&model, format, first, total).map_err(|error| to_rejection(&error))
}

/// Encodes a delta in the task's format such that the decoded delta is within the task's norm.
/// `carried` is the residual of an earlier round's update; the residual of this one is in the
/// result ([`wire::Encoded`]). Deterministic; `seed` selects the stochastic rounding of int8.
///
/// # Errors
/// A [`Rejection`] if a number is not finite.
///
/// # Panics
/// If the length of `delta` or `carried` is not the model's number of parameters (a caller's
/// error).
pub fn encode_update(
    spec: &TaskSpec,
    mut delta: Vec<f32>,
    carried: Option<&[f32]>,
    seed: u64,
) -> Result<Encoded, Rejection> {
    // Clip the round's own work first, so that the residual stays bounded: each round adds the norm
    // limit at most.
    clip_update(spec, &mut delta);
    if let Some(carried) = carried {
        assert_eq!(carried.len(), delta.len(), "both have one value per parameter of the model");
        delta.iter_mut().zip(carried).for_each(|(own, carried)| *own += carried);
    }
    let (model, format) = (model_spec(&spec.model), update_format(spec.rounds.format));
    let max = norm_max(spec.rounds.delta_norm_max);
    wire::encode(&model, format, &delta, max, seed).map_err(|error| match error {
        EncodeError::NotFinite { .. } => {
            Rejection::new(ErrorCode::UpdateNotFinite, error.to_string())
        }
        other => unreachable!(
            "the caller passes one value per parameter, and the task is valid: {other}"
        ),
    })
}

/// Clips a delta to the task's norm.
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
