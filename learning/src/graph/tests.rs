//! Models that PyTorch exported, against what PyTorch computed with them, and archives that are
//! refused.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::*;

fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/data/graphs")).join(name)
}

/// The names of all models in the folder.
fn models() -> Vec<String> {
    let files = std::fs::read_dir(path("")).unwrap().map(|file| file.unwrap().path());
    let models = files.filter(|file| file.extension().is_some_and(|end| end == "pt2"));
    let mut models: Vec<String> =
        models.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    models.sort_unstable();
    models
}

#[test]
fn every_model_is_read_and_its_canonical_bytes_are_read_back() {
    assert!(models().len() >= 14, "{:?}", models());
    let mut digests = BTreeMap::new();
    for name in models() {
        let (graph, weights) = read_archive(&path(&format!("{name}.pt2"))).unwrap();
        let bytes = graph.to_bytes();
        assert_eq!(Graph::from_bytes(&bytes).unwrap(), graph, "{name}");
        let own = graph.inputs.iter().filter(|input| input.role != InputRole::User);
        assert_eq!(own.count(), weights.tensors.len(), "{name}");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(!text.contains("make.py") && !text.contains("site-packages"), "{name}");
        assert_eq!(digests.insert(graph.digest(), name.clone()), None, "{name}");
    }
}

#[test]
fn costs_grow_with_the_rows_and_have_a_limit() {
    let (graph, _) = read_archive(&path("mlp.pt2")).unwrap();
    let cost = |rows: u64, most: u64| graph_cost(&graph, &[rows], most);
    // Two layers of 8×8 and 8×3, activations of 8, 8, 8 and 3 numbers for each row.
    let two = cost(2, 1 << 20).unwrap();
    assert_eq!((two.activation_bytes, two.outputs[0].sizes.clone()), (2 * 27 * 4, vec![2, 3]));
    assert_eq!(two.flops, 2 * (2 * 64 + 8 + 8 + 2 * 24));
    assert_eq!(cost(200, 1 << 20).unwrap().flops, 100 * two.flops);
    assert_eq!(cost(2, 2 * 27 * 4).unwrap(), two);
    assert_eq!(cost(2, 2 * 27 * 4 - 1).unwrap_err().code(), "MODEL_TOO_LARGE");
    assert_eq!(cost(u64::MAX, u64::MAX - 1).unwrap_err().code(), "MODEL_TOO_LARGE");
    assert_eq!(graph_cost(&graph, &[], 1 << 20).unwrap_err().code(), "MODEL_GRAPH_INVALID");
}

#[cfg(feature = "torch")]
mod with_torch {
    use safetensors::{Dtype, SafeTensors};
    use tch::{Kind, Tensor};

    use super::*;
    use crate::torch::dispatch::{Argument as Given, AtenOperator};
    use crate::torch::graph::generator;

    const STEPS: usize = 10;
    const RATE: f64 = 0.05;
    const SEED: i64 = 7;

    fn tensor(kind: Kind, sizes: &[i64], bytes: &[u8]) -> Tensor {
        Tensor::from_data_size(bytes, sizes, kind)
    }

    /// A model, and what PyTorch computed with it.
    struct Case {
        graph: Graph,
        /// The inputs of the graph; parameters record gradients.
        inputs: Vec<Tensor>,
        parameters: Vec<(String, usize)>,
        labels: Tensor,
        expected: BTreeMap<String, Tensor>,
    }

    impl Case {
        fn load(name: &str) -> Self {
            let (graph, weights) = read_archive(&path(&format!("{name}.pt2"))).unwrap();
            let bytes = std::fs::read(path(&format!("{name}.safetensors"))).unwrap();
            let file = SafeTensors::deserialize(&bytes).unwrap();
            let expected: BTreeMap<String, Tensor> = file
                .iter()
                .map(|(name, view)| {
                    let kind = match view.dtype() {
                        Dtype::F32 => Kind::Float,
                        Dtype::I64 => Kind::Int64,
                        other => panic!("{other:?}"),
                    };
                    let sizes: Vec<i64> = view.shape().iter().map(|&size| size as i64).collect();
                    (name.to_owned(), tensor(kind, &sizes, view.data()))
                })
                .collect();
            let (mut inputs, mut parameters, mut own) =
                (Vec::new(), Vec::new(), weights.tensors.iter());
            for (at, input) in graph.inputs.iter().enumerate() {
                inputs.push(match &input.role {
                    InputRole::User => expected["input"].shallow_clone(),
                    InputRole::Parameter(name) => {
                        parameters.push((name.clone(), at));
                        own.next().unwrap().to_tensor().unwrap().set_requires_grad(true)
                    }
                    _ => own.next().unwrap().to_tensor().unwrap(),
                });
            }
            let labels = expected["labels"].shallow_clone();
            Self { graph, inputs, parameters, labels, expected }
        }

        fn loss(&self, interpreter: &Interpreter<'_>) -> Tensor {
            let outputs = interpreter.run(&self.inputs, RunMode::Training).unwrap();
            let logits = outputs[0].flatten(0, -2);
            logits.cross_entropy_loss(
                &self.labels.flatten(0, -1),
                None::<&Tensor>,
                tch::Reduction::Mean,
                -100,
                0.0,
            )
        }

        fn gradients(&self, loss: &Tensor) -> Vec<Tensor> {
            let own: Vec<&Tensor> =
                self.parameters.iter().map(|(_, at)| &self.inputs[*at]).collect();
            Tensor::run_backward(&[loss], &own, false, false)
        }

        /// How many of the elements differ in a bit, and the largest difference.
        fn compare(&self, name: &str, found: &Tensor) -> (usize, f64) {
            let expected = &self.expected[name];
            assert_eq!(found.size(), expected.size(), "{name}");
            let bits = |tensor: &Tensor| {
                let values: Vec<f32> = tensor.flatten(0, -1).try_into().unwrap();
                values.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            };
            let differ = bits(found).iter().zip(bits(expected)).filter(|(a, b)| **a != *b).count();
            let away = (found - expected).abs().max();
            (differ, f64::try_from(away).unwrap())
        }
    }

    /// Loss, gradients and parameters after ten steps. On a processor with other kernels than the one
    /// that wrote the files the last bits may differ; `cargo xtask bench models` compares the bits on
    /// one machine.
    #[test]
    fn training_agrees_with_pytorch() {
        const TOLERANCE: f64 = 2e-5;
        let _generator = generator();
        crate::torch::threads::set_threads(1);
        let mut exact = Vec::new();
        for name in models() {
            let mut case = Case::load(&name);
            let graph = case.graph.clone();
            let interpreter = Interpreter::new(&graph, "cpu").unwrap();
            let start: Vec<Tensor> =
                case.inputs.iter().map(|input| input.detach().copy()).collect();
            tch::manual_seed(SEED);
            let loss = case.loss(&interpreter);
            let mut found = vec![case.compare("loss", &loss.detach().reshape([1]))];
            for ((name, _), gradient) in case.parameters.iter().zip(case.gradients(&loss)) {
                found.push(case.compare(&format!("gradient.{name}"), &gradient));
            }
            for (at, start) in start.into_iter().enumerate() {
                let is_parameter = case.parameters.iter().any(|(_, own)| *own == at);
                case.inputs[at] = start.set_requires_grad(is_parameter);
            }
            tch::manual_seed(SEED);
            let add = AtenOperator::find("aten::add_", "Tensor").unwrap();
            for _ in 0..STEPS {
                let gradients = case.gradients(&case.loss(&interpreter));
                for ((_, at), gradient) in case.parameters.iter().zip(&gradients) {
                    let arguments = [
                        (None, Given::Tensor(&case.inputs[*at])),
                        (None, Given::Tensor(gradient)),
                        (Some("alpha"), Given::Float(-RATE)),
                    ];
                    tch::no_grad(|| add.call(&arguments)).unwrap();
                }
            }
            for (name, at) in &case.parameters {
                found.push(case.compare(&format!("after.{name}"), &case.inputs[*at].detach()));
            }
            let away = found.iter().map(|(_, away)| *away).fold(0.0, f64::max);
            assert!(away < TOLERANCE, "{name}: {away:e}");
            match found.iter().map(|(differ, _)| differ).sum::<usize>() {
                0 => exact.push(name),
                differ => println!("{name}: {differ} elements differ, by up to {away:e}"),
            }
        }
        println!("{} of {} models agree in every bit: {exact:?}", exact.len(), models().len());
    }

    /// The graph with every value as an output.
    fn with_all_values(graph: &Graph) -> Graph {
        let values = graph.nodes.iter().flat_map(|node| node.outputs.iter());
        let ids = values.flat_map(|output| match output {
            NodeOutput::None => Vec::new(),
            NodeOutput::Value(id) => vec![*id],
            NodeOutput::List(ids) => ids.clone(),
        });
        Graph { outputs: ids.map(Argument::Value).collect(), ..graph.clone() }
    }

    #[test]
    fn shapes_are_those_of_a_run() {
        let _generator = generator();
        for name in models() {
            let case = Case::load(&name);
            let graph = with_all_values(&case.graph);
            let found = graph_cost(&graph, &[5], 1 << 30).unwrap();
            let run = Interpreter::new(&graph, "cpu")
                .unwrap()
                .run(&case.inputs, RunMode::Training)
                .unwrap();
            assert_eq!(found.outputs.len(), run.len(), "{name}");
            for (at, (shape, tensor)) in found.outputs.iter().zip(&run).enumerate() {
                let sizes: Vec<u64> = tensor.size().iter().map(|&size| size as u64).collect();
                let number = tensor.kind() as i64;
                assert_eq!(
                    (&shape.sizes, shape.data_type.torch_number()),
                    (&sizes, number),
                    "{name}: value {at}"
                );
            }
        }
    }

    #[test]
    fn evaluation_has_no_noise_and_changes_no_statistics() {
        for name in models() {
            let case = Case::load(&name);
            let interpreter = Interpreter::new(&case.graph, "cpu").unwrap();
            let before: Vec<Tensor> =
                case.inputs.iter().map(|input| input.detach().copy()).collect();
            let run = || interpreter.run(&case.inputs, RunMode::Evaluation).unwrap();
            let (first, second) = (run(), run());
            assert!(first[0].equal(&second[0]), "{name}");
            for (at, (before, after)) in before.iter().zip(&case.inputs).enumerate() {
                assert!(before.equal(after), "{name}: input {at} has changed");
            }
        }
    }
}
