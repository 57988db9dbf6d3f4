//! `florin ledger verify` on Ethereum: rebuilds all state from events, and compares it with the
//! state of the contracts.

use std::sync::Arc;

use florin_ledger::LedgerError;
use florin_ledger_ethereum::Endpoint;
use florin_ledger_ethereum::verify::{MarketVerification, verify as verify_events};
use serde_json::json;

use super::MarketContracts;
use crate::cli::{ChainArg, JsonArg};
use crate::failure::{Exit, Failure};
use crate::progress::Progress;
use crate::show::{self, BAD, NOTE, TextTable};

/// Maximum number of printed mismatches.
const SHOWN_MAX: usize = 20;

/// Compares everything, and prints the mismatches.
pub(crate) fn verify(chain: &ChainArg, json: JsonArg) -> anyhow::Result<Exit> {
    let MarketContracts { endpoint, deployment, settings } = MarketContracts::from_args(chain)?;
    let endpoint: Arc<dyn Endpoint> = endpoint;
    let verified = Progress::during("reading the market's events", || {
        verify_events(&endpoint, &deployment, &settings)
    });
    let found = verified.map_err(|error| match error {
        LedgerError::Corrupt(what) => {
            anyhow::Error::from(Failure::negative("LEDGER_CORRUPT", what))
        }
        other => other.into(),
    })?;
    let market = deployment.market();
    if json.json {
        let mismatches: Vec<_> = found
            .mismatches
            .iter()
            .map(|d| json!({ "line": d.field, "events": d.events, "contract": d.contract }))
            .collect();
        show::json(&json!({
            "chain": market.chain,
            "genesis": market.genesis,
            "contract": deployment.market,
            "block": found.survey.block,
            "events": found.survey.market.events,
            "tasks": found.survey.market.tasks.len(),
            "compared": found.compared,
            "mismatching": found.mismatch_count,
            "mismatches": mismatches,
            "surplus": show::units(found.surplus),
        }))?;
    } else {
        print(&found);
        show::facts(&[
            ("contract", deployment.market.to_string()),
            ("chain", market.chain.to_string()),
            ("genesis", market.genesis.to_string()),
            ("block", found.survey.block.to_string()),
        ]);
    }
    if found.mismatch_count == 0 {
        return Ok(Exit::Done);
    }
    let message = format!(
        "{} of {} values of the contract differ from the market's events; the first: {}",
        found.mismatch_count,
        found.compared,
        found.mismatches.first().map_or("", |first| &first.field)
    );
    Err(Failure::negative("LEDGER_DIFFERS", message).into())
}

fn print(found: &MarketVerification) {
    if found.mismatch_count == 0 {
        anstream::println!(
            "{}OK.{:#} {} events give exactly the state of the contract: {} values of {} tasks are \
             equal, and the contract holds the tokens.",
            show::GOOD,
            show::GOOD,
            found.survey.market.events,
            found.compared,
            found.survey.market.tasks.len()
        );
    } else {
        let mut table = TextTable::new(&["value", ">from events", ">in the contract"]);
        for difference in found.mismatches.iter().take(SHOWN_MAX) {
            table.row([
                difference.field.as_str().into(),
                difference.events.as_str().into(),
                difference.contract.as_str().into(),
            ]);
        }
        table.print();
        anstream::println!("\n{BAD}{} of {} differ.{BAD:#}", found.mismatch_count, found.compared);
    }
    if !found.surplus.is_zero() {
        anstream::println!(
            "{NOTE}The contract holds {} FLN more than its accounts own. They were sent by a plain \
             transfer and cannot be recovered.{NOTE:#}",
            show::fln(found.surplus)
        );
    }
}
