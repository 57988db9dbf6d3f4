//! Graphs that are cut in two compute what the whole ones do, and values that the rest cannot take do not cross.

use std::path::Path;

use super::*;
use crate::graph::read_archive;
use crate::reference::Reference;
use crate::torch::graph::tests::{GraphTask, models};
use crate::torch::{Torch, TorchDevice};

fn archive(name: &str) -> (Graph, GraphWeights) {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/data/graphs"));
    read_archive(&folder.join(format!("{name}.pt2"))).unwrap()
}

fn parameters(graph: &Graph) -> Vec<String> {
    let names = graph.inputs.iter().filter_map(|input| match &input.role {
        InputRole::Parameter(name) => Some(name.clone()),
        _ => None,
    });
    names.collect()
}

fn cut(name: &str, at_home: &[&str]) -> Result<CutGraph, GraphError> {
    let (graph, weights) = archive(name);
    let patterns: Vec<String> = at_home.iter().map(|&pattern| pattern.to_owned()).collect();
    CutGraph::new(&graph, &weights, &patterns)
}

fn refused(name: &str, at_home: &[&str]) -> String {
    cut(name, at_home).map(|cut| cut.first_nodes).unwrap_err().to_string()
}

/// The cuts behind each of the first parameters, in the order of the model.
fn cuts(name: &str) -> Vec<CutGraph> {
    let (graph, weights) = archive(name);
    let names = parameters(&graph);
    let ends = 1..=names.len();
    ends.filter_map(|end| CutGraph::new(&graph, &weights, &names[..end]).ok()).collect()
}

/// The rest of a cut as the model of a task, with its parameters.
fn rest_model(cut: &CutGraph, whole: &GraphTask) -> (ModelSpec, Vec<f64>) {
    let all = ["*".to_owned()];
    let parts = split(&cut.rest, &cut.rest_weights, &all, BufferPolicy::Freeze).unwrap();
    let ModelSpec::Graph(model) = &whole.model else { unreachable!("graphs alone") };
    let declaration = GraphDeclaration {
        inputs: parts.inputs,
        tensors: parts.tensors,
        ..model.declaration().clone()
    };
    let model = GraphModel::load(declaration, &parts.graph, parts.frozen.as_deref()).unwrap();
    (ModelSpec::Graph(Box::new(model)), parts.initial.iter().map(|&own| own.into()).collect())
}

fn assert_same_losses(cut: &CutGraph, whole: &GraphTask, engine: &mut dyn Engine) {
    let (model, params) = rest_model(cut, whole);
    let rows = cut.activations(&whole.rows, engine).unwrap();
    assert_eq!(rows.labels(), whole.rows.labels());
    let expected = engine.row_losses(&whole.model, &whole.wide(), &whole.rows).unwrap();
    let found = engine.row_losses(&model, &params, &rows).unwrap();
    for (found, expected) in found.iter().zip(&expected) {
        let at = cut.first_nodes;
        assert!(
            (found - expected).abs() < 1e-4 * (1.0 + expected.abs()),
            "{at}: {found} {expected}"
        );
    }
}

#[test]
fn both_parts_of_every_cut_compute_the_losses_of_the_whole_graph() {
    let mut engine = Torch::new(TorchDevice::Auto, 1).unwrap();
    let mut count = 0;
    for name in models() {
        let whole = GraphTask::load(&name, "*", BufferPolicy::Freeze);
        for cut in cuts(&name) {
            println!(
                "{name}: {} of {} nodes, {} numbers",
                cut.first_nodes, cut.nodes, cut.crossing
            );
            assert_same_losses(&cut, &whole, &mut engine);
            count += 1;
        }
    }
    assert!(count >= 30, "{count} cuts");
}

#[test]
fn the_plain_engine_computes_the_same_activations() {
    let whole = GraphTask::load("vit", "*", BufferPolicy::Freeze);
    let cut = cut("vit", &["patch.*", "token", "place"]).unwrap();
    assert_same_losses(&cut, &whole, &mut Reference::new());
    let plain = cut.activations(&whole.rows, &mut Reference::new()).unwrap();
    let torch =
        cut.activations(&whole.rows, &mut Torch::new(TorchDevice::Auto, 1).unwrap()).unwrap();
    assert_eq!(plain.width(), cut.crossing);
    for (plain, torch) in plain.features().iter().zip(torch.features()) {
        assert!((plain - torch).abs() < 1e-5, "{plain} {torch}");
    }
}

#[test]
fn the_rest_has_no_weight_and_no_row_of_the_first_part() {
    let (graph, _) = archive("resnet");
    let cut = cut("resnet", &["stem.*", "body.0.*"]).unwrap();
    let own = parameters(&cut.rest);
    assert!(!own.is_empty() && own.iter().all(|name| !cut.at_home.contains(name)), "{own:?}");
    assert_eq!(own.len() + cut.at_home.len(), parameters(&graph).len());
    let rows = cut.rest.inputs.iter().filter(|input| input.role == InputRole::User);
    assert_eq!(rows.count(), 1);
    assert!(
        cut.rest.inputs.iter().all(|input| input.role.name() != Some("body.0.norm.running_mean"))
    );
}

#[test]
fn parameters_in_front_of_the_cut_are_named() {
    let missing = refused("vit", &["block.mlp.0.*"]);
    assert!(missing.contains("let it stay at home, too"), "{missing}");
    let none = refused("vit", &["*"]);
    assert!(none.contains("leaves no parameter to train"), "{none}");
    let unknown = refused("vit", &["nothing.*"]);
    assert!(unknown.contains("at_home = \"nothing.*\" matches no parameter"), "{unknown}");
    // Columns of a table go around the embedding of another one.
    let raw = refused("tabular", &["kinds.weight"]);
    assert!(raw.contains("without a learned product"), "{raw}");
}

#[test]
fn a_rest_is_found_by_its_bytes() {
    let (graph, weights) = archive("resnet");
    for cut in cuts("resnet") {
        let bytes = cut.rest.to_bytes();
        let found = CutGraph::find(&graph, &weights, &|rest| rest == bytes).unwrap().unwrap();
        assert_eq!((found.first_nodes, found.at_home), (cut.first_nodes, cut.at_home));
    }
    assert!(CutGraph::find(&graph, &weights, &|_| false).unwrap().is_none());
}

#[test]
fn targets_stay_behind_the_activations() {
    let cut = cut("lstm", &["word.*"]).unwrap();
    let rows = Dataset::new(vec![1.0; 2 * (cut.inputs() + 3)], vec![0; 2], cut.inputs() + 3, 1);
    let rows = cut.activations(&rows.unwrap(), &mut Reference::new()).unwrap();
    assert_eq!(rows.width(), cut.crossing + 3);
    assert_eq!(&rows.row(1)[cut.crossing..], [1.0; 3]);
    let narrow = Dataset::new(vec![1.0; 2], vec![0; 2], 1, 1).unwrap();
    let refused = cut.activations(&narrow, &mut Reference::new()).unwrap_err();
    assert!(matches!(refused, ActivationError::Width { width: 1, .. }), "{refused}");
}

#[test]
fn sizes_are_recognised_at_several_numbers_of_rows() {
    let of = |size: fn(i64) -> i64| {
        let sizes: Vec<i64> = PROBED_ROWS.iter().map(|rows| size(rows.cast_signed())).collect();
        kind_of_size(&sizes)
    };
    assert_eq!(of(|rows| rows), Ok(Crossing::Count));
    assert_eq!(of(|_| 7), Ok(Crossing::Size(7)));
    for other in
        [|rows| rows / 2, |rows| rows / 4, |rows: i64| rows.min(4), |rows: i64| rows.max(2) + 1]
    {
        assert!(of(other).is_err());
    }
}

#[test]
fn an_output_that_no_loss_reads_is_not_in_the_rest() {
    let (mut graph, weights) = archive("resnet");
    let patterns = ["stem.*".to_owned()];
    let alone = CutGraph::new(&graph, &weights, &patterns).unwrap();
    // A value of the first part is a second output.
    let first = graph.nodes[0].outputs[0].values()[0];
    graph.outputs.push(Argument::Value(first));
    let cut = CutGraph::new(&graph, &weights, &patterns).unwrap();
    assert_eq!((cut.rest.outputs.len(), cut.rest), (1, alone.rest));
}
