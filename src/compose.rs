//! The only place that selects implementations: the compute engine and the ledger.

use std::path::{Path, PathBuf};

use anyhow::Context;
use florin_learning::Engine;
use florin_learning::select::{EngineError, EngineOptions};
use florin_learning::trainer::{TrainerEngine, TrainerError, TrainerHost};
use florin_ledger::{EmbeddedChain, FollowError, Ledger, LedgerClock, RemoteLedger};
use florin_participant::{Client, HeadError, Wallet, follow_recorded_head};
use florin_protocol::{LedgerInfo, NodeSigner, TaskSpec};

use crate::cli::{EngineArg, NodeArg};
use crate::ethereum;
use crate::failure::Failure;

/// The engine that the arguments select.
///
/// # Errors
/// [`Failure`] with code `NO_ENGINE`: the missing part and a remedy.
pub(crate) fn engine(arg: EngineArg) -> anyhow::Result<Box<dyn Engine>> {
    engine_with(arg, EngineOptions::default())
}

/// The same with options.
///
/// # Errors
/// As [`engine`].
pub(crate) fn engine_with(
    arg: EngineArg,
    options: EngineOptions,
) -> anyhow::Result<Box<dyn Engine>> {
    florin_learning::select::engine_with(arg.engine, arg.threads.into(), options)
        .map_err(|error| no_engine(&error))
}

/// The same, which also runs trainers.
///
/// # Errors
/// As [`engine`].
pub(crate) fn engine_with_trainers(
    arg: EngineArg,
    host: TrainerHost,
) -> anyhow::Result<Box<dyn Engine>> {
    Ok(Box::new(TrainerEngine::new(host, engine(arg)?)))
}

/// Checks that the trainers which this machine accepts have a sandbox, before a deposit or a task
/// depends on it.
///
/// # Errors
/// `SANDBOX_MISSING`, `TRAINER_SEES_SECRETS`.
pub(crate) fn check_sandbox(host: &TrainerHost) -> anyhow::Result<()> {
    if host.accepted.is_empty() {
        return Ok(());
    }
    host.check_sandbox().map_err(trainer_refused)
}

/// Refuses a task whose model is a trainer that this machine does not run.
///
/// # Errors
/// `TRAINER_NOT_ACCEPTED`, `SANDBOX_MISSING`, `TRAINER_SEES_SECRETS`.
pub(crate) fn check_trainer(spec: &TaskSpec, host: &TrainerHost) -> anyhow::Result<()> {
    let Some(trainer) = spec.model.trainer() else { return Ok(()) };
    let accepted = host.check_accepted(&trainer.graph.digest.0);
    accepted.and_then(|()| host.check_sandbox()).map_err(trainer_refused)
}

/// The failure of a trainer that cannot be used here.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn trainer_refused(error: TrainerError) -> anyhow::Error {
    Failure::input(error.code(), error.to_string()).into()
}

fn no_engine(error: &EngineError) -> anyhow::Error {
    let message = format!("{error}; run `florin doctor` to see what this machine provides");
    Failure::input("NO_ENGINE", message).into()
}

/// Opens the ledger of a market for reading.
///
/// # Errors
/// `LEDGER_UNAVAILABLE`; those of [`ethereum::reading_ledger`]; `NODE_NOT_NEEDED` if a node is given for an
/// embedded ledger.
pub(crate) fn ledger(
    client: &Client,
    url: &str,
    node: &NodeArg,
) -> anyhow::Result<Box<dyn Ledger>> {
    match client.ledger() {
        LedgerInfo::Embedded => Ok(Box::new(embedded(client, url, node)?)),
        LedgerInfo::Ethereum(info) => ethereum::reading_ledger(client, info, node),
    }
}

/// Opens the ledger of a market for a wallet that writes. Pending transactions in the wallet's
/// outbox are completed first.
///
/// # Errors
/// As [`ledger`], and the codes of the ledger's refusals of pending transactions.
pub(crate) fn signing_ledger(
    client: &Client,
    url: &str,
    node: &NodeArg,
    signer: (&Wallet, &Path),
) -> anyhow::Result<Box<dyn Ledger>> {
    match client.ledger() {
        LedgerInfo::Embedded => Ok(Box::new(embedded(client, url, node)?)),
        LedgerInfo::Ethereum(info) => ethereum::signing_ledger(client, info, node, signer),
    }
}

/// Connects to a market's embedded ledger, and checks that it still has the newest block that was
/// recorded.
///
/// # Errors
/// `NODE_NOT_NEEDED`, `WRONG_MARKET`, `LEDGER_FORK`, `INVALID_HEAD`, `LEDGER_UNAVAILABLE`.
pub(crate) fn embedded(client: &Client, url: &str, node: &NodeArg) -> anyhow::Result<RemoteLedger> {
    if node.rpc.is_some() || node.deployment.is_some() {
        let message = format!(
            "the market at {url} has an embedded ledger: remove --rpc and --deployment (or \
             FLORIN_RPC and FLORIN_DEPLOYMENT), which are for a market on Ethereum"
        );
        return Err(Failure::input("NODE_NOT_NEEDED", message).into());
    }
    let ledger = RemoteLedger::connect_with_trust_anchors(url, client.trust())?;
    let market = client.coordinator().market;
    if ledger.market() != market {
        let (chain, genesis) = (ledger.market().chain, ledger.market().genesis);
        let message = format!(
            "the coordinator's ledger has chain {chain} and genesis {genesis}, but its market has \
             genesis {}",
            market.genesis
        );
        return Err(Failure::negative("WRONG_MARKET", message).into());
    }
    if let Some(pin_file) = client.pin_file() {
        follow_recorded_head(&ledger, &pin_file.with_extension("head.json"))
            .map_err(head_failure)?;
    }
    Ok(ledger)
}

/// The failure of checking a ledger's signed heads.
pub(crate) fn head_failure(error: HeadError) -> anyhow::Error {
    let (code, text) = (error.code(), error.to_string());
    match error {
        HeadError::Follow(FollowError::Ledger(error)) => error.into(),
        HeadError::InvalidFile { .. } => Failure::input(code, text).into(),
        _ => Failure::negative(code, text.replace(&format!(" [{code}]"), "")).into(),
    }
}

/// The file of the embedded ledger in a coordinator's data folder.
pub(crate) fn chain_file(data: &Path) -> PathBuf {
    data.join("ledger.redb")
}

/// Opens the embedded ledger of a coordinator; the coordinator is the ledger's operator.
///
/// # Errors
/// Those of [`EmbeddedChain::open`].
pub(crate) fn embedded_ledger(
    data: &Path,
    operator: NodeSigner,
    clock: LedgerClock,
) -> anyhow::Result<EmbeddedChain> {
    Ok(EmbeddedChain::open(&chain_file(data), operator, clock)?)
}

/// A random 63-bit number; TOML integers have 63 bits.
pub(crate) fn random_number() -> anyhow::Result<u64> {
    Ok(u64::from_le_bytes(random_bytes()?) >> 1)
}

/// Random bytes of the operating system.
pub(crate) fn random_bytes<const N: usize>() -> anyhow::Result<[u8; N]> {
    use rand::TryRng;
    let mut bytes = [0u8; N];
    rand::rngs::SysRng
        .try_fill_bytes(&mut bytes)
        .context("no randomness from the operating system")?;
    Ok(bytes)
}
