//! The connection loop: HTTP/1.1 only, with limits on how many, how long and how slow.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};

use crate::config::Config;

/// Largest request head, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// How long running requests have after a shutdown was asked for.
const GRACE: Duration = Duration::from_secs(5);
/// Pause after an accept failed, as it does when files run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown` resolves, then lets running requests end.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    config: &Config,
    shutdown: impl Future<Output = ()>,
) {
    let connections = Arc::new(Semaphore::new(config.connections_max));
    let addresses = Addresses::new(config.connections_per_address_max);
    let (closing, closed) = watch::channel(false);
    let mut running = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let accept = async {
            let permit = Arc::clone(&connections).acquire_owned().await;
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            () = &mut shutdown => break,
            Some(_) = running.join_next() => continue,
            accepted = accept => accepted,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = addresses.take(from.ip()) else {
            tracing::debug!(%from, "too many connections from one address");
            continue;
        };
        let service = connection(stream, router.clone(), config, closed.clone());
        running.spawn(async move {
            service.await;
            drop((place, permit));
        });
    }
    drop(listener);
    closing.send_replace(true);
    let all = async { while running.join_next().await.is_some() {} };
    if timeout(GRACE, all).await.is_err() {
        tracing::debug!("some connections were cut off");
    }
}

fn connection(
    stream: TcpStream,
    router: Router,
    config: &Config,
    mut closed: watch::Receiver<bool>,
) -> impl Future<Output = ()> + use<> {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(config.header_ms))
        .max_buf_size(HEAD_BYTES_MAX);
    let stall = Duration::from_millis(config.stall_ms);
    async move {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY");
        }
        let io = TokioIo::new(Unstalled::new(stream, stall));
        let serving = http.serve_connection(io, TowerToHyperService::new(router));
        tokio::pin!(serving);
        let closing = async { closed.wait_for(|closed| *closed).await.map(|_| ()) };
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            _ = closing => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = ended {
            tracing::trace!(%error, "a connection ended early");
        }
    }
}

/// How many connections each address has.
#[derive(Clone)]
struct Addresses {
    most: usize,
    now: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
}

struct Place {
    addresses: Addresses,
    from: IpAddr,
}

impl Addresses {
    fn new(most: usize) -> Self {
        Self { most, now: Arc::default() }
    }

    fn take(&self, from: IpAddr) -> Option<Place> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let count = now.entry(from).or_insert(0);
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Place { addresses: self.clone(), from })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut now = self.addresses.now.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = now.get_mut(&self.from) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                now.remove(&self.from);
            }
        }
    }
}

/// A stream whose writes fail when the other side takes nothing for too long.
struct Unstalled {
    stream: TcpStream,
    limit: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Unstalled {
    const fn new(stream: TcpStream, limit: Duration) -> Self {
        Self { stream, limit, stalled: None }
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
        let limit = self.limit;
        let timer = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Unstalled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Unstalled {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.watch(cx, result)
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
