//! Dense layers with ReLU: forward pass, backward pass, and directional derivatives.

use std::borrow::Cow;

use pulp::Arch;

use super::matrix::{OutputMode, ProductSize, Strided, product};
use super::real::Real;
use super::tiles::{TILE, rows_to_tiles, tiles_to_rows};
use crate::data::Dataset;
use crate::engine::predicts_label;
use crate::loss::{BoundedLoss, RowLoss};
use crate::model::Dense;

/// The ranges of the layers' parameters in the model's order: weights `[out, in]`, followed by the
/// biases.
pub(super) struct Layout {
    layers: Vec<LayerRange>,
}

#[derive(Clone, Copy)]
struct LayerRange {
    size: Dense,
    weight: usize,
    bias: usize,
    end: usize,
}

impl Layout {
    pub(super) fn new(dense: &[Dense]) -> Self {
        let mut from = 0;
        let place = |&size: &Dense| {
            let weight = from;
            let bias = weight + size.inputs * size.outputs;
            from = bias + size.outputs;
            LayerRange { size, weight, bias, end: from }
        };
        Self { layers: dense.iter().map(place).collect() }
    }

    fn classes(&self) -> usize {
        self.layers.last().map_or(1, |layer| layer.size.outputs)
    }
}

/// A batch of rows with its activations: the input of each layer, and the output of the network.
pub(super) struct ActivationBatch<T> {
    loss: RowLoss,
    rows: usize,
    labels: Vec<u32>,
    /// The input rows.
    loaded: Vec<T>,
    /// The input of each layer, after the previous layer's ReLU, in tiles of lines.
    lines: Vec<Vec<T>>,
    /// The output of the last layer, in tiles of lines.
    last: Vec<T>,
    logits: Vec<T>,
    /// The softmax probabilities, after `forward`.
    probabilities: Vec<T>,
    losses: Vec<f64>,
    /// The derivative of each row's loss with respect to its cross-entropy; empty for the
    /// cross-entropy itself.
    loss_slopes: Vec<T>,
}

impl<T: Real> ActivationBatch<T> {
    /// A batch with space for `rows` rows.
    pub(super) fn new(layout: &Layout, rows: usize, loss: RowLoss) -> Self {
        let room = |width: usize| Vec::with_capacity(rows.div_ceil(TILE) * TILE * width);
        let inputs = || layout.layers.iter().map(|layer| layer.size.inputs);
        let classes = layout.classes();
        Self {
            loss,
            rows: 0,
            labels: Vec::with_capacity(rows),
            loaded: inputs().take(1).flat_map(room).collect(),
            lines: inputs().map(room).collect(),
            last: room(classes),
            logits: room(classes),
            probabilities: room(classes),
            losses: Vec::with_capacity(rows),
            loss_slopes: Vec::with_capacity(rows),
        }
    }

    pub(super) fn load(
        &mut self,
        rows: impl Iterator<Item = usize>,
        data: &Dataset,
        convert: impl Fn(f32) -> T,
    ) {
        self.labels.clear();
        self.loaded.clear();
        for row in rows {
            self.labels.push(data.labels()[row]);
            self.loaded.extend(data.row(row).iter().map(|&value| convert(value)));
        }
        self.arrange(data.width());
    }

    /// As [`load`](Self::load), with the features that the rows have in a step of a training.
    pub(super) fn load_changed(
        &mut self,
        rows: &[usize],
        data: &Dataset,
        features: impl Iterator<Item = T>,
    ) {
        self.labels.clear();
        self.loaded.clear();
        self.labels.extend(rows.iter().map(|&row| data.labels()[row]));
        self.loaded.extend(features);
        self.arrange(data.width());
    }

    fn arrange(&mut self, width: usize) {
        self.rows = self.labels.len();
        if let Some(first) = self.lines.first_mut() {
            rows_to_tiles(&self.loaded, width, first);
        }
    }

    /// Runs the forward pass of the loaded rows, and computes their losses.
    pub(super) fn forward(&mut self, layout: &Layout, params: &[T]) {
        for (at, layer) in layout.layers.iter().enumerate() {
            let (before, after) = self.lines.split_at_mut(at + 1);
            let last = after.is_empty();
            let outputs = after.first_mut().unwrap_or(&mut self.last);
            dense(layer, params, &before[at], outputs);
            if !last {
                relu(outputs);
            }
        }
        tiles_to_rows(&self.last, layout.classes(), self.rows, &mut self.logits);
        self.softmax();
    }

    /// Computes probabilities and losses from the logits. Subtracts the largest logit first to
    /// prevent overflow; the logarithm is in `f64`.
    fn softmax(&mut self) {
        self.probabilities.clear();
        self.losses.clear();
        self.loss_slopes.clear();
        let classes = self.logits.len() / self.rows.max(1);
        let bounded = (self.loss == RowLoss::Bounded).then(|| BoundedLoss::new(classes));
        for (logits, &label) in self.logits.chunks_exact(classes).zip(&self.labels) {
            let mut largest = logits[0];
            for &logit in logits {
                if logit > largest {
                    largest = logit;
                }
            }
            let from = self.probabilities.len();
            let mut total = T::ZERO;
            for &logit in logits {
                let weight = (logit - largest).exp();
                total += weight;
                self.probabilities.push(weight);
            }
            self.probabilities[from..].iter_mut().for_each(|share| *share = *share / total);
            let below = largest - logits[label as usize];
            let cross_entropy = libm::log(total.to_f64()) + below.to_f64();
            match bounded.map(|bounded| bounded.of_cross_entropy(cross_entropy)) {
                None => self.losses.push(cross_entropy),
                Some((loss, slope)) => {
                    self.losses.push(loss);
                    self.loss_slopes.push(T::from_f64(slope));
                }
            }
        }
    }

    /// The loss of each row after the last `forward`.
    pub(super) fn losses(&self) -> Vec<f64> {
        self.losses.clone()
    }

    /// The logits of the rows after the last `forward`, row by row.
    pub(super) fn logits(&self) -> &[T] {
        &self.logits
    }

    /// Number of rows whose first largest logit is at their label.
    pub(super) fn correct_predictions(&self) -> usize {
        let classes = self.logits.len() / self.rows.max(1);
        let rows = self.logits.chunks_exact(classes).zip(&self.labels);
        rows.filter(|&(logits, &label)| predicts_label(logits, label)).count()
    }

    /// The derivative of the losses with respect to the logits: probabilities minus one at the
    /// label, times the loss's derivative with respect to the cross-entropy.
    fn logit_gradients(&self, scale: T) -> Vec<T> {
        let mut pulls = self.probabilities.clone();
        let classes = self.logits.len() / self.rows.max(1);
        for (pull, &label) in pulls.chunks_exact_mut(classes).zip(&self.labels) {
            pull[label as usize] -= T::ONE;
        }
        for (pull, &slope) in pulls.chunks_exact_mut(classes).zip(&self.loss_slopes) {
            pull.iter_mut().for_each(|pull| *pull *= slope);
        }
        pulls.iter_mut().for_each(|pull| *pull *= scale);
        pulls
    }

    /// Adds `scale` times the gradient of the summed losses to `gradient`.
    pub(super) fn backward(&self, layout: &Layout, params: &[T], scale: T, gradient: &mut [T]) {
        let mut pulls = self.logit_gradients(scale);
        for (at, layer) in layout.layers.iter().enumerate().rev() {
            let taken = self.layer_input(layer, at);
            let earlier = (at > 0).then(|| input_gradient(layer, params, &pulls, &taken));
            weight_gradient(layer, &pulls, &taken, OutputMode::Accumulate, gradient);
            let own = &mut gradient[layer.bias..layer.end];
            for row in pulls.chunks_exact(layer.size.outputs) {
                own.iter_mut().zip(row).for_each(|(sum, &pull)| *sum += pull);
            }
            pulls = earlier.unwrap_or_default();
        }
    }

    /// Moves the parameters by `rate` against `scale` times the gradient of the summed losses, with
    /// the same bits as with an explicit gradient.
    pub(super) fn descend(&self, layout: &Layout, params: &mut [T], scale: T, rate: T) {
        let mut pulls = self.logit_gradients(scale);
        for (at, layer) in layout.layers.iter().enumerate().rev() {
            let taken = self.layer_input(layer, at);
            let earlier = (at > 0).then(|| input_gradient(layer, params, &pulls, &taken));
            weight_gradient(layer, &pulls, &taken, OutputMode::Descent(rate), params);
            let mut slopes = vec![T::ZERO; layer.size.outputs];
            for row in pulls.chunks_exact(layer.size.outputs) {
                slopes.iter_mut().zip(row).for_each(|(sum, &pull)| *sum += pull);
            }
            let own = params[layer.bias..layer.end].iter_mut().zip(slopes);
            own.for_each(|(param, slope)| *param -= rate * slope);
            pulls = earlier.unwrap_or_default();
        }
    }

    /// The input of a layer, by rows.
    fn layer_input(&self, layer: &LayerRange, at: usize) -> Cow<'_, [T]> {
        if at == 0 {
            return Cow::Borrowed(&self.loaded);
        }
        let mut rows = Vec::new();
        tiles_to_rows(&self.lines[at], layer.size.inputs, self.rows, &mut rows);
        Cow::Owned(rows)
    }

    /// The derivative of each row's loss with respect to its logits, in tiles of lines.
    pub(super) fn logit_gradient_lines(&self, layout: &Layout) -> Vec<T> {
        let mut lines = Vec::new();
        rows_to_tiles(&self.logit_gradients(T::ONE), layout.classes(), &mut lines);
        lines
    }

    /// The derivative of each row's loss along a direction; `sensitivity` is that of this batch.
    pub(super) fn directional_derivatives(
        &self,
        layout: &Layout,
        params: &[T],
        sensitivity: &[T],
        along: &mut DirectionState<T>,
    ) -> Vec<f64> {
        let width = layout.layers.first().map_or(1, |layer| layer.size.outputs);
        let DirectionState { direction, first, moving, next } = along;
        let first = first.chunks_exact(TILE * width);
        let mut slopes = Vec::with_capacity(self.rows);
        let tiles = first.zip(sensitivity.chunks_exact(TILE * layout.classes()));
        for (tile, (first, pulls)) in tiles.enumerate() {
            for (at, layer) in layout.layers.iter().enumerate().skip(1) {
                let size = TILE * layer.size.inputs;
                let taken = &self.lines[at][tile * size..][..size];
                relu_forward_mask(if at == 1 { first } else { &*next }, taken, moving);
                dense(layer, direction, taken, next);
                multiply_lines(layer, params, moving, OutputMode::Accumulate, next);
            }
            let moved = if layout.layers.len() > 1 { &*next } else { first };
            let rows = TILE.min(self.rows - tile * TILE);
            slopes.extend(dots(pulls, moved)[..rows].iter().map(|slope| slope.to_f64()));
        }
        slopes
    }
}

/// The dot product of two tiles for each of their rows, line by line.
fn dots<T: Real>(these: &[T], those: &[T]) -> [T; TILE] {
    Arch::new().dispatch(|| {
        let mut sums = [T::ZERO; TILE];
        for (these, those) in these.as_chunks::<TILE>().0.iter().zip(those.as_chunks::<TILE>().0) {
            for ((sum, &this), &that) in sums.iter_mut().zip(these).zip(those) {
                *sum += this * that;
            }
        }
        sums
    })
}

/// A direction and its effect on the activations (forward-mode differentiation).
pub(super) struct DirectionState<T> {
    direction: Vec<T>,
    /// The derivative of the first layer's outputs before ReLU, in tiles of lines.
    first: Vec<T>,
    /// Buffers for the derivatives of later layers.
    moving: Vec<T>,
    next: Vec<T>,
}

impl<T: Real> DirectionState<T> {
    pub(super) fn new() -> Self {
        Self { direction: Vec::new(), first: Vec::new(), moving: Vec::new(), next: Vec::new() }
    }

    /// Sets another direction, and computes the derivative of the first layer's outputs. It depends
    /// on the rows and the direction but not on the parameters, so it is the same for every model.
    pub(super) fn set_direction(
        &mut self,
        layout: &Layout,
        direction: impl Iterator<Item = T>,
        rows: &ActivationBatch<T>,
    ) {
        self.direction.clear();
        self.direction.extend(direction);
        if let (Some(layer), Some(lines)) = (layout.layers.first(), rows.lines.first()) {
            dense(layer, &self.direction, lines, &mut self.first);
        }
    }
}

/// `outputs = weight · inputs + bias`, before ReLU; both in tiles of lines.
fn dense<T: Real>(layer: &LayerRange, params: &[T], inputs: &[T], outputs: &mut Vec<T>) {
    outputs.clear();
    outputs.resize(inputs.len() / layer.size.inputs * layer.size.outputs, T::ZERO);
    multiply_lines(
        layer,
        params,
        inputs,
        OutputMode::Bias(&params[layer.bias..layer.end]),
        outputs,
    );
}

/// Combines `weight · inputs` with the outputs; both in tiles of lines.
fn multiply_lines<T: Real>(
    layer: &LayerRange,
    params: &[T],
    inputs: &[T],
    onto: OutputMode<'_, T>,
    outputs: &mut [T],
) {
    let Dense { inputs: depth, outputs: rows } = layer.size;
    let size = ProductSize { rows, columns: TILE, depth };
    let weight = Strided::rows(&params[layer.weight..layer.bias], depth);
    let tiles = inputs.chunks_exact(TILE * depth).zip(outputs.chunks_exact_mut(TILE * rows));
    tiles.for_each(|(inputs, outputs)| product(size, weight, inputs, onto, outputs));
}

/// The gradient with respect to a layer's inputs, by rows, from the gradient with respect to its
/// outputs; zero where ReLU was inactive.
fn input_gradient<T: Real>(layer: &LayerRange, params: &[T], pulls: &[T], taken: &[T]) -> Vec<T> {
    let Dense { inputs, outputs } = layer.size;
    let mut earlier = vec![T::ZERO; taken.len()];
    let size = ProductSize { rows: taken.len() / inputs, columns: inputs, depth: outputs };
    let weight = &params[layer.weight..layer.bias];
    product(size, Strided::rows(pulls, outputs), weight, OutputMode::Accumulate, &mut earlier);
    relu_backward(&mut earlier, taken);
    earlier
}

/// The gradient with respect to a layer's weights, combined with `all`.
fn weight_gradient<T: Real>(
    layer: &LayerRange,
    pulls: &[T],
    taken: &[T],
    onto: OutputMode<'_, T>,
    all: &mut [T],
) {
    let Dense { inputs, outputs } = layer.size;
    let size = ProductSize { rows: outputs, columns: inputs, depth: taken.len() / inputs };
    let own = &mut all[layer.weight..layer.bias];
    product(size, Strided::transposed(pulls, outputs), taken, onto, own);
}

/// ReLU. Elementwise, as all loops here without sums.
fn relu<T: Real>(values: &mut [T]) {
    Arch::new().dispatch(|| {
        for value in values.iter_mut() {
            *value = if *value < T::ZERO { T::ZERO } else { *value };
        }
    });
}

/// The elements of `values` where ReLU was active, zero elsewhere.
fn relu_forward_mask<T: Real>(values: &[T], taken: &[T], through: &mut Vec<T>) {
    through.resize(values.len(), T::ZERO);
    Arch::new().dispatch(|| {
        for ((through, &value), &taken) in through.iter_mut().zip(values).zip(taken) {
            *through = if taken <= T::ZERO { T::ZERO } else { value };
        }
    });
}

/// Sets gradients to zero where ReLU was inactive.
fn relu_backward<T: Real>(values: &mut [T], taken: &[T]) {
    Arch::new().dispatch(|| {
        for (value, &taken) in values.iter_mut().zip(taken) {
            *value = if taken <= T::ZERO { T::ZERO } else { *value };
        }
    });
}
