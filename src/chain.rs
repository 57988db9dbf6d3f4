//! An Ethereum chain as the commands see it: its node, the file that names a market's contracts, and the folder beside a
//! wallet that holds what it has sent.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use florin_ledger::LedgerError;
use florin_ledger_ethereum::{self as ethereum, Deployment, Endpoint, Foreign, HttpEndpoint};
use florin_protocol::{EthereumInfo, Market};

use crate::failure::Failure;

/// Longest deployment file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// A node at an address. Nothing is asked yet.
///
/// # Errors
/// `BAD_URL`.
pub(crate) fn endpoint(rpc: &str) -> anyhow::Result<Arc<HttpEndpoint>> {
    let endpoint = HttpEndpoint::new(rpc).map_err(|error| match error {
        LedgerError::Unavailable(what) => Failure::input("BAD_URL", what),
        other => Failure::input("BAD_URL", other.to_string()),
    })?;
    Ok(Arc::new(endpoint))
}

/// What to look at where a node's first answer does not come.
pub(crate) fn no_node(endpoint: &dyn Endpoint) -> String {
    format!(
        "{} does not answer as a node of an Ethereum chain: see that it runs, and that its address is right (http or \
         https, port, key)",
        endpoint.name()
    )
}

/// Refuses a node of another chain than the market's, and contracts that are not there or are no market's.
///
/// # Errors
/// `WRONG_CHAIN`, `WRONG_CONTRACTS`, `LEDGER_UNAVAILABLE`.
pub(crate) fn check(endpoint: &Arc<HttpEndpoint>, deployment: &Deployment) -> anyhow::Result<()> {
    let endpoint: Arc<dyn Endpoint> = endpoint.clone();
    let found = ethereum::check(&endpoint, deployment).with_context(|| no_node(&*endpoint))?;
    found.map_err(|foreign| foreign_contracts(&foreign).into())
}

/// The same, and refuses a deployment that names a block after its market's: events before it would be missed.
///
/// # Errors
/// Those of [`check`], `BAD_DEPLOYMENT`.
pub(crate) fn check_history(
    endpoint: &Arc<HttpEndpoint>,
    deployment: &Deployment,
) -> anyhow::Result<()> {
    check(endpoint, deployment)?;
    let endpoint: Arc<dyn Endpoint> = endpoint.clone();
    if ethereum::began_earlier(&endpoint, deployment)? {
        let message = format!(
            "the market at {} was there before block {}, which its deployment names: name the block that holds it, as \
             an explorer shows",
            deployment.market, deployment.block
        );
        return Err(Failure::input("BAD_DEPLOYMENT", message).into());
    }
    Ok(())
}

fn foreign_contracts(foreign: &Foreign) -> Failure {
    let code = match foreign {
        Foreign::OtherChain { .. } => "WRONG_CHAIN",
        Foreign::NoCode { .. } | Foreign::NotAMarket { .. } | Foreign::OtherToken { .. } => {
            "WRONG_CONTRACTS"
        }
    };
    Failure::input(code, foreign.to_string())
}

/// Reads a deployment file.
///
/// # Errors
/// `BAD_DEPLOYMENT`, and those of any file.
pub(crate) fn read_deployment(path: &Path) -> anyhow::Result<Deployment> {
    let shown = path.display();
    let bad = |what: String| Failure::input("BAD_DEPLOYMENT", format!("{shown}: {what}"));
    let there = std::fs::metadata(path).with_context(|| shown.to_string())?;
    if there.is_dir() {
        return Err(bad("it is a folder: name the file in it".to_owned()).into());
    }
    let length = there.len();
    if length > FILE_BYTES_MAX {
        return Err(bad(format!("it has {length} bytes, and may have {FILE_BYTES_MAX}")).into());
    }
    let bytes = std::fs::read(path).with_context(|| shown.to_string())?;
    let text = String::from_utf8(bytes)
        .map_err(|_| bad("it is no text: `florin ledger deploy` writes such files".to_owned()))?;
    toml::from_str(&text).map_err(|error| bad(error.to_string().trim().to_owned()).into())
}

/// Makes the file of a deployment, before anything is deployed: what was paid for must not be lost for want of a file.
/// Never overwrites; an empty one, left by a deployment that was killed, is taken on unless its process still runs.
///
/// # Errors
/// `DEPLOYMENT_EXISTS`, and those of any file.
pub(crate) fn new_deployment_file(path: &Path) -> anyhow::Result<File> {
    let shown = path.display();
    let opened = File::options().append(true).create(true).open(path);
    let file = opened.with_context(|| {
        format!("{shown} cannot be made; its folder must be there, and nothing was deployed")
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
        let what =
            "is there already: name another file, or move it away if nobody needs what it names";
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
        "# A Florin market on Ethereum, for `florin coordinate --ledger ethereum --deployment` and --deployment \
         elsewhere.\n{}",
        toml::to_string(deployment)?
    );
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all())?;
    Ok(())
}

/// Where a wallet keeps the transactions that it has signed for Ethereum: a folder beside its key file.
pub(crate) fn outbox(wallet: &Path) -> PathBuf {
    wallet.with_extension("outbox")
}

/// What a coordinator tells of a deployment.
pub(crate) fn info_of(deployment: &Deployment, rpc: Option<String>) -> EthereumInfo {
    let Deployment { token, market, registry, block, .. } = *deployment;
    EthereumInfo { token, market, registry, block, rpc }
}

/// The contracts that a coordinator tells of, if they are those of its market, and of the file that somebody has.
///
/// # Errors
/// `WRONG_MARKET`, `BAD_DEPLOYMENT`.
pub(crate) fn deployment_of(
    market: Market,
    info: &EthereumInfo,
    file: Option<&Path>,
) -> anyhow::Result<Deployment> {
    let EthereumInfo { token, market: contract, registry, block, .. } = *info;
    let told = Deployment { chain: market.chain, token, market: contract, registry, block };
    if told.market() != market {
        let message = format!(
            "the coordinator names the contract {contract} on chain {}, and its market's genesis is {}, which is \
             that of other contracts: send it nothing",
            market.chain, market.genesis
        );
        return Err(Failure::no("WRONG_MARKET", message).into());
    }
    let Some(file) = file else { return Ok(told) };
    let known = read_deployment(file)?;
    if known.market() != market {
        let message = format!(
            "the coordinator's market is the contract {contract} on chain {}, and {} names {} on chain {}",
            market.chain,
            file.display(),
            known.market,
            known.chain
        );
        return Err(Failure::no("WRONG_MARKET", message).into());
    }
    Ok(known)
}

/// Whether a node's address may hold a key: then it is not for others.
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
        crate::failure::verdict(error).0
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
        assert_eq!(code(&read_deployment(&path).unwrap_err()), "BAD_DEPLOYMENT");
    }

    #[test]
    fn an_empty_deployment_file_is_taken_on_once_its_process_is_gone() {
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
        let (market, info) = (known.market(), info_of(&known, None));
        assert_eq!(deployment_of(market, &info, None).unwrap(), known);
        let other = EthereumInfo { market: Address([9; 20]), ..info.clone() };
        assert_eq!(code(&deployment_of(market, &other, None).unwrap_err()), "WRONG_MARKET");
        let elsewhere = Market { chain: ChainId(1), ..market };
        assert_eq!(code(&deployment_of(elsewhere, &info, None).unwrap_err()), "WRONG_MARKET");
    }

    #[test]
    fn a_coordinator_of_another_market_than_the_file_names_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deployment.toml");
        write_deployment(&new_deployment_file(&path).unwrap(), &deployment()).unwrap();
        let known = deployment();
        let told = info_of(&known, None);
        assert!(deployment_of(known.market(), &told, Some(&path)).is_ok());
        let other = Deployment { token: Address([8; 20]), ..known };
        let error = deployment_of(other.market(), &info_of(&other, None), Some(&path)).unwrap_err();
        assert_eq!(code(&error), "WRONG_MARKET");
    }

    #[test]
    fn an_address_with_a_key_is_not_for_others() {
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
