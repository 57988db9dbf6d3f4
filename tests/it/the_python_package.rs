//! The Python package: its own tests, its types, and its notebook on a finished market.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{On, TestMarket, TestPlan};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Python with the package and its pinned dependencies, in the package's folder.
fn python(arguments: &[&str]) -> Command {
    let packages = root().join(".tools/package");
    assert!(packages.is_dir(), "{} is missing: run `cargo xtask setup`", packages.display());
    let paths = [root().join("python"), packages];
    let mut python = Command::new("python3");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FLORIN_") {
            python.env_remove(name);
        }
    }
    python.args(arguments).current_dir(&paths[0]);
    python.env("PYTHONPATH", std::env::join_paths(&paths).unwrap());
    python.env("PYTHONDONTWRITEBYTECODE", "1").env("OPENBLAS_NUM_THREADS", "1");
    python.env("FLORIN", env!("CARGO_BIN_EXE_florin"));
    python
}

/// Runs it to the end, and returns what it prints.
#[track_caller]
fn printed(mut python: Command) -> String {
    let output = python.output().expect("python3 starts");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{python:?}\n{out}{err}");
    format!("{out}{err}")
}

#[test]
fn its_own_tests_pass() {
    let text = printed(python(&["-m", "unittest", "discover", "--start-directory", "tests"]));
    assert!(text.contains("OK") && !text.contains("skipped"), "{text}");
}

#[test]
fn its_types_are_consistent() {
    let cache = tempfile::tempdir().unwrap();
    let mut mypy = python(&["-m", "mypy", "florin", "--cache-dir"]);
    mypy.arg(cache.path());
    printed(mypy);
}

#[test]
fn its_tables_and_its_notebook_agree_with_a_finished_market() {
    let market = TestMarket::open(TestPlan::honest(On::Embedded, 2));
    let task = market.run();
    let notebook: PathBuf = root().join("python/notebooks/market.ipynb");
    let at_market = |arguments: &[&str]| {
        let mut python = python(arguments);
        python.env("FLORIN_MARKET", &market.url).env("FLORIN_TASK", task.to_string());
        python
    };
    let text = printed(at_market(&["tests/on_a_market.py"]));
    assert!(text.contains("OK") && !text.contains("skipped"), "{text}");
    let text = printed(at_market(&["tests/run_notebook.py", &notebook.display().to_string()]));
    for part in ["2 rounds", "largest difference", "PyTorch"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
}

#[test]
fn it_trusts_a_certificate_that_is_named() {
    let market = TestMarket::open(TestPlan { tls: true, ..TestPlan::honest(On::Embedded, 1) });
    let script = "import florin, sys\nprint(florin.Market(sys.argv[1]).info()['market']['chain'])";
    let ask = || {
        let mut python = python(&["-c", script, &market.url]);
        python.env("NO_PROXY", "*");
        python
    };
    let refused = ask().output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("TLS_NOT_TRUSTED"), "{text}");
    let mut trusting = ask();
    trusting.env("FLORIN_CERTIFICATE", market.file("coordinator/tls/certificate.pem"));
    printed(trusting);
}
