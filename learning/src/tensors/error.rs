//! Errors in bytes of a model or an update.

use thiserror::Error;

/// The bytes are not the parameters of a model.
#[derive(Debug, Clone, Error, PartialEq)]
pub enum DecodeError {
    /// The header is too large to be parsed.
    #[error("the header declares {bytes} bytes: must be at most {max} for this model")]
    HeaderTooLarge {
        /// Declared length.
        bytes: u64,
        /// The limit for this model.
        max: usize,
    },
    /// There are too few bytes.
    #[error("{got} bytes: must be {expected}")]
    Truncated {
        /// Bytes expected, as far as known.
        expected: u64,
        /// Bytes given.
        got: u64,
    },
    /// There are bytes after the numbers.
    #[error("{got} bytes: must end after {expected}")]
    TrailingBytes {
        /// Bytes expected.
        expected: u64,
        /// Bytes given.
        got: u64,
    },
    /// The header is not a JSON object of tensors.
    #[error("the header is malformed: {why}")]
    HeaderMalformed {
        /// The parser's error.
        why: String,
    },
    /// The model has no such tensor.
    #[error("tensor `{name}`: the model has no such tensor")]
    WrongName {
        /// Its name, shortened.
        name: String,
    },
    /// A tensor of the model is missing.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// Its name.
        name: String,
    },
    /// A name occurs twice.
    #[error("tensor `{name}` occurs twice: must occur once")]
    DuplicateTensor {
        /// Its name, shortened.
        name: String,
    },
    /// A tensor has another shape.
    #[error("tensor `{name}` has shape {got:?}: must be {expected:?}")]
    WrongShape {
        /// Its name.
        name: String,
        /// The model's shape.
        expected: Vec<usize>,
        /// The declared shape, its first dimensions.
        got: Vec<u64>,
    },
    /// A tensor has another number type.
    #[error("tensor `{name}` has dtype `{got}`: must be {expected}")]
    WrongDtype {
        /// Its name.
        name: String,
        /// The type expected.
        expected: &'static str,
        /// The declared type, shortened.
        got: String,
    },
    /// Tensors overlap, leave gaps, or are not as long as their shape.
    #[error(
        "tensor `{name}` has the offsets {begin}..{end}: tensors must be contiguous, without gaps \
         or overlaps"
    )]
    WrongOffsets {
        /// Its name.
        name: String,
        /// Declared begin.
        begin: u64,
        /// Declared end.
        end: u64,
    },
    /// The tensors are right, but the header is not canonical.
    #[error(
        "the tensors are right, but not in canonical form: write them in the model's order, \
         without metadata, see docs/protocol.md"
    )]
    NotCanonical,
    /// A number is NaN or infinite.
    #[error("tensor `{tensor}`, number {index}, is not finite: all numbers must be finite")]
    NotFinite {
        /// The tensor's name.
        tensor: String,
        /// Index of the number, from 0.
        index: usize,
    },
    /// The scale of quantised numbers is neither 0 nor a normal positive number.
    #[error(
        "tensor `{tensor}` has scale {got:e}: must be 0, or positive and normal with 127 times \
         it finite"
    )]
    WrongScale {
        /// The tensor's name.
        tensor: String,
        /// Its scale.
        got: f32,
    },
    /// The scale of quantised numbers is not the smallest possible one.
    #[error(
        "tensor `{tensor}` has scale {scale:e} and the largest code {largest}: the largest \
         code must be {needed}"
    )]
    ScaleNotMinimal {
        /// The tensor's name.
        tensor: String,
        /// Its scale.
        scale: f32,
        /// 127, or 0 if the scale is 0.
        needed: i8,
        /// The largest magnitude of a code.
        largest: i8,
    },
    /// The code −128 is not used.
    #[error("tensor `{tensor}`, number {index}, is -128: must be -127 to 127")]
    WrongCode {
        /// The tensor's name.
        tensor: String,
        /// Index of the number, from 0.
        index: usize,
    },
    /// Indices do not ascend, or exceed the model's last number.
    #[error("index {place} is {got}: must be at least {least} and below {numbers}")]
    WrongIndex {
        /// Position of the index, from 0.
        place: usize,
        /// Its value.
        got: u32,
        /// The previous index plus one.
        least: u64,
        /// Number of the model's parameters.
        numbers: usize,
    },
}

impl DecodeError {
    /// A stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::HeaderTooLarge { .. } => "UPDATE_HEADER_TOO_LARGE",
            Self::Truncated { .. } => "UPDATE_TRUNCATED",
            Self::TrailingBytes { .. } => "UPDATE_TRAILING_BYTES",
            Self::HeaderMalformed { .. } => "UPDATE_HEADER_MALFORMED",
            Self::WrongName { .. } => "UPDATE_WRONG_NAME",
            Self::MissingTensor { .. } => "UPDATE_MISSING_TENSOR",
            Self::DuplicateTensor { .. } => "UPDATE_DUPLICATE_TENSOR",
            Self::WrongShape { .. } => "UPDATE_WRONG_SHAPE",
            Self::WrongDtype { .. } => "UPDATE_WRONG_DTYPE",
            Self::WrongOffsets { .. } => "UPDATE_WRONG_OFFSETS",
            Self::NotCanonical => "UPDATE_NOT_CANONICAL",
            Self::NotFinite { .. } => "UPDATE_NOT_FINITE",
            Self::WrongScale { .. } => "UPDATE_WRONG_SCALE",
            Self::ScaleNotMinimal { .. } => "UPDATE_SCALE_NOT_MINIMAL",
            Self::WrongCode { .. } => "UPDATE_WRONG_CODE",
            Self::WrongIndex { .. } => "UPDATE_WRONG_INDEX",
        }
    }
}
