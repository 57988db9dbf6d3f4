//! A model as views into one flat tensor of parameters.

use tch::{Kind, TchError, Tensor};

use crate::loss::{BoundedLoss, RowLoss};
use crate::model::ModelSpec;

/// The function that a gradient belongs to: `scale` times the summed losses of the rows.
#[derive(Clone, Copy)]
pub(super) struct Objective {
    loss: RowLoss,
    scale: f64,
}

impl Objective {
    /// The summed losses of an evaluation.
    pub(super) const EVALUATION: Self = Self { loss: RowLoss::Bounded, scale: 1.0 };

    /// The mean cross-entropy of a batch of `rows` rows.
    pub(super) fn training(rows: usize) -> Self {
        Self { loss: RowLoss::CrossEntropy, scale: 1.0 / rows as f64 }
    }
}

/// Weight and bias of one layer.
struct Layer {
    weight: Tensor,
    bias: Tensor,
}

/// The tensors of a model as views of a flat tensor. The views of a flat gradient are the buffers
/// of the tensors' gradients; the views of a flat direction are the tensors' directions.
pub(super) struct TensorNet {
    convolutions: Vec<Layer>,
    dense: Vec<Layer>,
    /// Channels, height and width of an image; `None` for plain rows.
    image: Option<[i64; 3]>,
}

/// The first dense layers of several models, concatenated.
pub(super) struct FirstLayers {
    layer: Layer,
    models: i64,
}

/// Intermediate results of a forward pass, for the backward pass and the directional derivative.
pub(super) struct ForwardPass {
    /// Input of each convolution.
    images: Vec<Tensor>,
    /// Output of its ReLU.
    relu_outputs: Vec<Tensor>,
    /// Indices of the maxima in its pooling.
    pooling_indices: Vec<Tensor>,
    /// Input of each dense layer.
    inputs: Vec<Tensor>,
    /// The logits, `[rows, classes]`.
    pub(super) logits: Tensor,
}

impl TensorNet {
    /// Splits `flat` into views of the tensors of `model`.
    pub(super) fn new(model: &ModelSpec, flat: &Tensor) -> Result<Self, TchError> {
        let mut tensors = Vec::new();
        for (tensor, range) in model.tensors().iter().zip(model.ranges()) {
            let shape: Vec<i64> = tensor.shape.iter().map(|&side| side as i64).collect();
            let own = flat.f_narrow(0, range.start as i64, range.len() as i64)?;
            tensors.push(own.f_view(shape.as_slice())?);
        }
        let mut layers = Vec::new();
        let mut tensors = tensors.into_iter();
        while let (Some(weight), Some(bias)) = (tensors.next(), tensors.next()) {
            layers.push(Layer { weight, bias });
        }
        let dense = layers.split_off(layers.len() - model.dense().len());
        let image = match *model {
            ModelSpec::Cnn { channels, height, width, .. } => {
                Some([channels, height, width].map(|side| side as i64))
            }
            ModelSpec::Softmax { .. } | ModelSpec::Mlp { .. } | ModelSpec::Graph(_) => None,
        };
        Ok(Self { convolutions: layers, dense, image })
    }

    /// The forward pass of rows through all layers.
    pub(super) fn forward(&self, features: &Tensor) -> Result<ForwardPass, TchError> {
        let (mut images, mut passed, mut chosen) = (Vec::new(), Vec::new(), Vec::new());
        let mut flowing = match self.image {
            Some([channels, height, width]) => features.f_view([-1, channels, height, width])?,
            None => features.shallow_clone(),
        };
        for layer in &self.convolutions {
            let through = convolve(&flowing, &layer.weight, Some(&layer.bias))?.f_relu()?;
            let (pooled, at) =
                through.f_max_pool2d_with_indices([2, 2], [2, 2], [0, 0], [1, 1], false)?;
            images.push(std::mem::replace(&mut flowing, pooled));
            passed.push(through);
            chosen.push(at);
        }
        if self.image.is_some() {
            flowing = flowing.f_flatten(1, -1)?;
        }
        let first = self.first_layer(&flowing)?;
        Ok(ForwardPass {
            images,
            relu_outputs: passed,
            pooling_indices: chosen,
            ..self.forward_from_first(&flowing, first)?
        })
    }

    /// The output of the first dense layer.
    fn first_layer(&self, taken: &Tensor) -> Result<Tensor, TchError> {
        match self.dense.first() {
            Some(layer) => layer.apply(taken),
            None => Err(no_layers_error()),
        }
    }

    /// Concatenates the first layers of several models, so that one product gives all of their
    /// outputs side by side. `None` for models with convolutions before that layer.
    pub(super) fn concatenate_first_layers(nets: &[Self]) -> Result<Option<FirstLayers>, TchError> {
        let layers: Vec<&Layer> = nets.iter().filter_map(|net| net.dense.first()).collect();
        if nets.iter().any(|net| net.image.is_some()) || layers.is_empty() {
            return Ok(None);
        }
        let weights: Vec<&Tensor> = layers.iter().map(|layer| &layer.weight).collect();
        let biases: Vec<&Tensor> = layers.iter().map(|layer| &layer.bias).collect();
        let (weight, bias) = (Tensor::f_cat(&weights, 0)?, Tensor::f_cat(&biases, 0)?);
        Ok(Some(FirstLayers { layer: Layer { weight, bias }, models: layers.len() as i64 }))
    }

    /// The forward pass through the remaining layers, from the input `took` and the output `first`
    /// of the first dense layer.
    pub(super) fn forward_from_first(
        &self,
        took: &Tensor,
        first: Tensor,
    ) -> Result<ForwardPass, TchError> {
        let mut inputs = vec![took.shallow_clone()];
        let mut flowing = first;
        for layer in self.dense.iter().skip(1) {
            let taken = flowing.f_relu()?;
            flowing = layer.apply(&taken)?;
            inputs.push(taken);
        }
        let (images, passed, chosen) = (Vec::new(), Vec::new(), Vec::new());
        Ok(ForwardPass {
            images,
            relu_outputs: passed,
            pooling_indices: chosen,
            inputs,
            logits: flowing,
        })
    }

    /// Writes the gradient of the objective to `slots`; returns the loss of each row.
    pub(super) fn gradient(
        &self,
        features: &Tensor,
        labels: &Tensor,
        objective: Objective,
        slots: &TensorNet,
    ) -> Result<Tensor, TchError> {
        if self.image.is_some() {
            return self.gradient_by_autograd(features, labels, objective, slots);
        }
        self.backward(&self.forward(features)?, labels, objective, slots)
    }

    /// The backward pass of dense layers, from the intermediate results of the forward pass.
    fn backward(
        &self,
        tape: &ForwardPass,
        labels: &Tensor,
        objective: Objective,
        slots: &TensorNet,
    ) -> Result<Tensor, TchError> {
        let (losses, pulls) = self.backward_to_first(tape, labels, objective, slots)?;
        if let (Some(slot), Some(taken)) = (slots.dense.first(), tape.inputs.first()) {
            let _ = pulls.f_tr()?.f_mm_out(&slot.weight, taken)?;
        }
        Ok(losses)
    }

    /// The same without the first layer's weight; returns the losses, and the gradient with respect
    /// to that layer's output, whose product with the layer's input is the weight's gradient.
    pub(super) fn backward_to_first(
        &self,
        tape: &ForwardPass,
        labels: &Tensor,
        objective: Objective,
        slots: &TensorNet,
    ) -> Result<(Tensor, Tensor), TchError> {
        let (losses, mut pulls) = losses_and_logit_gradients(&tape.logits, labels, objective)?;
        for (at, layer) in self.dense.iter().enumerate().rev() {
            let slot = &slots.dense[at];
            let _ = pulls.f_sum_intlist_out(&slot.bias, [0].as_slice(), false, None)?;
            if at > 0 {
                let _ = pulls.f_tr()?.f_mm_out(&slot.weight, &tape.inputs[at])?;
                let earlier = pulls.f_mm(&layer.weight)?;
                pulls = tape.inputs[at].f_threshold_backward(&earlier, 0.0)?;
            }
        }
        Ok((losses, pulls))
    }

    fn gradient_by_autograd(
        &self,
        features: &Tensor,
        labels: &Tensor,
        objective: Objective,
        slots: &TensorNet,
    ) -> Result<Tensor, TchError> {
        let watched = self.requires_grad()?;
        let losses = losses(&watched.forward(features)?.logits, labels, objective.loss)?;
        let total = losses.f_sum(None)?.f_mul_scalar(objective.scale)?;
        let gradients = Tensor::f_run_backward(&[total], &watched.tensors(), false, false)?;
        for (slot, gradient) in slots.tensors().into_iter().zip(gradients) {
            slot.shallow_clone().f_copy_(&gradient)?;
        }
        losses.f_detach()
    }

    /// The same tensors, in the same memory, with gradients tracked by autograd.
    pub(super) fn requires_grad(&self) -> Result<Self, TchError> {
        let watch = |tensor: &Tensor| tensor.f_detach()?.f_set_requires_grad(true);
        let layers = |layers: &[Layer]| {
            let pair = |layer: &Layer| {
                Ok(Layer { weight: watch(&layer.weight)?, bias: watch(&layer.bias)? })
            };
            layers.iter().map(pair).collect::<Result<Vec<Layer>, TchError>>()
        };
        let (convolutions, dense) = (layers(&self.convolutions)?, layers(&self.dense)?);
        Ok(Self { convolutions, dense, image: self.image })
    }

    /// All tensors in the model's order.
    pub(super) fn tensors(&self) -> Vec<&Tensor> {
        let layers = self.convolutions.iter().chain(&self.dense);
        layers.flat_map(|layer| [&layer.weight, &layer.bias]).collect()
    }

    /// The directional derivative of the logits along `direction` (forward mode).
    pub(super) fn directional_derivative(
        &self,
        direction: &TensorNet,
        tape: &ForwardPass,
    ) -> Result<Tensor, TchError> {
        let mut moving: Option<Tensor> = None;
        for (at, (layer, step)) in self.convolutions.iter().zip(&direction.convolutions).enumerate()
        {
            let mut speed = convolve(&tape.images[at], &step.weight, Some(&step.bias))?;
            if let Some(moving) = moving {
                speed = speed.f_add(&convolve(&moving, &layer.weight, None)?)?;
            }
            let through = tape.relu_outputs[at].f_threshold_backward(&speed, 0.0)?;
            let chosen = &tape.pooling_indices[at];
            let pooled = through.f_flatten(2, 3)?.f_gather(2, &chosen.f_flatten(2, 3)?, false)?;
            moving = Some(pooled.f_view_as(chosen)?);
        }
        let mut moving = moving.map(|moving| moving.f_flatten(1, -1)).transpose()?;
        for (at, (layer, step)) in self.dense.iter().zip(&direction.dense).enumerate() {
            let taken = &tape.inputs[at];
            let mut speed = step.bias.f_addmm(taken, &step.weight.f_tr()?)?;
            if let Some(moving) = moving {
                speed = speed.f_addmm(&moving, &layer.weight.f_tr()?)?;
            }
            moving = Some(match tape.inputs.get(at + 1) {
                Some(next) => next.f_threshold_backward(&speed, 0.0)?,
                None => speed,
            });
        }
        moving.ok_or_else(no_layers_error)
    }
}

impl FirstLayers {
    /// The outputs of each model's layer.
    pub(super) fn apply(&self, features: &Tensor) -> Result<Vec<Tensor>, TchError> {
        self.layer.apply(features)?.f_chunk(self.models, 1)
    }
}

impl Layer {
    fn apply(&self, taken: &Tensor) -> Result<Tensor, TchError> {
        self.bias.f_addmm(taken, &self.weight.f_tr()?)
    }
}

fn no_layers_error() -> TchError {
    TchError::Shape("the model has no layers".to_owned())
}

/// A 3×3 convolution with padding.
fn convolve(image: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, TchError> {
    image.f_conv2d(weight, bias, [1, 1], [1, 1], [1, 1], 1)
}

/// The loss of each row. `labels` is a column.
pub(super) fn losses(logits: &Tensor, labels: &Tensor, loss: RowLoss) -> Result<Tensor, TchError> {
    let logarithms = logits.f_log_softmax(1, None)?.f_gather(1, labels, false)?.f_view([-1])?;
    match loss {
        RowLoss::CrossEntropy => logarithms.f_neg(),
        RowLoss::Bounded => Ok(bound(&logarithms, logits.size2()?.1)?.losses),
    }
}

/// The bounded losses of rows, and their derivatives with respect to the cross-entropy.
pub(super) struct BoundedRows {
    pub(super) losses: Tensor,
    slopes: Tensor,
}

/// The bounded loss of rows from the logarithms of their label's probability.
pub(super) fn bound(logarithms: &Tensor, classes: i64) -> Result<BoundedRows, TchError> {
    let floor = BoundedLoss::new(classes as usize).floor();
    let shares = logarithms.f_exp()?.f_mul_scalar(1.0 - floor)?;
    let bounded = shares.f_add_scalar(floor)?;
    Ok(BoundedRows { losses: bounded.f_log()?.f_neg()?, slopes: shares.f_div(&bounded)? })
}

/// The derivative of an evaluation's losses with respect to the logits.
pub(super) fn logit_gradients(logits: &Tensor, labels: &Tensor) -> Result<Tensor, TchError> {
    Ok(losses_and_logit_gradients(logits, labels, Objective::EVALUATION)?.1)
}

/// The loss of each row, and the derivative of the objective with respect to the logits:
/// probabilities minus one at the label, times the loss's derivative with respect to the
/// cross-entropy.
fn losses_and_logit_gradients(
    logits: &Tensor,
    labels: &Tensor,
    objective: Objective,
) -> Result<(Tensor, Tensor), TchError> {
    let logarithms = logits.f_log_softmax(1, None::<Kind>)?;
    let own = logarithms.f_gather(1, labels, false)?;
    let mut pulls = logarithms.f_exp()?;
    let _ = pulls.f_scatter_add_(1, labels, &own.f_full_like(-1.0)?)?;
    let losses = match objective.loss {
        RowLoss::CrossEntropy => own.f_neg()?,
        RowLoss::Bounded => {
            let rows = bound(&own, logits.size2()?.1)?;
            let _ = pulls.f_mul_(&rows.slopes)?;
            rows.losses
        }
    };
    if objective.scale != 1.0 {
        let _ = pulls.f_mul_scalar_(objective.scale)?;
    }
    Ok((losses.f_view([-1])?, pulls))
}
