//! Jobs of executors: their form, and the answers of the API's documentation.

use serde_json::Value;

use super::*;

fn backend(launcher: Option<&[&str]>) -> KubernetesBackend {
    let plan = KubernetesPlan {
        image: "registry.example/florin:1".to_owned(),
        claim: "state".to_owned(),
        sub_path: Some("provider".to_owned()),
        namespace: Some("compute".to_owned()),
        program: "/usr/bin/florin".to_owned(),
        limits: BTreeMap::from([("nvidia.com/gpu".to_owned(), "1".to_owned())]),
        launcher: launcher.map(|words| words.iter().map(|&word| word.to_owned()).collect()),
    };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    // Nothing listens here.
    let config = Config::new("http://127.0.0.1:1".parse().unwrap());
    let options = vec!["--engine".to_owned(), "torch".to_owned()];
    KubernetesBackend::at(config, runtime, options, plan, Path::new("/state/ann")).unwrap()
}

fn pod(backend: &KubernetesBackend, devices: &[u32]) -> Value {
    let folder = Path::new("/state/ann/leases/executors/florin-1-2");
    let start = ExecutorStart { name: "florin-1-2", folder, devices };
    let job = serde_json::to_value(backend.job(&start).unwrap()).unwrap();
    assert_eq!(job["metadata"]["name"], "florin-1-2");
    assert_eq!(job["spec"]["backoffLimit"], 0, "a lost executor is replaced by the daemon");
    job["spec"]["template"]["spec"].clone()
}

#[test]
fn a_pod_sees_the_state_folder_and_nothing_else() {
    let pod = pod(&backend(None), &[0]);
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["restartPolicy"], "Never");
    let container = &pod["containers"][0];
    let mounts = &container["volumeMounts"];
    assert_eq!(mounts.as_array().unwrap().len(), 1);
    assert_eq!(
        (&mounts[0]["mountPath"], &mounts[0]["subPath"]),
        (&json!("/state/ann"), &json!("provider"))
    );
    assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], "1");
    assert!(container["env"].is_null(), "no variable of the daemon");
    let words: Vec<&str> = container["command"]
        .as_array()
        .unwrap()
        .iter()
        .map(|word| word.as_str().unwrap())
        .collect();
    let folder = "/state/ann/leases/executors/florin-1-2";
    let log = format!("{folder}/log");
    assert_eq!(words[..2], ["/bin/sh", "-c"]);
    let own = ["/usr/bin/florin", "execute-segments", folder, "--engine", "torch"];
    assert_eq!(words[3..], [&["sh", &log][..], &own].concat());
}

#[test]
fn a_launcher_starts_the_ranks_of_a_pod() {
    let backend = backend(Some(&["torchrun", "--nproc-per-node", "{count}", "--no-python"]));
    let words = |devices: &[u32]| pod(&backend, devices)["containers"][0]["command"].to_string();
    assert!(words(&[0, 1]).contains("\"torchrun\",\"--nproc-per-node\",\"2\",\"--no-python\""));
    assert!(!words(&[0]).contains("torchrun"));
}

#[test]
fn the_status_of_a_job_is_its_phase() {
    let of = |status: Value| phase(Some(&serde_json::from_value(status).unwrap()));
    assert_eq!(phase(None), JobPhase::Waiting);
    assert_eq!(of(json!({})), JobPhase::Waiting);
    let pending = json!({ "active": 1, "ready": 0, "startTime": "2026-11-29T08:00:00Z" });
    assert_eq!(of(pending), JobPhase::Waiting);
    let running = json!({ "active": 1, "ready": 1, "startTime": "2026-11-29T08:00:00Z" });
    assert_eq!(of(running), JobPhase::Running);
    let complete = json!({
        "succeeded": 1,
        "completionTime": "2026-11-29T08:01:00Z",
        "conditions": [{ "type": "Complete", "status": "True" }],
    });
    assert_eq!(of(complete), JobPhase::Ended(String::new()));
    let failed = json!({
        "failed": 1,
        "conditions": [{
            "type": "Failed",
            "status": "True",
            "reason": "BackoffLimitExceeded",
            "message": "Job has reached the specified backoff limit",
        }],
    });
    let why = "BackoffLimitExceeded: Job has reached the specified backoff limit";
    assert_eq!(of(failed), JobPhase::Ended(why.to_owned()));
    let suspended = json!({ "conditions": [{ "type": "Suspended", "status": "True" }] });
    assert_eq!(of(suspended), JobPhase::Waiting);
}

#[test]
fn a_cluster_that_does_not_answer_is_an_error_before_a_deposit() {
    let error = backend(None).check().unwrap_err().to_string();
    assert!(error.starts_with("kubernetes: "), "{error}");
}
