//! HTTP/2 is opt-in, runs over TLS, and has the same limits as HTTP/1.1.

use std::path::Path;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::Request;
use florin_coordinator::Config;
use h2::client::SendRequest;
use tokio::task::JoinHandle;

use crate::connection_limits::{TestServer, serve, within_timeout};
use crate::tls::{self_signed, tls_handshake_with_alpn, wait_for_certificate};

async fn open(folder: &Path, change: impl FnOnce(&mut Config)) -> TestServer {
    let server = serve(folder, |config| {
        self_signed(config);
        config.http2.enabled = true;
        (config.header_ms, config.idle_ms, config.stall_ms) = (1_000, 1_000, 1_000);
        change(config);
    })
    .await;
    wait_for_certificate(folder).await;
    server
}

/// A client with a flow-control window of `window` bytes per stream, and the task of its
/// connection.
async fn connect(
    server: &TestServer,
    folder: &Path,
    window: u32,
) -> (SendRequest<Bytes>, h2::PingPong, JoinHandle<()>) {
    let stream = tls_handshake_with_alpn(server, folder, "localhost", &["h2"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window);
    let (client, mut connection) = within_timeout(builder.handshake(stream)).await.unwrap();
    let pings = connection.ping_pong().unwrap();
    let ended = tokio::spawn(async move {
        // An error is an end too.
        let _ = connection.await;
    });
    (client, pings, ended)
}

fn health() -> Request<()> {
    Request::get("https://localhost/v1/health").body(()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_is_offered_only_if_enabled() {
    for enabled in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let server = open(dir.path(), |config| config.http2.enabled = enabled).await;
        let both = ["h2", "http/1.1"];
        let stream =
            tls_handshake_with_alpn(&server, dir.path(), "localhost", &both).await.unwrap();
        let agreed = if enabled { &b"h2"[..] } else { b"http/1.1" };
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(agreed));
        drop(stream);
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_share_a_connection_and_pings_do_not_prevent_its_idle_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path(), |_| {}).await;
    let (mut client, mut pings, ended) = connect(&server, dir.path(), 65_535).await;
    for _ in 0..3 {
        client = within_timeout(client.ready()).await.unwrap();
        let (answer, _) = client.send_request(health(), true).unwrap();
        assert_eq!(within_timeout(answer).await.unwrap().status(), 200);
    }
    let alive = async {
        while within_timeout(pings.ping(h2::Ping::opaque())).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within_timeout(alive).await;
    within_timeout(ended).await.unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_response_stream_ends_its_connection() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path(), |config| config.idle_ms = 600_000).await;
    let (client, mut pings, ended) = connect(&server, dir.path(), 0).await;
    let mut client = within_timeout(client.ready()).await.unwrap();
    let (answer, _) = client.send_request(health(), true).unwrap();
    let answer = within_timeout(answer).await.unwrap();
    assert_eq!(answer.status(), 200);
    // The stream's window is zero, so its body stalls while the connection moves.
    let alive = async {
        while within_timeout(pings.ping(h2::Ping::opaque())).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within_timeout(alive).await;
    within_timeout(ended).await.unwrap();
    drop(answer);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_above_the_limit_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path(), |_| {}).await;
    let (client, _, ended) = connect(&server, dir.path(), 65_535).await;
    let mut client = within_timeout(client.ready()).await.unwrap();
    let mut request = health();
    request.headers_mut().insert("x", "y".repeat(100_000).parse().unwrap());
    let refused = match client.send_request(request, true) {
        Ok((answer, _)) => within_timeout(answer).await.map(|answer| answer.status()),
        Err(error) => Err(error),
    };
    assert!(refused.as_ref().is_err() || *refused.as_ref().unwrap() == 431, "{refused:?}");
    drop(client);
    within_timeout(ended).await.unwrap();
    server.stop().await;
}
