//! `florin trace show` on traces that are written by hand: replays that leave too few updates, damaged
//! files, accounts without a place in a round, and narrow terminals.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::process::command;
use crate::support::{CommandOutput, florin};

/// The file of one process, with one event on each line.
struct TraceLines {
    name: String,
    lines: Vec<String>,
}

fn account(number: u32) -> String {
    format!("0x{number:040x}")
}

impl TraceLines {
    fn new(role: &str, number: u32) -> Self {
        let mut file = Self { name: format!("{role}-{number}-7.json"), lines: Vec::new() };
        let fields = json!({ "role": role, "id": account(number) });
        file.push("process_name", "M", 0.0, &fields);
        if role != "coordinator" {
            file.push("member", "i", 0.0, &json!({ "member": account(number) }));
        }
        file
    }

    fn push(&mut self, name: &str, kind: &str, ms: f64, fields: &Value) {
        let micros = 1e15 + ms * 1e3;
        let event = json!({ "name": name, "ph": kind, "pid": 7, "tid": 1, "ts": micros,
            "dur": fields["ms"].as_f64().unwrap_or(0.0) * 1e3, "args": fields });
        self.lines.push(event.to_string());
    }

    fn phase(&mut self, phase: &str, round: u32, ms: f64) {
        let by_ms = if phase == "commit" { 60_000 } else { 90_000 };
        let fields = json!({ "phase": phase, "task": "3fa9", "round": round, "need": 4,
            "by_ms": by_ms, "least": 2 });
        self.push(phase, "B", ms, &fields);
    }

    /// One end of a message: `s` where it leaves, `f` where it arrives.
    fn message(&mut self, kind: &str, end: &str, (round, member): (u32, u32), ms: f64) {
        let fields = json!({ "kind": kind, "task": "3fa9", "round": round,
            "member": account(member) });
        self.push(kind, end, ms, &fields);
    }

    fn write(&self, folder: &Path) {
        fs::write(folder.join(&self.name), format!("[\n{}\n]\n", self.lines.join("\n,"))).unwrap();
    }
}

/// Three rounds of members 1 to 4, of which the last is 5 s late in round 2. Account 5 takes part in
/// no round and waits for rows; account 6 values round 3.
fn write_market(folder: &Path) {
    let mut coordinator = TraceLines::new("coordinator", 0);
    for round in 1..=3_u32 {
        let start = f64::from(round) * 10_000.0;
        let late = if round == 2 { 5_000.0 } else { 0.0 };
        coordinator.phase("commit", round, start);
        let end = start + 900.0 + late;
        for (member, ms) in [(1, 500.0), (2, 600.0), (3, 700.0), (4, 900.0 + late)] {
            coordinator.message("offer", "s", (round, member), start);
            coordinator.message("commit", "f", (round, member), start + ms);
            coordinator.message("update", "f", (round, member), end + 50.0);
        }
        coordinator.phase("reveal", round, end);
        coordinator.phase("value", round, end + 50.0);
        let span = json!({ "task": "3fa9", "round": round, "ms": 100 });
        coordinator.push("value", "X", end + 50.0, &span);
        coordinator.message("record", "f", (round, 6), end + 1_150.0);
        coordinator.phase("settle", round, end + 1_200.0);
        coordinator.phase("enrol", round, end + 1_210.0);
    }
    let mut other = TraceLines::new("participant", 5);
    let mut member = TraceLines::new("participant", 4);
    for file in [&mut other, &mut member] {
        let span = json!({ "task": "3fa9", "round": 2, "ms": 800 });
        file.push("wait for rows", "X", 20_050.0, &span);
    }
    for file in [coordinator, other, member] {
        file.write(folder);
    }
}

fn show(folder: &Path, more: &[&str]) -> CommandOutput {
    let folder = folder.display().to_string();
    florin(&[&["trace", "show", &folder][..], more].concat())
}

#[test]
fn a_round_with_too_few_updates_is_abandoned_and_has_no_percentage() {
    let folder = tempfile::tempdir().unwrap();
    write_market(folder.path());
    let shown = show(folder.path(), &["--deadline", "0.55", "--json"]).expect(0).json();
    let predicted = &shown["rounds"][0]["predicted"];
    let found = (&predicted["updates"], &predicted["updates_needed"], &predicted["abandoned"]);
    assert_eq!(found, (&1.into(), &2.into(), &true.into()), "{predicted}");
    assert_eq!(predicted["members"], json!([account(1)]));
    // The deadline and the settlement, without the 1,150 ms of the valuation.
    assert_eq!(predicted["ns"], 560_000_000, "{predicted}");
    let text = show(folder.path(), &["--deadline", "0.55"]).expect(0).out;
    let row = text.lines().find(|line| line.contains("1 of 4: abandoned, 2 needed")).unwrap();
    assert_eq!(row.matches('%').count(), 1, "only the longest wait has one: {row}");
    assert!(text.contains("predicted: abandoned, member 1 remains"), "{text}");
    let text = show(folder.path(), &["--without", "4"]).expect(0).out;
    assert!(text.contains("predicted: valued, members 1, 2, 3 remain"), "{text}");
    assert!(text.contains("3 of 4") && !text.contains("abandoned"), "{text}");
}

#[test]
fn a_participant_without_a_place_is_no_provider() {
    let folder = tempfile::tempdir().unwrap();
    write_market(folder.path());
    let text = show(folder.path(), &[]).expect(0).out;
    assert_eq!(text.matches("rows of member 4: it waited 800.0 ms").count(), 1, "{text}");
    assert_eq!(text.matches("rows of ").count(), 1, "{text}");
    let provider = format!("provider {}", &account(6)[..10]);
    assert!(text.contains(&provider), "{text}");
    assert_eq!(text.matches("provider").count(), text.matches(&provider).count(), "{text}");
    let shown = show(folder.path(), &["--json"]).expect(0).json();
    let producers = shown["rounds"][1]["producers"].as_array().unwrap();
    let members: Vec<&Value> = producers.iter().map(|waits| &waits["member"]).collect();
    assert_eq!(members, [&json!(account(4))]);
}

#[test]
fn sentences_about_waits_fit_60_columns() {
    let folder = tempfile::tempdir().unwrap();
    write_market(folder.path());
    let mut shown = command(&["trace", "show", folder.path().to_str().unwrap(), "--without", "4"]);
    let output = shown.env("COLUMNS", "60").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("rows of member 4") && text.contains("longer than usual"), "{text}");
    let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 60).collect();
    assert!(long.is_empty(), "{long:?}");
}

#[test]
fn every_damaged_file_is_named_with_the_number_of_its_unreadable_lines() {
    let folder = tempfile::tempdir().unwrap();
    write_market(folder.path());
    let shown = show(folder.path(), &["--json"]).expect(0).json();
    assert_eq!(shown["damaged_files"], json!([]));
    let damage = |name: &str, lines: &[usize]| {
        let path = folder.path().join(name);
        let text = fs::read_to_string(&path).unwrap();
        let all = text.lines().enumerate();
        let all: Vec<&str> =
            all.map(|(at, line)| if lines.contains(&at) { "{damaged" } else { line }).collect();
        fs::write(&path, all.join("\n")).unwrap();
    };
    damage("coordinator-0-7.json", &[1, 30]);
    damage("participant-5-7.json", &[1, 2, 3]);
    let left = fs::read_to_string(folder.path().join("participant-4-7.json")).unwrap();
    let cut = left.trim_end().trim_end_matches(']').trim_end();
    fs::write(folder.path().join("participant-4-7.json"), &cut[..cut.len() - 9]).unwrap();
    let shown = show(folder.path(), &["--json"]).expect(0).json();
    let files: Vec<(&str, u64, bool, bool)> = shown["damaged_files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| {
            let is = |key: &str| file[key].as_bool().unwrap();
            let (name, lines) = (file["file"].as_str().unwrap(), &file["unreadable_lines"]);
            (name, lines.as_u64().unwrap(), is("is_last_line_unreadable"), is("left_out"))
        })
        .collect();
    let expected = [
        ("coordinator-0-7.json", 2, false, false),
        ("participant-4-7.json", 1, true, false),
        ("participant-5-7.json", 3, true, true),
    ];
    assert_eq!(files, expected);
    let text = show(folder.path(), &[]).expect(0).out;
    for line in [
        "coordinator-0-7.json: 2 lines are unreadable, and their events are missing",
        "participant-4-7.json: its last line is cut, and unreadable",
        "participant-5-7.json is left out: 3 lines are unreadable, and no other is an event of a known process",
    ] {
        assert!(text.contains(line), "{text}");
    }
}
