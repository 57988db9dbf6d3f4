//! Operators that an evaluation computes from their definitions: libtorch's own kernels have no
//! derivatives by running statistics, and differ between devices.

use tch::{TchError, Tensor};

use crate::torch::dispatch::Argument as Given;

/// The arguments of `batch_norm`.
#[derive(Debug, Default)]
pub(super) struct BatchNorm<'a> {
    input: Option<&'a Tensor>,
    weight: Option<&'a Tensor>,
    bias: Option<&'a Tensor>,
    mean: Option<&'a Tensor>,
    variance: Option<&'a Tensor>,
    epsilon: f64,
}

impl<'a> BatchNorm<'a> {
    pub(super) fn set(&mut self, name: &str, given: Given<'a>) {
        match (name, given) {
            ("input", Given::Tensor(tensor)) => self.input = Some(tensor),
            ("weight", Given::Tensor(tensor)) => self.weight = Some(tensor),
            ("bias", Given::Tensor(tensor)) => self.bias = Some(tensor),
            ("running_mean", Given::Tensor(tensor)) => self.mean = Some(tensor),
            ("running_var", Given::Tensor(tensor)) => self.variance = Some(tensor),
            ("eps", Given::Float(epsilon)) => self.epsilon = epsilon,
            _ => {}
        }
    }

    /// The normalisation by running statistics, with derivatives by all of them. A mean of updates can
    /// make a variance negative: it counts as zero then.
    pub(super) fn evaluate(&self) -> Result<Option<Tensor>, TchError> {
        let (Some(input), Some(mean), Some(variance)) = (self.input, self.mean, self.variance)
        else {
            return Ok(None);
        };
        let mut sizes = vec![1; input.dim()];
        if let Some(channels) = sizes.get_mut(1) {
            *channels = -1;
        }
        let by_channel = |tensor: &Tensor| tensor.f_reshape(sizes.as_slice());
        let deviation = variance.f_clamp_min(0.0)?.f_add_scalar(self.epsilon)?.f_sqrt()?;
        let mut result = input.f_sub(&by_channel(mean)?)?.f_div(&by_channel(&deviation)?)?;
        if let Some(weight) = self.weight {
            result = result.f_mul(&by_channel(weight)?)?;
        }
        if let Some(bias) = self.bias {
            result = result.f_add(&by_channel(bias)?)?;
        }
        Ok(Some(result))
    }
}

/// `hardsigmoid` or `hardswish`, whose kernels on GPUs have a sixth in single precision.
#[derive(Debug, Clone, Copy)]
pub(super) struct HardActivation {
    /// Whether the result is multiplied with the input.
    pub(super) is_swish: bool,
    /// Whether the result replaces the input.
    pub(super) is_in_place: bool,
}

impl HardActivation {
    /// The activation of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        let (base, is_in_place) = name.strip_suffix('_').map_or((name, false), |base| (base, true));
        match base {
            "hardswish" => Some(Self { is_swish: true, is_in_place }),
            "hardsigmoid" => Some(Self { is_swish: false, is_in_place }),
            _ => None,
        }
    }

    /// `clamp(x + 3, 0, 6) / 6`, and its product with x.
    pub(super) fn evaluate(self, input: &Tensor) -> Result<Tensor, TchError> {
        let own = copy_with_gradient(input)?;
        let gate = own.f_add_scalar(3.0)?.f_clamp(0.0, 6.0)?.f_div_scalar(6.0)?;
        let result = if self.is_swish { own.f_mul(&gate)? } else { gate };
        if !self.is_in_place {
            return Ok(result);
        }
        let mut input = input.shallow_clone();
        input.f_copy_(&result)?;
        Ok(input)
    }
}

/// A copy in memory of its own, through which gradients flow.
pub(super) fn copy_with_gradient(tensor: &Tensor) -> Result<Tensor, TchError> {
    let mut copy = tensor.f_zeros_like()?;
    copy.f_copy_(tensor)?;
    Ok(copy)
}
