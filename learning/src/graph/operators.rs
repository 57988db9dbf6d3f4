//! The operators that a graph may have.
//!
//! All of them are functions of their arguments: they read no file, no clock and no network, and
//! write nothing but the tensor that an in-place form names. Random ones draw from libtorch's
//! generator, which the run seeds.

/// The effect of an operator on its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It computes a new tensor.
    Pure,
    /// Its result shares the memory of its first argument.
    View,
    /// It changes its first argument.
    InPlace,
    /// It computes a new tensor with random numbers, if it has a `train` argument only in training.
    Random,
    /// It changes its first argument to random numbers.
    RandomInPlace,
    /// It checks an assertion about its arguments; the run leaves it out.
    Assertion,
}

/// An operator: its name with its overload, and its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operator {
    /// The name, such as `add.Tensor`; the overload `default` is left out.
    pub name: &'static str,
    /// Its effect on its arguments.
    pub effect: Effect,
}

macro_rules! table {
    ($($effect:ident: $($name:literal)+;)+) => {
        /// All operators, by effect.
        pub const OPERATORS: &[Operator] =
            &[$($(Operator { name: $name, effect: Effect::$effect },)+)+];
    };
}

table! {
    Pure:
        // Products.
        "linear" "matmul" "mm" "bmm" "addmm" "baddbmm" "mv" "dot" "outer" "einsum" "bilinear"
        "scaled_dot_product_attention" "cdist"
        // Convolutions, pooling and resizing.
        "conv1d" "conv2d" "conv3d" "conv1d.padding" "conv2d.padding" "conv3d.padding"
        "conv_transpose1d" "conv_transpose2d.input" "conv_transpose3d.input"
        "max_pool1d" "max_pool2d" "max_pool3d" "max_pool2d_with_indices"
        "avg_pool1d" "avg_pool2d" "avg_pool3d"
        "adaptive_avg_pool1d" "adaptive_avg_pool2d" "adaptive_avg_pool3d"
        "adaptive_max_pool1d" "adaptive_max_pool2d"
        "upsample_nearest1d.vec" "upsample_nearest2d.vec" "upsample_bilinear2d.vec"
        "upsample_linear1d.vec" "upsample_bicubic2d.vec"
        "_upsample_bilinear2d_aa.vec" "_upsample_bicubic2d_aa.vec" "pixel_shuffle" "pixel_unshuffle"
        "im2col" "col2im" "grid_sampler_2d" "grid_sampler"
        "pad" "constant_pad_nd" "reflection_pad1d" "reflection_pad2d" "replication_pad1d"
        "replication_pad2d"
        // Normalisation. `batch_norm` and `instance_norm` also change their running statistics.
        "layer_norm" "group_norm" "rms_norm" "batch_norm" "instance_norm" "native_layer_norm"
        "_weight_norm"
        // Recurrent layers.
        "lstm.input" "gru.input" "rnn_tanh.input" "rnn_relu.input" "lstm_cell" "gru_cell"
        // Activations.
        "relu" "relu6" "gelu" "silu" "mish" "sigmoid" "tanh" "elu" "celu" "selu" "softplus"
        "leaky_relu" "prelu" "hardtanh" "hardsigmoid" "hardswish" "log_sigmoid" "glu"
        "threshold" "hardshrink" "softshrink"
        "softmax.int" "log_softmax.int" "_softmax" "_log_softmax"
        // Arithmetic of elements.
        "add.Tensor" "add.Scalar" "sub.Tensor" "sub.Scalar" "rsub.Scalar" "rsub.Tensor"
        "mul.Tensor" "mul.Scalar" "div.Tensor" "div.Scalar" "div.Tensor_mode" "div.Scalar_mode"
        "floor_divide" "floor_divide.Scalar" "remainder.Scalar" "remainder.Tensor" "fmod.Scalar"
        "neg" "abs" "sign" "exp" "expm1" "log" "log1p" "log2" "log10" "sqrt" "rsqrt" "square"
        "reciprocal" "sin" "cos" "tan" "asin" "acos" "atan" "atan2" "sinh" "cosh" "erf" "erfinv"
        "floor" "ceil" "round" "trunc" "frac" "lerp.Scalar" "lerp.Tensor" "addcmul" "addcdiv"
        "pow.Tensor_Scalar" "pow.Scalar" "pow.Tensor_Tensor" "clamp" "clamp.Tensor" "clamp_min"
        "clamp_max" "maximum" "minimum" "max.other" "min.other" "logaddexp" "logit" "nan_to_num"
        "hypot" "xlogy.Tensor" "multiply.Tensor" "multiply.Scalar" "subtract.Tensor"
        "subtract.Scalar" "divide.Tensor" "divide.Scalar" "true_divide.Tensor" "negative" "absolute"
        "clip" "bitwise_left_shift.Tensor_Scalar"
        // Comparisons and logic.
        "eq.Scalar" "eq.Tensor" "ne.Scalar" "ne.Tensor" "lt.Scalar" "lt.Tensor" "le.Scalar"
        "le.Tensor" "gt.Scalar" "gt.Tensor" "ge.Scalar" "ge.Tensor" "logical_and" "logical_or"
        "logical_not" "logical_xor" "bitwise_and.Tensor" "bitwise_or.Tensor" "bitwise_xor.Tensor"
        "bitwise_not" "__and__.Tensor" "__or__.Tensor" "isnan" "isinf" "isfinite"
        "where.self" "where.ScalarOther" "where.ScalarSelf" "where.Scalar"
        // Reductions.
        "sum" "sum.dim_IntList" "mean" "mean.dim" "prod" "prod.dim_int" "var.correction" "var.dim"
        "std.correction" "std.dim" "var_mean.correction" "amax" "amin" "max" "min" "max.dim"
        "min.dim" "argmax" "argmin" "histc" "all" "all.dim" "any" "any.dim" "logsumexp" "norm.Scalar"
        "norm.ScalarOpt_dim" "linalg_vector_norm" "cumsum" "cumprod" "diff" "count_nonzero"
        "nll_loss" "cross_entropy_loss" "mse_loss" "l1_loss" "smooth_l1_loss" "huber_loss"
        "binary_cross_entropy" "binary_cross_entropy_with_logits" "kl_div"
        // Selection and order.
        "embedding" "index.Tensor" "index_select" "gather" "scatter.src"
        "scatter.value" "scatter_add" "index_put" "index_add" "masked_fill.Scalar"
        "masked_fill.Tensor" "take_along_dim" "topk" "sort" "sort.stable" "argsort"
        "one_hot" "bucketize.Tensor" "searchsorted.Tensor" "tril" "triu" "roll" "flip" "rot90"
        "concat" "concatenate" "repeat" "repeat_interleave.self_int" "tile" "cat" "stack" "hstack" "vstack"
        "slice_scatter" "select_scatter" "meshgrid" "meshgrid.indexing"
        // Creation and conversion.
        "arange" "arange.start" "arange.start_step" "zeros" "ones" "full" "empty.memory_format"
        "eye" "eye.m" "linspace" "scalar_tensor" "zeros_like" "ones_like" "full_like" "empty_like"
        "new_zeros" "new_ones" "new_full" "new_empty" "tril_indices" "triu_indices"
        "clone" "to.dtype" "to.dtype_layout" "to.device" "to.other" "_to_copy" "type_as"
        "contiguous" "lift_fresh_copy" "alias_copy";
    View:
        "view" "reshape" "reshape_as" "view_as" "flatten.using_ints" "unflatten.int" "permute"
        "transpose.int" "t" "numpy_T" "swapaxes" "swapdims" "movedim.int" "movedim.intlist" "squeeze"
        "squeeze.dim" "squeeze.dims" "unsqueeze" "expand" "expand_as" "broadcast_to" "select.int"
        "slice.Tensor" "narrow" "chunk" "split.Tensor" "split.sizes" "split_with_sizes"
        "unbind.int" "tensor_split.sections" "diagonal" "unfold" "alias" "detach" "view.dtype"
        "real" "broadcast_tensors" "lift_fresh";
    InPlace:
        "add_.Tensor" "add_.Scalar" "sub_.Tensor" "sub_.Scalar" "mul_.Tensor" "mul_.Scalar"
        "div_.Tensor" "div_.Scalar" "neg_" "exp_" "sqrt_" "rsqrt_" "pow_.Scalar" "clamp_"
        "clamp_min_" "clamp_max_" "relu_" "relu6_" "silu_" "sigmoid_" "tanh_" "elu_" "leaky_relu_"
        "hardtanh_" "hardswish_" "hardsigmoid_" "mish_" "gelu_" "selu_" "celu_" "fill_.Scalar"
        "fill_.Tensor" "zero_" "copy_" "masked_fill_.Scalar" "masked_fill_.Tensor" "detach_"
        "addcmul_" "addcdiv_" "lerp_.Scalar" "index_put_" "scatter_.src" "scatter_.value"
        "scatter_add_" "squeeze_.dim" "unsqueeze_" "tril_" "triu_" "bitwise_and_.Tensor"
        "logical_and_" "floor_" "round_";
    Random:
        "dropout" "alpha_dropout" "feature_dropout" "feature_alpha_dropout" "rand" "randn"
        "rand_like" "randn_like" "bernoulli" "bernoulli.p" "randperm" "rrelu" "multinomial";
    RandomInPlace:
        "dropout_" "feature_dropout_" "bernoulli_.float" "bernoulli_.Tensor" "normal_" "uniform_"
        "rrelu_" "alpha_dropout_";
    Assertion:
        "_assert_tensor_metadata" "_assert_scalar" "_assert_async.msg" "sym_constrain_range"
        "sym_constrain_range_for_size";
}

/// The operator of transformers that multiplies groups of rows with a matrix each.
pub(super) const GROUPED_PRODUCT: &str = "transformers.grouped_mm_fallback";

/// Operators of other libraries, which the interpreter computes from their definitions.
const DEFINED: &[Operator] = &[Operator { name: GROUPED_PRODUCT, effect: Effect::Pure }];

/// Random operators that an evaluation runs without randomness. All other random ones have different
/// results on two machines, and no task accepts them.
pub(super) const RANDOM_IN_TRAINING_ONLY: &[&str] = &[
    "dropout",
    "dropout_",
    "alpha_dropout",
    "alpha_dropout_",
    "feature_dropout",
    "feature_dropout_",
    "feature_alpha_dropout",
    "rrelu",
    "rrelu_",
    "bernoulli_.float",
];

/// Operators that the graphs of common libraries have and that return a size.
pub(super) const SIZE_OPERATORS: &[&str] =
    &["sym_size.int", "sym_numel", "sym_stride.int", "sym_storage_offset"];

/// Functions of Python on sizes and lists, by the name in an archive.
pub(super) const SIZE_FUNCTIONS: &[&str] = &[
    "add",
    "sub",
    "mul",
    "floordiv",
    "mod",
    "neg",
    "truediv",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "sym_max",
    "sym_min",
    "sym_not",
    "sym_int",
    "sym_float",
    "and_",
    "or_",
    "getitem",
    "pow",
    "trunc",
    "ceil",
    "floor",
];

/// The operator of this name.
pub(crate) fn find(name: &str) -> Option<&'static Operator> {
    OPERATORS.iter().chain(DEFINED).find(|operator| operator.name == name)
}

/// The advice for a model with an operator that is refused.
pub(super) fn advice(name: &str) -> &'static str {
    match name.split('.').next().unwrap_or(name) {
        "from_file" | "_load_from_file" | "save" | "load" => {
            "it touches files; give the data as rows of the task"
        }
        "item" | "_local_scalar_dense" | "nonzero" | "unique" | "_unique2" | "masked_select" => {
            "its result's shape depends on data; use `torch.where` or a mask"
        }
        name if name.starts_with("quantize") || name.starts_with("dequantize") => {
            "quantised tensors have no gradients; export the model before it is quantised"
        }
        name if name.starts_with("fft_") || name.contains("complex") => {
            "complex numbers are not supported; use real arithmetic"
        }
        _ => {
            "rewrite that line with other operators, export with \
             `ExportedProgram.run_decompositions()`, or ask for the operator in an issue"
        }
    }
}
