//! `florin ledger …`: putting a market's contracts on a chain, looking at them, and verifying either ledger.

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
use crate::market::Market;

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
struct Found {
    endpoint: Arc<HttpEndpoint>,
    deployment: Deployment,
    settings: Settings,
}

impl Found {
    /// Those that a file names, or else a coordinator.
    fn of(arg: &ChainArg) -> anyhow::Result<Self> {
        let node = &arg.node;
        let (deployment, suggested) = match (&arg.market, &node.deployment) {
            (Some(url), _) => {
                let trust = arg.trust.clone();
                let market =
                    Market::connect(&MarketArg { market: url.clone(), trust, node: node.clone() })?;
                let LedgerInfo::Ethereum(info) = market.client().ledger() else {
                    let message = format!(
                        "the market at {url} keeps its ledger itself: `florin ledger verify --data` replays it where \
                         its coordinator runs"
                    );
                    return Err(Failure::input("NOT_ON_ETHEREUM", message).into());
                };
                let id = market.coordinator().market;
                let file = node.deployment.as_deref();
                (chain::deployment_of(id, info, file)?, info.rpc.clone())
            }
            (None, Some(file)) => (chain::read_deployment(file)?, None),
            (None, None) => {
                let message = "which market? name its contracts with --deployment, or its coordinator with --market; an \
                               embedded chain with `florin ledger verify --data`";
                return Err(Failure::input("NO_MARKET", message).into());
            }
        };
        let Some(rpc) = node.rpc.clone().or(suggested) else {
            let message = format!("name a node of chain {} with --rpc", deployment.chain);
            return Err(Failure::input("NO_NODE", message).into());
        };
        let endpoint = chain::endpoint(&rpc)?;
        chain::check_history(&endpoint, &deployment)?;
        Ok(Self { endpoint, deployment, settings: node.spending.over(Settings::default()) })
    }
}
