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
//!
//! [`run`] puts them together.

use std::future::Future;
use std::sync::Arc;

use tokio::net::TcpListener;

pub mod config;
pub mod engine;
pub mod host;
pub mod server;
pub mod store;

pub use config::{Config, ConfigError};
pub use host::{
    Clock, Host, LedgerDoor, LedgerPlace, ManualClock, Parts, StartError, SystemClock, Valuer,
    ValuerError, WorkValuer,
};
pub use server::{App, router};
pub use store::{Folder, FolderError};

/// Why a coordinator did not run, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its data folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Its journal or threads.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The address for the operator's eyes.
    #[error("cannot listen on metrics_listen = {0}: {1} [METRICS_ADDRESS]")]
    Operator(std::net::SocketAddr, std::io::Error),
    /// The engine stopped by itself; the log says why.
    #[error("the engine stopped: see the log, then start again [ENGINE_STOPPED]")]
    Stopped,
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
    config.check()?;
    let folder = Folder::take(&config.data)?;
    let (ledger, node, place) =
        (Arc::clone(&parts.ledger), parts.node.clone(), parts.place.clone());
    let coordinator = parts.wallet.address();
    let (host, running) = Host::start(folder, parts)?;
    let app = App::new(host.clone(), config.clone(), ledger, node, coordinator, place);
    let operator = operator_listener(config).await?;
    let mut alive = host.changes();
    let mut died = false;
    let until = async {
        let engine_gone = async { while alive.changed().await.is_ok() {} };
        tokio::select! {
            () = shutdown => {}
            () = engine_gone => died = true,
        }
        // Before the connections end, so that nobody is kept waiting for what will not come.
        host.stop().await;
    };
    let watched = operator.map(|listener| {
        let (config, router) = (config.clone(), server::operator_router(app.clone()));
        let never = std::future::pending();
        tokio::spawn(async move { server::listen::serve(listener, router, &config, never).await })
    });
    server::listen::serve(listener, router(app), config, until).await;
    if let Some(watched) = watched {
        watched.abort();
    }
    // The threads end by themselves; waiting for them must not hold up the runtime.
    if tokio::task::spawn_blocking(move || running.join()).await.is_err() {
        tracing::error!("waiting for the coordinator's threads failed");
    }
    if died { Err(RunError::Stopped) } else { Ok(()) }
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
