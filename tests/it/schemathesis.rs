//! Schemathesis, a fuzzing client that reads only `/openapi.json`, tries every route of a market
//! that has run.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use florin_protocol::{RoundNumber, TaskId};
use serde_json::{Value, json};

use crate::support::{On, TestMarket, TestPlan};

/// Seed of all requests.
const SEED: &str = "20260101";
/// Test cases per phase and operation.
const EXAMPLES_MAX: &str = "12";
/// Time limit in seconds.
const TIME_MAX: &str = "60";
/// The checks of each response. Our own rules may reject a request that the schema allows (a wrong
/// signature, an unknown digest); that is no failure.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
     response_headers_conformance,response_schema_conformance,negative_data_rejection,\
     unsupported_method,allow_header_conformance";

/// Existing ids of this market, so that not every request is answered with 404.
fn examples(market: &TestMarket, task: TaskId) -> BTreeMap<&'static str, Value> {
    let report = market.report(task, 1);
    BTreeMap::from([
        ("id", json!(task.to_string())),
        ("round", json!(RoundNumber::FIRST)),
        ("address", json!(market.account("ann").to_string())),
        ("digest", json!(report.model.to_string())),
        ("after", json!(0)),
        ("wait_ms", json!(1)),
        ("run", json!(1)),
        ("role", json!("participant")),
        ("upload-offset", json!("0")),
        ("upload-token", json!("5a".repeat(32))),
        ("state-account", json!(market.account("ann").to_string())),
        ("state-signature", json!("5a".repeat(65))),
        ("state-salt", json!("5a".repeat(32))),
        ("reader-account", json!(market.account("ann").to_string())),
        ("reader-expires", json!("1")),
        ("reader-signature", json!("5a".repeat(65))),
        ("from", json!(1)),
        ("links-signature", json!("5a".repeat(65))),
    ])
}

/// The OpenAPI document of the coordinator, with an example for each parameter.
fn document(market: &TestMarket, task: TaskId) -> Value {
    let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().into();
    let mut answer = agent.get(format!("{}/openapi.json", market.url)).call().unwrap();
    let text = answer.body_mut().read_to_string().unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    let things = examples(market, task);
    let paths = document["paths"].as_object_mut().unwrap();
    let operations = paths.values_mut().flat_map(|path| path.as_object_mut().unwrap().values_mut());
    for parameter in operations.flat_map(|op| op["parameters"].as_array_mut().unwrap()) {
        let name = parameter["name"].as_str().unwrap().to_owned();
        parameter["example"] = things[name.as_str()].clone();
    }
    document
}

#[test]
fn a_fuzzing_client_finds_no_fault_and_no_undocumented_response() {
    let market = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    let task = market.run();
    let file = market.folder().join("openapi.json");
    std::fs::write(&file, document(&market, task).to_string()).unwrap();
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/http");
    assert!(tools.is_dir(), "{} is missing: run `cargo xtask setup`", tools.display());
    let mut client = Command::new("python3");
    client.env("PYTHONPATH", &tools).env("NO_PROXY", "*").current_dir(market.folder());
    client.args(["-m", "schemathesis.cli", "run"]).arg(&file).args(["--url", &market.url]);
    client.args(["--checks", CHECKS, "--seed", SEED, "--max-examples", EXAMPLES_MAX]);
    client.args(["--phases", "examples,coverage,fuzzing", "--max-time", TIME_MAX]);
    // Longer than the longest long poll.
    client.args(["--request-timeout", "45"]);
    client.args(["--workers", "1", "--continue-on-failure", "--no-color", "--warnings", "off"]);
    let output = client.output().expect("python3 starts");
    let text = String::from_utf8_lossy(&output.stdout);
    // Failures of schemathesis itself are ignored (CPython 3.11 sometimes miscounts its recursion
    // depth).
    let ours = text.contains("= FAILURES =") || text.contains("Network Error");
    let its_own = text.contains("AST constructor recursion depth mismatch");
    let fine = output.status.success() || (its_own && !ours);
    assert!(fine, "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    // Schemathesis has really sent requests.
    let cases = text.lines().find(|line| line.contains("generated"));
    eprintln!("schemathesis, seed {SEED}: {}", cases.unwrap_or("?").trim());
    // And the market is unchanged.
    assert_eq!(market.report(task, 1).scope.task, task);
    let log = market.coordinator.log();
    assert!(!log.contains("panicked"), "{log}");
}
