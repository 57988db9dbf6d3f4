//! Deployment of a market's contracts.

use std::path::Path;
use std::sync::Arc;

use alloy_primitives::U256;
use alloy_sol_types::SolConstructor;
use florin_protocol::{Address, Amount, ChainId, WalletSigner};

use super::check::token_problem;
use super::contracts::{FlorinToken, Market, Registry};
use super::deployment::Deployment;
use super::endpoint::Endpoint;
use super::node::{Call, NodeClient, TransactionReceipt};
use super::outbox::Intent;
use super::sender::{Execution, PlanStep, Planner, Sender};
use crate::contracts::to_address;
use florin_ledger::ethereum::Settings;
use florin_ledger::{LedgerError, Refusal};

/// Gas limit for the deployment of the largest contract.
const DEPLOY_GAS_MAX: u64 = 12_000_000;

/// The token of a market.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A new florin token; its whole supply is created at once, for one account.
    New {
        /// The total supply.
        supply: Amount,
        /// The first holder.
        holder: Address,
    },
    /// An existing plain ERC-20 token.
    Existing(Address),
}

/// Plans the deployment of one contract.
struct Contract {
    intent: Intent,
    call: Call,
}

impl Planner for Contract {
    fn plan(&self, _: Address, intent: &Intent) -> Result<PlanStep, LedgerError> {
        if *intent == self.intent {
            return Ok(PlanStep::Send(self.call.clone()));
        }
        // A contract of an earlier run, which this run cannot deploy.
        let what = format!("a reorganisation reverted \"{}\": deploy again", intent.summary());
        Err(Refusal::NotFound(what).into())
    }

    fn is_effective(&self, _: &Intent, _: &TransactionReceipt) -> bool {
        true
    }
}

/// Deploys token (unless it exists), market and registry, and waits for the confirmations that
/// `settings` require.
///
/// # Errors
/// [`LedgerError`]; `Refused` with `InvalidArgument` for an unusable token. Contracts that were
/// deployed before an error stay on the chain unused.
pub fn deploy(
    endpoint: &Arc<dyn Endpoint>,
    by: &dyn WalletSigner,
    token: Token,
    settings: Settings,
    outbox: &Path,
) -> Result<Deployment, LedgerError> {
    let node = NodeClient(Arc::clone(endpoint));
    let chain = node.chain_id()?;
    let settings = Settings { gas_max: settings.gas_max.max(DEPLOY_GAS_MAX), ..settings };
    let sender = Sender::new(node, chain, settings, outbox, format!("deploy-{chain}"))?;
    if let Some(why) = deployment_problem(&sender.node, token)? {
        return Err(Refusal::InvalidArgument(why).into());
    }
    let token = match token {
        Token::Existing(token) => token,
        Token::New { supply, holder } => {
            let call = FlorinToken::constructorCall {
                holder: holder.0.into(),
                supply: U256::from(supply.units()),
            };
            deploy_contract(&sender, by, "token", &FlorinToken::BYTECODE, &call.abi_encode())?.0
        }
    };
    let call = Market::constructorCall { token_: token.0.into() };
    let (market, block) =
        deploy_contract(&sender, by, "market", &Market::BYTECODE, &call.abi_encode())?;
    let (registry, _) = deploy_contract(&sender, by, "registry", &Registry::BYTECODE, &[])?;
    Ok(Deployment { chain: ChainId(chain), token, market, registry, block })
}

/// The reason why a market with this token would be unusable; `None` if it is usable.
fn deployment_problem(node: &NodeClient, token: Token) -> Result<Option<String>, LedgerError> {
    match token {
        Token::Existing(token) => token_problem(node, token),
        Token::New { supply, .. } if supply.is_zero() => {
            Ok(Some("a new token with a supply of 0 FLN: set a supply above zero".to_owned()))
        }
        Token::New { holder, .. } if holder == Address::default() => {
            Ok(Some(format!("a new token held by {holder}: name an account with a key")))
        }
        Token::New { .. } => Ok(None),
    }
}

/// Deploys one contract; returns its address and block.
fn deploy_contract(
    sender: &Sender,
    by: &dyn WalletSigner,
    name: &str,
    code: &[u8],
    arguments: &[u8],
) -> Result<(Address, u64), LedgerError> {
    let call = Call { to: None, data: [code, arguments].concat(), wei: 0 };
    let intent = Intent::Deploy(name.to_owned(), *blake3::hash(&call.data).as_bytes());
    match sender.execute(by, &intent, &Contract { intent: intent.clone(), call })? {
        Execution::Mined(TransactionReceipt {
            contract_address: Some(address),
            block_number,
            ..
        }) => Ok((to_address(address), block_number.to())),
        _ => Err(LedgerError::Unavailable(format!("the node returned no address of the {name}"))),
    }
}
