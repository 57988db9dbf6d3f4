//! Cargo compiles no dependency twice for the demonstration and for the tests: each dependency of the
//! program's smallest build has the same features in the build of the tests.

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
fn the_demonstration_and_the_tests_share_every_dependency() {
    let all = ["--workspace", "--edges", "normal,build,dev", "--no-dedupe"];
    let smallest = [
        "--package",
        "florin",
        "--no-default-features",
        "--features",
        "torch",
        "--edges",
        "normal,build",
        "--no-dedupe",
    ];
    let tests = feature_sets(&all);
    let demonstration = feature_sets(&smallest);
    assert!(demonstration.len() > 200, "{}", demonstration.len());
    let other: Vec<String> = demonstration
        .difference(&tests)
        .map(|found| {
            let (package, _) = found.split_once('|').unwrap_or((found, ""));
            let wanted: Vec<&String> =
                tests.iter().filter(|line| line.starts_with(&format!("{package}|"))).collect();
            format!("{found}: add the features of {wanted:?} to xtask/workspace-hack/Cargo.toml")
        })
        .collect();
    refuse("dependencies that the tests compile again", &other);
}
