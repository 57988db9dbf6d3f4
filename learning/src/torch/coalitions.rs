//! Coalitions of updates in large batches: one operation evaluates a layer of many models.
//!
//! This is for GPUs. On a CPU [`crate::Coalitions`] is faster and gives the same bits on every
//! machine, unlike [`Torch::coalition_losses`].

use std::ops::{ControlFlow, Range};

use tch::{Device, Kind, TchError, Tensor};

use super::net::{TensorNet, bound, losses};
use super::{Torch, to_vec};
use crate::coalitions::{CoalitionError, CoalitionMasks, Updates};
use crate::data::{Dataset, RowChunks};
use crate::engine::{BackendError, InputError};
use crate::loss::RowLoss;
use crate::model::{Dense, ModelSpec};

/// Number of rows per forward pass.
const ROWS_AT_A_TIME: usize = 1_024;
/// Largest number of elements of the widest layer of a batch of coalitions: 1 GiB as `f32`.
const NUMBERS_AT_A_TIME: usize = 1 << 28;

impl From<TchError> for CoalitionError {
    fn from(error: TchError) -> Self {
        Self::Backend(BackendError::from(error))
    }
}

impl Torch {
    /// The mean loss of each coalition, in nats, within
    /// [`COALITION_TOLERANCE_NANO`](crate::coalitions::COALITION_TOLERANCE_NANO) of the one in
    /// `f64`. Layers run in `f32`; convolutions on a GPU run in `f64`, since libtorch would round
    /// their inputs to ten bits. Losses are summed in `f64`, on the host in the order of the rows.
    ///
    /// # Errors
    /// As [`crate::Coalitions`], and [`CoalitionError::Backend`].
    pub fn coalition_losses(
        &mut self,
        updates: Updates<'_>,
        masks: &CoalitionMasks,
        rows: &mut dyn RowChunks,
    ) -> Result<Vec<f64>, CoalitionError> {
        updates.check(rows.width(), rows.classes())?;
        let (expected, got) = (updates.deltas.len(), masks.players());
        if expected != got {
            return Err(CoalitionError::Players { expected, got });
        }
        let (expected, mut got) = (rows.rows(), 0);
        if expected == 0 {
            return Err(InputError::NoRows.into());
        }
        self.set_threads();
        let stack = ModelStack::new(self, updates, masks)?;
        let mut sums = vec![0.0; masks.len()];
        let mut outcome = Ok(());
        rows.each_chunk(&mut |data| {
            got += data.rows();
            for start in (0..data.rows()).step_by(ROWS_AT_A_TIME) {
                let own = start..data.rows().min(start + ROWS_AT_A_TIME);
                outcome = stack.add(self, data, own, &mut sums);
                if outcome.is_err() {
                    return ControlFlow::Break(());
                }
            }
            if got > expected { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        outcome?;
        if got != expected {
            return Err(CoalitionError::RowCount { expected, got });
        }
        if let Some(at) = sums.iter().position(|sum| !sum.is_finite()) {
            return Err(CoalitionError::NotFinite { at });
        }
        Ok(sums.into_iter().map(|sum| sum / expected as f64).collect())
    }

    /// The mean loss of one coalition after another, in the straightforward way: parameters,
    /// logits, mean loss, all in `f32`. It is the baseline of the timings.
    ///
    /// # Errors
    /// As [`coalition_losses`](Self::coalition_losses).
    pub fn coalition_losses_one_by_one(
        &mut self,
        updates: Updates<'_>,
        masks: &CoalitionMasks,
        data: &Dataset,
    ) -> Result<Vec<f64>, CoalitionError> {
        updates.check(data.width(), data.classes())?;
        self.set_threads();
        let stack = ModelStack::new(self, updates, masks)?;
        let parameters = stack.parameters.f_to_kind(Kind::Float)?;
        let coefficients = stack.coefficients.f_to_kind(Kind::Float)?;
        let (features, labels) = self.rows(data, 0..data.rows(), Kind::Float)?;
        let mut means = Vec::with_capacity(masks.len());
        for at in 0..masks.len() {
            let own = coefficients.f_narrow(0, at as i64, 1)?;
            let params = own.f_mm(&parameters)?.f_view([-1])?;
            let logits = TensorNet::new(updates.model, &params)?.forward(&features)?.logits;
            means.push(f64::try_from(
                losses(&logits, &labels, RowLoss::Bounded)?.f_mean(Kind::Float)?,
            )?);
        }
        Ok(means)
    }
}

/// The coefficients of all coalitions, and the stack of base and updates that they multiply.
struct ModelStack<'a> {
    model: &'a ModelSpec,
    /// `[coalition, 1 + player]`.
    coefficients: Tensor,
    /// `[1 + player, parameter]`.
    parameters: Tensor,
    coalitions: usize,
    kind: Kind,
}

impl<'a> ModelStack<'a> {
    fn new(torch: &Torch, updates: Updates<'a>, masks: &CoalitionMasks) -> Result<Self, TchError> {
        let Updates { model, base, deltas, shares } = updates;
        let convolves = matches!(model, ModelSpec::Cnn { .. });
        let kind = match convolves && torch.device != Device::Cpu {
            true => Kind::Double,
            false => Kind::Float,
        };
        let width = 1 + deltas.len();
        let mut coefficients = vec![0.0; masks.len() * width];
        for at in 0..masks.len() {
            coefficients[at * width] = 1.0;
            masks.members(at).for_each(|own| coefficients[at * width + 1 + own] = shares[own]);
        }
        let coefficients = torch.to_tensor(&coefficients)?.f_to_kind(kind)?;
        let all: Result<Vec<Tensor>, TchError> =
            std::iter::once(&base).chain(deltas).map(|own| torch.to_tensor(own)).collect();
        let parameters = Tensor::f_stack(&all?, 0)?.f_to_kind(kind)?;
        let coefficients = coefficients.f_view([-1, width as i64])?;
        Ok(Self { model, coefficients, parameters, coalitions: masks.len(), kind })
    }

    /// Adds the losses of some rows.
    fn add(
        &self,
        torch: &Torch,
        data: &Dataset,
        rows: Range<usize>,
        sums: &mut [f64],
    ) -> Result<(), CoalitionError> {
        let count = rows.len();
        let (features, labels) = torch.rows(data, rows, self.kind)?;
        let first = self.first_layer_outputs(&features)?;
        let most = (NUMBERS_AT_A_TIME / (count * self.widest())).max(1);
        for from in (0..self.coalitions).step_by(most) {
            let size = most.min(self.coalitions - from);
            let coefficients = self.coefficients.f_narrow(0, from as i64, size as i64)?;
            let logits = self.logits(&coefficients, &features, first.as_ref())?;
            let labels = labels.f_unsqueeze(0)?.f_expand([size as i64, -1, 1], false)?;
            let chosen = logits.f_log_softmax(2, None)?.f_gather(2, &labels, false)?;
            let losses = bound(&chosen, logits.size3()?.2)?.losses;
            let own = losses.f_sum_dim_intlist([1_i64, 2].as_slice(), false, Kind::Double)?;
            for (sum, own) in sums[from..from + size].iter_mut().zip(to_vec(&own)?) {
                *sum += own;
            }
        }
        Ok(())
    }

    /// Numbers per row of the widest layer.
    fn widest(&self) -> usize {
        let dense = self.model.dense().iter().map(|layer| layer.outputs).max().unwrap_or(1);
        match *self.model {
            ModelSpec::Cnn { height, width, filters, .. } => {
                dense.max(height * width * filters[0]).max(height * width / 4 * filters[1])
            }
            ModelSpec::Softmax { .. } | ModelSpec::Mlp { .. } | ModelSpec::Graph(_) => dense,
        }
    }

    /// The output of a dense first layer for the base and each update: `[1 + player, rows ·
    /// outputs]`.
    fn first_layer_outputs(&self, features: &Tensor) -> Result<Option<Tensor>, TchError> {
        if let ModelSpec::Cnn { .. } = self.model {
            return Ok(None);
        }
        let Some(Dense { inputs, outputs }) = self.model.dense().first().copied() else {
            return Ok(None);
        };
        let (inputs, outputs) = (inputs as i64, outputs as i64);
        let weights = self.parameters.f_narrow(1, 0, inputs * outputs)?;
        let weights = weights.f_reshape([-1, inputs])?;
        let biases = self.parameters.f_narrow(1, inputs * outputs, outputs)?;
        let sums = biases.f_reshape([-1])?.f_addmm(features, &weights.f_tr()?)?;
        let players = self.parameters.size()[0];
        let sums = sums.f_view([-1, players, outputs])?.f_transpose(0, 1)?;
        Ok(Some(sums.f_reshape([players, -1])?))
    }

    /// `[coalition, row, class]`.
    fn logits(
        &self,
        coefficients: &Tensor,
        features: &Tensor,
        first: Option<&Tensor>,
    ) -> Result<Tensor, TchError> {
        let size = coefficients.size()[0];
        let mut layers = self.model.dense();
        let (mut from, mut flowing) = match first {
            Some(first) => {
                let Dense { inputs, outputs } = layers.remove(0);
                let sums = coefficients.f_mm(first)?.f_view([size, -1, outputs as i64])?;
                ((inputs + 1) * outputs, sums)
            }
            None => self.convolution_outputs(coefficients, features)?,
        };
        let parameters = coefficients.f_mm(&self.parameters.f_narrow(
            1,
            from as i64,
            (self.model.parameters() - from) as i64,
        )?)?;
        let whole = from;
        for Dense { inputs, outputs } in layers {
            let (inputs, outputs) = (inputs as i64, outputs as i64);
            let at = (from - whole) as i64;
            let weight = parameters.f_narrow(1, at, inputs * outputs)?;
            let weight = weight.f_reshape([size, outputs, inputs])?.f_transpose(1, 2)?;
            let bias = parameters.f_narrow(1, at + inputs * outputs, outputs)?;
            let bias = bias.f_reshape([size, 1, outputs])?;
            flowing = bias.f_baddbmm(&flowing.f_relu()?, &weight, 1.0, 1.0)?;
            from += ((inputs + 1) * outputs) as usize;
        }
        Ok(flowing)
    }

    /// The index of the dense layers in the parameters, and the output of the convolutions:
    /// `[coalition, row, number]`. The first convolution has one image for all coalitions, the
    /// second is grouped by coalition.
    fn convolution_outputs(
        &self,
        coefficients: &Tensor,
        features: &Tensor,
    ) -> Result<(usize, Tensor), TchError> {
        let ModelSpec::Cnn { channels, height, width, filters, .. } = *self.model else {
            return Err(TchError::Shape("the model has no convolutions".to_owned()));
        };
        let size = coefficients.size()[0];
        let [channels, height, width] = [channels, height, width].map(|side| side as i64);
        let mut flowing = features.f_view([-1, channels, height, width])?;
        let (mut from, mut inputs) = (0_i64, channels);
        for (groups, outputs) in [(1, filters[0] as i64), (size, filters[1] as i64)] {
            let numbers = 9 * inputs * outputs;
            let own = |from, count| coefficients.f_mm(&self.parameters.f_narrow(1, from, count)?);
            let weight = own(from, numbers)?.f_reshape([size * outputs, inputs, 3, 3])?;
            let bias = own(from + numbers, outputs)?.f_reshape([-1])?;
            let through = flowing.f_conv2d(&weight, Some(&bias), [1, 1], [1, 1], [1, 1], groups)?;
            flowing = through.f_relu()?.f_max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false)?;
            from += numbers + outputs;
            inputs = outputs;
        }
        let rows = features.size()[0];
        let flowing = flowing.f_reshape([rows, size, -1])?.f_transpose(0, 1)?;
        Ok((from as usize, flowing.f_contiguous()?))
    }
}
