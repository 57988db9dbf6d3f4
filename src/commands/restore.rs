//! `florin restore`: brings a backup back as a new data folder, once everything in it was read and found in order.

use std::path::Path;

use anyhow::Context;
use florin_coordinator::Bucket;
use florin_coordinator::backup::{self, Manifest};
use florin_coordinator::check::{Finding, Verdict};

use crate::cli::Restore;
use crate::commands::backup::show_manifest;
use crate::commands::coordinate::check::{self, Everything};
use crate::commands::coordinate::read_settings;
use crate::failure::{Exit, Failure};
use crate::show::{self, NOTE};

pub(super) fn run(arguments: &Restore) -> anyhow::Result<Exit> {
    let bucket = bucket(arguments)?;
    let mut survived = Vec::new();
    let check = |copy: &Path, manifest: &Manifest| {
        survived = in_order(copy, bucket.as_ref(), manifest)?;
        Ok::<_, anyhow::Error>(())
    };
    let made = backup::restore(&arguments.from, &arguments.data, check)?;
    for Finding { part, code, what, .. } in &survived {
        anstream::eprintln!(
            "{NOTE}note{NOTE:#}: {part}: {what} [{code}]. Nothing that the market needs is lost with it."
        );
    }
    show_manifest(&made, arguments.json)?;
    if !arguments.json.json {
        show::hint(
            "Everything was read. Start the coordinator on it with the same wallet; what was acknowledged after the \
             backup is not in it.",
        );
    }
    Ok(Exit::Done)
}

/// Where blobs may be that the backup does not have.
fn bucket(arguments: &Restore) -> anyhow::Result<Option<Bucket>> {
    let data = arguments.data.to_str().context("the data folder's name is not UTF-8")?;
    let settings = read_settings(arguments.settings.as_deref(), |variable| match variable {
        "FLORIN_COORDINATOR_DATA" => Some(data.to_owned()),
        // Nobody listens here.
        "FLORIN_COORDINATOR_LISTEN" => Some("127.0.0.1:0".to_owned()),
        _ => None,
    })?;
    check::bucket_of(&settings)
}

/// Whether a copy is what the backup says, and a coordinator can start on it. Returns what is damaged all the same.
fn in_order(
    copy: &Path,
    bucket: Option<&Bucket>,
    manifest: &Manifest,
) -> anyhow::Result<Vec<Finding>> {
    let Everything { findings, identity, chain } = check::everything(copy, bucket)?;
    let bad = findings.parts.iter().find(|part| !part.is_survived());
    let block = chain.map(|chain| chain.blocks);
    let what = match bad {
        Some(part) => format!("{}: {} ({})", part.part, part.what, part.code),
        None if identity != manifest.identity => {
            let (found, said) = (identity.market.genesis, manifest.identity.market.genesis);
            let (by, of) = (identity.coordinator, manifest.identity.coordinator);
            format!(
                "folder: it is {by}'s in market {found}, the backup was made of {of}'s in {said}"
            )
        }
        None if (findings.records, findings.chain) != (manifest.records, manifest.chain) => {
            let (found, said) = (findings.records, manifest.records);
            format!("journal: {found} records are there, the backup was made of {said}")
        }
        None if block != manifest.block => {
            format!(
                "ledger: {} is there, the backup was made at {}",
                in_words(block),
                in_words(manifest.block)
            )
        }
        None => {
            let damaged = findings.parts.into_iter().filter(|part| part.verdict == Verdict::Bad);
            return Ok(damaged.collect());
        }
    };
    let message =
        format!("the backup is damaged: {what}. Nothing was restored; use another backup");
    Err(Failure::no("BACKUP_DAMAGED", message).into())
}

fn in_words(block: Option<u64>) -> String {
    block.map_or("none".to_owned(), |block| format!("block {block}"))
}
