//! EIP-712, hashing of typed structured data: <https://eips.ethereum.org/EIPS/eip-712>.
//!
//! Wallets display a structure's field names and values before they sign its hash. This module has
//! the atomic types that Florin's messages use; a structure in a structure does not occur.

use crate::bytes::{keccak256, write_word};
use crate::id::{Address, ChainId, MarketId};

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypedValue {
    /// `address`.
    Address(Address),
    /// `bytes32`.
    Bytes32([u8; 32]),
    /// `uint64`.
    Uint64(u64),
    /// `uint256`, from a number of 64 bits.
    Uint256(u64),
    /// `string`.
    String(String),
}

impl TypedValue {
    const fn type_name(&self) -> &'static str {
        match self {
            Self::Address(_) => "address",
            Self::Bytes32(_) => "bytes32",
            Self::Uint64(_) => "uint64",
            Self::Uint256(_) => "uint256",
            Self::String(_) => "string",
        }
    }

    /// `encodeData`: 32 bytes, numbers big-endian and padded on the left, strings as their hash.
    fn encode(&self) -> [u8; 32] {
        match self {
            Self::Address(address) => pad_left(address.as_bytes()),
            Self::Bytes32(bytes) => *bytes,
            Self::Uint64(number) | Self::Uint256(number) => pad_left(&number.to_be_bytes()),
            Self::String(text) => keccak256(text.as_bytes()),
        }
    }
}

/// A structure: its type's name, and its fields in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedData {
    /// Name of the type, as wallets display it.
    pub primary_type: &'static str,
    /// Names and values of the fields.
    pub fields: Vec<(&'static str, TypedValue)>,
}

impl TypedData {
    /// `encodeType`, for example `CloseTask(bytes32 task)`.
    #[must_use]
    pub fn encode_type(&self) -> String {
        let fields: Vec<String> = self
            .fields
            .iter()
            .map(|(name, value)| format!("{} {name}", value.type_name()))
            .collect();
        format!("{}({})", self.primary_type, fields.join(","))
    }

    /// `hashStruct`: the hash of the type's hash and the encoded fields.
    #[must_use]
    pub fn struct_hash(&self) -> [u8; 32] {
        let mut bytes = keccak256(self.encode_type().as_bytes()).to_vec();
        for (_, value) in &self.fields {
            bytes.extend_from_slice(&value.encode());
        }
        keccak256(&bytes)
    }

    /// The hash that a wallet signs in the domain of a market: `keccak256(0x1901 ‖ domain separator
    /// ‖ hashStruct)`.
    #[must_use]
    pub fn signing_hash(&self, market: MarketId) -> [u8; 32] {
        self.hash_in(&market_domain(market))
    }

    /// The hash that a wallet signs in the domain of a chain, which a contract can compute: a market's
    /// genesis is unknown to its contracts.
    #[must_use]
    pub fn signing_hash_on_chain(&self, chain: ChainId) -> [u8; 32] {
        self.hash_in(&chain_domain(chain))
    }

    fn hash_in(&self, domain: &Self) -> [u8; 32] {
        let mut bytes = vec![0x19, 0x01];
        bytes.extend_from_slice(&domain.struct_hash());
        bytes.extend_from_slice(&self.struct_hash());
        keccak256(&bytes)
    }
}

/// The EIP-712 domain of a chain: name "Florin", version "1", and the chain id.
fn chain_domain(chain: ChainId) -> TypedData {
    let mut domain = market_domain(MarketId { chain, genesis: Default::default() });
    domain.fields.truncate(3);
    domain
}

/// The EIP-712 domain of a market: name "Florin", version "1", the chain id, and the market's
/// genesis as salt.
fn market_domain(market: MarketId) -> TypedData {
    TypedData {
        primary_type: "EIP712Domain",
        fields: vec![
            ("name", TypedValue::String("Florin".to_owned())),
            ("version", TypedValue::String("1".to_owned())),
            ("chainId", TypedValue::Uint256(market.chain.0)),
            ("salt", TypedValue::Bytes32(market.genesis.0)),
        ],
    }
}

fn pad_left(bytes: &[u8]) -> [u8; 32] {
    let mut word = [0; 32];
    write_word(&mut word, bytes);
    word
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{B256, FixedBytes};
    use alloy_sol_types::{SolStruct, eip712_domain, sol};
    use proptest::prelude::*;

    use super::*;
    use crate::id::{ChainId, Digest};

    sol! {
        struct Everything {
            address account;
            bytes32 digest;
            uint64 number;
            uint256 large;
            string text;
        }
    }

    proptest! {
        #[test]
        fn hashes_equal_those_of_alloy(
            account: [u8; 20], digest: [u8; 32], number: u64, large: u64, text: String,
            chain: u64, genesis: [u8; 32],
        ) {
            let ours = TypedData {
                primary_type: "Everything",
                fields: vec![
                    ("account", TypedValue::Address(Address(account))),
                    ("digest", TypedValue::Bytes32(digest)),
                    ("number", TypedValue::Uint64(number)),
                    ("large", TypedValue::Uint256(large)),
                    ("text", TypedValue::String(text.clone())),
                ],
            };
            let theirs = Everything {
                account: account.into(),
                digest: FixedBytes(digest),
                number,
                large: alloy_primitives::U256::from(large),
                text,
            };
            let domain = eip712_domain! {
                name: "Florin",
                version: "1",
                chain_id: chain,
                salt: B256::from(genesis),
            };
            let market = MarketId { chain: ChainId(chain), genesis: Digest(genesis) };
            prop_assert_eq!(ours.encode_type(), Everything::eip712_encode_type());
            prop_assert_eq!(ours.struct_hash(), theirs.eip712_hash_struct().0);
            prop_assert_eq!(ours.signing_hash(market), theirs.eip712_signing_hash(&domain).0);
        }
    }
}
