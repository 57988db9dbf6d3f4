//! The genesis of an embedded ledger: reads the operator's genesis file.

use std::collections::BTreeMap;
use std::path::Path;

use florin_protocol::{Address, Amount, ChainId, Timestamp};
use serde::Deserialize;

use crate::failure::Failure;
use crate::small_file::SmallFile;
use crate::task_file::parse_date;
use crate::toml_words::in_words;

/// The chain id of an embedded ledger if the file or the flags name none: the usual id of
/// development chains.
pub(crate) const DEFAULT_CHAIN_ID: ChainId = ChainId(31_337);
/// Maximum size of a genesis file, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The chain id and the initial balances.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GenesisSpec {
    /// The chain's id.
    pub(crate) chain: ChainId,
    /// The time of the genesis; the current time if `None`.
    pub(crate) created: Option<Timestamp>,
    /// The initial balance of each account.
    pub(crate) allocations: Vec<(Address, Amount)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    chain: Option<u64>,
    created: Option<String>,
    allocate: BTreeMap<String, Amount>,
}

/// Reads a genesis file.
///
/// # Errors
/// [`Failure`] with code `INVALID_GENESIS`.
pub(crate) fn read(path: &Path) -> anyhow::Result<GenesisSpec> {
    let shown = path.display();
    let kind = "a genesis file";
    let file = SmallFile { kind, code: "INVALID_GENESIS", bytes_max: FILE_BYTES_MAX };
    let text = file.read(path)?;
    from_text(&text)
        .map_err(|what| Failure::input("INVALID_GENESIS", format!("{shown}: {what}")).into())
}

fn from_text(text: &str) -> Result<GenesisSpec, String> {
    let file: File = toml::from_str(text).map_err(|error| in_words(error.to_string().trim()))?;
    let mut allocations = Vec::with_capacity(file.allocate.len());
    for (address, amount) in &file.allocate {
        let account: Address = address.parse().map_err(|error| format!("allocate: {error}"))?;
        allocations.push((account, *amount));
    }
    let created = match &file.created {
        None => None,
        Some(date) => Some(parse_date(date).ok_or_else(|| {
            format!("created = {date:?}: write a date in UTC, such as \"2030-01-31\"")
        })?),
    };
    Ok(GenesisSpec { chain: file.chain.map_or(DEFAULT_CHAIN_ID, ChainId), created, allocations })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";

    #[test]
    fn a_genesis_names_accounts_and_amounts() {
        let text = format!("chain = 5\n[allocate]\n{ALICE} = \"12.5\"\n");
        let beginning = from_text(&text).unwrap();
        assert_eq!(beginning.chain, ChainId(5));
        assert_eq!(beginning.allocations[0].1.to_string(), "12.5");
    }

    #[test]
    fn an_invalid_genesis_file_is_refused() {
        for text in [
            "chain = 5",
            "created = \"soon\"\n[allocate]\n",
            "[allocate]\nalice = \"1\"",
            "[allocate]\n0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAeD = \"1\"",
            &format!("[allocate]\n{ALICE} = 1"),
            &format!("[allocate]\n{ALICE} = \"-1\""),
            &format!("extra = 1\n[allocate]\n{ALICE} = \"1\""),
        ] {
            assert!(from_text(text).is_err(), "{text}");
        }
    }
}
