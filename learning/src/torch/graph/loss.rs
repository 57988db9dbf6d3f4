//! The loss of each row from a graph's output, for training and for evaluation.

use tch::{Kind, TchError, Tensor};

use crate::graph::GraphLoss;
use crate::loss::{BoundedLoss, RowLoss};
use crate::torch::net;

/// The numbers of rows that a loss compares with the output.
pub(super) struct Targets<'a> {
    /// The label of each row, `[rows]`.
    pub(super) labels: &'a Tensor,
    /// The numbers behind the inputs, `[rows, targets]`.
    pub(super) numbers: &'a Tensor,
    /// The first input, `[rows, numbers]`: the tokens of a language model.
    pub(super) tokens: &'a Tensor,
}

/// The loss of each row, `[rows]`. A bounded loss that is not a number counts as the largest.
pub(super) fn row_losses(
    loss: GraphLoss,
    form: RowLoss,
    output: &Tensor,
    targets: &Targets<'_>,
) -> Result<Tensor, TchError> {
    let is_bounded = form == RowLoss::Bounded;
    let losses = match loss {
        GraphLoss::CrossEntropy { label_smoothing } => {
            let labels = targets.labels.f_view([-1, 1])?;
            cross_entropy(output, &labels, form, label_smoothing)?.f_view([-1])?
        }
        GraphLoss::TokenCrossEntropy { label_smoothing } => {
            token_losses(output, targets, form, label_smoothing)?
        }
        GraphLoss::Binary => {
            let numbers = targets.numbers;
            let output = output.f_view_as(numbers)?;
            let entropy = output.f_softplus()?.f_sub(&output.f_mul(numbers)?)?;
            let entropy = match form {
                RowLoss::CrossEntropy => entropy,
                RowLoss::Bounded => net::bound(&entropy.f_neg()?, 2)?.losses,
            };
            row_means(&entropy)?
        }
        GraphLoss::Squared { bound } => {
            let away = difference(output, targets)?;
            bounded(&row_means(&away.f_square()?)?, bound, is_bounded)?
        }
        GraphLoss::Absolute { bound } => {
            let away = difference(output, targets)?;
            bounded(&row_means(&away.f_abs()?)?, bound, is_bounded)?
        }
        GraphLoss::Huber { delta, bound } => {
            let away = difference(output, targets)?.f_abs()?;
            // δ·|x| − δ²/2 beyond δ, and x²/2 within.
            let near = away.f_clamp_max(delta)?;
            let far = away.f_sub(&near)?.f_mul_scalar(delta)?;
            let huber = near.f_square()?.f_mul_scalar(0.5)?.f_add(&far)?;
            bounded(&row_means(&huber)?, bound, is_bounded)?
        }
        GraphLoss::Output { bound } => bounded(&output.f_view([-1])?, bound, is_bounded)?,
    };
    match is_bounded {
        true => replace_nan(&losses, largest(loss, output)),
        false => Ok(losses),
    }
}

/// The largest bounded loss of a row.
fn largest(loss: GraphLoss, output: &Tensor) -> f64 {
    let classes = output.size().last().map_or(1, |&size| size as usize);
    match loss {
        GraphLoss::CrossEntropy { .. } | GraphLoss::TokenCrossEntropy { .. } => {
            BoundedLoss::new(classes).largest()
        }
        GraphLoss::Binary => BoundedLoss::new(2).largest(),
        GraphLoss::Squared { bound }
        | GraphLoss::Absolute { bound }
        | GraphLoss::Huber { bound, .. }
        | GraphLoss::Output { bound } => bound,
    }
}

/// Cross-entropy with one class for each element of the last dimension; `labels` has size 1 there.
fn cross_entropy(
    logits: &Tensor,
    labels: &Tensor,
    form: RowLoss,
    smoothing: f64,
) -> Result<Tensor, TchError> {
    let logarithms = logits.f_log_softmax(-1, None::<Kind>)?;
    let own = logarithms.f_gather(-1, labels, false)?;
    match form {
        RowLoss::Bounded => {
            let classes = logits.size().last().copied().unwrap_or(1);
            Ok(net::bound(&own, classes)?.losses)
        }
        RowLoss::CrossEntropy if smoothing > 0.0 => {
            let spread = logarithms.f_mean_dim([-1_i64].as_slice(), true, None::<Kind>)?;
            let own = own.f_mul_scalar(1.0 - smoothing)?;
            own.f_add(&spread.f_mul_scalar(smoothing)?)?.f_neg()
        }
        RowLoss::CrossEntropy => own.f_neg(),
    }
}

fn token_losses(
    output: &Tensor,
    targets: &Targets<'_>,
    form: RowLoss,
    smoothing: f64,
) -> Result<Tensor, TchError> {
    let (logits, wanted) = match targets.numbers.size2()?.1 {
        // Each token predicts the next.
        0 => {
            let tokens = targets.tokens.size2()?.1;
            let next = targets.tokens.f_narrow(1, 1, tokens - 1)?;
            (output.f_narrow(1, 0, tokens - 1)?, next.f_to_kind(Kind::Int64)?)
        }
        _ => (output.shallow_clone(), targets.numbers.f_to_kind(Kind::Int64)?),
    };
    let counts = wanted.f_ge(0)?.f_to_kind(logits.f_kind()?)?;
    let losses = cross_entropy(&logits, &wanted.f_clamp_min(0)?.f_unsqueeze(-1)?, form, smoothing)?;
    let sums = losses.f_squeeze_dim(-1)?.f_mul(&counts)?;
    let by_row =
        |tensor: &Tensor| tensor.f_sum_dim_intlist([1_i64].as_slice(), false, None::<Kind>);
    by_row(&sums)?.f_div(&by_row(&counts)?.f_clamp_min(1.0)?)
}

fn difference(output: &Tensor, targets: &Targets<'_>) -> Result<Tensor, TchError> {
    output.f_view_as(targets.numbers)?.f_sub(targets.numbers)
}

fn row_means(numbers: &Tensor) -> Result<Tensor, TchError> {
    numbers.f_mean_dim([1_i64].as_slice(), false, None::<Kind>)
}

/// `bound · tanh(loss / bound)`: almost the loss while it is small, and at most the bound.
fn bounded(losses: &Tensor, bound: f64, is_bounded: bool) -> Result<Tensor, TchError> {
    if !is_bounded {
        return Ok(losses.shallow_clone());
    }
    losses.f_div_scalar(bound)?.f_tanh()?.f_mul_scalar(bound)
}

fn replace_nan(losses: &Tensor, largest: f64) -> Result<Tensor, TchError> {
    let wrong = losses.f_isnan()?;
    losses.f_masked_fill(&wrong, largest)
}
