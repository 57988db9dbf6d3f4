//! Whether contracts are what a file or a coordinator says: asked before anything is read from them or sent to them.

use std::sync::Arc;

use alloy_sol_types::SolCall;
use florin_protocol::{Address, ChainId};
use serde_json::json;

use super::contracts::{FlorinToken, Market};
use super::deployment::Deployment;
use super::endpoint::{Endpoint, EndpointError};
use super::node::{Answer, At, Call, Node};
use florin_ledger::LedgerError;

/// Decimals of a token in which amounts read as florins.
const DECIMALS: u8 = 18;

/// What a node that answers says against a deployment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// The node is one of another chain.
    #[error(
        "{node} is on chain {found}, but the market is on chain {market}: name a node of that chain"
    )]
    OtherChain {
        /// The node.
        node: String,
        /// Its chain.
        found: ChainId,
        /// The market's.
        market: ChainId,
    },
    /// An address without code.
    #[error(
        "{node} has no contract at {address}, where the {what} should be: is it synchronised, and is this the address? \
         A development chain that was started anew has forgotten its contracts"
    )]
    NoCode {
        /// The node.
        node: String,
        /// Token, market or registry.
        what: &'static str,
        /// Where.
        address: Address,
    },
    /// A contract that is no market.
    #[error("the contract at {address} is no market: it does not say which token it counts in")]
    NotAMarket {
        /// Where.
        address: Address,
    },
    /// A market of another token.
    #[error("the market at {market} counts in {found}, not in {named}")]
    OtherToken {
        /// The market.
        market: Address,
        /// Its token.
        found: Address,
        /// The one that was named.
        named: Address,
    },
}

/// The chain that a node is of.
///
/// # Errors
/// [`LedgerError::Unavailable`].
pub fn chain_id(endpoint: &Arc<dyn Endpoint>) -> Result<ChainId, LedgerError> {
    Node(Arc::clone(endpoint)).chain_id().map(ChainId)
}

/// Whether a node has a market of this token, and a token and a registry, where a deployment says. That they do what
/// `contracts/` says is not seen from here: compare their code for that.
///
/// # Errors
/// [`LedgerError::Unavailable`].
pub fn check(
    endpoint: &Arc<dyn Endpoint>,
    deployment: &Deployment,
) -> Result<Result<(), Foreign>, LedgerError> {
    let node = Node(Arc::clone(endpoint));
    let found = node.chain_id().map(ChainId)?;
    if found != deployment.chain {
        let market = deployment.chain;
        return Ok(Err(Foreign::OtherChain { node: endpoint.name(), found, market }));
    }
    let Deployment { token, market, registry, .. } = *deployment;
    for (what, address) in [("market", market), ("token", token), ("registry", registry)] {
        if !node.has_code(address)? {
            return Ok(Err(Foreign::NoCode { node: endpoint.name(), what, address }));
        }
        if what != "market" {
            continue;
        }
        let Some(found) = asked(&node, market, &Market::tokenCall {})?.map(Address::from) else {
            return Ok(Err(Foreign::NotAMarket { address: market }));
        };
        if found != token {
            return Ok(Err(Foreign::OtherToken { market, found, named: token }));
        }
    }
    Ok(Ok(()))
}

/// Whether the market was there before the block that its deployment names: then events before it would be missed. A
/// node that has forgotten old states cannot tell, and is believed to have had none.
///
/// # Errors
/// [`LedgerError::Unavailable`].
pub fn began_earlier(
    endpoint: &Arc<dyn Endpoint>,
    deployment: &Deployment,
) -> Result<bool, LedgerError> {
    let Some(before) = deployment.block.checked_sub(1) else { return Ok(false) };
    let address = alloy_primitives::Address::from(deployment.market.0);
    let params = json!([address, format!("{before:#x}")]);
    match endpoint.call("eth_getCode", params) {
        Ok(code) => Ok(code.as_str().is_some_and(|code| code.len() > "0x".len())),
        Err(EndpointError::Answered { .. }) => Ok(false),
        Err(error) => Err(Node(Arc::clone(endpoint)).lost("eth_getCode", &error)),
    }
}

/// Why a market cannot count in a token; nothing if it can.
pub(super) fn unfit(node: &Node, token: Address) -> Result<Option<String>, LedgerError> {
    if !node.has_code(token)? {
        return Ok(Some(format!("there is no contract at {token}: name the token's address")));
    }
    let supply = asked(node, token, &FlorinToken::totalSupplyCall {})?;
    let held = asked(node, token, &FlorinToken::balanceOfCall { account: token.0.into() })?;
    if supply.is_none() || held.is_none() {
        let what = "it does not answer totalSupply() and balanceOf(address)";
        return Ok(Some(format!("the contract at {token} is no ERC-20 token: {what}")));
    }
    // Optional in ERC-20: a token that does not say is taken at its word.
    let decimals = asked(node, token, &FlorinToken::decimalsCall {})?;
    Ok(decimals.filter(|decimals| *decimals != DECIMALS).map(|decimals| {
        format!(
            "the token at {token} has {decimals} decimals, and amounts here have {DECIMALS}: take one with {DECIMALS}"
        )
    }))
}

/// A getter's answer; nothing where the contract has no such getter.
fn asked<C: SolCall>(
    node: &Node,
    contract: Address,
    getter: &C,
) -> Result<Option<C::Return>, LedgerError> {
    match node.call(None, &Call::of(contract, getter), At::Latest)? {
        Answer::Returned(bytes) => Ok(C::abi_decode_returns(&bytes).ok()),
        Answer::Reverted(_) => Ok(None),
    }
}
