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
fn a_file_that_is_no_model_is_refused() {
    florin(&["model", "show", "/no/such/file.pt2"]).refused(2, "FILE_NOT_FOUND");
    let weights = model("resnet").replace(".pt2", ".safetensors");
    let refused = florin(&["model", "show", &weights]).refused(1, "MODEL_ARCHIVE_INVALID");
    assert!(refused.err.contains("torch.export.save"), "{}", refused.err);
}
