//! Models as graphs of operators, as `torch.export.save` writes them.
//!
//! ```text
//! .pt2 archive ── read ──► Graph + GraphWeights ── Interpreter ──► tensors, by libtorch
//! ```
//!
//! A [`Graph`] has the operators of PyTorch's ATen library in the order in which they run, and no
//! code. [`read_archive`] accepts only operators of [`operators`], which read and write nothing but
//! their tensors, and opens no pickle. Names of values, positions in source files and traces of the
//! exporting machine are left out, so that two exports of one model are equal and have one
//! [digest](Graph::digest).

mod archive;
mod canonical;
mod check;
mod cut;
#[cfg(feature = "torch")]
mod draws;
mod error;
#[cfg(feature = "torch")]
mod evaluation;
mod exported;
mod gate;
#[cfg(feature = "torch")]
mod grouped;
#[cfg(feature = "torch")]
mod held;
mod import;
#[cfg(feature = "torch")]
mod interpreter;
mod model;
#[cfg(feature = "torch")]
mod observer;
mod operators;
#[cfg(feature = "torch")]
mod owner_ends;
mod rewrite;
#[cfg(feature = "torch")]
mod segment_run;
mod segments;
pub(crate) mod shapes;
mod size_function;
mod split;
#[cfg(feature = "torch")]
mod step;
mod value;
mod value_origins;
mod weights;

pub use archive::{read_archive, read_archive_from, read_description};
pub use cut::{ActivationError, CutGraph};
#[cfg(feature = "torch")]
pub(crate) use draws::{SeededDraws, drawing_nodes};
pub use error::{GraphError, GraphErrorKind};
#[cfg(feature = "torch")]
pub(crate) use interpreter::Slot;
#[cfg(feature = "torch")]
pub use interpreter::{GraphRun, Interpreter, InterpreterError};
pub use model::{GraphDeclaration, GraphForm, GraphLoss, GraphModel, ROW_BYTES_MAX};
pub(crate) use model::{GraphProgram, Place};
#[cfg(feature = "torch")]
pub(crate) use observer::{BothObservers, NotObserved, RunObserver, RunValues};
pub(crate) use operators::find as find_operator;
pub use operators::{Effect, OPERATORS, Operator};
#[cfg(feature = "torch")]
pub(crate) use owner_ends::{EndsError, OwnerEnds};
pub use rewrite::{RewriteError, write_archive};
#[cfg(feature = "torch")]
pub(crate) use segments::Segments;
pub use shapes::{GraphCost, TensorShape, graph_cost};
pub(crate) use shapes::{Shaped, infer, is_view};
pub use split::{BufferPolicy, GraphParts, split, travelling_inputs};
pub use value::{
    Argument, DataType, Dimension, Graph, GraphInput, GraphWeights, InputRole, IntArgument,
    MemoryFormat, Node, NodeOutput, Operation, RunMode, TensorType, ValueId, WeightTensor,
};

/// Most nodes of a graph, with those of its inner graphs.
pub const NODES_MAX: usize = 200_000;
/// Most values of a graph, with those of its inner graphs.
pub const VALUES_MAX: usize = 1_000_000;
/// Most elements of a list in an argument.
pub const LIST_MAX: usize = 4_096;
/// Most dimensions of a tensor.
pub const DIMENSIONS_MAX: usize = 16;
/// Deepest nesting of inner graphs.
pub const DEPTH_MAX: usize = 8;
/// Longest name of a parameter, buffer or operator, in bytes.
pub const NAME_BYTES_MAX: usize = 512;
/// Most entries of an archive.
pub const ENTRIES_MAX: usize = 100_000;
/// Most numbers of a row.
pub const ROW_NUMBERS_MAX: i64 = 1 << 20;
/// Largest description of a graph in an archive, in bytes.
pub const JSON_BYTES_MAX: u64 = 64 << 20;
/// Largest total of the weights of an archive, in bytes.
pub const WEIGHT_BYTES_MAX: u64 = 64 << 30;

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;
