//! The commands on a market's contracts: deploy them, show their state, verify them.

mod anchor;
mod deploy;
mod status;
mod verify;

use std::sync::Arc;

use florin_ledger_ethereum::{Deployment, HttpEndpoint, Settings};
use florin_protocol::LedgerInfo;

use crate::cli::ChainArg;
use crate::ethereum::node as contracts;
use crate::failure::Failure;
use crate::market::MarketConnection;

pub(crate) use anchor::{anchored_head, run as anchor};
pub(crate) use deploy::run as deploy;
pub(crate) use status::run as status;
pub(crate) use verify::verify;

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
        let (deployment, suggested) = match (arg.market(), &node.deployment) {
            (Some(at), _) => {
                let market = MarketConnection::connect(&at)?;
                let LedgerInfo::Ethereum(info) = market.client().ledger() else {
                    let message = format!(
                        "the market at {} has an embedded ledger: run `florin ledger verify \
                         --market`",
                        at.market
                    );
                    return Err(Failure::input("LEDGER_IS_EMBEDDED", message).into());
                };
                let id = market.coordinator().market;
                let file = node.deployment.as_deref();
                (contracts::verified_deployment(id, info, file)?, info.rpc.clone())
            }
            (None, Some(file)) => (contracts::read_deployment(file)?, None),
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
        let endpoint = contracts::endpoint(&rpc)?;
        contracts::check_history(&endpoint, &deployment)?;
        Ok(Self { endpoint, deployment, settings: node.spending.apply_to(Settings::default()) })
    }
}
