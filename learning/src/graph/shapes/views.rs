//! Operators that arrange elements anew: reshapes, selections, joins and repetitions.

use super::call::{Call, axis};
use super::elements::{broadcast, promote};
use super::{
    Argument, DataType, GraphError, Number, RuleResult, Shaped, TensorShape, mismatch, moved, one,
};

fn list(shapes: Vec<TensorShape>) -> RuleResult {
    Ok(Some((vec![Shaped::List(shapes)], 0)))
}

/// The sizes of a reshape, of which one may be -1.
fn reshaped(elements: u64, wanted: &[i64]) -> Result<Vec<u64>, GraphError> {
    let known: u64 = wanted
        .iter()
        .filter(|&&size| size != -1)
        .try_fold(1_u64, |product, &size| product.checked_mul(u64::try_from(size).ok()?))
        .ok_or_else(|| mismatch(format!("a reshape to {wanted:?}")))?;
    let free = wanted.iter().filter(|&&size| size == -1).count();
    let fits = match free {
        0 => known == elements,
        1 => known != 0 && elements.is_multiple_of(known),
        _ => false,
    };
    if !fits {
        return Err(mismatch(format!("{elements} elements do not have the shape {wanted:?}")));
    }
    Ok(wanted.iter().map(|&size| u64::try_from(size).unwrap_or(elements / known.max(1))).collect())
}

/// A position in a dimension, limited to it as Python limits slices.
pub(crate) fn limited(at: i64, size: u64) -> u64 {
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    let at = if at < 0 { at.saturating_add(size) } else { at };
    at.clamp(0, size) as u64
}

/// The sizes of the parts of a dimension.
fn parts(first: &TensorShape, at: usize, sizes: &[u64]) -> Vec<TensorShape> {
    let part = |size: &u64| {
        let mut own = first.sizes.clone();
        own[at] = *size;
        first.with(own)
    };
    sizes.iter().map(part).collect()
}

pub(super) fn rule(name: &str, call: &Call<'_>) -> RuleResult {
    match name {
        "view" | "reshape" => {
            let first = call.first()?;
            let wanted = call.ints("size").or_else(|| call.ints("shape"));
            let wanted = wanted.ok_or_else(|| mismatch("a reshape without sizes"))?;
            moved(first.with(reshaped(first.elements(), &wanted)?))
        }
        "view_as" | "reshape_as" => {
            let (first, other) = (call.first()?, call.tensor("other")?);
            match first.elements() == other.elements() {
                true => moved(first.with(other.sizes.clone())),
                false => Err(mismatch("a reshape to another number of elements")),
            }
        }
        "expand_as" => moved(call.first()?.with(call.tensor("other")?.sizes.clone())),
        "flatten.using_ints" => {
            let first = call.first()?;
            let rank = first.sizes.len();
            let (from, to) = (call.dim("start_dim", 0, rank)?, call.dim("end_dim", -1, rank)?);
            if rank == 0 {
                return moved(first.with([1]));
            }
            if from > to {
                return Err(mismatch("a flattening from a later to an earlier dimension"));
            }
            let mut sizes = first.sizes[..from].to_vec();
            sizes.push(first.sizes[from..=to].iter().product());
            sizes.extend_from_slice(&first.sizes[to + 1..]);
            moved(first.with(sizes))
        }
        "unflatten.int" => {
            let first = call.first()?;
            let at = call.dim("dim", 0, first.sizes.len())?;
            let wanted = call.ints("sizes").ok_or_else(|| mismatch("no sizes"))?;
            let inner = reshaped(*first.sizes.get(at).unwrap_or(&1), &wanted)?;
            let mut sizes = first.sizes.clone();
            sizes.splice(at..=at, inner);
            moved(first.with(sizes))
        }
        _ => order(name, call),
    }
}

/// Operators that change the order of dimensions.
fn order(name: &str, call: &Call<'_>) -> RuleResult {
    match name {
        "permute" => {
            let first = call.first()?;
            let dims = call.ints("dims").ok_or_else(|| mismatch("no dimensions"))?;
            let order = dims.iter().map(|&dim| axis(dim, first.sizes.len()));
            let order = order.collect::<Result<Vec<_>, _>>()?;
            let mut sorted = order.clone();
            sorted.sort_unstable();
            if !sorted.iter().copied().eq(0..first.sizes.len()) {
                return Err(mismatch(format!("the order {dims:?} of dimensions")));
            }
            moved(first.with(order.iter().map(|&at| first.sizes[at]).collect::<Vec<_>>()))
        }
        "transpose.int" | "swapaxes" | "swapdims" => {
            let first = call.first()?;
            let rank = first.sizes.len();
            let (a, b) = match name {
                "swapaxes" => (call.dim("axis0", 0, rank)?, call.dim("axis1", 0, rank)?),
                _ => (call.dim("dim0", 0, rank)?, call.dim("dim1", 0, rank)?),
            };
            let mut sizes = first.sizes.clone();
            if rank > 0 {
                sizes.swap(a, b);
            }
            moved(first.with(sizes))
        }
        "t" | "numpy_T" => {
            let first = call.first()?;
            moved(first.with(first.sizes.iter().rev().copied().collect::<Vec<_>>()))
        }
        "movedim.int" => {
            let first = call.first()?;
            let rank = first.sizes.len();
            let (from, to) = (call.dim("source", 0, rank)?, call.dim("destination", 0, rank)?);
            let mut sizes = first.sizes.clone();
            let size = sizes.remove(from);
            sizes.insert(to, size);
            moved(first.with(sizes))
        }
        _ => dimensions(name, call),
    }
}

/// Operators that add, remove or repeat dimensions.
fn dimensions(name: &str, call: &Call<'_>) -> RuleResult {
    match name {
        "squeeze" => {
            let first = call.first()?;
            let sizes = first.sizes.iter().copied().filter(|&size| size != 1);
            moved(first.with(sizes.collect::<Vec<_>>()))
        }
        "squeeze.dim" | "squeeze.dims" | "squeeze_.dim" => {
            let first = call.first()?;
            let dims = call.ints("dim").ok_or_else(|| mismatch("no dimension"))?;
            let gone = dims.iter().map(|&dim| axis(dim, first.sizes.len()));
            let gone = gone.collect::<Result<Vec<_>, _>>()?;
            let left = first.sizes.iter().enumerate();
            let left = left.filter(|(at, size)| **size != 1 || !gone.contains(at));
            moved(first.with(left.map(|(_, size)| *size).collect::<Vec<_>>()))
        }
        "unsqueeze" | "unsqueeze_" => {
            let first = call.first()?;
            let at = call.dim("dim", 0, first.sizes.len() + 1)?;
            let mut sizes = first.sizes.clone();
            sizes.insert(at, 1);
            moved(first.with(sizes))
        }
        "expand" | "broadcast_to" => {
            let first = call.first()?;
            let wanted = call.ints("size").ok_or_else(|| mismatch("no sizes"))?;
            if wanted.len() < first.sizes.len() {
                return Err(mismatch("an expansion to fewer dimensions"));
            }
            let offset = wanted.len() - first.sizes.len();
            let sizes = wanted.iter().enumerate().map(|(at, &size)| {
                let own = at.checked_sub(offset).map(|at| first.sizes[at]);
                match (own, u64::try_from(size)) {
                    (Some(own), Err(_)) if size == -1 => Ok(own),
                    (Some(own), Ok(size)) if own == size || own == 1 => Ok(size),
                    (None, Ok(size)) => Ok(size),
                    _ => Err(mismatch(format!("an expansion of {:?} to {wanted:?}", first.sizes))),
                }
            });
            moved(first.with(sizes.collect::<Result<Vec<u64>, _>>()?))
        }
        "unfold" => {
            let first = call.first()?;
            let at = call.dim("dimension", 0, first.sizes.len())?;
            let (size, step) = (call.int_or("size", 1), call.int_or("step", 1));
            let (Ok(size), Ok(step @ 1..)) = (u64::try_from(size), u64::try_from(step)) else {
                return Err(mismatch("windows of no size or step"));
            };
            let mut sizes = first.sizes.clone();
            let whole = sizes.get_mut(at).ok_or_else(|| mismatch("windows of a number"))?;
            *whole = whole.checked_sub(size).ok_or_else(|| mismatch("a window beyond the end"))?
                / step
                + 1;
            sizes.push(size);
            moved(first.with(sizes))
        }
        _ => selection(name, call),
    }
}

/// Operators that take a part of a tensor.
fn selection(name: &str, call: &Call<'_>) -> RuleResult {
    match name {
        "select.int" => {
            let first = call.first()?;
            let at = call.dim("dim", 0, first.sizes.len())?;
            let mut sizes = first.sizes.clone();
            sizes.remove(at);
            moved(first.with(sizes))
        }
        "slice.Tensor" | "narrow" => {
            let first = call.first()?;
            let at = call.dim("dim", 0, first.sizes.len())?;
            let mut sizes = first.sizes.clone();
            let size = *sizes.get(at).ok_or_else(|| mismatch("a part of a number"))?;
            sizes[at] = if name == "narrow" {
                u64::try_from(call.int_or("length", 0))
                    .map_err(|_| mismatch("a negative length"))?
            } else {
                let from = limited(call.int_or("start", 0), size);
                let to = limited(call.int_or("end", i64::MAX), size);
                let step = u64::try_from(call.int_or("step", 1)).unwrap_or(1).max(1);
                to.saturating_sub(from).div_ceil(step)
            };
            moved(first.with(sizes))
        }
        _ => divisions(name, call),
    }
}

/// Operators that divide a tensor into a list.
fn divisions(name: &str, call: &Call<'_>) -> RuleResult {
    match name {
        "chunk" | "split.Tensor" | "tensor_split.sections" => {
            let first = call.first()?;
            let at = call.dim("dim", 0, first.sizes.len())?;
            let size = *first.sizes.get(at).ok_or_else(|| mismatch("parts of a number"))?;
            let given = call.int("chunks").or_else(|| call.int("split_size"));
            let given = given.or_else(|| call.int("sections")).and_then(|n| u64::try_from(n).ok());
            let given = given.filter(|&n| n > 0).ok_or_else(|| mismatch("a number of parts"))?;
            if given > crate::graph::LIST_MAX as u64 && name != "split.Tensor" {
                return Err(mismatch("too many parts"));
            }
            let sizes: Vec<u64> = if name == "tensor_split.sections" {
                (0..given).map(|part| size / given + u64::from(part < size % given)).collect()
            } else {
                let each = if name == "chunk" { size.div_ceil(given).max(1) } else { given };
                let count = size.div_ceil(each).max(1);
                if count > crate::graph::LIST_MAX as u64 {
                    return Err(mismatch("too many parts"));
                }
                (0..count).map(|part| each.min(size - part * each)).collect()
            };
            list(parts(first, at, &sizes))
        }
        "split.sizes" | "split_with_sizes" => {
            let first = call.first()?;
            let at = call.dim("dim", 0, first.sizes.len())?;
            let sizes = call.sizes("split_sizes").or_else(|_| call.sizes("split_size"))?;
            if first.sizes.get(at) != Some(&sizes.iter().sum()) {
                return Err(mismatch("parts that do not add up to the whole"));
            }
            list(parts(first, at, &sizes))
        }
        "unbind.int" => {
            let first = call.first()?;
            let at = call.dim("dim", 0, first.sizes.len())?;
            let mut sizes = first.sizes.clone();
            let count = sizes.remove(at);
            if count > crate::graph::LIST_MAX as u64 {
                return Err(mismatch("too many parts"));
            }
            list(vec![first.with(sizes); count as usize])
        }
        _ => measures(name, call),
    }
}

/// Diagonals, and operators that return sizes.
fn measures(name: &str, call: &Call<'_>) -> RuleResult {
    match name {
        "diagonal" => {
            let first = call.first()?;
            let rank = first.sizes.len();
            let (a, b) = (call.dim("dim1", 0, rank)?, call.dim("dim2", 1, rank)?);
            let offset = call.int_or("offset", 0);
            let (rows, columns) = (first.sizes[a], first.sizes[b]);
            let size = if offset >= 0 {
                rows.min(columns.saturating_sub(offset.unsigned_abs()))
            } else {
                columns.min(rows.saturating_sub(offset.unsigned_abs()))
            };
            let left = first.sizes.iter().enumerate().filter(|(at, _)| *at != a && *at != b);
            let mut sizes: Vec<u64> = left.map(|(_, size)| *size).collect();
            sizes.push(size);
            moved(first.with(sizes))
        }
        "sym_size.int" => {
            let first = call.first()?;
            let at = call.dim("dim", 0, first.sizes.len())?;
            let size = first.sizes.get(at).and_then(|&size| i64::try_from(size).ok());
            let size = size.ok_or_else(|| mismatch("the size of a number"))?;
            Ok(Some((vec![Shaped::Number(Number::Int(size))], 0)))
        }
        "sym_numel" => {
            let elements =
                i64::try_from(call.first()?.elements()).map_err(|_| mismatch("too large"))?;
            Ok(Some((vec![Shaped::Number(Number::Int(elements))], 0)))
        }
        _ => joins(name, call),
    }
}

/// Operators that join or repeat tensors.
fn joins(name: &str, call: &Call<'_>) -> RuleResult {
    match name {
        "cat" | "concat" | "concatenate" | "stack" => {
            let all: Vec<TensorShape> = call.tensors("tensors")?.into_iter().flatten().collect();
            let data_type = all.iter().map(|shape| shape.data_type).reduce(promote);
            let stacked = name == "stack";
            // An empty list of elements joins everything.
            let filled = || all.iter().filter(|shape| stacked || shape.sizes != [0]);
            let first = filled().next().or(all.first());
            let first = first.ok_or_else(|| mismatch("a join of nothing"))?;
            let at = call.dim("dim", 0, first.sizes.len() + usize::from(stacked))?;
            let mut sizes = first.sizes.clone();
            let agrees = |other: &TensorShape| {
                other.sizes.len() == first.sizes.len()
                    && (0..first.sizes.len()).all(|axis| {
                        (axis == at && !stacked) || other.sizes[axis] == first.sizes[axis]
                    })
            };
            if !filled().all(agrees) {
                return Err(mismatch("a join of different sizes"));
            }
            if stacked {
                sizes.insert(at, all.len() as u64);
            } else if let Some(size) = sizes.get_mut(at) {
                *size = filled().map(|shape| shape.sizes[at]).sum();
            }
            moved(TensorShape::new(data_type.unwrap_or(first.data_type), sizes))
        }
        "meshgrid" | "meshgrid.indexing" => {
            let lines = call.tensors("tensors")?.into_iter().flatten();
            let lines: Vec<TensorShape> = lines.collect();
            let mut sizes: Vec<u64> = lines.iter().map(TensorShape::elements).collect();
            let by_columns = Argument::Text("xy".to_owned());
            if call.argument("indexing") == Some(&by_columns) && sizes.len() > 1 {
                sizes.swap(0, 1);
            }
            list(lines.iter().map(|line| line.with(sizes.clone())).collect())
        }
        "repeat" | "tile" => {
            let first = call.first()?;
            let times = call.sizes(if name == "repeat" { "repeats" } else { "dims" })?;
            let rank = times.len().max(first.sizes.len());
            let padded = |sizes: &[u64]| {
                let mut all = vec![1; rank - sizes.len()];
                all.extend_from_slice(sizes);
                all
            };
            let sizes = padded(&first.sizes).into_iter().zip(padded(&times));
            moved(first.with(sizes.map(|(a, b)| a.saturating_mul(b)).collect::<Vec<_>>()))
        }
        "repeat_interleave.self_int" => {
            let first = call.first()?;
            let times =
                u64::try_from(call.int_or("repeats", 1)).map_err(|_| mismatch("repeats"))?;
            if call.argument("dim").is_none() {
                return moved(first.with([first.elements().saturating_mul(times)]));
            }
            let at = call.dim("dim", 0, first.sizes.len())?;
            let mut sizes = first.sizes.clone();
            sizes[at] = sizes[at].saturating_mul(times);
            moved(first.with(sizes))
        }
        _ => by_number(name, call),
    }
}

/// Operators that take elements by their numbers.
fn by_number(name: &str, call: &Call<'_>) -> RuleResult {
    match name {
        "embedding" => {
            let (weight, indices) = (call.tensor("weight")?, call.tensor("indices")?);
            let mut sizes = indices.sizes.clone();
            sizes.extend(weight.sizes.iter().skip(1));
            moved(weight.with(sizes))
        }
        "index_select" => {
            let first = call.first()?;
            let at = call.dim("dim", 0, first.sizes.len())?;
            let mut sizes = first.sizes.clone();
            *sizes.get_mut(at).ok_or_else(|| mismatch("a selection of a number"))? =
                call.tensor("index")?.elements();
            moved(first.with(sizes))
        }
        "gather" => moved(call.first()?.with(call.tensor("index")?.sizes.clone())),
        "take_along_dim" => {
            let (first, indices) = (call.first()?, call.tensor("indices")?);
            moved(first.with(indices.sizes.clone()))
        }
        "scatter.src" | "scatter.value" | "scatter_add" | "index_put" | "index_add"
        | "slice_scatter" | "select_scatter" => moved(call.first()?.clone()),
        "index.Tensor" => index(call),
        "one_hot" => {
            let classes = u64::try_from(call.int_or("num_classes", -1)).map_err(|_| {
                mismatch("one_hot needs num_classes: otherwise its shape depends on data")
            })?;
            let mut sizes = call.first()?.sizes.clone();
            sizes.push(classes);
            moved(TensorShape::new(DataType::I64, sizes))
        }
        "diff" => {
            let first = call.first()?;
            let at = call.dim("dim", -1, first.sizes.len())?;
            let times = u64::try_from(call.int_or("n", 1)).unwrap_or(1);
            let mut sizes = first.sizes.clone();
            for extra in ["prepend", "append"] {
                if let Some(shape) = call.optional_tensor(extra) {
                    sizes[at] += shape.sizes.get(at).copied().unwrap_or(1);
                }
            }
            sizes[at] = sizes[at].saturating_sub(times);
            one(first.with(sizes))
        }
        _ => Ok(None),
    }
}

/// Selection by tensors of numbers, as NumPy's advanced indexing does it.
fn index(call: &Call<'_>) -> RuleResult {
    let (first, indices) = (call.first()?, call.tensors("indices")?);
    if indices.len() > first.sizes.len() {
        return Err(mismatch("more indices than dimensions"));
    }
    if indices
        .iter()
        .flatten()
        .any(|shape| matches!(shape.data_type, DataType::Bool | DataType::U8))
    {
        return Err(mismatch(
            "a selection by a mask, whose shape depends on data: use `torch.where`",
        ));
    }
    let places: Vec<usize> =
        indices.iter().enumerate().filter_map(|(at, shape)| shape.as_ref().map(|_| at)).collect();
    let (Some(&start), Some(&end)) = (places.first(), places.last()) else {
        return moved(first.clone());
    };
    let chosen: Vec<&[u64]> =
        indices.iter().flatten().map(|shape| shape.sizes.as_slice()).collect();
    let chosen = broadcast(&chosen)?;
    let rest: Vec<u64> = (0..first.sizes.len())
        .filter(|at| !places.contains(at))
        .map(|at| first.sizes[at])
        .collect();
    // Indices that are side by side stay there; otherwise their dimensions come first.
    let is_joined = end - start + 1 == places.len();
    let at = if is_joined { start } else { 0 };
    let mut sizes = rest;
    sizes.splice(at..at, chosen);
    moved(first.with(sizes))
}
