//! Connection limits and timeouts on loopback sockets: slow clients, idle clients, too many
//! clients, and shutdown.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use florin_coordinator::host::ManualClock;
use florin_coordinator::{Config, HostParts, RunError, run};
use florin_protocol::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::*;
use crate::test_coordinator::{digits_spec, work_valuer};

pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), RunError>>,
}

pub(crate) async fn serve(folder: &Path, change: impl FnOnce(&mut Config)) -> TestServer {
    let ledger = Arc::new(FakeLedger::default());
    ledger.open(&spec());
    ledger.open(&digits_spec());
    let parts = HostParts {
        ledger,
        wallet: Arc::new(SeededWallet::number(COORDINATOR)),
        node: node(COORDINATOR),
        valuers: vec![work_valuer()],
        clock: Arc::new(ManualClock::new(Timestamp(1_000))),
        ledger_endpoint: echo(),
        ledger_copier: None,
    };
    let listener = florin_coordinator::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let mut config = Config::new(address, folder.to_owned());
    config.arbiters = vec![crate::support::address(ARBITER)];
    config.header_ms = 300;
    config.idle_ms = 300;
    config.body_ms = 300;
    change(&mut config);
    let (stop, stopped) = oneshot::channel();
    let ended = tokio::spawn(async move {
        let shutdown = async {
            let _ = stopped.await;
        };
        run(&config, listener, shutdown, parts).await
    });
    TestServer { address, stop, ended }
}

impl TestServer {
    pub(crate) async fn stop(self) {
        within_timeout(self.begin_shutdown()).await.unwrap().unwrap();
    }

    /// Begins the shutdown; the returned task ends with the server.
    pub(crate) fn begin_shutdown(self) -> JoinHandle<Result<(), RunError>> {
        self.stop.send(()).unwrap();
        self.ended
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

pub(crate) async fn within_timeout<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("done within a minute")
}

/// Reads until the server closes the connection.
pub(crate) async fn read_until_close(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset is an end too.
    let _ = within_timeout(stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

pub(crate) async fn ask_health(stream: &mut TcpStream) -> String {
    stream.write_all(b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = vec![0; 1_024];
    let n = within_timeout(stream.read(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer[..n]).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_and_idle_clients_and_incomplete_headers_time_out() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |_| {}).await;
    let mut silent = server.connect().await;
    let mut half = server.connect().await;
    half.write_all(b"GET /v1/health HTTP/1.1\r\nho").await.unwrap();
    let mut idle = server.connect().await;
    assert!(ask_health(&mut idle).await.contains("200 OK"));
    read_until_close(&mut silent).await;
    read_until_close(&mut half).await;
    read_until_close(&mut idle).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_body_gets_a_400_and_the_connection_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |_| {}).await;
    let mut slow = server.connect().await;
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{";
    slow.write_all(head.as_bytes()).await.unwrap();
    let answer = read_until_close(&mut slow).await;
    assert!(answer.contains("400 Bad Request") && answer.contains("TRUNCATED"), "{answer}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_above_the_limit_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |_| {}).await;
    let mut client = server.connect().await;
    let head = format!("GET /v1/health HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(200_000));
    let _ = client.write_all(head.as_bytes()).await;
    let answer = read_until_close(&mut client).await;
    assert!(answer.is_empty() || answer.contains("431"), "{answer}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_per_address_are_limited_and_released_on_close() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |config| {
        config.connections_per_address_max = 2;
        config.header_ms = 60_000;
    })
    .await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    assert!(ask_health(&mut first).await.contains("200 OK"));
    assert!(ask_health(&mut second).await.contains("200 OK"));
    let mut third = server.connect().await;
    assert_eq!(read_until_close(&mut third).await, "");
    drop(first);
    let again = async {
        loop {
            let mut stream = server.connect().await;
            let _ = stream.write_all(b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n").await;
            let mut answer = [0; 64];
            if let Ok(1..) = stream.read(&mut answer).await {
                return;
            }
        }
    };
    within_timeout(again).await;
    drop(second);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_above_the_limit_wait_until_one_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |config| config.connections_max = 1).await;
    let _held = server.connect().await;
    let mut waits = server.connect().await;
    // The first connection is silent and times out; then the second is served.
    assert!(ask_health(&mut waits).await.contains("200 OK"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_silent_connection_is_evicted_at_the_connection_limit() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |config| {
        config.connections_max = 4;
        (config.header_ms, config.idle_ms) = (60_000, 600_000);
    })
    .await;
    let mut served = server.connect().await;
    assert!(ask_health(&mut served).await.contains("200 OK"));
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(server.connect().await);
    }
    // No timeout expires within a minute, but there is room: the first silent connection is
    // evicted.
    let mut honest = server.connect().await;
    assert!(ask_health(&mut honest).await.contains("200 OK"));
    assert_eq!(read_until_close(&mut silent[0]).await, "");
    // No other connection is evicted, and connections that have sent a request are evicted last.
    assert!(ask_health(&mut served).await.contains("200 OK"));
    for stream in &mut silent[1..] {
        stream.write_all(b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert_eq!(within_timeout(stream.read(&mut [0; 12])).await.unwrap(), 12);
    }
    server.stop().await;
}

#[cfg(target_os = "linux")] // Elsewhere loopback has only one address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_at_its_limit_does_not_block_other_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |config| {
        config.connections_per_address_max = 2;
        config.header_ms = 60_000;
    })
    .await;
    let _held = (server.connect().await, server.connect().await);
    let mut third = server.connect().await;
    assert_eq!(read_until_close(&mut third).await, "");
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = socket.connect(server.address).await.unwrap();
    assert!(ask_health(&mut other).await.contains("200 OK"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_closes_connections_and_releases_the_data_folder() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |config| config.header_ms = 60_000).await;
    let mut client = server.connect().await;
    assert!(ask_health(&mut client).await.contains("200 OK"));
    let address = server.address;
    server.stop().await;
    assert_eq!(read_until_close(&mut client).await, "");
    assert!(TcpStream::connect(address).await.is_err());
    florin_coordinator::DataFolder::open(dir.path()).unwrap();
}
