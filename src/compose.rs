//! The only place that picks concrete parts: which engine computes, which ledger keeps the money.

use std::path::{Path, PathBuf};

use anyhow::Context;
use florin_learning::Engine;
use florin_learning::select::EngineError;
use florin_ledger::{Clock, Ledger, LocalChain, RemoteLedger};
use florin_ledger_ethereum::{EthereumLedger, Settings};
use florin_participant::{Client, Wallet};
use florin_protocol::{EthereumInfo, LedgerInfo, NodeSigner};

use crate::chain;
use crate::cli::{EngineArg, NodeArg};
use crate::failure::Failure;

/// The engine that was asked for.
///
/// # Errors
/// [`Failure`] with code `NO_ENGINE`: what is missing and what to do.
pub(crate) fn engine(arg: EngineArg) -> anyhow::Result<Box<dyn Engine>> {
    florin_learning::engine(arg.engine, arg.threads.into()).map_err(|error| no_engine(&error))
}

fn no_engine(error: &EngineError) -> anyhow::Error {
    let message = format!("{error}; `florin doctor` says what this machine has");
    Failure::input("NO_ENGINE", message).into()
}

/// The ledger of a market, to look at.
///
/// # Errors
/// `LEDGER_UNAVAILABLE`; those of [`ethereum`]; `NODE_NOT_NEEDED` for a node where there is no chain to ask.
pub(crate) fn ledger(
    client: &Client,
    url: &str,
    node: &NodeArg,
) -> anyhow::Result<Box<dyn Ledger>> {
    match client.ledger() {
        LedgerInfo::Embedded => embedded(client, url, node),
        // Nobody writes without a wallet, so nothing is ever put there.
        LedgerInfo::Ethereum(info) => {
            Ok(Box::new(ethereum(client, info, node, &std::env::temp_dir().join("florin-outbox"))?))
        }
    }
}

/// The ledger of a market, for a wallet to act on: what an earlier run left in its outbox is brought to an end first.
///
/// # Errors
/// As [`ledger`], and `LEDGER_REFUSED` codes of what was left.
pub(crate) fn ledger_of(
    client: &Client,
    url: &str,
    node: &NodeArg,
    (wallet, file): (&Wallet, &Path),
) -> anyhow::Result<Box<dyn Ledger>> {
    match client.ledger() {
        LedgerInfo::Embedded => embedded(client, url, node),
        LedgerInfo::Ethereum(info) => {
            let ledger = ethereum(client, info, node, &chain::outbox(file))?;
            ledger.resume(wallet)?;
            Ok(Box::new(ledger))
        }
    }
}

fn embedded(client: &Client, url: &str, node: &NodeArg) -> anyhow::Result<Box<dyn Ledger>> {
    if node.rpc.is_some() || node.deployment.is_some() {
        let message = format!(
            "the market at {url} keeps its ledger itself: leave out --rpc and --deployment (FLORIN_RPC, \
             FLORIN_DEPLOYMENT), which name a chain"
        );
        return Err(Failure::input("NODE_NOT_NEEDED", message).into());
    }
    let ledger = RemoteLedger::connect_trusting(url, client.trust())?;
    let market = client.coordinator().market;
    if ledger.market() != market {
        let (chain, genesis) = (ledger.market().chain, ledger.market().genesis);
        let message = format!(
            "the coordinator's ledger is chain {chain} with genesis {genesis}, and its market has {}",
            market.genesis
        );
        return Err(Failure::no("WRONG_MARKET", message).into());
    }
    Ok(Box::new(ledger))
}

/// The contracts that a coordinator tells of, through one's own node or the one it suggests.
///
/// # Errors
/// `NO_NODE`, `BAD_URL`, `WRONG_CHAIN`, `WRONG_CONTRACTS`, `WRONG_MARKET`, `BAD_DEPLOYMENT`, `LEDGER_UNAVAILABLE`.
fn ethereum(
    client: &Client,
    info: &EthereumInfo,
    node: &NodeArg,
    outbox: &Path,
) -> anyhow::Result<EthereumLedger> {
    let market = client.coordinator().market;
    let deployment = chain::deployment_of(market, info, node.deployment.as_deref())?;
    let Some(rpc) = node.rpc.as_ref().or(info.rpc.as_ref()) else {
        let message = format!(
            "the market is on chain {}, and its coordinator suggests no node: name one with --rpc",
            market.chain
        );
        return Err(Failure::input("NO_NODE", message).into());
    };
    let endpoint = chain::endpoint(rpc)?;
    chain::check(&endpoint, &deployment)?;
    let settings = node.spending.over(Settings::default());
    Ok(EthereumLedger::open(endpoint, deployment, settings, outbox)?)
}

/// The embedded chain's file within a coordinator's data folder.
pub(crate) fn chain_file(data: &Path) -> PathBuf {
    data.join("ledger.redb")
}

/// Opens the embedded chain of a coordinator, which is its operator.
///
/// # Errors
/// Those of [`LocalChain::open`].
pub(crate) fn local_chain(
    data: &Path,
    operator: NodeSigner,
    clock: Clock,
) -> anyhow::Result<LocalChain> {
    Ok(LocalChain::open(&chain_file(data), operator, clock)?)
}

/// A number that nobody else has drawn; 63 bits, as TOML integers have.
pub(crate) fn random_number() -> anyhow::Result<u64> {
    use rand::TryRng;
    let mut bytes = [0u8; 8];
    rand::rngs::SysRng
        .try_fill_bytes(&mut bytes)
        .context("no randomness from the operating system")?;
    Ok(u64::from_le_bytes(bytes) >> 1)
}
