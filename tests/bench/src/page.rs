//! `florin-bench page`: the page in a browser, and its cost for a coordinator with a thousand viewers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use florin::open_files;
use florin_coordinator::page;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

use super::Measurement;
use super::round;
use super::server::market::BenchMarket;

/// Viewers whose streams are open.
const VIEWERS: usize = 1_000;
/// Markets that are played with viewers, and as many without, in turn.
const PAIRS: usize = 64;
/// The quantile of Student's distribution for an interval of 95 % of the mean of the pairs.
const STUDENT_T: f64 = 1.998;
/// How long a market without changes is measured: every stream ends and begins anew twice.
const IDLE: Duration = Duration::from_secs(65);
/// Requests for the cost of one.
const REQUESTS: usize = 2_000;
/// Stages of a round, after each of which a viewer's page fetches the task and its money again.
const STAGES: f64 = 6.0;
/// Length of a round of an ordinary task, in seconds.
const ROUND_S: f64 = 60.0;
/// Timeout of a stream's read: longer than a stream.
const PATIENCE: Duration = Duration::from_secs(40);

/// The times that the browser measured, in milliseconds.
#[derive(Deserialize)]
struct BrowserTimes {
    paint: f64,
    market: f64,
    task: f64,
    all: f64,
    frame: f64,
}

pub(super) fn run() -> anyhow::Result<Vec<Measurement>> {
    open_files::raise_limit(4 * VIEWERS)?;
    let kib = |bytes: usize| bytes as f64 / 1_000.0;
    let (files, module) = page::transfer_bytes();
    let mut rows = vec![
        Measurement::at_most("files of the page, compressed", kib(files), "KB", 200.0),
        Measurement::plain("  the WebAssembly, compressed", kib(module), "KB"),
    ];
    rows.extend(browser()?);
    rows.extend(viewers()?);
    Ok(rows)
}

/// The times in a browser; no row where there is none.
fn browser() -> anyhow::Result<Vec<Measurement>> {
    let scripts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../page");
    ensure!(scripts.join("node_modules").is_dir(), "run `cargo xtask setup` first");
    let market = BenchMarket::open_with(0, &[], "")?;
    let output = Command::new("node")
        .current_dir(&scripts)
        .args(["measure.mjs", &market.url])
        .output()
        .context("node runs the browser")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if text.starts_with("SKIPPED") {
        eprintln!("{}", text.trim());
        return Ok(Vec::new());
    }
    ensure!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let times: BrowserTimes = serde_json::from_str(text.trim())?;
    Ok(vec![
        Measurement::at_most("first paint of the market, median", times.paint, "ms", 500.0),
        Measurement::at_most("  its view is drawn with its data", times.market, "ms", 500.0),
        Measurement::at_most(
            "a task of 1,000 rounds and 100 members, its last 40 drawn",
            times.task,
            "ms",
            500.0,
        ),
        Measurement::at_most("  all 1,000 drawn", times.all, "ms", 500.0),
        Measurement::at_most(
            "  a frame while it scrolls, 95th percentile",
            times.frame,
            "ms",
            50.0,
        ),
    ])
}

/// Streams of events that are open until this is dropped.
struct Viewers {
    is_over: Arc<AtomicBool>,
    _runtime: Runtime,
}

impl Drop for Viewers {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

impl Viewers {
    fn open(url: &str) -> anyhow::Result<Self> {
        let address: SocketAddr = url.strip_prefix("http://").context("an address")?.parse()?;
        // The readers of a real market have processors of their own: here they wait for those of the market.
        let yielding = || {
            let _ = rustix::process::setpriority_process(None, 19);
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .on_thread_start(yielding)
            .enable_all()
            .build()?;
        let (is_over, open) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..VIEWERS {
            let (is_over, open) = (Arc::clone(&is_over), Arc::clone(&open));
            runtime.spawn(async move {
                while !is_over.load(Ordering::SeqCst) {
                    let _ = read_stream(address, &open).await;
                    sleep(Duration::from_millis(50)).await;
                }
            });
        }
        let begun = Instant::now();
        while open.load(Ordering::SeqCst) < VIEWERS {
            ensure!(begun.elapsed() < PATIENCE, "not all streams are open");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { is_over, _runtime: runtime })
    }
}

/// Reads one stream to its end.
async fn read_stream(address: SocketAddr, open: &AtomicUsize) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(
            b"GET /v1/events?wait_ms=30000 HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n",
        )
        .await?;
    let (mut bytes, mut is_first) = (vec![0; 4_096], true);
    while timeout(PATIENCE, stream.read(&mut bytes)).await?? > 0 {
        if is_first {
            open.fetch_add(1, Ordering::SeqCst);
            is_first = false;
        }
    }
    Ok(())
}

/// Processor time of the coordinator with viewers, and the length of rounds beside them.
fn viewers() -> anyhow::Result<Vec<Measurement>> {
    let settings = format!("connections_per_address_max = {}\n", 2 * VIEWERS);
    let idle = {
        let market = BenchMarket::open_with(0, &[], &settings)?;
        let _viewers = Viewers::open(&market.url)?;
        let before = market.usage()?.cpu;
        std::thread::sleep(IDLE);
        (market.usage()?.cpu - before).as_secs_f64() / IDLE.as_secs_f64()
    };
    let (mut with, mut without) = (Played::default(), Played::default());
    for pair in 0..PAIRS {
        // Each goes first as often as the other.
        for watched in [pair % 2 == 0, pair % 2 == 1] {
            if watched { with.play(&settings, true)? } else { without.play(&settings, false)? }
        }
        eprintln!("{} of {PAIRS} pairs of markets", pair + 1);
    }
    let alone = mean(&without.medians);
    let (longer, half) = mean_of_differences(&with.medians, &without.medians);
    let share = (with.cpu_s / with.wall_s - without.cpu_s / without.wall_s).max(0.0);
    let fetches = fetches(&settings)?;
    Ok(vec![
        Measurement::at_most("1,000 streams without a change: of a core", 100.0 * idle, "%", 5.0),
        Measurement::plain(
            "1,000 streams beside rounds without a pause: of a core",
            100.0 * share,
            "%",
        ),
        Measurement::plain("  a round without viewers, mean of the markets' medians", alone, "ms"),
        Measurement::plain("  a round with them is longer by, mean of the pairs", longer, "ms"),
        Measurement::at_most("    the upper end of its interval of 95 %", longer + half, "ms", 1.0),
        Measurement::at_most(
            "1,000 viewers of a task with a round a minute, computed from single requests: of a core",
            100.0 * (fetches + idle),
            "%",
            5.0,
        ),
    ])
}

#[expect(clippy::cast_precision_loss, reason = "some pairs")]
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The mean of the differences of pairs, and half of its interval of 95 % (paired t).
#[expect(clippy::cast_precision_loss, reason = "some pairs")]
fn mean_of_differences(left: &[f64], right: &[f64]) -> (f64, f64) {
    let differences: Vec<f64> = left.iter().zip(right).map(|(left, right)| left - right).collect();
    let middle = mean(&differences);
    let squares: f64 = differences.iter().map(|one| (one - middle).powi(2)).sum();
    let n = differences.len() as f64;
    (middle, STUDENT_T * (squares / (n - 1.0) / n).sqrt())
}

/// Markets that were played.
#[derive(Default)]
struct Played {
    /// The median length of a round of each market, in milliseconds.
    medians: Vec<f64>,
    cpu_s: f64,
    wall_s: f64,
}

impl Played {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a round")]
    fn play(&mut self, settings: &str, watched: bool) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut before = Duration::ZERO;
        let (market, client, task) = round::play_with(None, settings, |market| {
            let viewers = if watched { Some(Viewers::open(&market.url)?) } else { None };
            before = market.usage()?.cpu;
            Ok(viewers)
        })?;
        self.cpu_s += (market.usage()?.cpu - before).as_secs_f64();
        self.wall_s += begun.elapsed().as_secs_f64();
        let lengths = round::lengths(&client, task)?;
        self.medians.push(lengths.get(lengths.len() / 2).copied().unwrap_or_default() as f64);
        Ok(())
    }
}

/// The part of a core that the fetches of 1,000 pages take, at a round a minute: after each stage the
/// task and its money, after a round its report, its offer and its line in the list of rounds.
#[expect(clippy::cast_precision_loss, reason = "thousands of requests")]
fn fetches(settings: &str) -> anyhow::Result<f64> {
    let (market, _client, task) = round::play_with(None, settings, |_| Ok(()))?;
    let query = format!("{{\"task\":{{\"task\":\"{task}\"}}}}");
    let agent = ureq::Agent::new_with_defaults();
    let cost = |request: &dyn Fn() -> anyhow::Result<()>| -> anyhow::Result<f64> {
        let before = market.usage()?.cpu;
        for _ in 0..REQUESTS {
            request()?;
        }
        Ok((market.usage()?.cpu - before).as_secs_f64() / REQUESTS as f64)
    };
    let get = |path: &str| -> anyhow::Result<()> {
        agent.get(format!("{}/v1/{path}", market.url)).call()?.body_mut().read_to_vec()?;
        Ok(())
    };
    let view = cost(&|| get(&format!("tasks/{task}")))?;
    let report = cost(&|| get(&format!("tasks/{task}/rounds/3/report")))?;
    let offer = cost(&|| get(&format!("tasks/{task}/rounds/3/offer")))?;
    let line = cost(&|| get(&format!("tasks/{task}/rounds?from=3")))?;
    let ledger = cost(&|| {
        let request = agent.post(format!("{}/v1/ledger", market.url));
        request.content_type("application/json").send(&query)?.body_mut().read_to_vec()?;
        Ok(())
    })?;
    Ok(VIEWERS as f64 * (STAGES * (view + ledger) + report + offer + line) / ROUND_S)
}
