//! The addresses of a market's contracts, which a client needs besides a node.

use florin_protocol::{Address, ChainId, EthereumInfo, MarketId};
use serde::{Deserialize, Serialize};

/// A market's contracts on one chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deployment {
    /// The chain.
    pub chain: ChainId,
    /// The ERC-20 token of all amounts.
    pub token: Address,
    /// The contract for escrow, bonds, stakes and settlements.
    pub market: Address,
    /// The contract for the node keys of wallets.
    pub registry: Address,
    /// The block of the market's deployment: its events are not older.
    pub block: u64,
}

impl Deployment {
    /// The market as messages name it: its genesis is the digest of the chain id and the addresses.
    #[must_use]
    pub fn market(&self) -> MarketId {
        let Self { chain, token, market, registry, block } = *self;
        EthereumInfo { token, market, registry, block, rpc: None }.market_on(chain)
    }
}
