//! The scripts in tests/page, which drive Chromium or the module of the page.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::TestMarket;

pub(crate) fn scripts() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/page")
}

pub(crate) fn node(arguments: &[&str]) -> Command {
    let folder = scripts();
    assert!(folder.join("node_modules").is_dir(), "run `cargo xtask setup` first");
    let mut node = Command::new("node");
    node.current_dir(folder).args(arguments);
    node
}

/// Runs a script to its end; it fails with its output.
pub(crate) fn run(arguments: &[&str]) -> String {
    let output = node(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}\n{errors}");
    println!("{text}");
    text
}

/// A document of the market, as it serves it.
pub(crate) fn document(market: &TestMarket, path: &str) -> String {
    String::from_utf8(market.client().public_document(path).unwrap()).unwrap()
}

/// The answers of the committed module: what a browser runs.
fn answers_of_module(requests: &[String]) -> Vec<Value> {
    let mut script =
        node(&["module.mjs"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let text = serde_json::to_string(requests).unwrap();
    script.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = script.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The answers of the program, which are those of the committed module.
#[track_caller]
pub(crate) fn equal_answers(requests: &[String]) -> Vec<Value> {
    let ours: Vec<Value> =
        requests.iter().map(|request| florin_page::answer(request.as_bytes())).collect();
    for (at, (module, program)) in answers_of_module(requests).iter().zip(&ours).enumerate() {
        assert_eq!(
            module, program,
            "request {at}: coordinator/page/assets/florin.wasm.gz is older than the code: run `cargo xtask page`"
        );
    }
    ours
}
