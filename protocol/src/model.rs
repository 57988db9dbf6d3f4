//! A declared model: its architecture, input width, number of classes, number of parameters, and
//! validity; and the schema of its rows.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::encoding::RowEncoding;
use crate::graph_model::GraphModel;
use crate::limits::{HIDDEN_LAYERS_MAX, LAYER_UNITS_MAX, PARAMETERS_MAX};
use crate::spec_error::{SpecError, spec_error};

/// A model architecture.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum ModelArchitecture {
    /// Multinomial logistic regression.
    Softmax {
        /// Features of a row.
        inputs: u32,
        /// Number of classes.
        classes: u32,
    },
    /// Fully connected layers with ReLU between them.
    Mlp {
        /// Features of a row.
        inputs: u32,
        /// Units of each hidden layer.
        hidden: Vec<u32>,
        /// Number of classes.
        classes: u32,
    },
    /// Two 3×3 convolutions with ReLU and 2×2 pooling, then one hidden layer.
    Cnn {
        /// Channels of an image.
        channels: u32,
        /// Rows of pixels.
        height: u32,
        /// Columns of pixels.
        width: u32,
        /// Filters of the two convolutions.
        filters: [u32; 2],
        /// Units of the hidden layer.
        hidden: u32,
        /// Number of classes.
        classes: u32,
    },
    /// Any other model, as a graph of operators.
    Graph(GraphModel),
}

/// Schema of the rows: the buyer's specification for participants.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct DataSchema {
    /// Features of a row.
    pub width: u32,
    /// Number of classes; labels are `0..classes`.
    pub classes: u32,
    /// Encoding of the participants' tables. `None`: features and labels are used as they are.
    pub encoding: Option<RowEncoding>,
}

impl ModelArchitecture {
    /// The declaration of a model that is a trainer; `None` for any other model.
    #[must_use]
    pub fn trainer(&self) -> Option<&GraphModel> {
        match self {
            Self::Graph(graph) if graph.is_trainer() => Some(graph),
            _ => None,
        }
    }

    /// Numbers of a row, targets included; `None` on overflow.
    #[must_use]
    pub fn inputs(&self) -> Option<u32> {
        match self {
            Self::Softmax { inputs, .. } | Self::Mlp { inputs, .. } => Some(*inputs),
            Self::Cnn { channels, height, width, .. } => {
                channels.checked_mul(*height)?.checked_mul(*width)
            }
            Self::Graph(graph) => graph.width(),
        }
    }

    /// The valid width of the data, for a message.
    pub(crate) fn width_in_words(&self) -> String {
        match self {
            Self::Graph(GraphModel { inputs, targets: targets @ 1.., .. }) => format!(
                "the model takes {inputs} features, and its loss {targets} targets: make it their sum"
            ),
            _ => {
                let inputs = self.inputs().unwrap_or_default();
                format!("the model takes {inputs} features: make both equal")
            }
        }
    }

    /// Number of classes of a label; 1 for a model without labels.
    #[must_use]
    pub fn classes(&self) -> u32 {
        match self {
            Self::Softmax { classes, .. }
            | Self::Mlp { classes, .. }
            | Self::Cnn { classes, .. } => *classes,
            Self::Graph(graph) => graph.classes(),
        }
    }

    /// Whether the loss is a cross-entropy in nats; others have no scale that all tasks share.
    #[must_use]
    pub const fn is_loss_in_nats(&self) -> bool {
        match self {
            Self::Graph(graph) => graph.loss.is_in_nats(),
            Self::Softmax { .. } | Self::Mlp { .. } | Self::Cnn { .. } => true,
        }
    }

    /// Whether the prediction for a row is right or wrong.
    #[must_use]
    pub const fn has_predictions(&self) -> bool {
        match self {
            Self::Graph(graph) => graph.loss.has_predictions(),
            Self::Softmax { .. } | Self::Mlp { .. } | Self::Cnn { .. } => true,
        }
    }

    /// Number of parameters; `None` on overflow.
    #[must_use]
    pub fn parameters(&self) -> Option<u64> {
        let dense = |i: u64, o: u64| i.checked_add(1)?.checked_mul(o);
        match self {
            Self::Softmax { inputs, classes } => dense((*inputs).into(), (*classes).into()),
            Self::Mlp { inputs, hidden, classes } => {
                let mut from = u64::from(*inputs);
                let mut sum = 0u64;
                for to in hidden.iter().chain([classes]) {
                    sum = sum.checked_add(dense(from, (*to).into())?)?;
                    from = (*to).into();
                }
                Some(sum)
            }
            Self::Cnn { channels, height, width, filters: [a, b], hidden, classes } => {
                let conv = |i: u64, o: u64| i.checked_mul(9)?.checked_add(1)?.checked_mul(o);
                let pooled = |side: &u32| u64::from(side.checked_div(4).unwrap_or_default());
                let flat = pooled(height).checked_mul(pooled(width))?.checked_mul((*b).into())?;
                conv((*channels).into(), (*a).into())?
                    .checked_add(conv((*a).into(), (*b).into())?)?
                    .checked_add(dense(flat, (*hidden).into())?)?
                    .checked_add(dense((*hidden).into(), (*classes).into())?)
            }
            Self::Graph(graph) => graph.parameters(),
        }
    }

    fn layers(&self) -> Vec<u32> {
        match self {
            Self::Softmax { inputs, classes } => vec![*inputs, *classes],
            Self::Mlp { inputs, hidden, classes } => {
                let mut all = vec![*inputs];
                all.extend(hidden);
                all.push(*classes);
                all
            }
            Self::Cnn { channels, height, width, filters, hidden, classes } => {
                let mut all = vec![*channels, *height, *width, *hidden, *classes];
                all.extend(filters);
                all
            }
            Self::Graph(_) => Vec::new(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), SpecError> {
        if let Self::Graph(graph) = self {
            return graph.check();
        }
        let wrong = |right: &str| Err(spec_error("model", format!("{self:?}"), right));
        if self.layers().iter().any(|units| *units == 0 || *units > LAYER_UNITS_MAX) {
            return wrong("every layer size must be 1 to 65536");
        }
        if self.classes() < 2 {
            return wrong("a model needs at least 2 classes");
        }
        if let Self::Mlp { hidden, .. } = self
            && (hidden.is_empty() || hidden.len() > HIDDEN_LAYERS_MAX)
        {
            return wrong("an MLP has 1 to 16 hidden layers; without one, use kind = \"softmax\"");
        }
        if let Self::Cnn { height, width, .. } = self
            && (*height < 4 || *width < 4)
        {
            return wrong("images must be at least 4 by 4 pixels: the network pools twice");
        }
        match self.parameters() {
            Some(n) if n <= PARAMETERS_MAX => Ok(()),
            _ => wrong("the model must have at most 1000000000 parameters"),
        }
    }
}
