//! The coordinator: a deterministic state machine, its write-ahead journal and its HTTP server.
//!
//! A coordinator runs the rounds of federated-learning tasks. It owns the sequence of a round, the
//! journal that makes the round durable, and the HTTP interface for participants, buyers, providers
//! and auditors. It holds no money: the ledger holds it and pays what
//! [`florin_protocol::close_round`] decides. It does not compute contributions either: the valuer
//! that it is given values the updates, and any party can recompute the result.
//!
//! * [`engine`]: the state machine, a pure function (state, event, time) → (state, effects).
//! * [`store`]: durable storage in one data folder: journal, snapshots, blobs.
//! * [`host`]: runs the engine on one thread, with worker threads for its effects.
//! * [`leases`]: the leases of compute.
//! * [`server`]: routes, limits, signature checks.
//! * [`config`]: the settings.
//! * [`check`] verifies a data folder, [`backup`] copies and restores one, and [`control`] is the
//!   operator's socket to a running coordinator.
//!
//! [`run`] combines all parts.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};

pub mod backup;
pub mod check;
pub mod config;
pub mod control;
pub mod host;
pub mod identity;
mod json_form;
pub mod leases;
pub mod page;
pub mod page_relay;
pub mod server;
mod trace;

pub use config::{Config, ConfigError};
pub use florin_store::{Bucket, BucketError, DataFolder, DataFolderError};
pub use host::{
    Clock, Host, HostParts, LedgerEndpoint, LedgerRpcHandler, ManualClock, SlewedClock, StartError,
    SystemClock, Valuer, ValuerError, WorkValuer,
};
pub use server::tls::{Tls, TlsError};
pub use server::{App, BLOCKING_THREADS_MAX, openapi, router};

use host::HostThreads;

/// Delay at shutdown between the stop of the connections and the completion of the long polls.
const LONG_POLL_DRAIN: Duration = Duration::from_millis(50);
/// Time that in-flight requests have to end after the engine has stopped by itself; it can answer
/// none of them.
const ENGINE_STOPPED_GRACE: Duration = Duration::from_secs(5);

/// Why a coordinator did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data folder cannot be used.
    #[error(transparent)]
    Folder(#[from] DataFolderError),
    /// The bucket cannot be used.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// The journal could not be opened, or a thread could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The operator's listener could not be opened.
    #[error("cannot listen on metrics_listen = {0}: {1} [METRICS_LISTEN_FAILED]")]
    OperatorListener(SocketAddr, std::io::Error),
    /// The engine stopped by itself; the log has the reason.
    #[error("the engine stopped: see the log, then start again [ENGINE_STOPPED]")]
    EngineStopped,
}

/// An opened coordinator: everything is loaded, no request has been served yet.
pub struct OpenedCoordinator {
    config: Config,
    listener: TcpListener,
    operator: Option<TcpListener>,
    tls: Option<Tls>,
    app: App,
    host: Host,
    running: HostThreads,
}

/// Loads settings, data folder, journal and certificate for a coordinator on `listener`.
///
/// # Errors
/// [`RunError`].
pub async fn open(
    config: &Config,
    listener: TcpListener,
    parts: HostParts,
) -> Result<OpenedCoordinator, RunError> {
    config.check()?;
    let bucket = Bucket::open(&config.blobs, |name| std::env::var(name).ok())?;
    let folder = DataFolder::open_with_bucket(&config.data, bucket)?;
    let tls = Tls::open(config)?;
    let (ledger, node, place) =
        (Arc::clone(&parts.ledger), parts.node.clone(), parts.ledger_endpoint.clone());
    let coordinator = parts.wallet.address();
    let operator = operator_listener(config).await?;
    let (host, running) = Host::start_with(folder, parts, &config.journal)?;
    let app = App::new(host.clone(), config.clone(), ledger, node, coordinator, place);
    let config = config.clone();
    Ok(OpenedCoordinator { config, listener, operator, tls, app, host, running })
}

/// Runs a coordinator on `listener` until `shutdown` resolves. Unfinished work continues after the
/// next start.
///
/// # Errors
/// [`RunError`].
pub async fn run(
    config: &Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
    parts: HostParts,
) -> Result<(), RunError> {
    open(config, listener, parts).await?.serve(shutdown).await
}

impl OpenedCoordinator {
    /// The TLS certificate of the listener, if TLS is enabled.
    #[must_use]
    pub const fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// The host of the engine, for health checks.
    #[must_use]
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// Serves requests until `shutdown` resolves, then shuts down gracefully: it accepts no more
    /// connections, completes long polls, and gives in-flight requests `shutdown_ms` to finish.
    ///
    /// # Errors
    /// [`RunError::EngineStopped`] if the engine stopped by itself.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        let Self { config, listener, operator, tls, app, host, running } = self;
        let mut alive = host.changes();
        let (mut died, app_to_close) = (false, app.clone());
        let until = async {
            let engine_gone = async { while alive.changed().await.is_ok() {} };
            tokio::select! {
                () = shutdown => {}
                () = engine_gone => died = true,
            }
            // After a delay, so that every connection already sends its next response as its last
            // one.
            tokio::spawn(async move {
                tokio::time::sleep(LONG_POLL_DRAIN).await;
                app_to_close.begin_shutdown();
            });
            if died { ENGINE_STOPPED_GRACE } else { Duration::from_millis(config.shutdown_ms) }
        };
        if operator.is_some() && config.page {
            match server::operator::write_token(app.node(), &config.data) {
                Ok(path) => {
                    tracing::info!(token = %path.display(), "the operator's page has a token")
                }
                Err(error) => tracing::warn!(%error, "the operator's page has no token"),
            }
        }
        let watched = operator.map(|listener| {
            let (config, router) = (config.clone(), server::operator_router(app.clone()));
            let seen = server::connection_metrics::ConnectionMetrics::default();
            tokio::spawn(async move {
                let never = std::future::pending();
                server::listen::serve(listener, router, &config, None, seen, never).await;
            })
        });
        let seen = app.connection_metrics();
        let sweeping = tokio::spawn(server::sweep(app.clone()));
        let looking = tls.clone().map(|tls| tokio::spawn(tls.watch_files()));
        let control_server = control::listen(&config.data)
            .map(|control| tokio::spawn(control.serve(host.clone(), config.data.clone())));
        server::listen::serve(listener, router(app), &config, tls, seen, until).await;
        sweeping.abort();
        if let Some(looking) = looking {
            looking.abort();
        }
        if let Some(asked) = control_server {
            asked.abort();
        }
        host.stop().await;
        if let Some(watched) = watched {
            watched.abort();
        }
        // The threads end by themselves. The runtime must not block while it joins them.
        if tokio::task::spawn_blocking(move || running.join()).await.is_err() {
            tracing::error!("the coordinator's threads could not be joined");
        }
        if died { Err(RunError::EngineStopped) } else { Ok(()) }
    }
}

/// Most connections that wait to be accepted; the kernel has its own limit (`net.core.somaxconn`).
/// The default of 128 is too small: a client whose connection does not fit into the queue believes
/// that it is connected, but the server never sees it.
const ACCEPT_QUEUE_MAX: u32 = 4_096;

/// Opens a listener for [`open`].
///
/// # Errors
/// The system's error; `AddrInUse` if another process listens on the address.
pub fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(ACCEPT_QUEUE_MAX)
}

async fn operator_listener(config: &Config) -> Result<Option<TcpListener>, RunError> {
    let Some(address) = config.metrics_listen else {
        return Ok(None);
    };
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| RunError::OperatorListener(address, error))?;
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "serving metrics for the operator");
    }
    Ok(Some(listener))
}
