//! Softmax, normalisation, sums and extremes.

use super::RunFailure;
use super::elements::number;
use super::run::{NodeCall, Results, Run};
use super::tape::Var;
use super::tensor::{Elements, Tensor, count, indexed};
use super::views::{last_to, permuted, with_last};
use crate::graph::RunMode;
use crate::graph::shapes::axis;
use crate::reference::real::Real;

pub(super) fn rule<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Results {
    match node.base {
        "softmax" | "log_softmax" | "_softmax" | "_log_softmax" => {
            let first = run.first(node)?;
            let dim = node.call.dim("dim", -1, first.sizes.len())?;
            let inner = first.sizes.get(dim).copied().unwrap_or(1);
            let last = with_last(run, &first, dim);
            let source = run.real(&last);
            let result = match node.base.ends_with("log_softmax") {
                true => log_softmax(run, source, inner),
                false => softmax(run, source, inner),
            };
            let result = Tensor::real(last.sizes, result);
            Ok(Some(vec![last_to(run, &result, dim)]))
        }
        "layer_norm" | "native_layer_norm" | "rms_norm" => layer_norm(run, node).map(Some),
        "group_norm" | "batch_norm" | "instance_norm" => by_channels(run, node).map(Some),
        "cumsum" => {
            let first = run.first(node)?;
            let dim = node.call.dim("dim", 0, first.sizes.len())?;
            let inner = first.sizes.get(dim).copied().unwrap_or(1);
            let last = with_last(run, &first, dim);
            let result = match &last.elements {
                Elements::Whole(numbers) if !node.is_real => {
                    let mut sums = numbers.to_vec();
                    for part in sums.chunks_exact_mut(inner.max(1)) {
                        for at in 1..part.len() {
                            part[at] = part[at].wrapping_add(part[at - 1]);
                        }
                    }
                    Tensor::whole(last.sizes.clone(), sums)
                }
                _ => {
                    let source = run.real(&last);
                    Tensor::real(last.sizes.clone(), run.tape.running_sum(source, inner))
                }
            };
            Ok(Some(vec![last_to(run, &result, dim)]))
        }
        _ => reduction(run, node),
    }
}

/// The largest of each `inner` numbers, without derivatives; 0 if it is infinite.
fn largest<T: Real>(run: &mut Run<'_, T>, source: Var, inner: usize) -> Var {
    let numbers = run.tape.numbers(source);
    let largest = numbers.chunks_exact(inner.max(1)).map(|part| {
        let most = part.iter().fold(part[0], |most, &x| if x > most { x } else { most });
        if most.to_f64().is_finite() { most } else { T::ZERO }
    });
    let largest = largest.collect();
    run.tape.leaf(largest, false)
}

/// The exponentials of numbers below the largest of each `inner`, which cannot overflow, and their sums.
fn exponentials<T: Real>(run: &mut Run<'_, T>, source: Var, inner: usize) -> (Var, Var, Var) {
    let most = largest(run, source, inner);
    let most = run.repeat(most, inner);
    let below = run.subtract(source, most);
    let exponentials = run.tape.map(below, |x| (x.exp(), x.exp()));
    let sums = run.tape.sum(exponentials, inner);
    (below, exponentials, sums)
}

pub(super) fn softmax<T: Real>(run: &mut Run<'_, T>, source: Var, inner: usize) -> Var {
    let (_, exponentials, sums) = exponentials(run, source, inner);
    let sums = run.repeat(sums, inner);
    run.divide(exponentials, sums)
}

pub(super) fn log_softmax<T: Real>(run: &mut Run<'_, T>, source: Var, inner: usize) -> Var {
    let (below, _, sums) = exponentials(run, source, inner);
    let logarithms = run.tape.map(sums, |x| (x.ln(), T::ONE / x));
    let logarithms = run.repeat(logarithms, inner);
    run.subtract(below, logarithms)
}

/// The numbers without the mean of each `inner`, and the means.
fn centred<T: Real>(run: &mut Run<'_, T>, source: Var, inner: usize) -> (Var, Var) {
    let sums = run.tape.sum(source, inner);
    let means = run.scale(sums, 1.0 / inner as f64);
    let spread = run.repeat(means, inner);
    (run.subtract(source, spread), means)
}

/// The mean square of each `inner` numbers.
fn mean_square<T: Real>(run: &mut Run<'_, T>, source: Var, inner: usize) -> Var {
    let squares = run.tape.map(source, |x| (x * x, x + x));
    let sums = run.tape.sum(squares, inner);
    run.scale(sums, 1.0 / inner as f64)
}

/// Numbers divided by the root of a square and `epsilon`, of each `inner`.
fn divided_by_root<T: Real>(
    run: &mut Run<'_, T>,
    source: Var,
    squares: Var,
    epsilon: f64,
    inner: usize,
) -> (Var, Var) {
    let epsilon = T::from_f64(epsilon);
    let inverse = run.tape.map(squares, |x| {
        let y = T::ONE / (x + epsilon).root();
        (y, T::ZERO - y / (x + epsilon + x + epsilon))
    });
    let spread = run.repeat(inverse, inner);
    (run.multiply(source, spread), inverse)
}

/// Normalisation of the last dimensions (Ba et al. 2016), or by the root mean square alone.
fn layer_norm<T: Real>(
    run: &mut Run<'_, T>,
    node: &NodeCall<'_>,
) -> Result<Vec<Tensor>, RunFailure> {
    let first = run.first(node)?;
    let inner: u64 = node.call.sizes("normalized_shape")?.iter().product();
    let inner = inner as usize;
    let source = run.real(&first);
    let is_centred = node.base != "rms_norm";
    let default = if is_centred { 1e-5 } else { f64::from(f32::EPSILON) };
    let epsilon = number(node, "eps").unwrap_or(default);
    let (moved, means) = match is_centred {
        true => centred(run, source, inner),
        false => (source, source),
    };
    let squares = mean_square(run, moved, inner);
    let (mut result, inverse) = divided_by_root(run, moved, squares, epsilon, inner);
    if let Some(weight) = run.optional(node, "weight") {
        let weight = run.spread_real(&weight, &first.sizes);
        result = run.multiply(result, weight);
    }
    if let Some(bias) = run.optional(node, "bias") {
        let bias = run.spread_real(&bias, &first.sizes);
        result = run.add(result, bias);
    }
    let mut results = vec![Tensor::real(first.sizes.clone(), result)];
    if node.base == "native_layer_norm" {
        let dims = node.call.sizes("normalized_shape")?.len();
        let mut sizes = first.sizes;
        let outer = sizes.len() - dims;
        sizes[outer..].fill(1);
        results.push(Tensor::real(sizes.clone(), means));
        results.push(Tensor::real(sizes, inverse));
    }
    Ok(results)
}

/// A number for each channel, the second dimension, in all its places.
fn of_channel<T: Real>(run: &mut Run<'_, T>, tensor: &Tensor, sizes: &[usize]) -> Var {
    let index = indexed(sizes, |place| place.get(1).copied());
    let spread = run.rearranged(tensor, sizes.to_vec(), index);
    run.real(&spread)
}

fn by_channels<T: Real>(
    run: &mut Run<'_, T>,
    node: &NodeCall<'_>,
) -> Result<Vec<Tensor>, RunFailure> {
    let first = run.first(node)?;
    let epsilon = number(node, "eps").unwrap_or(1e-5);
    let source = run.real(&first);
    let statistics = [run.optional(node, "running_mean"), run.optional(node, "running_var")];
    let by_batch = match node.base {
        "batch_norm" => node.call.flag("training"),
        _ => node.call.flag("use_input_stats"),
    };
    let is_fixed = run.mode == RunMode::Evaluation || run.has_frozen_statistics;
    let mut result = match (statistics, node.base) {
        (_, "group_norm") => {
            let groups = usize::try_from(node.call.int_or("num_groups", 1)).unwrap_or(1).max(1);
            let inner = first.count() / (first.sizes[0] * groups).max(1);
            normalised(run, source, inner, epsilon)
        }
        ([Some(mean), Some(variance)], _) if is_fixed || !by_batch => {
            // A mean of updates can make a variance negative: it counts as zero then.
            let variance = run.real(&variance);
            let variance = run.tape.map(variance, |x| match x < T::ZERO {
                true => (T::ZERO, T::ZERO),
                false => (x, T::ONE),
            });
            let variance = Tensor::real(mean.sizes.clone(), variance);
            let (mean, variance) =
                (of_channel(run, &mean, &first.sizes), of_channel(run, &variance, &first.sizes));
            let moved = run.subtract(source, mean);
            divided_by_root(run, moved, variance, epsilon, 1).0
        }
        (_, "instance_norm") => {
            let inner = count(first.sizes.get(2..).unwrap_or(&[]));
            normalised(run, source, inner, epsilon)
        }
        (statistics, _) => by_batch_statistics(run, node, &first, statistics, epsilon)?,
    };
    if let Some(weight) = run.optional(node, "weight") {
        let weight = of_channel(run, &weight, &first.sizes);
        result = run.multiply(result, weight);
    }
    if let Some(bias) = run.optional(node, "bias") {
        let bias = of_channel(run, &bias, &first.sizes);
        result = run.add(result, bias);
    }
    Ok(vec![Tensor::real(first.sizes, result)])
}

fn normalised<T: Real>(run: &mut Run<'_, T>, source: Var, inner: usize, epsilon: f64) -> Var {
    let (moved, _) = centred(run, source, inner);
    let squares = mean_square(run, moved, inner);
    divided_by_root(run, moved, squares, epsilon, inner).0
}

/// Batch norm in training (Ioffe and Szegedy 2015): normalises by the rows, and moves the running
/// statistics towards theirs.
fn by_batch_statistics<T: Real>(
    run: &mut Run<'_, T>,
    node: &NodeCall<'_>,
    first: &Tensor,
    statistics: [Option<Tensor>; 2],
    epsilon: f64,
) -> Result<Var, RunFailure> {
    let rank = first.sizes.len();
    if rank < 2 {
        return Err(RunFailure::graph("batch norm without channels"));
    }
    // Channels first.
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(0, 1);
    let by_channel = permuted(run, first, &order);
    let inner = first.count() / first.sizes[1].max(1);
    let source = run.real(&by_channel);
    let (moved, means) = centred(run, source, inner);
    let squares = mean_square(run, moved, inner);
    let (result, _) = divided_by_root(run, moved, squares, epsilon, inner);
    let momentum = number(node, "momentum").unwrap_or(0.1);
    let unbiased = inner as f64 / (inner as f64 - 1.0);
    let found = [("running_mean", means, 1.0), ("running_var", squares, unbiased)];
    for ((name, own, factor), before) in found.into_iter().zip(statistics) {
        let (Some(id), Some(before)) = (Run::<T>::id(node, name), before) else { continue };
        let before = run.real(&before);
        let (own, before) = (run.tape.numbers(own), run.tape.numbers(before));
        let (own_share, left) = (T::from_f64(momentum * factor), T::from_f64(1.0 - momentum));
        let moved = own.iter().zip(before.iter()).map(|(&own, &old)| left * old + own_share * own);
        run.changed.push((id, moved.collect()));
    }
    let result = Tensor::real(by_channel.sizes, result);
    let result = permuted(run, &result, &order);
    Ok(run.real(&result))
}

/// Sums, means and extremes over some dimensions, or over all.
fn reduction<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Results {
    let known = matches!(
        node.base,
        "sum"
            | "mean"
            | "amax"
            | "amin"
            | "max"
            | "min"
            | "var"
            | "std"
            | "logsumexp"
            | "argmax"
            | "argmin"
            | "norm"
            | "linalg_vector_norm"
            | "all"
            | "any"
            | "diff"
    );
    if !known || node.name.ends_with(".other") {
        return Ok(None);
    }
    if node.base == "diff" {
        return difference(run, node);
    }
    let first = run.first(node)?;
    let rank = first.sizes.len();
    let dims = node.call.ints("dim").unwrap_or_default();
    let dims = dims.iter().map(|&dim| axis(dim, rank)).collect::<Result<Vec<_>, _>>()?;
    let is_gone = |at: &usize| dims.is_empty() || dims.contains(at);
    let (gone, left): (Vec<usize>, Vec<usize>) = (0..rank).partition(is_gone);
    let inner = gone.iter().map(|&at| first.sizes[at]).product::<usize>();
    let ordered = permuted(run, &first, &[left, gone].concat());
    if matches!(node.base, "all" | "any" | "argmax" | "argmin") || !node.is_real {
        return whole_reduction(run, node, &ordered, inner);
    }
    let source = run.real(&ordered);
    let result = match node.base {
        "sum" => run.tape.sum(source, inner),
        "mean" => {
            let sums = run.tape.sum(source, inner);
            run.scale(sums, 1.0 / inner as f64)
        }
        "var" => variance(run, node, source, inner),
        "std" => {
            let variance = variance(run, node, source, inner);
            root(run, variance)
        }
        "logsumexp" => {
            let most = largest(run, source, inner);
            let (_, _, sums) = exponentials(run, source, inner);
            let logarithms = run.tape.map(sums, |x| (x.ln(), T::ONE / x));
            run.add(most, logarithms)
        }
        "norm" | "linalg_vector_norm" => {
            let order = number(node, "p").or_else(|| number(node, "ord")).unwrap_or(2.0);
            if order != 2.0 {
                return Err(RunFailure::graph("this engine has Euclidean norms only"));
            }
            let squares = run.tape.map(source, |x| (x * x, x + x));
            let sums = run.tape.sum(squares, inner);
            root(run, sums)
        }
        _ => return extremes(run, node, source, inner).map(Some),
    };
    Ok(Some(vec![Tensor::real(node.sizes.clone(), result)]))
}

fn variance<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>, source: Var, inner: usize) -> Var {
    let (moved, _) = centred(run, source, inner);
    let squares = run.tape.map(moved, |x| (x * x, x + x));
    let sums = run.tape.sum(squares, inner);
    let correction = match node.call.argument("unbiased") {
        Some(_) => f64::from(u8::from(node.call.flag("unbiased"))),
        None => number(node, "correction").unwrap_or(1.0),
    };
    run.scale(sums, 1.0 / (inner as f64 - correction))
}

/// The root, whose derivative at 0 is 0, as for norms in PyTorch.
fn root<T: Real>(run: &mut Run<'_, T>, source: Var) -> Var {
    run.tape.map(source, |x| {
        let y = x.root();
        (y, if y == T::ZERO { T::ZERO } else { T::ONE / (y + y) })
    })
}

/// The largest or the least of each `inner` numbers, and for `max.dim` their places.
fn extremes<T: Real>(
    run: &mut Run<'_, T>,
    node: &NodeCall<'_>,
    source: Var,
    inner: usize,
) -> Result<Vec<Tensor>, RunFailure> {
    if inner == 0 {
        return Err(RunFailure::graph("an extreme of nothing"));
    }
    let is_most = matches!(node.base, "amax" | "max");
    let has_places = node.name.ends_with(".dim");
    let numbers = run.tape.numbers(source);
    let places: Vec<usize> =
        numbers.chunks_exact(inner).map(|part| extreme_place(part, is_most)).collect();
    // Equal numbers share the derivative, but if a place is asked for, it is that of the first.
    let mut at = places.iter();
    let result = run.tape.reduce(source, inner, |part, slopes| {
        let place = at.next().copied().unwrap_or(0);
        let value = part[place];
        let equal = part.iter().filter(|x| **x == value).count();
        if has_places || equal == 0 {
            slopes[place] = T::ONE;
        } else {
            let share = T::ONE / T::from_f64(equal as f64);
            for (slope, x) in slopes.iter_mut().zip(part) {
                *slope = if *x == value { share } else { T::ZERO };
            }
        }
        value
    });
    let mut results = vec![Tensor::real(node.sizes.clone(), result)];
    if has_places {
        let places = places.into_iter().map(|at| at as i64).collect();
        results.push(Tensor::whole(node.sizes.clone(), places));
    }
    Ok(results)
}

/// The place of the largest or the least number; a value that is not a number comes before all.
fn extreme_place<N: PartialOrd + Copy>(part: &[N], is_most: bool) -> usize {
    let mut found = 0;
    for (at, x) in part.iter().enumerate() {
        let is_nan = |x: &N| x.partial_cmp(x).is_none();
        let beyond = if is_most { *x > part[found] } else { *x < part[found] };
        if !is_nan(&part[found]) && (beyond || is_nan(x)) {
            found = at;
        }
    }
    found
}

fn whole_reduction<T: Real>(
    run: &mut Run<'_, T>,
    node: &NodeCall<'_>,
    ordered: &Tensor,
    inner: usize,
) -> Results {
    if matches!(node.base, "argmax" | "argmin") {
        let source = run.real(ordered);
        let numbers = run.tape.numbers(source);
        let place = |part: &[T]| extreme_place(part, node.base == "argmax") as i64;
        let places = numbers.chunks_exact(inner.max(1)).map(place).collect();
        return Ok(Some(vec![Tensor::whole(node.sizes.clone(), places)]));
    }
    let numbers = match &ordered.elements {
        Elements::Real(var) => {
            let numbers = run.tape.numbers(*var);
            numbers.iter().map(|x| i64::from(*x != T::ZERO)).collect()
        }
        Elements::Whole(numbers) => numbers.to_vec(),
    };
    let function = |part: &[i64]| match node.base {
        "all" => i64::from(part.iter().all(|&x| x != 0)),
        "any" => i64::from(part.iter().any(|&x| x != 0)),
        "max" | "amax" => part.iter().copied().max().unwrap_or(0),
        "min" | "amin" => part.iter().copied().min().unwrap_or(0),
        _ => part.iter().copied().fold(0, i64::wrapping_add),
    };
    if !matches!(node.base, "all" | "any" | "max" | "amax" | "min" | "amin" | "sum") {
        return Err(RunFailure::graph(format!("this engine has no {} of integers", node.name)));
    }
    if node.name.ends_with("max.dim") || node.name.ends_with("min.dim") {
        return Err(RunFailure::graph("this engine has no places of extremes of integers"));
    }
    let found = numbers.chunks_exact(inner.max(1)).map(function).collect();
    Ok(Some(vec![Tensor::whole(node.sizes.clone(), found)]))
}

/// The differences of neighbours.
fn difference<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Results {
    let first = run.first(node)?;
    let dim = node.call.dim("dim", -1, first.sizes.len())?;
    let is_plain = node.call.int_or("n", 1) == 1 && node.call.argument("append").is_none();
    if !is_plain {
        return Err(RunFailure::graph("this engine has differences of neighbours only"));
    }
    let last = with_last(run, &first, dim);
    let inner = first.sizes[dim];
    let before = run.optional(node, "prepend").map(|tensor| with_last(run, &tensor, dim));
    let added = before.as_ref().map_or(0, |tensor| *tensor.sizes.last().unwrap_or(&0));
    if !matches!(last.elements, Elements::Whole(_)) {
        return Err(RunFailure::graph("this engine has differences of integers only"));
    }
    let numbers = run.whole(&last);
    let before = before.map(|tensor| run.whole(&tensor));
    let mut found = Vec::with_capacity(count(&node.sizes));
    for (row, part) in numbers.chunks_exact(inner.max(1)).enumerate() {
        let mut line = Vec::with_capacity(inner + added);
        if let Some(before) = &before {
            line.extend_from_slice(&before[row * added..(row + 1) * added]);
        }
        line.extend_from_slice(part);
        found.extend(line.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])));
    }
    let mut sizes = last.sizes;
    if let Some(size) = sizes.last_mut() {
        *size = (inner + added).saturating_sub(1);
    }
    let result = Tensor::whole(sizes, found);
    Ok(Some(vec![last_to(run, &result, dim)]))
}
