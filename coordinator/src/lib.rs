//! Runs the round: a pure engine, its journal and its server.
//!
//! It owns the order of a round, the journal that remembers it and the HTTP interface through which participants,
//! buyers, providers and auditors take part. It holds no money: the ledger it is handed does, and pays what
//! [`florin_protocol::close_round`] decides. It does no learning either: the valuer it is handed computes what updates
//! were worth, and anybody can compute it again.
//!
//! * [`engine`] is a function, (state, event, now) → effects; pure.
//! * [`store`] has journal and blobs, one folder, one owner.
//! * [`host`] is one thread around the engine, and its workers.
//! * [`server`] has routes, limits, signatures.
//! * [`config`] has the settings.
//! * [`check`] reads a data folder back; [`backup`] copies one, running or not, and brings it back; [`control`] is the
//!   operator's way to a running coordinator.
//!
//! [`run`] puts them together.

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
pub mod server;

pub use config::{Config, ConfigError};
pub use florin_store::{Bucket, BucketError, Folder, FolderError};
pub use host::{
    Clock, Host, LedgerDoor, LedgerPlace, ManualClock, Parts, StartError, SteadyClock, SystemClock,
    Valuer, ValuerError, WorkValuer,
};
pub use server::tls::{Tls, TlsError};
pub use server::{App, WAITING_THREADS_MAX, openapi, router};

use host::Running;

/// How long after connections were told to end those are answered that wait for news.
const LAST_ANSWERS: Duration = Duration::from_millis(50);
/// How long requests have to end when the engine stopped by itself and can answer none.
const GRACE_WITHOUT_ENGINE: Duration = Duration::from_secs(5);

/// Why a coordinator did not run, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its data folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The bucket behind it.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// Its journal or threads.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Its certificate or key.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address for the operator's eyes.
    #[error("cannot listen on metrics_listen = {0}: {1} [METRICS_ADDRESS]")]
    Operator(SocketAddr, std::io::Error),
    /// The engine stopped by itself; the log says why.
    #[error("the engine stopped: see the log, then start again [ENGINE_STOPPED]")]
    Stopped,
}

/// A coordinator that has read what it must know and has not answered anybody yet.
pub struct Opened {
    config: Config,
    listener: TcpListener,
    operator: Option<TcpListener>,
    tls: Option<Tls>,
    app: App,
    host: Host,
    running: Running,
}

/// Reads settings, journal and certificate for a coordinator on `listener`.
///
/// # Errors
/// [`RunError`].
pub async fn open(
    config: &Config,
    listener: TcpListener,
    parts: Parts,
) -> Result<Opened, RunError> {
    config.check()?;
    let bucket = Bucket::open(&config.blobs, |name| std::env::var(name).ok())?;
    let folder = Folder::take_with(&config.data, bucket)?;
    let tls = Tls::open(config)?;
    let (ledger, node, place) =
        (Arc::clone(&parts.ledger), parts.node.clone(), parts.place.clone());
    let coordinator = parts.wallet.address();
    let operator = operator_listener(config).await?;
    let (host, running) = Host::start_with(folder, parts, &config.journal)?;
    let app = App::new(host.clone(), config.clone(), ledger, node, coordinator, place);
    let config = config.clone();
    Ok(Opened { config, listener, operator, tls, app, host, running })
}

/// Runs a coordinator on `listener` until `shutdown` resolves; what was begun is continued at the next start.
///
/// # Errors
/// [`RunError`].
pub async fn run(
    config: &Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
    parts: Parts,
) -> Result<(), RunError> {
    open(config, listener, parts).await?.serve(shutdown).await
}

impl Opened {
    /// The certificate that everybody will be shown, if the port speaks TLS.
    #[must_use]
    pub const fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Its engine, to ask whether it is well.
    #[must_use]
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// Answers until `shutdown` resolves. Then nobody connects any more, who waits for something to happen is answered
    /// at once, and uploads in flight end, within the settings' `shutdown_ms`.
    ///
    /// # Errors
    /// [`RunError::Stopped`] if the engine stopped by itself.
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
            // A little later, so that by then every connection knows that its next answer is its last.
            tokio::spawn(async move {
                tokio::time::sleep(LAST_ANSWERS).await;
                app_to_close.close();
            });
            if died { GRACE_WITHOUT_ENGINE } else { Duration::from_millis(config.shutdown_ms) }
        };
        let watched = operator.map(|listener| {
            let (config, router) = (config.clone(), server::operator_router(app.clone()));
            let seen = server::listen::Seen::default();
            tokio::spawn(async move {
                let never = std::future::pending();
                server::listen::serve(listener, router, &config, None, seen, never).await;
            })
        });
        let seen = app.door();
        let sweeping = tokio::spawn(server::sweep(app.clone()));
        let looking = tls.clone().map(|tls| tokio::spawn(tls.keep_looking()));
        let asked = control::listen(&config.data)
            .map(|control| tokio::spawn(control.serve(host.clone(), config.data.clone())));
        server::listen::serve(listener, router(app), &config, tls, seen, until).await;
        sweeping.abort();
        if let Some(looking) = looking {
            looking.abort();
        }
        if let Some(asked) = asked {
            asked.abort();
        }
        host.stop().await;
        if let Some(watched) = watched {
            watched.abort();
        }
        // The threads end by themselves; waiting for them must not hold up the runtime.
        if tokio::task::spawn_blocking(move || running.join()).await.is_err() {
            tracing::error!("waiting for the coordinator's threads failed");
        }
        if died { Err(RunError::Stopped) } else { Ok(()) }
    }
}

/// Connections that may wait to be accepted; the kernel has a limit of its own (`net.core.somaxconn`). The usual 128 are
/// too few: a client beyond them believes that it is connected, and nobody knows of it.
const ACCEPT_QUEUE_MAX: u32 = 4_096;

/// Listens on an address, for [`open`].
///
/// # Errors
/// What the system says; `AddrInUse` where somebody else listens.
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
    let listener = listener.map_err(|error| RunError::Operator(address, error))?;
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "metrics, for the operator");
    }
    Ok(Some(listener))
}
