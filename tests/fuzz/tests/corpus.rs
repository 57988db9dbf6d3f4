//! The fuzz corpus, and one second of random variants of it. `cargo xtask fuzz` runs longer.

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// A copy of the corpus, because the fuzzer adds failing inputs to it.
fn corpus() -> TempDir {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let copy = tempfile::tempdir().unwrap();
    for target in std::fs::read_dir(&committed).unwrap().map(Result::unwrap) {
        let folder = copy.path().join(target.file_name());
        std::fs::create_dir(&folder).unwrap();
        for file in std::fs::read_dir(target.path()).unwrap().map(Result::unwrap) {
            std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
    }
    copy
}

/// Runs the fuzzer until it exits; its exit code and standard output.
fn florin_fuzz(arguments: &[&str]) -> (Option<i32>, String) {
    let mut fuzzer = Command::new(env!("CARGO_BIN_EXE_florin-fuzz"));
    let Output { status, stdout, .. } = fuzzer.args(arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap())
}

#[test]
fn the_fuzzer_finds_no_failure_in_the_corpus_and_its_variants() {
    let copy = corpus();
    let at = copy.path().display().to_string();
    let (code, out) = florin_fuzz(&["--seconds", "1", "--seed", "7", "--corpus", &at]);
    assert!(code == Some(0) && out.contains("fuzz: 16 targets, 0 failed"), "{code:?}: {out}");
}

/// No committed seed has these behaviours: the fuzzer must find a variant that has.
#[test]
fn an_injected_panic_is_found_in_every_target_and_its_input_is_added_to_the_corpus() {
    let copy = corpus();
    let at = copy.path().display().to_string();
    for (target, outcome) in [
        ("safetensors", "the model has no such tensor"),
        ("messages", "Unexpected length of input"),
        ("bodies", "missing field"),
        ("settings", ": use 100 to"),
        ("task_file", "unknown field"),
        ("csv", "must name the columns"),
        ("idx", "its header declares"),
        ("npy", "its header is cut off"),
        ("keystore", "must be a power of two"),
        ("invitation", "the invitation is damaged"),
    ] {
        let call = ["--seconds", "60", "--corpus", &at, "--target", target];
        let (code, out) = florin_fuzz(&[&call[..], &["--inject", outcome]].concat());
        assert!(code == Some(1) && out.contains("panic on"), "{target}: {code:?}: {out}");
        let files = std::fs::read_dir(copy.path().join(target)).unwrap();
        let saved = files.filter(|file| {
            file.as_ref().unwrap().file_name().to_string_lossy().starts_with("crash-")
        });
        assert_eq!(saved.count(), 1, "{target}");
    }
}
