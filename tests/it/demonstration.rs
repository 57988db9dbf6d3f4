//! The demonstration: its amounts add up, dishonest participants earn nothing, its report is
//! self-contained, and no process survives it.

#[cfg(target_os = "linux")]
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use crate::support::chain::anvil;
use crate::support::process::{command, until};
use crate::support::{On, florin, on_both};

fn amount(value: &serde_json::Value) -> u128 {
    value.as_str().expect("amounts are strings").parse().expect("amounts are integers")
}

on_both!(the_demonstration_holds_what_it_promises);

fn the_demonstration_holds_what_it_promises(on: On) {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (json, page) = (file("result.json"), file("report.html"));
    let program = anvil().display().to_string();
    let ledger = match on {
        On::Embedded => vec!["--ledger", "embedded"],
        On::Ethereum => vec!["--ledger", "ethereum", "--anvil", &program],
    };
    // With some seeds, chance lifts the noise above its threshold in so few rounds.
    let call = ["demo", "--rounds", "4", "--seed", "2", "--json", &json, "--out", &page];
    let output = florin(&[&call[..], &ledger].concat()).expect(0);
    assert!(output.out.contains("4 of 4 rounds recomputed, 0 mismatches"), "{}", output.out);
    assert!(!output.out.contains('\u{1b}'), "a pipe gets no colours");
    let result: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let money = &result["money"];
    let parts =
        ["data_paid", "infrastructure_paid", "refunded", "locked"].map(|k| amount(&money[k]));
    assert_eq!(parts.iter().sum::<u128>(), amount(&money["deposited"]));
    assert_eq!(result["audit"], serde_json::json!({ "rounds": 4, "differences": 0 }));
    let (before, after) = (&result["accuracy"]["before"], &result["accuracy"]["after"]);
    assert!(after.as_f64() > before.as_f64());
    let participants = result["participants"].as_array().unwrap();
    let mut earned = 0;
    for participant in participants {
        let honest = participant["behaviour"] == "honest";
        earned += amount(&participant["earned"]);
        assert!(honest || amount(&participant["earned"]) == 0, "{participant}");
    }
    assert_eq!((participants.len(), earned), (8, amount(&money["data_paid"])));
    assert_eq!(amount(&result["provider"]["earned"]), amount(&money["infrastructure_paid"]));
    if on == On::Ethereum {
        let chain = &result["ethereum"];
        // The embedded ledger gives the same payments, exactly.
        assert_eq!(chain["twin"]["differences"], serde_json::json!([]), "{chain:#}");
        assert!(chain["twin"]["compared"].as_u64() > Some(40), "{chain:#}");
        assert_eq!(chain["verified"]["differing"], 0, "{chain:#}");
        let settlements = chain["settlements"].as_array().unwrap();
        assert!(settlements.len() == 4 && !settlements.iter().any(|s| s["final"].is_null()));
        let gas = chain["gas"].as_object().unwrap();
        assert!(gas.values().all(|role| role["gas"].as_u64() > Some(100_000)), "{gas:#?}");
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains("</html>") && !page.contains("http"),
        "the report must be self-contained"
    );
    let contract = result["ethereum"]["deployment"]["market"].as_str();
    assert_eq!(contract.is_some(), on == On::Ethereum);
    assert!(page.contains(contract.unwrap_or_default()), "the report names the contract");
}

/// Processes of this demonstration, identified by its folder in their arguments.
#[cfg(target_os = "linux")]
fn processes_in(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(folder) && !line.contains(" demo ") {
            found.push(line);
        }
    }
    found
}

#[cfg(target_os = "linux")]
#[test]
fn no_process_survives_an_interrupted_or_killed_demonstration() {
    let program = anvil().display().to_string();
    let ethereum = ["--ledger", "ethereum", "--anvil", &program];
    // A terminal sends Ctrl-C to the children too: the whole process group, a negative id.
    let kinds: [(&str, &str, &[&str]); 5] = [
        ("-INT", "", &[]),
        ("-INT", "-", &[]),
        ("-TERM", "", &[]),
        ("-KILL", "", &[]),
        ("-KILL", "", &ethereum),
    ];
    for (signal, group, more) in kinds {
        let folder = tempfile::tempdir().unwrap();
        let keep = folder.path().join("market").display().to_string();
        let out = folder.path().join("r.html").display().to_string();
        let call = ["demo", "--rounds", "200", "--keep", &keep, "--out", &out];
        let mut demo = command(&[&call[..], more].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        until("all processes run", || (processes_in(&keep).len() >= 10).then_some(()));
        let id = format!("{group}{}", demo.id());
        let sent = std::process::Command::new("kill").args([signal, "--", &id]).status().unwrap();
        assert!(sent.success());
        let status = demo.wait().unwrap();
        assert!(!std::path::Path::new(&out).exists(), "{signal}: an empty report is left");
        let expected = if signal == "-KILL" { None } else { Some(130) };
        assert_eq!(status.code(), expected, "{signal} {id}");
        until(&format!("no process runs after {signal}"), || {
            processes_in(&keep).is_empty().then_some(())
        });
    }
}
