//! Each operator against libtorch, with its derivatives.

use super::support::OPERATORS;
use super::*;
use crate::graph::{
    Argument, Dimension, Graph, GraphInput, InputRole, IntArgument, Node, NodeOutput, Operation,
    TensorType, find_operator,
};

/// Operators with the sizes of their inputs and their arguments. Inputs: `2x3` real numbers, `p2x3`
/// positive ones, `i5:2x3` integers from 0 to 4, `b2x3` truth values. Arguments: `@0` an input, `[@0,@1]`
/// inputs, `3` an integer, `[1,2]` integers, `0.5` a real number, `true`, and `'text'`.
// libtorch has the inverse of celu's alpha in `f32`: its derivative is exact for a power of two.
const CASES: &[(&str, &str, &str)] = &[
    ("linear", "2x3x4 5x4 5", "input=@0 weight=@1 bias=@2"),
    ("linear", "3x4 5x4", "input=@0 weight=@1"),
    ("matmul", "2x3x4 4x5", "self=@0 other=@1"),
    ("matmul", "2x1x3x4 3x4x5", "self=@0 other=@1"),
    ("matmul", "4 4x5", "self=@0 other=@1"),
    ("matmul", "2x3x4 4", "self=@0 other=@1"),
    ("matmul", "4 4", "self=@0 other=@1"),
    ("mm", "3x4 4x2", "self=@0 mat2=@1"),
    ("bmm", "2x3x4 2x4x2", "self=@0 mat2=@1"),
    ("addmm", "2 3x4 4x2", "self=@0 mat1=@1 mat2=@2 beta=0.5 alpha=2"),
    ("baddbmm", "2x3x2 2x3x4 2x4x2", "self=@0 batch1=@1 batch2=@2"),
    ("mv", "3x4 4", "self=@0 vec=@1"),
    ("dot", "4 4", "self=@0 tensor=@1"),
    ("einsum", "2x3x4 5x4", "equation='btc,dc->btd' tensors=[@0,@1]"),
    ("einsum", "2x3x4 2x5x4", "equation='bic,bjc->bji' tensors=[@0,@1]"),
    ("scaled_dot_product_attention", "2x2x3x4 2x2x5x4 2x2x5x3", "query=@0 key=@1 value=@2"),
    (
        "scaled_dot_product_attention",
        "2x2x3x4 2x2x3x4 2x2x3x4",
        "query=@0 key=@1 value=@2 is_causal=true scale=0.3",
    ),
    (
        "scaled_dot_product_attention",
        "2x4x3x4 2x2x3x4 2x2x3x4 3x3",
        "query=@0 key=@1 value=@2 attn_mask=@3 enable_gqa=true",
    ),
    ("conv1d", "2x4x7 6x2x3 6", "input=@0 weight=@1 bias=@2 stride=[2] padding=[1] groups=2"),
    ("conv2d", "2x3x6x5 4x3x3x2", "input=@0 weight=@1 stride=[2,1] padding=[1,0] dilation=[1,2]"),
    ("conv2d.padding", "2x3x6x5 4x3x3x3 4", "input=@0 weight=@1 bias=@2 padding='same'"),
    ("conv_transpose1d", "2x4x5 4x3x3", "input=@0 weight=@1 stride=[2] padding=[1]"),
    (
        "conv_transpose2d.input",
        "2x4x3x4 4x3x3x2 6",
        "input=@0 weight=@1 bias=@2 stride=[2,1] padding=[1,0] output_padding=[1,0] groups=2",
    ),
    ("max_pool1d", "2x3x7", "self=@0 kernel_size=[3] stride=[2] padding=[1]"),
    ("max_pool2d", "2x3x6x5", "self=@0 kernel_size=[2,2]"),
    ("avg_pool2d", "2x3x6x6", "self=@0 kernel_size=[3,3] stride=[2,2] padding=[1,1]"),
    (
        "avg_pool2d",
        "2x3x6x6",
        "self=@0 kernel_size=[3,3] stride=[3,3] padding=[1,1] count_include_pad=false",
    ),
    ("avg_pool1d", "2x3x6", "self=@0 kernel_size=[2]"),
    ("adaptive_avg_pool2d", "2x3x7x5", "self=@0 output_size=[3,2]"),
    ("adaptive_avg_pool1d", "2x3x7", "self=@0 output_size=[1]"),
    ("pad", "2x3x4", "self=@0 pad=[1,2] mode='constant' value=0.5"),
    ("constant_pad_nd", "2x3x4", "self=@0 pad=[1,-1,0,2]"),
    ("upsample_nearest2d.vec", "2x3x2x3", "input=@0 output_size=[4,6] scale_factors=none"),
    (
        "upsample_bilinear2d.vec",
        "2x3x3x4",
        "input=@0 output_size=[5,7] align_corners=false scale_factors=none",
    ),
    (
        "upsample_bilinear2d.vec",
        "2x3x3x4",
        "input=@0 output_size=[6,8] align_corners=true scale_factors=none",
    ),
    ("layer_norm", "2x3x4 3x4 3x4", "input=@0 normalized_shape=[3,4] weight=@1 bias=@2"),
    ("rms_norm", "2x3x4 4", "input=@0 normalized_shape=[4] weight=@1 eps=1e-3"),
    ("group_norm", "2x4x3 4 4", "input=@0 num_groups=2 weight=@1 bias=@2"),
    (
        "batch_norm",
        "3x2x4 2 2 2 p2",
        "input=@0 weight=@1 bias=@2 running_mean=@3 running_var=@4 training=true momentum=0.1 \
         eps=1e-5 cudnn_enabled=false",
    ),
    (
        "instance_norm",
        "3x2x4 2 2",
        "input=@0 weight=@1 bias=@2 running_mean=none running_var=none use_input_stats=true \
         momentum=0.1 eps=1e-5 cudnn_enabled=false",
    ),
    ("softmax.int", "2x3x4", "self=@0 dim=1"),
    ("log_softmax.int", "2x3x4", "self=@0 dim=-1"),
    ("logsumexp", "2x3x4", "self=@0 dim=[1] keepdim=true"),
    ("sum", "2x3", "self=@0"),
    ("sum.dim_IntList", "2x3x4", "self=@0 dim=[0,2]"),
    ("mean.dim", "2x3x4", "self=@0 dim=[-1] keepdim=true"),
    ("mean", "2x3", "self=@0"),
    ("var.correction", "2x3x4", "self=@0 dim=[1] correction=1"),
    ("var.dim", "2x3x4", "self=@0 dim=[1] unbiased=false"),
    ("std.correction", "2x3x4", "self=@0 dim=[2] correction=0"),
    ("amax", "2x3x4", "self=@0 dim=[1]"),
    ("amin", "2x3x4", "self=@0 dim=[1,2]"),
    ("max", "2x3", "self=@0"),
    ("max.dim", "2x3x4", "self=@0 dim=1"),
    ("min.dim", "2x3x4", "self=@0 dim=2 keepdim=true"),
    ("max.other", "2x3 3", "self=@0 other=@1"),
    ("linalg_vector_norm", "2x3x4", "self=@0 dim=[2]"),
    ("norm.ScalarOpt_dim", "2x3x4", "self=@0 p=2 dim=[1] keepdim=true"),
    ("cumsum", "2x3x4", "self=@0 dim=1"),
    ("add.Tensor", "2x3 3", "self=@0 other=@1 alpha=2.5"),
    ("sub.Tensor", "2x3 2x1", "self=@0 other=@1 alpha=2"),
    ("rsub.Scalar", "2x3", "self=@0 other=1.5"),
    ("mul.Tensor", "2x1x3 4x1", "self=@0 other=@1"),
    ("mul.Tensor", "2x3 i4:2x3", "self=@0 other=@1"),
    ("div.Tensor", "2x3 p3", "self=@0 other=@1"),
    ("maximum", "2x3 3", "self=@0 other=@1"),
    ("minimum", "2x3 2x3", "self=@0 other=@1"),
    ("pow.Tensor_Scalar", "p2x3", "self=@0 exponent=1.7"),
    ("pow.Tensor_Scalar", "2x3", "self=@0 exponent=3"),
    ("pow.Tensor_Tensor", "p2x3 3", "self=@0 exponent=@1"),
    ("addcmul", "2x3 2x3 3", "self=@0 tensor1=@1 tensor2=@2 value=0.5"),
    ("addcdiv", "2x3 2x3 p3", "self=@0 tensor1=@1 tensor2=@2 value=0.5"),
    ("lerp.Tensor", "2x3 2x3 2x3", "self=@0 end=@1 weight=@2"),
    ("where.self", "b2x3 2x3 3", "condition=@0 self=@1 other=@2"),
    ("masked_fill.Scalar", "2x3 b3", "self=@0 mask=@1 value=-2.0"),
    ("clamp", "2x3", "self=@0 min=-0.5 max=0.7"),
    ("clamp_min", "2x3", "self=@0 min=0.1"),
    ("relu", "2x3", "self=@0"),
    ("relu6", "2x3", "self=@0"),
    ("gelu", "2x3", "self=@0"),
    ("gelu", "2x3", "self=@0 approximate='tanh'"),
    ("silu", "2x3", "self=@0"),
    ("mish", "2x3", "self=@0"),
    ("elu", "2x3", "self=@0 alpha=0.7"),
    ("celu", "2x3", "self=@0 alpha=0.5"),
    ("selu", "2x3", "self=@0"),
    ("softplus", "2x3", "self=@0 beta=2 threshold=3"),
    ("leaky_relu", "2x3", "self=@0 negative_slope=0.2"),
    ("hardtanh", "2x3", "self=@0 min_val=-0.5 max_val=0.5"),
    ("hardsigmoid", "2x3", "self=@0"),
    ("hardswish", "2x3", "self=@0"),
    ("log_sigmoid", "2x3", "self=@0"),
    ("glu", "2x4", "self=@0 dim=1"),
    ("sigmoid", "2x3", "self=@0"),
    ("tanh", "2x3", "self=@0"),
    ("erf", "2x3", "self=@0"),
    ("exp", "2x3", "self=@0"),
    ("expm1", "2x3", "self=@0"),
    ("log", "p2x3", "self=@0"),
    ("log1p", "p2x3", "self=@0"),
    ("sqrt", "p2x3", "self=@0"),
    ("rsqrt", "p2x3", "self=@0"),
    ("reciprocal", "p2x3", "self=@0"),
    ("square", "2x3", "self=@0"),
    ("sin", "2x3", "self=@0"),
    ("cos", "2x3", "self=@0"),
    ("neg", "2x3", "self=@0"),
    ("abs", "2x3", "self=@0"),
    ("sign", "2x3", "self=@0"),
    ("floor", "2x3", "self=@0"),
    ("ceil", "2x3", "self=@0"),
    ("view", "2x6", "self=@0 size=[3,-1]"),
    ("reshape", "2x6", "self=@0 shape=[3,4]"),
    ("flatten.using_ints", "2x3x4", "self=@0 start_dim=1"),
    ("unflatten.int", "2x6", "self=@0 dim=1 sizes=[2,3]"),
    ("permute", "2x3x4", "self=@0 dims=[2,0,1]"),
    ("transpose.int", "2x3x4", "self=@0 dim0=0 dim1=-1"),
    ("t", "2x3", "self=@0"),
    ("movedim.int", "2x3x4", "self=@0 source=0 destination=2"),
    ("squeeze.dim", "2x1x4", "self=@0 dim=1"),
    ("unsqueeze", "2x3", "self=@0 dim=-1"),
    ("expand", "2x1x3", "self=@0 size=[4,-1,5,3]"),
    ("select.int", "2x3x4", "self=@0 dim=1 index=-1"),
    ("slice.Tensor", "2x7", "self=@0 dim=1 start=1 end=-1 step=2"),
    ("narrow", "2x7", "self=@0 dim=1 start=2 length=3"),
    ("chunk", "2x7", "self=@0 chunks=3 dim=1"),
    ("split.Tensor", "5x2", "self=@0 split_size=2"),
    ("split_with_sizes", "2x5", "self=@0 split_sizes=[1,4] dim=1"),
    ("unbind.int", "2x3", "self=@0 dim=1"),
    ("cat", "2x3 2x4", "tensors=[@0,@1] dim=1"),
    ("stack", "2x3 2x3", "tensors=[@0,@1] dim=-1"),
    ("repeat", "2x3", "self=@0 repeats=[2,1,2]"),
    ("tile", "2x3", "self=@0 dims=[2]"),
    ("repeat_interleave.self_int", "2x3", "self=@0 repeats=2 dim=1"),
    ("flip", "2x3x4", "self=@0 dims=[0,2]"),
    ("roll", "2x5", "self=@0 shifts=[2,-1] dims=[1,0]"),
    ("tril", "2x3x4", "self=@0 diagonal=1"),
    ("triu", "3x4", "self=@0"),
    ("embedding", "5x3 i5:2x4", "weight=@0 indices=@1 padding_idx=2"),
    ("index_select", "3x4x2 i4:3", "self=@0 dim=1 index=@1"),
    ("gather", "3x4 i3:2x4", "self=@0 dim=0 index=@1"),
    ("take_along_dim", "3x4 i4:3x2", "self=@0 indices=@1 dim=1"),
    ("index.Tensor", "3x4x5 i4:2x1 i5:3", "self=@0 indices=[none,@1,@2]"),
    ("index.Tensor", "3x4x5 i3:2 i5:2", "self=@0 indices=[@1,none,@2]"),
];

/// Operators whose results have no derivatives, compared by value.
const WHOLE_CASES: &[(&str, &str, &str)] = &[
    ("add.Tensor", "i9:2x3 i9:3", "self=@0 other=@1 alpha=3"),
    ("mul.Tensor", "i9:2x3 i9:3", "self=@0 other=@1"),
    ("floor_divide", "i9:2x3 i9:3", "self=@0 other=@1"),
    ("remainder.Scalar", "i9:2x3", "self=@0 other=4"),
    ("eq.Tensor", "i3:2x3 i3:3", "self=@0 other=@1"),
    ("ne.Scalar", "i3:2x3", "self=@0 other=1"),
    ("lt.Tensor", "2x3 2x3", "self=@0 other=@1"),
    ("ge.Scalar", "2x3", "self=@0 other=0.1"),
    ("logical_and", "b2x3 b3", "self=@0 other=@1"),
    ("logical_not", "b2x3", "self=@0"),
    ("__or__.Tensor", "b2x3 b3", "self=@0 other=@1"),
    ("cumsum", "i9:2x3", "self=@0 dim=1"),
    ("diff", "i9:2x4", "self=@0 dim=-1"),
    ("argmax", "2x3x4", "self=@0 dim=1"),
    ("any.dim", "b2x3", "self=@0 dim=1"),
    ("all", "b2x3", "self=@0"),
    ("sum", "i9:2x3", "self=@0"),
    ("one_hot", "i4:3", "self=@0 num_classes=4"),
    ("cat", "i9:2x3 i9:2x1", "tensors=[@0,@1] dim=1"),
    ("arange.start_step", "1", "start=2 end=11 step=3"),
    ("ones_like", "i9:2x3", "self=@0"),
    ("where.self", "b2x3 i9:2x3 i9:3", "condition=@0 self=@1 other=@2"),
    ("flip", "i9:2x3", "self=@0 dims=[1]"),
    ("isnan", "2x3", "self=@0"),
];

/// The numbers of a result, and the derivatives of their weighted sum by each input.
type Compared = (Vec<f64>, Vec<Vec<f64>>);

/// A graph of one operator, and its inputs.
struct OperatorCase {
    name: String,
    graph: Graph,
    inputs: Vec<(DataType, Vec<usize>, Vec<f64>)>,
}

fn argument(text: &str) -> Argument {
    let id = |text: &str| ValueId(text[1..].parse().unwrap());
    if let Some(list) = text.strip_prefix('[') {
        let items: Vec<&str> = list.trim_end_matches(']').split(',').collect();
        if items.iter().any(|item| item.starts_with('@')) {
            let value = |item: &&str| item.starts_with('@').then(|| id(item));
            return Argument::Values(items.iter().map(value).collect());
        }
        let integer = |item: &&str| IntArgument::Fixed(item.parse().unwrap());
        return Argument::Ints(items.iter().map(integer).collect());
    }
    match text {
        "none" => Argument::None,
        "true" => Argument::Bool(true),
        "false" => Argument::Bool(false),
        _ if text.starts_with('@') => Argument::Value(id(text)),
        _ if text.starts_with('\'') => Argument::Text(text.trim_matches('\'').to_owned()),
        _ => match text.parse() {
            Ok(integer) => Argument::Int(integer),
            Err(_) => Argument::Float(text.parse::<f64>().unwrap().to_bits()),
        },
    }
}

fn input(text: &str, salt: usize) -> (DataType, Vec<usize>, Vec<f64>) {
    let (kind, sizes) = match text.split_at_checked(1) {
        Some(("p", rest)) => ("p", rest),
        Some(("b", rest)) => ("b", rest),
        Some(("i", rest)) => rest.split_once(':').unwrap(),
        _ => ("", text),
    };
    let sizes: Vec<usize> = sizes.split('x').map(|size| size.parse().unwrap()).collect();
    let number = |at: usize| ((at * 7_919 + salt * 104_729) % 1_009) as f64;
    let all = 0..tensor::count(&sizes);
    let (data_type, numbers): (DataType, Vec<f64>) = match kind {
        "" => (DataType::F32, all.map(|at| number(at) / 252.0 - 2.0).collect()),
        "p" => (DataType::F32, all.map(|at| number(at) / 500.0 + 0.3).collect()),
        "b" => (DataType::Bool, all.map(|at| number(at) % 2.0).collect()),
        most => {
            let most: f64 = most.parse().unwrap();
            (DataType::I64, all.map(|at| number(at) % most + f64::from(most == 9.0)).collect())
        }
    };
    (data_type, sizes, numbers)
}

impl OperatorCase {
    fn new((name, inputs, arguments): &(&str, &str, &str)) -> Self {
        let inputs: Vec<_> =
            inputs.split(' ').enumerate().map(|(at, text)| input(text, at + 1)).collect();
        let graph_inputs =
            inputs.iter().enumerate().map(|(at, (data_type, sizes, _))| GraphInput {
                role: match data_type {
                    DataType::F32 => InputRole::Parameter(format!("p{at}")),
                    _ => InputRole::Constant(format!("c{at}")),
                },
                tensor: TensorType {
                    data_type: *data_type,
                    shape: sizes.iter().map(|&size| Dimension::Fixed(size as u64)).collect(),
                },
            });
        let graph_inputs: Vec<GraphInput> = graph_inputs.collect();
        let given = arguments.split(' ').filter(|text| !text.is_empty()).map(|text| {
            let (name, value) = text.split_once('=').unwrap();
            (name.to_owned(), argument(value))
        });
        let from = graph_inputs.len() as u32;
        let base = name.split('.').next().unwrap();
        let outputs = match (base, *name) {
            ("chunk" | "split" | "unbind", _) => {
                vec![NodeOutput::List((from..from + 3).map(ValueId).collect())]
            }
            ("split_with_sizes", _) => {
                vec![NodeOutput::List((from..from + 2).map(ValueId).collect())]
            }
            (_, "max.dim" | "min.dim") => {
                vec![NodeOutput::Value(ValueId(from)), NodeOutput::Value(ValueId(from + 1))]
            }
            _ => vec![NodeOutput::Value(ValueId(from))],
        };
        let defined: Vec<ValueId> = outputs
            .iter()
            .flat_map(|output| match output {
                NodeOutput::List(ids) => ids.clone(),
                NodeOutput::Value(id) => vec![*id],
                NodeOutput::None => Vec::new(),
            })
            .collect();
        let node = Node {
            operation: Operation::Aten((*name).to_owned()),
            gradients: true,
            arguments: given.collect(),
            outputs,
        };
        let values = from + defined.len() as u32;
        // The last one of a list tests its start, too.
        let chosen = match base {
            "max" | "min" => defined[0],
            _ => *defined.last().unwrap(),
        };
        let outputs = vec![Argument::Value(chosen)];
        let graph = Graph { inputs: graph_inputs, nodes: vec![node], outputs, values };
        Self { name: format!("{name} {arguments}"), graph, inputs }
    }

    fn plain(&self) -> Result<Compared, RunFailure> {
        let shapes = value_shapes(&self.graph, &[], u64::MAX).unwrap();
        let mut run = Run::<f64>::new(&shapes, RunMode::Evaluation, rng(1, Purpose::Dropout, 0));
        let mut leaves = Vec::new();
        for (at, (data_type, sizes, numbers)) in self.inputs.iter().enumerate() {
            let tensor = match data_type {
                DataType::F32 => {
                    let var = run.tape.leaf(numbers.clone(), true);
                    leaves.push(var);
                    Tensor::real(sizes.clone(), var)
                }
                _ => Tensor::whole(sizes.clone(), numbers.iter().map(|&x| x as i64).collect()),
            };
            run.set(ValueId(at as u32), tensor);
        }
        let output = run.finish(&self.graph)?;
        let var = match &output.elements {
            tensor::Elements::Real(var) => *var,
            tensor::Elements::Whole(numbers) => {
                return Ok((numbers.iter().map(|&number| number as f64).collect(), Vec::new()));
            }
        };
        let numbers = run.tape.numbers(var).to_vec();
        let found = run.tape.gradients(var, weights(numbers.len()), &leaves);
        let lengths = leaves.iter().map(|leaf| run.tape.numbers(*leaf).len());
        let gradients = found.into_iter().zip(lengths);
        Ok((numbers, gradients.map(|(own, n)| own.unwrap_or_else(|| vec![0.0; n])).collect()))
    }

    #[cfg(feature = "torch")]
    fn torch(&self) -> Result<Compared, crate::graph::InterpreterError> {
        use tch::{Kind, Tensor as Torch};
        let interpreter = crate::graph::Interpreter::new(&self.graph, "cpu").unwrap().in_double();
        let inputs: Vec<Torch> = self
            .inputs
            .iter()
            .map(|(data_type, sizes, numbers)| {
                let sizes: Vec<i64> = sizes.iter().map(|&size| size as i64).collect();
                let tensor = Torch::from_slice(numbers).reshape(sizes.as_slice());
                match data_type {
                    DataType::F32 => tensor.set_requires_grad(true),
                    other => tensor.to_kind(other.kind()),
                }
            })
            .collect();
        let outputs = interpreter.run(&inputs, RunMode::Evaluation)?;
        let output = &outputs[0];
        let flat = output.to_kind(Kind::Double).reshape([-1]);
        let numbers = Vec::<f64>::try_from(&flat).unwrap();
        let reals = || inputs.iter().filter(|tensor| tensor.is_floating_point());
        if !flat.requires_grad() {
            let zeros = |tensor: &Torch| vec![0.0; tensor.numel()];
            let gradients =
                if output.is_floating_point() { reals().map(zeros).collect() } else { Vec::new() };
            return Ok((numbers, gradients));
        }
        (&flat * Torch::from_slice(&weights(numbers.len()))).sum(Kind::Double).backward();
        let gradient = |tensor: &Torch| {
            let gradient = tensor.grad();
            match gradient.defined() {
                true => Vec::<f64>::try_from(gradient.reshape([-1])).unwrap(),
                false => vec![0.0; tensor.numel()],
            }
        };
        Ok((numbers, reals().map(gradient).collect()))
    }
}

/// The weights of a result's elements in the sum whose derivatives are compared.
fn weights(count: usize) -> Vec<f64> {
    (0..count).map(|at| ((at * 31 + 7) % 13) as f64 / 13.0 - 0.4).collect()
}

#[cfg(feature = "torch")]
#[test]
fn each_operator_has_the_values_and_derivatives_of_libtorch() {
    let mut wrong = Vec::new();
    for case in CASES.iter().chain(WHOLE_CASES).map(OperatorCase::new) {
        let ((plain, by), (torch, wanted)) = match (case.plain(), case.torch()) {
            (Ok(plain), Ok(torch)) => (plain, torch),
            (plain, torch) => {
                wrong.push(format!("{}: {:?} {:?}", case.name, plain.err(), torch.err()));
                continue;
            }
        };
        let near = |a: &[f64], b: &[f64]| {
            a.len() == b.len()
                && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12 * (1.0 + b.abs()))
        };
        if !near(&plain, &torch) {
            wrong.push(format!("{}:\n{plain:?}\n{torch:?}", case.name));
        }
        let pairs = || by.iter().zip(&wanted);
        if by.len() != wanted.len() || !pairs().all(|(plain, torch)| near(plain, torch)) {
            wrong.push(format!("{}, derivatives:\n{by:?}\n{wanted:?}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_operators_of_this_engine_are_operators_of_graphs() {
    let bases: Vec<&str> =
        crate::graph::OPERATORS.iter().filter_map(|own| own.name.split('.').next()).collect();
    for name in OPERATORS {
        let is_size = name.starts_with("sym_");
        assert!(is_size || bases.contains(name), "{name} is no operator of graphs");
    }
    for (name, ..) in CASES.iter().chain(WHOLE_CASES) {
        assert!(find_operator(name).is_some(), "{name}");
        let base = name.split('.').next().unwrap();
        assert!(OPERATORS.contains(&base), "{name} is not listed");
    }
}

#[test]
fn a_view_that_is_used_after_a_change_in_place_is_refused() {
    let node = |name: &str, argument: u32, output: u32| Node {
        operation: Operation::Aten(name.to_owned()),
        gradients: true,
        arguments: vec![("self".to_owned(), Argument::Value(ValueId(argument)))],
        outputs: vec![NodeOutput::Value(ValueId(output))],
    };
    let graph = |used: u32| Graph {
        inputs: vec![GraphInput {
            role: InputRole::User,
            tensor: TensorType { data_type: DataType::F32, shape: vec![Dimension::Symbol(0)] },
        }],
        nodes: vec![node("exp", 0, 1), node("t", 1, 2), node("relu_", 1, 3), node("neg", used, 4)],
        outputs: vec![Argument::Value(ValueId(4))],
        values: 5,
    };
    assert!(missing_operators(&graph(1)).is_empty());
    assert!(missing_operators(&graph(3)).is_empty());
    assert_eq!(missing_operators(&graph(2)), ["relu_"]);
}

#[test]
fn half_precision_numbers_are_read() {
    let tensor = |data_type, bytes: &[u8]| WeightTensor {
        data_type,
        sizes: vec![bytes.len() as u64 / 2],
        bytes: bytes.to_vec(),
    };
    let half = tensor(DataType::F16, &[0x00, 0x3c, 0x00, 0xc0, 0x01, 0x00, 0xff, 0x7b]);
    assert_eq!(half.real_numbers().unwrap(), [1.0, -2.0, 2_f64.powi(-24), 65_504.0]);
    let brain = tensor(DataType::Bf16, &[0x80, 0x3f, 0x00, 0xc0]);
    assert_eq!(brain.real_numbers().unwrap(), [1.0, -2.0]);
    let short = tensor(DataType::I16, &[0xff, 0xff, 0x02, 0x00]);
    assert_eq!(short.whole_numbers(), [-1, 2]);
    assert_eq!(short.real_numbers(), None);
}

/// A view is free on libtorch and a copy here.
#[test]
fn a_graph_that_expands_beyond_the_memory_is_refused_before_it_runs() {
    let graph = |times: i64| Graph {
        inputs: vec![GraphInput {
            role: InputRole::User,
            tensor: TensorType {
                data_type: DataType::F32,
                shape: vec![Dimension::Symbol(0), Dimension::Fixed(1)],
            },
        }],
        nodes: vec![
            Node {
                operation: Operation::Aten("expand".to_owned()),
                gradients: true,
                arguments: vec![
                    ("self".to_owned(), Argument::Value(ValueId(0))),
                    (
                        "size".to_owned(),
                        Argument::Ints(vec![IntArgument::Fixed(-1), IntArgument::Fixed(times)]),
                    ),
                ],
                outputs: vec![NodeOutput::Value(ValueId(1))],
            },
            Node {
                operation: Operation::Aten("mean.dim".to_owned()),
                gradients: true,
                arguments: vec![
                    ("self".to_owned(), Argument::Value(ValueId(1))),
                    ("dim".to_owned(), Argument::Ints(vec![IntArgument::Fixed(1)])),
                    ("keepdim".to_owned(), Argument::Bool(true)),
                ],
                outputs: vec![NodeOutput::Value(ValueId(2))],
            },
        ],
        outputs: vec![Argument::Value(ValueId(2))],
        values: 3,
    };
    let load = |times| {
        let declaration = crate::graph::GraphDeclaration {
            form: crate::graph::GraphForm::Operators,
            digest: [1; 32],
            inputs: 1,
            targets: 1,
            outputs: 1,
            loss: crate::graph::GraphLoss::Squared { bound: 4.0 },
            tensors: Vec::new(),
        };
        let model = GraphModel::load(declaration, &graph(times).to_bytes(), None).unwrap();
        crate::ModelSpec::Graph(Box::new(model))
    };
    let check = crate::Reference::check_model;
    assert_eq!(check(&load(1_000), 100), Ok(()));
    let refused = check(&load(1 << 30), 1).unwrap_err();
    assert!(matches!(refused, InputError::TooLarge { rows: 1, .. }), "{refused}");
    assert!(check(&load(1 << 25), 1).is_ok() && check(&load(1 << 25), 100).is_err());
    let rows = Dataset::new(vec![1.0, 3.0], vec![0], 2, 1).unwrap();
    let losses = crate::Evaluator::row_losses(&mut crate::Reference::new(), &load(10), &[], &rows);
    assert!((losses.unwrap()[0] - 4.0 * libm::tanh(1.0)).abs() < 1e-12);
}
