//! Trusting events, or nobody: a market's books are [folded](fold) from all of its events, and every number is compared
//! with what the contract's getters say, and with the tokens that the contract has.

mod compare;
mod fold;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use alloy_primitives::B256;
use alloy_sol_types::SolEventInterface;
use florin_protocol::{Amount, Tick};

use super::contracts::FlorinToken::{balanceOfCall, totalSupplyCall};
use super::contracts::Market::MarketEvents;
use super::node::{At, Filter, Log, Node};
use super::refusals::amount;
use super::{Deployment, Endpoint, Settings};
use crate::limits::REREADS_MAX;
use florin_ledger::LedgerError;

pub use compare::Difference;
pub use fold::{Books, Contradiction, PersonBooks, ProviderBooks, TaskBooks};

/// A market at one block of its chain.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The newest block that is as deep as the settings ask.
    pub block: u64,
    /// When it was made.
    pub made: Tick,
    /// What the events up to there have come to.
    pub books: Books,
    /// All tokens there are.
    pub supply: Amount,
    /// Those of the market's contract.
    pub held: Amount,
}

/// What comparing everything came to.
#[derive(Clone, Debug)]
pub struct Verification {
    /// What was compared.
    pub survey: Survey,
    /// Numbers that were compared.
    pub compared: u64,
    /// How many of them differ.
    pub differing: u64,
    /// The first of those, at most [`crate::limits::DIFFERENCES_MAX`].
    pub differences: Vec<Difference>,
    /// Tokens in the contract that belong to nobody: somebody has sent them there by a bare transfer, as anybody can.
    pub surplus: Amount,
}

/// Reads a market's events up to the newest block that counts, and folds them.
///
/// # Errors
/// [`LedgerError::Unavailable`]; [`LedgerError::Corrupt`] for events that contradict each other.
pub fn survey(
    endpoint: &Arc<dyn Endpoint>,
    deployment: &Deployment,
    settings: &Settings,
) -> Result<Survey, LedgerError> {
    unmoved(endpoint, settings, &mut |node, block| read(node, deployment, settings, block))
}

/// Compares what the events have come to with the contract: every task, bond, stake, pledge and claim, the treasury, and
/// the tokens that are there.
///
/// # Errors
/// As [`survey`].
pub fn verify(
    endpoint: &Arc<dyn Endpoint>,
    deployment: &Deployment,
    settings: &Settings,
) -> Result<Verification, LedgerError> {
    unmoved(endpoint, settings, &mut |node, block| {
        let survey = read(node, deployment, settings, block)?;
        compare::compare(node, deployment, survey)
    })
}

/// Something that happened in a market, and when.
#[derive(Clone, Debug)]
pub struct Happened {
    /// Its block.
    pub block: u64,
    /// When that was made: the contract's clock.
    pub made: Tick,
    /// What.
    pub event: MarketEvents,
}

/// Everything that happened in a market, up to the newest block that counts, first to last. All of it is in memory: for
/// markets of a modest age.
///
/// # Errors
/// As [`survey`].
pub fn history(
    endpoint: &Arc<dyn Endpoint>,
    deployment: &Deployment,
    settings: &Settings,
) -> Result<Vec<Happened>, LedgerError> {
    unmoved(endpoint, settings, &mut |node, last| {
        let mut all: Vec<Happened> = Vec::new();
        each_event(node, deployment, settings, last, &mut |block, event| {
            let made = match all.last() {
                Some(before) if before.block == block => before.made,
                _ => moment(header(node, block)?),
            };
            all.push(Happened { block, made, event });
            Ok(())
        })?;
        Ok(all)
    })
}

/// Does something at the newest block that counts, and again if the chain has been reorganised below it meanwhile.
fn unmoved<T>(
    endpoint: &Arc<dyn Endpoint>,
    settings: &Settings,
    work: &mut dyn FnMut(&Node, u64) -> Result<T, LedgerError>,
) -> Result<T, LedgerError> {
    let node = Node(Arc::clone(endpoint));
    for _ in 0..REREADS_MAX {
        let block = settings.counted(node.tip()?);
        let before = header(&node, block)?;
        let done = work(&node, block);
        if header(&node, block)? == before {
            return done;
        }
    }
    let what = format!("{}: the chain was reorganised while it was read", endpoint.name());
    Err(LedgerError::Unavailable(what))
}

/// A block's hash and its moment, in seconds.
fn header(node: &Node, block: u64) -> Result<(B256, u64), LedgerError> {
    let block = node.block(At::Block(block))?;
    Ok((block.hash, block.timestamp.to()))
}

fn moment((_, seconds): (B256, u64)) -> Tick {
    Tick(seconds.saturating_mul(1_000))
}

fn read(
    node: &Node,
    deployment: &Deployment,
    settings: &Settings,
    block: u64,
) -> Result<Survey, LedgerError> {
    let mut books = Books::default();
    each_event(node, deployment, settings, block, &mut |at, event| {
        books.apply(&event).map_err(|what| contradicts(at, &what))
    })?;
    let at = At::Block(block);
    let account = alloy_primitives::Address::from(deployment.market.0);
    Ok(Survey {
        block,
        made: moment(header(node, block)?),
        books,
        supply: amount(node.get(deployment.token, &totalSupplyCall {}, at)?),
        held: amount(node.get(deployment.token, &balanceOfCall { account }, at)?),
    })
}

fn contradicts(block: u64, what: &str) -> LedgerError {
    LedgerError::Corrupt(format!("an event of block {block}: {what}"))
}

/// Hands over every event of a market up to a block, first to last.
fn each_event(
    node: &Node,
    deployment: &Deployment,
    settings: &Settings,
    block: u64,
    hear: &mut dyn FnMut(u64, MarketEvents) -> Result<(), LedgerError>,
) -> Result<(), LedgerError> {
    let mut first = deployment.block;
    let step = settings.log_blocks_max.max(1);
    // A step at a time, so that a long history is never in memory as a whole.
    while first <= block {
        let last = first.saturating_add(step.saturating_sub(1)).min(block);
        let filter = Filter { contract: deployment.market, first, last, topics: Vec::new() };
        for log in node.logs(&filter, step)? {
            let at = log.block_number.map_or(last, |number| number.to());
            hear(at, decode(&log, deployment).map_err(|what| contradicts(at, &what))?)?;
        }
        first = last.saturating_add(1);
    }
    Ok(())
}

fn decode(log: &Log, deployment: &Deployment) -> Result<MarketEvents, Contradiction> {
    if log.address.into_array() != deployment.market.0 {
        return Err(format!("it is one of {}, which was not asked about", log.address));
    }
    MarketEvents::decode_raw_log(&log.topics, &log.data)
        .map_err(|error| format!("it is none that a market has: {error}"))
}
