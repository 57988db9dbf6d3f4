//! Stands in for `ethereum` in a build without that feature: every command that needs a chain fails
//! with `FEATURE_NOT_BUILT`.

use std::path::Path;

use florin_ledger::Ledger;
use florin_participant::{Client, Wallet};
use florin_protocol::EthereumInfo;

use crate::cli::NodeArg;
use crate::failure::Failure;

/// The error of every command that needs a chain.
pub(crate) fn not_built() -> anyhow::Error {
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

/// Refuses to open contracts.
///
/// # Errors
/// `FEATURE_NOT_BUILT`.
pub(crate) fn ledger_without_coordinator(
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
