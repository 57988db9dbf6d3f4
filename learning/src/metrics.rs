//! Metrics of predictions: what a model's outputs for some rows say against the rows' labels.
//!
//! A metric that is not defined for the rows is absent: the area under a curve with one class, or the
//! share of a variance that is zero.

use crate::data::Dataset;
use crate::engine::{mean, predicts_label};
use crate::graph::GraphLoss;
use crate::model::ModelSpec;

/// Most scores that are retained for the areas under curves; beyond it these are absent.
pub const SCORES_MAX: usize = 1 << 24;

/// The metrics of a model, by the kind of its predictions.
#[derive(Debug, Clone, PartialEq)]
pub enum Metrics {
    /// A class for each row.
    Classes(ClassMetrics),
    /// Truth values for each row.
    TruthValues(TruthMetrics),
    /// Numbers for each row.
    Numbers(NumberMetrics),
    /// A class for each token.
    Tokens(TokenMetrics),
    /// A loss of the model's own for each row.
    Loss {
        /// Its mean, in the model's unit.
        mean: f64,
    },
}

/// Metrics of classes.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassMetrics {
    /// The share of right predictions.
    pub accuracy: f64,
    /// The mean over the classes in the rows of the share of their rows that is right.
    pub balanced_accuracy: f64,
    /// The mean of F1 over the classes that are in the rows or predicted.
    pub f1: f64,
    /// The area under the receiver operating characteristic: of class 1 for two classes, else the mean
    /// over the classes in the rows of each against the others. Ties count one half.
    pub auroc: Option<f64>,
    /// Mean cross-entropy, in nats.
    pub cross_entropy: f64,
    /// Number of rows by label and prediction: `[label][prediction]`.
    pub confusion: Vec<Vec<u64>>,
}

/// Metrics of truth values, over all values of all rows.
#[derive(Debug, Clone, PartialEq)]
pub struct TruthMetrics {
    /// The share of right values.
    pub accuracy: f64,
    /// The share of rows of which all values are right.
    pub exact_match: f64,
    /// The mean of F1 over the values of a row; a value that is never true nor predicted counts 0.
    pub f1: f64,
    /// The mean over the values of a row of the area under the receiver operating characteristic, for
    /// those that are true in some rows and false in others.
    pub auroc: Option<f64>,
}

/// Metrics of numbers, in the unit of the targets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NumberMetrics {
    /// Root of the mean squared error.
    pub rmse: f64,
    /// Mean absolute error.
    pub mae: f64,
    /// 1 − squared errors / squared distances from the mean; with several targets, the mean over them.
    pub r2: Option<f64>,
}

/// Metrics of tokens with a target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenMetrics {
    /// Number of tokens with a target.
    pub tokens: u64,
    /// The share of right predictions.
    pub accuracy: f64,
    /// e to the mean cross-entropy.
    pub perplexity: f64,
    /// Mean cross-entropy, in nats.
    pub cross_entropy: f64,
}

/// The form of a model's outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputKind {
    /// One logit for each class.
    Classes {
        /// Number of classes.
        classes: usize,
    },
    /// Logits of truth values.
    TruthValues {
        /// The first of the row's numbers that is a target.
        from: usize,
        /// Number of values.
        values: usize,
    },
    /// Numbers.
    Numbers {
        /// The first of the row's numbers that is a target.
        from: usize,
        /// Number of numbers.
        values: usize,
    },
    /// Logits for each token: the target of a token is the next one, or stands behind the inputs.
    Tokens {
        /// The first of the row's numbers that is a target.
        from: usize,
        /// Number of targets.
        tokens: usize,
        /// Number of classes.
        classes: usize,
    },
    /// One loss.
    Loss,
}

impl OutputKind {
    /// The form of a model's outputs.
    pub fn new(model: &ModelSpec) -> Self {
        let ModelSpec::Graph(graph) = model else {
            return Self::Classes { classes: model.classes() };
        };
        let declared = graph.declaration();
        let (from, values) = (declared.inputs, declared.targets);
        match declared.loss {
            GraphLoss::CrossEntropy { .. } => Self::Classes { classes: declared.outputs },
            GraphLoss::Binary => Self::TruthValues { from, values },
            GraphLoss::Squared { .. } | GraphLoss::Absolute { .. } | GraphLoss::Huber { .. } => {
                Self::Numbers { from, values }
            }
            GraphLoss::TokenCrossEntropy { .. } if values == 0 => {
                // The next token is the target.
                let tokens = graph.tokens_of_row().saturating_sub(1);
                Self::Tokens { from: 1, tokens, classes: declared.outputs }
            }
            GraphLoss::TokenCrossEntropy { .. } => {
                Self::Tokens { from, tokens: values, classes: declared.outputs }
            }
            GraphLoss::Output { .. } => Self::Loss,
        }
    }

    /// Numbers of a row's output.
    pub fn numbers(self) -> usize {
        match self {
            Self::Classes { classes } => classes,
            Self::TruthValues { values, .. } | Self::Numbers { values, .. } => values,
            // The last token has an output without a target if the next one is.
            Self::Tokens { tokens, classes, .. } => (tokens + 1) * classes,
            Self::Loss => 1,
        }
    }
}

/// Collects the outputs of rows, in parts of any size, for the metrics.
#[derive(Debug)]
pub struct MetricsCollector {
    kind: OutputKind,
    rows: usize,
    /// Outputs and targets of the rows; without the outputs of classes beyond [`SCORES_MAX`].
    outputs: Vec<f64>,
    targets: Vec<f64>,
    confusion: Vec<Vec<u64>>,
    /// Sums over rows or tokens.
    loss: f64,
    correct: u64,
    tokens: u64,
}

impl MetricsCollector {
    /// A collector for outputs of a kind.
    pub fn new(kind: OutputKind) -> Self {
        let classes = match kind {
            OutputKind::Classes { classes } => classes,
            _ => 0,
        };
        Self {
            kind,
            rows: 0,
            outputs: Vec::new(),
            targets: Vec::new(),
            confusion: vec![vec![0; classes]; classes],
            loss: 0.0,
            correct: 0,
            tokens: 0,
        }
    }

    /// Adds rows with their outputs, which have equally many numbers for each row.
    pub fn add(&mut self, outputs: &[f64], rows: &Dataset) {
        let each = outputs.len() / rows.rows().max(1);
        for (row, output) in outputs.chunks_exact(each.max(1)).enumerate() {
            let numbers = &rows.features()[row * rows.width()..(row + 1) * rows.width()];
            let columns = |from: usize, size: usize| {
                numbers.iter().skip(from).take(size).map(|&number| f64::from(number))
            };
            match self.kind {
                OutputKind::Classes { .. } => self.add_class(output, rows.labels()[row]),
                OutputKind::TruthValues { from, values } | OutputKind::Numbers { from, values } => {
                    self.outputs.extend(output.iter().take(values));
                    self.targets.extend(columns(from, values));
                }
                OutputKind::Tokens { from, tokens, classes } => {
                    for (logits, target) in output.chunks_exact(classes).zip(columns(from, tokens))
                    {
                        self.add_token(logits, target);
                    }
                }
                OutputKind::Loss => self.loss += output.first().copied().unwrap_or(0.0),
            }
            self.rows += 1;
        }
    }

    fn add_class(&mut self, logits: &[f64], label: u32) {
        let predicted = largest(logits);
        if let Some(cell) =
            self.confusion.get_mut(label as usize).and_then(|row| row.get_mut(predicted))
        {
            *cell += 1;
        }
        self.loss += cross_entropy(logits, label as usize);
        if self.outputs.len() + logits.len() <= SCORES_MAX {
            self.outputs.extend(softmax(logits));
            self.targets.push(f64::from(label));
        }
    }

    fn add_token(&mut self, logits: &[f64], target: f64) {
        // A negative target is none.
        if target >= 0.0 && (target as usize) < logits.len() {
            self.tokens += 1;
            self.loss += cross_entropy(logits, target as usize);
            self.correct += u64::from(predicts_label(logits, target as u32));
        }
    }

    /// The metrics of all rows; `None` without rows, or without a token that has a target.
    pub fn finish(self) -> Option<Metrics> {
        if self.rows == 0 {
            return None;
        }
        let rows = self.rows as f64;
        Some(match self.kind {
            OutputKind::Classes { classes } => Metrics::Classes(self.classes(classes)),
            OutputKind::TruthValues { values, .. } => {
                Metrics::TruthValues(TruthMetrics::new(&self.outputs, &self.targets, values.max(1)))
            }
            OutputKind::Numbers { values, .. } => {
                Metrics::Numbers(NumberMetrics::new(&self.outputs, &self.targets, values.max(1)))
            }
            OutputKind::Tokens { .. } if self.tokens == 0 => return None,
            OutputKind::Tokens { .. } => {
                let tokens = self.tokens as f64;
                let cross_entropy = self.loss / tokens;
                Metrics::Tokens(TokenMetrics {
                    tokens: self.tokens,
                    accuracy: self.correct as f64 / tokens,
                    perplexity: libm::exp(cross_entropy),
                    cross_entropy,
                })
            }
            OutputKind::Loss => Metrics::Loss { mean: self.loss / rows },
        })
    }

    fn classes(self, classes: usize) -> ClassMetrics {
        let rows = self.rows as f64;
        let of_label = |label: usize| self.confusion[label].iter().sum::<u64>();
        let of_prediction = |class: usize| self.confusion.iter().map(|row| row[class]).sum::<u64>();
        let hits = |class: usize| self.confusion[class][class] as f64;
        let present: Vec<usize> = (0..classes).filter(|&class| of_label(class) > 0).collect();
        let recalls: Vec<f64> =
            present.iter().map(|&class| hits(class) / of_label(class) as f64).collect();
        let f1: Vec<f64> = (0..classes)
            .filter_map(|class| f1(hits(class), of_label(class), of_prediction(class)))
            .collect();
        let has_all_scores = self.targets.len() == self.rows;
        let area = |class: usize| {
            let scores = self.outputs.chunks_exact(classes).map(|row| row[class]);
            auroc(scores.zip(self.targets.iter().map(|&label| label == class as f64)).collect())
        };
        let compared: Vec<usize> = if classes == 2 { vec![1] } else { present };
        let areas: Vec<f64> = match has_all_scores {
            true => compared.into_iter().filter_map(area).collect(),
            false => Vec::new(),
        };
        ClassMetrics {
            accuracy: (0..classes).map(hits).sum::<f64>() / rows,
            balanced_accuracy: mean(&recalls),
            f1: mean(&f1),
            auroc: (!areas.is_empty()).then(|| mean(&areas)),
            cross_entropy: self.loss / rows,
            confusion: self.confusion,
        }
    }
}

impl TruthMetrics {
    /// Of logits and truth values, `values` of each row.
    fn new(logits: &[f64], targets: &[f64], values: usize) -> Self {
        let is_right = |(logit, target): (&f64, &f64)| (*logit > 0.0) == (*target > 0.5);
        let rows = || logits.chunks_exact(values).zip(targets.chunks_exact(values));
        let right = logits.iter().zip(targets).filter(|pair| is_right(*pair)).count();
        let exact =
            rows().filter(|(logits, targets)| logits.iter().zip(*targets).all(is_right)).count();
        let column = |value: usize| -> Vec<(f64, bool)> {
            rows().map(|(logits, targets)| (logits[value], targets[value] > 0.5)).collect()
        };
        let f1_of = |value: usize| {
            let column = column(value);
            let hits = column.iter().filter(|(logit, holds)| *logit > 0.0 && *holds).count();
            let (held, predicted) = (
                column.iter().filter(|(_, holds)| *holds).count() as u64,
                column.iter().filter(|(logit, _)| *logit > 0.0).count() as u64,
            );
            f1(hits as f64, held, predicted).unwrap_or(0.0)
        };
        let f1: Vec<f64> = (0..values).map(f1_of).collect();
        let areas: Vec<f64> = (0..values).filter_map(|value| auroc(column(value))).collect();
        Self {
            accuracy: right as f64 / logits.len().max(1) as f64,
            exact_match: exact as f64 / rows().len().max(1) as f64,
            f1: mean(&f1),
            auroc: (!areas.is_empty()).then(|| mean(&areas)),
        }
    }
}

impl NumberMetrics {
    /// Of predictions and targets, `values` of each row.
    fn new(predicted: &[f64], targets: &[f64], values: usize) -> Self {
        let errors: Vec<f64> = predicted.iter().zip(targets).map(|(p, t)| p - t).collect();
        let squares: Vec<f64> = errors.iter().map(|error| error * error).collect();
        let sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
        let explained = |value: usize| {
            let own: Vec<f64> = targets.iter().skip(value).step_by(values).copied().collect();
            let middle = mean(&own);
            let spread: f64 = own.iter().map(|target| (target - middle).powi(2)).sum();
            let left: f64 = squares.iter().skip(value).step_by(values).sum();
            (spread > 0.0).then(|| 1.0 - left / spread)
        };
        let shares: Option<Vec<f64>> = (0..values).map(explained).collect();
        Self { rmse: mean(&squares).sqrt(), mae: mean(&sizes), r2: shares.map(|all| mean(&all)) }
    }

    /// The same in another unit, of which `scale` are one of this.
    #[must_use]
    pub fn scaled(self, scale: f64) -> Self {
        Self { rmse: self.rmse * scale, mae: self.mae * scale, ..self }
    }
}

/// The harmonic mean of precision and recall; `None` for a class in no row and no prediction.
fn f1(hits: f64, of_label: u64, of_prediction: u64) -> Option<f64> {
    let all = of_label + of_prediction;
    (all > 0).then(|| 2.0 * hits / all as f64)
}

/// The probability that a true row has a higher score than a false one (Mann and Whitney 1947); `None`
/// without one of either, or with a score that is not a number.
fn auroc(mut scores: Vec<(f64, bool)>) -> Option<f64> {
    if scores.iter().any(|(score, _)| score.is_nan()) {
        return None;
    }
    scores.sort_unstable_by(|(a, _), (b, _)| a.total_cmp(b));
    let (mut ranks, mut held, mut from) = (0.0, 0_u64, 0_usize);
    while from < scores.len() {
        let ties = scores[from..].iter().take_while(|(score, _)| *score == scores[from].0).count();
        let own = scores[from..from + ties].iter().filter(|(_, holds)| *holds).count();
        // Equal scores share the mean of their ranks.
        ranks += own as f64 * (from as f64 + (ties as f64 + 1.0) / 2.0);
        held += own as u64;
        from += ties;
    }
    let (held, other) = (held as f64, scores.len() as f64 - held as f64);
    (held > 0.0 && other > 0.0).then(|| (ranks - held * (held + 1.0) / 2.0) / (held * other))
}

/// The place of the largest logit; the first of equal ones.
pub fn largest(logits: &[f64]) -> usize {
    let mut best = 0;
    for (at, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = at;
        }
    }
    best
}

/// The probabilities of logits.
pub fn softmax(logits: &[f64]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let parts: Vec<f64> = logits.iter().map(|logit| libm::exp(logit - most)).collect();
    let sum: f64 = parts.iter().sum();
    parts.into_iter().map(|part| part / sum).collect()
}

/// The cross-entropy of a label, in nats.
fn cross_entropy(logits: &[f64], label: usize) -> f64 {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|logit| libm::exp(logit - most)).sum();
    most + libm::log(sum) - logits.get(label).copied().unwrap_or(f64::NEG_INFINITY)
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
