//! `florin coordinate --check`: reads a whole data folder back and reports its state.

use std::path::Path;

use florin_coordinator::check::{self, Finding, Findings, Severity};
use florin_coordinator::identity::Identity;
use florin_coordinator::{Bucket, Config};
use florin_ledger::{ChainError, EmbeddedChain, Verification};
use florin_protocol::{Address, Digest};
use florin_store::lock_if_exists;
use serde_json::json;

use crate::cli::JsonArg;
use crate::compose;
use crate::failure::Exit;
use crate::progress::Progress;
use crate::show::{self, BAD, Cell, GOOD, NOTE, TextTable};

/// Checks a data folder that must belong to this account.
pub(super) fn run(
    data: &Path,
    account: Address,
    bucket: Option<&Bucket>,
    json: JsonArg,
) -> anyhow::Result<Exit> {
    let FolderCheck { mut findings, identity, .. } =
        Progress::during(format!("checking {}", data.display()), || check_folder(data, bucket))?;
    if identity.coordinator != account {
        let what =
            format!("the folder belongs to {}, but the wallet is {account}", identity.coordinator);
        findings.parts.push(Finding::damaged("folder", "WALLET_OWNER_MISMATCH", what));
    }
    show_findings(data, &findings, json)?;
    Ok(if findings.is_intact() { Exit::Done } else { Exit::Negative })
}

/// Opens the bucket that the settings name, for reading.
///
/// # Errors
/// `BUCKET_FORBIDDEN`, `BUCKET_UNREACHABLE` and the like.
pub(in crate::commands) fn open_bucket(config: &Config) -> anyhow::Result<Option<Bucket>> {
    Ok(Bucket::open_read_only(&config.blobs, |name| std::env::var(name).ok())?)
}

/// The result of checking a data folder.
pub(in crate::commands) struct FolderCheck {
    pub(in crate::commands) findings: Findings,
    /// The owner of the folder.
    pub(in crate::commands) identity: Identity,
    /// The embedded ledger, if there is one and it is valid.
    pub(in crate::commands) chain: Option<Verification>,
}

/// Checks the folder, and the embedded ledger if there is one. Blobs may be in the bucket only.
pub(in crate::commands) fn check_folder(
    data: &Path,
    bucket: Option<&Bucket>,
) -> anyhow::Result<FolderCheck> {
    // Lock first, so that a running coordinator is reported as such.
    drop(lock_if_exists(data)?);
    let file = compose::chain_file(data);
    let chain = file.exists().then(|| EmbeddedChain::verify(&file));
    // An older folder without an identity file belongs to the operator of its ledger.
    let identity = match (Identity::read(data), &chain) {
        (Err(_), Some(Ok(chain))) => owner_of(chain),
        (known, _) => known?,
    };
    let there = bucket.map(Bucket::list).transpose()?;
    let has = |digest: Digest| Ok(there.as_ref().is_some_and(|all| all.contains(&digest)));
    let elsewhere = there.is_some().then_some(&has as &check::RemoteLookup<'_>);
    let mut findings = check::check(data, Some(identity), elsewhere)?;
    let chain = match chain {
        None => None,
        Some(Ok(chain)) => {
            findings.parts.push(of_chain(&file, &chain, identity));
            Some(chain)
        }
        Some(Err(error)) => {
            findings.parts.push(damaged(&error));
            None
        }
    };
    Ok(FolderCheck { findings, identity, chain })
}

const fn owner_of(chain: &Verification) -> Identity {
    Identity { market: chain.market, coordinator: chain.operator }
}

fn of_chain(file: &Path, found: &Verification, identity: Identity) -> Finding {
    let owner = owner_of(found);
    if owner != identity {
        let what = format!(
            "it belongs to market {} and coordinator {}, but the folder to market {} and \
             coordinator {}",
            owner.market.genesis, owner.coordinator, identity.market.genesis, identity.coordinator
        );
        return Finding::damaged("ledger", "LEDGER_OWNER_MISMATCH", what);
    }
    let bytes = std::fs::metadata(file).map_or(0, |file| file.len());
    let what = format!(
        "blocks with {} transactions; their replay gives the stored state",
        found.transactions
    );
    Finding::intact("ledger", found.blocks, bytes, what)
}

fn damaged(error: &ChainError) -> Finding {
    Finding::damaged("ledger", "LEDGER_DAMAGED", error.to_string())
}

pub(in crate::commands) fn show_findings(
    data: &Path,
    findings: &Findings,
    json: JsonArg,
) -> anyhow::Result<()> {
    if json.json {
        return show::json(&json!({
            "data": data,
            "intact": findings.is_intact(),
            "records": findings.records,
            "chain": findings.chain,
            "parts": findings.parts,
        }));
    }
    let mut table = TextTable::new(&["part", ">count", ">bytes", "", "result"]);
    for part in &findings.parts {
        let (mark, style) = match part.severity {
            Severity::Intact => ("ok", GOOD),
            Severity::Info => ("note", NOTE),
            Severity::Damaged => (part.code, BAD),
        };
        table.row([
            part.part.into(),
            show::thousands(&part.count.to_string()).into(),
            show::thousands(&part.bytes.to_string()).into(),
            Cell::styled(mark, style),
            part.message.as_str().into(),
        ]);
    }
    table.print();
    Ok(())
}
