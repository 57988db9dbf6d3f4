//! The layers of a model as applied to a tile of rows, and the packed layout of their parameters.

use std::ops::Range;

use super::aligned::Aligned;
use crate::model::ModelSpec;

/// Number of rows of a tile: two of the widest registers.
pub(super) const TILE_ROWS: usize = 32;
/// Largest number of outputs that are summed together: leaves enough registers for the factors.
pub(super) const BLOCK_MAX: usize = 12;

/// The kind of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LayerKind {
    /// Every output is a sum over all inputs. Except in the first layer, ReLU is applied to the
    /// inputs.
    Dense,
    /// 3×3 convolution with padding, 2×2 max pooling, and ReLU on the output.
    Convolution { channels: usize, height: usize, width: usize },
}

/// One layer. Its packed parameters are blocks of outputs: the weights `[tap][output of the
/// block]`, followed by the biases.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub(super) kind: LayerKind,
    /// Number of terms of each output's sum.
    pub(super) taps: usize,
    /// Number of outputs: units or filters.
    pub(super) outputs: usize,
    /// Number of lines of a tile in its output, one per unit, or per filter and pixel.
    pub(super) lines: usize,
    /// The range of its parameters in the model's order: weights `[output][tap]`, then biases.
    parameters_range: Range<usize>,
}

impl Layer {
    /// The outputs, in blocks of nearly equal size.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let outputs = self.outputs;
        let blocks = outputs.div_ceil(BLOCK_MAX);
        (0..blocks).map(move |at| outputs * at / blocks..outputs * (at + 1) / blocks)
    }

    /// Number of parameters.
    pub(super) fn parameters(&self) -> usize {
        self.parameters_range.len()
    }

    /// Copies this layer's parameters from the model's order to the packed layout.
    fn pack(&self, params: &[f32], convert: impl Fn(f32) -> f32, to: &mut [f32]) {
        let (weights, biases) =
            params[self.parameters_range.clone()].split_at(self.outputs * self.taps);
        let mut left = to;
        for block in self.blocks() {
            let size = block.len();
            let (block_weights, rest) = left.split_at_mut(size * self.taps);
            let (block_biases, rest) = rest.split_at_mut(size);
            for (at, output) in block.clone().enumerate() {
                let row = &weights[output * self.taps..(output + 1) * self.taps];
                for (tap, &weight) in row.iter().enumerate() {
                    block_weights[tap * size + at] = convert(weight);
                }
            }
            for (to, &bias) in block_biases.iter_mut().zip(&biases[block]) {
                *to = convert(bias);
            }
            left = rest;
        }
    }
}

/// The layers of a model. A dense first layer is summed over the members of a coalition once per
/// row and player; the parameters of the other layers are summed once per coalition.
#[derive(Debug, Clone)]
pub(super) struct LayerStack {
    pub(super) first: Option<Layer>,
    pub(super) deeper: Vec<Layer>,
    pub(super) inputs: usize,
}

impl LayerStack {
    /// The layers of `model`, which must have passed [`ModelSpec::check`].
    pub(super) fn new(model: &ModelSpec) -> Self {
        let mut layers = Vec::new();
        let ranges = model.ranges();
        let mut own = ranges.chunks_exact(2).map(|pair| pair[0].start..pair[1].end);
        if let ModelSpec::Cnn { channels, height, width, filters, .. } = *model {
            let sizes = [
                (channels, height, width, filters[0]),
                (filters[0], height / 2, width / 2, filters[1]),
            ];
            for ((channels, height, width, outputs), own) in sizes.into_iter().zip(own.by_ref()) {
                let kind = LayerKind::Convolution { channels, height, width };
                let (taps, lines) = (9 * channels, outputs * (height / 2) * (width / 2));
                layers.push(Layer { kind, taps, outputs, lines, parameters_range: own });
            }
        }
        for (size, own) in model.dense().into_iter().zip(own) {
            let (taps, outputs) = (size.inputs, size.outputs);
            layers.push(Layer {
                kind: LayerKind::Dense,
                taps,
                outputs,
                lines: outputs,
                parameters_range: own,
            });
        }
        let first = match layers[0].kind {
            LayerKind::Dense => Some(layers.remove(0)),
            // A convolution of few channels costs less than reading its sums from memory.
            LayerKind::Convolution { .. } => None,
        };
        Self { first, deeper: layers, inputs: model.inputs() }
    }

    /// Numbers per row that a walk sums: the output of the first layer.
    pub(super) fn summed_width(&self) -> usize {
        self.first.as_ref().map_or(0, |first| first.lines)
    }

    /// Numbers per row that are retained unchanged: the features, if no first layer consumes them.
    pub(super) fn retained_width(&self) -> usize {
        if self.first.is_some() { 0 } else { self.inputs }
    }

    /// Number of parameters of the deeper layers.
    pub(super) fn deeper_parameters(&self) -> usize {
        self.deeper.iter().map(Layer::parameters).sum()
    }

    /// The parameters of the first layer times `share`, packed.
    pub(super) fn pack_first(&self, params: &[f32], share: f64) -> Aligned {
        let mut packed = Aligned::zeros(self.first.as_ref().map_or(0, Layer::parameters));
        if let Some(first) = &self.first {
            first.pack(params, |value| scaled(value, share), &mut packed);
        }
        packed
    }

    /// The parameters of the deeper layers times `share`, packed, layer after layer.
    pub(super) fn pack_deeper(&self, params: &[f32], share: f64) -> Aligned {
        let mut packed = Aligned::zeros(self.deeper_parameters());
        let mut from = 0;
        for layer in &self.deeper {
            let to = &mut packed[from..from + layer.parameters()];
            layer.pack(params, |value| scaled(value, share), to);
            from += layer.parameters();
        }
        packed
    }
}

/// Rounded once, from the exact product.
fn scaled(value: f32, share: f64) -> f32 {
    (f64::from(value) * share) as f32
}
