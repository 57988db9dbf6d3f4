//! The connection loop: limits on how many, how long and how slow, TLS if the settings say so, and an orderly end.

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
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::places::{Place, Places};
use super::pulse::{Answer, Protocol, Pulse, Watched};
use super::tls::{Tls, Welcome};
use crate::config::Config;

/// What a connection may have read ahead of its requests, in bytes.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Streams of an HTTP/2 connection that its client opened and dropped and that are not cleared away, and those that we
/// dropped for its mistakes: beyond that the connection ends.
const RESETS_MAX: usize = 20;
/// What one stream may send ahead of what is read, in bytes.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// What all streams of a connection may send ahead together, in bytes.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Pause after an accept failed, as it does when files run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a front door counts; cheap to copy.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub(super) accepted: Counter,
    pub(super) held: Gauge,
    pub(super) refused: Family<Why, Counter>,
}

/// Why a connection was closed before its time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Why {
    why: &'static str,
}

impl Seen {
    pub(super) fn came(&self) {
        self.accepted.inc();
        self.held.inc();
    }

    pub(super) fn left(&self) {
        self.held.dec();
    }

    pub(super) fn refused(&self, why: &'static str) {
        self.refused.get_or_create(&Why { why }).inc();
    }
}

/// The address at the other end of a request's connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) IpAddr);

/// Serves until `shutdown` resolves, then lets requests in flight end for as long as it resolved to.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    config: &Config,
    tls: Option<Tls>,
    seen: Seen,
    shutdown: impl Future<Output = Duration>,
) {
    let places = Places::of(config, seen.clone());
    let door = Arc::new(Door::new(router, config, tls, seen));
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
                tracing::warn!(%error, "a connection was not accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Only now: nobody gives way before somebody has come.
        let room = tokio::select! {
            grace = &mut shutdown => break grace,
            room = places.room() => room,
        };
        let Some(place) = places.take(room, from.ip()) else {
            tracing::debug!(%from, "too many connections from one address");
            continue;
        };
        running.spawn(Arc::clone(&door).connection(stream, from.ip(), place, closed.clone()));
    };
    // From here on nobody connects any more; who waits between two requests is sent away.
    drop(listener);
    closing.send_replace(true);
    let all = async { while running.join_next().await.is_some() {} };
    if timeout(grace, all).await.is_err() {
        tracing::warn!(cut_off = running.len(), ?grace, "some requests did not end in time");
    }
}

/// What every connection of a listener needs.
struct Door {
    router: Router,
    http: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    tls: Option<Tls>,
    seen: Seen,
}

impl Door {
    fn new(router: Router, config: &Config, tls: Option<Tls>, seen: Seen) -> Self {
        let mut http = http1::Builder::new();
        // How long a head may take is watched by the stream, which knows idle connections from slow ones. hyper only asks
        // an idle stream for more if it has a limit of its own; it is never reached.
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
        Self { router, http, http2, tls, seen }
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        from: IpAddr,
        place: Place,
        closed: watch::Receiver<bool>,
    ) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY");
        }
        let pulse = place.pulse();
        tokio::select! {
            () = self.talk(stream, from, pulse, closed) => {}
            () = pulse.is_cut() => {}
        }
    }

    async fn talk(
        &self,
        stream: TcpStream,
        from: IpAddr,
        pulse: &Arc<Pulse>,
        mut closed: watch::Receiver<bool>,
    ) {
        let Some(tls) = &self.tls else {
            return self.speak(stream, from, pulse, closed).await;
        };
        let welcome = tokio::select! {
            welcome = tls.welcome(stream) => welcome,
            () = told(&mut closed) => return,
        };
        match welcome {
            Ok(Welcome { stream, protocol: Protocol::Http1 }) => {
                self.speak(*stream, from, pulse, closed).await;
            }
            Ok(Welcome { stream, protocol: Protocol::Http2 }) => {
                self.speak_http2(*stream, from, pulse, closed).await;
            }
            Err(error) => {
                self.seen.refused("tls");
                tracing::debug!(%from, %error, "no TLS connection");
            }
        }
    }

    async fn speak<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        from: IpAddr,
        pulse: &Arc<Pulse>,
        mut closed: watch::Receiver<bool>,
    ) {
        let io = TokioIo::new(Watched::new(stream, Protocol::Http1, Arc::clone(pulse)));
        let serving = self.http.serve_connection(io, self.routes(from, pulse));
        tokio::pin!(serving);
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            () = told(&mut closed) => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        see_off(ended);
    }

    async fn speak_http2<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        from: IpAddr,
        pulse: &Arc<Pulse>,
        mut closed: watch::Receiver<bool>,
    ) {
        let io = TokioIo::new(Watched::new(stream, Protocol::Http2, Arc::clone(pulse)));
        let serving = self.http2.serve_connection(io, self.routes(from, pulse));
        tokio::pin!(serving);
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            () = pulse.is_stalled() => return,
            () = told(&mut closed) => {
                serving.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = serving => ended,
                    () = pulse.is_stalled() => return,
                }
            }
        };
        see_off(ended);
    }

    fn routes(&self, from: IpAddr, pulse: &Arc<Pulse>) -> Routes {
        Routes {
            router: TowerToHyperService::new(self.router.clone()),
            peer: Peer(from.to_canonical()),
            pulse: Arc::clone(pulse),
        }
    }
}

fn see_off(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::trace!(%error, "a connection ended early");
    }
}

/// Resolves when the listener closes.
async fn told(closed: &mut watch::Receiver<bool>) {
    // A sender that is gone says the same.
    let _ = closed.wait_for(|closed| *closed).await;
}

/// The routes as one connection reaches them.
struct Routes {
    router: TowerToHyperService<Router>,
    peer: Peer,
    pulse: Arc<Pulse>,
}

impl Service<Request<Incoming>> for Routes {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let in_flight = self.pulse.begin();
        request.extensions_mut().insert(self.peer);
        let answer = self.router.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Answer::new(body, in_flight))) })
    }
}
