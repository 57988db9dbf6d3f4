//! The node, the file that names a market's contracts, and the
//! outbox folder next to a wallet.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use florin_ledger::LedgerError;
use florin_ledger_ethereum::{
    self as ethereum, Deployment, DeploymentMismatch, Endpoint, HttpEndpoint,
};
use florin_protocol::{EthereumInfo, MarketId};

use crate::failure::Failure;

/// Maximum size of a deployment file, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The RPC endpoint of a node. No request is sent yet.
///
/// # Errors
/// `INVALID_URL`.
pub(crate) fn endpoint(rpc: &str) -> anyhow::Result<Arc<HttpEndpoint>> {
    let endpoint = HttpEndpoint::new(rpc).map_err(|error| match error {
        LedgerError::Unavailable(what) => Failure::input("INVALID_URL", what),
        other => Failure::input("INVALID_URL", other.to_string()),
    })?;
    Ok(Arc::new(endpoint))
}

/// The error message if a node does not answer its first request.
pub(crate) fn unreachable_node_message(endpoint: &dyn Endpoint) -> String {
    format!(
        "{} does not answer as an Ethereum node: check that it runs, and that its URL is right \
         (http or https, host, port, key)",
        endpoint.name()
    )
}

/// Refuses a node on another chain than the market's, and addresses without a market's contracts.
///
/// # Errors
/// `WRONG_CHAIN`, `WRONG_CONTRACTS`, `LEDGER_UNAVAILABLE`.
pub(crate) fn check(endpoint: &Arc<HttpEndpoint>, deployment: &Deployment) -> anyhow::Result<()> {
    let endpoint: Arc<dyn Endpoint> = endpoint.clone();
    let found = ethereum::check_deployment(&endpoint, deployment)
        .with_context(|| unreachable_node_message(&*endpoint))?;
    found.map_err(|foreign| foreign_contracts(&foreign).into())
}

/// As [`check_deployment`]; also refuses a deployment whose block is later than the market's, because earlier
/// events would be missed.
///
/// # Errors
/// Those of [`check_deployment`], `INVALID_DEPLOYMENT`.
pub(crate) fn check_history(
    endpoint: &Arc<HttpEndpoint>,
    deployment: &Deployment,
) -> anyhow::Result<()> {
    check(endpoint, deployment)?;
    let endpoint: Arc<dyn Endpoint> = endpoint.clone();
    if ethereum::market_predates_deployment(&endpoint, deployment)? {
        let message = format!(
            "the market at {} existed before block {}, which its deployment file names: write the \
             block of its creation, as a block explorer shows it",
            deployment.market, deployment.block
        );
        return Err(Failure::input("INVALID_DEPLOYMENT", message).into());
    }
    Ok(())
}

fn foreign_contracts(foreign: &DeploymentMismatch) -> Failure {
    let code = match foreign {
        DeploymentMismatch::OtherChain { .. } => "WRONG_CHAIN",
        DeploymentMismatch::NoCode { .. }
        | DeploymentMismatch::NotAMarket { .. }
        | DeploymentMismatch::OtherToken { .. } => "WRONG_CONTRACTS",
    };
    Failure::input(code, foreign.to_string())
}

/// Reads a deployment file.
///
/// # Errors
/// `INVALID_DEPLOYMENT`, and those of any file.
pub(crate) fn read_deployment(path: &Path) -> anyhow::Result<Deployment> {
    let shown = path.display();
    let bad = |what: String| Failure::input("INVALID_DEPLOYMENT", format!("{shown}: {what}"));
    let there = std::fs::metadata(path).with_context(|| shown.to_string())?;
    if there.is_dir() {
        return Err(bad("it is a folder: name a file".to_owned()).into());
    }
    let length = there.len();
    if length > FILE_BYTES_MAX {
        return Err(
            bad(format!("it has {length} bytes, but may have at most {FILE_BYTES_MAX}")).into()
        );
    }
    let bytes = std::fs::read(path).with_context(|| shown.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_| {
        bad("it is not a text file: use a file that `florin ledger deploy` wrote".to_owned())
    })?;
    toml::from_str(&text).map_err(|error| bad(error.to_string().trim().to_owned()).into())
}

/// Creates the file of a deployment before anything is deployed, so that a deployment that was paid
/// for is never lost because its file cannot be written. Never overwrites. An empty file, left by
/// an interrupted deployment, is reused unless the process that created it still runs.
///
/// # Errors
/// `DEPLOYMENT_EXISTS`, and those of any file.
pub(crate) fn new_deployment_file(path: &Path) -> anyhow::Result<File> {
    let shown = path.display();
    let opened = File::options().append(true).create(true).open(path);
    let file = opened.with_context(|| {
        format!("{shown} cannot be created, and nothing was deployed: check that its folder exists")
    })?;
    let exists = |what: &str| Failure::input("DEPLOYMENT_EXISTS", format!("{shown} {what}"));
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(exists("is being written by another process: wait for it").into());
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(|| shown.to_string()),
    }
    if file.metadata().with_context(|| shown.to_string())?.len() > 0 {
        let what = "already exists: name another file, or move this one away if its deployment is \
            not needed";
        return Err(exists(what).into());
    }
    Ok(file)
}

/// Writes a deployment into its new file.
///
/// # Errors
/// Those of any file.
pub(crate) fn write_deployment(mut file: &File, deployment: &Deployment) -> anyhow::Result<()> {
    let text = format!(
        "# A Florin market on Ethereum: use it with `florin coordinate --ledger ethereum \
         --deployment` and with --deployment of the other commands.\n{}",
        toml::to_string(deployment)?
    );
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all())?;
    Ok(())
}

/// The outbox of a wallet: a folder next to its key file, for the signed transactions to Ethereum.
pub(crate) fn outbox(wallet: &Path) -> PathBuf {
    wallet.with_extension("outbox")
}

/// The contracts of a deployment, as the coordinator publishes them.
pub(crate) fn public_info(deployment: &Deployment, rpc: Option<String>) -> EthereumInfo {
    let Deployment { token, market, registry, block, .. } = *deployment;
    EthereumInfo { token, market, registry, block, rpc }
}

/// The contracts that a coordinator publishes, if they match its market and the user's deployment
/// file.
///
/// # Errors
/// `WRONG_MARKET`, `INVALID_DEPLOYMENT`.
pub(crate) fn verified_deployment(
    market: MarketId,
    info: &EthereumInfo,
    file: Option<&Path>,
) -> anyhow::Result<Deployment> {
    let EthereumInfo { token, market: contract, registry, block, .. } = *info;
    let published = Deployment { chain: market.chain, token, market: contract, registry, block };
    if published.market() != market {
        let message = format!(
            "the coordinator names the contract {contract} on chain {}, but the genesis {} of its \
             market belongs to other contracts: do not send it anything",
            market.chain, market.genesis
        );
        return Err(Failure::negative("WRONG_MARKET", message).into());
    }
    let Some(file) = file else { return Ok(published) };
    let known = read_deployment(file)?;
    if known.market() != market {
        let message = format!(
            "the coordinator's market is the contract {contract} on chain {}, but {} names {} on \
             chain {}",
            market.chain,
            file.display(),
            known.market,
            known.chain
        );
        return Err(Failure::negative("WRONG_MARKET", message).into());
    }
    Ok(known)
}

/// Whether a node's URL may contain a secret, so that it must not be published.
pub(crate) fn seems_secret(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    authority.contains('@') || !matches!(path, "" | "/")
}

#[cfg(test)]
mod tests {
    use florin_protocol::{Address, ChainId};

    use super::*;

    fn deployment() -> Deployment {
        let address = |n: u8| Address([n; 20]);
        let (token, market, registry) = (address(1), address(2), address(3));
        Deployment { chain: ChainId(11_155_111), token, market, registry, block: 7 }
    }

    fn code(error: &anyhow::Error) -> String {
        crate::failure::classify(error).0
    }

    #[test]
    fn a_deployment_is_written_once_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deployment.toml");
        let file = new_deployment_file(&path).unwrap();
        write_deployment(&file, &deployment()).unwrap();
        assert_eq!(read_deployment(&path).unwrap(), deployment());
        assert_eq!(code(&new_deployment_file(&path).unwrap_err()), "DEPLOYMENT_EXISTS");
        drop(file);
        assert_eq!(code(&new_deployment_file(&path).unwrap_err()), "DEPLOYMENT_EXISTS");
        std::fs::write(&path, "chain = 1\n").unwrap();
        assert_eq!(code(&read_deployment(&path).unwrap_err()), "INVALID_DEPLOYMENT");
    }

    #[test]
    fn an_empty_deployment_file_is_reused_once_its_process_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deployment.toml");
        let running = new_deployment_file(&path).unwrap();
        let error = new_deployment_file(&path).unwrap_err();
        assert!(error.to_string().contains("is being written"), "{error}");
        assert_eq!(code(&error), "DEPLOYMENT_EXISTS");
        drop(running);
        write_deployment(&new_deployment_file(&path).unwrap(), &deployment()).unwrap();
        assert_eq!(read_deployment(&path).unwrap(), deployment());
        let nowhere = new_deployment_file(&folder.path().join("none").join("d.toml")).unwrap_err();
        assert_eq!(code(&nowhere), "FILE_NOT_FOUND");
    }

    #[test]
    fn a_coordinator_cannot_name_other_contracts_for_its_market() {
        let known = deployment();
        let (market, info) = (known.market(), public_info(&known, None));
        assert_eq!(verified_deployment(market, &info, None).unwrap(), known);
        let other = EthereumInfo { market: Address([9; 20]), ..info.clone() };
        assert_eq!(code(&verified_deployment(market, &other, None).unwrap_err()), "WRONG_MARKET");
        let elsewhere = MarketId { chain: ChainId(1), ..market };
        assert_eq!(code(&verified_deployment(elsewhere, &info, None).unwrap_err()), "WRONG_MARKET");
    }

    #[test]
    fn a_coordinator_whose_market_differs_from_the_deployment_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deployment.toml");
        write_deployment(&new_deployment_file(&path).unwrap(), &deployment()).unwrap();
        let known = deployment();
        let info = public_info(&known, None);
        assert!(verified_deployment(known.market(), &info, Some(&path)).is_ok());
        let other = Deployment { token: Address([8; 20]), ..known };
        let error = verified_deployment(other.market(), &public_info(&other, None), Some(&path))
            .unwrap_err();
        assert_eq!(code(&error), "WRONG_MARKET");
    }

    #[test]
    fn a_url_with_a_key_seems_secret() {
        for open in ["http://127.0.0.1:8545", "https://node.example/"] {
            assert!(!seems_secret(open), "{open}");
        }
        for secret in [
            "https://node.example/v3/0123456789abcdef",
            "https://me:word@node.example",
            "https://node.example/?key=1",
            "https://node.example?key=1",
        ] {
            assert!(seems_secret(secret), "{secret}");
        }
    }
}
