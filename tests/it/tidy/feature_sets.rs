//! Cargo compiles no dependency twice for the demonstration, the fuzzer and the tests: each dependency
//! of the smallest builds has the same features in the build of the tests.

use std::collections::BTreeSet;
use std::process::Command;

use super::refuse;

/// The dependencies of a build, each with its features, from `cargo tree`.
fn feature_sets(selection: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--prefix", "none", "--format", "{p}|{f}"])
        .args(selection)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| line.replace(" (*)", "").replace(" (proc-macro)", ""));
    // Packages of the workspace show their folder in brackets.
    lines.filter(|line| line.contains('|') && !line.contains('(')).collect()
}

#[test]
fn the_demonstration_the_fuzzer_and_the_tests_share_every_dependency() {
    let all = ["--workspace", "--edges", "normal,build,dev"];
    let tests = feature_sets(&all);
    for package in ["florin", "florin-fuzz"] {
        refuse("dependencies that the tests compile again", &differences(package, &tests));
    }
}

/// The dependencies of a package's smallest build that have other features in the tests.
fn differences(package: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let smallest = [
        "--package",
        package,
        "--no-default-features",
        "--features",
        "torch",
        "--edges",
        "normal,build",
    ];
    let small = feature_sets(&smallest);
    assert!(small.len() > 200, "{}", small.len());
    let other = small.difference(tests).map(|found| {
        let (package, _) = found.split_once('|').unwrap_or((found, ""));
        let wanted: Vec<&String> =
            tests.iter().filter(|line| line.starts_with(&format!("{package}|"))).collect();
        format!("{found}: add the features of {wanted:?} to xtask/workspace-hack/Cargo.toml")
    });
    other.collect()
}
