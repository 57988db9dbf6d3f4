//! `florin ledger verify` on Ethereum: all state rebuilt from events, and compared with the contract's own word.

use std::sync::Arc;

use florin_ledger::LedgerError;
use florin_ledger_ethereum::Endpoint;
use florin_ledger_ethereum::verify::{Verification, verify as verify_events};
use serde_json::json;

use super::Found;
use crate::cli::{ChainArg, JsonArg};
use crate::failure::{Exit, Failure};
use crate::show::{self, BAD, NOTE, Table};

/// Differences that are shown one by one.
const SHOWN_MAX: usize = 20;

/// Compares everything, and says where the two differ.
pub(super) fn verify(chain: &ChainArg, json: JsonArg) -> anyhow::Result<Exit> {
    let Found { endpoint, deployment, settings } = Found::of(chain)?;
    let endpoint: Arc<dyn Endpoint> = endpoint;
    let found = verify_events(&endpoint, &deployment, &settings).map_err(|error| match error {
        LedgerError::Corrupt(what) => anyhow::Error::from(Failure::no("LEDGER_CORRUPT", what)),
        other => other.into(),
    })?;
    let market = deployment.market();
    if json.json {
        let differences: Vec<_> = found
            .differences
            .iter()
            .map(|d| json!({ "line": d.line, "events": d.events, "contract": d.contract }))
            .collect();
        show::json(&json!({
            "chain": market.chain,
            "genesis": market.genesis,
            "contract": deployment.market,
            "block": found.survey.block,
            "events": found.survey.books.events,
            "tasks": found.survey.books.tasks.len(),
            "compared": found.compared,
            "differing": found.differing,
            "differences": differences,
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
    if found.differing == 0 {
        return Ok(Exit::Done);
    }
    let message = format!(
        "{} of {} numbers are not what the market's events say; the first: {}",
        found.differing,
        found.compared,
        found.differences.first().map_or("", |first| &first.line)
    );
    Err(Failure::no("LEDGER_DIFFERS", message).into())
}

fn print(found: &Verification) {
    if found.differing == 0 {
        anstream::println!(
            "{}In order.{:#} {} events come to exactly what the contract says: {} numbers of {} tasks are equal, and \
             the tokens are there.",
            show::GOOD,
            show::GOOD,
            found.survey.books.events,
            found.compared,
            found.survey.books.tasks.len()
        );
    } else {
        let mut table = Table::new(&["what", ">by the events", ">by the contract"]);
        for difference in found.differences.iter().take(SHOWN_MAX) {
            table.row([
                difference.line.as_str().into(),
                difference.events.as_str().into(),
                difference.contract.as_str().into(),
            ]);
        }
        table.print();
        anstream::println!("\n{BAD}{} of {} differ.{BAD:#}", found.differing, found.compared);
    }
    if !found.surplus.is_zero() {
        anstream::println!(
            "{NOTE}{} FLN more are in the contract than belong to anybody: somebody sent them there by a bare \
             transfer, and nobody can have them back.{NOTE:#}",
            show::fln(found.surplus)
        );
    }
}
