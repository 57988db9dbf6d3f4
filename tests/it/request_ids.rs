//! Request ids: the same id is in the response, in every log line about the request, in the output
//! of a participant's command, and in the exported span.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;

use crate::support::process::until;
use crate::support::{On, TestMarket, TestPlan};

/// Requests a task that does not exist; returns the request id.
fn rejected_request(market: &TestMarket) -> String {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().proxy(None).http_status_as_error(false).build().into();
    let url = format!("{}/v1/tasks/{}", market.url, "ab".repeat(32));
    let mut answer = agent.get(url).call().unwrap();
    assert_eq!(answer.status(), 404);
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    let body: Value = serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap();
    assert_eq!(body["request_id"], id.as_str());
    id
}

/// A collector that records the first line and the body of each request.
fn collector() -> (String, Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut all = Vec::new();
            let mut part = [0; 4_096];
            let (line, body) = loop {
                let n = stream.read(&mut part).unwrap();
                assert!(n > 0, "the request is complete");
                all.extend_from_slice(&part[..n]);
                let Some(end) = all.windows(4).position(|four| four == b"\r\n\r\n") else {
                    continue;
                };
                let head = String::from_utf8(all[..end].to_vec()).unwrap().to_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                let length: usize = length.expect("a length").trim().parse().unwrap();
                if all.len() >= end + 4 + length {
                    break (head.lines().next().unwrap().to_owned(), all[end + 4..].to_vec());
                }
            };
            let answer = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer.as_bytes()).unwrap();
            if send.send((line, body)).is_err() {
                return;
            }
        }
    });
    (url, receive)
}

fn set(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[test]
fn a_request_id_is_in_the_response_the_log_and_the_span() {
    let mut market = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    let (url, spans) = collector();
    market.environment = vec![
        set("FLORIN_COORDINATOR_OTLP_URL", &url),
        set("FLORIN_LOG_FORMAT", "json"),
        set("RUST_LOG", "florin_coordinator=debug"),
    ];
    market.restart_coordinator();
    let id = rejected_request(&market);
    let contains =
        |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|w| w == text.as_bytes());
    loop {
        let (line, body) = spans.recv_timeout(Duration::from_secs(60)).expect("a span is exported");
        assert_eq!(line, "post /v1/traces http/1.1");
        if contains(&body, &id) {
            assert!(contains(&body, "/v1/tasks/{id}") && contains(&body, "florin-coordinator"));
            break;
        }
    }
    let log = market.coordinator.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ours: Vec<Value> = lines.filter(|line| line["span"]["request_id"] == id.as_str()).collect();
    assert!(!ours.is_empty(), "no line names {id} in\n{log}");
    assert!(ours.iter().all(|line| line["span"]["route"] == "/v1/tasks/{id}"), "{ours:?}");
    assert!(ours.iter().any(|line| line["message"] == "a request was rejected"), "{ours:?}");
}

#[test]
fn an_unreachable_collector_is_logged_once_and_delays_no_request() {
    let mut market = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    market.environment = vec![set("FLORIN_COORDINATOR_OTLP_URL", &format!("http://{free}"))];
    market.restart_coordinator();
    let warnings =
        |market: &TestMarket| market.coordinator.log().matches("does not accept spans").count();
    // At least two batches: the export of the first fails before the second is created.
    rejected_request(&market);
    until("the failed export is logged", || (warnings(&market) > 0).then_some(()));
    (0..20).for_each(|_| {
        rejected_request(&market);
    });
    market.coordinator.ask_to_stop();
    until("the coordinator exits", || (!market.coordinator.runs()).then_some(()));
    assert_eq!(warnings(&market), 1, "{}", market.coordinator.log());
}

#[test]
fn a_rejected_command_prints_the_request_id() {
    let market = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    let output = market.run_command(&["task", "show", &"ab".repeat(32)]);
    assert!(output.code != 0 && output.err.contains("(request "), "{output:?}");
}
