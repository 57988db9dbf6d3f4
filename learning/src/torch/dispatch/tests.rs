//! Arguments as each operator's schema converts them, and errors instead of exceptions.

use tch::Kind;

use super::*;

fn find(name: &str) -> AtenOperator {
    let (name, overload) = name.split_once('.').unwrap_or((name, ""));
    AtenOperator::find(&format!("aten::{name}"), overload).unwrap()
}

fn tensors(values: Vec<Value>) -> Vec<Tensor> {
    values
        .into_iter()
        .flat_map(|value| match value {
            Value::Tensor(tensor) => vec![tensor],
            Value::Tensors(tensors) => tensors,
            other => panic!("no tensor: {other:?}"),
        })
        .collect()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    Vec::<f64>::try_from(&tensor.to_kind(Kind::Double).view([-1])).unwrap()
}

#[test]
fn a_number_for_a_tensor_promotes_like_a_number() {
    let halves = Tensor::from_slice(&[1.5f32, 2.5]);
    let arguments = [(None, Argument::Tensor(&halves)), (None, Argument::Float(2.0))];
    let found = tensors(find("mul.Tensor").call(&arguments).unwrap());
    assert_eq!((found[0].kind(), numbers(&found[0])), (Kind::Float, vec![3.0, 5.0]));
    let whole = Tensor::from_slice(&[3i64]);
    let arguments = [(None, Argument::Tensor(&whole)), (Some("other"), Argument::Int(2))];
    let found = tensors(find("add.Tensor").call(&arguments).unwrap());
    assert_eq!((found[0].kind(), numbers(&found[0])), (Kind::Int64, vec![5.0]));
}

#[test]
fn lists_defaults_and_missing_tensors_follow_the_schema() {
    let image = Tensor::arange(16, (Kind::Float, tch::Device::Cpu)).view([1, 1, 4, 4]);
    // One number for int[2], and a stride by default.
    let arguments = [(None, Argument::Tensor(&image)), (None, Argument::Int(2))];
    let found = tensors(find("max_pool2d").call(&arguments).unwrap());
    assert_eq!(numbers(&found[0]), [5.0, 7.0, 13.0, 15.0]);
    let (row, at) = (image.view([4, 4]), Tensor::from_slice(&[1i64, 3]));
    let indices = [None, Some(&at)];
    let arguments = [(None, Argument::Tensor(&row)), (None, Argument::Tensors(&indices))];
    let found = tensors(find("index.Tensor").call(&arguments).unwrap());
    assert_eq!(numbers(&found[0])[..4], [1.0, 3.0, 5.0, 7.0]);
    let arguments = [
        (None, Argument::Tensor(&row)),
        (None, Argument::Ints(&[1, 3])),
        (Some("dim"), Argument::Int(1)),
    ];
    let found = tensors(find("split_with_sizes").call(&arguments).unwrap());
    assert_eq!((found.len(), found[1].size()), (2, vec![4, 3]));
    let arguments = [(None, Argument::Tensor(&row)), (None, Argument::Int(1))];
    let found = find("sym_size.int").call(&arguments).unwrap();
    assert!(matches!(found[..], [Value::Int(4)]), "{found:?}");
}

#[test]
fn gradients_flow_through_operators() {
    let weight = Tensor::from_slice(&[2.0f32, 3.0]).set_requires_grad(true);
    let arguments = [(None, Argument::Tensor(&weight)), (None, Argument::Float(3.0))];
    let cubes = tensors(find("pow.Tensor_Scalar").call(&arguments).unwrap());
    let gradient = Tensor::run_backward(&[cubes[0].sum(None::<Kind>)], &[&weight], false, false);
    assert_eq!(numbers(&gradient[0]), [12.0, 27.0]);
}

#[test]
fn errors_name_the_operator_and_leave_nothing_behind() {
    let unknown = AtenOperator::find("aten::no_such_operator", "").unwrap_err();
    assert_eq!(unknown.operator, "aten::no_such_operator");
    assert!(AtenOperator::find("aten::add\0", "").is_err());
    let (two, three) = (Tensor::zeros([2], (Kind::Float, tch::Device::Cpu)), Tensor::from(3i64));
    let why = |name: &str, arguments: &[(Option<&str>, Argument<'_>)]| {
        find(name).call(arguments).unwrap_err().why
    };
    assert!(why("add.Tensor", &[(None, Argument::Tensor(&two))]).contains("other is missing"));
    let twice = [(None, Argument::Tensor(&two)), (Some("self"), Argument::Tensor(&two))];
    assert!(why("relu", &twice).contains("given twice"));
    assert!(why("relu", &[(Some("me"), Argument::Tensor(&two))]).contains("no argument me"));
    assert!(why("relu", &[(None, Argument::Text("x"))]).contains("must be of type Tensor"));
    let too_many = [(None, Argument::Tensor(&two)), (None, Argument::Tensor(&two))];
    assert!(why("relu", &too_many).contains("too many arguments"));
    let matrix = [(None, Argument::Tensor(&two)), (None, Argument::Tensor(&three))];
    assert!(!why("mm", &matrix).is_empty());
    let list = [(None, Argument::Tensors(&[None][..]))];
    assert!(why("cat", &list).contains("tensors must be of type"));
}
