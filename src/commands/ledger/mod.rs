//! `florin ledger …`: deploys a market's contracts, shows their state, and verifies either ledger.

#[cfg(feature = "ethereum")]
mod contracts;
#[cfg(not(feature = "ethereum"))]
#[path = "without_contracts.rs"]
mod contracts;
mod embedded;
mod served;

use florin_protocol::LedgerInfo;

use crate::cli::{LedgerAnchor, LedgerCommand, LedgerVerify, MarketArg, NodeArg};
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;

pub(super) fn run(command: LedgerCommand) -> anyhow::Result<Exit> {
    match command {
        LedgerCommand::Deploy(arguments) => contracts::deploy(&arguments),
        LedgerCommand::Status(arguments) => contracts::status(&arguments),
        LedgerCommand::Head(arguments) => served::head(&arguments),
        LedgerCommand::Anchor(arguments) => anchor(&arguments),
        LedgerCommand::Verify(arguments) => verify(&arguments),
    }
}

/// Verifies a file, the embedded ledger that a coordinator serves, or a market's contracts.
fn verify(arguments: &LedgerVerify) -> anyhow::Result<Exit> {
    if let Some(data) = &arguments.data {
        return embedded::verify(data, arguments.json);
    }
    if let Some(mut market) = arguments.chain.market() {
        let connection = MarketConnection::connect(&market)?;
        if *connection.client().ledger() == LedgerInfo::Embedded {
            let mut heads = served::read_heads(&arguments.head)?;
            if !arguments.anchor.is_empty() {
                // The node is one of the anchors' chain, not of the market's.
                let Some(rpc) = market.node.rpc.take() else {
                    let message = "no node: name one of the anchor's chain with --rpc";
                    return Err(Failure::input("NO_NODE", message).into());
                };
                for transaction in &arguments.anchor {
                    heads.push(contracts::anchored_head(&rpc, *transaction)?);
                }
            }
            return served::verify(&connection.at(market), &heads, arguments.json);
        }
    }
    if !arguments.head.is_empty() || !arguments.anchor.is_empty() {
        let message = "--head and --anchor need a market with an embedded ledger, by --market";
        return Err(Failure::input("HEAD_NOT_NEEDED", message).into());
    }
    contracts::verify(&arguments.chain, arguments.json)
}

/// Anchors the newest signed block of a market's embedded ledger.
fn anchor(arguments: &LedgerAnchor) -> anyhow::Result<Exit> {
    let (market, trust) = (arguments.market.clone(), arguments.trust.clone());
    // The node is one of the anchor's chain, not of the market's.
    let market = MarketArg { market, trust, node: NodeArg::default() };
    let head = served::newest_head(&MarketConnection::connect(&market)?)?;
    let Some(head) = head else {
        let message = "the ledger has no block yet, so that nothing is signed";
        return Err(Failure::negative("NOTHING_TO_ANCHOR", message).into());
    };
    contracts::anchor(arguments, &head)
}
