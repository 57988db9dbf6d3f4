//! The bytes of a message between neighbouring parts of a pipeline.
//!
//! ```text
//! message: magic u32 · values u32 · length of the message u64 · values
//! value:   tag u8 · content        0 absent, 1 integer i64, 2 real number f64, 3 truth value u8,
//!                                  4 tensor, 5 count u32 · tensors
//! tensor:  type u8 · has gradient u8 · offset u8 · dimensions u8 · sizes u64 … · strides u64 … · elements
//! ```
//!
//! All numbers are little-endian. A tensor arrives with the strides and the alignment that it has at the
//! sender: kernels may add in another order for others. A dimension of stride 0 has one element in the
//! message. If elements overlap otherwise, all elements between the first and the last are sent.
//!
//! The first [`LEAD_BYTES`] have the length of the message, so that a receiver with buffers of a known size
//! receives it in two transfers.

use thiserror::Error;

use crate::graph::{DIMENSIONS_MAX, DataType};

/// Bytes of the lead of a message, which has its length.
pub const LEAD_BYTES: usize = 16;
/// Values of a message, at most, and tensors of a list.
pub const MESSAGE_VALUES_MAX: u32 = 1 << 16;
/// Bytes of a message, at most, and of the memory of one of its tensors.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 36;
/// The alignment that a tensor has at both ends, in bytes: that of libtorch's memory.
pub const MESSAGE_ALIGNMENT: u8 = 64;

const MAGIC: u32 = u32::from_le_bytes(*b"flpm");
const ABSENT: u8 = 0;
const INT: u8 = 1;
const FLOAT: u8 = 2;
const BOOL: u8 = 3;
const TENSOR: u8 = 4;
const TENSORS: u8 = 5;

/// A value of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum PipelineValue {
    /// No value: a tensor that has no gradient.
    Absent,
    /// An integer.
    Int(i64),
    /// A real number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A tensor.
    Tensor(PipelineTensor),
    /// A list of tensors.
    Tensors(Vec<PipelineTensor>),
}

/// A tensor of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineTensor {
    /// The form of its memory.
    pub form: TensorForm,
    /// Whether it has a gradient.
    pub has_gradient: bool,
    /// Its [elements](TensorForm::elements), in little-endian bytes.
    pub bytes: Vec<u8>,
}

/// Type, sizes and place in memory of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorForm {
    /// The type of its elements.
    pub data_type: DataType,
    /// The sizes, outermost first.
    pub sizes: Vec<u64>,
    /// The elements between two neighbours, by dimension.
    pub strides: Vec<u64>,
    /// Bytes between its first element and the last multiple of [`MESSAGE_ALIGNMENT`] in front of it.
    pub offset: u8,
}

/// The elements of a tensor in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormElements {
    /// Those with different places, this many, in the order of the dimensions.
    Distinct(u64),
    /// All between the first and the last in memory, this many.
    Span(u64),
}

/// A message is not one of a pipeline.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum MessageError {
    /// It does not begin like a message.
    #[error("the bytes are not a message of a pipeline: all parts need the same version")]
    Foreign,
    /// A number in it is out of bounds.
    #[error("a message of a pipeline has {why}")]
    Invalid {
        /// The reason.
        why: &'static str,
    },
    /// It ends too early, or too late.
    #[error("a message of a pipeline has {found} bytes, not the {stated} that it states")]
    Length {
        /// Bytes that it has.
        found: u64,
        /// Bytes that it states.
        stated: u64,
    },
}

fn invalid(why: &'static str) -> MessageError {
    MessageError::Invalid { why }
}

impl TensorForm {
    /// The elements that a message has of this form.
    ///
    /// # Errors
    /// [`MessageError::Invalid`] if the form has too many dimensions or bytes.
    pub fn elements(&self) -> Result<FormElements, MessageError> {
        let span = self.span()?;
        let mut moved: Vec<(u64, u64)> = self.moved().collect();
        moved.sort_unstable();
        // Each dimension must step beyond all elements of the smaller ones.
        let (mut reach, mut distinct) = (0_u64, 1_u64);
        for (stride, size) in moved {
            if stride <= reach {
                return Ok(FormElements::Span(span));
            }
            reach += stride * (size - 1);
            distinct *= size;
        }
        Ok(FormElements::Distinct(if span == 0 { 0 } else { distinct }))
    }

    /// Elements from the first to the last in memory.
    ///
    /// # Errors
    /// As [`elements`](Self::elements).
    pub fn span(&self) -> Result<u64, MessageError> {
        if self.sizes.len() > DIMENSIONS_MAX || self.sizes.len() != self.strides.len() {
            return Err(invalid("a tensor with too many dimensions"));
        }
        let width = self.data_type.bytes() as u64;
        if self.offset >= MESSAGE_ALIGNMENT || !u64::from(self.offset).is_multiple_of(width) {
            return Err(invalid("a tensor at an odd place"));
        }
        if self.sizes.contains(&0) {
            return Ok(0);
        }
        let reach = self.moved().try_fold(1_u64, |reach, (stride, size)| {
            reach.checked_add(stride.checked_mul(size - 1)?)
        });
        let most = MESSAGE_BYTES_MAX / width;
        reach.filter(|&reach| reach <= most).ok_or_else(|| invalid("a tensor with too many bytes"))
    }

    /// Stride and size of the dimensions that move.
    fn moved(&self) -> impl Iterator<Item = (u64, u64)> {
        let dimensions = self.strides.iter().copied().zip(self.sizes.iter().copied());
        dimensions.filter(|&(stride, size)| stride > 0 && size > 1)
    }
}

impl FormElements {
    /// Their number.
    #[must_use]
    pub fn count(self) -> u64 {
        let (Self::Distinct(count) | Self::Span(count)) = self;
        count
    }
}

/// The bytes of a message.
///
/// # Errors
/// [`MessageError::Invalid`] beyond a limit, or if a tensor has other bytes than its form.
pub fn encode_message(values: &[PipelineValue]) -> Result<Vec<u8>, MessageError> {
    let count = checked_count(values.len())?;
    let mut bytes = MAGIC.to_le_bytes().to_vec();
    bytes.extend(count.to_le_bytes());
    bytes.extend([0; 8]);
    for value in values {
        match value {
            PipelineValue::Absent => bytes.push(ABSENT),
            PipelineValue::Int(integer) => {
                bytes.push(INT);
                bytes.extend(integer.to_le_bytes());
            }
            PipelineValue::Float(number) => {
                bytes.push(FLOAT);
                bytes.extend(number.to_bits().to_le_bytes());
            }
            PipelineValue::Bool(holds) => bytes.extend([BOOL, u8::from(*holds)]),
            PipelineValue::Tensor(tensor) => {
                bytes.push(TENSOR);
                encode_tensor(tensor, &mut bytes)?;
            }
            PipelineValue::Tensors(tensors) => {
                bytes.push(TENSORS);
                bytes.extend(checked_count(tensors.len())?.to_le_bytes());
                for tensor in tensors {
                    encode_tensor(tensor, &mut bytes)?;
                }
            }
        }
    }
    let length = bytes.len() as u64;
    if length > MESSAGE_BYTES_MAX {
        return Err(invalid("too many bytes"));
    }
    bytes[8..LEAD_BYTES].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

fn checked_count(count: usize) -> Result<u32, MessageError> {
    let count = u32::try_from(count).ok().filter(|&count| count <= MESSAGE_VALUES_MAX);
    count.ok_or_else(|| invalid("too many values"))
}

fn encode_tensor(tensor: &PipelineTensor, bytes: &mut Vec<u8>) -> Result<(), MessageError> {
    let PipelineTensor { form, has_gradient, bytes: elements } = tensor;
    let wanted = form.elements()?.count() * form.data_type.bytes() as u64;
    if elements.len() as u64 != wanted {
        return Err(invalid("a tensor with other bytes than its sizes"));
    }
    let dimensions = form.sizes.len() as u8;
    bytes.extend([form.data_type as u8, u8::from(*has_gradient), form.offset, dimensions]);
    for number in form.sizes.iter().chain(&form.strides) {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(elements);
    Ok(())
}

/// The length of the whole message with this lead, in bytes.
///
/// # Errors
/// [`MessageError`] if it is not the lead of a message, or states too many values or bytes.
pub fn message_length(lead: &[u8; LEAD_BYTES]) -> Result<u64, MessageError> {
    let mut reader = MessageReader { bytes: lead };
    if reader.number::<4>().map(u32::from_le_bytes) != Ok(MAGIC) {
        return Err(MessageError::Foreign);
    }
    reader.count()?;
    let length = u64::from_le_bytes(reader.number()?);
    match (LEAD_BYTES as u64..=MESSAGE_BYTES_MAX).contains(&length) {
        true => Ok(length),
        false => Err(invalid("too few or too many bytes")),
    }
}

/// The values of a message.
///
/// # Errors
/// [`MessageError`] if the bytes are not exactly one message. Nothing larger than them is allocated.
pub fn decode_message(bytes: &[u8]) -> Result<Vec<PipelineValue>, MessageError> {
    let found = bytes.len() as u64;
    let Some((lead, _)) = bytes.split_first_chunk::<LEAD_BYTES>() else {
        return Err(MessageError::Length { found, stated: LEAD_BYTES as u64 });
    };
    let stated = message_length(lead)?;
    if stated != found {
        return Err(MessageError::Length { found, stated });
    }
    let mut reader = MessageReader { bytes: &bytes[4..] };
    let count = reader.count()?;
    reader.take(8)?;
    let mut values = Vec::new();
    for _ in 0..count {
        values.push(reader.value()?);
    }
    match reader.bytes {
        [] => Ok(values),
        _ => Err(invalid("bytes behind its last value")),
    }
}

struct MessageReader<'a> {
    bytes: &'a [u8],
}

impl<'a> MessageReader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], MessageError> {
        let split = self.bytes.split_at_checked(count);
        let (taken, left) = split.ok_or_else(|| invalid("a value that it ends within"))?;
        self.bytes = left;
        Ok(taken)
    }

    fn number<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], MessageError> {
        let split = self.bytes.split_first_chunk::<BYTES>();
        let (taken, left) = split.ok_or_else(|| invalid("a value that it ends within"))?;
        self.bytes = left;
        Ok(*taken)
    }

    fn count(&mut self) -> Result<u32, MessageError> {
        let count = u32::from_le_bytes(self.number()?);
        let count = Some(count).filter(|&count| count <= MESSAGE_VALUES_MAX);
        count.ok_or_else(|| invalid("too many values"))
    }

    fn truth(&mut self) -> Result<bool, MessageError> {
        match self.number()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(invalid("a truth value that is neither 0 nor 1")),
        }
    }

    fn value(&mut self) -> Result<PipelineValue, MessageError> {
        let [tag] = self.number()?;
        Ok(match tag {
            ABSENT => PipelineValue::Absent,
            INT => PipelineValue::Int(i64::from_le_bytes(self.number()?)),
            FLOAT => PipelineValue::Float(f64::from_bits(u64::from_le_bytes(self.number()?))),
            BOOL => PipelineValue::Bool(self.truth()?),
            TENSOR => PipelineValue::Tensor(self.tensor()?),
            TENSORS => {
                let mut tensors = Vec::new();
                for _ in 0..self.count()? {
                    tensors.push(self.tensor()?);
                }
                PipelineValue::Tensors(tensors)
            }
            _ => return Err(invalid("a value of an unknown kind")),
        })
    }

    fn tensor(&mut self) -> Result<PipelineTensor, MessageError> {
        let [number] = self.number()?;
        let types = DATA_TYPES.iter().find(|&&known| known as u8 == number);
        let &data_type = types.ok_or_else(|| invalid("a tensor of an unknown type"))?;
        let has_gradient = self.truth()?;
        let [offset, dimensions] = self.number()?;
        if usize::from(dimensions) > DIMENSIONS_MAX {
            return Err(invalid("a tensor with too many dimensions"));
        }
        let mut numbers = || -> Result<Vec<u64>, MessageError> {
            (0..dimensions).map(|_| Ok(u64::from_le_bytes(self.number()?))).collect()
        };
        let (sizes, strides) = (numbers()?, numbers()?);
        let form = TensorForm { data_type, sizes, strides, offset };
        let count = form.elements()?.count() * data_type.bytes() as u64;
        let bytes = self.take(usize::try_from(count).unwrap_or(usize::MAX))?.to_vec();
        Ok(PipelineTensor { form, has_gradient, bytes })
    }
}

/// All types of elements.
const DATA_TYPES: [DataType; 10] = [
    DataType::U8,
    DataType::I8,
    DataType::I16,
    DataType::I32,
    DataType::I64,
    DataType::F16,
    DataType::F32,
    DataType::F64,
    DataType::Bool,
    DataType::Bf16,
];

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
