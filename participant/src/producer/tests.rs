//! The feed: its two sides, its limits, and hostile producers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::thread;

use florin_learning::data::{ColumnEncoder, ColumnRole, FeatureEncoder, NumberScale};

use super::*;

/// Longer than any test takes: a wait ends by its condition.
const LONG: Duration = Duration::from_secs(60);

/// A clock that only the test moves.
#[derive(Clone, Debug, Default)]
pub(super) struct TestClock(Arc<Mutex<Duration>>);

impl TestClock {
    pub(super) fn pass(&self, seconds: u64) {
        *self.0.lock().unwrap() += Duration::from_secs(seconds);
    }

    pub(super) fn clock(&self) -> Clock {
        let time = Arc::clone(&self.0);
        Arc::new(move || *time.lock().unwrap())
    }
}

/// Two numbers `t` and `x`, and a label below 2.
pub(super) fn encoder() -> RowEncoder {
    let column = |name: &str| ColumnEncoder {
        name: name.to_owned(),
        role: ColumnRole::Numeric { scale: NumberScale::IDENTITY, missing_indicator: false },
    };
    RowEncoder {
        classes: 2,
        class_names: Vec::new(),
        features: FeatureEncoder::Columns(vec![column("t"), column("x")]),
        target: None,
    }
}

pub(super) fn settings(capacity: usize, rows_min: usize) -> FeedSettings {
    FeedSettings { capacity, rows_min, new_rows_min: 0, seed: 7 }
}

pub(super) fn exchange(capacity: usize, clock: &TestClock) -> Arc<Exchange> {
    let shape = RowShape { width: 2, classes: 2 };
    let reservoir = Reservoir::new(shape, capacity, 7).unwrap();
    Arc::new(Exchange::new(reservoir, clock.clock()))
}

fn rows(count: usize) -> Dataset {
    let features = (0..2 * count).map(|at| at as f32).collect();
    encoder().dataset(features, vec![1; count]).unwrap()
}

fn take(exchange: &Exchange, need: &FeedSettings) -> Dataset {
    exchange.take(need, SamplePurpose::Training, LONG).unwrap().unwrap()
}

#[test]
fn a_full_queue_blocks_the_producer_until_the_training_ends() {
    let clock = TestClock::default();
    let exchange = exchange(10_000, &clock);
    exchange.offer(rows(4)).unwrap();
    let need = settings(10_000, 4);
    assert_eq!(take(&exchange, &need).rows(), 4);
    // The training runs: rows fill the queue, and none of them enters the reservoir.
    for _ in 0..QUEUE_ROWS_MAX / 128 {
        exchange.offer(rows(128)).unwrap();
    }
    let counts = exchange.counts();
    assert_eq!((counts.rows_queued, counts.rows_seen), (QUEUE_ROWS_MAX as u64, 4));
    let other = Arc::clone(&exchange);
    let producer = thread::spawn(move || other.offer(rows(1)));
    exchange.wait_until(|sides| sides.producer);
    clock.pass(5);
    assert_eq!(exchange.counts().trainer_slow_ms, 5_000, "the wait goes on");
    exchange.resume();
    producer.join().unwrap().unwrap();
    let counts = exchange.counts();
    assert_eq!((counts.rows_queued, counts.rows_seen), (0, 4 + QUEUE_ROWS_MAX as u64 + 1));
    assert_eq!((counts.trainer_slow_ms, counts.producer_slow_ms), (5_000, 0));
}

#[test]
fn a_queue_is_bounded_in_numbers_too_and_one_batch_always_fits() {
    let clock = TestClock::default();
    let shape = RowShape { width: QUEUE_FEATURES_MAX / 16, classes: 1 };
    let reservoir = Reservoir::new(shape, 16, 7).unwrap();
    let exchange = Arc::new(Exchange::new(reservoir, clock.clock()));
    // Nine of the sixteen rows for which there is room.
    let numbers = 9 * shape.width;
    let wide = move || Dataset::new(vec![0.0; numbers], vec![0; 9], shape.width, 1).unwrap();
    exchange.offer(wide()).unwrap();
    let need = settings(16, 1);
    take(&exchange, &need);
    exchange.offer(wide()).unwrap();
    let other = Arc::clone(&exchange);
    let producer = thread::spawn(move || other.offer(wide()));
    exchange.wait_until(|sides| sides.producer);
    assert_eq!(exchange.counts().rows_queued, 9);
    exchange.close();
    assert_eq!(producer.join().unwrap(), Err(exchange::FeedClosed));
}

#[test]
fn a_training_waits_for_its_rows_and_for_new_ones() {
    let clock = TestClock::default();
    let exchange = exchange(100, &clock);
    let need = FeedSettings { new_rows_min: 3, ..settings(100, 8) };
    let wait = |add: usize| {
        let other = Arc::clone(&exchange);
        let trainer = thread::spawn(move || take(&other, &need));
        exchange.wait_until(|sides| sides.trainer);
        clock.pass(2);
        exchange.offer(rows(add)).unwrap();
        trainer.join().unwrap()
    };
    exchange.offer(rows(7)).unwrap();
    assert_eq!(wait(1).rows(), 8);
    assert_eq!(exchange.counts().producer_slow_ms, 2_000);
    exchange.resume();
    exchange.offer(rows(2)).unwrap();
    assert!(!exchange.is_ready(&need), "ten rows are there, and two of them are new");
    assert_eq!(wait(1).rows(), 11);
    let counts = exchange.counts();
    assert_eq!((counts.producer_slow_ms, counts.trainer_slow_ms), (4_000, 0));
    // A look before the bond is no training.
    exchange.resume();
    let none = exchange.take(&need, SamplePurpose::Quote, Duration::ZERO).unwrap();
    assert!(none.is_none());
    exchange.offer(rows(3)).unwrap();
    for _ in 0..2 {
        assert!(exchange.take(&need, SamplePurpose::Quote, LONG).unwrap().is_some());
    }
    exchange.offer(rows(1)).unwrap();
    assert_eq!(exchange.counts().rows_seen, 15, "no row waits");
}

#[test]
fn refusals_are_counted_and_end_the_feed_only_in_a_row() {
    let exchange = exchange(10, &TestClock::default());
    let refuse = || {
        let message = "line 2: 1 cells".to_owned();
        exchange.refuse(RowRefusal { code: RefusalCode::RowMalformed, message });
    };
    for _ in 0..3 {
        (0..REFUSED_IN_A_ROW_MAX).for_each(|_| refuse());
        exchange.offer(rows(1)).unwrap();
    }
    assert_eq!(exchange.counts().refused, 3 * REFUSED_IN_A_ROW_MAX);
    assert_eq!(exchange.take_refusals().len(), 1, "one message for each code");
    assert!(!exchange.is_closed());
    (0..=REFUSED_IN_A_ROW_MAX).for_each(|_| refuse());
    let error = exchange.take(&settings(10, 1), SamplePurpose::Training, LONG).unwrap_err();
    assert_eq!(error.code(), "PRODUCER_INVALID");
    assert!(error.to_string().contains("ROW_MALFORMED"), "{error}");
    assert_eq!(exchange.offer(rows(1)), Err(exchange::FeedClosed));
}

#[test]
fn settings_without_a_row_or_beyond_the_reservoir_are_refused() {
    let source: ProducerSource = "tcp:127.0.0.1:0#hot".parse().unwrap();
    for (capacity, rows_min) in [(0, 0), (0, 1), (5, 0), (5, 6), (usize::MAX, 1)] {
        let refused = RowFeed::start(&source, encoder(), settings(capacity, rows_min));
        assert_eq!(refused.unwrap_err().code(), "PRODUCER_SETTINGS", "{capacity} {rows_min}");
    }
}

fn tcp_feed(rows_min: usize) -> RowFeed {
    let source = "tcp:127.0.0.1:0#hot".parse().unwrap();
    RowFeed::start(&source, encoder(), settings(10_000, rows_min)).unwrap()
}

fn send(feed: &RowFeed, text: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(feed.address()).unwrap();
    stream.write_all(text).unwrap();
    stream
}

pub(super) fn sample(feed: &RowFeed) -> Dataset {
    feed.take(SamplePurpose::Training, LONG).unwrap().expect("rows come")
}

/// Waits until a condition on the counts holds.
pub(super) fn until(feed: &RowFeed, mut holds: impl FnMut(FeedCounts) -> bool) {
    let begun = std::time::Instant::now();
    while !holds(feed.counts()) {
        assert!(begun.elapsed() < LONG, "{:?}", feed.counts());
        thread::yield_now();
    }
}

#[test]
fn a_producer_may_disconnect_and_connect_again() {
    let feed = tcp_feed(4);
    drop(send(&feed, b"t,x,hot\n1,2,0\n3,4,1\n"));
    // Other columns first, and a label between them; the last line has no end.
    drop(send(&feed, b"x,hot,t\n6,1,5\n8,0,7\n9,1"));
    let rows = sample(&feed);
    assert_eq!(rows.features(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    assert_eq!(rows.labels(), [0, 1, 1, 0]);
    until(&feed, |counts| counts.refused == 1);
    assert_eq!(feed.counts().sources_read, 2);
    let refused = feed.take_refusals();
    assert_eq!(refused[0].code, RefusalCode::RowCut, "{refused:?}");
}

#[test]
fn wrong_lines_are_counted_and_the_others_are_used() {
    let feed = tcp_feed(2);
    let lines =
        b"t,x,hot\r\n1,2,0\r\n\r\n1,2\r\nleft,2,0\r\n1,2,7\r\n\xff,1,1\r\n1,,1\r\n3,4,1\r\n";
    drop(send(&feed, lines));
    let rows = sample(&feed);
    assert_eq!((rows.features(), rows.labels()), (&[1.0, 2.0, 3.0, 4.0][..], &[0, 1][..]));
    until(&feed, |counts| counts.refused == 5);
    let refused = feed.take_refusals();
    let codes: Vec<_> = refused.iter().map(|refusal| refusal.code).collect();
    assert_eq!(codes, [RefusalCode::RowMalformed, RefusalCode::RowMismatch]);
    assert!(refused[0].message.contains("line 4"), "{refused:?}");
    assert!(refused[1].message.contains("line 5"), "{refused:?}");
}

#[test]
fn a_connection_with_another_schema_is_closed_with_an_answer() {
    let feed = tcp_feed(1);
    for header in ["t,y,hot", "t,x", "t,x,y,hot", "t,t,hot", "1,2,3", "x,hot"] {
        let stream = send(&feed, format!("{header}\n1,2,0\n").as_bytes());
        let mut answer = String::new();
        let mut stream = BufReader::new(stream);
        stream.read_line(&mut answer).unwrap();
        assert!(answer.starts_with("error[SCHEMA_MISMATCH]: connection "), "{header}: {answer}");
        // Closed: the end, or a reset for the line that was not read.
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);
    }
    assert_eq!((feed.counts().refused, feed.counts().rows_seen), (6, 0));
    drop(send(&feed, b"t,x,hot\n1,2,0\n"));
    assert_eq!(sample(&feed).rows(), 1, "another connection is read");
}

#[test]
fn an_endless_line_closes_its_connection() {
    let feed = tcp_feed(1);
    let mut stream = send(&feed, b"t,x,hot\n");
    let chunk = vec![b'7'; 1 << 16];
    // The peer stops to read, and closes.
    while stream.write_all(&chunk).is_ok() {}
    drop(stream);
    until(&feed, |counts| counts.refused == 1);
    assert_eq!(feed.take_refusals()[0].code, RefusalCode::RowTooLong);
    drop(send(&feed, b"t,x,hot\n1,2,0\n"));
    assert_eq!(sample(&feed).rows(), 1);
}

#[cfg(unix)]
#[test]
fn a_unix_socket_is_its_owners_and_replaces_only_a_socket_without_a_process() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.sock");
    drop(UnixListener::bind(&path).unwrap());
    let source: ProducerSource = format!("unix:{}#hot", path.display()).parse().unwrap();
    let start = |source: &ProducerSource| RowFeed::start(source, encoder(), settings(10, 1));
    let feed = start(&source).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(start(&source).unwrap_err().code(), "PRODUCER_ADDRESS", "in use");
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"t,x,hot\n1,2,0\n").unwrap();
    assert_eq!(sample(&feed).rows(), 1);
    drop((stream, feed));
    assert!(!path.exists());
    let file = folder.path().join("notes.txt");
    std::fs::write(&file, "mine").unwrap();
    let source = format!("unix:{}#hot", file.display()).parse().unwrap();
    assert_eq!(start(&source).unwrap_err().code(), "PRODUCER_ADDRESS");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}
