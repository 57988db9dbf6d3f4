//! `florin ledger anchor`: writes a signed head of an embedded ledger into a transaction on an
//! Ethereum chain, and reads it back.

use std::sync::Arc;

use florin_ledger::{LedgerError, Refusal, SignedHead};
use florin_ledger_ethereum::{self as ethereum, Endpoint, Settings};
use florin_protocol::{Canonical, Digest};
use serde_json::json;

use crate::cli::LedgerAnchor;
use crate::commands::wallet;
use crate::ethereum::node as contracts;
use crate::failure::{Exit, Failure};
use crate::show;

/// Sends the transaction, and waits until it is mined.
pub(crate) fn run(arguments: &LedgerAnchor, head: &SignedHead) -> anyhow::Result<Exit> {
    let endpoint: Arc<dyn Endpoint> = contracts::endpoint(&arguments.rpc)?;
    let chain = ethereum::chain_id(&endpoint)?;
    let wallet = wallet::open(&arguments.wallet)?;
    let settings = arguments.spending.apply_to(Settings::default());
    let outbox = contracts::outbox(&arguments.wallet.wallet);
    let transaction = ethereum::anchor_head(&endpoint, &wallet, head, settings, &outbox)?;
    let found = ethereum::anchored_head(&endpoint, transaction)?;
    if arguments.json.json {
        show::json(&json!({
            "transaction": transaction,
            "chain": chain,
            "chain_block": found.block,
            "chain_time": found.time,
            "number": head.body.number,
            "digest": head.digest(),
        }))?;
        return Ok(Exit::Done);
    }
    show::facts(&[
        ("transaction", transaction.to_string()),
        ("on chain", format!("{chain}, block {}, {}", found.block, show::date(found.time))),
        ("ledger's block", head.body.number.to_string()),
        ("digest", head.digest().to_string()),
    ]);
    show::hint(&format!(
        "Compare it with: florin ledger verify --market {} --anchor {transaction} --rpc …",
        arguments.market
    ));
    Ok(Exit::Done)
}

/// The head that a transaction carries.
pub(crate) fn anchored_head(rpc: &str, transaction: Digest) -> anyhow::Result<SignedHead> {
    let endpoint: Arc<dyn Endpoint> = contracts::endpoint(rpc)?;
    ethereum::anchored_head(&endpoint, transaction).map(|found| found.head).map_err(|error| {
        match error {
            LedgerError::Refused(
                refusal @ (Refusal::NotFound(_) | Refusal::InvalidArgument(_)),
            ) => Failure::input("INVALID_ANCHOR", refusal.to_string()).into(),
            other => other.into(),
        }
    })
}
