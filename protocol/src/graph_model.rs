//! A model that its buyer brings, as a graph of operators or as a trainer: the tensors that travel,
//! the blobs that complete it, and its loss.

use std::collections::BTreeSet;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::id::Digest;
use crate::limits::{
    BLOB_BYTES_MAX, GRAPH_BYTES_MAX, GRAPH_TENSORS_MAX, PARAMETERS_MAX, ROW_NUMBERS_MAX,
    TENSOR_DIMENSIONS_MAX, TENSOR_NAME_BYTES_MAX, TENSOR_NAMES_BYTES_MAX, TRAINER_BYTES_MAX,
};
use crate::micro::Micro;
use crate::spec_error::{SpecError, require, spec_error};

/// A model that its buyer brings. A row is `inputs` numbers, which the graph's inputs take in
/// order, and behind them `targets` numbers, which the loss compares with the graph's output.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct GraphModel {
    /// The meaning of the first blob.
    pub form: GraphForm,
    /// The graph's canonical bytes, or the code of a trainer.
    pub graph: Blob,
    /// A safetensors file with the graph's other tensors: frozen weights, buffers and constants.
    /// `None` if the graph has none.
    pub frozen: Option<Blob>,
    /// Numbers of a row that are the graph's inputs.
    pub inputs: u32,
    /// Numbers of a row that are targets of the loss.
    pub targets: u32,
    /// Size of the last dimension of the output: classes of a row or token, or numbers of a row.
    pub outputs: u32,
    /// How the output and the targets give the loss of a row.
    pub loss: ModelLoss,
    /// The tensors that are trained, sent, valued and aggregated, in the order of the graph.
    pub tensors: Vec<TensorShape>,
}

/// The part of a model that computes its losses.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum GraphForm {
    /// A graph of operators.
    Operators,
    /// A trainer: a program that every party runs in a sandbox, after consent to its code.
    Trainer {
        /// Whether it computes gradients. If not, coalitions value the updates.
        has_gradient: bool,
    },
}

/// A blob of the market: its digest and its length.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Blob {
    /// Digest of the bytes.
    pub digest: Digest,
    /// Number of bytes.
    pub bytes: u64,
}

/// Name and sizes of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct TensorShape {
    /// The model's own name.
    pub name: String,
    /// The sizes, outermost first; none for a single number.
    pub shape: Vec<u32>,
}

/// The loss of a row. Training uses it as it is; valuation bounds it, so that no row decides a round.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum ModelLoss {
    /// Cross-entropy of the row's label, in nats.
    CrossEntropy {
        /// Share of the probability that training spreads over all classes; below 1.
        label_smoothing: Micro,
    },
    /// Mean cross-entropy of the tokens of a row, in nats. Without targets each token predicts the
    /// next one; with them, each target is a class, and a negative one is left out.
    TokenCrossEntropy {
        /// Share of the probability that training spreads over all classes; below 1.
        label_smoothing: Micro,
    },
    /// Mean binary cross-entropy of the outputs, in nats; each target is 0 or 1.
    Binary,
    /// Mean squared difference of outputs and targets.
    Squared {
        /// Largest loss of a row in the valuation.
        bound: Micro,
    },
    /// Mean absolute difference of outputs and targets.
    Absolute {
        /// Largest loss of a row in the valuation.
        bound: Micro,
    },
    /// Mean Huber loss of the differences of outputs and targets.
    Huber {
        /// The difference at which the square ends.
        delta: Micro,
        /// Largest loss of a row in the valuation.
        bound: Micro,
    },
    /// The output is the loss of each row.
    Output {
        /// Largest loss of a row in the valuation.
        bound: Micro,
    },
}

impl ModelLoss {
    /// Whether the loss compares the output with the row's label.
    #[must_use]
    pub const fn has_label(&self) -> bool {
        matches!(self, Self::CrossEntropy { .. })
    }

    /// Whether a row's prediction is right or wrong: the class of a label, or all of its truth values.
    #[must_use]
    pub const fn has_predictions(&self) -> bool {
        matches!(self, Self::CrossEntropy { .. } | Self::Binary)
    }

    /// Whether the loss is a cross-entropy in nats.
    #[must_use]
    pub const fn is_in_nats(&self) -> bool {
        matches!(self, Self::CrossEntropy { .. } | Self::TokenCrossEntropy { .. } | Self::Binary)
    }

    fn check(&self) -> Result<(), SpecError> {
        let smoothing = |share: Micro| {
            let right = "must be at least 0 and below 1; 0 for none";
            require(share < Micro::ONE, "model.label_smoothing", share, right)
        };
        let positive = |key: &'static str, value: Micro| {
            require(value > Micro::ZERO, key, value, "must be above 0, in units of the loss")
        };
        match *self {
            Self::CrossEntropy { label_smoothing }
            | Self::TokenCrossEntropy { label_smoothing } => smoothing(label_smoothing),
            Self::Binary => Ok(()),
            Self::Squared { bound } | Self::Absolute { bound } | Self::Output { bound } => {
                positive("model.loss_bound", bound)
            }
            Self::Huber { delta, bound } => {
                positive("model.huber_delta", delta)?;
                positive("model.loss_bound", bound)
            }
        }
    }
}

impl TensorShape {
    /// Number of elements; `None` on overflow.
    #[must_use]
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1_u64, |elements, &size| elements.checked_mul(size.into()))
    }

    /// A name that a header has without escapes, and sizes within the limits.
    fn check(&self) -> Result<(), SpecError> {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        let length = self.name.len();
        require(
            (1..=TENSOR_NAME_BYTES_MAX).contains(&length) && self.name.bytes().all(is_plain),
            "model.tensors",
            format!("{:?}", self.name),
            "a tensor's name has 1 to 256 printable ASCII characters without spaces, quotes and \
             backslashes",
        )?;
        require(
            self.shape.len() <= TENSOR_DIMENSIONS_MAX && self.shape.iter().all(|&size| size > 0),
            "model.tensors",
            format!("{:?} of {:?}", self.name, self.shape),
            "a tensor has at most 8 dimensions, and none of size 0",
        )
    }
}

impl GraphModel {
    /// The blobs that complete the model.
    pub fn blobs(&self) -> impl Iterator<Item = Blob> {
        [Some(self.graph), self.frozen].into_iter().flatten()
    }

    /// Number of classes of a row's label; 1 if the loss takes none.
    #[must_use]
    pub const fn classes(&self) -> u32 {
        if self.loss.has_label() { self.outputs } else { 1 }
    }

    /// Numbers of a row; `None` on overflow.
    #[must_use]
    pub const fn width(&self) -> Option<u32> {
        self.inputs.checked_add(self.targets)
    }

    /// Number of numbers that travel; `None` on overflow.
    #[must_use]
    pub fn parameters(&self) -> Option<u64> {
        self.tensors.iter().try_fold(0_u64, |sum, tensor| sum.checked_add(tensor.elements()?))
    }

    /// Whether the model is a trainer.
    #[must_use]
    pub const fn is_trainer(&self) -> bool {
        matches!(self.form, GraphForm::Trainer { .. })
    }

    /// Whether the gradient of the loss can be computed.
    #[must_use]
    pub const fn has_gradient(&self) -> bool {
        !matches!(self.form, GraphForm::Trainer { has_gradient: false })
    }

    /// Checks all settings of the model.
    ///
    /// # Errors
    /// [`SpecError`] with the first that is invalid.
    pub fn check(&self) -> Result<(), SpecError> {
        self.check_blobs()?;
        self.check_trainer()?;
        let width = self.width().unwrap_or(u32::MAX);
        require(
            self.inputs > 0 && width <= ROW_NUMBERS_MAX,
            "model.inputs",
            self.inputs,
            "a row has 1 to 1048576 numbers, targets included",
        )?;
        require(
            (1..=ROW_NUMBERS_MAX).contains(&self.outputs),
            "model.outputs",
            self.outputs,
            "a graph has 1 to 1048576 outputs",
        )?;
        self.loss.check()?;
        self.check_targets()?;
        require(
            (1..=GRAPH_TENSORS_MAX).contains(&self.tensors.len()),
            "model.tensors",
            self.tensors.len(),
            "1 to 4096 tensors can be trained: choose them by trainable = [\"head.*\"]",
        )?;
        self.tensors.iter().try_for_each(TensorShape::check)?;
        let names: BTreeSet<&str> =
            self.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let lengths = self.tensors.iter().map(|tensor| tensor.name.len());
        let bytes = lengths.fold(0, usize::saturating_add);
        require(
            names.len() == self.tensors.len(),
            "model.tensors",
            self.tensors.len(),
            "two tensors have the same name",
        )?;
        require(
            bytes <= TENSOR_NAMES_BYTES_MAX,
            "model.tensors",
            format!("{bytes} bytes of names"),
            "the names of all tensors may have 196608 bytes",
        )?;
        match self.parameters() {
            Some(parameters) if (1..=PARAMETERS_MAX).contains(&parameters) => Ok(()),
            other => {
                let found = other.map_or_else(|| "too many".to_owned(), |n| n.to_string());
                let right =
                    "train 1 to 1000000000 numbers: choose them by trainable = [\"head.*\"]";
                Err(spec_error("model.trainable", found, right))
            }
        }
    }

    fn check_trainer(&self) -> Result<(), SpecError> {
        if !self.is_trainer() {
            return Ok(());
        }
        let is_known = match self.loss {
            ModelLoss::Output { .. } => true,
            ModelLoss::CrossEntropy { label_smoothing } => label_smoothing == Micro::ZERO,
            _ => false,
        };
        let right = "a trainer returns the loss of each row: cross_entropy without smoothing for rows \
                     with classes, output for others";
        require(is_known, "model.loss", "…", right)?;
        require(
            self.frozen.is_none(),
            "model.frozen",
            "…",
            "a trainer has its constants in its code",
        )
    }

    fn check_blobs(&self) -> Result<(), SpecError> {
        let code_max = if self.is_trainer() { TRAINER_BYTES_MAX } else { GRAPH_BYTES_MAX };
        for (key, blob, most) in [
            ("model.graph", Some(self.graph), code_max),
            ("model.frozen", self.frozen, BLOB_BYTES_MAX),
        ] {
            let Some(Blob { bytes, .. }) = blob else { continue };
            if bytes == 0 || bytes > most {
                let right = format!("must have 1 to {most} bytes");
                return Err(spec_error(key, format!("{bytes} bytes"), right));
            }
        }
        Ok(())
    }

    fn check_targets(&self) -> Result<(), SpecError> {
        let (right, fits) = match self.loss {
            ModelLoss::CrossEntropy { .. } => (
                "cross_entropy takes the row's label, with at least 2 classes, and no targets",
                self.targets == 0 && self.outputs >= 2,
            ),
            ModelLoss::TokenCrossEntropy { .. } => {
                ("token_cross_entropy needs outputs for at least 2 classes", self.outputs >= 2)
            }
            ModelLoss::Binary
            | ModelLoss::Squared { .. }
            | ModelLoss::Absolute { .. }
            | ModelLoss::Huber { .. } => {
                ("this loss needs one target for each output", self.targets == self.outputs)
            }
            ModelLoss::Output { .. } => {
                ("the output of this loss is one number a row", self.outputs == 1)
            }
        };
        require(fits, "model.targets", self.targets, right)
    }
}

#[cfg(test)]
#[path = "graph_model_tests.rs"]
mod tests;
