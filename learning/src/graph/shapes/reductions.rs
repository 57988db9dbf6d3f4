//! Sums, means, extremes, orders and losses.

use super::call::{Call, axis};
use super::elements::broadcast;
use super::{DataType, GraphError, RuleResult, Shaped, TensorShape, mismatch};

/// The sizes without the reduced dimensions; with `keepdim` they are 1. No dimension means all.
fn reduced(first: &TensorShape, dims: &[i64], keep: bool) -> Result<Vec<u64>, GraphError> {
    let gone = dims.iter().map(|&dim| axis(dim, first.sizes.len()));
    let gone = gone.collect::<Result<Vec<usize>, _>>()?;
    let is_gone = |at: usize| gone.is_empty() || gone.contains(&at);
    let sizes = first.sizes.iter().enumerate().filter_map(|(at, &size)| match is_gone(at) {
        true if keep => Some(1),
        true => None,
        false => Some(size),
    });
    Ok(sizes.collect())
}

fn whole_numbers(data_type: DataType) -> DataType {
    if data_type.is_float() { data_type } else { DataType::I64 }
}

fn results(shapes: Vec<TensorShape>, flops: u64) -> RuleResult {
    Ok(Some((shapes.into_iter().map(Shaped::Tensor).collect(), flops)))
}

pub(super) fn rule(name: &str, call: &Call<'_>) -> RuleResult {
    let base = name.split('.').next().unwrap_or(name);
    let known = [
        "sum",
        "mean",
        "prod",
        "var",
        "std",
        "amax",
        "amin",
        "max",
        "min",
        "argmax",
        "argmin",
        "all",
        "any",
        "logsumexp",
        "norm",
        "linalg_vector_norm",
        "var_mean",
        "count_nonzero",
    ];
    if !known.contains(&base) {
        return others(base, call);
    }
    let first = call.first()?;
    let dims = call.ints("dim").unwrap_or_default();
    let shape = first.with(reduced(first, &dims, call.flag("keepdim"))?);
    let flops = first.elements();
    let data_type = match base {
        "sum" | "prod" => call.data_type("dtype").unwrap_or_else(|| whole_numbers(first.data_type)),
        "mean" | "norm" | "linalg_vector_norm" => {
            call.data_type("dtype").unwrap_or(first.data_type)
        }
        "all" | "any" => DataType::Bool,
        "argmax" | "argmin" | "count_nonzero" => DataType::I64,
        _ => first.data_type,
    };
    let shape = shape.of_type(data_type);
    match base {
        // Values and their places.
        "max" | "min" if name.ends_with(".dim") => {
            results(vec![shape.clone(), shape.of_type(DataType::I64)], flops)
        }
        "var_mean" => results(vec![shape.clone(), shape], flops),
        _ => results(vec![shape], flops),
    }
}

fn others(base: &str, call: &Call<'_>) -> RuleResult {
    match base {
        "topk" => {
            let first = call.first()?;
            let at = call.dim("dim", -1, first.sizes.len())?;
            let most =
                u64::try_from(call.int_or("k", 1)).map_err(|_| mismatch("a negative number"))?;
            let mut sizes = first.sizes.clone();
            if let Some(size) = sizes.get_mut(at) {
                *size = most;
            }
            let shape = first.with(sizes);
            results(vec![shape.clone(), shape.of_type(DataType::I64)], first.elements())
        }
        "histc" => {
            let bins = u64::try_from(call.int_or("bins", 100))
                .map_err(|_| mismatch("a negative number"))?;
            let first = call.first()?;
            results(vec![first.with([bins])], first.elements())
        }
        "sort" => {
            let first = call.first()?;
            results(vec![first.clone(), first.of_type(DataType::I64)], first.elements())
        }
        "argsort" => {
            let first = call.first()?;
            results(vec![first.of_type(DataType::I64)], first.elements())
        }
        "cross_entropy_loss" | "nll_loss" => {
            let (first, target) = (call.first()?, call.tensor("target")?);
            let sizes = match call.int_or("reduction", 1) {
                0 if target.data_type.is_float() => {
                    let mut sizes = first.sizes.clone();
                    sizes.remove(usize::from(sizes.len() > 1));
                    sizes
                }
                0 => target.sizes.clone(),
                _ => Vec::new(),
            };
            results(vec![first.with(sizes)], first.elements())
        }
        "mse_loss"
        | "l1_loss"
        | "smooth_l1_loss"
        | "huber_loss"
        | "binary_cross_entropy"
        | "binary_cross_entropy_with_logits"
        | "kl_div" => {
            let (first, target) = (call.first()?, call.tensor("target")?);
            let all = broadcast(&[&first.sizes, &target.sizes])?;
            let sizes = if call.int_or("reduction", 1) == 0 { all } else { Vec::new() };
            results(vec![first.with(sizes)], first.elements())
        }
        "bucketize" | "searchsorted" => {
            let first = call.first()?;
            let given = call.optional_tensor("input").unwrap_or(first);
            let given = if base == "bucketize" { first } else { given };
            let data_type = if call.flag("out_int32") { DataType::I32 } else { DataType::I64 };
            results(vec![given.of_type(data_type)], given.elements())
        }
        _ => Ok(None),
    }
}
