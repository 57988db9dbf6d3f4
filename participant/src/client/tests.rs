//! The client against coordinators that are unavailable, faulty or forged.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use florin_protocol::{Digest, EnrolRequest, NodeSigner, TaskId, Timestamp, WalletSigner};

use super::*;
use crate::testing::{Fault, TestMarket, wallet};

/// Serves the same response to every request.
fn serve_always(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4_096]);
            if !answer.is_empty() {
                let _ = stream.write_all(format!("HTTP/1.1 {answer}").as_bytes());
            }
        }
    });
    url
}

fn connect(url: &str) -> Result<Client, ClientError> {
    Client::connect(&ClientConfig::new(url))
}

#[test]
fn a_wrong_url_and_an_unavailable_coordinator_have_different_codes() {
    for url in ["", "localhost:80", "ftp://x", "http://", "http://x/?y", "http://a b"] {
        let error = connect(url).unwrap_err();
        assert_eq!(error.code(), "INVALID_URL", "{url:?}: {error}");
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let table = [
        ("closed", "", "COORDINATOR_UNAVAILABLE"),
        ("cut", "200 OK\r\ncontent-length: 900\r\n\r\n{\"a\":", "COORDINATOR_UNAVAILABLE"),
        ("busy", "503 X\r\ncontent-length: 0\r\n\r\n", "COORDINATOR_UNAVAILABLE"),
        ("other", "200 OK\r\ncontent-length: 5\r\n\r\nhello", "INVALID_RESPONSE"),
        ("moved", "301 X\r\nlocation: http://localhost:1/\r\n\r\n", "INVALID_RESPONSE"),
        ("odd", "418 X\r\ncontent-length: 0\r\n\r\n", "INVALID_RESPONSE"),
        (
            "no",
            "404 X\r\ncontent-length: 40\r\n\r\n{\"code\":\"NOT_FOUND\",\"message\":\"nothing\"}",
            "NOT_FOUND",
        ),
    ];
    let error = connect(&format!("http://{port}")).unwrap_err();
    assert_eq!(error.code(), "COORDINATOR_UNAVAILABLE", "{error}");
    for (name, answer, code) in table {
        let error = connect(&serve_always(answer)).unwrap_err();
        assert_eq!(error.code(), code, "{name}: {error}");
    }
}

/// Serves these responses in order, the last one repeatedly, and counts the requests.
fn serve_in_order(answers: &'static [&'static str]) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4_096]);
            let number = count.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1);
            let _ = stream.write_all(format!("HTTP/1.1 {}", answers[number]).as_bytes());
        }
    });
    (url, asked)
}

#[test]
fn a_rate_limited_request_is_retried_ten_times_at_most() {
    const TOO_MANY: &str = "429 X\r\nretry-after: 0\r\nconnection: close\r\ncontent-length: 40\r\n\r\n\
        {\"code\":\"RATE_LIMITED\",\"message\":\"slow\"}";
    const GONE: &str = "404 X\r\nconnection: close\r\ncontent-length: 35\r\n\r\n\
        {\"code\":\"NOT_FOUND\",\"message\":\"no\"}";
    let (url, asked) = serve_in_order(&[TOO_MANY, TOO_MANY, GONE]);
    assert_eq!(connect(&url).unwrap_err().code(), "NOT_FOUND");
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    let (url, asked) = serve_in_order(&[TOO_MANY]);
    let error = connect(&url).unwrap_err();
    assert!(
        error.code() == "RATE_LIMITED" && crate::retry::Transient::is_transient(&error),
        "{error}"
    );
    assert_eq!(asked.load(Ordering::SeqCst), 10);
}

/// A command that runs once prints the coordinator's code and sentence; a daemon tries again.
#[test]
fn a_limit_of_the_coordinator_has_its_own_code_and_is_transient() {
    const FULL: &str = "429 X\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 46\r\n\r\n\
        {\"code\":\"LIMIT_REACHED\",\"message\":\"10 orders\"}";
    let (url, asked) = serve_in_order(&[FULL]);
    let error = connect(&url).unwrap_err();
    assert_eq!((error.code(), error.rejection().is_some()), ("LIMIT_REACHED", true), "{error}");
    assert!(error.to_string().contains("10 orders"), "{error}");
    assert!(crate::retry::Transient::is_transient(&error));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let error = connect(&serve_always("429 X\r\ncontent-length: 0\r\n\r\n")).unwrap_err();
    assert_eq!(error.code(), "COORDINATOR_UNAVAILABLE", "{error}");
}

#[test]
fn a_response_above_the_limit_is_rejected() {
    let market = TestMarket::start(1, false);
    let client = market.client();
    let error = client.blob(market.spec.base_model, 10).unwrap_err();
    assert_eq!(error.code(), "INVALID_RESPONSE", "{error}");
    let length = florin_work::model_bytes(&market.spec);
    assert!(client.blob(market.spec.base_model, length).is_ok());
}

#[test]
fn a_coordinator_that_differs_from_the_pinned_one_is_refused() {
    let market = TestMarket::start(1, false);
    let pin = market.folder.path().join("coordinator.json");
    let config = ClientConfig { pin_file: Some(pin.clone()), ..ClientConfig::new(market.url) };
    Client::connect(&config).unwrap();
    Client::connect(&config).unwrap();
    let text = std::fs::read_to_string(&pin).unwrap();
    let key = NodeSigner::from_seed(&[1; 32]).key().to_string();
    let ours = Client::connect(&config).unwrap().coordinator().node_key.to_string();
    std::fs::write(&pin, text.replace(&ours, &key)).unwrap();
    let error = Client::connect(&config).unwrap_err();
    assert_eq!(error.code(), "COORDINATOR_CHANGED", "{error}");
    std::fs::write(&pin, "{").unwrap();
    let error = Client::connect(&config).unwrap_err();
    assert_eq!(error.code(), "INVALID_RESPONSE", "{error}");
}

#[test]
fn a_corrupted_blob_is_rejected() {
    let market = TestMarket::start(1, false);
    market.inject(Fault::WrongBytes);
    let error = market.client().blob(market.spec.base_model, 10_000).unwrap_err();
    assert_eq!(error.code(), "WRONG_DIGEST", "{error}");
}

#[test]
fn rejections_keep_their_code() {
    let market = TestMarket::start(1, false);
    let client = market.client();
    let error = client.disclosed_rows(market.task, RoundNumber(1), 10_000).unwrap_err();
    assert_eq!((error.code(), error.rejection().is_some()), ("NOT_YET_PUBLIC", true));
    assert_eq!(client.task(TaskId([1; 32])).unwrap_err().code(), "UNKNOWN_TASK");
    assert_eq!(client.blob(Digest([1; 32]), 10).unwrap_err().code(), "NOT_FOUND");
    assert_eq!(client.registration(wallet(5).address(), Role::Participant).unwrap(), None);
    market.inject(Fault::Unavailable);
    let error = client.tasks().unwrap_err();
    assert_eq!(error.code(), "COORDINATOR_UNAVAILABLE");
    assert!(error.to_string().contains("STORAGE_FULL"), "{error}");
}

#[test]
fn registrations_are_looked_up_by_role() {
    let market = TestMarket::start(1, false);
    let client = market.client();
    let (wallet, node) = (wallet(4), wallet(4).node_signer());
    let sign = |role| Registration::sign(market.spec.market, &wallet, &node, role, Timestamp(99));
    client.register(&sign(Role::Provider).unwrap()).unwrap();
    let found = client.registration(wallet.address(), Role::Provider).unwrap().unwrap();
    assert_eq!(found.node_key, node.key());
    assert_eq!(client.registration(wallet.address(), Role::Participant).unwrap(), None);
    let enrol = EnrolRequest::without_invitation(
        market.spec.market,
        market.task,
        wallet.address(),
        Timestamp(99),
    );
    client.enrol(&node.sign(enrol)).unwrap();
    assert_eq!(client.task(market.task).unwrap().enrolled, 1);
}

#[test]
fn restricted_rows_cross_no_network_in_plain_text() {
    let is_confidential = |url| {
        let http = http::Http::new(url, &TrustAnchors::from_system()).unwrap();
        http.is_confidential()
    };
    for url in ["https://market.example", "http://localhost:7700", "http://127.0.0.1:7700"] {
        assert!(is_confidential(url), "{url}");
    }
    // A name may resolve to any machine.
    for url in ["http://market.example", "http://10.0.0.1:7700", "http://localhost.example"] {
        assert!(!is_confidential(url), "{url}");
    }
}
