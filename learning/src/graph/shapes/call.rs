//! The arguments of a call by their names in the schema, and tensors that a call creates.

use super::{
    Argument, DataType, GraphError, Node, Number, RuleResult, Shaped, TensorShape, ValueId,
};
use super::{mismatch, moved};
use crate::graph::value::IntArgument;

/// A call of an operator, with the shapes of the values so far.
pub(crate) struct Call<'a> {
    pub(crate) node: &'a Node,
    pub(crate) values: &'a [Shaped],
}

impl Call<'_> {
    pub(crate) fn argument(&self, name: &str) -> Option<&Argument> {
        let found = self.node.arguments.iter().find(|(own, _)| own == name);
        found.map(|(_, argument)| argument).filter(|argument| **argument != Argument::None)
    }

    fn value(&self, ValueId(id): ValueId) -> &Shaped {
        self.values.get(id as usize).unwrap_or(&Shaped::Unknown)
    }

    /// A tensor; `None` for a number or a missing argument.
    pub(super) fn optional_tensor(&self, name: &str) -> Option<&TensorShape> {
        match self.argument(name)? {
            Argument::Value(id) => match self.value(*id) {
                Shaped::Tensor(shape) => Some(shape),
                _ => None,
            },
            _ => None,
        }
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<&TensorShape, GraphError> {
        self.optional_tensor(name)
            .ok_or_else(|| mismatch(format!("the argument {name} is no tensor")))
    }

    /// The first argument, which is the tensor that most operators work on.
    pub(super) fn first(&self) -> Result<&TensorShape, GraphError> {
        let first = self.node.arguments.first().map(|(name, _)| name.as_str());
        self.tensor(first.unwrap_or("self"))
    }

    /// A list of tensors; `None` stands for a missing one.
    pub(super) fn tensors(&self, name: &str) -> Result<Vec<Option<TensorShape>>, GraphError> {
        let wrong = || mismatch(format!("the argument {name} is no list of tensors"));
        match self.argument(name).ok_or_else(wrong)? {
            Argument::Values(ids) => {
                let shapes = ids.iter().map(|id| match id.map(|id| self.value(id)) {
                    None => Ok(None),
                    Some(Shaped::Tensor(shape)) => Ok(Some(shape.clone())),
                    Some(_) => Err(wrong()),
                });
                shapes.collect()
            }
            Argument::Value(id) => match self.value(*id) {
                Shaped::List(list) => Ok(list.iter().cloned().map(Some).collect()),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }

    /// A number, of an argument or of a value.
    pub(super) fn number_of(&self, argument: &Argument) -> Option<Number> {
        Some(match argument {
            Argument::Int(integer) => Number::Int(*integer),
            Argument::Float(bits) => Number::Float(f64::from_bits(*bits)),
            Argument::Bool(holds) => Number::Bool(*holds),
            Argument::Value(id) => match self.value(*id) {
                Shaped::Number(number) => *number,
                _ => return None,
            },
            _ => return None,
        })
    }

    pub(crate) fn number(&self, name: &str) -> Option<Number> {
        self.number_of(self.argument(name)?)
    }

    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        match self.number(name)? {
            Number::Int(integer) => Some(integer),
            Number::Bool(holds) => Some(holds.into()),
            Number::Float(_) => None,
        }
    }

    pub(crate) fn int_or(&self, name: &str, default: i64) -> i64 {
        self.int(name).unwrap_or(default)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.int(name).is_some_and(|holds| holds != 0)
    }

    /// Integers, or one that stands for a list of one.
    pub(crate) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        match self.argument(name)? {
            Argument::Ints(all) => {
                let all = all.iter().map(|integer| match integer {
                    IntArgument::Fixed(integer) => Some(*integer),
                    IntArgument::Value(id) => match self.value(*id) {
                        Shaped::Number(Number::Int(integer)) => Some(*integer),
                        _ => None,
                    },
                });
                all.collect()
            }
            Argument::Values(ids) => {
                let all = ids.iter().map(|id| match self.value((*id)?) {
                    Shaped::Number(Number::Int(integer)) => Some(*integer),
                    _ => None,
                });
                all.collect()
            }
            argument => match self.number_of(argument)? {
                Number::Int(integer) => Some(vec![integer]),
                _ => None,
            },
        }
    }

    /// Sizes that are not negative.
    pub(crate) fn sizes(&self, name: &str) -> Result<Vec<u64>, GraphError> {
        let ints =
            self.ints(name).ok_or_else(|| mismatch(format!("the argument {name} has no sizes")))?;
        ints.into_iter()
            .map(|size| u64::try_from(size).map_err(|_| mismatch(format!("the size {size}"))))
            .collect()
    }

    pub(super) fn data_type(&self, name: &str) -> Option<DataType> {
        match self.argument(name)? {
            Argument::DataType(data_type) => Some(*data_type),
            _ => None,
        }
    }

    /// A dimension, counted from the end if it is negative.
    pub(crate) fn dim(&self, name: &str, default: i64, rank: usize) -> Result<usize, GraphError> {
        axis(self.int_or(name, default), rank)
    }
}

/// A dimension, counted from the end if it is negative.
pub(crate) fn axis(dim: i64, rank: usize) -> Result<usize, GraphError> {
    let rank = rank as i64;
    let at = if dim < 0 { dim.saturating_add(rank) } else { dim };
    match (0..rank).contains(&at) {
        true => Ok(at as usize),
        false => Err(mismatch(format!("the dimension {dim} of a tensor of {rank} dimensions"))),
    }
}

/// Tensors that are created, or get another type.
pub(super) fn creation(name: &str, call: &Call<'_>) -> RuleResult {
    let kind = |default: DataType| call.data_type("dtype").unwrap_or(default);
    let count =
        |number: f64| TensorShape::new(kind(DataType::I64), [number.max(0.0).ceil() as u64]);
    let float = |name: &str| match call.number(name) {
        Some(Number::Int(integer)) => Some(integer as f64),
        Some(Number::Float(number)) => Some(number),
        _ => None,
    };
    match name {
        "zeros" | "ones" | "empty.memory_format" | "rand" | "randn" => {
            moved(TensorShape::new(kind(DataType::F32), call.sizes("size")?))
        }
        "full" => {
            let default = match call.number("fill_value") {
                Some(Number::Int(_)) => DataType::I64,
                Some(Number::Bool(_)) => DataType::Bool,
                _ => DataType::F32,
            };
            moved(TensorShape::new(kind(default), call.sizes("size")?))
        }
        "new_zeros" | "new_ones" | "new_full" | "new_empty" => {
            moved(TensorShape::new(kind(call.first()?.data_type), call.sizes("size")?))
        }
        "zeros_like" | "ones_like" | "full_like" | "empty_like" | "rand_like" | "randn_like"
        | "to.dtype" | "to.dtype_layout" | "_to_copy" | "to.device" => {
            let first = call.first()?;
            moved(first.of_type(kind(first.data_type)))
        }
        "type_as" | "to.other" => {
            let other = call.tensor("other")?.data_type;
            moved(call.first()?.of_type(other))
        }
        "scalar_tensor" => moved(TensorShape::new(kind(DataType::F32), [])),
        "arange" | "arange.start" | "arange.start_step" => {
            let (start, end, step) =
                (float("start").unwrap_or(0.0), float("end"), float("step").unwrap_or(1.0));
            let end =
                end.filter(|_| step != 0.0).ok_or_else(|| mismatch("a range without an end"))?;
            let is_real = ["start", "end", "step"]
                .iter()
                .any(|name| matches!(call.number(name), Some(Number::Float(_))));
            let shape = count((end - start) / step);
            let default = if is_real { DataType::F32 } else { DataType::I64 };
            moved(shape.of_type(kind(default)))
        }
        "linspace" => {
            let steps = u64::try_from(call.int_or("steps", 0)).unwrap_or(0);
            moved(TensorShape::new(kind(DataType::F32), [steps]))
        }
        "eye" | "eye.m" => {
            let n = u64::try_from(call.int_or("n", 0)).unwrap_or(0);
            let m = u64::try_from(call.int_or("m", n as i64)).unwrap_or(0);
            moved(TensorShape::new(kind(DataType::F32), [n, m]))
        }
        "randperm" => {
            let n = u64::try_from(call.int_or("n", 0)).unwrap_or(0);
            moved(TensorShape::new(kind(DataType::I64), [n]))
        }
        _ => Ok(None),
    }
}
