//! All processes of a market write traces, and `florin trace show` names the member for which the
//! rounds wait. The traces of the laboratory have the same form.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::support::market::words;
use crate::support::proxy::Proxy;
use crate::support::slow::with_slow_trainer;
use crate::support::{On, Process, TestMarket, TestPlan, florin};

/// Seconds by which the training of one participant is longer.
pub(crate) const SLEEP: &str = "1.0";
/// The time for which the offer of round 2 does not reach another one.
const HELD: Duration = Duration::from_millis(400);

pub(crate) fn is_there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: {program} is not installed");
    }
    found
}

/// A proxy that holds the offer of round 2 for a moment.
fn late_offer(market: &TestMarket) -> Proxy {
    let is_held = AtomicBool::new(false);
    Proxy::before(&market.url, "/tasks/", move |body| {
        let view: Value = serde_json::from_slice(body).unwrap_or_default();
        let is_offer = view["round"] == 2 && view["phase"] == "committing";
        if is_offer && !is_held.swap(true, Ordering::SeqCst) {
            std::thread::sleep(HELD);
        }
        body.to_vec()
    })
}

/// Runs a market of three rounds in which the member `cy` is slow, and `ben` reads the offer of round
/// 2 late; the folder of its traces.
fn traced_market(market: &mut TestMarket) -> String {
    let traces = market.file("traces");
    market.environment = vec![("FLORIN_TRACE".to_owned(), traces.clone())];
    market.restart_coordinator();
    let task = market.publish();
    let trace = words(&["--trace", &traces]);
    let call = market.participant_call(&market.url, task, "cy");
    let call = with_slow_trainer(call, market.folder(), SLEEP);
    let mut all = vec![
        Process::start(market.folder(), "cy", &[call, trace.clone()].concat()),
        Process::start(
            market.folder(),
            "provider",
            &[market.provider_call(&market.url, task), trace.clone()].concat(),
        ),
    ];
    let late = late_offer(market);
    for (name, url) in [("ann", &market.url), ("ben", &late.url)] {
        let call = market.participant_call(url, task, name);
        all.push(Process::start(market.folder(), name, &[call, trace.clone()].concat()));
    }
    all.iter_mut().for_each(Process::finish);
    traces
}

#[test]
fn every_round_waits_for_the_slow_participant() {
    if !is_there("python3") {
        return;
    }
    let mut market = TestMarket::open(TestPlan::honest(On::Embedded, 3));
    let traces = traced_market(&mut market);
    // The coordinator still runs: its file has no end yet.
    let shown = florin(&words(&["trace", "show", &traces, "--without", "0x", "--json"]));
    shown.refused(2, "UNKNOWN_MEMBER");
    let slow = market.account("cy").to_string();
    let shown = florin(&words(&["trace", "show", &traces, "--json", "--without", &slow]));
    let shown = shown.expect(0).json();
    let rounds = shown["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 3, "{shown}");
    for round in rounds {
        // A disk that stalls for longer than the trainer sleeps is a true cause, of this machine.
        let waits =
            round["waits"].as_array().unwrap().iter().filter(|wait| wait["cause"] != "disk");
        let longest = waits.max_by_key(|wait| wait["ns"].as_i64()).unwrap();
        assert_eq!(
            (&longest["cause"], &longest["member"]),
            (&"late-sender".into(), &slow.as_str().into())
        );
        assert!(longest["ns"].as_i64().unwrap() > 400_000_000, "{round}");
        let predicted = round["predicted"]["ns"].as_i64().unwrap();
        assert!(predicted < round["ns"].as_i64().unwrap() - 400_000_000, "{round}");
        let path = round["critical_path"].as_array().unwrap();
        let trains = |step: &&Value| step["work"] == "train" && step["member"] == slow.as_str();
        assert_eq!(path.iter().filter(trains).count(), 1, "{round}");
    }
    let (late, delays) =
        (market.account("ben").to_string(), rounds[1]["delays"].as_array().unwrap());
    let is_late = |delay: &&Value| {
        (&delay["cause"], &delay["member"]) == (&"late-receiver".into(), &late.as_str().into())
    };
    let held = delays.iter().find(is_late).unwrap_or_else(|| panic!("{delays:?}"));
    assert!(held["excess_ns"].as_i64().unwrap() > 200_000_000, "{held}");
    let text = florin(&words(&["trace", "show", &traces, "--deadline", "0.3"])).expect(0).out;
    assert!(text.contains("critical path: ") && text.contains("late sender: member "), "{text}");
    every_file_is_an_array(Path::new(&traces), &mut market);
    if is_there("otf2-print") {
        an_archive_is_balanced(&traces);
    }
}

fn every_file_is_an_array(traces: &Path, market: &mut TestMarket) {
    market.coordinator.ask_to_stop();
    market.coordinator.finish();
    let files: Vec<_> = std::fs::read_dir(traces).unwrap().map(|it| it.unwrap().path()).collect();
    let files: Vec<_> = files.iter().filter(|path| path.extension().unwrap() == "json").collect();
    assert_eq!(files.len(), 5, "{files:?}");
    let archives = files.iter().map(|file| file.with_extension("otf2").join("traces.otf2"));
    let archives = archives.filter(|archive| archive.exists()).count();
    assert_eq!(archives, if is_there("otf2-print") { 5 } else { 0 });
    for file in files {
        let events: Vec<Value> =
            serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        assert!(events.len() > 10, "{file:?}");
    }
}

/// Converts a folder, and reads the archive by OTF2's own program.
fn an_archive_is_balanced(traces: &str) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("archive").display().to_string();
    florin(&words(&["trace", "export", traces, "--otf2", &out])).expect(0);
    florin(&words(&["trace", "export", traces, "--otf2", &out])).refused(2, "TRACE_NOT_WRITTEN");
    let anchor = format!("{out}/traces.otf2");
    let read = Command::new("otf2-print").arg(&anchor).output().unwrap();
    let text = String::from_utf8_lossy(&read.stdout).into_owned();
    let warnings = String::from_utf8_lossy(&read.stderr);
    assert!(read.status.success(), "{text} {warnings}");
    assert!(!warnings.contains("out of order"), "{warnings}");
    // Per location: enters and leaves are balanced, and the time does not go back.
    let mut locations = std::collections::BTreeMap::<u64, (i64, u64)>::new();
    for line in text.lines() {
        let mut parts = line.split_whitespace();
        let step = match parts.next() {
            Some("ENTER") => 1,
            Some("LEAVE") => -1,
            _ => continue,
        };
        let location = parts.next().unwrap().parse().unwrap();
        let time = parts.next().unwrap().parse().unwrap();
        let (open, last) = locations.entry(location).or_default();
        assert!(time >= *last, "{line}");
        (*open, *last) = (*open + step, time);
        assert!(*open >= 0, "{line}");
    }
    let ends = |kind: &str| text.lines().filter(|line| line.starts_with(kind)).count();
    assert!(ends("MPI_SEND") >= 36, "an offer, a commit, a request and an update in 3 × 3 cases");
    assert_eq!(ends("MPI_SEND"), ends("MPI_RECV"));
    assert!(locations.len() > 8, "{text}");
    assert!(locations.values().all(|(open, _)| *open == 0), "{locations:?}");
}

/// The rounds of the laboratory's devices with this number of slow members.
fn simulated(slow: u32, more: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let traces = folder.path().display().to_string();
    let slow = format!("population.slow.count={slow}");
    let run = ["sim", "run", "devices", "--seeds", "3", "--set", "task.train_s=6000", "--set"];
    let run = florin(&words(&[&run[..], &[&slow, "--trace", &traces]].concat()));
    assert!(run.code < 2, "{run:?}");
    let shown = ["trace", "show", &traces, "--json"];
    let shown = florin(&words(&[&shown[..], more].concat())).expect(0).json();
    shown["rounds"].as_array().unwrap().clone()
}

/// The last slow member is number 11 of 11, without those whose devices hold no step.
#[test]
fn a_replay_without_a_member_predicts_the_laboratory_within_5_percent() {
    let (with, without) = (simulated(2, &["--without", "11"]), simulated(1, &[]));
    assert_eq!((with.len(), without.len()), (24, 24));
    let mut faster = 0;
    for (with, without) in with.iter().zip(&without) {
        let number = |value: &Value| value.as_i64().unwrap();
        let waits: i64 =
            with["waits"].as_array().unwrap().iter().map(|wait| number(&wait["ns"])).sum();
        assert_eq!(number(&with["work_ns"]) + waits, number(&with["ns"]));
        let (predicted, played) = (number(&with["predicted"]["ns"]), number(&without["ns"]));
        assert!((predicted - played).abs() * 20 <= played, "{predicted} for {played}");
        faster += u32::from(number(&with["ns"]) * 9 > played * 10);
    }
    assert!(faster > 20, "the rounds wait for this member");
}

/// Six members, of which four commits end the commits of a round.
const SPARE_MEMBERS: &str = "name = 'base'\nquestion = 'Does a spare member replace another?'\n\
    rounds = 6\n[seeds]\ncount = 1\n[task]\ncohort = 4\nover_selection = 2\n\
    [learning]\nhidden = []\nholdout_rows = 300\nholdout_rows_per_round = 20\n\
    [population.a]\ncount = 6\nrows = [30, 80]\nmachine = { spread = 1.0 }\n";

/// A scenario that is written into a file and played, and its traces.
struct PlayedScenario {
    _folder: tempfile::TempDir,
    traces: String,
}

impl PlayedScenario {
    fn new(scenario: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (file, traces) = (folder.path().join("base.toml"), folder.path().join("traces"));
        std::fs::write(&file, scenario).unwrap();
        let (file, traces) = (file.display().to_string(), traces.display().to_string());
        let run = florin(&["sim", "run", &file, "--trace", &traces]);
        assert!(run.code < 2, "{run:?}");
        Self { _folder: folder, traces }
    }

    /// Its rounds, as `florin trace show` prints them with these arguments.
    fn rounds(&self, more: &[&str]) -> Vec<Value> {
        let shown = ["trace", "show", &self.traces, "--json"];
        let shown = florin(&[&shown[..], more].concat()).expect(0).json();
        shown["rounds"].as_array().unwrap().clone()
    }

    /// The events of its only file.
    fn events(&self) -> Vec<Value> {
        let mut files = std::fs::read_dir(&self.traces).unwrap().map(|file| file.unwrap().path());
        let file = files.find(|path| path.extension().unwrap() == "json").unwrap();
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
    }
}

#[test]
fn a_replay_with_spare_members_predicts_the_laboratory_within_5_percent() {
    let six = PlayedScenario::new(SPARE_MEMBERS);
    for member in 1..=6_usize {
        let with = six.rounds(&["--without", &member.to_string()]);
        assert_eq!(with.len(), 6);
        // The first round opens with four members, before the others enrol.
        for round in with.iter().skip(1) {
            let predicted = &round["predicted"];
            assert_eq!(
                (&predicted["bound"], &predicted["updates"]),
                (&"estimate".into(), &4.into())
            );
        }
        if member < 6 {
            continue;
        }
        let five = SPARE_MEMBERS.replace("count = 6", "count = 5");
        let without = PlayedScenario::new(&five).rounds(&[]);
        assert_eq!(without.len(), 6);
        for (with, without) in with.iter().zip(&without).skip(1) {
            let (predicted, played) =
                (with["predicted"]["ns"].as_i64().unwrap(), without["ns"].as_i64().unwrap());
            assert!((predicted - played).abs() * 20 <= played, "{predicted} for {played}");
        }
    }
}

#[test]
fn a_late_training_begins_in_the_round_of_its_offer_and_is_not_predicted() {
    let late = "over_selection = 2\nstaleness = { rounds = 3, weight = 'equal' }\n";
    let late = PlayedScenario::new(&SPARE_MEMBERS.replace("over_selection = 2\n", late));
    let events = late.events();
    let ms = |event: &Value, key: &str| event[key].as_f64().unwrap().round() as i64 / 1_000;
    let is_offer = |event: &&Value| event["name"] == "commit" && event["ph"] == "B";
    let offers = events.iter().filter(is_offer);
    let offers: Vec<i64> = offers.map(|offer| ms(offer, "ts")).collect();
    let mut spans = std::collections::BTreeMap::<String, Vec<(i64, i64)>>::new();
    let mut continued = 0;
    for event in events.iter().filter(|event| event["name"] == "train") {
        let (from, length) = (ms(event, "ts"), ms(event, "dur"));
        let round = event["args"]["round"].as_u64().unwrap() as usize;
        assert!(offers[..round].contains(&from), "no offer at {from}: {event}");
        continued += usize::from(from < offers[round - 1]);
        let member = event["args"]["member"].to_string();
        spans.entry(member).or_default().push((from, from + length));
    }
    assert!(continued > 2, "{events:?}");
    for spans in spans.values_mut() {
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "they overlap: {spans:?}");
    }
    let rounds = late.rounds(&["--without", "6"]);
    let refused = rounds.iter().filter(|round| round["predicted"]["refused"] == "late-updates");
    assert!((3..6).contains(&refused.count()), "{rounds:?}");
    assert_eq!(rounds[1]["predicted"]["bound"], "estimate");
}
