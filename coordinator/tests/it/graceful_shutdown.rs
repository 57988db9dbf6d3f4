//! Graceful shutdown: the coordinator refuses new connections, completes in-flight uploads, and
//! then exits without an error.

use std::time::Duration;

use florin_protocol::{TaskPhase, TaskView, blob_digest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::connection_limits::{TestServer, read_until_close, serve, within_timeout};
use crate::test_coordinator::*;

/// Publishes the digits task over a socket.
async fn publish(server: &TestServer) -> TaskView {
    let body = serde_json::to_string(&digits_spec()).unwrap();
    let mut stream = server.connect().await;
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    let answer = read_until_close(&mut stream).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("200 OK"), "{answer}");
    serde_json::from_str(body).unwrap()
}

/// Sends the headers and the first half of a model that the task waits for.
async fn start_upload(server: &TestServer) -> (TcpStream, &'static [u8]) {
    let model = base_model();
    let mut stream = server.connect().await;
    let head = format!("PUT /v1/blobs/{} HTTP/1.1\r\nhost: x\r\n", blob_digest(model));
    let head = format!("{head}content-length: {}\r\n\r\n", model.len());
    let (first, second) = model.split_at(model.len() / 2);
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(first).await.unwrap();
    (stream, second)
}

/// Resolves when the server refuses connections.
async fn wait_until_closed(address: std::net::SocketAddr) {
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_in_flight_upload_is_completed_during_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |config| {
        (config.header_ms, config.idle_ms) = (60_000, 600_000);
        (config.body_ms, config.shutdown_ms) = (600_000, 600_000);
    })
    .await;
    let view = publish(&server).await;
    assert_eq!(view.phase, TaskPhase::AwaitingBlobs);
    let (mut upload, rest_of_it) = start_upload(&server).await;
    // One client is in a long poll, and another one is idle between two requests.
    let mut waits = server.connect().await;
    let wait = format!(
        "GET /v1/tasks/{}?after={}&wait_ms=30000 HTTP/1.1\r\nhost: x\r\n\r\n",
        view.id, view.sequence
    );
    waits.write_all(wait.as_bytes()).await.unwrap();
    let mut idle = server.connect().await;
    idle.write_all(b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    within_timeout(idle.read(&mut [0; 1_024])).await.unwrap();

    let address = server.address;
    let ended = server.begin_shutdown();
    within_timeout(wait_until_closed(address)).await;
    assert_eq!(read_until_close(&mut idle).await, "");
    let news = read_until_close(&mut waits).await;
    assert!(news.contains("200 OK"), "{news}");
    assert!(!ended.is_finished(), "the shutdown does not wait for the upload");
    upload.write_all(rest_of_it).await.unwrap();
    let answer = read_until_close(&mut upload).await;
    assert!(answer.contains("204 No Content"), "{answer}");
    within_timeout(ended).await.unwrap().unwrap();

    let again = TestCoordinator::open(dir.path(), digits_spec());
    assert!(again.view().await.missing_blobs.is_empty(), "the acknowledged model is lost");
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_beyond_the_grace_period_is_aborted_and_leaves_no_blob() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |config| {
        (config.body_ms, config.shutdown_ms) = (600_000, 200);
    })
    .await;
    publish(&server).await;
    let (mut upload, _) = start_upload(&server).await;
    within_timeout(server.begin_shutdown()).await.unwrap().unwrap();
    assert!(!read_until_close(&mut upload).await.contains("204"));
    let again = TestCoordinator::open(dir.path(), digits_spec());
    assert_eq!(again.view().await.missing_blobs, [blob_digest(base_model())]);
    again.stop().await;
}
