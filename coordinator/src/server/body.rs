//! Request and response bodies: streamed with limits on size, time and throughput; only small
//! bodies are held in memory completely.

use std::io::{ErrorKind, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use florin_protocol::ErrorCode;
use hyper::body::{Frame, SizeHint};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::error::{ApiError, ApiResult};
use super::header_check::HeaderCheck;
use crate::config::Config;
use florin_store::uploads::Upload;
use florin_store::{BlobError, BlobStore, BlobWriter};

/// Size of a disk read or write.
const CHUNK_BYTES: usize = 256 * 1024;
/// Chunks of a file that are read ahead of the client.
const CHUNKS_AHEAD: usize = 2;
/// Most bytes drained of a rejected body, so that the client receives the response and not a
/// connection reset.
const DRAIN_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Longest time to drain a rejected body.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);

/// An incoming request body.
pub(super) struct IncomingBody {
    body: Body,
    buffered: Bytes,
    deadline: Instant,
    throughput: MinThroughput,
    /// Whether the body was too slow: then it is not drained.
    timed_out: bool,
}

/// The minimum throughput: at least `least` bytes for each `window` of waiting. Time that the
/// server itself spends does not count.
struct MinThroughput {
    window: Duration,
    min_bytes: u64,
    waited: Duration,
    received: u64,
}

impl MinThroughput {
    /// Starts the next window; returns whether the last one had enough bytes.
    fn next_window(&mut self) -> bool {
        let enough = self.received >= self.min_bytes;
        (self.waited, self.received) = (Duration::ZERO, 0);
        enough
    }
}

impl IncomingBody {
    /// Wraps a body, with the time limit for `bytes` bytes.
    pub(super) fn new(body: Body, config: &Config, bytes: u64) -> Self {
        let window = Duration::from_millis(config.body_ms);
        let least = config.bytes_per_second_min.saturating_mul(config.body_ms) / 1_000;
        let throughput =
            MinThroughput { window, min_bytes: least, waited: Duration::ZERO, received: 0 };
        let deadline = Instant::now() + config.body_timeout(bytes);
        Self { body, buffered: Bytes::new(), deadline, throughput, timed_out: false }
    }

    /// Sets the time limit for the rest of the body, from now.
    pub(super) fn set_time_limit(&mut self, time: Duration) {
        self.deadline = Instant::now() + time;
    }

    /// The announced size, if there is one.
    pub(super) fn content_length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// The next bytes; `None` at the end.
    async fn chunk(&mut self) -> ApiResult<Option<Bytes>> {
        if !self.buffered.is_empty() {
            return Ok(Some(std::mem::take(&mut self.buffered)));
        }
        loop {
            let began = Instant::now();
            let until = began + self.throughput.window.saturating_sub(self.throughput.waited);
            let body = &mut self.body;
            let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
            let frame = timeout_at(until.min(self.deadline), frame).await;
            self.throughput.waited += began.elapsed();
            let slow =
                self.throughput.waited >= self.throughput.window && !self.throughput.next_window();
            if slow || frame.is_err() && Instant::now() >= self.deadline {
                self.timed_out = true;
                let message = "the body arrives too slowly: send it faster";
                return Err(ApiError::new(ErrorCode::Truncated, message));
            }
            let Ok(frame) = frame else {
                continue;
            };
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(body_error(&error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        self.throughput.received =
                            self.throughput.received.saturating_add(data.len() as u64);
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Exactly `n` bytes.
    pub(super) async fn read_exact(&mut self, n: usize) -> ApiResult<Vec<u8>> {
        let mut bytes = Vec::with_capacity(n);
        while bytes.len() < n {
            let Some(mut chunk) = self.chunk().await? else {
                let message = format!("the body has {} bytes; expected {n}", bytes.len());
                return Err(ApiError::new(ErrorCode::Truncated, message));
            };
            let take = chunk.len().min(n - bytes.len());
            bytes.extend_from_slice(&chunk.split_to(take));
            self.buffered = chunk;
        }
        Ok(bytes)
    }

    /// The whole body, if it has at most `limit` bytes.
    pub(super) async fn read_to_end(&mut self, limit: usize) -> ApiResult<Vec<u8>> {
        self.check_content_length(limit as u64)?;
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if bytes.len() + chunk.len() > limit {
                return Err(too_large(limit as u64));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    pub(super) fn check_content_length(&self, limit: u64) -> ApiResult<()> {
        match self.content_length() {
            Some(bytes) if bytes > limit => Err(too_large(limit)),
            _ => Ok(()),
        }
    }

    /// Writes the rest of a small body to a blob writer, which hashes it; at most `limit` bytes.
    pub(super) async fn write_to(
        &mut self,
        blobs: &BlobStore,
        limit: u64,
    ) -> ApiResult<BlobWriter> {
        let mut writer = blobs.writer(limit)?;
        while let Some(chunk) = self.chunk().await? {
            if writer.bytes().saturating_add(chunk.len() as u64) > limit {
                return Err(too_large(limit));
            }
            writer.write(&chunk)?;
        }
        Ok(writer)
    }

    /// Appends the rest of the body to an upload on disk as it arrives, up to `total` bytes. Bytes
    /// that arrived before a connection broke stay for the next one. Another connection that asks
    /// for the upload takes it over.
    pub(super) async fn append_to(
        &mut self,
        mut upload: Box<Upload>,
        total: u64,
        mut head: HeaderCheck,
    ) -> ApiResult<Box<Upload>> {
        let turn = Arc::clone(upload.lease());
        let mut gathered = Vec::with_capacity(CHUNK_BYTES);
        let ended = loop {
            let chunk = tokio::select! {
                biased;
                () = turn.release_requested() => break Err(upload_taken_over()),
                chunk = self.chunk() => chunk,
            };
            let chunk = match chunk {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            let received = upload.bytes().saturating_add((gathered.len() + chunk.len()) as u64);
            if received > total {
                break Err(too_large(total));
            }
            if let Err(rejection) = head.inspect(&chunk) {
                upload.discard();
                return Err(rejection.into());
            }
            gathered.extend_from_slice(&chunk);
            if gathered.len() >= CHUNK_BYTES {
                (upload, gathered) = append(upload, gathered).await?;
            }
        };
        if !gathered.is_empty() {
            (upload, _) = append(upload, gathered).await?;
        }
        ended.map(|()| upload)
    }

    /// Reads and discards a body of at most `limit` bytes that is not needed. A client that still sends would take an early
    /// response for a broken connection.
    pub(super) async fn discard(&mut self, limit: u64) -> ApiResult<()> {
        self.check_content_length(limit)?;
        let mut read = 0_u64;
        while let Some(chunk) = self.chunk().await? {
            read = read.saturating_add(chunk.len() as u64);
            if read > limit {
                return Err(too_large(limit));
            }
        }
        Ok(())
    }

    /// Reads and discards the rest of the body, within limits.
    pub(super) async fn drain(&mut self) {
        if self.timed_out {
            return;
        }
        self.set_time_limit(DRAIN_TIME_MAX);
        let mut read = 0u64;
        while read < DRAIN_BYTES_MAX {
            match self.chunk().await {
                Ok(Some(chunk)) => read = read.saturating_add(chunk.len() as u64),
                Ok(None) | Err(_) => return,
            }
        }
    }
}

/// Appends bytes to an upload on a blocking thread; returns the upload and the emptied buffer.
async fn append(mut upload: Box<Upload>, mut bytes: Vec<u8>) -> ApiResult<(Box<Upload>, Vec<u8>)> {
    let written = blocking(move || {
        upload.write(&bytes)?;
        bytes.clear();
        Ok::<_, BlobError>((upload, bytes))
    });
    Ok(written.await??)
}

/// A body that cannot be read to its end. hyper reports a violation of the chunked encoding as
/// invalid input, and a connection that ended as another kind.
fn body_error(error: &axum::Error) -> ApiError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        let io = cause.downcast_ref::<std::io::Error>();
        let is_invalid = io.is_some_and(|io| {
            matches!(io.kind(), ErrorKind::InvalidInput | ErrorKind::InvalidData)
        });
        if is_invalid {
            let message = format!("the body's chunked transfer encoding is invalid: {cause}");
            return ApiError::new(ErrorCode::Malformed, message);
        }
        source = cause.source();
    }
    ApiError::new(ErrorCode::Truncated, format!("the body is incomplete: {error}"))
}

fn upload_taken_over() -> ApiError {
    let message = "another connection has taken over this upload";
    ApiError::new(ErrorCode::LimitReached, message)
}

fn too_large(limit: u64) -> ApiError {
    ApiError::new(
        ErrorCode::TooLarge,
        format!("the body is larger than its limit of {limit} bytes"),
    )
}

/// Runs work that waits for disk or processor on a blocking thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    // Log events of the work belong to the request's span.
    let span = tracing::Span::current();
    tokio::task::spawn_blocking(move || span.in_scope(work))
        .await
        .map_err(|error| ApiError::internal("a blocking task failed", &error))
}

/// Like [`blocking`], holding permits or locks until the work is done, even if the request is gone
/// by then.
pub(super) async fn blocking_holding<H: Send + 'static, T: Send + 'static>(
    held: H,
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    blocking(move || {
        let _held = held;
        work()
    })
    .await
}

/// A response that streams a file with bounded read-ahead.
pub(super) fn send_file(file: std::fs::File, length: u64) -> Response {
    let (send, receive) = mpsc::channel(CHUNKS_AHEAD);
    tokio::spawn(async move {
        let mut file = file;
        loop {
            let read = tokio::task::spawn_blocking(move || {
                let mut chunk = Vec::with_capacity(CHUNK_BYTES);
                let n = (&mut file).take(CHUNK_BYTES as u64).read_to_end(&mut chunk);
                (file, n.map(|_| Bytes::from(chunk)))
            });
            let Ok((back, chunk)) = read.await else {
                return;
            };
            file = back;
            let end = !matches!(&chunk, Ok(bytes) if !bytes.is_empty());
            if matches!(&chunk, Ok(bytes) if bytes.is_empty())
                || send.send(chunk).await.is_err()
                || end
            {
                return;
            }
        }
    });
    Response::new(Body::new(FileBody { receive, left: length }))
}

struct FileBody {
    receive: mpsc::Receiver<std::io::Result<Bytes>>,
    left: u64,
}

impl HttpBody for FileBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let chunk = ready!(self.receive.poll_recv(cx));
        Poll::Ready(chunk.map(|chunk| {
            let bytes = chunk?;
            self.left = self.left.saturating_sub(bytes.len() as u64);
            Ok(Frame::data(bytes))
        }))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// More than a rejected body is drained of.
    #[tokio::test]
    async fn a_body_that_is_not_needed_is_read_to_its_end_or_to_its_limit() {
        let config = Config::new("127.0.0.1:0".parse().unwrap(), "data".into());
        let chunks = |count: u64| {
            let chunk = || Ok::<_, std::io::Error>(Bytes::from(vec![0; 1 << 20]));
            let stream = futures_util::stream::iter((0..count).map(move |_| chunk()));
            IncomingBody::new(Body::from_stream(stream), &config, 0)
        };
        let mut body = chunks(20);
        body.discard(20 << 20).await.unwrap();
        assert!(matches!(body.chunk().await, Ok(None)));
        assert_eq!(chunks(21).discard(20 << 20).await.unwrap_err().0.code, ErrorCode::TooLarge);
        let mut rest = chunks(20);
        rest.drain().await;
        assert!(matches!(rest.chunk().await, Ok(Some(_))));
    }

    #[tokio::test]
    async fn permits_are_held_until_the_work_ends_even_if_the_request_is_cancelled() {
        let room = Arc::new(tokio::sync::Semaphore::new(1));
        let held = Arc::clone(&room).acquire_owned().await.unwrap();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let (end, ends) = std::sync::mpsc::channel();
        let request = tokio::spawn(blocking_holding(held, move || {
            begun.send(()).unwrap();
            ends.recv().unwrap();
        }));
        begins.await.unwrap();
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
        assert_eq!(room.available_permits(), 0, "the work continues");
        end.send(()).unwrap();
        drop(room.acquire().await.unwrap());
    }
}
