//! A thousand viewers: their streams' cost for a coordinator, and for the rounds beside them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context, ensure};
use florin::open_files;
use florin_learning::mean;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

use crate::Measurement;
use crate::round;
use crate::server::market::BenchMarket;

/// Viewers whose streams are open.
const VIEWERS: usize = 1_000;
/// Markets whose rounds are measured.
const MARKETS: usize = 32;
/// Pairs of blocks of one market: one block with viewers, one without.
const PAIRS: usize = 5;
/// Rounds of one market: more than its blocks need, and as many as its holdout has rows for.
const ROUNDS: u32 = 375;
/// Length of a block.
const BLOCK: Duration = Duration::from_millis(1_500);
/// Pause after streams opened or ended, before a block begins.
const SETTLE: Duration = Duration::from_millis(300);
/// Fewest whole rounds of a block that counts.
const BLOCK_ROUNDS_MIN: usize = 5;
/// Rounds of a market before the first block.
const WARM_UP: u32 = 20;
/// The quantile of Student's distribution for an interval of 95 % of the mean of all pairs.
const STUDENT_T: f64 = 1.975;
/// How long a market without changes is measured: every stream ends and begins anew twice.
const IDLE: Duration = Duration::from_secs(65);
/// Requests for the cost of one.
const REQUESTS: usize = 2_000;
/// Stages of a round, after each of which a viewer's page fetches the task again.
const STAGES: f64 = 6.0;
/// How often a viewer's page fetches the task's money in a round: with its report, and when that is final.
const SETTLEMENTS: f64 = 2.0;
/// Length of a round of an ordinary task, in seconds.
const ROUND_S: f64 = 60.0;
/// Timeout of a stream's read: longer than a stream.
const PATIENCE: Duration = Duration::from_secs(40);

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
pub(super) fn measure() -> anyhow::Result<Vec<Measurement>> {
    open_files::raise_limit(4 * VIEWERS)?;
    let settings = format!("connections_per_address_max = {}\n", 2 * VIEWERS);
    let idle = {
        let market = BenchMarket::open_with(0, &[], &settings)?;
        let _viewers = Viewers::open(&market.url)?;
        let before = market.usage()?.cpu;
        std::thread::sleep(IDLE);
        (market.usage()?.cpu - before).as_secs_f64() / IDLE.as_secs_f64()
    };
    let mut pairs = Vec::new();
    for at in 0..MARKETS {
        pairs.extend(pairs_of_market(&settings)?);
        eprintln!("{} of {MARKETS} markets", at + 1);
    }
    let alone: Vec<f64> = pairs.iter().map(|pair| pair.alone.round_ms).collect();
    let longer = |value: fn(&Block) -> f64| {
        let difference = |pair: &Pair| value(&pair.watched) - value(&pair.alone);
        mean_interval(&pairs.iter().map(difference).collect::<Vec<f64>>())
    };
    let (round, round_half) = longer(|block| block.round_ms);
    let (work, work_half) = longer(|block| block.cpu_ms);
    let fetches = fetches(&settings)?;
    Ok(vec![
        Measurement::at_most("1,000 streams without a change: of a core", 100.0 * idle, "%", 5.0),
        Measurement::plain("a round without viewers", mean(&alone), "ms"),
        Measurement::plain(
            "  beside 1,000 streams it is longer by, mean of the pairs",
            round,
            "ms",
        ),
        Measurement::at_most(
            "    the upper end of its interval of 95 %",
            round + round_half,
            "ms",
            1.0,
        ),
        Measurement::plain("  the coordinator's processor time for it is longer by", work, "ms"),
        Measurement::at_most(
            "    the upper end of its interval of 95 %",
            work + work_half,
            "ms",
            1.0,
        ),
        Measurement::at_most(
            "1,000 viewers of a task with a round a minute, computed from single requests: of a core",
            100.0 * (fetches + idle),
            "%",
            5.0,
        ),
    ])
}

/// Rounds of one market, one after the other, with or without viewers.
#[derive(Clone, Copy)]
struct Block {
    /// Mean length of a round, in milliseconds.
    round_ms: f64,
    /// Processor time of the coordinator for a round, in milliseconds.
    cpu_ms: f64,
}

/// Two blocks, neighbours in time.
struct Pair {
    watched: Block,
    alone: Block,
}

/// A block while its rounds are not known.
struct Span {
    /// Since the Unix epoch.
    begun: Duration,
    ended: Duration,
    cpu: Duration,
}

impl Span {
    /// The block, from the times at which the market's rounds were opened.
    fn block(&self, opened: &[Duration]) -> anyhow::Result<Block> {
        let inside: Vec<Duration> =
            opened.iter().copied().filter(|at| (self.begun..self.ended).contains(at)).collect();
        let lengths: Vec<f64> =
            inside.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1_000.0).collect();
        let rounds = lengths.len();
        ensure!(rounds >= BLOCK_ROUNDS_MIN, "a block has {rounds} whole rounds: the market stalls");
        let round_ms = mean(&lengths);
        let share = self.cpu.as_secs_f64() / (self.ended - self.begun).as_secs_f64();
        Ok(Block { round_ms, cpu_ms: share * round_ms })
    }
}

/// Pairs of blocks of a new market.
///
/// The rounds of one market differ less than those of two, and what changes slowly cancels within a
/// pair. Each kind goes first as often as the other.
fn pairs_of_market(settings: &str) -> anyhow::Result<Vec<Pair>> {
    let (market, client, task) = round::start(None, settings, ROUNDS)?;
    round::wait_for(&client, task, |view| view.round.0 > WARM_UP)?;
    let span = |watched: bool| -> anyhow::Result<Span> {
        let _viewers = if watched { Some(Viewers::open(&market.url)?) } else { None };
        std::thread::sleep(SETTLE);
        let (begun, before) = (UNIX_EPOCH.elapsed()?, market.usage()?.cpu);
        std::thread::sleep(BLOCK);
        Ok(Span { begun, ended: UNIX_EPOCH.elapsed()?, cpu: market.usage()?.cpu - before })
    };
    let mut spans = Vec::new();
    for pair in 0..PAIRS {
        let is_watched_first = pair % 2 == 0;
        let (first, second) = (span(is_watched_first)?, span(!is_watched_first)?);
        spans.push(if is_watched_first { (first, second) } else { (second, first) });
    }
    let opened = round::opened(&client, task, client.task(task)?.round.0)?;
    let opened: Vec<Duration> = opened.into_iter().map(Duration::from_millis).collect();
    let blocks = |(watched, alone): &(Span, Span)| -> anyhow::Result<Pair> {
        Ok(Pair { watched: watched.block(&opened)?, alone: alone.block(&opened)? })
    };
    spans.iter().map(blocks).collect()
}

/// The mean of independent values, and half of its interval of 95 % (Student's t).
#[expect(clippy::cast_precision_loss, reason = "some pairs")]
fn mean_interval(values: &[f64]) -> (f64, f64) {
    let middle = mean(values);
    let squares: f64 = values.iter().map(|one| (one - middle).powi(2)).sum();
    let n = values.len() as f64;
    (middle, STUDENT_T * (squares / (n - 1.0) / n).sqrt())
}

/// The part of a core that the fetches of 1,000 pages take, at a round a minute: after each stage the
/// task, after a round its report, its offer and its line in the list of rounds, and its money twice.
#[expect(clippy::cast_precision_loss, reason = "thousands of requests")]
fn fetches(settings: &str) -> anyhow::Result<f64> {
    let (market, _client, task) = round::play_with(None, settings)?;
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
    Ok(VIEWERS as f64 * (STAGES * view + SETTLEMENTS * ledger + report + offer + line) / ROUND_S)
}
