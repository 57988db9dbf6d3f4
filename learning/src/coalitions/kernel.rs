//! Micro-kernels of the layers on a tile of rows.
//!
//! A tile consists of lines of [`TILE_ROWS`] numbers; a line is one feature or unit for all rows of
//! the tile. A lane of a register is a row, so no sum runs across lanes: each is bias, first tap,
//! second tap, …, with separately rounded products and additions. The register width then affects
//! the speed and no bit.

use pulp::{Simd, WithSimd};

use super::layout::{Layer, LayerKind, TILE_ROWS};

/// Applies a layer with packed parameters to one tile. With `RECTIFIES`, a dense layer applies ReLU
/// to its inputs.
#[inline(always)]
pub(super) fn apply<S: Simd, const RECTIFIES: bool>(
    simd: S,
    layer: &Layer,
    parameters: &[f32],
    from: &[f32],
    to: &mut [f32],
) {
    let lines_each = layer.lines / layer.outputs;
    let mut parameters = parameters;
    for outputs in layer.blocks() {
        let size = outputs.len();
        let (own, rest) = parameters.split_at(size * (layer.taps + 1));
        let (weights, biases) = own.split_at(size * layer.taps);
        let range = outputs.start * lines_each * TILE_ROWS..outputs.end * lines_each * TILE_ROWS;
        let block = OutputBlock { kind: layer.kind, weights, biases, from, to: &mut to[range] };
        match size {
            1 => block.run::<S, 1, RECTIFIES>(simd),
            2 => block.run::<S, 2, RECTIFIES>(simd),
            3 => block.run::<S, 3, RECTIFIES>(simd),
            4 => block.run::<S, 4, RECTIFIES>(simd),
            5 => block.run::<S, 5, RECTIFIES>(simd),
            6 => block.run::<S, 6, RECTIFIES>(simd),
            7 => block.run::<S, 7, RECTIFIES>(simd),
            8 => block.run::<S, 8, RECTIFIES>(simd),
            9 => block.run::<S, 9, RECTIFIES>(simd),
            10 => block.run::<S, 10, RECTIFIES>(simd),
            11 => block.run::<S, 11, RECTIFIES>(simd),
            // A block has at most `BLOCK_MAX` outputs.
            _ => block.run::<S, 12, RECTIFIES>(simd),
        }
        parameters = rest;
    }
}

/// A block of outputs of a layer on a tile.
struct OutputBlock<'a> {
    kind: LayerKind,
    weights: &'a [f32],
    biases: &'a [f32],
    from: &'a [f32],
    to: &'a mut [f32],
}

impl OutputBlock<'_> {
    /// `K` outputs; one or two registers per line, depending on the machine's number of registers.
    #[inline(always)]
    fn run<S: Simd, const K: usize, const RECTIFIES: bool>(self, simd: S) {
        let two_registers = S::REGISTER_COUNT >= 32 && S::F32_LANES * 2 <= TILE_ROWS;
        match (self.kind, two_registers) {
            (LayerKind::Dense, true) => simd.vectorize(DenseBlock::<K, 2, RECTIFIES>(self)),
            (LayerKind::Dense, false) => simd.vectorize(DenseBlock::<K, 1, RECTIFIES>(self)),
            (LayerKind::Convolution { channels, height, width }, true) => {
                let image = Image { channels, height, width };
                simd.vectorize(ConvolutionBlock::<K, 2>(self, image));
            }
            (LayerKind::Convolution { channels, height, width }, false) => {
                let image = Image { channels, height, width };
                simd.vectorize(ConvolutionBlock::<K, 1>(self, image));
            }
        }
    }
}

/// A dense block of `K` outputs with `V` registers of each at a time.
struct DenseBlock<'a, const K: usize, const V: usize, const RECTIFIES: bool>(OutputBlock<'a>);

impl<const K: usize, const V: usize, const RECTIFIES: bool> WithSimd
    for DenseBlock<'_, K, V, RECTIFIES>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        dense::<S, K, V, RECTIFIES>(simd, &mut self.0);
    }
}

/// A convolution of `K` outputs with `V` registers of each at a time. Its inputs are not rectified:
/// a convolution rectifies its outputs.
struct ConvolutionBlock<'a, const K: usize, const V: usize>(OutputBlock<'a>, Image);

impl<const K: usize, const V: usize> WithSimd for ConvolutionBlock<'_, K, V> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        convolution::<S, K, V>(simd, &mut self.0, self.1);
    }
}

#[inline(always)]
fn dense<S: Simd, const K: usize, const V: usize, const RECTIFIES: bool>(
    simd: S,
    block: &mut OutputBlock<'_>,
) {
    let line = TILE_ROWS / S::F32_LANES;
    let (from, to) = (S::as_simd_f32s(block.from).0, S::as_mut_simd_f32s(block.to).0);
    for at in (0..line).step_by(V) {
        let mut sums = biases::<S, K, V>(simd, block.biases);
        add::<S, K, V, RECTIFIES>(simd, &mut sums, &from[at..], line, block.weights);
        for (sums, to) in sums.iter().zip(to.chunks_exact_mut(line)) {
            to[at..at + V].copy_from_slice(sums);
        }
    }
}

#[derive(Clone, Copy)]
struct Image {
    channels: usize,
    height: usize,
    width: usize,
}

#[inline(always)]
fn convolution<S: Simd, const K: usize, const V: usize>(
    simd: S,
    block: &mut OutputBlock<'_>,
    image: Image,
) {
    let line = TILE_ROWS / S::F32_LANES;
    let (from, to) = (S::as_simd_f32s(block.from).0, S::as_mut_simd_f32s(block.to).0);
    let zero = simd.splat_f32s(0.0);
    let pixels = (image.height / 2) * (image.width / 2);
    for pixel in 0..pixels {
        let (top, left) = (2 * (pixel / (image.width / 2)), 2 * (pixel % (image.width / 2)));
        for at in (0..line).step_by(V) {
            let mut best = [[zero; V]; K];
            for (y, x) in [(top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)] {
                let mut sums = biases::<S, K, V>(simd, block.biases);
                for (taps, lines) in runs(image, y, x) {
                    let weights = &block.weights[taps.start * K..taps.end * K];
                    let from = &from[lines.start * line + at..lines.end * line];
                    add::<S, K, V, false>(simd, &mut sums, from, line, weights);
                }
                for (best, sums) in best.iter_mut().zip(&sums) {
                    for (best, &sum) in best.iter_mut().zip(sums) {
                        *best = nan_max(simd, *best, sum);
                    }
                }
            }
            for (best, to) in best.iter().zip(to.chunks_exact_mut(line * pixels)) {
                to[pixel * line + at..pixel * line + at + V].copy_from_slice(best);
            }
        }
    }
}

/// The taps of a 3×3 convolution at a pixel that lie inside the image, with the tile's lines that
/// they read: one run per line of each channel.
#[inline(always)]
fn runs(
    image: Image,
    y: usize,
    x: usize,
) -> impl Iterator<Item = (std::ops::Range<usize>, std::ops::Range<usize>)> {
    let Image { channels, height, width } = image;
    let (above, below) = (y.saturating_sub(1), (y + 2).min(height));
    let (left, right) = (x.saturating_sub(1), (x + 2).min(width));
    (0..channels).flat_map(move |channel| {
        (above..below).map(move |line| {
            let tap = 9 * channel + 3 * (line + 1 - y) + (left + 1 - x);
            let pixel = (channel * height + line) * width;
            (tap..tap + right - left, pixel + left..pixel + right)
        })
    })
}

#[inline(always)]
fn biases<S: Simd, const K: usize, const V: usize>(simd: S, biases: &[f32]) -> [[S::f32s; V]; K] {
    let mut sums = [[simd.splat_f32s(0.0); V]; K];
    for (sums, &bias) in sums.iter_mut().zip(biases) {
        *sums = [simd.splat_f32s(bias); V];
    }
    sums
}

/// Adds the products of lines and weights; `line` is the stride between lines, in registers.
#[inline(always)]
fn add<S: Simd, const K: usize, const V: usize, const RECTIFIES: bool>(
    simd: S,
    sums: &mut [[S::f32s; V]; K],
    from: &[S::f32s],
    line: usize,
    weights: &[f32],
) {
    let zero = simd.splat_f32s(0.0);
    for (taken, weights) in from.chunks(line).zip(weights.chunks_exact(K)) {
        let mut values = [zero; V];
        for (value, &taken) in values.iter_mut().zip(&taken[..V]) {
            // NaN stays NaN.
            let below = simd.less_than_f32s(taken, zero);
            *value = if RECTIFIES { simd.select_f32s(below, zero, taken) } else { taken };
        }
        for (sums, &weight) in sums.iter_mut().zip(weights) {
            let weight = simd.splat_f32s(weight);
            for (sum, &value) in sums.iter_mut().zip(&values) {
                *sum = simd.add_f32s(*sum, simd.mul_f32s(value, weight));
            }
        }
    }
}

/// The larger of two numbers; NaN wins.
#[inline(always)]
fn nan_max<S: Simd>(simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
    let larger = simd.select_f32s(simd.less_than_f32s(a, b), b, a);
    simd.select_f32s(simd.equal_f32s(b, b), larger, b)
}

/// `to = a + b`, elementwise.
#[inline(always)]
pub(super) fn sum(a: &[f32], b: &[f32], to: &mut [f32]) {
    for ((to, &a), &b) in to.iter_mut().zip(a).zip(b) {
        *to = a + b;
    }
}

/// `to = to + a`, elementwise.
#[inline(always)]
pub(super) fn add_onto(a: &[f32], to: &mut [f32]) {
    for (to, &a) in to.iter_mut().zip(a) {
        *to += a;
    }
}
