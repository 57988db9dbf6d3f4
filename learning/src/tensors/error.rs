//! What can be wrong with bytes that claim to be a model or an update.

use thiserror::Error;

/// Why bytes are not the parameters of a model.
#[derive(Debug, Clone, Error, PartialEq)]
pub enum DecodeError {
    /// Refused before the header is read.
    #[error("the header declares {bytes} bytes: must be at most {max} for this model")]
    HeaderTooLarge {
        /// Declared length.
        bytes: u64,
        /// The limit for this model.
        max: usize,
    },
    /// The bytes end too early.
    #[error("{got} bytes: must be {expected}")]
    Truncated {
        /// Bytes there should be, as far as can be told.
        expected: u64,
        /// Bytes there are.
        got: u64,
    },
    /// Something follows the numbers.
    #[error("{got} bytes: must end after {expected}")]
    TrailingBytes {
        /// Bytes there should be.
        expected: u64,
        /// Bytes there are.
        got: u64,
    },
    /// The header is no JSON object of tensors.
    #[error("the header is malformed: {why}")]
    HeaderMalformed {
        /// What the parser said.
        why: String,
    },
    /// A tensor that the model does not have.
    #[error("tensor `{name}`: the model has no such tensor")]
    WrongName {
        /// Its name, shortened.
        name: String,
    },
    /// A tensor of the model is not there.
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
    /// A tensor of another shape.
    #[error("tensor `{name}` has shape {got:?}: must be {expected:?}")]
    WrongShape {
        /// Its name.
        name: String,
        /// The model's shape.
        expected: Vec<usize>,
        /// What was declared, its first sides.
        got: Vec<u64>,
    },
    /// A tensor of another number type.
    #[error("tensor `{name}` has dtype `{got}`: must be {expected}")]
    WrongDtype {
        /// Its name.
        name: String,
        /// What it must be.
        expected: &'static str,
        /// What was declared, shortened.
        got: String,
    },
    /// Tensors overlap, leave gaps, or are not as long as their shape.
    #[error(
        "tensor `{name}` lies at {begin}..{end}: the tensors must follow each other without gap or overlap"
    )]
    WrongOffsets {
        /// Its name.
        name: String,
        /// Declared begin.
        begin: u64,
        /// Declared end.
        end: u64,
    },
    /// The header lists the right tensors, but is not the one that the market writes.
    #[error(
        "the tensors are right, but not in canonical form: write them in the model's order, without \
         metadata, as docs/protocol.md says"
    )]
    NotCanonical,
    /// NaN or infinity.
    #[error("tensor `{tensor}`, number {index}, is not finite: every number must be")]
    NotFinite {
        /// The tensor's name.
        tensor: String,
        /// Which of its numbers, from 0.
        index: usize,
    },
    /// A scale of whole numbers that is not 0 and not a normal positive number.
    #[error(
        "tensor `{tensor}` has scale {got:e}: must be 0, or positive, normal, and 127 of it finite"
    )]
    WrongScale {
        /// The tensor's name.
        tensor: String,
        /// Its scale.
        got: f32,
    },
    /// A scale that is not as small as it can be.
    #[error(
        "tensor `{tensor}` has scale {scale:e}, and {largest} of it in its largest number: must have \
         {needed}"
    )]
    LooseScale {
        /// The tensor's name.
        tensor: String,
        /// Its scale.
        scale: f32,
        /// 127, or 0 where the scale is 0.
        needed: i8,
        /// The largest magnitude there is.
        largest: i8,
    },
    /// A whole number that is not used.
    #[error("tensor `{tensor}`, number {index}, is -128: must be -127 to 127")]
    WrongCode {
        /// The tensor's name.
        tensor: String,
        /// Which of its numbers, from 0.
        index: usize,
    },
    /// Places that do not ascend, or lie behind the model's last number.
    #[error("index {place} is {got}: must be at least {least} and below {numbers}")]
    WrongIndex {
        /// Which index, from 0.
        place: usize,
        /// Its value.
        got: u32,
        /// One more than the index before it.
        least: u64,
        /// How many numbers the model has.
        numbers: usize,
    },
}

impl DecodeError {
    /// A name for this refusal that never changes.
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
            Self::LooseScale { .. } => "UPDATE_LOOSE_SCALE",
            Self::WrongCode { .. } => "UPDATE_WRONG_CODE",
            Self::WrongIndex { .. } => "UPDATE_WRONG_INDEX",
        }
    }
}
