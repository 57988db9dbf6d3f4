//! Convolutions, pooling, resizing and padding.

use super::call::Call;
use super::{
    Argument, DataType, GraphError, RuleResult, Shaped, TensorShape, mismatch, moved, one,
};

/// A list with one number for each spatial dimension; one number stands for all.
pub(crate) fn spread(
    call: &Call<'_>,
    name: &str,
    default: i64,
    rank: usize,
) -> Result<Vec<i64>, GraphError> {
    let given = call.ints(name).filter(|list| !list.is_empty()).unwrap_or_else(|| vec![default]);
    match given.as_slice() {
        [one] => Ok(vec![*one; rank]),
        all if all.len() == rank => Ok(given),
        _ => Err(mismatch(format!("{name} has {} numbers for {rank} dimensions", given.len()))),
    }
}

/// A window that moves over a dimension.
#[derive(Clone, Copy)]
struct Window {
    size: i64,
    stride: i64,
    padding: i64,
    dilation: i64,
    /// Whether a window that begins inside may end outside.
    ceil: bool,
}

impl Window {
    /// The number of its places in a dimension of this size.
    fn places(self, size: u64) -> Result<u64, GraphError> {
        let Self { size: window, stride, padding, dilation, ceil } = self;
        let refuse = || mismatch(format!("a window of {window} over {size}"));
        let size = i64::try_from(size).map_err(|_| refuse())?;
        if window < 1 || stride < 1 || dilation < 1 || padding < 0 {
            return Err(refuse());
        }
        let span = dilation.checked_mul(window - 1).and_then(|span| span.checked_add(1));
        let room = padding.checked_mul(2).and_then(|both| size.checked_add(both));
        let free = room.zip(span).and_then(|(room, span)| room.checked_sub(span));
        // With `ceil` a window may be larger than all that it moves over.
        let least = if ceil { 1 - stride } else { 0 };
        let free = free.filter(|&free| free >= least).ok_or_else(refuse)?;
        let mut places = free.div_euclid(stride) + 1;
        // The last window begins inside the tensor or its padding before it.
        if ceil && free % stride != 0 && places * stride < size + padding {
            places += 1;
        }
        u64::try_from(places).map_err(|_| refuse())
    }
}

/// The rank of the operator's images, from its name.
pub(crate) fn spatial_rank(name: &str) -> usize {
    match name {
        name if name.contains("1d") => 1,
        name if name.contains("3d") => 3,
        _ => 2,
    }
}

/// The outer dimensions and the spatial ones.
fn divided(first: &TensorShape, rank: usize) -> Result<(&[u64], &[u64]), GraphError> {
    match first.sizes.len().checked_sub(rank) {
        Some(outer @ 1..) => Ok(first.sizes.split_at(outer)),
        _ => {
            Err(mismatch(format!("an image of {rank} dimensions with the shape {:?}", first.sizes)))
        }
    }
}

pub(super) fn rule(name: &str, call: &Call<'_>) -> RuleResult {
    let rank = spatial_rank(name);
    let base = name.split('.').next().unwrap_or(name);
    match base {
        "conv1d" | "conv2d" | "conv3d" => convolution(call, rank),
        "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" => transposed(call, rank),
        "max_pool1d"
        | "max_pool2d"
        | "max_pool3d"
        | "avg_pool1d"
        | "avg_pool2d"
        | "avg_pool3d"
        | "max_pool2d_with_indices" => {
            let first = call.first()?;
            let (outer, inner) = divided(first, rank)?;
            let kernel = spread(call, "kernel_size", 1, rank)?;
            let strides = match call.ints("stride").is_none_or(|list| list.is_empty()) {
                true => kernel.clone(),
                false => spread(call, "stride", 1, rank)?,
            };
            let (padding, dilation) =
                (spread(call, "padding", 0, rank)?, spread(call, "dilation", 1, rank)?);
            let ceil = call.flag("ceil_mode");
            let places = inner.iter().enumerate().map(|(at, &size)| {
                let (size_of, stride) = (kernel[at], strides[at]);
                let (padding, dilation) = (padding[at], dilation[at]);
                Window { size: size_of, stride, padding, dilation, ceil }.places(size)
            });
            let shape = first.with([outer, &places.collect::<Result<Vec<_>, _>>()?].concat());
            let flops =
                shape.elements().saturating_mul(kernel.iter().product::<i64>().unsigned_abs());
            let mut results = vec![Shaped::Tensor(shape.clone())];
            if base.ends_with("indices") {
                results.push(Shaped::Tensor(shape.of_type(DataType::I64)));
            }
            Ok(Some((results, flops)))
        }
        _ => resize(base, call, rank),
    }
}

/// Pooling to a given size, and resizing.
fn resize(base: &str, call: &Call<'_>, rank: usize) -> RuleResult {
    match base {
        "adaptive_avg_pool1d"
        | "adaptive_avg_pool2d"
        | "adaptive_avg_pool3d"
        | "adaptive_max_pool1d"
        | "adaptive_max_pool2d" => {
            let first = call.first()?;
            let (outer, _) = divided(first, rank)?;
            let shape = first.with([outer, &call.sizes("output_size")?].concat());
            let mut results = vec![Shaped::Tensor(shape.clone())];
            if base.contains("max") {
                results.push(Shaped::Tensor(shape.of_type(DataType::I64)));
            }
            Ok(Some((results, first.elements())))
        }
        "upsample_nearest1d"
        | "upsample_nearest2d"
        | "upsample_bilinear2d"
        | "upsample_linear1d"
        | "upsample_bicubic2d"
        | "_upsample_bilinear2d_aa"
        | "_upsample_bicubic2d_aa" => {
            let first = call.first()?;
            let (outer, inner) = divided(first, rank)?;
            let sizes = match (call.argument("output_size"), call.argument("scale_factors")) {
                (Some(_), _) => call.sizes("output_size")?,
                (None, Some(Argument::Floats(factors))) if factors.len() == inner.len() => {
                    let scaled = inner.iter().zip(factors);
                    scaled
                        .map(|(&size, bits)| (size as f64 * f64::from_bits(*bits)) as u64)
                        .collect()
                }
                _ => return Err(mismatch("a resize without sizes")),
            };
            one(first.with([outer, &sizes].concat()))
        }
        "pixel_shuffle" | "pixel_unshuffle" => {
            let first = call.first()?;
            let (outer, inner) = divided(first, 3)?;
            let factor = call.int("upscale_factor").or_else(|| call.int("downscale_factor"));
            let factor = factor
                .and_then(|factor| u64::try_from(factor).ok())
                .filter(|f| (1..=1 << 16).contains(f));
            let factor = factor.ok_or_else(|| mismatch("a factor"))?;
            let (channels, height, width) = (inner[0], inner[1], inner[2]);
            let inner = match base {
                "pixel_shuffle" => [channels / (factor * factor), height * factor, width * factor],
                _ => [channels * factor * factor, height / factor, width / factor],
            };
            moved(first.with([outer, &inner].concat()))
        }
        _ => arrange(base, call),
    }
}

/// Padding, and windows as columns of a matrix.
fn arrange(base: &str, call: &Call<'_>) -> RuleResult {
    match base {
        "pad" | "constant_pad_nd" | "reflection_pad1d" | "reflection_pad2d"
        | "replication_pad1d" | "replication_pad2d" => {
            let first = call.first()?;
            let pads = call.ints("pad").or_else(|| call.ints("padding"));
            let pads = pads.ok_or_else(|| mismatch("no padding"))?;
            let mut sizes = first.sizes.clone();
            if pads.len() % 2 != 0 || pads.len() / 2 > sizes.len() {
                return Err(mismatch("padding of more dimensions than there are"));
            }
            for (size, pair) in sizes.iter_mut().rev().zip(pads.chunks_exact(2)) {
                let padded = i64::try_from(*size).ok().and_then(|size| size.checked_add(pair[0]));
                let padded = padded.and_then(|size| size.checked_add(pair[1]));
                *size = padded
                    .and_then(|size| u64::try_from(size).ok())
                    .ok_or_else(|| mismatch("padding that leaves less than nothing"))?;
            }
            moved(first.with(sizes))
        }
        "im2col" => {
            let first = call.first()?;
            let (outer, inner) = divided(first, 3)?;
            let kernel = spread(call, "kernel_size", 1, 2)?;
            let (dilation, padding) =
                (spread(call, "dilation", 1, 2)?, spread(call, "padding", 0, 2)?);
            let strides = spread(call, "stride", 1, 2)?;
            let mut places = 1_u64;
            for at in 0..2 {
                let window = Window {
                    size: kernel[at],
                    stride: strides[at],
                    padding: padding[at],
                    dilation: dilation[at],
                    ceil: false,
                };
                places = places.saturating_mul(window.places(inner[at + 1])?);
            }
            let rows = inner[0].saturating_mul(kernel.iter().product::<i64>().unsigned_abs());
            moved(first.with([outer, &[rows, places]].concat()))
        }
        "col2im" => {
            let first = call.first()?;
            let (outer, inner) = divided(first, 2)?;
            let kernel = spread(call, "kernel_size", 1, 2)?.iter().product::<i64>().unsigned_abs();
            let size = call.sizes("output_size")?;
            one(first.with([outer, &[inner[0] / kernel.max(1)], &size].concat()))
        }
        "grid_sampler" | "grid_sampler_2d" => {
            let (first, grid) = (call.first()?, call.tensor("grid")?);
            match (first.sizes.as_slice(), grid.sizes.as_slice()) {
                ([rows, channels, _, _], [_, height, width, 2]) => {
                    one(first.with([*rows, *channels, *height, *width]))
                }
                _ => Err(mismatch("a grid that does not fit the image")),
            }
        }
        _ => Ok(None),
    }
}

fn convolution(call: &Call<'_>, rank: usize) -> RuleResult {
    let (input, weight) = (call.tensor("input")?, call.tensor("weight")?);
    let (outer, inner) = divided(input, rank + 1)?;
    if weight.sizes.len() != rank + 2 {
        return Err(mismatch("a convolution whose weight has another rank"));
    }
    let groups = u64::try_from(call.int_or("groups", 1)).unwrap_or(1).max(1);
    if weight.sizes[1].checked_mul(groups) != Some(inner[0]) {
        return Err(mismatch(format!("a convolution of {:?} by {:?}", input.sizes, weight.sizes)));
    }
    let (strides, dilation) =
        (spread(call, "stride", 1, rank)?, spread(call, "dilation", 1, rank)?);
    let is_same = matches!(call.argument("padding"), Some(Argument::Text(text)) if text == "same");
    let padding = match call.argument("padding") {
        Some(Argument::Text(_)) => vec![0; rank],
        _ => spread(call, "padding", 0, rank)?,
    };
    let places = (0..rank).map(|at| {
        if is_same {
            return Ok(inner[at + 1]);
        }
        let size = i64::try_from(weight.sizes[at + 2]).map_err(|_| mismatch("a large window"))?;
        let (stride, padding, dilation) = (strides[at], padding[at], dilation[at]);
        Window { size, stride, padding, dilation, ceil: false }.places(inner[at + 1])
    });
    let places = places.collect::<Result<Vec<u64>, _>>()?;
    let shape = input.with([outer, &[weight.sizes[0]], &places].concat());
    let terms = weight.sizes[1..].iter().fold(1_u64, |product, &size| product.saturating_mul(size));
    let flops = shape.elements().saturating_mul(terms).saturating_mul(2);
    Ok(Some((vec![Shaped::Tensor(shape)], flops)))
}

fn transposed(call: &Call<'_>, rank: usize) -> RuleResult {
    let (input, weight) = (call.tensor("input")?, call.tensor("weight")?);
    let (outer, inner) = divided(input, rank + 1)?;
    if weight.sizes.len() != rank + 2 || weight.sizes[0] != inner[0] {
        return Err(mismatch("a transposed convolution whose weight does not fit"));
    }
    let groups = u64::try_from(call.int_or("groups", 1)).unwrap_or(1).max(1);
    let (strides, padding) = (spread(call, "stride", 1, rank)?, spread(call, "padding", 0, rank)?);
    let (extra, dilation) =
        (spread(call, "output_padding", 0, rank)?, spread(call, "dilation", 1, rank)?);
    let places = (0..rank).map(|at| {
        let (size, window) = (i64::try_from(inner[at + 1]), i64::try_from(weight.sizes[at + 2]));
        let (Ok(size), Ok(window)) = (size, window) else { return Err(mismatch("a large size")) };
        let steps =
            (size - 1).checked_mul(strides[at]).and_then(|n| n.checked_sub(2 * padding[at]));
        let span = dilation[at].checked_mul(window - 1);
        let places = steps.zip(span).and_then(|(steps, span)| steps.checked_add(span));
        let places = places.and_then(|places| places.checked_add(extra[at] + 1));
        places.and_then(|places| u64::try_from(places).ok()).ok_or_else(|| mismatch("no places"))
    });
    let places = places.collect::<Result<Vec<u64>, _>>()?;
    let shape = input.with([outer, &[weight.sizes[1].saturating_mul(groups)], &places].concat());
    let terms = weight.sizes[1..].iter().fold(1_u64, |product, &size| product.saturating_mul(size));
    let flops = input.elements().saturating_mul(terms).saturating_mul(2);
    Ok(Some((vec![Shaped::Tensor(shape)], flops)))
}
