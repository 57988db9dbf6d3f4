//! Activity of a connection, and a stream with idle, header and write timeouts.
//!
//! A connection either waits for a request (its first one, the rest of a header, or the next one)
//! or has requests in flight. A waiting connection has a deadline here; a connection that sends a
//! body has one in `body.rs`; a client that does not read its response is cut off here.

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

use super::observe::RequestIds;
use super::parser_refusal::ParserRefusal;
use crate::config::Config;

/// The timeouts of a connection: header, idle and write stall.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionTimeouts {
    header: Duration,
    idle: Duration,
    stall: Duration,
}

impl ConnectionTimeouts {
    pub(super) const fn from_config(config: &Config) -> Self {
        Self {
            header: Duration::from_millis(config.header_ms),
            idle: Duration::from_millis(config.idle_ms),
            stall: Duration::from_millis(config.stall_ms),
        }
    }
}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    /// Multiplexed: bytes between requests need not be a header, and outgoing bytes need not be a
    /// response.
    Http2,
}

/// The activity of a connection, shared between its stream, its service and the connection limiter.
#[derive(Debug)]
pub(super) struct ConnectionActivity {
    timeouts: ConnectionTimeouts,
    state: Mutex<ActivityState>,
    eviction: Notify,
}

#[derive(Debug)]
struct ActivityState {
    in_flight: usize,
    /// Whether a complete header has ever arrived.
    served: bool,
    /// Start of the idle time: the accept, the end of the last response, or the last byte of it
    /// that the client took.
    since: Instant,
    /// When the first byte of an incomplete header arrived.
    header_since: Option<Instant>,
    /// Unfinished responses; for each, since when its next frame has been ready.
    responses: BTreeMap<u64, Option<Instant>>,
    next_answer: u64,
}

/// How long a connection without a request in flight has waited for one.
pub(super) struct IdleTime {
    pub(super) waited: Duration,
    /// Whether it ever had a request.
    pub(super) has_served: bool,
}

impl ConnectionActivity {
    pub(super) fn new(timeouts: ConnectionTimeouts) -> Self {
        let now = ActivityState {
            in_flight: 0,
            served: false,
            since: Instant::now(),
            header_since: None,
            responses: BTreeMap::new(),
            next_answer: 0,
        };
        Self { timeouts, state: Mutex::new(now), eviction: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, ActivityState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The deadline of a waiting connection; `None` while a request is in flight.
    fn deadline(&self) -> Option<Instant> {
        let now = self.lock();
        match (now.in_flight, now.header_since) {
            (0, Some(head)) => Some(head + self.timeouts.header),
            (0, None) if now.served => Some(now.since + self.timeouts.idle),
            (0, None) => Some(now.since + self.timeouts.header),
            _ => None,
        }
    }

    /// Records incoming bytes: the start of a header, unless a request is in flight.
    fn on_bytes_received(&self) {
        let mut now = self.lock();
        if now.in_flight == 0 && now.header_since.is_none() {
            now.header_since = Some(Instant::now());
        }
    }

    /// Records that the client took bytes of a response.
    fn on_bytes_sent(&self) {
        self.lock().since = Instant::now();
    }

    /// Records a complete header. Its request is in flight until the returned guard is dropped.
    pub(super) fn begin_request(self: &Arc<Self>) -> InFlight {
        let mut now = self.lock();
        now.in_flight = now.in_flight.saturating_add(1);
        now.served = true;
        now.header_since = None;
        InFlight(Arc::clone(self))
    }

    /// Whether no request is in flight.
    fn is_waiting(&self) -> bool {
        self.lock().in_flight == 0
    }

    /// The idle time of the connection; `None` while a request is in flight.
    pub(super) fn idle_time(&self) -> Option<IdleTime> {
        let now = self.lock();
        (now.in_flight == 0)
            .then(|| IdleTime { waited: now.since.elapsed(), has_served: now.served })
    }

    /// Resolves when a response's next frame has been ready for the stall timeout and the client
    /// took none of it. HTTP/2 needs this: one stream may stall while the connection moves.
    pub(super) async fn stalled(&self) {
        loop {
            let oldest = self.lock().responses.values().filter_map(|since| *since).min();
            let limit = self.timeouts.stall;
            match oldest {
                Some(since) if since.elapsed() >= limit => return,
                Some(since) => sleep_until(since + limit).await,
                None => sleep(limit).await,
            }
        }
    }

    /// Evicts the connection in favour of another.
    pub(super) fn evict(&self) {
        self.eviction.notify_one();
    }

    /// Resolves when the connection is evicted.
    pub(super) async fn evicted(&self) {
        self.eviction.notified().await;
    }
}

/// A guard for a request whose header was read and whose response is not sent completely.
#[derive(Debug)]
pub(super) struct InFlight(Arc<ConnectionActivity>);

impl InFlight {
    /// Registers the request's response as ready to send; returns its number.
    fn add_response(&self) -> u64 {
        let mut now = self.0.lock();
        let number = now.next_answer;
        now.next_answer = number.wrapping_add(1);
        now.responses.insert(number, Some(Instant::now()));
        number
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut now = self.0.lock();
        now.in_flight = now.in_flight.saturating_sub(1);
        now.since = Instant::now();
    }
}

/// A response body that holds its request's in-flight guard.
pub(super) struct TrackedBody {
    body: Body,
    number: u64,
    in_flight: InFlight,
}

impl TrackedBody {
    pub(super) fn new(body: Body, in_flight: InFlight) -> Self {
        Self { body, number: in_flight.add_response(), in_flight }
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.in_flight.0.lock().responses.remove(&self.number);
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        // While the handler produces the next frame, the response does not wait for the client.
        let could_go_on = frame.is_ready().then(Instant::now);
        let number = self.number;
        if let Some(since) = self.in_flight.0.lock().responses.get_mut(&number) {
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

/// A stream whose reads fail after the idle or header timeout, and whose writes fail when the
/// client takes no bytes for the stall timeout.
pub(super) struct TimeoutStream<S> {
    stream: S,
    protocol: Protocol,
    activity: Arc<ConnectionActivity>,
    read_timer: Option<Pin<Box<Sleep>>>,
    write_timer: Option<Pin<Box<Sleep>>>,
    /// The ids of responses to requests that hyper cannot parse.
    ids: Option<Arc<RequestIds>>,
    refusal: Option<ParserRefusal>,
}

impl<S> TimeoutStream<S> {
    pub(super) const fn new(
        stream: S,
        protocol: Protocol,
        activity: Arc<ConnectionActivity>,
    ) -> Self {
        Self {
            stream,
            protocol,
            activity,
            read_timer: None,
            write_timer: None,
            ids: None,
            refusal: None,
        }
    }

    /// Replaces hyper's bare responses to requests that it cannot parse by rejections with a code
    /// and a request id.
    pub(super) fn with_refusals(mut self, ids: Arc<RequestIds>) -> Self {
        self.ids = Some(ids);
        self
    }

    fn check_stall<T>(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.write_timer = None;
            return result;
        }
        let limit = self.activity.timeouts.stall;
        let timer = self.write_timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }

    fn on_write(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if matches!(result, Poll::Ready(Ok(1..))) && self.protocol == Protocol::Http1 {
            self.activity.on_bytes_sent();
        }
        self.check_stall(cx, result)
    }

    /// Polls the timer of a read that is pending: fails when the connection's deadline has passed.
    fn check_idle(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(deadline) = self.activity.deadline() else {
            return Poll::Pending;
        };
        let timer = self.read_timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Pending => self.check_idle(cx),
            ready => {
                if buf.filled().len() > before && self.protocol == Protocol::Http1 {
                    self.activity.on_bytes_received();
                }
                ready
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.refusal.is_none() && self.activity.is_waiting() {
            self.refusal = self.ids.as_ref().and_then(|ids| ParserRefusal::replacing(bytes, ids));
        }
        let this = &mut *self;
        let result = match this.refusal.as_mut() {
            Some(refusal) => refusal.poll_write(cx, Pin::new(&mut this.stream), bytes.len()),
            None => Pin::new(&mut this.stream).poll_write(cx, bytes),
        };
        if result.is_ready() {
            this.refusal = None;
        }
        self.on_write(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [only] = bytes {
            return self.poll_write(cx, only);
        }
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.on_write(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.check_stall(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.check_stall(cx, result)
    }
}
