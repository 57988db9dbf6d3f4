//! Dense layers with ReLU: forward, backward, and along a direction.

use super::matrix::{Real, Size, Strided, transpose};
use crate::data::Dataset;
use crate::engine::hits_label;
use crate::model::Dense;

/// Where each layer's numbers stand. The engine keeps weights as `[in, out]`, the transpose of
/// [`crate::model::TensorSpec`], because products then run along memory; the biases follow.
pub(super) struct Layout {
    layers: Vec<Place>,
}

#[derive(Clone, Copy)]
struct Place {
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
            Place { size, weight, bias, end: from }
        };
        Self { layers: dense.iter().map(place).collect() }
    }

    /// Parameters in the model's order, converted and brought into the engine's.
    pub(super) fn transposed<S: Copy, T: Copy>(
        &self,
        params: &[S],
        convert: impl Fn(S) -> T,
    ) -> Vec<T> {
        let mut own = Vec::with_capacity(params.len());
        for layer in &self.layers {
            let weight = transpose(&params[layer.weight..layer.bias], layer.size.inputs);
            own.extend(weight.into_iter().map(&convert));
            own.extend(params[layer.bias..layer.end].iter().map(|&value| convert(value)));
        }
        own
    }

    /// Parameters in the engine's order, brought back into the model's.
    pub(super) fn restored<T: Copy>(&self, own: &[T]) -> Vec<T> {
        let mut params = Vec::with_capacity(own.len());
        for layer in &self.layers {
            params.extend(transpose(&own[layer.weight..layer.bias], layer.size.outputs));
            params.extend_from_slice(&own[layer.bias..layer.end]);
        }
        params
    }
}

/// Rows on their way through the net: what went into each layer, and what came out at the end.
pub(super) struct Batch<T> {
    rows: usize,
    labels: Vec<u32>,
    /// What each layer takes, after the ReLU before it.
    inputs: Vec<Vec<T>>,
    logits: Vec<T>,
    /// What each logit is worth to the softmax: probabilities, once `forward` ran.
    shares: Vec<T>,
    losses: Vec<f64>,
}

impl<T: Real> Batch<T> {
    /// Room for `rows` rows.
    pub(super) fn new(layout: &Layout, rows: usize) -> Self {
        let room = |width: usize| Vec::with_capacity(rows * width);
        let classes = layout.layers.last().map_or(0, |layer| layer.size.outputs);
        Self {
            rows: 0,
            labels: Vec::with_capacity(rows),
            inputs: layout.layers.iter().map(|layer| room(layer.size.inputs)).collect(),
            logits: room(classes),
            shares: room(classes),
            losses: Vec::with_capacity(rows),
        }
    }

    pub(super) fn load(
        &mut self,
        rows: impl Iterator<Item = usize>,
        data: &Dataset,
        convert: impl Fn(f32) -> T,
    ) {
        self.labels.clear();
        self.inputs[0].clear();
        for row in rows {
            self.labels.push(data.labels()[row]);
            self.inputs[0].extend(data.row(row).iter().map(|&value| convert(value)));
        }
        self.rows = self.labels.len();
    }

    /// Runs the loaded rows through all layers and measures their losses.
    pub(super) fn forward(&mut self, layout: &Layout, params: &[T]) {
        let rows = self.rows;
        for (at, layer) in layout.layers.iter().enumerate() {
            let (before, after) = self.inputs.split_at_mut(at + 1);
            let last = after.is_empty();
            let outputs = after.first_mut().unwrap_or(&mut self.logits);
            dense(layer, params, rows, &before[at], outputs);
            if !last {
                outputs.iter_mut().for_each(|value| {
                    if *value < T::ZERO {
                        *value = T::ZERO;
                    }
                });
            }
        }
        self.soften();
    }

    /// Shares and losses out of the logits. The largest logit is subtracted first, so that nothing
    /// overflows; the logarithm is taken in `f64`.
    fn soften(&mut self) {
        self.shares.clear();
        self.losses.clear();
        let classes = self.logits.len() / self.rows.max(1);
        for (logits, &label) in self.logits.chunks_exact(classes).zip(&self.labels) {
            let mut largest = logits[0];
            for &logit in logits {
                if logit > largest {
                    largest = logit;
                }
            }
            let from = self.shares.len();
            let mut total = T::ZERO;
            for &logit in logits {
                let weight = (logit - largest).exp();
                total += weight;
                self.shares.push(weight);
            }
            self.shares[from..].iter_mut().for_each(|share| *share = *share / total);
            let below = largest - logits[label as usize];
            self.losses.push(total.to_f64().ln() + below.to_f64());
        }
    }

    /// The loss of each row of the last `forward`.
    pub(super) fn losses(&self) -> Vec<f64> {
        self.losses.clone()
    }

    /// How many rows have their first largest logit at their label.
    pub(super) fn correct(&self) -> usize {
        let classes = self.logits.len() / self.rows.max(1);
        let rows = self.logits.chunks_exact(classes).zip(&self.labels);
        rows.filter(|&(logits, &label)| hits_label(logits, label)).count()
    }

    /// How the losses change with the logits: shares, less one at the label.
    fn pulls(&self, scale: T) -> Vec<T> {
        let mut pulls = self.shares.clone();
        let classes = self.logits.len() / self.rows.max(1);
        let one = T::ZERO.exp();
        for (pull, &label) in pulls.chunks_exact_mut(classes).zip(&self.labels) {
            pull[label as usize] -= one;
        }
        pulls.iter_mut().for_each(|pull| *pull *= scale);
        pulls
    }

    /// Adds `scale` times the gradient of the summed losses onto `gradient`.
    pub(super) fn backward(&self, layout: &Layout, params: &[T], scale: T, gradient: &mut [T]) {
        let rows = self.rows;
        let mut pulls = self.pulls(scale);
        for (at, layer) in layout.layers.iter().enumerate().rev() {
            let Dense { inputs, outputs } = layer.size;
            let taken = &self.inputs[at];
            let own = &mut gradient[layer.weight..layer.bias];
            let size = Size { rows: inputs, columns: outputs, depth: rows };
            T::product(size, Strided::transposed(taken, inputs), &pulls, own);
            let own = &mut gradient[layer.bias..layer.end];
            for row in pulls.chunks_exact(outputs) {
                own.iter_mut().zip(row).for_each(|(sum, &pull)| *sum += pull);
            }
            if at == 0 {
                return;
            }
            let mut earlier = vec![T::ZERO; rows * inputs];
            let weight = transpose(&params[layer.weight..layer.bias], outputs);
            let size = Size { rows, columns: inputs, depth: outputs };
            T::product(size, Strided::rows(&pulls, outputs), &weight, &mut earlier);
            silence(&mut earlier, taken);
            pulls = earlier;
        }
    }

    /// What `direction` (parameters in the engine's order) does to the first layer's outputs, before any ReLU. It depends
    /// on the rows and on the direction, and on no parameter.
    pub(super) fn first_moved(&self, layout: &Layout, direction: &[T], moved: &mut Vec<T>) {
        moved.clear();
        if let (Some(layer), Some(inputs)) = (layout.layers.first(), self.inputs.first()) {
            dense(layer, direction, self.rows, inputs, moved);
        }
    }

    /// How fast each row's loss grows along `direction`, whose `first` is [`first_moved`](Self::first_moved).
    pub(super) fn slopes(
        &self,
        layout: &Layout,
        params: &[T],
        direction: &[T],
        first: &[T],
    ) -> Vec<f64> {
        let rows = self.rows;
        let mut moving: Vec<T> = Vec::new();
        for (at, layer) in layout.layers.iter().enumerate() {
            let Dense { inputs, outputs } = layer.size;
            let mut next = Vec::with_capacity(rows * outputs);
            if at == 0 {
                next.extend_from_slice(first);
            } else {
                dense(layer, direction, rows, &self.inputs[at], &mut next);
                let weight = &params[layer.weight..layer.bias];
                let size = Size { rows, columns: outputs, depth: inputs };
                T::product(size, Strided::rows(&moving, inputs), weight, &mut next);
            }
            if let Some(taken) = self.inputs.get(at + 1) {
                silence(&mut next, taken);
            }
            moving = next;
        }
        let classes = self.logits.len() / rows.max(1);
        let one = T::ZERO.exp();
        let pulls = self.pulls(one);
        let rows = pulls.chunks_exact(classes).zip(moving.chunks_exact(classes));
        rows.map(|(pulls, moving)| {
            let mut sum = T::ZERO;
            for (&pull, &speed) in pulls.iter().zip(moving) {
                sum += pull * speed;
            }
            sum.to_f64()
        })
        .collect()
    }
}

/// `outputs = inputs · weight + bias`, before any ReLU.
fn dense<T: Real>(layer: &Place, params: &[T], rows: usize, inputs: &[T], outputs: &mut Vec<T>) {
    let bias = &params[layer.bias..layer.end];
    outputs.clear();
    for _ in 0..rows {
        outputs.extend_from_slice(bias);
    }
    let size = Size { rows, columns: layer.size.outputs, depth: layer.size.inputs };
    let weight = &params[layer.weight..layer.bias];
    T::product(size, Strided::rows(inputs, layer.size.inputs), weight, outputs);
}

/// Where a ReLU let nothing through, nothing comes back.
fn silence<T: Real>(values: &mut [T], taken: &[T]) {
    for (value, &taken) in values.iter_mut().zip(taken) {
        if taken <= T::ZERO {
            *value = T::ZERO;
        }
    }
}
