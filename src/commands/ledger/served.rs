//! `florin ledger head` and `florin ledger verify --market`: the signed blocks of an embedded
//! ledger, as its operator serves them.

use std::path::PathBuf;

use florin_ledger::{FollowError, SignedHead, follow_head, verify_served_chain};
use florin_participant::read_signed_head;
use florin_protocol::Canonical;
use serde_json::json;

use crate::cli::{JsonArg, LedgerHead};
use crate::compose;
use crate::failure::Exit;
use crate::market::MarketConnection;
use crate::progress::Progress;
use crate::show;

pub(super) fn head(arguments: &LedgerHead) -> anyhow::Result<Exit> {
    let market = MarketConnection::connect(&arguments.market)?;
    let head = newest_head(&market)?;
    let coordinator = market.coordinator();
    if arguments.json.json {
        show::json(&json!({
            "genesis": coordinator.market.genesis,
            "number": head.as_ref().map_or(0, |head| head.body.number),
            "digest": head.as_ref().map(Canonical::digest),
            "signed": head,
        }))?;
        return Ok(Exit::Done);
    }
    let mut facts = vec![("genesis", coordinator.market.genesis.to_string())];
    match head {
        None => facts.push(("block", "0 (the genesis; nothing is signed yet)".to_owned())),
        Some(head) => facts.extend([
            ("block", head.body.number.to_string()),
            ("digest", head.digest().to_string()),
            ("time", show::date(head.body.time)),
            ("signature", head.signature.to_string()),
        ]),
    }
    show::facts(&facts);
    Ok(Exit::Done)
}

/// The newest block that the operator signed; `None` for a chain of its genesis.
pub(super) fn newest_head(market: &MarketConnection) -> anyhow::Result<Option<SignedHead>> {
    follow_head(&market.embedded_ledger()?, None).map_err(failure)
}

/// The heads in files.
pub(super) fn read_heads(files: &[PathBuf]) -> anyhow::Result<Vec<SignedHead>> {
    let heads = files.iter().map(|file| read_signed_head(file));
    heads.collect::<Result<_, _>>().map_err(compose::head_failure)
}

/// Replays the served chain, and compares it with the heads that other clients saw.
pub(super) fn verify(
    market: &MarketConnection,
    heads: &[SignedHead],
    json: JsonArg,
) -> anyhow::Result<Exit> {
    let ledger = market.embedded_ledger()?;
    let progress = Progress::start("reading the ledger's blocks");
    let mut on_block = |done: u64, total: u64| {
        progress.step(format!("replaying the ledger: block {done} of {total}"));
    };
    let found = verify_served_chain(&ledger, heads, &mut on_block).map_err(failure)?;
    drop(progress);
    if json.json {
        show::json(&json!({
            "chain": found.market.chain,
            "genesis": found.market.genesis,
            "operator_key": found.operator_key,
            "blocks": found.blocks,
            "transactions": found.transactions,
            "head": found.head,
            "state": found.state,
            "heads_compared": heads.len(),
        }))?;
        return Ok(Exit::Done);
    }
    let compared = match heads.len() {
        0 => String::new(),
        1 => " The given head is one of them.".to_owned(),
        count => format!(" All {count} given heads are among them."),
    };
    anstream::println!(
        "{}OK.{:#} {} blocks with {} transactions follow from the genesis, each signed by the \
         operator.{compared}",
        show::GOOD,
        show::GOOD,
        found.blocks,
        found.transactions
    );
    show::facts(&[
        ("chain", found.market.chain.to_string()),
        ("genesis", found.market.genesis.to_string()),
        ("operator's key", found.operator_key.to_string()),
        ("head", found.head.to_string()),
        ("state", found.state.to_string()),
    ]);
    Ok(Exit::Done)
}

fn failure(error: FollowError) -> anyhow::Error {
    compose::head_failure(error.into())
}
