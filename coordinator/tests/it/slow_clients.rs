//! Hundreds of slow or malformed connections at once: each is closed, and honest requests are
//! served meanwhile.
//!
//! `FLORIN_SLOW_CLIENTS=2000` sets the number of connections. `cargo xtask bench listener` measures
//! times; this test only checks that every connection ends and that no honest request is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::connection_limits::{TestServer, ask_health, serve, within_timeout};

/// Pause between two bytes of a slow client: far shorter than any timeout.
const DRIBBLE: Duration = Duration::from_millis(50);
/// Longest life of a bad connection; its timeouts are a second or two.
const CONNECTION_LIFE_MAX: Duration = Duration::from_secs(60);

/// A bad client: its first bytes, the bytes that it then repeats, and how it sends them.
struct BadClient {
    name: &'static str,
    first: Vec<u8>,
    then: Vec<u8>,
    how: SendMode,
    /// A part of the expected response, if there is one.
    answer: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
enum SendMode {
    /// Repeats the rest slowly.
    Dribble,
    /// Repeats the rest as fast as possible, without reading.
    Flood,
    /// Sends no more bytes, and reads.
    Silence,
    /// Half-closes the connection.
    Close,
}

const ASK: &str = "GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n";

fn bad_clients() -> Vec<BadClient> {
    let head = "GET /v1/health HTTP/1.1\r\nhost: x\r\nx-slow: ";
    let post = |how: &str| format!("POST /v1/registrations HTTP/1.1\r\nhost: x\r\n{how}\r\n\r\n");
    let sized = |bytes: u64| post(&format!("content-length: {bytes}"));
    let chunked = post("transfer-encoding: chunked");
    let many: String = (0..150).map(|n| format!("x-{n}: y\r\n")).collect();
    let table: [(&str, String, &str, SendMode, &str); 19] = [
        ("sends nothing", String::new(), "", SendMode::Silence, ""),
        ("dribbles a head", head.to_owned(), "y", SendMode::Dribble, ""),
        ("stops within a head", head.to_owned(), "", SendMode::Silence, ""),
        ("half-closes within a head", head.to_owned(), "", SendMode::Close, ""),
        ("dribbles a body", sized(50_000), " ", SendMode::Dribble, "TRUNCATED"),
        ("sends no body", sized(50_000), "", SendMode::Silence, "TRUNCATED"),
        ("half-closes within a body", sized(50_000), "{", SendMode::Close, ""),
        ("dribbles chunks", chunked.clone(), "1\r\n \r\n", SendMode::Dribble, "TRUNCATED"),
        ("sends a malformed chunk", chunked, "zz\r\n", SendMode::Silence, "MALFORMED"),
        ("is idle after a request", ASK.to_owned(), "", SendMode::Silence, "200 OK"),
        ("half-closes after a request", ASK.to_owned(), "", SendMode::Close, ""),
        ("never reads a response", ASK.repeat(1_000), ASK, SendMode::Flood, ""),
        ("sends a huge head", head.to_owned(), "yyyyyyyyyyyyyyyy", SendMode::Flood, "431"),
        (
            "sends many headers",
            format!("GET / HTTP/1.1\r\n{many}\r\n"),
            "",
            SendMode::Silence,
            "431",
        ),
        ("announces an exabyte", sized(1 << 60), " ", SendMode::Dribble, "413"),
        ("announces a large body", sized(1 << 20), " ", SendMode::Dribble, "413"),
        (
            "speaks HTTP/2",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
            "\0",
            SendMode::Dribble,
            "",
        ),
        ("ends no line", "a".to_owned(), "a", SendMode::Flood, ""),
        (
            "has a bad version",
            "GET http:// HTTP/9.9\r\n\r\n".to_owned(),
            "",
            SendMode::Silence,
            "400",
        ),
    ];
    let text = table.map(|(name, first, then, how, answer)| BadClient {
        name,
        first: first.into_bytes(),
        then: then.into(),
        how,
        answer,
    });
    let noise: Vec<u8> =
        (0..4_096u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec();
    let bytes = [
        ("sends noise", noise, SendMode::Silence),
        ("greets in TLS", hello.clone(), SendMode::Silence),
        ("dribbles a greeting in TLS", hello, SendMode::Dribble),
    ];
    let bytes =
        bytes.map(|(name, first, how)| BadClient { name, first, then: vec![1], how, answer: "" });
    text.into_iter().chain(bytes).collect()
}

/// Runs a bad client until the server has closed the connection; returns the response.
async fn run_bad_client(bad: &BadClient, mut stream: TcpStream) -> String {
    // A write that fails is an end too, but an earlier response can still be read.
    let _ = stream.write_all(&bad.first).await;
    let mut answer = Vec::new();
    match bad.how {
        SendMode::Flood => while stream.write_all(&bad.then).await.is_ok() {},
        SendMode::Close => {
            let _ = stream.write_all(&bad.then).await;
            let _ = stream.shutdown().await;
        }
        SendMode::Silence => {
            let _ = stream.write_all(&bad.then).await;
        }
        SendMode::Dribble => {
            let (mut read, mut write) = stream.split();
            let dribble = async {
                while write.write_all(&bad.then).await.is_ok() {
                    tokio::time::sleep(DRIBBLE).await;
                }
            };
            tokio::select! {
                _ = read.read_to_end(&mut answer) => {}
                () = dribble => {}
            }
        }
    }
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn connections() -> usize {
    std::env::var("FLORIN_SLOW_CLIENTS").map_or(330, |text| text.parse().unwrap())
}

/// Sends honest requests, each on its own connection, while bad connections are left; returns their
/// number.
async fn send_honest_requests(server: Arc<TestServer>, bad_left: Arc<AtomicUsize>) -> usize {
    let mut asked = 0;
    while bad_left.load(Ordering::SeqCst) > 0 {
        let mut stream = server.connect().await;
        let answer = ask_health(&mut stream).await;
        assert!(answer.contains("200 OK"), "{answer}");
        asked += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    asked
}

/// Opens all bad connections and waits for their ends; meanwhile at least `honest_min` honest
/// requests must be served.
async fn run_bad_clients(
    server: TestServer,
    kinds: Vec<BadClient>,
    honest_min: usize,
) -> TestServer {
    let (server, kinds) = (Arc::new(server), Arc::new(kinds));
    let left = Arc::new(AtomicUsize::new(connections()));
    let asking = tokio::spawn(send_honest_requests(Arc::clone(&server), Arc::clone(&left)));
    let mut all = tokio::task::JoinSet::new();
    for number in 0..connections() {
        let (server, kinds, left) = (Arc::clone(&server), Arc::clone(&kinds), Arc::clone(&left));
        all.spawn(async move {
            let bad = &kinds[number % kinds.len()];
            let stream = within_timeout(server.connect()).await;
            let ended =
                tokio::time::timeout(CONNECTION_LIFE_MAX, run_bad_client(bad, stream)).await;
            left.fetch_sub(1, Ordering::SeqCst);
            let Ok(answer) = ended else {
                panic!(
                    "a client that {} is still connected after {CONNECTION_LIFE_MAX:?}",
                    bad.name
                );
            };
            // Bytes after a response may cause a reset, which discards the response.
            let reset = bad.how == SendMode::Flood || (bad.answer == "413" && answer.is_empty());
            let matches_expected = answer.contains(bad.answer) || reset;
            assert!(matches_expected, "a client that {} received {answer:?}", bad.name);
        });
    }
    while let Some(ended) = all.join_next().await {
        ended.unwrap();
    }
    let asked = asking.await.unwrap();
    assert!(asked >= honest_min, "only {asked} honest requests were served meanwhile");
    Arc::into_inner(server).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_connections_are_closed_while_honest_requests_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |config| {
        (config.header_ms, config.idle_ms) = (1_000, 1_000);
        (config.body_ms, config.stall_ms) = (1_000, 1_000);
        config.connections_per_address_max = connections() + 100;
        config.connections_max = connections() + 100;
    })
    .await;
    run_bad_clients(server, bad_clients(), 10).await.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn honest_requests_are_served_when_bad_connections_exceed_the_connection_limit() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |config| {
        (config.header_ms, config.idle_ms) = (1_000, 1_000);
        (config.body_ms, config.stall_ms) = (1_000, 1_000);
        config.connections_per_address_max = connections();
        config.connections_max = connections() / 5;
    })
    .await;
    // The last connection waits until those before it have been accepted and evicted.
    run_bad_clients(server, bad_clients(), 1).await.stop().await;
}
