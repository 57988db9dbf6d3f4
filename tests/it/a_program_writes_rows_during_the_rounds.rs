//! A member trains on rows that a running program writes meanwhile; events and traces name the side
//! that waited. Wrong calls are refused before a deposit.

use std::fmt::Write as _;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use florin_learning::data::{DataSource, load};
use serde_json::Value;

use crate::a_slow_participant_is_named_by_the_trace::{SLEEP, is_there};
use crate::support::market::words;
use crate::support::process::until;
use crate::support::slow::slow_trainer;
use crate::support::{CommandOutput, On, Process, TestMarket, TestPlan, florin};

/// Rows of the reservoir: as many as the bond of a participant covers.
const RESERVOIR: &str = "120";
/// Rows before the first round, and further ones before each other round.
const FIRST_ROWS: usize = 60;
const NEW_ROWS: usize = 30;
/// The time for which the program is slow before round 2.
const HELD: Duration = Duration::from_millis(500);

fn market() -> TestMarket {
    let mut plan = TestPlan::honest(On::Embedded, 2);
    plan.participants = vec![("ann", None)];
    plan.target = 1;
    plan.provider = false;
    TestMarket::open(plan)
}

/// The call of a participant with the rows of this source.
fn call(market: &TestMarket, task: &str, source: &str, more: &[&str]) -> Vec<String> {
    let mut call = market.participant_call(&market.url, task.parse().unwrap(), "ann");
    let rows = call.iter().position(|word| word == "--rows").unwrap();
    call.drain(rows..rows + 2);
    let data = call.iter().position(|word| word == "digits").unwrap();
    call[data] = source.to_owned();
    call.extend(words(more));
    call
}

/// A program that writes digits to a socket, again from the first one after the last.
struct Digits {
    socket: PathBuf,
    next: usize,
}

impl Digits {
    fn header() -> String {
        let columns: Vec<String> = (0..64).map(|pixel| format!("p{pixel}")).collect();
        format!("{},digit\n", columns.join(","))
    }

    /// Connects, once the participant listens.
    fn connect(&self) -> UnixStream {
        let mut stream =
            until("the participant's socket", || UnixStream::connect(&self.socket).ok());
        stream.write_all(Self::header().as_bytes()).unwrap();
        stream
    }

    /// The next rows.
    fn rows(&mut self, count: usize) -> String {
        let digits = load(&DataSource::Digits).unwrap();
        let mut text = String::new();
        for _ in 0..count {
            for pixel in digits.row(self.next) {
                write!(text, "{pixel},").unwrap();
            }
            writeln!(text, "{}", digits.labels()[self.next]).unwrap();
            self.next = (self.next + 1) % 1_497;
        }
        text
    }
}

fn events(process: &Process, name: &str) -> Vec<Value> {
    let log = process.log();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["event"] == name).collect()
}

/// The trace of a participant and of its coordinator.
fn shown(traces: &str) -> (Value, String) {
    let shown = |more: &[&str]| -> CommandOutput {
        florin(&words(&[&["trace", "show", traces][..], more].concat())).expect(0)
    };
    (shown(&["--json"]).json(), shown(&[]).out)
}

/// A market whose processes write traces, and a task of it.
fn traced_market() -> (TestMarket, String, String) {
    let mut market = market();
    let traces = market.file("traces");
    market.environment = vec![("FLORIN_TRACE".to_owned(), traces.clone())];
    market.restart_coordinator();
    let task = market.publish().to_string();
    (market, traces, task)
}

#[test]
fn a_slow_program_is_named_and_its_rows_are_declared() {
    let (market, traces, task) = traced_market();
    let socket = market.folder().join("rows.sock");
    let source = format!("unix:{}#digit", socket.display());
    let min_rows = FIRST_ROWS.to_string();
    let new_rows = NEW_ROWS.to_string();
    let more = ["--reservoir", RESERVOIR, "--min-rows", &min_rows, "--new-rows", &new_rows];
    let more = [&more[..], &["--json", "--trace", &traces]].concat();
    let call = call(&market, &task, &source, &more);
    let mut ann = Process::start(market.folder(), "ann", &call);
    let mut program = Digits { socket, next: 0 };
    let mut stream = program.connect();
    let first = program.rows(FIRST_ROWS);
    stream.write_all(format!("{first}1,2\n").as_bytes()).unwrap();
    // The program stops, and another one continues.
    drop(stream);
    let mut stream = program.connect();
    let is_waiting = || {
        let waits = events(&ann, "producer");
        let is_of_round = |event: &Value| event["news"] == "waiting" && event["round"] == 2;
        waits.iter().any(is_of_round).then_some(())
    };
    until("the wait of round 2", is_waiting);
    thread::sleep(HELD);
    stream.write_all(program.rows(NEW_ROWS).as_bytes()).unwrap();
    ann.finish();
    let taken: Vec<_> =
        events(&ann, "producer").into_iter().filter(|event| event["news"] == "taken").collect();
    let rows: Vec<_> = taken.iter().filter_map(|event| event["rows"].as_u64()).collect();
    let (first, both) = (FIRST_ROWS as u64, (FIRST_ROWS + NEW_ROWS) as u64);
    assert_eq!(rows, [first, both], "{taken:?}");
    assert!(taken[1]["producer_slow_ms"].as_u64().unwrap() >= 500, "{taken:?}");
    for (round, rows) in [(1, first), (2, both)] {
        let entry = &market.report(task.parse().unwrap(), round).entries[0];
        assert_eq!((entry.rows_declared, entry.rows_counted), (rows, rows));
    }
    let summary = &events(&ann, "summary")[0];
    assert_eq!(
        (&summary["rows"]["rows_seen"], &summary["rows"]["refused"]),
        (&both.into(), &1.into()),
        "{summary}"
    );
    assert_eq!(summary["rows"]["trainer_slow_ms"], 0, "{summary}");
    let (json, text) = shown(&traces);
    let (round, member) = (&json["rounds"][1], market.account("ann").to_string());
    let longest = round["waits"].as_array().unwrap().iter().max_by_key(|wait| wait["ns"].as_i64());
    assert_eq!(longest.unwrap()["cause"], "slow-producer", "{round}");
    assert_eq!(longest.unwrap()["member"], member.as_str());
    assert!(longest.unwrap()["ns"].as_i64().unwrap() > 400_000_000, "{round}");
    assert_eq!(round["producers"][0]["slow_trainer_ns"], 0, "{round}");
    assert!(text.contains("slow producer: member 1"), "{text}");
}

#[test]
fn a_slow_training_blocks_the_program_and_is_named() {
    if !is_there("python3") {
        return;
    }
    let (market, traces, task) = traced_market();
    let socket = market.folder().join("rows.sock");
    let source = format!("unix:{}#digit", socket.display());
    let trainer = slow_trainer(market.folder(), SLEEP);
    let more = ["--reservoir", RESERVOIR, "--min-rows", RESERVOIR, "--trainer", &trainer];
    let mut call = call(&market, &task, &source, &[&more[..], &["--unsandboxed"]].concat());
    let refused = florin(&call).refused(2, "TRAINER_NOT_ACCEPTED");
    let digest = refused.err.split_whitespace().last().unwrap().trim_matches(['"', '.']);
    call.extend(words(&["--accept-trainer", digest, "--json", "--trace", &traces]));
    let mut ann = Process::start(market.folder(), "ann", &call);
    let mut program = Digits { socket, next: 0 };
    let mut stream = program.connect();
    let program = thread::spawn(move || {
        let mut written = 0_u64;
        // Until the participant ends, as fast as it takes them.
        while stream.write_all(program.rows(100).as_bytes()).is_ok() {
            written += 100;
        }
        written
    });
    ann.finish();
    let written = program.join().unwrap();
    let summary = &events(&ann, "summary")[0]["rows"];
    let count = |key: &str| summary[key].as_u64().unwrap();
    assert!(count("trainer_slow_ms") >= 500, "{summary}");
    assert!(count("trainer_slow_ms") > count("producer_slow_ms"), "{summary}");
    assert!(
        count("rows_seen") > 4_096 && count("rows_seen") <= written + 100,
        "{summary} {written}"
    );
    assert_eq!(count("rows_in_reservoir"), 120, "{summary}");
    let (json, text) = shown(&traces);
    for round in json["rounds"].as_array().unwrap() {
        let waits = &round["producers"][0];
        assert!(waits["slow_trainer_ns"].as_i64().unwrap() > 200_000_000, "{round}");
        assert!(
            round["waits"].as_array().unwrap().iter().all(|wait| wait["cause"] != "slow-producer"
                || wait["ns"].as_i64().unwrap() < 200_000_000),
            "{round}"
        );
    }
    assert!(text.contains("(slow trainer)"), "{text}");
}

#[test]
fn options_that_contradict_a_program_are_refused_before_a_deposit() {
    let market = market();
    let task = market.publish().to_string();
    let socket = format!("unix:{}#digit", market.file("rows.sock"));
    let refused = |source: &str, more: &[&str], code: &str| {
        florin(&call(&market, &task, source, more)).refused(2, code);
    };
    refused(&socket, &["--rows", "0..9"], "PRODUCER_UNSUPPORTED");
    refused(&socket, &["--clip", "1", "--noise", "2"], "PRODUCER_UNSUPPORTED");
    refused(&socket, &["--reservoir", "10", "--min-rows", "11"], "PRODUCER_SETTINGS");
    refused("digits", &["--reservoir", "10"], "PRODUCER_SETTINGS");
    let nowhere = format!("growing:{}#digit", market.file("nowhere"));
    refused(&nowhere, &[], "PRODUCER_FOLDER");
    refused(&format!("unix:{}#digit", market.file("task.toml")), &[], "PRODUCER_ADDRESS");
    let other = florin(&call(&market, &task, "tcp:0.0.0.0:80#digit", &[]));
    assert_ne!(other.code, 0, "{other:?}");
    assert!(other.err.contains("not one of this machine alone"), "{other:?}");
    let account = market.account("ann");
    let bond = market.ledger().bond_of(task.parse().unwrap(), account).unwrap();
    assert!(bond.amount.is_zero());
}
