//! Archives that are damaged, or made to harm: each is refused with its code, quickly.

use std::io::{Cursor, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use zip::write::FileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::*;

const MODEL: &str = "mlp/models/model.json";
const WEIGHTS: &str = "mlp/data/weights/model_weights_config.json";
/// A refusal takes longer only if it depends on a size that the archive states.
const PATIENCE: Duration = Duration::from_secs(5);

/// The entries of a good archive.
fn entries() -> Vec<(String, Vec<u8>)> {
    let bytes = include_bytes!("../../data/graphs/mlp.pt2");
    let mut archive = ZipArchive::new(Cursor::new(&bytes[..])).unwrap();
    let mut entries = Vec::new();
    for number in 0..archive.len() {
        let mut entry = archive.by_index(number).unwrap();
        let mut content = Vec::new();
        std::io::copy(&mut entry, &mut content).unwrap();
        entries.push((entry.name().to_owned(), content));
    }
    entries
}

fn zip_of(entries: &[(String, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in entries {
        writer
            .start_file(name.as_str(), FileOptions::default().compression_method(method))
            .unwrap();
        writer.write_all(content).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// The code of the refusal.
fn refusal(bytes: &[u8]) -> &'static str {
    let begun = Instant::now();
    let found = read_archive_from(Cursor::new(bytes));
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    match found {
        Ok(_) => "accepted",
        Err(error) => {
            assert!(!error.to_string().is_empty());
            error.code()
        }
    }
}

/// The refusal of the archive with a changed entry.
fn with_entry(name: &str, content: &[u8]) -> &'static str {
    let mut entries = entries();
    entries.iter_mut().find(|(own, _)| own == name).unwrap().1 = content.to_vec();
    refusal(&zip_of(&entries, CompressionMethod::Stored))
}

/// The refusal of the archive with a changed JSON entry.
fn with_json(name: &str, change: impl FnOnce(&mut Value)) -> &'static str {
    let entries = entries();
    let content = &entries.iter().find(|(own, _)| own == name).unwrap().1;
    let mut json: Value = serde_json::from_slice(content).unwrap();
    change(&mut json);
    with_entry(name, json.to_string().as_bytes())
}

fn set(pointer: &'static str, value: Value) -> impl FnOnce(&mut Value) {
    move |json| match json.pointer_mut(pointer) {
        Some(place) => *place = value,
        None => panic!("no {pointer}"),
    }
}

#[test]
fn the_unchanged_archive_is_accepted() {
    assert_eq!(refusal(&zip_of(&entries(), CompressionMethod::Stored)), "accepted");
    assert_eq!(with_json(MODEL, |_| ()), "accepted");
}

#[test]
fn damaged_and_foreign_archives_are_refused() {
    let good = zip_of(&entries(), CompressionMethod::Stored);
    let renamed = |from: &str, to: &str| {
        let mut entries = entries();
        let entry = entries.iter_mut().find(|(name, _)| name.ends_with(from)).unwrap();
        entry.0 = to.to_owned();
        refusal(&zip_of(&entries, CompressionMethod::Stored))
    };
    for (what, found) in [
        ("nothing", refusal(b"")),
        ("a text", refusal(b"import os")),
        ("half of it", refusal(&good[..good.len() / 2])),
        ("no end", refusal(&good[..good.len() - 8])),
        ("compressed", refusal(&zip_of(&entries(), CompressionMethod::Deflated))),
        ("no entries", refusal(&zip_of(&[], CompressionMethod::Stored))),
        ("no graph", renamed("models/model.json", "mlp/models/other.json")),
        ("no format", renamed("archive_format", "mlp/other")),
        ("leaves the folder", renamed("byteorder", "mlp/../../etc/passwd")),
        ("an absolute name", renamed("byteorder", "/etc/passwd")),
        ("a name of Windows", renamed("byteorder", "mlp\\byteorder")),
        ("another folder", renamed("byteorder", "other/byteorder")),
        ("a format of TorchScript", with_entry("mlp/archive_format", b"torchscript")),
        ("big-endian", with_entry("mlp/byteorder", b"big")),
        ("no text", with_entry("mlp/byteorder", b"\xff\xfe")),
    ] {
        assert_eq!(found, "MODEL_ARCHIVE_INVALID", "{what}");
    }
    assert_eq!(with_entry("mlp/archive_version", b"9"), "MODEL_VERSION_UNSUPPORTED");
    assert_eq!(with_entry("mlp/byteorder", &[b' '; 2_000]), "MODEL_TOO_LARGE");
}

#[test]
fn entries_that_overlap_occur_twice_or_are_changed_are_refused() {
    let good = zip_of(&entries(), CompressionMethod::Stored);
    let find = |what: &[u8]| good.windows(what.len()).position(|at| at == what).unwrap();
    // A byte of a weight: the checksum is wrong.
    let mut changed = good.clone();
    let weight = find(b"mlp/data/weights/weight_0") + 25;
    changed[weight + 3] ^= 1;
    assert_eq!(refusal(&changed), "MODEL_ARCHIVE_INVALID");
    // The central directory refers to one local entry twice.
    let names: Vec<usize> = good
        .windows(4)
        .enumerate()
        .filter_map(|(at, bytes)| (bytes == b"PK\x01\x02").then_some(at))
        .collect();
    // The sample inputs are an archive of their own, with a directory of its own.
    let names = &names[names.len() - entries().len()..];
    let mut overlapping = good.clone();
    let offset = names[1] + 42..names[1] + 46;
    overlapping.copy_within(offset, names[2] + 42);
    assert_eq!(refusal(&overlapping), "MODEL_ARCHIVE_INVALID");
    // Two entries of one name: both names have the same length.
    let mut twice = good.clone();
    let from = b"mlp/data/weights/weight_0";
    for at in 0..twice.len() - from.len() {
        if &twice[at..at + from.len()] == b"mlp/data/weights/weight_1" {
            twice[at..at + from.len()].copy_from_slice(from);
        }
    }
    assert_eq!(refusal(&twice), "MODEL_ARCHIVE_INVALID");
    // A size beyond the file.
    let mut beyond = good;
    beyond[names[3] + 20..names[3] + 28].fill(0xfe);
    assert_eq!(refusal(&beyond), "MODEL_ARCHIVE_INVALID");
}

#[test]
fn descriptions_that_are_not_json_of_the_schema_are_refused() {
    for content in [
        b"".to_vec(),
        b"{".to_vec(),
        b"\xff\xff".to_vec(),
        b"[]".to_vec(),
        vec![b'['; 1 << 20],
        br#"{"a":"#.repeat(100_000),
        br#"{"schema_version":{"major":8,"minor":17}}"#.to_vec(),
        br#"{"schema_version":{"major":-1,"minor":0}}"#.to_vec(),
    ] {
        assert_eq!(with_entry(MODEL, &content), "MODEL_GRAPH_INVALID");
    }
    assert_eq!(with_entry(WEIGHTS, b"{}"), "MODEL_GRAPH_INVALID");
    let version = set("/schema_version/major", json!(9));
    assert_eq!(with_json(MODEL, version), "MODEL_VERSION_UNSUPPORTED");
    let many = r#"{"target":"torch.ops.aten.relu.default","inputs":[],"outputs":[]},"#;
    let content = format!(
        r#"{{"schema_version":{{"major":8,"minor":0}},"graph_module":{{"signature":{{"input_specs":[],
        "output_specs":[]}},"graph":{{"inputs":[],"outputs":[],"nodes":[{}]}}}}}}"#,
        many.repeat(NODES_MAX + 1).trim_end_matches(',')
    );
    assert_eq!(with_entry(MODEL, content.as_bytes()), "MODEL_TOO_LARGE");
}

#[test]
fn operators_that_are_not_in_the_table_are_refused_by_name() {
    const TARGET: &str = "/graph_module/graph/nodes/0/target";
    for target in [
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.save.default",
        "torch.ops.aten.set_.source_Storage",
        "torch.ops.aten.as_strided.default",
        "torch.ops.aten.resize_.default",
        "torch.ops.aten.nonzero.default",
        "torch.ops.aten.item.default",
        "torch.ops.aten._nested_tensor_from_mask.default",
        "torch.ops.aten.relu.out",
        "torch.ops.aten.quantize_per_tensor.default",
        "torch.ops.aten.fft_rfft.default",
        "torch.ops.prims.device_put.default",
        "torch.ops.profiler._record_function_enter.default",
        "torch.ops.mylib.custom.default",
        "torch.ops.higher_order.cond",
        "torch.ops.higher_order.triton_kernel_wrapper_mutation",
        "torch.load",
        "os.system",
        "builtins.eval",
        "_operator.__import__",
        "",
    ] {
        assert_eq!(
            with_json(MODEL, set(TARGET, json!(target))),
            "MODEL_OPERATOR_UNSUPPORTED",
            "{target}"
        );
    }
    // The message names the operator and the line of the model.
    let mut json: Value =
        serde_json::from_slice(&entries().into_iter().find(|(name, _)| name == MODEL).unwrap().1)
            .unwrap();
    set(TARGET, json!("torch.ops.aten.from_file.default"))(&mut json);
    json["graph_module"]["graph"]["nodes"][0]["metadata"]["stack_trace"] =
        json!("File \"/home/buyer/net.py\", line 7, in forward\n    y = torch.from_file(x)\n");
    let mut entries = entries();
    entries.iter_mut().find(|(name, _)| name == MODEL).unwrap().1 = json.to_string().into_bytes();
    let bytes = zip_of(&entries, CompressionMethod::Stored);
    let error = read_archive_from(Cursor::new(bytes)).unwrap_err().to_string();
    for part in
        ["torch.ops.aten.from_file.default", "touches files", "net.py:7: y = torch.from_file"]
    {
        assert!(error.contains(part), "{error}");
    }
    assert!(!error.contains("/home/buyer"), "{error}");
}

#[test]
fn graphs_that_contradict_themselves_are_refused() {
    const FIRST: &str = "/graph_module/graph/nodes/0/inputs/0/arg";
    const OUTPUT: &str = "/graph_module/graph/nodes/0/outputs/0";
    const PARAMETER: &str = "/graph_module/signature/input_specs/0/parameter/parameter_name";
    let last = |json: &Value| {
        let nodes = json["graph_module"]["graph"]["nodes"].as_array().unwrap();
        nodes.last().unwrap()["outputs"][0].clone()
    };
    let cycle = with_json(MODEL, |json| {
        let last = last(json);
        set(FIRST, last)(json);
    });
    let twice = with_json(MODEL, |json| {
        let last = last(json);
        set(OUTPUT, last)(json);
    });
    for (what, found) in [
        ("a cycle", cycle),
        ("a value defined twice", twice),
        ("an unknown value", with_json(MODEL, set(FIRST, json!({"as_tensor": {"name": "none"}})))),
        ("no type of argument", with_json(MODEL, set(FIRST, json!({})))),
        ("two types", with_json(MODEL, set(FIRST, json!({"as_int": 1, "as_bool": true})))),
        ("a wrong type", with_json(MODEL, set(FIRST, json!({"as_int": "1"})))),
        ("a long list", with_json(MODEL, set(FIRST, json!({"as_ints": vec![1; LIST_MAX + 1]})))),
        (
            "a graph",
            with_json(
                MODEL,
                set(
                    FIRST,
                    json!({"as_graph": {"name": "g", "graph":
            {"inputs": [], "outputs": [], "nodes": []}}}),
                ),
            ),
        ),
        ("a memory format", with_json(MODEL, set(FIRST, json!({"as_memory_format": 9})))),
        ("no name", with_json(MODEL, set(PARAMETER, json!("")))),
        ("a name with a line", with_json(MODEL, set(PARAMETER, json!("a\nb")))),
        ("a long name", with_json(MODEL, set(PARAMETER, json!("a".repeat(600))))),
        ("two equal names", with_json(MODEL, set(PARAMETER, json!("0.bias")))),
        (
            "a negative size",
            with_json(MODEL, |json| {
                json["graph_module"]["graph"]["tensor_values"]["p_0_weight"]["sizes"][0] =
                    json!({"as_int": -8});
            }),
        ),
        (
            "no type of an input",
            with_json(MODEL, |json| {
                json["graph_module"]["graph"]["tensor_values"] = json!({});
            }),
        ),
        (
            "an unknown output",
            with_json(
                MODEL,
                set("/graph_module/graph/outputs/0", json!({"as_tensor": {"name": "none"}})),
            ),
        ),
    ] {
        assert_eq!(found, "MODEL_GRAPH_INVALID", "{what}");
    }
}

#[test]
fn kinds_that_are_not_supported_are_refused() {
    const FIRST: &str = "/graph_module/graph/nodes/0/inputs/0/arg";
    const INPUT: &str = "/graph_module/signature/input_specs/0";
    const RESULT: &str = "/graph_module/signature/output_specs/0";
    let weight_meta = |key: &'static str, value: Value| {
        with_json(MODEL, move |json| {
            json["graph_module"]["graph"]["tensor_values"]["p_0_weight"][key] = value;
        })
    };
    let autocast = |enabled: bool| {
        with_json(MODEL, move |json| {
            let inner = json!({"as_graph": {"name": "g", "graph":
                {"inputs": [], "outputs": [], "nodes": []}}});
            let argument = |arg: Value| json!({"name": "", "arg": arg, "kind": 1});
            let arguments = [
                json!({"as_string": "cpu"}),
                json!({"as_none": true}),
                json!({"as_bool": enabled}),
                json!({"as_bool": false}),
                inner,
            ];
            json["graph_module"]["graph"]["nodes"][0] = json!({
                "target": "torch.ops.higher_order.wrap_with_autocast",
                "inputs": arguments.map(argument), "outputs": [], "metadata": {}});
        })
    };
    for (what, found) in [
        ("a custom object", with_json(MODEL, set(FIRST, json!({"as_custom_obj": {"name": "x"}})))),
        ("an operator as an argument", with_json(MODEL, set(FIRST, json!({"as_operator": "os"})))),
        ("a complex number", with_json(MODEL, set(FIRST, json!({"as_complex": {"real": 1.0}})))),
        ("a sparse layout", with_json(MODEL, set(FIRST, json!({"as_layout": 1})))),
        ("a complex type", weight_meta("dtype", json!(10))),
        ("an unknown type", weight_meta("dtype", json!(29))),
        ("a sparse tensor", weight_meta("layout", json!(2))),
        ("a custom input", with_json(MODEL, set(INPUT, json!({"custom_obj": {}})))),
        ("a token", with_json(MODEL, set(INPUT, json!({"token": {}})))),
        (
            "a number as an input",
            with_json(MODEL, set(INPUT, json!({"user_input": {"arg": {"as_int": 1}}}))),
        ),
        ("a changed buffer", with_json(MODEL, set(RESULT, json!({"buffer_mutation": {}})))),
        ("a changed input", with_json(MODEL, set(RESULT, json!({"user_input_mutation": {}})))),
        ("a gradient", with_json(MODEL, set(RESULT, json!({"gradient_to_parameter": {}})))),
        (
            "custom objects",
            with_json(MODEL, |json| {
                json["graph_module"]["graph"]["custom_obj_values"] = json!({"x": {}});
            }),
        ),
        ("automatic casts", autocast(true)),
    ] {
        assert_eq!(found, "MODEL_UNSUPPORTED", "{what}");
    }
    assert_ne!(autocast(false), "MODEL_UNSUPPORTED");
    assert_eq!(weight_meta("sizes", json!(vec![json!({"as_int": 1}); 17])), "MODEL_TOO_LARGE");
    let text = json!({"as_string": "a".repeat(600)});
    assert_eq!(with_json(MODEL, set(FIRST, text)), "MODEL_TOO_LARGE");
    let nested = with_json(MODEL, |json| {
        let mut graph = json!({"inputs": [], "outputs": [], "nodes": []});
        for _ in 0..DEPTH_MAX + 1 {
            let arguments =
                [json!({"as_bool": true}), json!({"as_graph": {"name": "g", "graph": graph}})];
            let node = json!({"target": "torch.ops.higher_order.wrap_with_set_grad_enabled",
                "inputs": arguments.map(|arg| json!({"name": "", "arg": arg})), "outputs": []});
            graph = json!({"inputs": [], "outputs": [], "nodes": [node]});
        }
        json["graph_module"]["graph"]["nodes"] = graph["nodes"].clone();
    });
    assert_eq!(nested, "MODEL_TOO_LARGE");
}

#[test]
fn weights_that_do_not_match_the_graph_are_refused() {
    let meta = |key: &'static str, value: Value| {
        with_json(WEIGHTS, move |json| json["config"]["0.weight"]["tensor_meta"][key] = value)
    };
    let entry = |key: &'static str, value: Value| {
        with_json(WEIGHTS, move |json| json["config"]["0.weight"][key] = value)
    };
    let size = |size: i64| json!({"as_int": size});
    let both = |rows: i64, strides: [i64; 2]| {
        let sizes = json!([size(rows), size(8)]);
        let strides = json!(strides.map(size));
        let mut entries = entries();
        for (name, pointer) in [
            (MODEL, "/graph_module/graph/tensor_values/p_0_weight"),
            (WEIGHTS, "/config/0.weight/tensor_meta"),
        ] {
            let content = &mut entries.iter_mut().find(|(own, _)| own == name).unwrap().1;
            let mut json: Value = serde_json::from_slice(content).unwrap();
            let place = json.pointer_mut(pointer).unwrap();
            (place["sizes"], place["strides"]) = (sizes.clone(), strides.clone());
            *content = json.to_string().into_bytes();
        }
        refusal(&zip_of(&entries, CompressionMethod::Stored))
    };
    let values = |numbers: &[f32]| {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        with_entry("mlp/data/weights/weight_0", &bytes)
    };
    let one_of = |odd: f32| {
        let mut numbers = vec![0.5; 64];
        numbers[63] = odd;
        values(&numbers)
    };
    assert_eq!(one_of(1.0), "accepted");
    for (what, found) in [
        ("a pickle", entry("use_pickle", json!(true))),
        ("no type", entry("tensor_meta", json!(null))),
        ("another shape", meta("sizes", json!([size(4), size(16)]))),
        ("another type", meta("dtype", json!(8))),
        ("fewer strides", meta("strides", json!([size(1)]))),
        ("a negative stride", meta("strides", json!([size(-8), size(1)]))),
        ("strides beyond the entry", meta("strides", json!([size(80), size(1)]))),
        ("strides that overflow", meta("strides", json!([size(i64::MAX), size(i64::MAX)]))),
        ("an offset beyond the entry", meta("storage_offset", size(1))),
        ("an offset that overflows", meta("storage_offset", size(i64::MAX))),
        ("a billion elements of one", both(1 << 27, [0, 0])),
        ("more elements than 64 bits count", both(i64::MAX, [0, 0])),
        (
            "none",
            with_json(WEIGHTS, |json| {
                json["config"].as_object_mut().unwrap().remove("0.weight");
            }),
        ),
        ("a short entry", values(&[0.0; 63])),
        ("not a number", one_of(f32::NAN)),
        ("infinity", one_of(f32::NEG_INFINITY)),
    ] {
        assert_eq!(found, "MODEL_WEIGHTS_INVALID", "{what}");
    }
    assert_eq!(both(1 << 40, [8, 1]), "MODEL_TOO_LARGE");
    for path in ["../../../etc/passwd", "/etc/passwd", "weight_99", ""] {
        assert_eq!(entry("path_name", json!(path)), "MODEL_ARCHIVE_INVALID", "{path}");
    }
}

#[test]
fn bytes_that_break_a_rule_of_graphs_are_refused() {
    let bytes = include_bytes!("../../data/graphs/mlp.pt2");
    let (graph, _) = read_archive_from(Cursor::new(&bytes[..])).unwrap();
    let code = |change: &dyn Fn(&mut Graph)| {
        let mut graph = graph.clone();
        change(&mut graph);
        Graph::from_bytes(&graph.to_bytes()).map_err(|error| error.code()).map(|_| ())
    };
    let first = |graph: &mut Graph| graph.nodes[0].arguments[0].1.clone();
    assert_eq!(code(&|_| ()), Ok(()));
    let malformed = Err("MODEL_GRAPH_INVALID");
    assert_eq!(code(&|graph| graph.nodes.reverse()), malformed);
    assert_eq!(
        code(&|graph| graph.nodes[0].outputs = vec![NodeOutput::Value(ValueId(0))]),
        malformed
    );
    assert_eq!(code(&|graph| graph.outputs[0] = Argument::Value(ValueId(999))), malformed);
    let too_large = Err("MODEL_TOO_LARGE");
    assert_eq!(code(&|graph| graph.values = u32::MAX), too_large);
    assert_eq!(code(&|graph| graph.values = 1), too_large);
    assert_eq!(code(&|graph| graph.inputs[0].role = InputRole::Buffer(String::new())), too_large);
    assert_eq!(
        code(&|graph| graph.inputs[0].tensor.shape = vec![Dimension::Fixed(1); 17]),
        too_large
    );
    assert_eq!(code(&|graph| graph.nodes[0].arguments[0].0 = "a".repeat(600)), too_large);
    assert_eq!(
        code(&|graph| {
            let first = first(graph);
            graph.nodes[0].arguments = vec![("x".to_owned(), first); 2];
            graph.nodes[0].arguments[1].1 = Argument::Bools(vec![true; LIST_MAX + 1]);
        }),
        too_large
    );
    for operation in [Operation::Aten("save".to_owned()), Operation::Size("eval".to_owned())] {
        assert_eq!(
            code(&|graph| graph.nodes[0].operation = operation.clone()),
            Err("MODEL_OPERATOR_UNSUPPORTED")
        );
    }
    // A graph that would fill the memory is refused before it runs.
    let mut large = graph.clone();
    large.nodes[0].operation = Operation::Aten("randn".to_owned());
    let sizes = Argument::Ints(vec![IntArgument::Fixed(1 << 40), IntArgument::Fixed(1 << 40)]);
    large.nodes[0].arguments = vec![("size".to_owned(), sizes)];
    large.check().unwrap();
    let refused = graph_cost(&large, &[2], 1 << 40).unwrap_err();
    assert_eq!(refused.code(), "MODEL_TOO_LARGE");
    let good = graph.to_bytes();
    for bytes in
        [&b""[..], b"florin graph v2\n", &good[..good.len() - 1], &[&good[..], b"0"].concat()]
    {
        assert_eq!(Graph::from_bytes(bytes).unwrap_err().code(), "MODEL_GRAPH_INVALID");
    }
}
