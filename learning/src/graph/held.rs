//! The arguments of a call, from the values of a run.

use tch::Tensor;

use super::interpreter::Slot;
use super::value::{Argument, DataType, IntArgument, ValueId};
use crate::torch::dispatch::Argument as Given;

/// An argument with its lists in memory, so that a call can borrow them.
pub(super) enum Held<'a> {
    Plain(Given<'a>),
    Device,
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Tensors(Vec<Option<&'a Tensor>>),
}

impl<'a> Held<'a> {
    /// `None` if a value has another type than its place.
    pub(super) fn new(argument: &'a Argument, values: &'a [Slot]) -> Option<Self> {
        let slot = |id: &ValueId| &values[id.0 as usize];
        Some(Self::Plain(match argument {
            Argument::None => Given::None,
            Argument::Value(id) => match slot(id) {
                Slot::Empty => return None,
                Slot::Tensor(tensor) => Given::Tensor(tensor),
                Slot::Tensors(tensors) => {
                    return Some(Self::Tensors(tensors.iter().map(Some).collect()));
                }
                Slot::Int(integer) => Given::Int(*integer),
                Slot::Float(number) => Given::Float(*number),
                Slot::Bool(holds) => Given::Bool(*holds),
            },
            Argument::Values(ids) => {
                let tensors = ids.iter().map(|id| match id.as_ref().map(slot) {
                    None => Some(None),
                    Some(Slot::Tensor(tensor)) => Some(Some(tensor)),
                    Some(_) => None,
                });
                return Some(Self::Tensors(tensors.collect::<Option<_>>()?));
            }
            Argument::Int(integer) => Given::Int(*integer),
            Argument::Ints(integers) => {
                let integers = integers.iter().map(|integer| match integer {
                    IntArgument::Fixed(integer) => Some(*integer),
                    IntArgument::Value(id) => match slot(id) {
                        Slot::Int(integer) => Some(*integer),
                        _ => None,
                    },
                });
                return Some(Self::Ints(integers.collect::<Option<_>>()?));
            }
            Argument::Float(bits) => Given::Float(f64::from_bits(*bits)),
            Argument::Floats(all) => {
                return Some(Self::Floats(all.iter().map(|bits| f64::from_bits(*bits)).collect()));
            }
            Argument::Bool(holds) => Given::Bool(*holds),
            Argument::Bools(all) => Given::Bools(all),
            Argument::Text(text) => Given::Text(text),
            Argument::DataType(data_type) => Given::Int(data_type.torch_number()),
            Argument::MemoryFormat(format) => Given::Int(*format as i64),
            Argument::Strided => Given::Int(0),
            Argument::Device => return Some(Self::Device),
        }))
    }

    /// With a real type of 64 bits instead of another real one.
    pub(super) fn in_double(self, argument: &Argument) -> Self {
        match argument {
            Argument::DataType(data_type) if data_type.is_float() => {
                Self::Plain(Given::Int(DataType::F64.torch_number()))
            }
            _ => self,
        }
    }

    pub(super) fn given<'b>(&'b self, device: &'b str) -> Given<'b> {
        match self {
            Self::Plain(given) => *given,
            Self::Device => Given::Text(device),
            Self::Ints(integers) => Given::Ints(integers),
            Self::Floats(numbers) => Given::Floats(numbers),
            Self::Tensors(tensors) => Given::Tensors(tensors),
        }
    }
}
