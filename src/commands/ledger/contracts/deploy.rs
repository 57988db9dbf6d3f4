//! `florin ledger deploy`: deploys token, market and registry on an Ethereum chain, and writes
//! their addresses to a file.

use std::sync::Arc;

use anyhow::Context;
use florin_ledger_ethereum::{
    Deployment, Endpoint, Settings, Token, TransactionCost, chain_id, deploy, transaction_costs,
};
use florin_protocol::{Address, WalletSigner};
use serde_json::json;

use crate::cli::LedgerDeploy;
use crate::commands::wallet;
use crate::ethereum::node as contracts;
use crate::failure::Exit;
use crate::show::{self, NOTE, TextTable};

/// Maximum number of blocks that are searched for the cost of the deployment.
const BLOCKS_MAX: u64 = 200;

pub(crate) fn run(arguments: &LedgerDeploy) -> anyhow::Result<Exit> {
    let endpoint: Arc<dyn Endpoint> = contracts::endpoint(&arguments.rpc)?;
    let chain_id =
        chain_id(&endpoint).with_context(|| contracts::unreachable_node_message(&*endpoint))?;
    // Create the file first, so that a deployment that was paid for is never lost because its file
    // cannot be written.
    let file = contracts::new_deployment_file(&arguments.out)?;
    let done = deploy_contracts(arguments, &endpoint);
    let deployment = match done {
        Ok(deployment) => deployment,
        Err(error) => {
            drop(file);
            // The empty file would block the next attempt. If it cannot be removed, the next
            // attempt reports it.
            let _ = std::fs::remove_file(&arguments.out);
            return Err(error);
        }
    };
    contracts::write_deployment(&file, &deployment)?;
    let costs = costs(&endpoint, &deployment, arguments.token.is_none());
    if arguments.json.json {
        as_json(arguments, &deployment, costs.as_deref())?;
        return Ok(Exit::Done);
    }
    print(&deployment, costs.as_deref());
    show::facts(&[
        ("chain", chain_id.to_string()),
        ("block", deployment.block.to_string()),
        ("genesis", deployment.market().genesis.to_string()),
        ("written to", arguments.out.display().to_string()),
    ]);
    show::hint(&format!(
        "Run a market on it: florin coordinate --data market --wallet … --ledger ethereum \
         --deployment {} --rpc …",
        arguments.out.display()
    ));
    Ok(Exit::Done)
}

fn deploy_contracts(
    arguments: &LedgerDeploy,
    endpoint: &Arc<dyn Endpoint>,
) -> anyhow::Result<Deployment> {
    let wallet = wallet::open(&arguments.wallet)?;
    let token = match (arguments.token, arguments.supply) {
        (Some(token), _) => Token::Existing(token),
        (None, supply) => Token::New {
            supply: supply.unwrap_or_default(),
            holder: arguments.holder.unwrap_or(wallet.address()),
        },
    };
    let settings = arguments.spending.apply_to(Settings::default());
    let outbox = contracts::outbox(&arguments.wallet.wallet);
    Ok(deploy(endpoint, &wallet, token, settings, &outbox)?)
}

/// The gas and the cost of each contract, if the node provides them. A failure here does not fail
/// the deployment.
fn costs(
    endpoint: &Arc<dyn Endpoint>,
    deployment: &Deployment,
    is_token_new: bool,
) -> Option<Vec<(Address, TransactionCost)>> {
    let ours = contracts(deployment).map(|(_, contract)| contract);
    let ours = if is_token_new { &ours[..] } else { &ours[1..] };
    let first = deployment.block.saturating_sub(BLOCKS_MAX / 2);
    let tip = endpoint.call("eth_blockNumber", json!([])).ok()?;
    let tip = u64::from_str_radix(tip.as_str()?.strip_prefix("0x")?, 16).ok()?;
    let last = tip.min(first.saturating_add(BLOCKS_MAX));
    let found = transaction_costs(endpoint, first, last).ok()?;
    let made = found.into_iter().filter_map(|spent| Some((spent.created?, spent)));
    Some(made.filter(|(contract, _)| ours.contains(contract)).collect())
}

const fn contracts(deployment: &Deployment) -> [(&'static str, Address); 3] {
    [("token", deployment.token), ("market", deployment.market), ("registry", deployment.registry)]
}

fn print(deployment: &Deployment, costs: Option<&[(Address, TransactionCost)]>) {
    let mut table = TextTable::new(&["contract", "address", ">gas", ">cost, ETH"]);
    for (name, address) in contracts(deployment) {
        let cost = costs.and_then(|costs| costs.iter().find(|(made, _)| *made == address));
        let (gas, wei) = match cost {
            Some((_, spent)) => (show::thousands(&spent.gas.to_string()), show::ether(spent.wei)),
            None => ("–".to_owned(), "–".to_owned()),
        };
        table.row([name.into(), address.to_string().into(), gas.into(), wei.into()]);
    }
    table.print();
    if costs.is_none() {
        anstream::println!("{NOTE}The node does not provide the costs of the deployment.{NOTE:#}");
    }
    anstream::println!();
}

fn as_json(
    arguments: &LedgerDeploy,
    deployment: &Deployment,
    costs: Option<&[(Address, TransactionCost)]>,
) -> anyhow::Result<()> {
    let costs: Vec<_> = costs
        .unwrap_or_default()
        .iter()
        .map(|(contract, spent)| {
            json!({ "contract": contract, "gas": spent.gas, "wei": spent.wei.to_string() })
        })
        .collect();
    show::json(&json!({
        "file": arguments.out,
        "deployment": deployment,
        "genesis": deployment.market().genesis,
        "costs": costs,
    }))
}
