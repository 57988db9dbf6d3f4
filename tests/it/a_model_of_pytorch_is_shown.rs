//! `florin model show` reads what `torch.export.save` wrote, and refuses everything else by a code.

use crate::support::process::florin;

fn model(name: &str) -> String {
    format!("{}/learning/data/graphs/{name}.pt2", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn tensors_operators_and_the_digest_are_shown() {
    let text = florin(&["model", "show", &model("resnet")]).expect(0).out;
    for part in ["stem.weight", "f32[4×1×3×3]", "body.0.norm.running_var", "buffer", "batch_norm"]
    {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let shown = florin(&["model", "show", "--json", &model("resnet")]).expect(0).json();
    assert_eq!(shown["operators"]["conv2d"], 5);
    assert_eq!(shown["inputs"][0]["name"], "stem.weight");
    assert_eq!(shown["inputs"][0]["elements"], 36);
    let flops = |rows: &str| {
        let show = ["model", "show", "--json", "--rows", rows, &model("mlp")];
        florin(&show).expect(0).json()["flops"].as_u64().unwrap()
    };
    assert_eq!(flops("64"), 2 * flops("32"));
    assert!(text.contains("32 rows: "), "{text}");
    let input = shown["inputs"].as_array().unwrap().last().unwrap();
    assert_eq!((&input["role"], &input["shape"][0]), (&"input".into(), &"N".into()));
    assert!(text.contains(shown["digest"].as_str().unwrap()), "{text}");
}

#[test]
fn the_tensors_that_would_travel_are_marked_and_summed() {
    let show = |more: &[&str]| florin(&[&["model", "show", &model("resnet")], more].concat());
    let refused = show(&["--trainable", "stem.*"]).refused(1, "MODEL_UNSUPPORTED");
    assert!(refused.err.contains("freeze"), "{}", refused.err);
    let stem = ["--trainable", "stem.weight", "--buffers", "freeze"];
    let shown = show(&[&stem[..], &["--json"]].concat()).expect(0).json();
    assert_eq!((&shown["update_numbers"], &shown["update_bytes"]), (&36.into(), &144.into()));
    let inputs = shown["inputs"].as_array().unwrap();
    let marked: Vec<_> = inputs.iter().filter(|input| input["travels"] == true).collect();
    assert_eq!(marked.len(), 1);
    assert_eq!(marked[0]["name"], "stem.weight");
    let text = show(&stem).expect(0).out;
    assert!(text.contains("36 numbers in 1 tensor: 144 bytes in f32"), "{text}");
    let averaged = ["--json", "--trainable", "stem.weight", "--buffers", "average"];
    let numbers = show(&averaged).expect(0).json()["update_numbers"].as_u64().unwrap();
    assert!(numbers > 36, "{numbers}");
    show(&["--trainable", "nothing.*"]).refused(1, "MODEL_UNSUPPORTED");
}

#[test]
fn a_file_that_is_no_model_is_refused() {
    florin(&["model", "show", "/no/such/file.pt2"]).refused(2, "FILE_NOT_FOUND");
    let weights = model("resnet").replace(".pt2", ".safetensors");
    let refused = florin(&["model", "show", &weights]).refused(1, "MODEL_ARCHIVE_INVALID");
    assert!(refused.err.contains("torch.export.save"), "{}", refused.err);
}
