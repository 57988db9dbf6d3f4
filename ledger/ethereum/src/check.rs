//! Checks that a deployment's contracts exist and belong together, before anything is read from or
//! sent to them.

use std::sync::Arc;

use alloy_sol_types::SolCall;
use florin_protocol::{Address, ChainId};
use serde_json::json;

use super::contracts::{FlorinToken, Market};
use super::deployment::Deployment;
use super::endpoint::{Endpoint, EndpointError};
use super::node::{BlockTag, Call, CallResult, NodeClient};
use crate::contracts::to_address;
use florin_ledger::LedgerError;

/// Decimals of a token whose amounts can be shown as florins.
const DECIMALS: u8 = 18;

/// The difference between a deployment and the node's chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeploymentMismatch {
    /// The node is on another chain.
    #[error(
        "{node} is on chain {found}, but the market is on chain {market}: use a node of that chain"
    )]
    OtherChain {
        /// The node.
        node: String,
        /// The node's chain.
        found: ChainId,
        /// The market's chain.
        market: ChainId,
    },
    /// An address without code.
    #[error(
        "{node} has no contract at {address}, the address of the {what}: check that the node is synchronised and that \
         the address is right. A restarted development chain has lost its contracts"
    )]
    NoCode {
        /// The node.
        node: String,
        /// Token, market or registry.
        what: &'static str,
        /// The address.
        address: Address,
    },
    /// The contract is not a market.
    #[error("the contract at {address} is not a market: it does not return its token")]
    NotAMarket {
        /// The address.
        address: Address,
    },
    /// The market uses another token.
    #[error("the market at {market} uses token {found}, not {named}")]
    OtherToken {
        /// The market.
        market: Address,
        /// Its token.
        found: Address,
        /// The token of the deployment.
        named: Address,
    },
}

/// The chain id of a node.
///
/// # Errors
/// [`LedgerError::Unavailable`].
pub fn chain_id(endpoint: &Arc<dyn Endpoint>) -> Result<ChainId, LedgerError> {
    NodeClient(Arc::clone(endpoint)).chain_id().map(ChainId)
}

/// Checks that the market, its token and its registry exist at the deployment's addresses. It does
/// not check that their code equals that of `contracts/`: compare the code for that.
///
/// # Errors
/// [`LedgerError::Unavailable`].
pub fn check_deployment(
    endpoint: &Arc<dyn Endpoint>,
    deployment: &Deployment,
) -> Result<Result<(), DeploymentMismatch>, LedgerError> {
    let node = NodeClient(Arc::clone(endpoint));
    let found = node.chain_id().map(ChainId)?;
    if found != deployment.chain {
        let market = deployment.chain;
        return Ok(Err(DeploymentMismatch::OtherChain { node: endpoint.name(), found, market }));
    }
    let Deployment { token, market, registry, .. } = *deployment;
    for (what, address) in [("market", market), ("token", token), ("registry", registry)] {
        if !node.has_code(address)? {
            return Ok(Err(DeploymentMismatch::NoCode { node: endpoint.name(), what, address }));
        }
        if what != "market" {
            continue;
        }
        let Some(found) = try_getter(&node, market, &Market::tokenCall {})?.map(to_address) else {
            return Ok(Err(DeploymentMismatch::NotAMarket { address: market }));
        };
        if found != token {
            return Ok(Err(DeploymentMismatch::OtherToken { market, found, named: token }));
        }
    }
    Ok(Ok(()))
}

/// Whether the market existed before the block that its deployment names: then earlier events would
/// be missed. A node without the old states cannot answer; the result is then false.
///
/// # Errors
/// [`LedgerError::Unavailable`].
pub fn market_predates_deployment(
    endpoint: &Arc<dyn Endpoint>,
    deployment: &Deployment,
) -> Result<bool, LedgerError> {
    let Some(before) = deployment.block.checked_sub(1) else { return Ok(false) };
    let address = alloy_primitives::Address::from(deployment.market.0);
    let params = json!([address, format!("{before:#x}")]);
    match endpoint.call("eth_getCode", params) {
        Ok(code) => Ok(code.as_str().is_some_and(|code| code.len() > "0x".len())),
        Err(EndpointError::ErrorResponse { .. }) => Ok(false),
        Err(error) => Err(NodeClient(Arc::clone(endpoint)).unavailable("eth_getCode", &error)),
    }
}

/// The reason why a market cannot use a token; `None` if it can.
pub(super) fn token_problem(
    node: &NodeClient,
    token: Address,
) -> Result<Option<String>, LedgerError> {
    if !node.has_code(token)? {
        return Ok(Some(format!("there is no contract at {token}: set the token's address")));
    }
    let supply = try_getter(node, token, &FlorinToken::totalSupplyCall {})?;
    let held = try_getter(node, token, &FlorinToken::balanceOfCall { account: token.0.into() })?;
    if supply.is_none() || held.is_none() {
        let what = "it does not implement totalSupply() and balanceOf(address)";
        return Ok(Some(format!("the contract at {token} is not an ERC-20 token: {what}")));
    }
    // `decimals()` is optional in ERC-20: a token without it is accepted.
    let decimals = try_getter(node, token, &FlorinToken::decimalsCall {})?;
    Ok(decimals.filter(|decimals| *decimals != DECIMALS).map(|decimals| {
        format!("the token at {token} has {decimals} decimals: use one with {DECIMALS}")
    }))
}

/// The result of a getter; `None` if the contract does not have it.
fn try_getter<C: SolCall>(
    node: &NodeClient,
    contract: Address,
    getter: &C,
) -> Result<Option<C::Return>, LedgerError> {
    match node.call(None, &Call::for_contract(contract, getter), BlockTag::Latest)? {
        CallResult::Returned(bytes) => Ok(C::abi_decode_returns(&bytes).ok()),
        CallResult::Reverted(_) => Ok(None),
    }
}
