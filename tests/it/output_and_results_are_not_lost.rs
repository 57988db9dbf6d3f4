//! Output errors are reported, a closed pipe is not an error, and results of another experiment are
//! never overwritten.

use std::fs::{self, File};
use std::process::Stdio;

use crate::support::florin;
use crate::support::process::command;

const SCENARIO: &str = "name = 'tiny'\nquestion = 'Is it stored?'\nrounds = 2\n[seeds]\ncount = 1\n\
    [learning]\nhidden = []\nholdout_rows = 60\nholdout_rows_per_round = \
    20\n[population.honest]\ncount = 3\nrows = [20, 30]\n";

#[test]
fn results_are_overwritten_only_by_the_same_experiment() {
    let folder = tempfile::tempdir().unwrap();
    let (scenario, out) = (folder.path().join("tiny.toml"), folder.path().join("out"));
    fs::write(&scenario, SCENARIO).unwrap();
    let run = |change: &str, out: &std::path::Path| {
        let (scenario, out) = (scenario.display().to_string(), out.display().to_string());
        florin(&["sim", "run", &scenario, "--set", change, "--out", &out])
    };
    run("rounds=2", &out).expect(0);
    let results = fs::read(out.join("results.json")).unwrap();
    run("rounds=2", &out).expect(0);
    let output = run("rounds=3", &out).refused(2, "RESULTS_FOLDER_IN_USE");
    assert!(output.err.contains("--out") && output.out.is_empty(), "{output:?}");
    assert_eq!(fs::read(out.join("results.json")).unwrap(), results);
    // A comparison page or a sweep does not overwrite them either.
    let (of, scenario) = (out.display().to_string(), scenario.display().to_string());
    florin(&["sim", "compare", &of, &of, "--out", &of]).refused(2, "RESULTS_FOLDER_IN_USE");
    let sweep = |what: &str, seeds: &str, out: &str| {
        florin(&["sim", "sweep", what, "--seeds", seeds, "--vary", "rounds=2", "--out", out])
    };
    sweep(&scenario, "1", &of).refused(2, "RESULTS_FOLDER_IN_USE");
    let swept = folder.path().join("swept").display().to_string();
    sweep(&scenario, "1", &swept).expect(0);
    sweep(&scenario, "2", &swept).refused(2, "RESULTS_FOLDER_IN_USE");
    sweep("noise", "1", &swept).refused(2, "RESULTS_FOLDER_IN_USE");
    // A folder with other files is refused as well.
    run("rounds=2", folder.path()).refused(2, "RESULTS_FOLDER_IN_USE");
}

#[cfg(target_os = "linux")]
#[test]
fn results_outlive_a_trace_that_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let (scenario, out) = (folder.path().join("tiny.toml"), folder.path().join("out"));
    fs::write(&scenario, SCENARIO).unwrap();
    let (scenario, out) = (scenario.display().to_string(), out.display().to_string());
    let run = ["sim", "run", &scenario, "--out", &out, "--json", "--trace"];
    // The kernel's folder exists, and no file can be created in it.
    let output = florin(&[&run[..], &["/proc"]].concat()).refused(2, "TRACE_NOT_WRITTEN");
    let printed: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    let written = fs::read_to_string(format!("{out}/results.json")).unwrap();
    assert_eq!(printed, serde_json::from_str::<serde_json::Value>(&written).unwrap());
    // A second trace would mix its rounds with those of the first one.
    let traces = folder.path().join("traces");
    let again = ["sim", "run", &scenario, "--trace", traces.to_str().unwrap()];
    florin(&again).expect(0);
    let output = florin(&again).refused(2, "TRACE_FOLDER_IN_USE");
    assert!(output.err.contains("give a new folder with --trace") && output.out.is_empty());
    // A simulation that draws scores is refused before its first seed.
    let drawn = folder.path().join("drawn");
    let call = ["sim", "run", "million", "--trace", "/proc", "--out", drawn.to_str().unwrap()];
    florin(&call).refused(2, "TRACE_UNSUPPORTED");
    assert!(!drawn.exists(), "refused after the check of --out");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_on_standard_output_is_reported() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = command(&["sim", "list"]).stdout(full).output().unwrap();
    let why = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{why}");
    assert!(why.starts_with("error[OUTPUT_FAILED]") && !why.contains("panicked"), "{why}");
}

/// At the limit a write fails, and the process does not end by a signal.
#[cfg(target_os = "linux")]
#[test]
fn a_limit_on_the_file_size_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("task.toml");
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -f 1 && exec \"$0\" task new \"$1\"", env!("CARGO_BIN_EXE_florin")])
        .arg(&file)
        .output()
        .unwrap();
    let why = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{why}");
    assert!(why.contains("error[STORAGE_FULL]"), "{why}");
    assert!(!file.exists(), "a part of a file would be in the way of the next try");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    for more in [None, Some("--json")] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = command(&["sim", "list"]);
        let output = command.args(more).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()), "{more:?}");
    }
}

#[test]
fn the_settings_can_set_the_listen_address_and_the_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (wallet, passphrase, settings) = (file("w.json"), file("p"), file("s.toml"));
    fs::write(&passphrase, "a passphrase").unwrap();
    let new = ["wallet", "new", &wallet, "--light", "--passphrase-file", &passphrase];
    florin(&new).expect(0);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let start = |text: &str| {
        fs::write(&settings, text).unwrap();
        let call = ["coordinate", "--settings", &settings, "--wallet", &wallet];
        florin(&[&call[..], &["--passphrase-file", &passphrase]].concat())
    };
    let output = start(&format!("listen = '{address}'\ndata = '{}'\n", file("data")));
    assert!(output.refused(2, "PORT_IN_USE").err.contains(&address.to_string()));
    start(&format!("listen = '{address}'\n")).refused(2, "DATA_FOLDER_NOT_SET");
    let output = start(&format!("listen = '127.0.0.1:0'\ndata = '{}'\n", file("data")));
    assert!(output.refused(2, "NO_GENESIS").err.contains(&file("data")));
}
