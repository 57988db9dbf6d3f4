//! Convolutions, pooling, padding and resizing: windows of images as columns of a matrix.

use std::sync::Arc;

use super::RunFailure;
use super::run::{NodeCall, Results, Run};
use super::tape::{Blocks, NONE, Var};
use super::tensor::{Tensor, count, each_place, indexed, strides};
use crate::graph::Argument;
use crate::graph::shapes::{spatial_rank, spread};
use crate::reference::real::Real;

/// Windows over an image.
struct Windows {
    /// Sizes of the image.
    image: Vec<usize>,
    /// Number of windows in each dimension.
    places: Vec<usize>,
    kernel: Vec<usize>,
    stride: Vec<usize>,
    padding: Vec<usize>,
    dilation: Vec<usize>,
}

impl Windows {
    /// The element of the image at a place of a window; `None` in the padding.
    fn element(&self, window: &[usize], inside: &[usize]) -> Option<usize> {
        let mut element = 0;
        for (dim, &size) in self.image.iter().enumerate() {
            let at = window[dim] * self.stride[dim] + inside[dim] * self.dilation[dim];
            let at = at.checked_sub(self.padding[dim]).filter(|&at| at < size)?;
            element = element * size + at;
        }
        Some(element)
    }

    /// For each window, the elements of the image at its places; [`NONE`] in the padding.
    fn elements(&self) -> Vec<u32> {
        let mut all = Vec::with_capacity(count(&self.places) * count(&self.kernel));
        each_place(&self.places, |window| {
            all.extend(indexed(&self.kernel, |inside| self.element(window, inside)));
        });
        all
    }
}

pub(super) fn rule<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Results {
    match node.base {
        "conv1d" | "conv2d" | "conv3d" => convolution(run, node).map(Some),
        "conv_transpose1d" | "conv_transpose2d" => transposed(run, node).map(Some),
        "upsample_bilinear2d" => bilinear(run, node).map(Some),
        "max_pool1d" | "max_pool2d" | "avg_pool1d" | "avg_pool2d" => pool(run, node).map(Some),
        "adaptive_avg_pool1d" | "adaptive_avg_pool2d" => adaptive(run, node).map(Some),
        "pad" | "constant_pad_nd" => pad(run, node).map(Some),
        "upsample_nearest1d" | "upsample_nearest2d" => nearest(run, node).map(Some),
        _ => Ok(None),
    }
}

/// A list with one number that is not negative for each dimension of an image.
fn list(
    node: &NodeCall<'_>,
    name: &str,
    default: i64,
    rank: usize,
) -> Result<Vec<usize>, RunFailure> {
    let given = spread(&node.call, name, default, rank)?;
    let number = |&n: &i64| usize::try_from(n).ok();
    given
        .iter()
        .map(number)
        .collect::<Option<_>>()
        .ok_or_else(|| RunFailure::graph(format!("the argument {name} is negative")))
}

/// Convolution as a product of matrices.
fn convolution<T: Real>(
    run: &mut Run<'_, T>,
    node: &NodeCall<'_>,
) -> Result<Vec<Tensor>, RunFailure> {
    let rank = spatial_rank(node.name);
    let (input, weight) = (run.tensor(node, "input")?, run.tensor(node, "weight")?);
    let kernel = weight.sizes[2..].to_vec();
    let dilation = list(node, "dilation", 1, rank)?;
    let padding = match node.call.argument("padding") {
        Some(Argument::Text(text)) if text == "same" => {
            (0..rank).map(|dim| dilation[dim] * (kernel[dim] - 1) / 2).collect()
        }
        Some(Argument::Text(_)) => vec![0; rank],
        _ => list(node, "padding", 0, rank)?,
    };
    let windows = Windows {
        image: input.sizes[input.sizes.len() - rank..].to_vec(),
        places: node.sizes[node.sizes.len() - rank..].to_vec(),
        stride: list(node, "stride", 1, rank)?,
        kernel,
        padding,
        dilation,
    };
    multiply_windows(run, node, &input, &weight, (&windows.elements(), count(&windows.kernel)))
}

/// The derivative of a convolution by its input, as a convolution (Dumoulin and Visin 2016).
fn transposed<T: Real>(
    run: &mut Run<'_, T>,
    node: &NodeCall<'_>,
) -> Result<Vec<Tensor>, RunFailure> {
    let rank = spatial_rank(node.name);
    let (input, weight) = (run.tensor(node, "input")?, run.tensor(node, "weight")?);
    let image = &input.sizes[input.sizes.len() - rank..];
    let places = &node.sizes[node.sizes.len() - rank..];
    let kernel = weight.sizes[2..].to_vec();
    let (stride, dilation) = (list(node, "stride", 1, rank)?, list(node, "dilation", 1, rank)?);
    let padding = list(node, "padding", 0, rank)?;
    let own = strides(image);
    let mut elements = Vec::with_capacity(count(places) * count(&kernel));
    each_place(places, |place| {
        elements.extend(indexed(&kernel, |inside| {
            let at = |dim: usize| {
                let from = place[dim] + padding[dim];
                let from = from.checked_sub(inside[dim] * dilation[dim])?;
                let at = from / stride[dim];
                (from % stride[dim] == 0 && at < image[dim]).then_some(at * own[dim])
            };
            (0..rank).map(at).sum()
        }));
    });
    // The weight has the input's channels first: per group, outputs first.
    let groups = groups(node);
    let (inputs, outputs, size) = (weight.sizes[0] / groups, weight.sizes[1], count(&kernel));
    let parts = [groups, outputs, inputs, size];
    let steps = [inputs * outputs * size, size, outputs * size, 1];
    let index = super::tensor::strided(&parts, &steps, 0);
    let sizes = [&[groups * outputs, inputs], kernel.as_slice()].concat();
    let weight = run.rearranged(&weight, sizes, index);
    multiply_windows(run, node, &input, &weight, (&elements, size))
}

fn groups(node: &NodeCall<'_>) -> usize {
    usize::try_from(node.call.int_or("groups", 1)).unwrap_or(1).max(1)
}

/// The products of windows of images, whose elements are given, with weights of outputs × inputs.
fn multiply_windows<T: Real>(
    run: &mut Run<'_, T>,
    node: &NodeCall<'_>,
    input: &Tensor,
    weight: &Tensor,
    (elements, size): (&[u32], usize),
) -> Result<Vec<Tensor>, RunFailure> {
    let rank = spatial_rank(node.name);
    let inner = input.sizes.len() - rank;
    let (channels, plane) = (input.sizes[inner - 1], count(&input.sizes[inner..]));
    let images = input.count() / (channels * plane).max(1);
    let columns = elements.len() / size.max(1);
    let groups = groups(node);
    let mut index = Vec::with_capacity(images * channels * elements.len());
    for from in (0..images * channels).map(|channel| (channel * plane) as u32) {
        for inside in 0..size {
            let window = elements.iter().skip(inside).step_by(size);
            index.extend(window.map(|&at| if at == NONE { NONE } else { from + at }));
        }
    }
    let source = run.real(input);
    let right = run.tape.take(source, Arc::new(index));
    let left = run.real(weight);
    let blocks = Blocks {
        count: images * groups,
        left: groups,
        right: images * groups,
        rows: weight.sizes[0] / groups,
        columns,
        depth: channels / groups * size,
        is_transposed: false,
    };
    let mut result = run.tape.product(left, right, blocks);
    if let Some(bias) = run.optional(node, "bias") {
        let outputs = weight.sizes[0];
        let index = (0..count(&node.sizes)).map(|at| (at / columns % outputs) as u32);
        let bias = run.real(&bias);
        let bias = run.tape.take(bias, Arc::new(index.collect()));
        result = run.add(result, bias);
    }
    Ok(vec![Tensor::real(node.sizes.clone(), result)])
}

/// The elements of each window of each image, one window after another.
fn windows_of(input: &Tensor, elements: &[u32], plane: usize) -> Vec<u32> {
    let planes = input.count() / plane.max(1);
    let mut index = Vec::with_capacity(planes * elements.len());
    for from in (0..planes).map(|image| (image * plane) as u32) {
        index.extend(elements.iter().map(|&at| if at == NONE { NONE } else { from + at }));
    }
    index
}

fn pool<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Result<Vec<Tensor>, RunFailure> {
    let rank = spatial_rank(node.name);
    let input = run.first(node)?;
    let kernel = list(node, "kernel_size", 1, rank)?;
    let stride = match node.call.ints("stride").is_none_or(|list| list.is_empty()) {
        true => kernel.clone(),
        false => list(node, "stride", 1, rank)?,
    };
    let windows = Windows {
        image: input.sizes[input.sizes.len() - rank..].to_vec(),
        places: node.sizes[node.sizes.len() - rank..].to_vec(),
        stride,
        padding: list(node, "padding", 0, rank)?,
        dilation: list(node, "dilation", 1, rank)?,
        kernel,
    };
    let (elements, size) = (windows.elements(), count(&windows.kernel));
    let index = windows_of(&input, &elements, count(&windows.image));
    let source = run.real(&input);
    if node.base.starts_with("max") {
        // The first of the largest elements has the derivative.
        let numbers = run.tape.numbers(source);
        let places = index.chunks_exact(size).map(|window| largest_of(&numbers, window));
        let places = places.collect::<Option<Vec<u32>>>();
        let places = places.ok_or_else(|| RunFailure::graph("a window without elements"))?;
        let result = run.tape.take(source, Arc::new(places));
        return Ok(vec![Tensor::real(node.sizes.clone(), result)]);
    }
    let is_padding_counted =
        node.call.argument("count_include_pad").is_none() || node.call.flag("count_include_pad");
    if node.call.flag("ceil_mode") || node.call.argument("divisor_override").is_some() {
        return Err(RunFailure::graph("this engine has no mean of windows beyond the image"));
    }
    let divisors: Vec<usize> = match is_padding_counted {
        true => vec![size; index.len() / size.max(1)],
        false => index
            .chunks_exact(size)
            .map(|window| window.iter().filter(|at| **at != NONE).count())
            .collect(),
    };
    let result = mean_of(run, source, index, size, &divisors);
    Ok(vec![Tensor::real(node.sizes.clone(), result)])
}

fn largest_of<T: Real>(numbers: &[T], window: &[u32]) -> Option<u32> {
    let mut inside = window.iter().copied().filter(|at| *at != NONE);
    let mut found = inside.next()?;
    for at in inside {
        let (most, next) = (numbers[found as usize], numbers[at as usize]);
        if next > most || next.to_f64().is_nan() {
            found = at;
        }
    }
    Some(found)
}

/// The sums of windows, divided.
fn mean_of<T: Real>(
    run: &mut Run<'_, T>,
    source: Var,
    index: Vec<u32>,
    size: usize,
    divisors: &[usize],
) -> Var {
    let windows = run.tape.take(source, Arc::new(index));
    let sums = run.tape.sum(windows, size);
    let shares = divisors.iter().map(|&n| T::from_f64(1.0 / n.max(1) as f64)).collect();
    let shares = run.tape.leaf(shares, false);
    run.multiply(sums, shares)
}

/// Means of windows that divide an image into a given number of parts.
fn adaptive<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Result<Vec<Tensor>, RunFailure> {
    let rank = spatial_rank(node.name);
    let input = run.first(node)?;
    let image = &input.sizes[input.sizes.len() - rank..];
    let places = &node.sizes[node.sizes.len() - rank..];
    // The window `at` of `parts` over `size` elements.
    let range = |at: usize, dim: usize| {
        let (size, parts) = (image[dim], places[dim].max(1));
        at * size / parts..((at + 1) * size).div_ceil(parts)
    };
    let longest = |dim: usize| (0..places[dim]).map(|at| range(at, dim).len()).max().unwrap_or(0);
    let kernel: Vec<usize> = (0..rank).map(longest).collect();
    let own = strides(image);
    let (mut elements, mut divisors) = (Vec::new(), Vec::new());
    each_place(places, |window| {
        elements.extend(indexed(&kernel, |inside| {
            let at = |dim: usize| range(window[dim], dim).nth(inside[dim]).map(|at| at * own[dim]);
            (0..rank).map(at).sum()
        }));
        divisors.push((0..rank).map(|dim| range(window[dim], dim).len()).product::<usize>());
    });
    let index = windows_of(&input, &elements, count(image));
    let planes = input.count() / count(image).max(1);
    let source = run.real(&input);
    let result = mean_of(run, source, index, count(&kernel), &divisors.repeat(planes));
    Ok(vec![Tensor::real(node.sizes.clone(), result)])
}

/// Padding with one number.
fn pad<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Result<Vec<Tensor>, RunFailure> {
    let is_constant = match node.call.argument("mode") {
        Some(Argument::Text(mode)) => mode == "constant",
        _ => true,
    };
    if !is_constant || !node.is_real {
        return Err(RunFailure::graph("this engine pads real numbers with a constant only"));
    }
    let first = run.first(node)?;
    let pads = node.call.ints("pad").unwrap_or_default();
    let value = super::elements::number(node, "value").unwrap_or(0.0);
    let rank = first.sizes.len();
    let before = |dim: usize| pads.get(2 * (rank - 1 - dim)).copied().unwrap_or(0);
    let own = strides(&first.sizes);
    let index = indexed(&node.sizes, |place| {
        let at = |dim: usize| {
            let at = place[dim] as i64 - before(dim);
            usize::try_from(at).ok().filter(|&at| at < first.sizes[dim]).map(|at| at * own[dim])
        };
        (0..rank).map(at).sum()
    });
    let filled: Vec<i64> = index.iter().map(|&at| i64::from(at == NONE)).collect();
    let padded = run.rearranged(&first, node.sizes.clone(), index);
    let mut result = run.real(&padded);
    if value != 0.0 {
        let other = run.constant(filled.len(), value);
        result = super::elements::choose(run, &filled, other, result);
    }
    Ok(vec![Tensor::real(node.sizes.clone(), result)])
}

/// Resizing by the nearest element, for whole factors.
fn nearest<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Result<Vec<Tensor>, RunFailure> {
    let first = run.first(node)?;
    let fits = node.sizes.iter().zip(&first.sizes).all(|(to, from)| to.is_multiple_of(*from));
    if !fits {
        return Err(RunFailure::graph("this engine resizes by whole factors only"));
    }
    let own = strides(&first.sizes);
    let index = indexed(&node.sizes, |place| {
        let at = |dim: usize| place[dim] / (node.sizes[dim] / first.sizes[dim]) * own[dim];
        Some((0..place.len()).map(at).sum())
    });
    Ok(vec![run.rearranged(&first, node.sizes.clone(), index)])
}

/// Resizing by the four nearest elements.
fn bilinear<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Result<Vec<Tensor>, RunFailure> {
    let first = run.first(node)?;
    let [rows, columns] = [2, 1].map(|dim| {
        let at = first.sizes.len() - dim;
        let factor = match node.call.argument("scale_factors") {
            Some(Argument::Floats(all)) => all.get(2 - dim).map(|bits| f64::from_bits(*bits)),
            _ => None,
        };
        neighbours(first.sizes[at], node.sizes[at], node.call.flag("align_corners"), factor)
    });
    let width = first.sizes[first.sizes.len() - 1];
    let (mut elements, mut shares) = (Vec::new(), Vec::new());
    for row in &rows {
        for column in &columns {
            for (y, share_y) in row {
                for (x, share_x) in column {
                    elements.push((y * width + x) as u32);
                    shares.push(share_y * share_x);
                }
            }
        }
    }
    let plane = first.sizes[first.sizes.len() - 2] * width;
    let planes = first.count() / plane.max(1);
    let index = windows_of(&first, &elements, plane);
    let source = run.real(&first);
    let near = run.tape.take(source, Arc::new(index));
    let shares = shares.iter().map(|&share| T::from_f64(share)).collect::<Vec<T>>();
    let shares = run.tape.leaf(shares.repeat(planes), false);
    let weighted = run.multiply(near, shares);
    Ok(vec![Tensor::real(node.sizes.clone(), run.tape.sum(weighted, 4))])
}

/// The two nearest elements of each place of a resized dimension, with their shares.
fn neighbours(
    from: usize,
    to: usize,
    are_corners_aligned: bool,
    factor: Option<f64>,
) -> Vec<[(usize, f64); 2]> {
    let step = match are_corners_aligned {
        true if to > 1 => (from - 1) as f64 / (to - 1) as f64,
        true => 0.0,
        false => factor.map_or(from as f64 / to as f64, |factor| 1.0 / factor),
    };
    let of = |at: usize| {
        let place = match are_corners_aligned {
            true => at as f64 * step,
            false => ((at as f64 + 0.5) * step - 0.5).max(0.0),
        };
        let low = (place as usize).min(from - 1);
        let share = place - low as f64;
        [(low, 1.0 - share), ((low + 1).min(from - 1), share)]
    };
    (0..to).map(of).collect()
}
