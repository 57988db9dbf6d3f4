//! `florin ledger …`: deploys a market's contracts, shows their state, and verifies either ledger.

mod deploy;
mod embedded;
mod events;
mod status;

use std::sync::Arc;

use florin_ledger_ethereum::{Deployment, HttpEndpoint, Settings};
use florin_protocol::LedgerInfo;

use crate::chain;
use crate::cli::{ChainArg, LedgerCommand, MarketArg};
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;

pub(super) fn run(command: LedgerCommand) -> anyhow::Result<Exit> {
    match command {
        LedgerCommand::Deploy(arguments) => deploy::run(&arguments),
        LedgerCommand::Status(arguments) => status::run(&arguments),
        LedgerCommand::Verify(arguments) => match &arguments.data {
            Some(data) => embedded::verify(data, arguments.json),
            None => events::verify(&arguments.chain, arguments.json),
        },
    }
}

/// A market's contracts and a node of their chain.
struct MarketContracts {
    endpoint: Arc<HttpEndpoint>,
    deployment: Deployment,
    settings: Settings,
}

impl MarketContracts {
    /// Takes the contracts from the deployment file, or otherwise from the coordinator.
    fn from_args(arg: &ChainArg) -> anyhow::Result<Self> {
        let node = &arg.node;
        let (deployment, suggested) = match (&arg.market, &node.deployment) {
            (Some(url), _) => {
                let trust = arg.trust.clone();
                let market = MarketConnection::connect(&MarketArg {
                    market: url.clone(),
                    trust,
                    node: node.clone(),
                })?;
                let LedgerInfo::Ethereum(info) = market.client().ledger() else {
                    let message = format!(
                        "the market at {url} has an embedded ledger: run `florin ledger verify \
                         --data` on the machine of its coordinator"
                    );
                    return Err(Failure::input("LEDGER_IS_EMBEDDED", message).into());
                };
                let id = market.coordinator().market;
                let file = node.deployment.as_deref();
                (chain::verified_deployment(id, info, file)?, info.rpc.clone())
            }
            (None, Some(file)) => (chain::read_deployment(file)?, None),
            (None, None) => {
                let message = "no market: give its contracts with --deployment, or its coordinator \
                    with --market; for an embedded ledger use `florin ledger verify --data`";
                return Err(Failure::input("NO_MARKET", message).into());
            }
        };
        let Some(rpc) = node.rpc.clone().or(suggested) else {
            let message = format!("no node: set a node of chain {} with --rpc", deployment.chain);
            return Err(Failure::input("NO_NODE", message).into());
        };
        let endpoint = chain::endpoint(&rpc)?;
        chain::check_history(&endpoint, &deployment)?;
        Ok(Self { endpoint, deployment, settings: node.spending.apply_to(Settings::default()) })
    }
}
