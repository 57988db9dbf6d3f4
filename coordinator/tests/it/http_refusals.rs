//! Refusals below the routes have a code and a request id: requests that hyper cannot parse, bodies
//! that break off, and heads that HTTP forbids.

use axum::body::Body;
use florin_protocol::{ErrorCode, Role, TaskView};
use tokio::io::AsyncWriteExt;

use crate::connection_limits::{read_until_close, serve};
use crate::support::{COORDINATOR, registration};
use crate::test_coordinator::{TestCoordinator, digits_spec};

/// Sends one request on a connection of its own and returns the whole response.
async fn answer_to(request: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |_| {}).await;
    let mut client = server.connect().await;
    // The server may close the connection before it has read everything.
    let _ = client.write_all(request).await;
    let answer = read_until_close(&mut client).await;
    server.stop().await;
    answer
}

/// Status and code of a response in the documented form.
fn status_and_code(answer: &str) -> (u16, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"));
    let line = head.lines().find_map(|line| line.strip_prefix("x-request-id: "));
    assert_eq!(line, body["request_id"].as_str(), "{answer}");
    assert!(!body["message"].as_str().unwrap().is_empty());
    (status, body["code"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_below_the_routes_have_a_code_and_a_request_id() {
    let post = "POST /v1/registrations HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    let chunked = format!("{post}transfer-encoding: chunked\r\n\r\n");
    let huge = format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "y".repeat(200_000));
    let many: String = (0..150).map(|n| format!("x-{n}: y\r\n")).collect();
    let close = "connection: close\r\n\r\n";
    let get = "GET /v1/health HTTP/1.1\r\n";
    for (name, request, status, code) in [
        ("no request line", "hello\r\n\r\n".to_owned(), 400, "MALFORMED"),
        ("a bad version", "GET / HTTP/9.9\r\n\r\n".to_owned(), 400, "MALFORMED"),
        ("a bad header", format!("{get}a b: c\r\n\r\n"), 400, "MALFORMED"),
        (
            "two lengths",
            format!("{post}content-length: 1\r\ncontent-length: 2\r\n\r\n"),
            400,
            "MALFORMED",
        ),
        ("a huge header", huge, 431, "TOO_LARGE"),
        ("many headers", format!("GET / HTTP/1.1\r\n{many}\r\n"), 431, "TOO_LARGE"),
        ("a bad chunk size", format!("{chunked}zz\r\n"), 400, "MALFORMED"),
        ("a chunk without its end", format!("{chunked}1\r\n{{xx"), 400, "MALFORMED"),
        ("no host", format!("{get}{close}"), 400, "MALFORMED"),
        ("two hosts", format!("{get}host: a\r\nhost: b\r\n{close}"), 400, "MALFORMED"),
        (
            "a compressed body",
            format!("{post}content-encoding: gzip\r\ncontent-length: 2\r\n\r\n\x1f\x00"),
            415,
            "WRONG_CONTENT_TYPE",
        ),
    ] {
        let answer = answer_to(request.as_bytes()).await;
        assert_eq!(status_and_code(&answer), (status, code.to_owned()), "{name}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compressed_body_is_refused_by_the_name_of_its_header() {
    let request = "PUT /v1/tasks/x/holdout HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
                   content-encoding: br\r\ncontent-length: 1\r\n\r\nx";
    let answer = answer_to(request.as_bytes()).await;
    assert!(
        answer.contains("415") && answer.contains("Content-Encoding is \\\"br\\\""),
        "{answer}"
    );
}

/// A second request on the same connection that hyper cannot parse has the same form, and the first
/// response is unchanged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_request_after_a_good_one_is_refused_in_the_same_form() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |_| {}).await;
    let mut client = server.connect().await;
    assert!(crate::connection_limits::ask_health(&mut client).await.contains("200 OK"));
    client.write_all(b"hello\r\n\r\n").await.unwrap();
    let answer = read_until_close(&mut client).await;
    assert_eq!(status_and_code(&answer), (400, "MALFORMED".to_owned()));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_that_never_exists_is_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), digits_spec());
    let _: TaskView = shop.post("tasks", &shop.spec).await.unwrap();
    let last = shop.spec.rounds.count;
    for part in ["report", "offer", "headers", "records", "holdout"] {
        let path = |round: u32| format!("tasks/{}/rounds/{round}/{part}", shop.id);
        for (round, code) in [
            (0, ErrorCode::NotFound),
            (1, ErrorCode::NotYetPublic),
            (last, ErrorCode::NotYetPublic),
            (last + 1, ErrorCode::NotFound),
            (u32::MAX, ErrorCode::NotFound),
        ] {
            let found = shop.rejection_code("GET", &path(round), Body::empty()).await;
            assert_eq!(found, code, "{part} of round {round}");
        }
    }
    shop.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_coordinator_registers_as_a_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), digits_spec());
    let stranger = serde_json::to_vec(&registration(1, Role::Coordinator)).unwrap();
    let code = shop.rejection_code("POST", "registrations", stranger).await;
    assert_eq!(code, ErrorCode::WrongRole);
    let own = registration(COORDINATOR, Role::Coordinator);
    let () = shop.post("registrations", &own).await.unwrap();
    shop.stop().await;
}
