//! An Ethereum chain as the commands see it: its node, the file that names a market's contracts, and the folder beside a
//! wallet that holds what it has sent.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use florin_ledger::LedgerError;
use florin_ledger::ethereum::{Deployment, Endpoint, EndpointError, HttpEndpoint};
use florin_protocol::{ChainId, EthereumInfo, Market};

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

/// The chain that a node is of.
///
/// # Errors
/// `LEDGER_UNAVAILABLE`.
pub(crate) fn chain_of(endpoint: &dyn Endpoint) -> Result<ChainId, LedgerError> {
    let lost = |what: String| {
        LedgerError::Unavailable(format!("{}, eth_chainId: {what}", endpoint.name()))
    };
    let said = endpoint
        .call("eth_chainId", serde_json::json!([]))
        .map_err(|error: EndpointError| lost(error.to_string()))?;
    let digits = said.as_str().and_then(|text| text.strip_prefix("0x"));
    let id = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    id.map(ChainId).ok_or_else(|| lost(format!("{said} is no chain id")))
}

/// Refuses a node of another chain than the market's.
///
/// # Errors
/// `WRONG_CHAIN`, `LEDGER_UNAVAILABLE`.
pub(crate) fn check_chain(endpoint: &dyn Endpoint, chain: ChainId) -> anyhow::Result<()> {
    let found = chain_of(endpoint)?;
    if found == chain {
        return Ok(());
    }
    let message = format!(
        "{} is a node of chain {found}, and the market is on chain {chain}: name a node of that \
         chain with --rpc",
        endpoint.name()
    );
    Err(Failure::input("WRONG_CHAIN", message).into())
}

/// Reads a deployment file.
///
/// # Errors
/// `BAD_DEPLOYMENT`, and those of any file.
pub(crate) fn read_deployment(path: &Path) -> anyhow::Result<Deployment> {
    let shown = path.display();
    let bad = |what: String| Failure::input("BAD_DEPLOYMENT", format!("{shown}: {what}"));
    let length = std::fs::metadata(path).with_context(|| shown.to_string())?.len();
    if length > FILE_BYTES_MAX {
        return Err(bad(format!("it has {length} bytes, and may have {FILE_BYTES_MAX}")).into());
    }
    let text = std::fs::read_to_string(path).with_context(|| shown.to_string())?;
    toml::from_str(&text).map_err(|error| bad(error.to_string().trim().to_owned()).into())
}

/// Makes the file of a deployment, before anything is deployed: what was paid for must not be lost for want of a file.
/// Never overwrites.
///
/// # Errors
/// `DEPLOYMENT_EXISTS`, and those of any file.
pub(crate) fn new_deployment_file(path: &Path) -> anyhow::Result<std::fs::File> {
    std::fs::File::create_new(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            let message = format!(
                "{} is there already: name another file, or move it away if nobody needs what it names",
                path.display()
            );
            Failure::input("DEPLOYMENT_EXISTS", message).into()
        }
        _ => anyhow::Error::from(error).context(path.display().to_string()),
    })
}

/// Writes a deployment into its new file.
///
/// # Errors
/// Those of any file.
pub(crate) fn write_deployment(
    mut file: &std::fs::File,
    deployment: &Deployment,
) -> anyhow::Result<()> {
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
    use florin_protocol::Address;

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
        std::fs::write(&path, "chain = 1\n").unwrap();
        assert_eq!(code(&read_deployment(&path).unwrap_err()), "BAD_DEPLOYMENT");
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
