//! Stands in for `ethereum` in a build without that feature: every command that needs a chain fails
//! with `FEATURE_NOT_BUILT`.

use std::path::Path;

use florin_ledger::Ledger;
use florin_participant::{Client, Wallet};
use florin_protocol::EthereumInfo;

use crate::cli::NodeArg;
use crate::failure::{Exit, Failure};

fn not_built() -> anyhow::Error {
    Failure::not_built("ethereum", "a ledger on Ethereum").into()
}

/// Refuses a market on Ethereum.
///
/// # Errors
/// `FEATURE_NOT_BUILT`.
pub(crate) fn reading_ledger(
    _client: &Client,
    _info: &EthereumInfo,
    _node: &NodeArg,
) -> anyhow::Result<Box<dyn Ledger>> {
    Err(not_built())
}

/// Refuses a market on Ethereum.
///
/// # Errors
/// `FEATURE_NOT_BUILT`.
pub(crate) fn signing_ledger(
    _client: &Client,
    _info: &EthereumInfo,
    _node: &NodeArg,
    _signer: (&Wallet, &Path),
) -> anyhow::Result<Box<dyn Ledger>> {
    Err(not_built())
}

pub(crate) mod coordinate {
    //! A coordinator whose market is on an Ethereum chain.

    use std::fs::File;
    use std::sync::Arc;

    use florin_coordinator::LedgerEndpoint;
    use florin_ledger::Ledger;
    use florin_ledger::ethereum::Settings;
    use florin_participant::Wallet;

    use crate::cli::Coordinate;

    /// A market's contracts, opened for its coordinator.
    pub(crate) struct CoordinatorContracts {
        pub(crate) ledger: Arc<dyn Ledger>,
        pub(crate) place: LedgerEndpoint,
        pub(crate) lock: File,
    }

    /// Refuses to open contracts.
    ///
    /// # Errors
    /// `FEATURE_NOT_BUILT`.
    pub(crate) fn open(
        _arguments: &Coordinate,
        _settings: Settings,
        _wallet: &Wallet,
    ) -> anyhow::Result<CoordinatorContracts> {
        Err(super::not_built())
    }
}

pub(crate) mod ledger {
    //! The commands on a market's contracts.

    use super::{Exit, not_built};
    use crate::cli::{ChainArg, JsonArg, LedgerDeploy, LedgerStatus};

    pub(crate) fn deploy(_arguments: &LedgerDeploy) -> anyhow::Result<Exit> {
        Err(not_built())
    }

    pub(crate) fn status(_arguments: &LedgerStatus) -> anyhow::Result<Exit> {
        Err(not_built())
    }

    pub(crate) fn verify(_chain: &ChainArg, _json: JsonArg) -> anyhow::Result<Exit> {
        Err(not_built())
    }
}

pub(crate) mod demo {
    //! The demonstration on a development chain. Neither type has a value in this build.

    use florin_protocol::{Report, TaskId};
    use serde_json::Value;

    use super::not_built;
    use crate::cli::AnvilArg;
    use crate::demo::children::Children;
    use crate::demo::setup::DemoSetup;

    pub(crate) enum DemoChain {}

    impl DemoChain {
        pub(crate) fn open(
            _children: &mut Children,
            _stage: &DemoSetup,
            _named: &AnvilArg,
        ) -> anyhow::Result<Self> {
            Err(not_built())
        }

        pub(crate) const fn rpc(&self) -> &str {
            match *self {}
        }
    }

    #[derive(Debug)]
    pub(crate) enum OnChain {}

    impl OnChain {
        pub(crate) const fn collect(
            chain: &DemoChain,
            _running: (&DemoSetup, &mut Children),
            _task: TaskId,
            _reports: &[Report],
        ) -> anyhow::Result<Self> {
            match *chain {}
        }

        pub(crate) const fn is_clean(&self) -> bool {
            match *self {}
        }

        pub(crate) const fn print(&self) {
            match *self {}
        }

        pub(crate) const fn to_json(&self) -> Value {
            match *self {}
        }
    }

    pub(crate) const fn section(_html: &mut String, on_chain: &OnChain) {
        match *on_chain {}
    }
}
