//! Model specifications of a task, and the order of their parameters.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::data::{CLASSES_MAX, Dataset, WIDTH_MAX};
use crate::graph::GraphModel;
use crate::loss::BoundedLoss;
use crate::params::{Params, ParamsError, same_length};
use crate::rng::{Purpose, rng, uniform};

/// Largest number of parameters of a model.
pub const PARAMETERS_MAX: usize = 100_000_000;
/// Largest number of hidden layers of an MLP.
pub const HIDDEN_LAYERS_MAX: usize = 16;
/// Largest number of units of a hidden layer.
pub const HIDDEN_MAX: usize = 65_536;
/// Largest number of filters of a convolution.
pub const FILTERS_MAX: usize = 4_096;
/// Largest number of rows or columns of an image.
pub const SIDE_MAX: usize = 1_024;
/// Smallest number of rows or columns of an image: after two poolings one pixel is left of four.
pub const SIDE_MIN: usize = 4;

/// The model specification in a task. Every model but a graph ends in `classes` logits, whose
/// cross-entropy is the loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ModelSpec {
    /// Softmax regression: one dense layer.
    Softmax {
        /// Number of features per row.
        inputs: usize,
        /// Number of classes.
        classes: usize,
    },
    /// Dense layers with ReLU between them.
    Mlp {
        /// Number of features per row.
        inputs: usize,
        /// Number of units of each hidden layer, first to last; at least one layer.
        hidden: Vec<usize>,
        /// Number of classes.
        classes: usize,
    },
    /// Two 3×3 convolutions with padding, each with ReLU and 2×2 max pooling, then one dense hidden
    /// layer with ReLU, then the logits. A row contains the channels one after another, each line
    /// by line.
    Cnn {
        /// Number of colour channels.
        channels: usize,
        /// Number of lines of an image.
        height: usize,
        /// Number of columns of an image.
        width: usize,
        /// Number of filters of the two convolutions.
        filters: [usize; 2],
        /// Number of units of the dense hidden layer.
        hidden: usize,
        /// Number of classes.
        classes: usize,
    },
    /// A graph of operators, of a task: no file of settings has one.
    #[serde(skip)]
    Graph(Box<GraphModel>),
}

/// A model specification is invalid, or does not fit the data.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum ModelError {
    /// A size is out of bounds.
    #[error("model: {key} is {value}: must be {min} to {max}")]
    Size {
        /// Name of the size.
        key: &'static str,
        /// The given value.
        value: usize,
        /// Smallest valid value.
        min: usize,
        /// Largest valid value.
        max: usize,
    },
    /// The total number of parameters exceeds the limit.
    #[error("model: {parameters} parameters: must be at most {PARAMETERS_MAX}")]
    TooManyParameters {
        /// Number of parameters.
        parameters: u128,
    },
    /// The data has another number of features than the model.
    #[error("the data has {width} features per row; the model {model} expects {inputs}")]
    Width {
        /// Features per row of the data.
        width: usize,
        /// Features per row of the model.
        inputs: usize,
        /// The model as text.
        model: String,
    },
    /// The data has more classes than the model.
    #[error("the data has {data} classes; the model {model} supports {classes}")]
    Classes {
        /// Classes of the data.
        data: usize,
        /// Classes of the model.
        classes: usize,
        /// The model as text.
        model: String,
    },
}

/// Name and shape of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// `layer0.weight`, `layer0.bias`, `layer1.weight`, …
    pub name: String,
    /// Outputs first: `[out, in]`, `[out]`, and `[out, in, 3, 3]` for a convolution; of a graph its own.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Sizes of a dense layer, for the engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dense {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
}

impl ModelSpec {
    /// Checks every size against its limits. Call it first on a model from outside: the other
    /// methods multiply without overflow checks.
    pub fn check(&self) -> Result<(), ModelError> {
        let within = |key, value, min, max| match value {
            value if (min..=max).contains(&value) => Ok(()),
            value => Err(ModelError::Size { key, value, min, max }),
        };
        let classes = match self {
            Self::Softmax { inputs, classes } => {
                within("inputs", *inputs, 1, WIDTH_MAX)?;
                classes
            }
            Self::Mlp { inputs, hidden, classes } => {
                within("inputs", *inputs, 1, WIDTH_MAX)?;
                within("number of hidden layers", hidden.len(), 1, HIDDEN_LAYERS_MAX)?;
                for &units in hidden {
                    within("hidden", units, 1, HIDDEN_MAX)?;
                }
                classes
            }
            Self::Cnn { channels, height, width, filters, hidden, classes } => {
                within("height", *height, SIDE_MIN, SIDE_MAX)?;
                within("width", *width, SIDE_MIN, SIDE_MAX)?;
                within("channels", *channels, 1, WIDTH_MAX / (height * width))?;
                within("filters", filters[0], 1, FILTERS_MAX)?;
                within("filters", filters[1], 1, FILTERS_MAX)?;
                within("hidden", *hidden, 1, HIDDEN_MAX)?;
                classes
            }
            // The protocol has checked its sizes.
            Self::Graph(_) => return self.check_parameters(),
        };
        within("classes", *classes, 2, CLASSES_MAX)?;
        self.check_parameters()
    }

    fn check_parameters(&self) -> Result<(), ModelError> {
        let shapes = self.shapes();
        let tensor = |shape: &Vec<usize>| shape.iter().map(|&side| side as u128).product::<u128>();
        let parameters = shapes.iter().map(tensor).sum();
        if parameters > PARAMETERS_MAX as u128 {
            return Err(ModelError::TooManyParameters { parameters });
        }
        Ok(())
    }

    /// Checks that rows and labels of `data` fit this model.
    pub fn check_data(&self, data: &Dataset) -> Result<(), ModelError> {
        self.check_shape(data.width(), data.classes())
    }

    /// Checks that rows of `width` features with labels below `data` fit this model.
    pub(crate) fn check_shape(&self, width: usize, data: usize) -> Result<(), ModelError> {
        let (inputs, classes) = (self.inputs(), self.classes());
        if width != inputs {
            return Err(ModelError::Width { width, inputs, model: self.to_string() });
        }
        if data > classes {
            return Err(ModelError::Classes { data, classes, model: self.to_string() });
        }
        Ok(())
    }

    /// Whether the model is a trainer.
    pub fn is_trainer(&self) -> bool {
        matches!(self, Self::Graph(graph) if graph.is_trainer())
    }

    /// Whether the gradient of the loss can be computed.
    pub fn has_gradient(&self) -> bool {
        !matches!(self, Self::Graph(graph) if !graph.has_gradient())
    }

    /// The smallest and the largest bounded loss of a row.
    pub fn loss_range(&self) -> (f64, f64) {
        match self {
            Self::Graph(graph) => graph.loss_range(),
            _ => (0.0, BoundedLoss::new(self.classes()).largest()),
        }
    }

    /// The bounded loss of a row, and its derivative, from the loss that a trainer returned.
    pub(crate) fn bound(&self, loss: f64) -> (f64, f64) {
        match self {
            Self::Graph(graph) => graph.declaration().loss.bound(loss, self.classes()),
            _ => BoundedLoss::new(self.classes()).of_cross_entropy(loss),
        }
    }

    /// Numbers per row: features, and a graph's targets.
    pub fn inputs(&self) -> usize {
        match self {
            Self::Softmax { inputs, .. } | Self::Mlp { inputs, .. } => *inputs,
            Self::Cnn { channels, height, width, .. } => channels * height * width,
            Self::Graph(graph) => graph.width(),
        }
    }

    /// Number of classes of a label, which is the number of logits; 1 for a graph without labels.
    pub fn classes(&self) -> usize {
        match self {
            Self::Softmax { classes, .. }
            | Self::Mlp { classes, .. }
            | Self::Cnn { classes, .. } => *classes,
            Self::Graph(graph) => graph.classes(),
        }
    }

    /// The dense layers, first to last: all layers of a softmax or MLP model, the last layers of a
    /// CNN, none of a graph.
    pub(crate) fn dense(&self) -> Vec<Dense> {
        let (inputs, hidden, classes) = match self {
            Self::Softmax { inputs, classes } => (*inputs, &[][..], *classes),
            Self::Mlp { inputs, hidden, classes } => (*inputs, hidden.as_slice(), *classes),
            Self::Cnn { height, width, filters, hidden, classes, .. } => {
                let inputs = filters[1] * (height / 2 / 2) * (width / 2 / 2);
                (inputs, std::slice::from_ref(hidden), *classes)
            }
            Self::Graph(_) => return Vec::new(),
        };
        let mut layers = Vec::with_capacity(hidden.len() + 1);
        let mut from = inputs;
        for &outputs in hidden.iter().chain([&classes]) {
            layers.push(Dense { inputs: from, outputs });
            from = outputs;
        }
        layers
    }

    /// Shapes of all tensors in order: for each layer the weight, then the bias.
    fn shapes(&self) -> Vec<Vec<usize>> {
        if let Self::Graph(graph) = self {
            let tensors = &graph.declaration().tensors;
            return tensors.iter().map(|tensor| tensor.shape.clone()).collect();
        }
        let mut shapes = Vec::new();
        if let Self::Cnn { channels, filters, .. } = self {
            shapes.extend([vec![filters[0], *channels, 3, 3], vec![filters[0]]]);
            shapes.extend([vec![filters[1], filters[0], 3, 3], vec![filters[1]]]);
        }
        for Dense { inputs, outputs } in self.dense() {
            shapes.extend([vec![outputs, inputs], vec![outputs]]);
        }
        shapes
    }

    /// All tensors in their order in [`Params`] and in files.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        if let Self::Graph(graph) = self {
            return graph.declaration().tensors.clone();
        }
        let named = |(at, shape)| {
            let part = if at % 2 == 0 { "weight" } else { "bias" };
            TensorSpec { name: format!("layer{}.{part}", at / 2), shape }
        };
        self.shapes().into_iter().enumerate().map(named).collect()
    }

    /// The range of each tensor in the flat parameter vector.
    pub(crate) fn ranges(&self) -> Vec<Range<usize>> {
        let mut from = 0;
        let range = |shape: Vec<usize>| {
            let range = from..from + shape.iter().product::<usize>();
            from = range.end;
            range
        };
        self.shapes().into_iter().map(range).collect()
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.ranges().last().map_or(0, |range| range.end)
    }

    /// Initial parameters: weights uniform within ±√(6 / inputs of the unit) (He), biases zero. The
    /// same seed gives the same bits on every machine. A graph's come from its buyer instead.
    pub fn init(&self, seed: u64) -> Params {
        let mut rng = rng(seed, Purpose::Init, 0);
        let mut values = Vec::with_capacity(self.parameters());
        for shape in self.shapes() {
            let numbers: usize = shape.iter().product();
            if shape.len() == 1 {
                values.resize(values.len() + numbers, 0.0);
                continue;
            }
            let inputs = (numbers / shape[0]) as f64;
            let bound = (6.0 / inputs).sqrt();
            values.extend((0..numbers).map(|_| ((2.0 * uniform(&mut rng) - 1.0) * bound) as f32));
        }
        Params::from_flat(values)
    }
}

impl Params {
    /// Uses `values` as the parameters of `model`, if their number matches.
    pub fn for_model(model: &ModelSpec, values: Vec<f32>) -> Result<Self, ParamsError> {
        same_length(model.parameters(), values.len())?;
        Ok(Self::from_flat(values))
    }
}

impl fmt::Display for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Softmax { inputs, classes } => write!(f, "softmax {inputs}-{classes}"),
            Self::Mlp { inputs, hidden, classes } => {
                write!(f, "mlp {inputs}-")?;
                hidden.iter().try_for_each(|units| write!(f, "{units}-"))?;
                write!(f, "{classes}")
            }
            Self::Cnn { channels, height, width, filters: [a, b], hidden, classes } => {
                write!(f, "cnn {channels}x{height}x{width}-{a}-{b}-{hidden}-{classes}")
            }
            Self::Graph(graph) => graph.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cnn() -> ModelSpec {
        let filters = [2, 3];
        ModelSpec::Cnn { channels: 1, height: 9, width: 8, filters, hidden: 5, classes: 4 }
    }

    #[test]
    fn tensors_have_a_fixed_order() {
        let mlp = ModelSpec::Mlp { inputs: 4, hidden: vec![3, 2], classes: 5 };
        let listed: Vec<String> = mlp
            .tensors()
            .iter()
            .map(|tensor| format!("{} {:?}", tensor.name, tensor.shape))
            .collect();
        let expected = [
            "layer0.weight [3, 4]",
            "layer0.bias [3]",
            "layer1.weight [2, 3]",
            "layer1.bias [2]",
            "layer2.weight [5, 2]",
            "layer2.bias [5]",
        ];
        assert_eq!(listed, expected);
        assert_eq!(mlp.parameters(), 12 + 3 + 6 + 2 + 10 + 5);
        // 9×8 pools to 4×4 and then to 2×2.
        assert_eq!(cnn().tensors()[4].shape, [5, 3 * 2 * 2]);
        assert_eq!(cnn().parameters(), 18 + 2 + 54 + 3 + 60 + 5 + 20 + 4);
    }

    #[test]
    fn sizes_out_of_bounds_are_refused_with_key_value_and_bounds() {
        let table = [
            (ModelSpec::Softmax { inputs: 0, classes: 2 }, "inputs is 0: must be 1 to"),
            (ModelSpec::Softmax { inputs: 1, classes: 1 }, "classes is 1: must be 2 to 65536"),
            (
                ModelSpec::Mlp { inputs: 1, hidden: vec![], classes: 2 },
                "number of hidden layers is 0: must be 1 to 16",
            ),
            (ModelSpec::Mlp { inputs: 1, hidden: vec![0], classes: 2 }, "hidden is 0"),
            (
                ModelSpec::Mlp { inputs: 1 << 20, hidden: vec![1000], classes: 2 },
                "parameters: must be at most 100000000",
            ),
            (
                ModelSpec::Cnn {
                    channels: 1,
                    height: 3,
                    width: 8,
                    filters: [1, 1],
                    hidden: 1,
                    classes: 2,
                },
                "height is 3: must be 4 to 1024",
            ),
            (
                ModelSpec::Cnn {
                    channels: usize::MAX,
                    height: 8,
                    width: 8,
                    filters: [1, 1],
                    hidden: 1,
                    classes: 2,
                },
                "channels is",
            ),
        ];
        for (model, message) in table {
            let error = model.check().unwrap_err().to_string();
            assert!(error.contains(message), "{model}: {error}");
        }
        assert_eq!(cnn().check(), Ok(()));
    }

    #[test]
    fn data_that_does_not_fit_is_refused() {
        let model = ModelSpec::Softmax { inputs: 2, classes: 3 };
        let narrow = Dataset::new(vec![1.0], vec![0], 1, 3).unwrap();
        let error = model.check_data(&narrow).unwrap_err().to_string();
        assert_eq!(error, "the data has 1 features per row; the model softmax 2-3 expects 2");
        let many = Dataset::new(vec![1.0, 2.0], vec![3], 2, 4).unwrap();
        let error = model.check_data(&many).unwrap_err().to_string();
        assert_eq!(error, "the data has 4 classes; the model softmax 2-3 supports 3");
    }

    #[test]
    fn initial_parameters_repeat_from_the_seed_and_stay_within_bounds() {
        let model = cnn();
        let start = model.init(9);
        assert_eq!(start, model.init(9));
        assert_ne!(start, model.init(10));
        for (tensor, range) in model.tensors().iter().zip(model.ranges()) {
            let bound = match tensor.shape.as_slice() {
                [_] => 0.0,
                shape => (6.0 / shape[1..].iter().product::<usize>() as f32).sqrt(),
            };
            let numbers = &start.as_slice()[range];
            assert!(numbers.iter().all(|value| value.abs() <= bound), "{}", tensor.name);
            assert!(bound == 0.0 || numbers.iter().any(|value| value.abs() > bound / 2.0));
        }
    }

    #[test]
    fn unknown_keys_are_refused() {
        let text = r#"{"kind":"mlp","inputs":4,"hidden":[8],"classes":3}"#;
        let model: ModelSpec = serde_json::from_str(text).unwrap();
        assert_eq!(model.to_string(), "mlp 4-8-3");
        assert_eq!(serde_json::to_string(&model).unwrap(), text);
        let wrong = text.replace("hidden", "layers");
        assert!(serde_json::from_str::<ModelSpec>(&wrong).is_err());
    }
}
