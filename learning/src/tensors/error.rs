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
        }
    }
}
