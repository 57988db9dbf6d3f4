//! A market's ledger on Ethereum, through the user's node or the one that the coordinator suggests.

use std::path::Path;

use florin_ledger::Ledger;
use florin_ledger_ethereum::{Deployment, EthereumLedger, Settings};
use florin_participant::{Client, Wallet};
use florin_protocol::EthereumInfo;

use super::node as contracts;
use crate::cli::NodeArg;
use crate::failure::Failure;

/// Opens the contracts that the coordinator names, for reading. A ledger without a wallet never
/// writes, so its outbox stays empty.
///
/// # Errors
/// `NO_NODE`, `INVALID_URL`, `WRONG_CHAIN`, `WRONG_CONTRACTS`, `WRONG_MARKET`, `INVALID_DEPLOYMENT`,
/// `LEDGER_UNAVAILABLE`.
pub(crate) fn reading_ledger(
    client: &Client,
    info: &EthereumInfo,
    node: &NodeArg,
) -> anyhow::Result<Box<dyn Ledger>> {
    Ok(Box::new(open(client, info, node, &std::env::temp_dir().join("florin-outbox"))?))
}

/// Opens the contracts for a wallet that writes. Pending transactions in the wallet's outbox are
/// completed first.
///
/// # Errors
/// As [`reading_ledger`], and the codes of the ledger's refusals of pending transactions.
pub(crate) fn signing_ledger(
    client: &Client,
    info: &EthereumInfo,
    node: &NodeArg,
    (wallet, file): (&Wallet, &Path),
) -> anyhow::Result<Box<dyn Ledger>> {
    let ledger = open(client, info, node, &contracts::outbox(file))?;
    ledger.resume(wallet)?;
    Ok(Box::new(ledger))
}

/// Opens the contracts of a deployment file for a wallet that writes, without a coordinator.
///
/// # Errors
/// `NO_MARKET`, `NO_NODE`, and as [`signing_ledger`].
pub(crate) fn ledger_without_coordinator(
    node: &NodeArg,
    (wallet, file): (&Wallet, &Path),
) -> anyhow::Result<Box<dyn Ledger>> {
    let Some(deployment) = &node.deployment else {
        let message = "no market: give its contracts with --deployment, or its coordinator with \
            --market";
        return Err(Failure::input("NO_MARKET", message).into());
    };
    let deployment = contracts::read_deployment(deployment)?;
    let Some(rpc) = &node.rpc else {
        let message = format!("no node: set a node of chain {} with --rpc", deployment.chain);
        return Err(Failure::input("NO_NODE", message).into());
    };
    let ledger = open_with(rpc, deployment, node, &contracts::outbox(file))?;
    ledger.resume(wallet)?;
    Ok(Box::new(ledger))
}

fn open(
    client: &Client,
    info: &EthereumInfo,
    node: &NodeArg,
    outbox: &Path,
) -> anyhow::Result<EthereumLedger> {
    let market = client.coordinator().market;
    let deployment = contracts::verified_deployment(market, info, node.deployment.as_deref())?;
    let Some(rpc) = node.rpc.as_ref().or(info.rpc.as_ref()) else {
        let message = format!(
            "the market is on chain {}, and its coordinator suggests no node: set one with --rpc",
            market.chain
        );
        return Err(Failure::input("NO_NODE", message).into());
    };
    open_with(rpc, deployment, node, outbox)
}

fn open_with(
    rpc: &str,
    deployment: Deployment,
    node: &NodeArg,
    outbox: &Path,
) -> anyhow::Result<EthereumLedger> {
    let endpoint = contracts::endpoint(rpc)?;
    contracts::check(&endpoint, &deployment)?;
    let settings = node.spending.apply_to(Settings::default());
    Ok(EthereumLedger::open(endpoint, deployment, settings, outbox)?)
}
