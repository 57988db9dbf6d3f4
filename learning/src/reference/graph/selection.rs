//! Operators that take elements by their numbers, and that create or convert tensors.

use super::RunFailure;
use super::elements::{choose, number};
use super::run::{NodeCall, Results, Run};
use super::tensor::{Elements, Tensor, broadcast_strides, count, indexed, strided, strides};
use crate::reference::real::Real;

pub(super) fn rule<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Results {
    match node.base {
        "embedding" => embedding(run, node).map(Some),
        "index_select" | "gather" | "take_along_dim" => along(run, node).map(Some),
        "index" => by_tensors(run, node).map(Some),
        "one_hot" => {
            let first = run.first(node)?;
            let classes = node.sizes.last().copied().unwrap_or(1);
            let mut numbers = Vec::with_capacity(count(&node.sizes));
            for &at in run.whole(&first).iter() {
                let at = within(at, classes)?;
                numbers.extend((0..classes).map(|class| i64::from(class == at)));
            }
            Ok(Some(vec![Tensor::whole(node.sizes.clone(), numbers)]))
        }
        "to" | "_to_copy" | "type_as" | "copy" => {
            let name = if node.base == "copy" { "src" } else { "self" };
            let first = run.tensor(node, name)?;
            let first = run.spread(&first, &node.sizes);
            Ok(Some(vec![converted(run, node, first)]))
        }
        _ => creation(run, node),
    }
}

/// The tensor with elements of the result's type.
pub(super) fn converted<T: Real>(
    run: &mut Run<'_, T>,
    node: &NodeCall<'_>,
    tensor: Tensor,
) -> Tensor {
    match (&tensor.elements, node.is_real) {
        (Elements::Real(_), true) => tensor,
        (Elements::Whole(_), true) => {
            let var = run.real(&tensor);
            Tensor::real(tensor.sizes, var)
        }
        (_, false) => {
            let numbers = if node.is_bool() { run.truth(&tensor) } else { run.whole(&tensor) };
            Tensor { elements: Elements::Whole(numbers), ..tensor }
        }
    }
}

/// An index below a size; a negative one counts from the end.
fn within(at: i64, size: usize) -> Result<usize, RunFailure> {
    let from_start = if at < 0 { at.saturating_add(size as i64) } else { at };
    let refused = || RunFailure::Value(format!("the index {at} is beyond the size {size}"));
    usize::try_from(from_start).ok().filter(|&at| at < size).ok_or_else(refused)
}

fn embedding<T: Real>(
    run: &mut Run<'_, T>,
    node: &NodeCall<'_>,
) -> Result<Vec<Tensor>, RunFailure> {
    let (weight, indices) = (run.tensor(node, "weight")?, run.tensor(node, "indices")?);
    let (rows, width) = (weight.sizes[0], count(&weight.sizes[1..]));
    let numbers = run.whole(&indices);
    let mut index = Vec::with_capacity(numbers.len() * width);
    for &at in numbers.iter() {
        if at < 0 {
            return Err(RunFailure::Value(format!("the index {at} is negative")));
        }
        let from = within(at, rows)? * width;
        index.extend((from..from + width).map(|at| at as u32));
    }
    let found = run.rearranged(&weight, node.sizes.clone(), index);
    // The row of padding has no derivative.
    let Some(padding) = node.call.int("padding_idx").filter(|&at| at >= 0) else {
        return Ok(vec![found]);
    };
    let is_padding =
        numbers.iter().flat_map(|&at| std::iter::repeat_n(i64::from(at == padding), width));
    let is_padding: Vec<i64> = is_padding.collect();
    let source = run.real(&found);
    let fixed = run.tape.detach(source);
    Ok(vec![Tensor::real(node.sizes.clone(), choose(run, &is_padding, fixed, source))])
}

/// Elements by their numbers along one dimension.
fn along<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Result<Vec<Tensor>, RunFailure> {
    let first = run.first(node)?;
    let name = if node.base == "take_along_dim" { "indices" } else { "index" };
    let numbers = run.tensor(node, name)?;
    let dim = node.call.dim("dim", 0, first.sizes.len())?;
    let size = first.sizes[dim];
    let checked = run.whole(&numbers);
    let checked = checked.iter().map(|&at| within(at, size)).collect::<Result<Vec<_>, _>>()?;
    let (own, numbered) = (strides(&first.sizes), strides(&numbers.sizes));
    let index = indexed(&node.sizes, |place| {
        let number = match node.base {
            "index_select" => place[dim],
            _ => place.iter().zip(&numbered).map(|(at, stride)| at * stride).sum(),
        };
        let at = |other: usize| match other == dim {
            true => checked[number] * own[dim],
            false => place[other] * own[other],
        };
        Some((0..place.len()).map(at).sum())
    });
    Ok(vec![run.rearranged(&first, node.sizes.clone(), index)])
}

/// Selection by tensors of numbers, as NumPy's advanced indexing does it.
fn by_tensors<T: Real>(
    run: &mut Run<'_, T>,
    node: &NodeCall<'_>,
) -> Result<Vec<Tensor>, RunFailure> {
    let first = run.first(node)?;
    let given = run.tensors(node, "indices")?;
    let rank = first.sizes.len();
    let dims: Vec<usize> = (0..given.len()).filter(|&dim| given[dim].is_some()).collect();
    let (Some(&start), Some(&end)) = (dims.first(), dims.last()) else { return Ok(vec![first]) };
    let chosen_rank = given.iter().flatten().map(|tensor| tensor.sizes.len()).max().unwrap_or(0);
    // Indices side by side stay there; otherwise their dimensions come first.
    let from = if end - start + 1 == dims.len() { start } else { 0 };
    let chosen = node.sizes[from..from + chosen_rank].to_vec();
    let mut numbers = Vec::with_capacity(dims.len());
    for &dim in &dims {
        let Some(tensor) = &given[dim] else { continue };
        let index = strided(&chosen, &broadcast_strides(&tensor.sizes, &chosen), 0);
        let all = run.whole(tensor);
        let of = |&at: &u32| within(all[at as usize], first.sizes[dim]);
        numbers.push(index.iter().map(of).collect::<Result<Vec<usize>, _>>()?);
    }
    let own = strides(&first.sizes);
    let chosen_strides = strides(&chosen);
    let index = indexed(&node.sizes, |place| {
        let inner = place[from..from + chosen_rank].iter().zip(&chosen_strides);
        let at: usize = inner.map(|(at, stride)| at * stride).sum();
        let fixed: usize = dims.iter().zip(&numbers).map(|(&dim, all)| all[at] * own[dim]).sum();
        let left = (0..place.len()).filter(|at| !(from..from + chosen_rank).contains(at));
        let free = (0..rank).filter(|dim| !dims.contains(dim));
        Some(fixed + left.zip(free).map(|(at, dim)| place[at] * own[dim]).sum::<usize>())
    });
    Ok(vec![run.rearranged(&first, node.sizes.clone(), index)])
}

/// Tensors that are created.
fn creation<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Results {
    let elements = count(&node.sizes);
    let value = match node.base {
        "zeros" | "zeros_like" | "new_zeros" | "empty" | "empty_like" | "new_empty" | "zero" => 0.0,
        "ones" | "ones_like" | "new_ones" => 1.0,
        "full" | "full_like" | "new_full" => {
            number(node, "fill_value").ok_or_else(|| RunFailure::graph("no number to fill with"))?
        }
        "fill" => {
            let value = run.tensor(node, "value")?;
            let value = run.spread(&value, &node.sizes);
            return Ok(Some(vec![converted(run, node, value)]));
        }
        "scalar_tensor" => number(node, "s").ok_or_else(|| RunFailure::graph("no number"))?,
        "arange" => {
            let given = |name, default| number(node, name).unwrap_or(default);
            let (start, step) = (given("start", 0.0), given("step", 1.0));
            let numbers: Vec<f64> = (0..elements).map(|at| start + at as f64 * step).collect();
            return Ok(Some(vec![created(run, node, numbers)]));
        }
        "linspace" => {
            let given = |name| number(node, name).unwrap_or(0.0);
            let (start, end) = (given("start"), given("end"));
            let step = (end - start) / (elements.max(2) - 1) as f64;
            let numbers = (0..elements).map(|at| start + at as f64 * step).collect();
            return Ok(Some(vec![created(run, node, numbers)]));
        }
        _ => return Ok(None),
    };
    Ok(Some(vec![created(run, node, vec![value; elements])]))
}

fn created<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>, numbers: Vec<f64>) -> Tensor {
    let sizes = node.sizes.clone();
    match node.is_real {
        true => {
            let numbers = numbers.into_iter().map(T::from_f64).collect();
            Tensor::real(sizes, run.tape.leaf(numbers, false))
        }
        false => Tensor::whole(sizes, numbers.into_iter().map(|number| number as i64).collect()),
    }
}
