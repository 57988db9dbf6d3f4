//! `florin arbiter slash`: takes an amount from a bond or a pledged stake.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use florin_ledger::Slash;
use florin_participant::{slash_deposit, slashable_deposit};
use florin_protocol::{Amount, Digest, WalletSigner, blob_digest};
use serde_json::json;

use super::Confirmation;
use crate::cli::ArbiterSlash;
use crate::commands::wallet;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::show;

/// Longest file with evidence, in bytes.
const EVIDENCE_BYTES_MAX: u64 = 256 * 1024 * 1024;

pub(super) fn run(arguments: &ArbiterSlash) -> anyhow::Result<Exit> {
    let confirmation = Confirmation { yes: arguments.yes, json: arguments.json.json };
    confirmation.require()?;
    if arguments.amount.is_zero() {
        let message = "--amount is 0 FLN: name the amount to take";
        return Err(Failure::input("INVALID_ARGUMENT", message).into());
    }
    let evidence = digest_of(&arguments.evidence)?;
    let market = MarketConnection::connect(&arguments.market)?;
    let task = market.find(&arguments.task)?;
    let wallet = wallet::open(&arguments.wallet)?;
    let ledger = market.signing_ledger(&wallet, &arguments.wallet)?;
    let &ArbiterSlash { account, stake, amount, .. } = arguments;
    let slash = Slash { task, account, stake, amount, evidence };
    let left = slashable_deposit(&*ledger, wallet.address(), &slash)?;
    let deposit = if stake { "pledged stake" } else { "bond" };
    confirmation.ask(&format!(
        "Take {} FLN of the {deposit} of {account} in task {}, of which at most {} FLN are left, \
         for evidence {evidence}?",
        show::fln(amount),
        task.short(),
        show::fln(left)
    ))?;
    let taken = slash_deposit(&*ledger, &wallet, &slash)?;
    if arguments.json.json {
        show::json(&json!({
            "task": task,
            "account": account,
            "deposit": if stake { "stake" } else { "bond" },
            "requested": show::units(amount),
            "taken": show::units(taken),
            "evidence": evidence,
        }))?;
    } else {
        show::sentence(&summary(arguments, taken, evidence));
    }
    Ok(Exit::Done)
}

fn summary(arguments: &ArbiterSlash, taken: Amount, evidence: Digest) -> String {
    let deposit = if arguments.stake { "pledged stake" } else { "bond" };
    let rest = match taken < arguments.amount {
        true => "; no more was left",
        false => "",
    };
    format!(
        "Took {} FLN from the {deposit} of {}{rest}. The ledger records the evidence as {evidence}: \
         keep the file.",
        show::fln(taken),
        arguments.account
    )
}

fn digest_of(path: &Path) -> anyhow::Result<Digest> {
    let shown = || path.display().to_string();
    let file = File::open(path).with_context(shown)?;
    let mut bytes = Vec::new();
    file.take(EVIDENCE_BYTES_MAX.saturating_add(1)).read_to_end(&mut bytes).with_context(shown)?;
    let length = bytes.len() as u64;
    if length == 0 || length > EVIDENCE_BYTES_MAX {
        let message = format!(
            "--evidence {}: the file must have 1 to {EVIDENCE_BYTES_MAX} bytes",
            path.display()
        );
        return Err(Failure::input("INVALID_ARGUMENT", message).into());
    }
    Ok(blob_digest(&bytes))
}
