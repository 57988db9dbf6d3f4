//! The accept loop: connection limits, timeouts for idle and slow clients, optional TLS, and
//! graceful shutdown.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connection_activity::{ConnectionActivity, Protocol, TimeoutStream, TrackedBody};
use super::connection_limiter::{ConnectionGuard, ConnectionLimiter};
use super::connection_metrics::ConnectionMetrics;
use super::observe::RequestIds;
use super::tls::{Tls, TlsConnection};
use crate::config::Config;

/// Read and write buffer of a connection, in bytes.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Pending stream resets of an HTTP/2 connection, and resets by the server for its client's errors:
/// beyond this the connection ends (protection against rapid reset).
const RESETS_MAX: usize = 20;
/// Flow-control window of an HTTP/2 stream, in bytes.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// Flow-control window of an HTTP/2 connection, in bytes.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Pause after a failed accept, for example when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The remote address of a request's connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) IpAddr);

/// Serves until `shutdown` resolves. Then in-flight requests have the grace period that it resolved
/// to.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    config: &Config,
    tls: Option<Tls>,
    seen: ConnectionMetrics,
    shutdown: impl Future<Output = Duration>,
) {
    let places = ConnectionLimiter::from_config(config, seen.clone());
    let door = Arc::new(ListenerContext::new(router, config, tls, seen));
    let (closing, closed) = watch::channel(false);
    let mut running = JoinSet::new();
    tokio::pin!(shutdown);
    let grace = loop {
        let accepted = tokio::select! {
            grace = &mut shutdown => break grace,
            Some(_) = running.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // After the accept: a connection is evicted only when another one has arrived.
        let room = tokio::select! {
            grace = &mut shutdown => break grace,
            room = places.acquire() => room,
        };
        let Some(place) = places.register(room, from.ip()) else {
            tracing::debug!(%from, "too many connections from one address");
            continue;
        };
        running.spawn(Arc::clone(&door).connection(stream, from.ip(), place, closed.clone()));
    };
    // The listener is closed to new connections; idle connections are closed now.
    drop(listener);
    closing.send_replace(true);
    let all = async { while running.join_next().await.is_some() {} };
    if timeout(grace, all).await.is_err() {
        tracing::warn!(cut_off = running.len(), ?grace, "aborting requests after the grace period");
    }
}

/// The state shared by all connections of a listener.
struct ListenerContext {
    router: Router,
    http: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    tls: Option<Tls>,
    seen: ConnectionMetrics,
    /// The ids of responses to requests that hyper cannot parse.
    ids: Arc<RequestIds>,
}

impl ListenerContext {
    fn new(router: Router, config: &Config, tls: Option<Tls>, seen: ConnectionMetrics) -> Self {
        let mut http = http1::Builder::new();
        // The stream enforces the header timeout, because it distinguishes idle connections from
        // slow ones. hyper reads from an idle stream only if hyper itself has a timeout, so set one
        // that is never reached.
        let never = Duration::from_millis(config.idle_ms.saturating_add(config.header_ms));
        http.timer(TokioTimer::new())
            .header_read_timeout(never)
            .max_header_size(config.header_bytes_max)
            .max_buf_size(BUFFER_BYTES_MAX);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(config.http2.streams_max)
            .max_header_list_size(u32::try_from(config.header_bytes_max).unwrap_or(u32::MAX))
            .max_send_buf_size(BUFFER_BYTES_MAX)
            .max_pending_accept_reset_streams(RESETS_MAX)
            .max_local_error_reset_streams(RESETS_MAX)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        Self { router, http, http2, tls, seen, ids: Arc::new(RequestIds::new()) }
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        from: IpAddr,
        place: ConnectionGuard,
        closed: watch::Receiver<bool>,
    ) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY");
        }
        let pulse = place.activity();
        tokio::select! {
            () = self.serve_stream(stream, from, pulse, closed) => {}
            () = pulse.evicted() => {}
        }
    }

    async fn serve_stream(
        &self,
        stream: TcpStream,
        from: IpAddr,
        pulse: &Arc<ConnectionActivity>,
        mut closed: watch::Receiver<bool>,
    ) {
        let Some(tls) = &self.tls else {
            return self.serve_http1(stream, from, pulse, closed).await;
        };
        let welcome = tokio::select! {
            welcome = tls.accept(stream) => welcome,
            () = listener_closed(&mut closed) => return,
        };
        match welcome {
            Ok(TlsConnection { stream, protocol: Protocol::Http1 }) => {
                self.serve_http1(*stream, from, pulse, closed).await;
            }
            Ok(TlsConnection { stream, protocol: Protocol::Http2 }) => {
                self.serve_http2(*stream, from, pulse, closed).await;
            }
            Err(error) => {
                self.seen.refused("tls_handshake");
                tracing::debug!(%from, %error, "the TLS handshake failed");
            }
        }
    }

    async fn serve_http1<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        from: IpAddr,
        pulse: &Arc<ConnectionActivity>,
        mut closed: watch::Receiver<bool>,
    ) {
        let stream = TimeoutStream::new(stream, Protocol::Http1, Arc::clone(pulse));
        let io = TokioIo::new(stream.with_refusals(Arc::clone(&self.ids)));
        let serving = self.http.serve_connection(io, self.connection_service(from, pulse));
        tokio::pin!(serving);
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            () = listener_closed(&mut closed) => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        log_end(ended);
    }

    async fn serve_http2<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        from: IpAddr,
        pulse: &Arc<ConnectionActivity>,
        mut closed: watch::Receiver<bool>,
    ) {
        let io = TokioIo::new(TimeoutStream::new(stream, Protocol::Http2, Arc::clone(pulse)));
        let serving = self.http2.serve_connection(io, self.connection_service(from, pulse));
        tokio::pin!(serving);
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            () = pulse.stalled() => return,
            () = listener_closed(&mut closed) => {
                serving.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = serving => ended,
                    () = pulse.stalled() => return,
                }
            }
        };
        log_end(ended);
    }

    fn connection_service(
        &self,
        from: IpAddr,
        pulse: &Arc<ConnectionActivity>,
    ) -> ConnectionService {
        ConnectionService {
            router: TowerToHyperService::new(self.router.clone()),
            peer: Peer(from.to_canonical()),
            pulse: Arc::clone(pulse),
        }
    }
}

fn log_end(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::trace!(%error, "a connection ended with an error");
    }
}

/// Resolves when the listener closes.
async fn listener_closed(closed: &mut watch::Receiver<bool>) {
    // A dropped sender means the same.
    let _ = closed.wait_for(|closed| *closed).await;
}

/// The router as the service of one connection.
struct ConnectionService {
    router: TowerToHyperService<Router>,
    peer: Peer,
    pulse: Arc<ConnectionActivity>,
}

impl Service<Request<Incoming>> for ConnectionService {
    type Response = Response<TrackedBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<TrackedBody>, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let in_flight = self.pulse.begin_request();
        request.extensions_mut().insert(self.peer);
        let answer = self.router.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| TrackedBody::new(body, in_flight))) })
    }
}
