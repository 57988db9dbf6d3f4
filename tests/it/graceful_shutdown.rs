//! Graceful shutdown: SIGTERM during an upload completes the upload, and systemd is notified of
//! each step.
#![cfg(unix)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use florin_protocol::{Registration, Role, Timestamp, WalletSigner};

use crate::support::process::{PATIENCE, until};
use crate::support::{On, TestMarket, TestPlan};

/// The next notification to systemd.
fn receive(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 1_024];
    let n = socket.recv(&mut bytes).expect("systemd receives a notification");
    String::from_utf8_lossy(&bytes[..n]).into_owned()
}

#[test]
fn an_upload_in_flight_at_sigterm_is_completed_and_the_process_exits_successfully() {
    let mut market = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    let notify = market.folder().join("notify");
    let systemd = UnixDatagram::bind(&notify).unwrap();
    systemd.set_read_timeout(Some(PATIENCE)).unwrap();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    market.environment = vec![
        pair("NOTIFY_SOCKET", notify.to_str().unwrap()),
        pair("WATCHDOG_USEC", "200000"),
        pair("FLORIN_COORDINATOR_SHUTDOWN_MS", "60000"),
    ];
    market.restart_coordinator();
    assert!(receive(&systemd).starts_with("READY=1\n"));
    assert_eq!(receive(&systemd), "WATCHDOG=1");

    let ann = market.wallet("ann");
    let (name, now) = (market.client().coordinator().market, market.client().now());
    let later = Timestamp(now.0 + 3_600_000);
    let node = ann.node_signer();
    let registration = Registration::sign(name, &ann, &node, Role::Participant, later).unwrap();
    let body = serde_json::to_vec(&registration).unwrap();
    let mut upload = TcpStream::connect(market.address()).unwrap();
    upload.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!("content-length: {}\r\n\r\n", body.len());
    write!(upload, "POST /v1/registrations HTTP/1.1\r\nhost: x\r\n{head}").unwrap();
    let (first, second) = body.split_at(body.len() / 2);
    upload.write_all(first).unwrap();
    // The upload is in flight once a later request has a response.
    market.client();

    market.coordinator.ask_to_stop();
    until("systemd is notified of the shutdown", || {
        receive(&systemd).starts_with("STOPPING=1").then_some(())
    });
    until("connections are refused", || {
        TcpStream::connect(market.address()).is_err().then_some(())
    });
    assert!(
        market.coordinator.runs(),
        "the coordinator must wait for the upload: {}",
        market.coordinator.log()
    );
    upload.write_all(second).unwrap();
    let mut answer = String::new();
    upload.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 2"), "{answer}");
    market.coordinator.finish();
    assert!(market.coordinator.log().contains("Stopped"), "{}", market.coordinator.log());

    market.environment.clear();
    market.start_coordinator_again();
    let known = market.client().registration(ann.address(), Role::Participant).unwrap();
    assert_eq!(known.map(|known| known.node_key), Some(node.key()));
}

#[test]
fn a_dribbling_client_does_not_delay_the_shutdown_beyond_its_limit() {
    let mut market = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    market.environment = vec![("FLORIN_COORDINATOR_SHUTDOWN_MS".to_owned(), "100".to_owned())];
    market.restart_coordinator();
    let mut slow = TcpStream::connect(market.address()).unwrap();
    let head = "POST /v1/registrations HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n{";
    slow.write_all(head.as_bytes()).unwrap();
    market.client();
    market.coordinator.ask_to_stop();
    while market.coordinator.runs() && slow.write_all(b" ").is_ok() {
        std::thread::sleep(Duration::from_millis(10));
    }
    market.coordinator.finish();
}

#[test]
fn a_second_stop_signal_ends_the_coordinator_at_once() {
    let mut market = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    market.environment = vec![("FLORIN_COORDINATOR_SHUTDOWN_MS".to_owned(), "60000".to_owned())];
    market.restart_coordinator();
    let mut upload = TcpStream::connect(market.address()).unwrap();
    let head = "POST /v1/registrations HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n{";
    upload.write_all(head.as_bytes()).unwrap();
    market.client();
    market.coordinator.ask_to_stop();
    until("connections are refused", || {
        TcpStream::connect(market.address()).is_err().then_some(())
    });
    assert!(
        market.coordinator.runs(),
        "the coordinator must wait for the upload: {}",
        market.coordinator.log()
    );
    market.coordinator.ask_to_stop();
    let status = market.coordinator.wait();
    assert_eq!(status.code(), Some(130), "{}", market.coordinator.log());
    assert!(market.coordinator.log().contains("Stopped at once"), "{}", market.coordinator.log());
    market.environment.clear();
    market.start_coordinator_again();
    market.client();
}
