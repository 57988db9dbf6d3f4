//! Full verification of a market: its state is [folded](fold) from all of its events, and every
//! number is compared with the contract's getters, and the total with the contract's token balance.

mod compare;
mod fold;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use alloy_primitives::B256;
use alloy_sol_types::SolEventInterface;
use florin_protocol::{Amount, Timestamp};

use super::contracts::FlorinToken::{balanceOfCall, totalSupplyCall};
use super::contracts::Market::MarketEvents;
use super::node::{BlockTag, Filter, Log, NodeClient};
use super::revert::saturating_amount;
use super::{Deployment, Endpoint, Settings};
use crate::limits::REORG_RETRIES_MAX;
use florin_ledger::LedgerError;

pub use compare::MarketMismatch;
pub use fold::{EventError, FoldedAccount, FoldedMarket, FoldedProvider, FoldedTask};

/// The state of a market at one block.
#[derive(Clone, Debug)]
pub struct MarketSnapshot {
    /// The newest confirmed block.
    pub block: u64,
    /// The block's time.
    pub time: Timestamp,
    /// The state that results from the events up to that block.
    pub market: FoldedMarket,
    /// The token's total supply.
    pub supply: Amount,
    /// The token balance of the market's contract.
    pub market_balance: Amount,
}

/// The result of a verification.
#[derive(Clone, Debug)]
pub struct MarketVerification {
    /// The verified state.
    pub survey: MarketSnapshot,
    /// Numbers compared.
    pub compared: u64,
    /// Number of mismatches.
    pub mismatch_count: u64,
    /// The first mismatches, at most [`crate::limits::MISMATCHES_MAX`].
    pub mismatches: Vec<MarketMismatch>,
    /// Tokens in the contract that belong to no account: any account can transfer tokens to the
    /// contract.
    pub surplus: Amount,
}

/// Reads and folds a market's events up to the newest confirmed block.
///
/// # Errors
/// [`LedgerError::Unavailable`]; [`LedgerError::Corrupt`] for inconsistent events.
pub fn read_market(
    endpoint: &Arc<dyn Endpoint>,
    deployment: &Deployment,
    settings: &Settings,
) -> Result<MarketSnapshot, LedgerError> {
    at_stable_block(endpoint, settings, &mut |node, block| {
        read_at(node, deployment, settings, block)
    })
}

/// Compares the state that results from the events with the contract: every task, bond, stake,
/// pledge and claim, the treasury, and the token balance.
///
/// # Errors
/// As [`read_market`].
pub fn verify(
    endpoint: &Arc<dyn Endpoint>,
    deployment: &Deployment,
    settings: &Settings,
) -> Result<MarketVerification, LedgerError> {
    at_stable_block(endpoint, settings, &mut |node, block| {
        let survey = read_at(node, deployment, settings, block)?;
        compare::compare(node, deployment, survey)
    })
}

/// An event of a market, with its time.
#[derive(Clone, Debug)]
pub struct TimedEvent {
    /// Its block.
    pub block: u64,
    /// The block's time, which is the contract's clock.
    pub made: Timestamp,
    /// The event.
    pub event: MarketEvents,
}

/// All events of a market up to the newest confirmed block, oldest first. All of them are in
/// memory: not for markets with a very long history.
///
/// # Errors
/// As [`read_market`].
pub fn history(
    endpoint: &Arc<dyn Endpoint>,
    deployment: &Deployment,
    settings: &Settings,
) -> Result<Vec<TimedEvent>, LedgerError> {
    at_stable_block(endpoint, settings, &mut |node, last| {
        let mut all: Vec<TimedEvent> = Vec::new();
        each_event(node, deployment, settings, last, &mut |block, event| {
            let made = match all.last() {
                Some(before) if before.block == block => before.made,
                _ => block_time(header(node, block)?),
            };
            all.push(TimedEvent { block, made, event });
            Ok(())
        })?;
        Ok(all)
    })
}

/// Does some work at the newest confirmed block, and repeats it if a reorganisation replaced that
/// block meanwhile.
fn at_stable_block<T>(
    endpoint: &Arc<dyn Endpoint>,
    settings: &Settings,
    work: &mut dyn FnMut(&NodeClient, u64) -> Result<T, LedgerError>,
) -> Result<T, LedgerError> {
    let node = NodeClient(Arc::clone(endpoint));
    for _ in 0..REORG_RETRIES_MAX {
        let block = settings.confirmed_block(node.latest_block_number()?);
        let before = header(&node, block)?;
        let done = work(&node, block);
        if header(&node, block)? == before {
            return done;
        }
    }
    let what = format!("{}: the chain was reorganised during the read", endpoint.name());
    Err(LedgerError::Unavailable(what))
}

/// A block's hash, and its time in seconds.
fn header(node: &NodeClient, block: u64) -> Result<(B256, u64), LedgerError> {
    let block = node.block(BlockTag::Block(block))?;
    Ok((block.hash, block.timestamp.to()))
}

fn block_time((_, seconds): (B256, u64)) -> Timestamp {
    Timestamp(seconds.saturating_mul(1_000))
}

fn read_at(
    node: &NodeClient,
    deployment: &Deployment,
    settings: &Settings,
    block: u64,
) -> Result<MarketSnapshot, LedgerError> {
    let mut books = FoldedMarket::default();
    each_event(node, deployment, settings, block, &mut |at, event| {
        books.apply(&event).map_err(|what| inconsistent_event(at, &what))
    })?;
    let at = BlockTag::Block(block);
    let account = alloy_primitives::Address::from(deployment.market.0);
    Ok(MarketSnapshot {
        block,
        time: block_time(header(node, block)?),
        market: books,
        supply: saturating_amount(node.call_getter(deployment.token, &totalSupplyCall {}, at)?),
        market_balance: saturating_amount(node.call_getter(
            deployment.token,
            &balanceOfCall { account },
            at,
        )?),
    })
}

fn inconsistent_event(block: u64, what: &str) -> LedgerError {
    LedgerError::Corrupt(format!("an event of block {block}: {what}"))
}

/// Calls a closure for every event of a market up to a block, oldest first.
fn each_event(
    node: &NodeClient,
    deployment: &Deployment,
    settings: &Settings,
    block: u64,
    on_event: &mut dyn FnMut(u64, MarketEvents) -> Result<(), LedgerError>,
) -> Result<(), LedgerError> {
    let mut first = deployment.block;
    let step = settings.log_blocks_max.max(1);
    // Reads a limited number of blocks at a time, so that a long history is never in memory as a
    // whole.
    while first <= block {
        let last = first.saturating_add(step.saturating_sub(1)).min(block);
        let filter = Filter { contract: deployment.market, first, last, topics: Vec::new() };
        for log in node.logs(&filter, step)? {
            let at = log.block_number.map_or(last, |number| number.to());
            on_event(at, decode(&log, deployment).map_err(|what| inconsistent_event(at, &what))?)?;
        }
        first = last.saturating_add(1);
    }
    Ok(())
}

fn decode(log: &Log, deployment: &Deployment) -> Result<MarketEvents, EventError> {
    if log.address.into_array() != deployment.market.0 {
        return Err(format!("it is an event of {}, which was not requested", log.address));
    }
    MarketEvents::decode_raw_log(&log.topics, &log.data)
        .map_err(|error| format!("it is not an event of the market contract: {error}"))
}
