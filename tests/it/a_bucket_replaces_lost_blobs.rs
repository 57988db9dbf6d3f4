//! A coordinator whose disk lost its blobs, or everything but a backup, continues with the blobs in
//! its bucket.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::process::command;
use crate::support::{On, TestMarket, TestPlan};

/// An S3 service. It exits when its standard input closes, at the latest together with this
/// process.
struct Service(Child, Vec<(String, String)>);

impl Service {
    fn start() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let packages = root.join(".tools/s3");
        assert!(packages.is_dir(), "{} is missing: run `cargo xtask setup`", packages.display());
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", &packages).arg(root.join("tests/s3/server.py"));
        let started = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.expect("python3 starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let settings: Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let text = |name: &str| settings[name].as_str().unwrap().to_owned();
        let variables = [
            ("FLORIN_COORDINATOR_BLOBS_URL", format!("s3://{}/market", text("bucket"))),
            ("FLORIN_COORDINATOR_BLOBS_ENDPOINT", text("endpoint")),
            ("AWS_ACCESS_KEY_ID", text("key")),
            ("AWS_SECRET_ACCESS_KEY", text("secret")),
        ];
        Self(child, variables.map(|(name, value)| (name.to_owned(), value)).to_vec())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // The service may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command; returns its exit code and its output.
fn run(arguments: &[&str], variables: &[(String, String)]) -> (Option<i32>, String) {
    let variables = variables.iter().map(|(name, value)| (name, value));
    let output = command(arguments).env("NO_COLOR", "1").envs(variables).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn a_lost_folder_is_checked_restored_and_audited_with_the_blobs_of_its_bucket() {
    let service = Service::start();
    let mut market = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    let task = market.run();
    // The market ran without a bucket. Now the coordinator gets one, and first uploads all blobs.
    market.coordinator.ask_to_stop();
    market.coordinator.finish();
    market.environment.clone_from(&service.1);
    market.start_coordinator_again();
    market.coordinator.ask_to_stop();
    market.coordinator.finish();

    let (data, backup) = (market.file("coordinator"), market.file("backup"));
    std::fs::remove_dir_all(Path::new(&data).join("blobs")).unwrap();
    let wallet = market.file("coordinator.json");
    let check = ["coordinate", "--check", "--data", &data, "--wallet", &wallet];
    let (exit, text) = run(&check, &[]);
    assert!(exit == Some(1) && text.contains("BLOB_MISSING"), "{exit:?} {text}");
    let (exit, text) = run(&check, &service.1);
    assert!(exit == Some(0) && text.contains("only in the bucket"), "{exit:?} {text}");
    let (exit, text) = run(&["backup", &backup, "--data", &data], &[]);
    assert_eq!(exit, Some(0), "{text}");
    std::fs::rename(&data, market.file("lost")).unwrap();
    let restore = ["restore", &backup, "--data", &data];
    let (exit, text) = run(&restore, &[]);
    assert!(exit == Some(1) && text.contains("BACKUP_DAMAGED"), "{exit:?} {text}");
    let (exit, text) = run(&restore, &service.1);
    assert_eq!(exit, Some(0), "{text}");

    // A missing bucket is reported, and the coordinator does not start.
    let mut elsewhere = service.1.clone();
    elsewhere[0].1 = "s3://missing-bucket".to_owned();
    let passphrase = market.file("passphrase");
    let start = ["coordinate", "--listen", "127.0.0.1:0", "--data", &data, "--wallet", &wallet];
    let start = [start.as_slice(), &["--engine", "reference", "--passphrase-file", &passphrase]];
    let (exit, text) = run(&start.concat(), &elsewhere);
    assert!(exit == Some(2) && text.contains("error[BUCKET_MISSING]"), "{exit:?} {text}");
    assert!(!text.contains(&service.1[3].1), "a key is printed: {text}");

    market.start_coordinator_again();
    market.run_command(&["audit", &task.to_string(), "--engine", "reference"]).expect(0);
}
