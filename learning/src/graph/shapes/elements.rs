//! Operators that work on each element: shapes are broadcast, types are promoted as PyTorch does.

use super::call::Call;
use super::{DataType, GraphError, Number, RuleResult, Shaped, TensorShape, mismatch, moved, one};
use crate::graph::operators::{self, Effect};

/// The sizes of tensors that are used together: a size of 1 stands for every size.
pub(super) fn broadcast(shapes: &[&[u64]]) -> Result<Vec<u64>, GraphError> {
    let rank = shapes.iter().map(|sizes| sizes.len()).max().unwrap_or(0);
    let mut result = vec![1; rank];
    for sizes in shapes {
        let offset = rank - sizes.len();
        for (own, &size) in result[offset..].iter_mut().zip(*sizes) {
            match (*own, size) {
                (a, b) if a == b || b == 1 => {}
                (1, b) => *own = b,
                (a, b) => return Err(mismatch(format!("sizes {a} and {b} are used together"))),
            }
        }
    }
    Ok(result)
}

fn rank_of(data_type: DataType) -> u8 {
    match data_type {
        DataType::Bool => 0,
        DataType::U8 => 1,
        DataType::I8 => 2,
        DataType::I16 => 3,
        DataType::I32 => 4,
        DataType::I64 => 5,
        DataType::F16 => 6,
        DataType::Bf16 => 7,
        DataType::F32 => 8,
        DataType::F64 => 9,
    }
}

/// The type that holds values of both.
pub(super) fn promote(a: DataType, b: DataType) -> DataType {
    match (a, b) {
        (DataType::F16, DataType::Bf16) | (DataType::Bf16, DataType::F16) => DataType::F32,
        (DataType::U8, DataType::I8) | (DataType::I8, DataType::U8) => DataType::I16,
        _ if rank_of(a) >= rank_of(b) => a,
        _ => b,
    }
}

/// The category of a type: truth values, integers, real numbers.
fn category(data_type: DataType) -> u8 {
    match data_type {
        DataType::Bool => 0,
        data_type if data_type.is_float() => 2,
        _ => 1,
    }
}

/// The type of tensors and numbers together. A number, and a tensor without dimensions, changes the
/// type of others only if it has a higher category.
fn common_type(tensors: &[&TensorShape], numbers: &[Number]) -> DataType {
    let of = |with_dimensions: bool| {
        let own = tensors.iter().filter(|shape| shape.sizes.is_empty() != with_dimensions);
        own.map(|shape| shape.data_type).reduce(promote)
    };
    let of_numbers = numbers.iter().map(|number| match number {
        Number::Int(_) => DataType::I64,
        Number::Float(_) => DataType::F32,
        Number::Bool(_) => DataType::Bool,
    });
    let lower = [of(false), of_numbers.reduce(promote)];
    let mut result = of(true);
    for other in lower.into_iter().flatten() {
        result = Some(match result {
            None => other,
            Some(own) if category(other) > category(own) => {
                if category(own) == 0 || category(other) == 2 { other } else { promote(own, other) }
            }
            Some(own) => own,
        });
    }
    result.unwrap_or(DataType::F32)
}

/// The broadcast tensors of a call, with their common type.
fn together(call: &Call<'_>, names: &[&str]) -> Result<TensorShape, GraphError> {
    let tensors: Vec<&TensorShape> =
        names.iter().filter_map(|name| call.optional_tensor(name)).collect();
    let numbers: Vec<Number> = names.iter().filter_map(|name| call.number(name)).collect();
    let sizes: Vec<&[u64]> = tensors.iter().map(|shape| shape.sizes.as_slice()).collect();
    Ok(TensorShape::new(common_type(&tensors, &numbers), broadcast(&sizes)?))
}

/// Real numbers stay as they are, integers become 32-bit real numbers.
fn real(data_type: DataType) -> DataType {
    if data_type.is_float() { data_type } else { DataType::F32 }
}

/// Functions whose result has the type and the sizes of their first argument.
const SAME: &[&str] = &[
    "relu",
    "relu6",
    "gelu",
    "silu",
    "mish",
    "elu",
    "celu",
    "selu",
    "softplus",
    "leaky_relu",
    "hardtanh",
    "hardsigmoid",
    "hardswish",
    "log_sigmoid",
    "threshold",
    "hardshrink",
    "softshrink",
    "neg",
    "negative",
    "abs",
    "absolute",
    "sign",
    "square",
    "floor",
    "ceil",
    "round",
    "trunc",
    "frac",
    "clamp",
    "clip",
    "clamp_min",
    "clamp_max",
    "nan_to_num",
    "dropout",
    "alpha_dropout",
    "feature_dropout",
    "feature_alpha_dropout",
    "bernoulli",
    "bitwise_not",
    "prelu",
    "rrelu",
    "_softmax",
    "_log_softmax",
    "masked_fill",
    "layer_norm",
    "group_norm",
    "rms_norm",
    "batch_norm",
    "instance_norm",
    "_weight_norm",
];

pub(super) fn rule(name: &str, call: &Call<'_>) -> RuleResult {
    let base = name.split('.').next().unwrap_or(name);
    let effect = operators::find(name).map(|operator| operator.effect);
    if matches!(effect, Some(Effect::InPlace | Effect::RandomInPlace)) && !base.contains("squeeze")
    {
        return one(call.first()?.clone());
    }
    if effect == Some(Effect::Assertion) {
        return Ok(Some((Vec::new(), 0)));
    }
    match base {
        base if SAME.contains(&base) => one(call.first()?.clone()),
        "contiguous" | "clone" | "alias" | "alias_copy" | "detach" | "lift_fresh_copy"
        | "lift_fresh" | "flip" | "roll" | "tril" | "triu" | "real" => moved(call.first()?.clone()),
        "softmax" | "log_softmax" | "cumprod" => {
            let first = call.first()?;
            one(first.of_type(call.data_type("dtype").unwrap_or(first.data_type)))
        }
        "cumsum" => {
            let first = call.first()?;
            let default =
                if category(first.data_type) < 2 { DataType::I64 } else { first.data_type };
            one(first.of_type(call.data_type("dtype").unwrap_or(default)))
        }
        "exp" | "expm1" | "log" | "log1p" | "log2" | "log10" | "sqrt" | "rsqrt" | "reciprocal"
        | "sin" | "cos" | "tan" | "asin" | "acos" | "atan" | "sinh" | "cosh" | "tanh"
        | "sigmoid" | "erf" | "erfinv" | "logit" => {
            let first = call.first()?;
            one(first.of_type(real(first.data_type)))
        }
        _ => several(name, base, call),
    }
}

/// Functions of several tensors, or with several results.
fn several(name: &str, base: &str, call: &Call<'_>) -> RuleResult {
    match base {
        "eq" | "ne" | "lt" | "le" | "gt" | "ge" | "logical_and" | "logical_or" | "logical_xor"
        | "isnan" | "isinf" | "isfinite" | "logical_not" => {
            one(together(call, &["self", "other"])?.of_type(DataType::Bool))
        }
        "add" | "sub" | "subtract" | "rsub" | "mul" | "multiply" | "floor_divide" | "remainder"
        | "fmod" | "maximum" | "minimum" | "bitwise_and" | "bitwise_or" | "bitwise_xor"
        | "__and__" | "__or__" | "logaddexp" | "hypot" => one(together(call, &["self", "other"])?),
        "max" | "min" if name.ends_with(".other") => one(together(call, &["self", "other"])?),
        "div" | "divide" | "true_divide" | "atan2" | "xlogy" => {
            let shape = together(call, &["self", "other"])?;
            let is_true = call.argument("rounding_mode").is_none();
            let data_type = if is_true { real(shape.data_type) } else { shape.data_type };
            one(shape.of_type(data_type))
        }
        "pow" => one(together(call, &["self", "exponent"])?),
        "lerp" => one(together(call, &["self", "end", "weight"])?),
        "addcmul" | "addcdiv" => one(together(call, &["self", "tensor1", "tensor2"])?),
        "where" => {
            let shape = together(call, &["self", "other"])?;
            let condition = call.tensor("condition")?;
            one(shape.with(broadcast(&[&shape.sizes, &condition.sizes])?))
        }
        "native_layer_norm" => {
            let (first, normal) = (call.first()?, call.sizes("normalized_shape")?);
            let outer = first.sizes.len().saturating_sub(normal.len());
            let mut sizes = first.sizes.clone();
            sizes[outer..].fill(1);
            let part = Shaped::Tensor(first.with(sizes));
            let flops = first.elements();
            Ok(Some((vec![Shaped::Tensor(first.clone()), part.clone(), part], flops)))
        }
        "glu" => {
            let first = call.first()?;
            let at = call.dim("dim", -1, first.sizes.len())?;
            let mut sizes = first.sizes.clone();
            match sizes.get_mut(at) {
                Some(size) => *size /= 2,
                None => return Err(mismatch("a gate of a number")),
            }
            one(first.with(sizes))
        }
        _ => Ok(None),
    }
}
