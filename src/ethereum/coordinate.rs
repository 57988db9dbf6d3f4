//! A coordinator whose market is on an Ethereum chain.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use florin_coordinator::LedgerEndpoint;
use florin_ledger::{Ledger, LedgerError};
use florin_ledger_ethereum::{Endpoint, EthereumLedger, Settings, chain_id};
use florin_participant::{Backoff, Shutdown, Wallet, retry_with_backoff};
use florin_protocol::MarketId;

use super::node;
use crate::cli::Coordinate;
use crate::failure::Failure;

/// A market's contracts, opened for its coordinator.
pub(crate) struct CoordinatorContracts {
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) place: LedgerEndpoint,
    /// Locked for as long as the coordinator runs.
    pub(crate) lock: File,
}

/// Opens the contracts, and completes the pending transactions in the outbox. Waits for a node that
/// does not answer, because it may start at the same time as the coordinator.
pub(crate) fn open(
    arguments: &Coordinate,
    settings: Settings,
    wallet: &Wallet,
) -> anyhow::Result<CoordinatorContracts> {
    if arguments.genesis.is_some() || !arguments.allocate.is_empty() {
        let message = "--genesis and --allocate are for the embedded ledger: on Ethereum the token \
            exists already, so remove them";
        return Err(Failure::input("GENESIS_NOT_NEEDED", message).into());
    }
    let missing = |flag: &str, what: &str| {
        let message = format!("--ledger ethereum needs {flag}: {what}");
        anyhow::Error::from(Failure::input("NO_NODE", message))
    };
    let file = arguments.node.deployment.as_ref();
    let file =
        file.ok_or_else(|| missing("--deployment FILE", "`florin ledger deploy` writes it"))?;
    let rpc = arguments.node.rpc.as_ref();
    let rpc = rpc.ok_or_else(|| missing("--rpc URL", "a node of the market's chain"))?;
    let deployment = node::read_deployment(file)?;
    let endpoint = node::endpoint(rpc)?;
    let outbox = node::outbox(&arguments.wallet.wallet);
    let node: Arc<dyn Endpoint> = endpoint.clone();
    retry_until_reachable(&|| chain_id(&node))?;
    node::check_history(&endpoint, &deployment)?;
    let lock = lock_market(&outbox, deployment.market())?;
    let ledger = retry_until_reachable(&|| {
        let ledger = EthereumLedger::open(endpoint.clone(), deployment, settings, &outbox)?;
        ledger.resume(wallet)?;
        Ok(ledger)
    })?;
    let info = node::public_info(&deployment, suggested(rpc, arguments.public_rpc.as_ref()));
    Ok(CoordinatorContracts {
        ledger: Arc::new(ledger),
        place: LedgerEndpoint::Ethereum(info),
        lock,
    })
}

/// Refuses a second coordinator with the same wallet and market, because two data folders would
/// then serve the same tasks. The embedded ledger has a file lock; contracts have none.
fn lock_market(outbox: &Path, market: MarketId) -> anyhow::Result<File> {
    let path = outbox.join(format!("coordinator-{}.lock", market.genesis.short()));
    let shown = path.display();
    std::fs::create_dir_all(outbox).with_context(|| shown.to_string())?;
    let opened = File::options().append(true).create(true).open(&path);
    let file = opened.with_context(|| shown.to_string())?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let message = format!(
                "a coordinator of this market already runs with this wallet ({shown} is locked): \
                 stop it first; its data folder has the market's rounds"
            );
            Err(Failure::input("COORDINATOR_ALREADY_RUNNING", message).into())
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(|| shown.to_string()),
    }
}

fn retry_until_reachable<T>(
    attempt: &dyn Fn() -> Result<T, LedgerError>,
) -> Result<T, LedgerError> {
    let on_retry = |error: &LedgerError| tracing::warn!(%error, "waiting for the node");
    retry_with_backoff(Backoff::default(), &Shutdown::new(), on_retry, attempt)
}

/// The node that the coordinator suggests to clients: never a URL that may contain a secret, except
/// as an explicit --public-rpc.
fn suggested(rpc: &str, public: Option<&String>) -> Option<String> {
    if let Some(public) = public {
        return Some(public.clone());
    }
    if node::seems_secret(rpc) {
        tracing::warn!(
            "--rpc may contain a secret, so it is not published: set a node for clients with \
             --public-rpc"
        );
        return None;
    }
    Some(rpc.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_coordinator_with_the_same_wallet_and_market_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let outbox = folder.path().join("w.outbox");
        let market = |n: u8| MarketId {
            chain: florin_protocol::ChainId(1),
            genesis: florin_protocol::Digest([n; 32]),
        };
        let running = lock_market(&outbox, market(1)).unwrap();
        let error = lock_market(&outbox, market(1)).unwrap_err();
        assert_eq!(crate::failure::classify(&error).0, "COORDINATOR_ALREADY_RUNNING");
        lock_market(&outbox, market(2)).unwrap();
        drop(running);
        lock_market(&outbox, market(1)).unwrap();
    }

    #[test]
    fn a_node_url_with_a_key_is_never_published() {
        let (open, secret) = ("http://127.0.0.1:8545", "https://node.example/v3/0123456789");
        assert_eq!(suggested(open, None).as_deref(), Some(open));
        assert_eq!(suggested(secret, None), None);
        assert_eq!(suggested(secret, Some(&open.to_owned())).as_deref(), Some(open));
    }
}
