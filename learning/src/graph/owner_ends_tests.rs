//! The ends of small graphs that can stay with the owner of the rows.

use super::super::value::{
    Argument, DataType, GraphInput, InputRole, Node, NodeOutput, Operation, TensorType,
};
use super::*;

/// Inputs of the test's graphs: two parameters, a constant and rows.
const INPUTS: u32 = 4;
/// No position.
const NONE: [usize; 0] = [];
const IS_ROW: [bool; 4] = [false, false, false, true];
const IS_PARAMETER: [bool; 4] = [true, true, false, false];

/// A node whose output has the number behind those of the node in front.
fn node(name: &str, arguments: &[u32]) -> Node {
    let names = match name {
        "addmm" => ["self", "mat1", "mat2"],
        "gru.input" => ["input", "hx", "params"],
        _ => ["input", "weight", "bias"],
    };
    let arguments = names
        .iter()
        .zip(arguments)
        .map(|(name, &id)| ((*name).to_owned(), Argument::Value(ValueId(id))));
    let operation = match name.strip_prefix("size:") {
        Some(function) => Operation::Size(function.to_owned()),
        None => Operation::Aten(name.to_owned()),
    };
    Node { operation, gradients: true, arguments: arguments.collect(), outputs: Vec::new() }
}

fn ends(mut nodes: Vec<Node>) -> OwnerEnds {
    for (node, id) in nodes.iter_mut().zip(INPUTS..) {
        node.outputs = vec![NodeOutput::Value(ValueId(id))];
    }
    let values = INPUTS + nodes.len() as u32;
    let inputs = (0..INPUTS).map(|_| GraphInput {
        role: InputRole::User,
        tensor: TensorType { data_type: DataType::F32, shape: Vec::new() },
    });
    let outputs = vec![Argument::Value(ValueId(values - 1))];
    let graph = Graph { inputs: inputs.collect(), nodes, outputs, values };
    OwnerEnds::new(&graph, &Segments::new(&graph, &IS_ROW), &IS_ROW, &IS_PARAMETER)
}

fn first_cuts(ends: &OwnerEnds, last: usize) -> Vec<usize> {
    let can = ends.first_cuts(last);
    (0..can.len()).filter(|&at| can[at]).collect()
}

/// Positions that no raw value crosses.
fn learned(nodes: Vec<Node>) -> Vec<usize> {
    let ends = ends(nodes);
    (1..ends.is_learned.len()).filter(|&at| ends.is_learned[at]).collect()
}

#[test]
fn rows_are_raw_until_a_learned_product() {
    let chain = |second: &str, arguments: &[u32]| {
        learned(vec![node("view", &[3]), node(second, arguments), node("relu", &[5])])
    };
    assert_eq!(chain("linear", &[4, 0, 1]), [2, 3]);
    assert_eq!(chain("embedding", &[0, 4]), [2, 3]);
    // A constant, a sum, a norm and a bias can be undone.
    for arguments in [[4, 2], [2, 4]] {
        assert_eq!(chain("linear", &arguments), NONE, "{arguments:?}");
    }
    assert_eq!(chain("linear", &[4, 2, 0]), NONE);
    assert_eq!(chain("linear", &[2, 0, 4]), NONE);
    assert_eq!(chain("layer_norm", &[4, 0, 1]), NONE);
    assert_eq!(chain("mul.Tensor", &[4, 0]), NONE);
    assert_eq!(chain("addmm", &[0, 4, 2]), NONE);
    assert_eq!(chain("addmm", &[2, 4, 0]), [2, 3]);
    assert_eq!(chain("addmm", &[4, 2, 0]), NONE, "the rows are added to the product");
    assert_eq!(chain("gru.input", &[4, 2, 0]), [2, 3]);
    assert_eq!(chain("gru.input", &[2, 4, 0]), NONE, "a gate lets rows in the state pass");
}

#[test]
fn a_sum_with_rows_is_raw_and_sizes_are_not() {
    let sum = vec![node("linear", &[3, 0]), node("add.Tensor", &[4, 3]), node("relu", &[5])];
    assert_eq!(learned(sum), NONE);
    let again = vec![
        node("linear", &[3, 0]),
        node("add.Tensor", &[4, 3]),
        node("linear", &[5, 0]),
        node("relu", &[6]),
    ];
    assert_eq!(learned(again), [3, 4]);
    // The number of rows, and zeros of their shape.
    for name in ["sym_size.int", "size:add", "zeros_like"] {
        let shape = vec![node(name, &[3]), node("linear", &[3, 0]), node("add.Tensor", &[5, 4])];
        assert_eq!(learned(shape), [2, 3], "{name}");
    }
}

#[test]
fn a_memory_with_written_rows_is_raw() {
    let written = |name: &str| {
        learned(vec![
            node("linear", &[3, 0]),
            node("view", &[4]),
            node(name, &[5, 3]),
            node("relu", &[4]),
        ])
    };
    assert_eq!(written("mul.Tensor"), [3, 4]);
    assert_eq!(written("copy_"), NONE, "the product's own name is another one of the memory");
    // Rows are added to the constant 2, and a later node reads it by its own name.
    let constant = learned(vec![
        node("linear", &[3, 0]),
        node("add_.Tensor", &[2, 3]),
        node("add.Tensor", &[2, 4]),
        node("relu", &[6]),
    ]);
    assert!(!constant.contains(&3), "{constant:?}");
}

#[test]
fn both_ends_may_share_a_parameter_and_the_middle_has_none_of_theirs() {
    // A tied parameter 0 at both ends, and parameter 1 twice between them.
    let tied = || {
        vec![
            node("embedding", &[0, 3]),
            node("linear", &[4, 1]),
            node("relu", &[5]),
            node("linear", &[6, 1]),
            node("relu", &[7]),
            node("linear", &[8, 0]),
        ]
    };
    let own = ends(tied());
    assert_eq!(own.last_part(3), Ok(5));
    assert_eq!(first_cuts(&own, 5), [1, 4]);
    assert_eq!(own.check(&[0..1, 1..5, 5..6]), Ok(()));
    assert_eq!(own.check(&[0..2, 2..5, 5..6]), Err(EndsError::Shared { start: 2, end: 4 }));
    // The parameter of the last part is read between the ends.
    let mut between = tied();
    between[1] = node("linear", &[4, 0]);
    let own = ends(between);
    assert_eq!(first_cuts(&own, 5), [2, 3, 4]);
    assert_eq!(own.check(&[0..1, 1..5, 5..6]), Err(EndsError::Shared { start: 1, end: 4 }));
}

#[test]
fn values_of_parameters_alone_do_not_cross() {
    // The product's matrix is computed in front of the cut.
    let own = ends(vec![
        node("linear", &[3, 0]),
        node("t", &[1]),
        node("relu", &[4]),
        node("matmul", &[6, 5]),
        node("linear", &[7, 0]),
    ]);
    assert_eq!(first_cuts(&own, 4), [1], "the transposed parameter crosses the others");
    let own = ends(vec![
        node("linear", &[3, 0]),
        node("t", &[1]),
        node("relu", &[4]),
        node("matmul", &[6, 5]),
    ]);
    assert_eq!(own.last_part(3), Err(EndsError::None { parts: 3 }));
    assert_eq!(own.check(&[0..1, 1..3, 3..4]), Err(EndsError::NoParameter { node: 3 }));
}

#[test]
fn refusals_name_the_first_node_that_is_possible() {
    let chain = || {
        vec![
            node("view", &[3]),
            node("neg", &[4]),
            node("linear", &[5, 0]),
            node("relu", &[6]),
            node("linear", &[7, 1]),
            node("relu", &[8]),
        ]
    };
    let own = ends(chain());
    assert_eq!(own.last_part(3), Ok(4));
    assert_eq!(own.check(&[0..1, 1..4, 4..6]), Err(EndsError::Raw { node: 1, first: 3 }));
    let text = own.check(&[0..2, 2..4, 4..6]).unwrap_err().to_string();
    assert!(text.contains("in front of node 2") && text.ends_with("can begin is 3"), "{text}");
    assert_eq!(own.check(&[0..3, 3..5, 5..6]), Err(EndsError::NoParameter { node: 5 }));
    assert_eq!(own.check(&[0..3, 3..4, 4..6]), Ok(()));
    assert_eq!(own.last_part(4), Err(EndsError::None { parts: 4 }));
    let raw = ends(vec![node("view", &[3]), node("layer_norm", &[4, 0]), node("relu", &[5])]);
    assert_eq!(raw.last_part(3), Err(EndsError::None { parts: 3 }));
}
