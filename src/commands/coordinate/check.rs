//! `florin coordinate --check`: reads a data folder back, whole, and says what is in order.

use std::path::Path;

use florin_coordinator::check::{self, Finding, Findings, Verdict};
use florin_coordinator::identity::Identity;
use florin_coordinator::{Bucket, Config};
use florin_ledger::{ChainError, LocalChain, Verification};
use florin_protocol::{Address, Digest};
use florin_store::lock_to_look;
use serde_json::json;

use crate::cli::JsonArg;
use crate::compose;
use crate::failure::Exit;
use crate::show::{self, BAD, Cell, GOOD, NOTE, Table};

/// Checks a folder that should be this account's.
pub(super) fn run(
    data: &Path,
    account: Address,
    bucket: Option<&Bucket>,
    json: JsonArg,
) -> anyhow::Result<Exit> {
    let Everything { mut findings, identity, .. } = everything(data, bucket)?;
    if identity.coordinator != account {
        let what = format!("it is {}'s, and the wallet is {account}'s", identity.coordinator);
        findings.parts.push(Finding::bad("folder", "WALLET_FOREIGN", what));
    }
    show_findings(data, &findings, json)?;
    Ok(if findings.is_good() { Exit::Done } else { Exit::No })
}

/// The bucket that the settings name, to read from.
///
/// # Errors
/// `BUCKET_FORBIDDEN`, `BUCKET_UNREACHABLE` and the like.
pub(in crate::commands) fn bucket_of(config: &Config) -> anyhow::Result<Option<Bucket>> {
    Ok(Bucket::open_to_read(&config.blobs, |name| std::env::var(name).ok())?)
}

/// What a folder holds.
pub(in crate::commands) struct Everything {
    pub(in crate::commands) findings: Findings,
    /// Whose it is.
    pub(in crate::commands) identity: Identity,
    /// The embedded ledger, where there is one that is in order.
    pub(in crate::commands) chain: Option<Verification>,
}

/// The folder, and the embedded ledger where there is one. Blobs may be in the bucket alone.
pub(in crate::commands) fn everything(
    data: &Path,
    bucket: Option<&Bucket>,
) -> anyhow::Result<Everything> {
    // Tried first, so that a running coordinator is named as such.
    drop(lock_to_look(data)?);
    let file = compose::chain_file(data);
    let chain = file.exists().then(|| LocalChain::verify(&file));
    // A folder from before it said whose it is belongs to its ledger's operator.
    let identity = match (Identity::read(data), &chain) {
        (Err(_), Some(Ok(chain))) => owner_of(chain),
        (known, _) => known?,
    };
    let there = bucket.map(Bucket::list).transpose()?;
    let has = |digest: Digest| Ok(there.as_ref().is_some_and(|all| all.contains(&digest)));
    let elsewhere = there.is_some().then_some(&has as &check::Elsewhere<'_>);
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
    Ok(Everything { findings, identity, chain })
}

const fn owner_of(chain: &Verification) -> Identity {
    Identity { market: chain.market, coordinator: chain.operator }
}

fn of_chain(file: &Path, found: &Verification, identity: Identity) -> Finding {
    let owner = owner_of(found);
    if owner != identity {
        let what = format!(
            "it is of market {} and {}, the folder of market {} and {}",
            owner.market.genesis, owner.coordinator, identity.market.genesis, identity.coordinator
        );
        return Finding::bad("ledger", "LEDGER_FOREIGN", what);
    }
    let bytes = std::fs::metadata(file).map_or(0, |file| file.len());
    let what = format!("blocks, {} transactions, lead to what is stored", found.transactions);
    Finding::good("ledger", found.blocks, bytes, what)
}

fn damaged(error: &ChainError) -> Finding {
    Finding::bad("ledger", "LEDGER_DAMAGED", error.to_string())
}

pub(in crate::commands) fn show_findings(
    data: &Path,
    findings: &Findings,
    json: JsonArg,
) -> anyhow::Result<()> {
    if json.json {
        return show::json(&json!({
            "data": data,
            "good": findings.is_good(),
            "records": findings.records,
            "chain": findings.chain,
            "parts": findings.parts,
        }));
    }
    let mut table = Table::new(&["part", ">count", ">bytes", "", "what"]);
    for part in &findings.parts {
        let (mark, style) = match part.verdict {
            Verdict::Good => ("in order", GOOD),
            Verdict::Note => ("note", NOTE),
            Verdict::Bad => (part.code, BAD),
        };
        table.row([
            part.part.into(),
            show::thousands(&part.count.to_string()).into(),
            show::thousands(&part.bytes.to_string()).into(),
            Cell::styled(mark, style),
            part.what.as_str().into(),
        ]);
    }
    table.print();
    Ok(())
}
