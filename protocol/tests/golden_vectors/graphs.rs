//! Tasks of graphs.

use florin_protocol::*;

use super::{micro, spec};

/// Tasks of graphs with all losses; those of a number have a target behind the features.
pub(super) fn graphs() -> Vec<(&'static str, TaskSpec)> {
    let bound = micro("4");
    let label_smoothing = micro("0.1");
    let losses = [
        ("a task for a graph", ModelLoss::CrossEntropy { label_smoothing }),
        ("a task for a graph of tokens", ModelLoss::TokenCrossEntropy { label_smoothing }),
        ("a task for a graph with truth values", ModelLoss::Binary),
        ("a task for a graph with squared differences", ModelLoss::Squared { bound }),
        ("a task for a graph with absolute differences", ModelLoss::Absolute { bound }),
        ("a task for a graph with Huber's loss", ModelLoss::Huber { delta: micro("1.5"), bound }),
        ("a task for a graph with a loss of its own", ModelLoss::Output { bound }),
    ];
    let task = |(name, loss)| {
        let has_number = matches!(
            loss,
            ModelLoss::Binary
                | ModelLoss::Squared { .. }
                | ModelLoss::Absolute { .. }
                | ModelLoss::Huber { .. }
        );
        let targets = u32::from(has_number);
        let outputs = if has_number || matches!(loss, ModelLoss::Output { .. }) { 1 } else { 3 };
        let frozen = has_number.then_some(Blob { digest: Digest([0x66; 32]), bytes: 1 << 32 });
        let tensor = |name: &str, shape: &[u32]| TensorShape {
            name: name.to_owned(),
            shape: shape.to_vec(),
        };
        let graph = GraphModel {
            form: GraphForm::Operators,
            graph: Blob { digest: Digest([0x55; 32]), bytes: 4_096 },
            frozen,
            inputs: 4,
            targets,
            outputs,
            loss,
            tensors: vec![tensor("0.weight", &[outputs, 4]), tensor("scale", &[])],
        };
        let mut spec = spec(ModelArchitecture::Graph(graph), Aggregation::Mean);
        if has_number {
            let target = NumberEncoding {
                offset: "152.13".parse().unwrap(),
                factor: "0.01298".parse().unwrap(),
                fill: None,
            };
            let features = FeatureEncoding::Uniform(target);
            spec.data.encoding =
                Some(RowEncoding { class_names: Vec::new(), features, target: Some(target) });
        }
        if let ModelLoss::TokenCrossEntropy { .. } = loss {
            let tokenizer = Blob { digest: Digest([0x77; 32]), bytes: 1 << 26 };
            let tokens = TokenEncoding { length: 4, tokenizer, separator: Some(2) };
            let features = FeatureEncoding::Tokens(tokens);
            spec.data.encoding =
                Some(RowEncoding { class_names: Vec::new(), features, target: None });
        }
        (name, spec)
    };
    losses.into_iter().map(task).collect()
}
