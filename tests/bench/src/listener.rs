//! `florin-bench listener`: latency of honest requests beside thousands of slow connections, and
//! the lifetime of those connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Measurement;
use super::server::market::BenchMarket;
use florin::open_files;

/// Duration of the measurement, after all bad connections are open.
const MEASURED: Duration = Duration::from_secs(20);
/// The coordinator's timeout for request heads, idle connections and slow bodies.
const LIMIT: Duration = Duration::from_secs(5);
/// Interval between two bytes of a dribbling client.
const DRIBBLE: Duration = Duration::from_millis(500);
/// Interval between the starts of two bad connections.
const BETWEEN: Duration = Duration::from_millis(1);
/// Number of concurrent honest clients; half of them use keep-alive.
const HONEST: usize = 8;
/// Pause of an honest client between two requests.
const PAUSE: Duration = Duration::from_millis(25);
/// Timeout of any response or close.
const PATIENCE: Duration = Duration::from_secs(60);

const ASK: &[u8] = b"GET /v1/market HTTP/1.1\r\nhost: bench\r\n\r\n";

/// The bytes that a bad client sends first, and the bytes that it repeats.
const KINDS: [(&str, &[u8], &[u8]); 4] = [
    ("silent", b"", b""),
    ("dribbled head", b"GET /v1/market HTTP/1.1\r\nx: ", b"y"),
    ("dribbled body", b"POST /v1/registrations HTTP/1.1\r\ncontent-length: 60000\r\n\r\n", b" "),
    ("idle", ASK, b""),
];

/// The state that all clients share.
struct LoadState {
    address: SocketAddr,
    over: AtomicBool,
    /// Number of open bad connections.
    open: AtomicUsize,
}

pub(super) fn run(connections: u32) -> anyhow::Result<Vec<Measurement>> {
    let connections = usize::try_from(connections)?;
    open_files::raise_limit(connections.saturating_add(HONEST))?;
    // Half as many again, because closed connections may still be counted when their successors
    // connect.
    let (places, ms) = ((connections / 2).saturating_add(connections + 1_000), LIMIT.as_millis());
    let settings = format!(
        "connections_max = {places}\nconnections_per_address_max = {places}\nheader_ms = {ms}\n\
         idle_ms = {ms}\nbody_ms = {ms}\nstall_ms = {ms}\n"
    );
    let market = BenchMarket::open_with(0, &[], &settings)?;
    let address = market.url.strip_prefix("http://").context("an address")?.parse()?;
    let storm = LoadState { address, over: AtomicBool::new(false), open: AtomicUsize::new(0) };
    let before = market.usage()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (mut honest, lives, held) = runtime.block_on(measure(Arc::new(storm), connections))?;
    let after = market.usage()?;
    honest.sort_unstable();
    let at = |share: usize| honest.get(honest.len() * share / 1_000).copied().unwrap_or_default();
    let mut rows = vec![
        Measurement::at_least(
            "concurrent bad connections, minimum",
            count(held),
            "",
            count(connections) * 0.9,
        ),
        Measurement::plain("honest requests answered", count(honest.len()), ""),
        Measurement::plain("  median", ms_of(at(500)), "ms"),
        Measurement::below("  99th percentile", ms_of(at(990)), "ms", 250.0),
        Measurement::plain("  slowest", ms_of(at(999)), "ms"),
    ];
    for (kind, (name, ..)) in KINDS.iter().enumerate() {
        let of_kind = || lives.iter().filter(|life| life.0 == kind).map(|life| life.1);
        let name = format!("lifetime, {name}, longest of {}", of_kind().count());
        let longest = of_kind().max().unwrap_or(PATIENCE).as_secs_f64();
        rows.push(Measurement::at_most(name, longest, "s", LIMIT.as_secs_f64() + 1.0));
    }
    let cpu = after.cpu.saturating_sub(before.cpu).as_secs_f64();
    rows.extend([
        Measurement::plain("server's processor time", cpu, "s"),
        Measurement::below("server's peak memory", after.peak_mib, "MiB", 512.0),
    ]);
    Ok(rows)
}

/// The kind of a bad connection, and its lifetime.
type Life = (usize, Duration);

/// Returns the latencies of honest requests, the lifetimes of bad connections, and the minimum
/// number of concurrent ones.
async fn measure(
    storm: Arc<LoadState>,
    connections: usize,
) -> anyhow::Result<(Vec<Duration>, Vec<Life>, usize)> {
    let mut bad = JoinSet::new();
    for number in 0..connections {
        bad.spawn(run_bad_client(Arc::clone(&storm), number % KINDS.len()));
        // Stay within the system's listen backlog; otherwise it drops connections that this side
        // believes to be open.
        sleep(BETWEEN).await;
    }
    let begun = Instant::now();
    while storm.open.load(Ordering::Relaxed) < connections * 19 / 20 {
        ensure!(begun.elapsed() < PATIENCE, "the bad connections could not all be opened");
        sleep(PAUSE).await;
    }
    let mut honest = JoinSet::new();
    for number in 0..HONEST {
        honest.spawn(run_honest_client(Arc::clone(&storm), number % 2 == 0));
    }
    let (begun, mut held) = (Instant::now(), connections);
    while begun.elapsed() < MEASURED {
        held = held.min(storm.open.load(Ordering::Relaxed));
        sleep(PAUSE).await;
    }
    storm.over.store(true, Ordering::Relaxed);
    let (mut times, mut lives) = (Vec::new(), Vec::new());
    while let Some(mine) = honest.join_next().await {
        times.extend(mine??);
    }
    while let Some(mine) = bad.join_next().await {
        lives.extend(mine??);
    }
    Ok((times, lives, held))
}

/// Opens one bad connection after the other, until the measurement is over.
async fn run_bad_client(storm: Arc<LoadState>, kind: usize) -> anyhow::Result<Vec<Life>> {
    let (_, first, then) = KINDS.get(kind).context("a kind")?;
    let mut lives = Vec::new();
    while !storm.over.load(Ordering::Relaxed) {
        let mut stream = timeout(PATIENCE, TcpStream::connect(storm.address)).await??;
        let begun = Instant::now();
        storm.open.fetch_add(1, Ordering::Relaxed);
        let (mut read, mut write) = stream.split();
        let dribble = async {
            let mut fine = write.write_all(first).await.is_ok();
            while fine && !then.is_empty() {
                sleep(DRIBBLE).await;
                fine = write.write_all(then).await.is_ok();
            }
            std::future::pending::<()>().await;
        };
        let mut answer = Vec::new();
        let ended = async {
            tokio::select! {
                // A reset also counts as a close.
                _ = read.read_to_end(&mut answer) => {}
                () = dribble => {}
            }
        };
        timeout(PATIENCE, ended).await.context("a bad connection was not closed")?;
        storm.open.fetch_sub(1, Ordering::Relaxed);
        lives.push((kind, begun.elapsed()));
    }
    Ok(lives)
}

/// An honest client, with or without keep-alive; the time to connect counts.
async fn run_honest_client(
    storm: Arc<LoadState>,
    keep_alive: bool,
) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::new();
    let mut connection: Option<TcpStream> = None;
    while !storm.over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => timeout(PATIENCE, TcpStream::connect(storm.address)).await??,
        };
        stream.write_all(ASK).await?;
        let mut answer = [0; 4_096];
        let n = timeout(PATIENCE, stream.read(&mut answer)).await??;
        times.push(begun.elapsed());
        let fine = answer.get(..n).is_some_and(|response| response.starts_with(b"HTTP/1.1 200"));
        ensure!(fine, "an honest request failed");
        connection = keep_alive.then_some(stream);
        sleep(PAUSE).await;
    }
    Ok(times)
}

fn count(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}

fn ms_of(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}
