//! The graphs by whose steps a device is measured: perceptrons, convolutions with batch norm,
//! transformers, recurrent layers and chains of element-wise operators, in sizes that make each kind of
//! work the largest once; some of them by Adam.

use crate::graph::{
    Argument, BufferPolicy, DataType, Dimension, Graph, GraphDeclaration, GraphError, GraphForm,
    GraphInput, GraphLoss, GraphModel, GraphParts, GraphWeights, InputRole, IntArgument, Node,
    NodeOutput, Operation, TensorType, ValueId, WeightTensor, split,
};
use crate::training::{Betas, Optimizer, Training};

/// Classes, or words, of every graph.
const CLASSES: usize = 32;
const LEARNING_RATE: f64 = 1e-3;
const ADAM: Optimizer = Optimizer::Adam(Betas { beta1: 0.9, beta2: 0.999 });
/// Weights are small and not all equal.
const WEIGHT_STEP: f32 = 1e-3;

/// A graph of the suite with the batches at which it is measured.
pub(super) struct SuiteCase {
    pub(super) graph: Graph,
    weights: GraphWeights,
    pub(super) batches: Vec<u32>,
    /// Whether the input are tokens.
    pub(super) is_text: bool,
    /// Numbers of a row.
    pub(super) inputs: usize,
    pub(super) optimizer: Optimizer,
}

impl SuiteCase {
    /// The same with another optimizer.
    fn by(self, optimizer: Optimizer) -> Self {
        Self { optimizer, ..self }
    }

    /// A training with steps of `batch` rows.
    pub(super) fn training(&self, batch: u32) -> Training {
        Training { optimizer: self.optimizer, ..Training::sgd(1, batch, LEARNING_RATE) }
    }

    /// The model with its initial parameters.
    pub(super) fn model(&self) -> Result<(GraphModel, Vec<f32>), GraphError> {
        let all = ["*".to_owned()];
        let parts = split(&self.graph, &self.weights, &all, BufferPolicy::Average)?;
        let GraphParts { graph, tensors, initial, frozen, inputs } = parts;
        let label_smoothing = 0.0;
        let loss = match self.is_text {
            true => GraphLoss::TokenCrossEntropy { label_smoothing },
            false => GraphLoss::CrossEntropy { label_smoothing },
        };
        let declaration = GraphDeclaration {
            form: GraphForm::Operators,
            digest: [0; 32],
            inputs,
            targets: 0,
            outputs: CLASSES,
            loss,
            tensors,
        };
        Ok((GraphModel::load(declaration, &graph, frozen.as_deref())?, initial))
    }
}

/// All cases.
pub(super) fn cases() -> Vec<SuiteCase> {
    vec![
        perceptron(16, 2, &[1, 64]),
        perceptron(32, 10, &[4, 256]),
        perceptron(128, 4, &[32]),
        perceptron(256, 3, &[8, 64, 256]),
        perceptron(768, 2, &[16, 64]),
        convolutions(4, 4, 3, 2, &[2, 16]),
        convolutions(4, 8, 1, 8, &[2]),
        convolutions(8, 16, 3, 6, &[2, 16]),
        convolutions(16, 32, 3, 3, &[4, 16]),
        convolutions(32, 16, 3, 4, &[8, 32]),
        convolutions(64, 8, 3, 3, &[8, 32]),
        convolutions(64, 16, 1, 3, &[8, 16]),
        convolutions(128, 8, 3, 2, &[8]),
        transformer(8, 2, 4, 1, &[2]),
        transformer(16, 2, 8, 4, &[2, 8]),
        transformer(32, 2, 16, 2, &[2, 16]),
        transformer(64, 4, 32, 3, &[4]),
        transformer(128, 4, 64, 2, &[2, 8]),
        transformer(128, 4, 256, 1, &[2]),
        transformer(192, 3, 32, 3, &[4, 16]),
        elements(16, &[1]),
        elements(4_096, &[4, 32, 128]),
        elements(65_536, &[2, 8]),
        perceptron(16, 2, &[4]).by(ADAM),
        perceptron(256, 3, &[8, 64]).by(ADAM),
        perceptron(768, 2, &[16]).by(ADAM),
        perceptron(1_024, 2, &[8]).by(ADAM),
        convolutions(64, 8, 3, 3, &[8]).by(ADAM),
        transformer(128, 4, 64, 2, &[2]).by(ADAM),
    ]
}

/// A graph in the making: inputs come before nodes.
struct Builder {
    graph: Graph,
    weights: GraphWeights,
}

impl Builder {
    fn new(data_type: DataType, sizes: &[u64]) -> (Self, ValueId) {
        let mut builder =
            Self { graph: Graph::default(), weights: GraphWeights { tensors: Vec::new() } };
        let fixed = sizes.iter().map(|&size| Dimension::Fixed(size));
        let shape = [Dimension::Symbol(0)].into_iter().chain(fixed).collect();
        let tensor = TensorType { data_type, shape };
        builder.graph.inputs.push(GraphInput { role: InputRole::User, tensor });
        (builder, ValueId(0))
    }

    fn stored(&mut self, role: InputRole, sizes: &[u64], number: impl Fn(usize) -> f32) -> ValueId {
        let id = ValueId(self.graph.inputs.len() as u32);
        let shape = sizes.iter().map(|&size| Dimension::Fixed(size)).collect();
        let tensor = TensorType { data_type: DataType::F32, shape };
        self.graph.inputs.push(GraphInput { role, tensor });
        let count = sizes.iter().product::<u64>() as usize;
        let bytes = (0..count).flat_map(|at| number(at).to_le_bytes()).collect();
        let sizes = sizes.to_vec();
        self.weights.tensors.push(WeightTensor { data_type: DataType::F32, sizes, bytes });
        id
    }

    fn parameter(&mut self, sizes: &[u64]) -> ValueId {
        let name = format!("p{:03}", self.graph.inputs.len());
        let number = |at: usize| (at % 17) as f32 * WEIGHT_STEP - 8.0 * WEIGHT_STEP;
        self.stored(InputRole::Parameter(name), sizes, number)
    }

    fn buffer(&mut self, size: u64, number: f32) -> ValueId {
        let name = format!("b{:03}", self.graph.inputs.len());
        self.stored(InputRole::Buffer(name), &[size], |_| number)
    }

    fn node(&mut self, name: &str, arguments: Vec<(&str, Argument)>) -> ValueId {
        self.graph.values = self.graph.values.max(self.graph.inputs.len() as u32);
        let id = ValueId(self.graph.values);
        self.graph.values += 1;
        self.graph.nodes.push(Node {
            operation: Operation::Aten(name.to_owned()),
            gradients: true,
            arguments: arguments.into_iter().map(|(name, own)| (name.to_owned(), own)).collect(),
            outputs: vec![NodeOutput::Value(id)],
        });
        id
    }

    fn linear(&mut self, input: ValueId, layer: (ValueId, ValueId)) -> ValueId {
        let arguments = vec![("input", value(input)), ("weight", value(layer.0))];
        self.node("linear", [arguments, vec![("bias", value(layer.1))]].concat())
    }

    fn one(&mut self, name: &str, input: ValueId) -> ValueId {
        self.node(name, vec![("self", value(input))])
    }

    fn add(&mut self, left: ValueId, right: ValueId) -> ValueId {
        self.node("add.Tensor", vec![("self", value(left)), ("other", value(right))])
    }

    fn done(mut self, output: ValueId, inputs: usize, is_text: bool, batches: &[u32]) -> SuiteCase {
        self.graph.outputs = vec![value(output)];
        let (graph, weights) = (self.graph, self.weights);
        let (batches, optimizer) = (batches.to_vec(), Optimizer::Sgd);
        SuiteCase { graph, weights, batches, is_text, inputs, optimizer }
    }
}

fn value(id: ValueId) -> Argument {
    Argument::Value(id)
}

fn integers(all: &[i64]) -> Argument {
    Argument::Ints(all.iter().map(|&integer| IntArgument::Fixed(integer)).collect())
}

pub(super) fn perceptron(width: u64, depth: usize, batches: &[u32]) -> SuiteCase {
    let (mut build, mut x) = Builder::new(DataType::F32, &[width]);
    let layers: Vec<_> =
        (0..depth).map(|_| (build.parameter(&[width, width]), build.parameter(&[width]))).collect();
    let last = (build.parameter(&[CLASSES as u64, width]), build.parameter(&[CLASSES as u64]));
    for layer in layers {
        let y = build.linear(x, layer);
        x = build.one("relu", y);
    }
    let output = build.linear(x, last);
    build.done(output, width as usize, false, batches)
}

pub(super) fn convolutions(
    channels: u64,
    side: u64,
    kernel: u64,
    depth: usize,
    batches: &[u32],
) -> SuiteCase {
    let (mut build, mut x) = Builder::new(DataType::F32, &[channels, side, side]);
    let layers: Vec<_> = (0..depth)
        .map(|_| {
            let weight = build.parameter(&[channels, channels, kernel, kernel]);
            let norm = (build.parameter(&[channels]), build.parameter(&[channels]));
            (weight, norm, build.buffer(channels, 0.0), build.buffer(channels, 1.0))
        })
        .collect();
    let last = (build.parameter(&[CLASSES as u64, channels]), build.parameter(&[CLASSES as u64]));
    let padding = (kernel / 2) as i64;
    for (weight, norm, mean, variance) in layers {
        let arguments = vec![
            ("input", value(x)),
            ("weight", value(weight)),
            ("bias", Argument::None),
            ("stride", integers(&[1, 1])),
            ("padding", integers(&[padding, padding])),
        ];
        let y = build.node("conv2d", arguments);
        let arguments = vec![
            ("input", value(y)),
            ("weight", value(norm.0)),
            ("bias", value(norm.1)),
            ("running_mean", value(mean)),
            ("running_var", value(variance)),
            ("training", Argument::Bool(true)),
            ("momentum", Argument::Float(0.1_f64.to_bits())),
            ("eps", Argument::Float(1e-5_f64.to_bits())),
            ("cudnn_enabled", Argument::Bool(true)),
        ];
        let y = build.node("batch_norm", arguments);
        x = build.one("relu", y);
    }
    let pooled = build.node("mean.dim", vec![("self", value(x)), ("dim", integers(&[2, 3]))]);
    let output = build.linear(pooled, last);
    build.done(output, (channels * side * side) as usize, false, batches)
}

pub(super) fn transformer(
    width: u64,
    heads: u64,
    tokens: u64,
    depth: usize,
    batches: &[u32],
) -> SuiteCase {
    let (mut build, input) = Builder::new(DataType::I64, &[tokens]);
    let words = build.parameter(&[CLASSES as u64, width]);
    let dense = |build: &mut Builder, from: u64, to: u64| {
        (build.parameter(&[to, from]), build.parameter(&[to]))
    };
    let layers: Vec<_> = (0..depth)
        .map(|_| {
            let norms = [(); 2].map(|()| (build.parameter(&[width]), build.parameter(&[width])));
            let mixes = [(); 4].map(|()| dense(&mut build, width, width));
            let wide = (dense(&mut build, width, 4 * width), dense(&mut build, 4 * width, width));
            (norms, mixes, wide)
        })
        .collect();
    let last = dense(&mut build, width, CLASSES as u64);
    let mut x = build.node("embedding", vec![("weight", value(words)), ("indices", value(input))]);
    let norm = |build: &mut Builder, x: ValueId, (weight, bias): (ValueId, ValueId)| {
        let arguments = vec![
            ("input", value(x)),
            ("normalized_shape", integers(&[width as i64])),
            ("weight", value(weight)),
            ("bias", value(bias)),
        ];
        build.node("layer_norm", arguments)
    };
    for (norms, mixes, (up, down)) in layers {
        let y = norm(&mut build, x, norms[0]);
        let split = [-1, tokens as i64, heads as i64, (width / heads) as i64];
        let [query, key, last] = [mixes[0], mixes[1], mixes[2]].map(|mix| {
            let mixed = build.linear(y, mix);
            let arguments = vec![("self", value(mixed)), ("shape", integers(&split))];
            let split = build.node("reshape", arguments);
            let dims = [("dim0", Argument::Int(1)), ("dim1", Argument::Int(2))];
            build.node("transpose.int", [vec![("self", value(split))], dims.to_vec()].concat())
        });
        let arguments = vec![("query", value(query)), ("key", value(key)), ("value", value(last))];
        let attended = build.node("scaled_dot_product_attention", arguments);
        let dims = [("dim0", Argument::Int(1)), ("dim1", Argument::Int(2))];
        let back = [vec![("self", value(attended))], dims.to_vec()].concat();
        let back = build.node("transpose.int", back);
        let shape = integers(&[-1, tokens as i64, width as i64]);
        let joined = build.node("reshape", vec![("self", value(back)), ("shape", shape)]);
        let y = build.linear(joined, mixes[3]);
        x = build.add(x, y);
        let y = norm(&mut build, x, norms[1]);
        let y = build.linear(y, up);
        let y = build.one("gelu", y);
        let y = build.linear(y, down);
        x = build.add(x, y);
    }
    let output = build.linear(x, last);
    build.done(output, tokens as usize, true, batches)
}

pub(super) fn elements(size: u64, batches: &[u32]) -> SuiteCase {
    let (mut build, input) = Builder::new(DataType::F32, &[size]);
    let factor = build.parameter(&[size]);
    let last = (build.parameter(&[CLASSES as u64, 16]), build.parameter(&[CLASSES as u64]));
    let product = vec![("self", value(input)), ("other", value(factor))];
    let mut x = build.node("mul.Tensor", product);
    for name in ["relu", "tanh", "relu", "gelu", "relu", "sigmoid"] {
        let y = build.one(name, x);
        x = build.add(y, x);
    }
    let shape = integers(&[-1, size as i64 / 16, 16]);
    let folded = build.node("reshape", vec![("self", value(x)), ("shape", shape)]);
    let mean = build.node("mean.dim", vec![("self", value(folded)), ("dim", integers(&[1]))]);
    let output = build.linear(mean, last);
    build.done(output, size as usize, false, batches)
}
