//! The loss of each row from a graph's output, with its derivatives.

use super::RunFailure;
use super::elements::{choose, sigmoid, sign, softplus};
use super::norms::log_softmax;
use super::run::Run;
use super::tape::{NONE, Var};
use super::tensor::Tensor;
use crate::graph::GraphLoss;
use crate::loss::{BoundedLoss, RowLoss};
use crate::reference::real::Real;
use std::sync::Arc;

/// The numbers of rows that a loss compares with the output.
pub(super) struct Targets {
    /// The label of each row.
    pub(super) labels: Vec<i64>,
    /// The numbers behind the inputs, row by row; empty without targets.
    pub(super) numbers: Vec<f32>,
    /// The first input, row by row: the tokens of a language model.
    pub(super) tokens: Vec<f32>,
}

/// The loss of each row. A bounded loss that is not a number counts as the largest.
pub(super) fn row_losses<T: Real>(
    run: &mut Run<'_, T>,
    loss: GraphLoss,
    form: RowLoss,
    output: &Tensor,
    targets: &Targets,
) -> Result<Var, RunFailure> {
    let rows = targets.labels.len();
    let source = run.real(output);
    let classes = output.sizes.last().copied().unwrap_or(1).max(1);
    let losses = match loss {
        GraphLoss::CrossEntropy { label_smoothing } => {
            cross_entropy(run, source, classes, &targets.labels, form, label_smoothing)
        }
        GraphLoss::TokenCrossEntropy { label_smoothing } => {
            tokens(run, source, classes, targets, form, label_smoothing)
        }
        GraphLoss::Binary => {
            let wanted = numbers(run, targets);
            let entropy = run.tape.zip(source, wanted, |x, y| {
                let share = sigmoid(x).0;
                (softplus(x) - x * y, share - y, T::ZERO - x)
            });
            let entropy = match form {
                RowLoss::CrossEntropy => entropy,
                RowLoss::Bounded => bound_entropy(run, entropy, 2),
            };
            means(run, entropy, rows)
        }
        GraphLoss::Squared { bound } => {
            let wanted = numbers(run, targets);
            let away = run.subtract(source, wanted);
            let squares = run.tape.map(away, |x| (x * x, x + x));
            let means = means(run, squares, rows);
            bounded(run, means, bound, form)
        }
        GraphLoss::Absolute { bound } => {
            let wanted = numbers(run, targets);
            let away = run.subtract(source, wanted);
            let sizes = run.tape.map(away, |x| (x.magnitude(), sign(x)));
            let means = means(run, sizes, rows);
            bounded(run, means, bound, form)
        }
        GraphLoss::Huber { delta, bound } => {
            let wanted = numbers(run, targets);
            let away = run.subtract(source, wanted);
            let (delta, half) = (T::from_f64(delta), T::from_f64(0.5));
            let huber = run.tape.map(away, |x| match x.magnitude() <= delta {
                true => (half * x * x, x),
                false => (delta * (x.magnitude() - half * delta), delta * sign(x)),
            });
            let means = means(run, huber, rows);
            bounded(run, means, bound, form)
        }
        GraphLoss::Output { bound } => bounded(run, source, bound, form),
    };
    if run.tape.numbers(losses).len() != rows {
        return Err(RunFailure::graph("the output does not have one loss for each row"));
    }
    if form == RowLoss::CrossEntropy {
        return Ok(losses);
    }
    let most = T::from_f64(loss.largest(classes));
    Ok(run.tape.map(losses, |x| match x.to_f64().is_nan() {
        true => (most, T::ZERO),
        false => (x, T::ONE),
    }))
}

fn numbers<T: Real>(run: &mut Run<'_, T>, targets: &Targets) -> Var {
    let numbers = targets.numbers.iter().map(|&x| T::from_f64(x.into())).collect();
    run.tape.leaf(numbers, false)
}

fn means<T: Real>(run: &mut Run<'_, T>, source: Var, rows: usize) -> Var {
    let inner = run.tape.numbers(source).len() / rows.max(1);
    let sums = run.tape.sum(source, inner);
    run.scale(sums, 1.0 / inner.max(1) as f64)
}

/// `bound · tanh(loss / bound)`.
fn bounded<T: Real>(run: &mut Run<'_, T>, losses: Var, bound: f64, form: RowLoss) -> Var {
    if form == RowLoss::CrossEntropy {
        return losses;
    }
    let bound = T::from_f64(bound);
    run.tape.map(losses, |x| {
        let y = (x / bound).tanh();
        (bound * y, T::ONE - y * y)
    })
}

/// The bounded loss of cross-entropies.
fn bound_entropy<T: Real>(run: &mut Run<'_, T>, entropy: Var, classes: usize) -> Var {
    let loss = BoundedLoss::new(classes);
    run.tape.map(entropy, |x| {
        let (value, slope) = loss.of_cross_entropy(x.to_f64());
        (T::from_f64(value), T::from_f64(slope))
    })
}

/// Cross-entropy of rows of logits; 0 for a negative label.
fn cross_entropy<T: Real>(
    run: &mut Run<'_, T>,
    logits: Var,
    classes: usize,
    labels: &[i64],
    form: RowLoss,
    smoothing: f64,
) -> Var {
    let logarithms = log_softmax(run, logits, classes);
    let index = labels.iter().enumerate().map(|(row, &label)| match usize::try_from(label) {
        Ok(label) if label < classes => (row * classes + label) as u32,
        _ => NONE,
    });
    let own = run.tape.take(logarithms, Arc::new(index.collect()));
    let entropy = run.scale(own, -1.0);
    if form == RowLoss::Bounded {
        let bounded = bound_entropy(run, entropy, classes);
        let is_left_out: Vec<i64> = labels.iter().map(|&label| i64::from(label < 0)).collect();
        let none = run.constant(labels.len(), 0.0);
        return choose(run, &is_left_out, none, bounded);
    }
    if smoothing == 0.0 {
        return entropy;
    }
    let sums = run.tape.sum(logarithms, classes);
    let shares = labels.iter().map(|&label| match label < 0 {
        true => T::ZERO,
        false => T::from_f64(-smoothing / classes as f64),
    });
    let shares = shares.collect();
    let shares = run.tape.leaf(shares, false);
    let spread = run.multiply(sums, shares);
    let entropy = run.scale(entropy, 1.0 - smoothing);
    run.add(entropy, spread)
}

/// The mean cross-entropy of a row's tokens that have a label.
fn tokens<T: Real>(
    run: &mut Run<'_, T>,
    source: Var,
    classes: usize,
    targets: &Targets,
    form: RowLoss,
    smoothing: f64,
) -> Var {
    let rows = targets.labels.len().max(1);
    let whole = |numbers: &[f32]| numbers.iter().map(|&x| x as i64).collect::<Vec<i64>>();
    let (logits, labels) = match targets.numbers.is_empty() {
        // Each token predicts the next.
        true => {
            let each = targets.tokens.len() / rows;
            let next = targets.tokens.chunks_exact(each.max(1)).flat_map(|row| &row[1..]);
            let next: Vec<f32> = next.copied().collect();
            let line = (each * classes) as u32;
            let index = (0..rows as u32)
                .flat_map(|row| row * line..(row + 1) * line - classes as u32)
                .collect();
            (run.tape.take(source, Arc::new(index)), whole(&next))
        }
        false => (source, whole(&targets.numbers)),
    };
    let losses = cross_entropy(run, logits, classes, &labels, form, smoothing);
    let each = labels.len() / rows;
    let sums = run.tape.sum(losses, each);
    let counts = labels.chunks_exact(each.max(1)).map(|row| {
        let count = row.iter().filter(|label| **label >= 0).count();
        T::from_f64(1.0 / count.max(1) as f64)
    });
    let counts = counts.collect();
    let counts = run.tape.leaf(counts, false);
    run.multiply(sums, counts)
}
