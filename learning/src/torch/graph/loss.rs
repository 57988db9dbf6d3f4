//! The loss of each row from a graph's output, for training and for evaluation.

use tch::{Kind, Reduction, TchError, Tensor};

use crate::graph::GraphLoss;
use crate::loss::RowLoss;
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
            cross_entropy(output, targets.labels, form, label_smoothing)?
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
        true => replace_nan(&losses, loss.largest(output.size().last().map_or(1, |&c| c as usize))),
        false => Ok(losses),
    }
}

/// The label of a token that has no loss.
const IGNORED: i64 = -100;

/// Cross-entropy of rows of logits, `[rows, classes]`; 0 for a negative label.
fn cross_entropy(
    logits: &Tensor,
    labels: &Tensor,
    form: RowLoss,
    smoothing: f64,
) -> Result<Tensor, TchError> {
    match form {
        RowLoss::Bounded => {
            let column = labels.f_clamp_min(0)?.f_view([-1, 1])?;
            let own = logits.f_log_softmax(-1, None::<Kind>)?.f_gather(-1, &column, false)?;
            let classes = logits.size().last().copied().unwrap_or(1);
            let losses = net::bound(&own, classes)?.losses.f_view([-1])?;
            losses.f_mul(&labels.f_ge(0)?)
        }
        RowLoss::CrossEntropy => {
            let labels = labels.f_clamp_min(IGNORED)?;
            let labels = labels.f_masked_fill(&labels.f_lt(0)?, IGNORED)?;
            let each = Reduction::None;
            logits.f_cross_entropy_loss(&labels, None::<&Tensor>, each, IGNORED, smoothing)
        }
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
    let (rows, tokens) = wanted.size2()?;
    let classes = logits.size().last().copied().unwrap_or(1);
    let flat = logits.f_reshape([rows * tokens, classes])?;
    let losses = cross_entropy(&flat, &wanted.f_reshape([-1])?, form, smoothing)?;
    let by_row =
        |tensor: &Tensor| tensor.f_sum_dim_intlist([1_i64].as_slice(), false, None::<Kind>);
    let counts = by_row(&wanted.f_ge(0)?)?.f_clamp_min(1)?;
    by_row(&losses.f_view([rows, tokens])?)?.f_div(&counts)
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
