//! What one connection is doing, and the stream that ends when it has done nothing for too long.
//!
//! A connection either waits for a request (its first one, the rest of a head, or the next one) or has some in flight.
//! Who waits has a deadline here; who sends a body has one in `body.rs`; who takes no answer is cut off here.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::config::Config;

/// How long a connection may wait, and for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    head: Duration,
    idle: Duration,
    stall: Duration,
}

impl Waits {
    pub(super) const fn of(config: &Config) -> Self {
        Self {
            head: Duration::from_millis(config.header_ms),
            idle: Duration::from_millis(config.idle_ms),
            stall: Duration::from_millis(config.stall_ms),
        }
    }
}

/// What is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    /// Many requests at once; what comes between them is no head, and what goes out no answer.
    Http2,
}

/// What is known of a connection by those who serve it.
#[derive(Debug)]
pub(super) struct Pulse {
    waits: Waits,
    now: Mutex<Now>,
    cut: Notify,
}

#[derive(Debug)]
struct Now {
    in_flight: usize,
    /// Whether a whole head ever came.
    served: bool,
    /// Since when it waits: its beginning, the last answer's end or the last byte of it that was taken.
    since: Instant,
    /// When the first byte of an unfinished head came.
    head: Option<Instant>,
    /// Answers that are not handed over whole, and since when each could have gone on.
    answers: BTreeMap<u64, Option<Instant>>,
    next_answer: u64,
}

impl Pulse {
    pub(super) fn new(waits: Waits) -> Self {
        let now = Now {
            in_flight: 0,
            served: false,
            since: Instant::now(),
            head: None,
            answers: BTreeMap::new(),
            next_answer: 0,
        };
        Self { waits, now: Mutex::new(now), cut: Notify::new() }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When it has waited too long; never while a request is in flight.
    fn deadline(&self) -> Option<Instant> {
        let now = self.now();
        match (now.in_flight, now.head) {
            (0, Some(head)) => Some(head + self.waits.head),
            (0, None) if now.served => Some(now.since + self.waits.idle),
            (0, None) => Some(now.since + self.waits.head),
            _ => None,
        }
    }

    /// Bytes came: the beginning of a head, unless they belong to a request in flight.
    fn heard(&self) {
        let mut now = self.now();
        if now.in_flight == 0 && now.head.is_none() {
            now.head = Some(Instant::now());
        }
    }

    /// Some of an answer was taken.
    fn told(&self) {
        self.now().since = Instant::now();
    }

    /// A whole head came; its request is in flight until what is returned is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        let mut now = self.now();
        now.in_flight = now.in_flight.saturating_add(1);
        now.served = true;
        now.head = None;
        InFlight(Arc::clone(self))
    }

    /// How long it has waited for a request, and whether there ever was one; nothing while one is in flight.
    pub(super) fn waiting(&self) -> Option<(Duration, bool)> {
        let now = self.now();
        (now.in_flight == 0).then(|| (now.since.elapsed(), now.served))
    }

    /// Resolves when an answer could have gone on for too long and nobody took any of it. HTTP/2 needs that: one stream
    /// may stand still while the connection moves.
    pub(super) async fn is_stalled(&self) {
        loop {
            let oldest = self.now().answers.values().filter_map(|since| *since).min();
            let limit = self.waits.stall;
            match oldest {
                Some(since) if since.elapsed() >= limit => return,
                Some(since) => sleep_until(since + limit).await,
                None => sleep(limit).await,
            }
        }
    }

    /// Makes it give way to another connection.
    pub(super) fn cut(&self) {
        self.cut.notify_one();
    }

    /// Resolves when it has to give way.
    pub(super) async fn is_cut(&self) {
        self.cut.notified().await;
    }
}

/// A request that was read and whose answer has not been handed over whole.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Pulse>);

impl InFlight {
    /// Its answer is there, under this number, and could go on.
    fn answers(&self) -> u64 {
        let mut now = self.0.now();
        let number = now.next_answer;
        now.next_answer = number.wrapping_add(1);
        now.answers.insert(number, Some(Instant::now()));
        number
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut now = self.0.now();
        now.in_flight = now.in_flight.saturating_sub(1);
        now.since = Instant::now();
    }
}

/// An answer's body, which keeps its request in flight.
pub(super) struct Answer {
    body: Body,
    number: u64,
    in_flight: InFlight,
}

impl Answer {
    pub(super) fn new(body: Body, in_flight: InFlight) -> Self {
        Self { body, number: in_flight.answers(), in_flight }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.in_flight.0.now().answers.remove(&self.number);
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        // What waits for us does not wait for the client.
        let could_go_on = frame.is_ready().then(Instant::now);
        let number = self.number;
        if let Some(since) = self.in_flight.0.now().answers.get_mut(&number) {
            *since = could_go_on;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream whose reads fail when nothing has been asked for too long, and whose writes fail when the other side takes
/// nothing for too long.
pub(super) struct Watched<S> {
    stream: S,
    protocol: Protocol,
    pulse: Arc<Pulse>,
    waited: Option<Pin<Box<Sleep>>>,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Watched<S> {
    pub(super) const fn new(stream: S, protocol: Protocol, pulse: Arc<Pulse>) -> Self {
        Self { stream, protocol, pulse, waited: None, stalled: None }
    }

    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let limit = self.pulse.waits.stall;
        let timer = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }

    fn wrote(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if matches!(result, Poll::Ready(Ok(1..))) && self.protocol == Protocol::Http1 {
            self.pulse.told();
        }
        self.watch(cx, result)
    }

    /// Nothing came: whether that has gone on for too long.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(deadline) = self.pulse.deadline() else {
            return Poll::Pending;
        };
        let timer = self.waited.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Pending => self.wait(cx),
            ready => {
                if buf.filled().len() > before && self.protocol == Protocol::Http1 {
                    self.pulse.heard();
                }
                ready
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.wrote(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.watch(cx, result)
    }
}
