//! A coordinator whose market is on an Ethereum chain.

use std::sync::Arc;

use florin_coordinator::LedgerPlace;
use florin_ledger::ethereum::{Endpoint, EthereumLedger, Settings, chain_id};
use florin_ledger::{Ledger, LedgerError};
use florin_participant::{Patience, Shutdown, Wallet, patiently};

use crate::chain;
use crate::cli::Coordinate;
use crate::failure::Failure;

/// Opens the contracts, and brings to an end what an earlier run left in the outbox. A node that does not answer is
/// waited for, as it may start together with the coordinator.
pub(super) fn open(
    arguments: &Coordinate,
    settings: Settings,
    wallet: &Wallet,
) -> anyhow::Result<(Arc<dyn Ledger>, LedgerPlace)> {
    if arguments.genesis.is_some() || !arguments.allocate.is_empty() {
        let message = "--genesis and --allocate make the embedded ledger's money: on Ethereum the token has been made";
        return Err(Failure::input("NO_GENESIS_HERE", message).into());
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
    let deployment = chain::read_deployment(file)?;
    let endpoint = chain::endpoint(rpc)?;
    let outbox = chain::outbox(&arguments.wallet.wallet);
    let node: Arc<dyn Endpoint> = endpoint.clone();
    wait_for(&|| chain_id(&node))?;
    chain::check_history(&endpoint, &deployment)?;
    let ledger = wait_for(&|| {
        let ledger = EthereumLedger::open(endpoint.clone(), deployment, settings, &outbox)?;
        ledger.resume(wallet)?;
        Ok(ledger)
    })?;
    let info = chain::info_of(&deployment, suggested(rpc, arguments.public_rpc.as_ref()));
    Ok((Arc::new(ledger), LedgerPlace::Ethereum(info)))
}

fn wait_for<T>(attempt: &dyn Fn() -> Result<T, LedgerError>) -> Result<T, LedgerError> {
    let told = |error: &LedgerError| tracing::warn!(%error, "waiting for the node");
    patiently(Patience::default(), &Shutdown::new(), told, attempt)
}

/// The node that is suggested to everybody else: never one whose address may hold a key, unless somebody says so.
fn suggested(rpc: &str, public: Option<&String>) -> Option<String> {
    if let Some(public) = public {
        return Some(public.clone());
    }
    if chain::seems_secret(rpc) {
        tracing::warn!(
            "--rpc may hold a key, so it is suggested to nobody: name a node for others with --public-rpc"
        );
        return None;
    }
    Some(rpc.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_a_key_is_suggested_to_nobody() {
        let (open, secret) = ("http://127.0.0.1:8545", "https://node.example/v3/0123456789");
        assert_eq!(suggested(open, None).as_deref(), Some(open));
        assert_eq!(suggested(secret, None), None);
        assert_eq!(suggested(secret, Some(&open.to_owned())).as_deref(), Some(open));
    }
}
