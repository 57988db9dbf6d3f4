//! The parts of a graph.

use std::fmt;

use borsh::{BorshDeserialize, BorshSerialize};

/// The number of a value: graph inputs first, then the results of nodes in order.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize,
)]
pub struct ValueId(pub u32);

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, BorshSerialize, BorshDeserialize)]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum DataType {
    /// Unsigned, 8 bits.
    U8 = 0,
    /// Signed, 8 bits.
    I8 = 1,
    /// Signed, 16 bits.
    I16 = 2,
    /// Signed, 32 bits.
    I32 = 3,
    /// Signed, 64 bits.
    I64 = 4,
    /// IEEE 754, 16 bits.
    F16 = 5,
    /// IEEE 754, 32 bits.
    F32 = 6,
    /// IEEE 754, 64 bits.
    F64 = 7,
    /// A truth value in one byte.
    Bool = 11,
    /// bfloat16.
    Bf16 = 15,
}

impl DataType {
    /// The type in libtorch.
    #[cfg(feature = "torch")]
    pub(crate) const fn kind(self) -> tch::Kind {
        use tch::Kind;
        match self {
            Self::U8 => Kind::Uint8,
            Self::I8 => Kind::Int8,
            Self::I16 => Kind::Int16,
            Self::I32 => Kind::Int,
            Self::I64 => Kind::Int64,
            Self::F16 => Kind::Half,
            Self::F32 => Kind::Float,
            Self::F64 => Kind::Double,
            Self::Bool => Kind::Bool,
            Self::Bf16 => Kind::BFloat16,
        }
    }

    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }

    /// Whether it is a floating-point type, for which there are gradients.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }

    /// The type of a tensor in a safetensors file; `None` if graphs have no such type.
    pub(super) fn from_safetensors(dtype: safetensors::Dtype) -> Option<Self> {
        use safetensors::Dtype;
        Some(match dtype {
            Dtype::U8 => Self::U8,
            Dtype::I8 => Self::I8,
            Dtype::I16 => Self::I16,
            Dtype::I32 => Self::I32,
            Dtype::I64 => Self::I64,
            Dtype::F16 => Self::F16,
            Dtype::F32 => Self::F32,
            Dtype::F64 => Self::F64,
            Dtype::BOOL => Self::Bool,
            Dtype::BF16 => Self::Bf16,
            _ => return None,
        })
    }

    /// The type's name in a safetensors file.
    pub(super) fn to_safetensors(self) -> safetensors::Dtype {
        use safetensors::Dtype;
        match self {
            Self::U8 => Dtype::U8,
            Self::I8 => Dtype::I8,
            Self::I16 => Dtype::I16,
            Self::I32 => Dtype::I32,
            Self::I64 => Dtype::I64,
            Self::F16 => Dtype::F16,
            Self::F32 => Dtype::F32,
            Self::F64 => Dtype::F64,
            Self::Bool => Dtype::BOOL,
            Self::Bf16 => Dtype::BF16,
        }
    }

    /// The number of the type in libtorch.
    pub const fn torch_number(self) -> i64 {
        self as i64
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bool => "bool",
            Self::Bf16 => "bf16",
        })
    }
}

/// The order in memory that an operator's result is asked to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum MemoryFormat {
    /// The last dimension first.
    Contiguous = 0,
    /// The argument's.
    Preserve = 1,
    /// Channels first, for images.
    ChannelsLast = 2,
    /// Channels first, for volumes.
    ChannelsLast3d = 3,
}

/// A dimension of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Dimension {
    /// A constant size.
    Fixed(u64),
    /// A free size, such as the number of rows. Equal numbers are equal sizes.
    Symbol(u32),
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "{size}"),
            Self::Symbol(0) => f.write_str("N"),
            Self::Symbol(number) => write!(f, "N{number}"),
        }
    }
}

/// Element type and shape of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct TensorType {
    /// The type of the elements.
    pub data_type: DataType,
    /// The dimensions, outermost first.
    pub shape: Vec<Dimension>,
}

impl TensorType {
    /// The sizes of a tensor without symbols; `None` with one, or if the number of its elements
    /// exceeds 64 bits.
    pub fn fixed_sizes(&self) -> Option<Vec<u64>> {
        let sizes = self.shape.iter().map(|dimension| match dimension {
            Dimension::Fixed(size) => Some(*size),
            Dimension::Symbol(_) => None,
        });
        let sizes: Vec<u64> = sizes.collect::<Option<_>>()?;
        sizes
            .iter()
            .try_fold(self.data_type.bytes() as u64, |bytes, &size| bytes.checked_mul(size))?;
        Some(sizes)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape: Vec<String> = self.shape.iter().map(ToString::to_string).collect();
        f.pad(&format!("{}[{}]", self.data_type, shape.join("×")))
    }
}

/// The role of a graph input.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum InputRole {
    /// A parameter, with the model's name for it.
    Parameter(String),
    /// A buffer, such as a running mean, with the model's name for it.
    Buffer(String),
    /// A constant of the model's code.
    Constant(String),
    /// An argument of the model.
    User,
}

impl InputRole {
    /// The model's name for it; `None` for an argument of the model.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Parameter(name) | Self::Buffer(name) | Self::Constant(name) => Some(name),
            Self::User => None,
        }
    }
}

/// How a graph with dropout or normalisation runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunMode {
    /// As the model was exported: with dropout, and batch norm by the statistics of the batch.
    Training,
    /// Without dropout, and batch norm by the running statistics.
    Evaluation,
}

/// An input of a graph.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct GraphInput {
    /// Its role.
    pub role: InputRole,
    /// Its type.
    pub tensor: TensorType,
}

/// An integer, or the value of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum IntArgument {
    /// A constant.
    Fixed(i64),
    /// The result of a node.
    Value(ValueId),
}

/// An argument of an operator.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Argument {
    /// `None` of an optional argument.
    None,
    /// The result of a node, or an input.
    Value(ValueId),
    /// Tensors, some of which may be missing.
    Values(Vec<Option<ValueId>>),
    /// An integer.
    Int(i64),
    /// Integers.
    Ints(Vec<IntArgument>),
    /// The bits of a real number.
    Float(u64),
    /// The bits of real numbers.
    Floats(Vec<u64>),
    /// A truth value.
    Bool(bool),
    /// Truth values.
    Bools(Vec<bool>),
    /// A text.
    Text(String),
    /// A type of elements.
    DataType(DataType),
    /// An order in memory.
    MemoryFormat(MemoryFormat),
    /// Dense tensors: the only layout.
    Strided,
    /// The device on which the graph runs: the only device.
    Device,
}

impl Argument {
    /// The values that it names.
    pub(crate) fn values(&self) -> Vec<ValueId> {
        match self {
            Self::Value(id) => vec![*id],
            Self::Values(ids) => ids.iter().flatten().copied().collect(),
            Self::Ints(integers) => {
                let values = integers.iter().filter_map(|integer| match integer {
                    IntArgument::Value(id) => Some(*id),
                    IntArgument::Fixed(_) => None,
                });
                values.collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The operation of a node.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Operation {
    /// An operator of ATen, such as `add.Tensor`.
    Aten(String),
    /// A function of sizes, such as `mul` or `floordiv`.
    Size(String),
}

/// The results of a node.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum NodeOutput {
    /// No value.
    None,
    /// A tensor, an integer, a real number or a truth value.
    Value(ValueId),
    /// A list of tensors.
    List(Vec<ValueId>),
}

impl NodeOutput {
    /// The values that it defines.
    pub(crate) fn values(&self) -> Vec<ValueId> {
        match self {
            Self::None => Vec::new(),
            Self::Value(id) => vec![*id],
            Self::List(ids) => ids.clone(),
        }
    }
}

/// One call of an operator.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Node {
    /// Its operation.
    pub operation: Operation,
    /// Whether gradients flow through it, if any of its arguments has one.
    pub gradients: bool,
    /// The arguments, each with the name of the operator's schema.
    pub arguments: Vec<(String, Argument)>,
    /// The results.
    pub outputs: Vec<NodeOutput>,
}

/// A model as operators: inputs, nodes in order, and outputs.
#[derive(Debug, Clone, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Graph {
    /// The inputs; value numbers begin with them.
    pub inputs: Vec<GraphInput>,
    /// The nodes, each after those whose results it uses.
    pub nodes: Vec<Node>,
    /// The results.
    pub outputs: Vec<Argument>,
    /// One more than the largest value number.
    pub values: u32,
}

impl Graph {
    /// A list that gives each free dimension this size, as [`graph_cost`](super::graph_cost) takes it.
    pub fn free_sizes(&self, size: u64) -> Vec<u64> {
        let dimensions = self.inputs.iter().flat_map(|input| &input.tensor.shape);
        let numbers = dimensions.filter_map(|dimension| match dimension {
            Dimension::Symbol(number) => Some(*number as usize + 1),
            Dimension::Fixed(_) => None,
        });
        vec![size; numbers.max().unwrap_or(0)]
    }
}

/// The bytes of one parameter, buffer or constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightTensor {
    /// The type.
    pub data_type: DataType,
    /// The sizes, outermost first.
    pub sizes: Vec<u64>,
    /// The elements in order, each in little-endian bytes.
    pub bytes: Vec<u8>,
}

impl WeightTensor {
    /// The elements of a tensor of real numbers; `None` for integers and truth values.
    pub(crate) fn real_numbers(&self) -> Option<Vec<f64>> {
        let single = |bits: u32| f64::from(f32::from_bits(bits));
        Some(match self.data_type {
            DataType::F32 => self
                .bytes
                .as_chunks()
                .0
                .iter()
                .map(|own| single(u32::from_le_bytes(*own)))
                .collect(),
            DataType::F64 => {
                self.bytes.as_chunks().0.iter().map(|own| f64::from_le_bytes(*own)).collect()
            }
            DataType::Bf16 => {
                let halves = self.bytes.as_chunks().0.iter();
                halves.map(|own| single(u32::from(u16::from_le_bytes(*own)) << 16)).collect()
            }
            DataType::F16 => {
                let halves = self.bytes.as_chunks().0.iter();
                halves.map(|own| half_to_double(u16::from_le_bytes(*own))).collect()
            }
            _ => return None,
        })
    }

    /// The elements of a tensor of integers or truth values; empty for real numbers.
    pub(crate) fn whole_numbers(&self) -> Vec<i64> {
        let bytes = &self.bytes;
        match self.data_type {
            DataType::U8 | DataType::Bool => bytes.iter().map(|&own| own.into()).collect(),
            DataType::I8 => bytes.iter().map(|&own| own.cast_signed().into()).collect(),
            DataType::I16 => {
                bytes.as_chunks().0.iter().map(|own| i16::from_le_bytes(*own).into()).collect()
            }
            DataType::I32 => {
                bytes.as_chunks().0.iter().map(|own| i32::from_le_bytes(*own).into()).collect()
            }
            DataType::I64 => {
                bytes.as_chunks().0.iter().map(|own| i64::from_le_bytes(*own)).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The value of an IEEE 754 number of 16 bits, which is finite.
fn half_to_double(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2_f64.powi(-24),
        _ => (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
    };
    if bits >> 15 == 0 { size } else { -size }
}

/// The initial values of a graph's parameters, buffers and constants, in the order of its inputs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphWeights {
    /// One tensor for each input that is not [`InputRole::User`].
    pub tensors: Vec<WeightTensor>,
}
