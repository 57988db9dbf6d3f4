//! Positions at which small graphs can be cut, and the values that cross them.

use super::super::value::{Argument, DataType, GraphInput, InputRole, TensorType};
use super::*;

fn input(role: InputRole) -> GraphInput {
    GraphInput { role, tensor: TensorType { data_type: DataType::F32, shape: Vec::new() } }
}

/// A node of an operator, or of a function with a name that begins with `size:`.
fn node(name: &str, arguments: &[u32], outputs: &[u32]) -> Node {
    let operation = match name.strip_prefix("size:") {
        Some(function) => Operation::Size(function.to_owned()),
        None => Operation::Aten(name.to_owned()),
    };
    let arguments = arguments.iter().enumerate().map(|(at, &id)| {
        let name = if name == "batch_norm" && at > 0 { STATISTICS[0] } else { "self" };
        (name.to_owned(), Argument::Value(ValueId(id)))
    });
    let outputs = outputs.iter().map(|&id| NodeOutput::Value(ValueId(id))).collect();
    Node { operation, gradients: true, arguments: arguments.collect(), outputs }
}

/// A graph of a parameter, 0, a buffer, 1, and rows, 2, whose output is the last value.
fn graph(nodes: Vec<Node>) -> Graph {
    let roles = [
        InputRole::Parameter("weight".to_owned()),
        InputRole::Buffer("mean".to_owned()),
        InputRole::User,
    ];
    let values = nodes.iter().flat_map(|node| &node.outputs).flat_map(NodeOutput::values);
    let last = values.map(|id| id.0).max().unwrap();
    Graph {
        inputs: roles.map(input).to_vec(),
        nodes,
        outputs: vec![Argument::Value(ValueId(last))],
        values: last + 1,
    }
}

fn analysed(graph: &Graph) -> Segments {
    Segments::new(graph, &[false, false, true])
}

fn cuts(nodes: Vec<Node>) -> Vec<usize> {
    let segments = analysed(&graph(nodes));
    (0..segments.can_cut().len()).filter(|&at| segments.can_cut()[at]).collect()
}

#[test]
fn rows_and_results_cross_until_their_last_use_and_parameters_do_not() {
    let graph = graph(vec![
        node("linear", &[2, 0], &[3]),
        node("relu", &[3], &[4]),
        node("linear", &[4, 0], &[5]),
        node("add.Tensor", &[5, 3], &[6]),
        node("add.Tensor", &[6, 2], &[7]),
    ]);
    let segments = analysed(&graph);
    let crossing = |at: usize| segments.crossing(at).iter().map(|id| id.0).collect::<Vec<u32>>();
    let all: Vec<Vec<u32>> = (0..=5).map(crossing).collect();
    assert_eq!(all, [vec![], vec![2, 3], vec![2, 3, 4], vec![2, 3, 5], vec![2, 6], vec![7]]);
    let shared = |at: usize| segments.shared_inputs(at).collect::<Vec<usize>>();
    assert_eq!((1..5).map(shared).collect::<Vec<_>>(), [vec![0, 2], vec![0, 2], vec![2], vec![2]]);
    assert_eq!([0, 1, 2].map(|input| segments.first_use(input)), [Some(0), None, Some(0)]);
    assert_eq!(segments.can_cut(), [false, true, true, true, true, false]);
    let spans: Vec<(u32, usize, usize)> =
        segments.spans().map(|(id, first, last)| (id.0, first, last)).collect();
    assert_eq!(spans, [(2, 1, 4), (3, 1, 3), (4, 2, 2), (5, 3, 3), (6, 4, 4), (7, 5, 5)]);
}

#[test]
fn no_cut_is_in_front_of_a_write_to_a_value_that_crosses() {
    let chain = |write: &str, of: u32| {
        cuts(vec![
            node("linear", &[2, 0], &[3]),
            node("view", &[3], &[4]),
            node("relu", &[3], &[5]),
            node(write, &[of], &[6]),
            node("add.Tensor", &[6, 5], &[7]),
        ])
    };
    assert_eq!(chain("relu", 4), [1, 2, 3, 4]);
    // A view is written: its base, and later the view itself, cross in front of the write.
    assert_eq!(chain("relu_", 4), [4]);
    // The written value and the result are one tensor.
    assert_eq!(chain("relu_", 5), [1, 2]);
}

#[test]
fn two_views_of_a_memory_that_is_written_do_not_cross_together() {
    let views = |first: &str| {
        cuts(vec![
            node(first, &[2], &[3]),
            node("view", &[3], &[4]),
            node("view", &[3], &[5]),
            node("sin", &[4], &[6]),
            node("add.Tensor", &[6, 5], &[7]),
        ])
    };
    assert_eq!(views("sin"), [1, 2, 3, 4]);
    // The rows are written by the first node; they do not cross behind it.
    assert_eq!(views("neg_"), [1, 4]);
}

#[test]
fn one_tensor_does_not_cross_under_two_names() {
    let names = |operator: &str| {
        cuts(vec![
            node("sin", &[2], &[3]),
            node(operator, &[3], &[4]),
            node("cos", &[4], &[5]),
            node("add.Tensor", &[5, 3], &[6]),
        ])
    };
    assert_eq!(names("relu"), [1, 2, 3]);
    for operator in ["contiguous", "to.dtype", "dropout", "size:getitem"] {
        assert_eq!(names(operator), [1, 3], "{operator}");
    }
}

#[test]
fn the_nodes_of_running_statistics_stay_together() {
    let norms = |second: &[u32]| {
        cuts(vec![
            node("batch_norm", &[2, 1], &[3]),
            node("sin", &[3], &[4]),
            node("batch_norm", second, &[5]),
            node("sin", &[5], &[6]),
        ])
    };
    assert_eq!(norms(&[4]), [1, 2, 3]);
    assert_eq!(norms(&[4, 1]), [3]);
}

#[test]
fn the_output_is_the_first_that_is_not_a_number() {
    let mut graph = graph(vec![
        node("sym_size.int", &[2], &[3]),
        node("size:add", &[3], &[4]),
        node("sin", &[2], &[5]),
    ]);
    graph.outputs = [3, 4, 5].map(|id| Argument::Value(ValueId(id))).to_vec();
    assert_eq!(output(&graph), Some(ValueId(5)));
    assert_eq!(analysed(&graph).crossing(3), [ValueId(5)]);
}
