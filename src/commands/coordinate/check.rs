//! `florin coordinate --check`: reads a data folder back, whole, and says what is in order.

use std::path::Path;

use florin_coordinator::check::{self, Finding, Findings, Verdict};
use florin_coordinator::identity::Identity;
use florin_coordinator::store::lock;
use florin_ledger::{ChainError, LocalChain};
use serde_json::json;

use crate::cli::JsonArg;
use crate::compose;
use crate::failure::Exit;
use crate::show::{self, BAD, Cell, GOOD, NOTE, Table};

pub(super) fn run(data: &Path, json: JsonArg) -> anyhow::Result<Exit> {
    let findings = everything(data)?;
    show_findings(data, &findings, json)?;
    Ok(if findings.is_good() { Exit::Done } else { Exit::No })
}

/// The folder, and the embedded ledger where there is one.
pub(in crate::commands) fn everything(data: &Path) -> anyhow::Result<Findings> {
    // Tried first, so that a running coordinator is named as such.
    drop(lock(data)?);
    let file = compose::chain_file(data);
    let chain = file.exists().then(|| LocalChain::verify(&file));
    // A folder from before it said whose it is belongs to its ledger's operator.
    let known = match (Identity::read(data), &chain) {
        (Err(_), Some(Ok(chain))) => {
            Some(Identity { market: chain.market, coordinator: chain.operator })
        }
        _ => None,
    };
    let mut findings = check::check(data, known, None)?;
    findings.parts.extend(chain.map(|chain| of_chain(&file, chain)));
    Ok(findings)
}

fn of_chain(file: &Path, chain: Result<florin_ledger::Verification, ChainError>) -> Finding {
    match chain {
        Ok(found) => {
            let bytes = std::fs::metadata(file).map_or(0, |file| file.len());
            let what =
                format!("blocks, {} transactions, lead to what is stored", found.transactions);
            Finding::good("ledger", found.blocks, bytes, what)
        }
        Err(error) => Finding::bad("ledger", "LEDGER_DAMAGED", error.to_string()),
    }
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
