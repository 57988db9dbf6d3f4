//! Bringing a market's contracts onto a chain.

use std::path::Path;
use std::sync::Arc;

use alloy_primitives::U256;
use alloy_sol_types::SolConstructor;
use florin_protocol::{Address, Amount, ChainId, Signer};

use super::check::unfit;
use super::contracts::{FlorinToken, Market, Registry};
use super::deployment::Deployment;
use super::endpoint::Endpoint;
use super::node::{Call, Node, Receipt};
use super::outbox::Intent;
use super::sender::{Carried, Planner, Sender, Step};
use florin_ledger::ethereum::Settings;
use florin_ledger::{LedgerError, Refusal};

/// Gas that deploying the largest contract may take.
const DEPLOY_GAS_MAX: u64 = 12_000_000;

/// What the market counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A new florin: all of it made at once, for one account.
    New {
        /// How much there will ever be.
        supply: Amount,
        /// Who has it first.
        holder: Address,
    },
    /// A plain ERC-20 that is there already.
    Existing(Address),
}

/// Sends one contract.
struct Contract {
    intent: Intent,
    call: Call,
}

impl Planner for Contract {
    fn plan(&self, _: Address, intent: &Intent) -> Result<Step, LedgerError> {
        if *intent == self.intent {
            return Ok(Step::Send(self.call.clone()));
        }
        // An earlier run's contract, which this one cannot make.
        let what = format!("{} was undone by the chain: deploy again", intent.summary());
        Err(Refusal::Missing(what).into())
    }

    fn is_effective(&self, _: &Intent, _: &Receipt) -> bool {
        true
    }
}

/// Deploys token (unless there is one), market and registry, each confirmed as deep as `settings` ask.
///
/// # Errors
/// [`LedgerError`]; `Refused` with `Meaningless` for a token that nobody could use. Contracts that were deployed before
/// an error stay on the chain, and nobody uses them.
pub fn deploy(
    endpoint: &Arc<dyn Endpoint>,
    by: &dyn Signer,
    token: Token,
    settings: Settings,
    outbox: &Path,
) -> Result<Deployment, LedgerError> {
    let node = Node(Arc::clone(endpoint));
    let chain = node.chain_id()?;
    let settings = Settings { gas_max: settings.gas_max.max(DEPLOY_GAS_MAX), ..settings };
    let sender = Sender::new(node, chain, settings, outbox, format!("deploy-{chain}"))?;
    if let Some(why) = meaningless(&sender.node, token)? {
        return Err(Refusal::Meaningless(why).into());
    }
    let token = match token {
        Token::Existing(token) => token,
        Token::New { supply, holder } => {
            let call = FlorinToken::constructorCall {
                holder: holder.0.into(),
                supply: U256::from(supply.units()),
            };
            put(&sender, by, "token", &FlorinToken::BYTECODE, &call.abi_encode())?.0
        }
    };
    let call = Market::constructorCall { token_: token.0.into() };
    let (market, block) = put(&sender, by, "market", &Market::BYTECODE, &call.abi_encode())?;
    let (registry, _) = put(&sender, by, "registry", &Registry::BYTECODE, &[])?;
    Ok(Deployment { chain: ChainId(chain), token, market, registry, block })
}

/// Why nobody could use a market that counts in this; nothing if somebody could.
fn meaningless(node: &Node, token: Token) -> Result<Option<String>, LedgerError> {
    match token {
        Token::Existing(token) => unfit(node, token),
        Token::New { supply, .. } if supply.is_zero() => {
            Ok(Some("a token of which there are 0 FLN: name a supply above zero".to_owned()))
        }
        Token::New { holder, .. } if holder == Address::default() => {
            Ok(Some(format!("a token that {holder} holds: name an account that has a key")))
        }
        Token::New { .. } => Ok(None),
    }
}

fn put(
    sender: &Sender,
    by: &dyn Signer,
    name: &str,
    code: &[u8],
    arguments: &[u8],
) -> Result<(Address, u64), LedgerError> {
    let call = Call { to: None, data: [code, arguments].concat(), wei: 0 };
    let intent = Intent::Deploy(name.to_owned(), *blake3::hash(&call.data).as_bytes());
    match sender.carry_out(by, &intent, &Contract { intent: intent.clone(), call })? {
        Carried::By(Receipt { contract_address: Some(address), block_number, .. }) => {
            Ok((address.into(), block_number.to()))
        }
        _ => Err(LedgerError::Unavailable(format!("the node names no address for the {name}"))),
    }
}
