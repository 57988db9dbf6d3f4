//! `florin ledger verify --data`: replays an embedded ledger from its genesis.

use std::path::Path;

use florin_ledger::{ChainError, EmbeddedChain};
use serde_json::json;

use crate::cli::JsonArg;
use crate::compose;
use crate::failure::{Exit, Failure};
use crate::progress::Progress;
use crate::show;

/// Replays the chain and compares the resulting state with the stored state.
pub(super) fn verify(data: &Path, json: JsonArg) -> anyhow::Result<Exit> {
    let file = if data.is_dir() { compose::chain_file(data) } else { data.to_owned() };
    let verified = Progress::during("replaying the ledger", || EmbeddedChain::verify(&file));
    let found = verified.map_err(|error| match error {
        ChainError::Corrupt(_) | ChainError::NotALedger => {
            let text = error.to_string();
            let what = text.trim_end_matches(" [LEDGER_CORRUPT]");
            Failure::negative("LEDGER_CORRUPT", format!("{}: {what}", file.display())).into()
        }
        other => anyhow::Error::from(other).context(file.display().to_string()),
    })?;
    if json.json {
        show::json(&json!({
            "file": file,
            "chain": found.market.chain,
            "genesis": found.market.genesis,
            "blocks": found.blocks,
            "transactions": found.transactions,
            "state": found.state,
        }))?;
        return Ok(Exit::Done);
    }
    anstream::println!(
        "{}OK.{:#} Replaying {} blocks with {} transactions from the genesis gives exactly the \
         stored state.",
        show::GOOD,
        show::GOOD,
        found.blocks,
        found.transactions
    );
    show::facts(&[
        ("file", file.display().to_string()),
        ("chain", found.market.chain.to_string()),
        ("genesis", found.market.genesis.to_string()),
        ("state", found.state.to_string()),
    ]);
    Ok(Exit::Done)
}
