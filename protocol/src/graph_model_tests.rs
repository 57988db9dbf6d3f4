//! Declarations of graphs: their numbers, and those that are refused.

use super::*;
use crate::limits::COALITIONS_COHORT_MAX;
use crate::model::ModelArchitecture;
use crate::task::{Estimator, TaskSpec};

fn tensor(name: &str, shape: &[u32]) -> TensorShape {
    TensorShape { name: name.to_owned(), shape: shape.to_vec() }
}

/// 4 inputs, 3 classes, and two tensors of 15 numbers.
fn graph() -> GraphModel {
    GraphModel {
        form: GraphForm::Operators,
        graph: Blob { digest: Digest([7; 32]), bytes: 1_000 },
        frozen: None,
        inputs: 4,
        targets: 0,
        outputs: 3,
        loss: ModelLoss::CrossEntropy { label_smoothing: Micro::ZERO },
        tensors: vec![tensor("head.weight", &[3, 4]), tensor("head.bias", &[3])],
    }
}

#[test]
fn numbers_follow_from_the_declaration() {
    let frozen = Some(Blob { digest: Digest([8; 32]), bytes: 9 });
    let plain = GraphModel { frozen, ..graph() };
    assert_eq!(plain.check(), Ok(()));
    assert_eq!((plain.parameters(), plain.width(), plain.classes()), (Some(15), Some(4), 3));
    assert_eq!(plain.blobs().map(|blob| blob.bytes).collect::<Vec<_>>(), [1_000, 9]);
    let bound = Micro::ONE;
    let number = GraphModel {
        targets: 3,
        loss: ModelLoss::Squared { bound },
        tensors: vec![tensor("a", &[])],
        ..plain
    };
    assert_eq!(number.check(), Ok(()));
    assert_eq!((number.parameters(), number.width(), number.classes()), (Some(1), Some(7), 1));
    assert!(!number.loss.has_label() && !number.loss.is_in_nats());
    assert!(ModelLoss::Binary.is_in_nats() && graph().loss.has_label());
    let huge = vec![tensor("a", &[u32::MAX, u32::MAX, u32::MAX])];
    assert_eq!(GraphModel { tensors: huge, ..graph() }.parameters(), None);
    assert_eq!(GraphModel { targets: u32::MAX, ..graph() }.width(), None);
}

#[test]
fn an_invalid_declaration_is_refused_with_its_key() {
    type Change = fn(&mut GraphModel);
    let table: [(&str, Change); 24] = [
        ("model.graph", |g| g.graph.bytes = 0),
        ("model.graph", |g| g.graph.bytes = GRAPH_BYTES_MAX + 1),
        ("model.frozen", |g| g.frozen = Some(Blob { digest: Digest([1; 32]), bytes: 0 })),
        ("model.frozen", |g| {
            g.frozen = Some(Blob { digest: Digest([1; 32]), bytes: BLOB_BYTES_MAX + 1 });
        }),
        ("model.inputs", |g| g.inputs = 0),
        ("model.inputs", |g| g.inputs = ROW_NUMBERS_MAX + 1),
        ("model.inputs", |g| g.targets = u32::MAX),
        ("model.outputs", |g| g.outputs = 0),
        ("model.outputs", |g| g.outputs = ROW_NUMBERS_MAX + 1),
        ("model.label_smoothing", |g| {
            g.loss = ModelLoss::CrossEntropy { label_smoothing: Micro::ONE };
        }),
        ("model.loss_bound", |g| g.loss = ModelLoss::Squared { bound: Micro::ZERO }),
        ("model.huber_delta", |g| {
            g.loss = ModelLoss::Huber { delta: Micro::ZERO, bound: Micro::ONE };
        }),
        ("model.targets", |g| g.targets = 1),
        ("model.targets", |g| g.outputs = 1),
        ("model.targets", |g| g.loss = ModelLoss::Absolute { bound: Micro::ONE }),
        ("model.targets", |g| g.loss = ModelLoss::Output { bound: Micro::ONE }),
        ("model.tensors", |g| g.tensors.clear()),
        ("model.tensors", |g| g.tensors = vec![tensor("a", &[1]); GRAPH_TENSORS_MAX + 1]),
        ("model.tensors", |g| g.tensors[1].name = "head.weight".to_owned()),
        ("model.tensors", |g| g.tensors[0].name = "head\"".to_owned()),
        ("model.tensors", |g| g.tensors[0].name = "a".repeat(TENSOR_NAME_BYTES_MAX + 1)),
        ("model.tensors", |g| g.tensors[0].shape = vec![1; TENSOR_DIMENSIONS_MAX + 1]),
        ("model.tensors", |g| g.tensors[0].shape = vec![3, 0]),
        ("model.trainable", |g| g.tensors[0].shape = vec![u32::MAX, 2]),
    ];
    for (at, (key, change)) in table.into_iter().enumerate() {
        let mut wrong = graph();
        change(&mut wrong);
        assert_eq!(wrong.check().unwrap_err().key, key, "{at}");
    }
    let name = |at: usize| format!("{at:0256}");
    let tensors = (0..1_000).map(|at| TensorShape { name: name(at), shape: vec![1] }).collect();
    let error = GraphModel { tensors, ..graph() }.check().unwrap_err();
    assert!(error.value.contains("256000 bytes"), "{error}");
}

#[test]
fn a_task_with_a_graph_is_valid() {
    let mut spec = TaskSpec::example();
    spec.model = ModelArchitecture::Graph(graph());
    spec.data.width = 4;
    spec.data.classes = 3;
    assert_eq!(spec.check(), Ok(()));
    spec.rounds.baseline_epochs = 1;
    assert_eq!(spec.check(), Ok(()));
    let text = serde_json::to_string(&spec.model).unwrap();
    assert!(
        text.starts_with(r#"{"kind":"graph","form":{"kind":"operators"},"graph":{"digest":"#),
        "{text}"
    );
    assert_eq!(serde_json::from_str::<ModelArchitecture>(&text).unwrap(), spec.model);
    let unknown = text.replace("\"inputs\"", "\"input\"");
    assert!(serde_json::from_str::<ModelArchitecture>(&unknown).is_err());
}

/// A task whose model is a trainer without gradients.
fn trainer_task() -> TaskSpec {
    let mut spec = TaskSpec::example();
    let form = GraphForm::Trainer { has_gradient: false };
    spec.model = ModelArchitecture::Graph(GraphModel { form, ..graph() });
    (spec.data.width, spec.data.classes) = (4, 3);
    spec.rounds.baseline_epochs = 0;
    spec.estimator = Estimator::Coalitions;
    spec
}

#[test]
fn a_task_with_a_trainer_is_checked() {
    assert_eq!(trainer_task().check(), Ok(()));
    let path = Estimator::Path { nodes: 3, cross_check_pairs: 1 };
    let change = |spec: &mut TaskSpec, change: fn(&mut GraphModel)| match &mut spec.model {
        ModelArchitecture::Graph(graph) => change(graph),
        _ => unreachable!(),
    };
    let mut spec = trainer_task();
    change(&mut spec, |g| g.form = GraphForm::Trainer { has_gradient: true });
    spec.estimator = path;
    assert_eq!(spec.check(), Ok(()), "a gradient allows both estimators");
    type Wrong = fn(&mut GraphModel);
    let models: [(&str, Wrong); 4] = [
        ("model.loss", |g| g.loss = ModelLoss::Squared { bound: Micro::ONE }),
        ("model.loss", |g| g.loss = ModelLoss::CrossEntropy { label_smoothing: Micro(1) }),
        ("model.frozen", |g| g.frozen = Some(Blob { digest: Digest([1; 32]), bytes: 1 })),
        ("model.graph", |g| g.graph.bytes = TRAINER_BYTES_MAX + 1),
    ];
    for (at, (key, wrong)) in models.into_iter().enumerate() {
        let mut spec = trainer_task();
        change(&mut spec, wrong);
        assert_eq!(spec.check().unwrap_err().key, key, "{at}");
    }
    type WrongTask = fn(&mut TaskSpec);
    let tasks: [(&str, WrongTask); 4] = [
        ("rounds.baseline_epochs", |s| s.rounds.baseline_epochs = 1),
        ("training.noise_min", |s| s.training.noise_min = Micro::ONE),
        ("estimator.kind", |s| {
            s.estimator = Estimator::Path { nodes: 3, cross_check_pairs: 1 };
        }),
        ("rounds.cohort_target", |s| {
            s.rounds.cohort_target = COALITIONS_COHORT_MAX + 1;
        }),
    ];
    for (key, wrong) in tasks {
        let mut spec = trainer_task();
        wrong(&mut spec);
        assert_eq!(spec.check().unwrap_err().key, key);
    }
    let mut most = trainer_task();
    (most.rounds.cohort_target, most.rounds.over_selection) = (COALITIONS_COHORT_MAX, 9);
    assert_eq!(most.check(), Ok(()));
}
