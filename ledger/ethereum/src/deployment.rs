//! The addresses of a market's contracts, which a client needs besides a node.

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Address, Canonical, ChainId, MarketId};
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

/// The identity of a market. The block is not part of it: a reorganisation may change it.
#[derive(BorshSerialize, BorshDeserialize)]
struct Identity {
    chain: ChainId,
    token: Address,
    market: Address,
    registry: Address,
}

impl Canonical for Identity {
    const DOMAIN: &'static str = "florin v1 deployment";
}

impl Deployment {
    /// The market as messages name it: its genesis is the digest of the chain id and the addresses.
    #[must_use]
    pub fn market(&self) -> MarketId {
        let Self { chain, token, market, registry, .. } = *self;
        let genesis = Identity { chain, token, market, registry }.digest();
        MarketId { chain, genesis }
    }
}
