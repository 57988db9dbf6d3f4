//! `florin arbiter cancel`: cancels pending settlements.

use florin_participant::{CancellationRecord, cancel_settlement, cancellable_settlements};
use florin_protocol::{RoundNumber, WalletSigner};
use serde_json::json;

use super::Confirmation;
use crate::cli::ArbiterCancel;
use crate::commands::participate::state_folder;
use crate::commands::wallet;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::show;

/// Longest reason, in bytes.
const REASON_BYTES_MAX: usize = 4_096;

pub(super) fn run(arguments: &ArbiterCancel) -> anyhow::Result<Exit> {
    let confirmation = Confirmation { yes: arguments.yes, json: arguments.json.json };
    confirmation.require()?;
    let reason = reason(&arguments.reason)?;
    let market = MarketConnection::connect(&arguments.market)?;
    let task = market.find(&arguments.task)?;
    let wallet = wallet::open(&arguments.wallet)?;
    let ledger = market.signing_ledger(&wallet, &arguments.wallet)?;
    let round = RoundNumber(arguments.round);
    let falling = cancellable_settlements(&*ledger, wallet.address(), task, round)?;
    let rounds: Vec<RoundNumber> = falling.iter().map(|found| found.settlement.round).collect();
    let named: Vec<String> = rounds.iter().map(ToString::to_string).collect();
    let named = named.join(", ");
    confirmation.ask(&format!(
        "Cancel the settlements of rounds {named} of task {}? The coordinator then ends the task.",
        task.short()
    ))?;
    let Some(first) = falling.first() else { return Ok(Exit::Done) };
    let report = market.report(task, first.settlement.round).ok();
    let record = CancellationRecord { pending: first, reason, report: report.as_ref() };
    let file = record.store(&state_folder(arguments.state.as_deref(), &arguments.wallet.wallet))?;
    cancel_settlement(&*ledger, &wallet, first.into())?;
    if arguments.json.json {
        show::json(&json!({ "task": task, "cancelled": rounds, "evidence": file }))?;
    } else {
        show::sentence(&format!(
            "Cancelled the settlements of rounds {named}. The evidence is in {}.",
            file.display()
        ));
    }
    Ok(Exit::Done)
}

fn reason(text: &str) -> anyhow::Result<&str> {
    let text = text.trim();
    if text.is_empty() || text.len() > REASON_BYTES_MAX {
        let message = format!(
            "--reason has {} bytes: write why the settlement is wrong, in 1 to {REASON_BYTES_MAX} \
             bytes",
            text.len()
        );
        return Err(Failure::input("INVALID_ARGUMENT", message).into());
    }
    Ok(text)
}
