//! Operators that arrange elements anew: reshapes, selections, joins and repetitions.

use super::RunFailure;
use super::run::{NodeCall, Results, Run};
use super::tensor::{Elements, Tensor, broadcast_strides, count, indexed, strided, strides};
use crate::graph::shapes::{Shaped, TensorShape, axis, limited};
use crate::graph::{NodeOutput, ValueId};
use crate::reference::real::Real;

pub(super) fn rule<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Results {
    match node.base {
        // The elements and their order stay.
        "view" | "reshape" | "view_as" | "reshape_as" | "flatten" | "unflatten" | "squeeze"
        | "unsqueeze" | "contiguous" | "clone" | "alias" | "lift_fresh" | "lift_fresh_copy"
            if node.name != "view.dtype" =>
        {
            let first = run.first(node)?;
            Ok(Some(vec![Tensor { sizes: node.sizes.clone(), ..first }]))
        }
        "detach" => {
            let first = run.first(node)?;
            let elements = match first.elements {
                Elements::Real(var) => Elements::Real(run.tape.detach(var)),
                whole @ Elements::Whole(_) => whole,
            };
            Ok(Some(vec![Tensor { elements, ..first }]))
        }
        "expand" | "expand_as" | "broadcast_to" => {
            let first = run.first(node)?;
            let index = strided(&node.sizes, &broadcast_strides(&first.sizes, &node.sizes), 0);
            Ok(Some(vec![run.rearranged(&first, node.sizes.clone(), index)]))
        }
        "permute" | "transpose" | "swapaxes" | "swapdims" | "t" | "numpy_T" | "movedim" => {
            let first = run.first(node)?;
            let order = order(node, first.sizes.len())?;
            Ok(Some(vec![permuted(run, &first, &order)]))
        }
        _ => parts(run, node),
    }
}

/// The source dimension of each dimension of the result.
fn order(node: &NodeCall<'_>, rank: usize) -> Result<Vec<usize>, RunFailure> {
    let call = &node.call;
    let mut order: Vec<usize> = (0..rank).collect();
    match node.base {
        "t" | "numpy_T" => order.reverse(),
        "permute" => {
            let dims = call.ints("dims").unwrap_or_default();
            let axis = |&dim: &i64| axis(dim, rank);
            order = dims.iter().map(axis).collect::<Result<_, _>>()?;
        }
        "movedim" => {
            if node.name != "movedim.int" {
                return Err(RunFailure::graph("this engine moves one dimension at a time"));
            }
            let from = call.dim("source", 0, rank)?;
            let dim = order.remove(from);
            order.insert(call.dim("destination", 0, rank)?, dim);
        }
        _ if rank > 0 => {
            let names = if node.base == "swapaxes" { ["axis0", "axis1"] } else { ["dim0", "dim1"] };
            order.swap(call.dim(names[0], 0, rank)?, call.dim(names[1], 0, rank)?);
        }
        _ => {}
    }
    Ok(order)
}

/// The tensor with its dimensions in another order.
pub(super) fn permuted<T: Real>(run: &mut Run<'_, T>, tensor: &Tensor, order: &[usize]) -> Tensor {
    if order.iter().copied().eq(0..order.len()) {
        return tensor.clone();
    }
    let own = strides(&tensor.sizes);
    let sizes: Vec<usize> = order.iter().map(|&at| tensor.sizes[at]).collect();
    let steps: Vec<usize> = order.iter().map(|&at| own[at]).collect();
    let index = strided(&sizes, &steps, 0);
    run.rearranged(tensor, sizes, index)
}

/// The tensor with one dimension behind all others.
pub(super) fn with_last<T: Real>(run: &mut Run<'_, T>, tensor: &Tensor, dim: usize) -> Tensor {
    let rank = tensor.sizes.len();
    let order: Vec<usize> = (0..rank).filter(|at| *at != dim).chain([dim]).collect();
    permuted(run, tensor, &order)
}

/// The inverse of [`with_last`].
pub(super) fn last_to<T: Real>(run: &mut Run<'_, T>, tensor: &Tensor, dim: usize) -> Tensor {
    let mut order: Vec<usize> = (0..tensor.sizes.len()).collect();
    if let Some(last) = order.pop() {
        order.insert(dim, last);
    }
    permuted(run, tensor, &order)
}

/// The elements of a tensor from `from` on, each `step`-th, along a dimension.
pub(super) fn part<T: Real>(
    run: &mut Run<'_, T>,
    first: &Tensor,
    dim: usize,
    (from, step): (usize, usize),
    sizes: Vec<usize>,
) -> Tensor {
    let mut steps = strides(&first.sizes);
    let offset = from * steps[dim];
    if sizes.len() < steps.len() {
        steps.remove(dim);
    } else {
        steps[dim] *= step;
    }
    let index = strided(&sizes, &steps, offset);
    run.rearranged(first, sizes, index)
}

/// Operators that take a part of a tensor, or divide it.
fn parts<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Results {
    let call = &node.call;
    match node.base {
        "select" => {
            let first = run.first(node)?;
            let dim = call.dim("dim", 0, first.sizes.len())?;
            let at = limited(call.int_or("index", 0), first.sizes[dim] as u64) as usize;
            if at >= first.sizes[dim] {
                return Err(RunFailure::graph("a selection beyond the end"));
            }
            Ok(Some(vec![part(run, &first, dim, (at, 1), node.sizes.clone())]))
        }
        "slice" | "narrow" => {
            let first = run.first(node)?;
            let dim = call.dim("dim", 0, first.sizes.len())?;
            let from = limited(call.int_or("start", 0), first.sizes[dim] as u64) as usize;
            let step = usize::try_from(call.int_or("step", 1)).unwrap_or(1).max(1);
            Ok(Some(vec![part(run, &first, dim, (from, step), node.sizes.clone())]))
        }
        "chunk" | "split" | "split_with_sizes" | "tensor_split" | "unbind" => {
            let first = run.first(node)?;
            let dim = call.dim("dim", 0, first.sizes.len())?;
            let (mut from, mut results) = (0, Vec::new());
            for sizes in result_sizes(run, node) {
                let each = if node.base == "unbind" { 1 } else { sizes[dim] };
                results.push(part(run, &first, dim, (from, 1), sizes));
                from += each;
            }
            Ok(Some(results))
        }
        _ => joins(run, node),
    }
}

/// The sizes of the tensors of a list.
fn result_sizes<T: Real>(run: &Run<'_, T>, node: &NodeCall<'_>) -> Vec<Vec<usize>> {
    let sizes = |shape: &TensorShape| -> Vec<usize> {
        shape.sizes.iter().map(|&size| size as usize).collect()
    };
    let shaped = |ValueId(id): &ValueId| &run.shapes()[*id as usize];
    let ids: Vec<ValueId> = node.call.node.outputs.iter().flat_map(NodeOutput::values).collect();
    match ids.as_slice() {
        [only] if matches!(shaped(only), Shaped::List(_)) => match shaped(only) {
            Shaped::List(list) => list.iter().map(sizes).collect(),
            _ => Vec::new(),
        },
        ids => {
            let all = ids.iter().filter_map(|id| match shaped(id) {
                Shaped::Tensor(shape) => Some(sizes(shape)),
                _ => None,
            });
            all.collect()
        }
    }
}

/// Operators that join or repeat tensors.
fn joins<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Results {
    let call = &node.call;
    match node.base {
        "cat" | "concat" | "concatenate" | "stack" => {
            let all: Vec<Tensor> = run.tensors(node, "tensors")?.into_iter().flatten().collect();
            let rank = node.sizes.len();
            let dim = call.dim("dim", 0, rank)?;
            let filled = all.into_iter().filter(|tensor| tensor.sizes != [0]);
            let all: Vec<Tensor> = match node.base {
                "stack" => filled
                    .map(|mut tensor| {
                        tensor.sizes.insert(dim, 1);
                        tensor
                    })
                    .collect(),
                _ => filled.collect(),
            };
            Ok(Some(vec![joined(run, node, &all, dim)]))
        }
        "repeat" | "tile" => {
            let first = run.first(node)?;
            let own = strides(&first.sizes);
            let offset = node.sizes.len() - first.sizes.len();
            let index = indexed(&node.sizes, |place| {
                let inner = place[offset..].iter().zip(&first.sizes).zip(&own);
                Some(inner.map(|((at, size), stride)| at % size * stride).sum())
            });
            Ok(Some(vec![run.rearranged(&first, node.sizes.clone(), index)]))
        }
        "repeat_interleave" if call.argument("dim").is_some() => {
            let first = run.first(node)?;
            let dim = call.dim("dim", 0, first.sizes.len())?;
            let times = node.sizes[dim] / first.sizes[dim].max(1);
            Ok(Some(vec![interleaved(run, &first, dim, times)]))
        }
        _ => moves(run, node),
    }
}

/// The tensor with each part along a dimension repeated `times` times.
pub(super) fn interleaved<T: Real>(
    run: &mut Run<'_, T>,
    tensor: &Tensor,
    dim: usize,
    times: usize,
) -> Tensor {
    let own = strides(&tensor.sizes);
    let mut sizes = tensor.sizes.clone();
    sizes[dim] *= times;
    let index = indexed(&sizes, |place| {
        let steps = place.iter().zip(&own).enumerate();
        Some(steps.map(|(at, (n, s))| if at == dim { n / times * s } else { n * s }).sum())
    });
    run.rearranged(tensor, sizes, index)
}

/// Operators that move elements within a tensor.
fn moves<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Results {
    let call = &node.call;
    match node.base {
        "flip" => {
            let first = run.first(node)?;
            let rank = first.sizes.len();
            let dims = call.ints("dims").unwrap_or_default();
            let dims = dims.iter().map(|&dim| axis(dim, rank));
            let dims = dims.collect::<Result<Vec<usize>, _>>()?;
            let own = strides(&first.sizes);
            let index = indexed(&node.sizes, |place| {
                let at = |(dim, &n): (usize, &usize)| match dims.contains(&dim) {
                    true => (first.sizes[dim] - 1 - n) * own[dim],
                    false => n * own[dim],
                };
                Some(place.iter().enumerate().map(at).sum())
            });
            Ok(Some(vec![run.rearranged(&first, node.sizes.clone(), index)]))
        }
        "roll" => roll(run, node),
        "tril" | "triu" => {
            let first = run.first(node)?;
            let diagonal = call.int_or("diagonal", 0);
            let own = strides(&first.sizes);
            let index = indexed(&node.sizes, |place| {
                let [.., row, column] = place else { return None };
                let above = *column as i64 - *row as i64;
                let is_in = match node.base {
                    "tril" => above <= diagonal,
                    _ => above >= diagonal,
                };
                is_in.then(|| place.iter().zip(&own).map(|(at, stride)| at * stride).sum())
            });
            Ok(Some(vec![run.rearranged(&first, node.sizes.clone(), index)]))
        }
        _ => Ok(None),
    }
}

fn roll<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Results {
    let first = run.first(node)?;
    let shifts = node.call.ints("shifts").unwrap_or_default();
    let dims = node.call.ints("dims").unwrap_or_default();
    if dims.len() != shifts.len() {
        return Err(RunFailure::graph("this engine rolls by one number for each dimension"));
    }
    let mut by = vec![0_i64; first.sizes.len()];
    for (dim, shift) in dims.into_iter().zip(shifts) {
        by[axis(dim, first.sizes.len())?] += shift;
    }
    let own = strides(&first.sizes);
    let index = indexed(&node.sizes, |place| {
        let at = |dim: usize| {
            let size = first.sizes[dim] as i64;
            (place[dim] as i64 - by[dim]).rem_euclid(size.max(1)) as usize * own[dim]
        };
        Some((0..place.len()).map(at).sum())
    });
    Ok(Some(vec![run.rearranged(&first, node.sizes.clone(), index)]))
}

/// Tensors side by side along a dimension.
fn joined<T: Real>(
    run: &mut Run<'_, T>,
    node: &NodeCall<'_>,
    all: &[Tensor],
    dim: usize,
) -> Tensor {
    let sizes = node.sizes.clone();
    // One after another, then by their places.
    let mut index = Vec::with_capacity(count(&sizes));
    let outer = count(&sizes[..dim]);
    for row in 0..outer {
        let mut start = 0;
        for tensor in all {
            let each = tensor.count() / outer.max(1);
            index.extend((start + row * each..start + (row + 1) * each).map(|at| at as u32));
            start += tensor.count();
        }
    }
    if !node.is_real {
        let mut numbers = Vec::new();
        for tensor in all {
            numbers.extend_from_slice(&run.whole(tensor));
        }
        let flat = Tensor::whole(vec![numbers.len()], numbers);
        return run.rearranged(&flat, sizes, index);
    }
    let vars: Vec<_> = all.iter().map(|tensor| run.real(tensor)).collect();
    let flat = run.tape.join(&vars);
    if outer == 1 {
        return Tensor::real(sizes, flat);
    }
    let flat = Tensor::real(vec![count(&sizes)], flat);
    run.rearranged(&flat, sizes, index)
}
