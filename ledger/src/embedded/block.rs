//! Genesis and blocks: the hashed, linked and signed data of the chain.

use std::collections::BTreeSet;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{
    Address, Amount, Canonical, ChainId, Digest, MarketId, NodeKey, NodeSignature, Signed,
    Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::limits::ALLOCATIONS_MAX;
use crate::transaction::SignedTransaction;

/// The first record of a chain. Its digest is the genesis of the chain's [`MarketId`].
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Genesis {
    /// The chain's id; transactions are signed for it.
    pub chain_id: ChainId,
    /// The account of the chain's operator. It has no rights on the ledger; it is named as a
    /// contact.
    pub operator: Address,
    /// The key that signs every block.
    pub operator_key: NodeKey,
    /// The initial balances, which are the whole supply.
    pub allocations: Vec<(Address, Amount)>,
    /// The time of block 0.
    pub created: Timestamp,
}

impl Canonical for Genesis {
    const DOMAIN: &'static str = "florin v1 genesis";
}

impl Genesis {
    /// The market of this genesis.
    #[must_use]
    pub fn market(&self) -> MarketId {
        MarketId { chain: self.chain_id, genesis: self.digest() }
    }

    /// The first violated rule, if any.
    pub(crate) fn validation_error(&self) -> Option<String> {
        if self.allocations.len() > ALLOCATIONS_MAX {
            return Some(format!(
                "{} allocations: the maximum is {ALLOCATIONS_MAX}",
                self.allocations.len()
            ));
        }
        if let Some((owner, _)) = self.allocations.iter().find(|(_, amount)| amount.is_zero()) {
            return Some(format!("{owner} is allocated 0 FLN: remove the entry"));
        }
        let mut seen = BTreeSet::new();
        if let Some((owner, _)) = self.allocations.iter().find(|(owner, _)| !seen.insert(*owner)) {
            return Some(format!("{owner} is listed twice: list one amount for each account"));
        }
        Amount::total(self.allocations.iter().map(|(_, amount)| *amount))
            .err()
            .map(|error| error.to_string())
    }
}

/// The part of a block that the operator signs.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema), schema(as = BlockHeader))]
pub struct BlockHeader {
    /// 1 for the first block.
    pub number: u64,
    /// Digest of the parent block, including its signature; of the genesis for block 1.
    pub parent: Digest,
    /// The block's time; never before its parent's.
    pub time: Timestamp,
    /// Digest of the transactions with their signatures.
    pub transactions: Digest,
    /// Digest of every row that the transactions changed.
    pub changes: Digest,
}

impl Canonical for BlockHeader {
    const DOMAIN: &'static str = "florin v1 block";
}

/// Transactions that were executed and became durable together.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Block {
    /// Signed by the operator.
    pub header: Signed<BlockHeader>,
    /// In the order of execution; refused transactions are not included.
    pub transactions: Vec<SignedTransaction>,
}

impl Canonical for Block {
    const DOMAIN: &'static str = "florin v1 stored block";
}

/// The digest of a block's transactions, over their canonical bytes.
pub(crate) fn transactions_digest(bytes: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 transactions");
    hasher.update(bytes);
    Digest(*hasher.finalize().as_bytes())
}

/// The newest block of a chain.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ChainHead {
    /// Its number; 0 for a chain that has only its genesis.
    pub number: u64,
    /// The parent digest of the next block.
    pub digest: Digest,
    /// Its time.
    pub time: Timestamp,
}

impl ChainHead {
    /// The head of a chain without blocks.
    pub(crate) fn from_genesis(genesis: &Genesis) -> Self {
        Self { number: 0, digest: genesis.digest(), time: genesis.created }
    }

    /// The head after this block.
    pub(crate) fn from_header(header: &Signed<BlockHeader>) -> Self {
        Self { number: header.body.number, digest: header.digest(), time: header.body.time }
    }

    /// Checks that a header continues this head and that the operator signed it.
    pub(crate) fn verify_next(
        &self,
        header: &Signed<BlockHeader>,
        operator: NodeKey,
    ) -> Result<(), String> {
        self.verify_link(&header.body)?;
        header
            .verify(operator)
            .map(|_| ())
            .map_err(|error| format!("the operator's signature: {error}"))
    }

    /// Checks number, parent and time.
    pub(crate) fn verify_link(&self, header: &BlockHeader) -> Result<(), String> {
        let expected = self.number.checked_add(1);
        if Some(header.number) != expected {
            return Err(format!("its header has block number {}", header.number));
        }
        if header.parent != self.digest {
            return Err(format!("its parent is {}, not {}", header.parent, self.digest));
        }
        if header.time < self.time {
            return Err(format!(
                "its time {} is before its parent's time {}",
                header.time, self.time
            ));
        }
        Ok(())
    }
}

/// A signed header with the encoded block: the bytes are encoded once, for hashing and for storing.
pub(crate) struct SignedBlock {
    pub(crate) header: Signed<BlockHeader>,
    pub(crate) bytes: Vec<u8>,
}

/// Builds the stored bytes of a block from the canonical bytes of its transactions.
pub(crate) fn sign_block(
    header: BlockHeader,
    transactions: &[u8],
    sign: impl FnOnce(&BlockHeader) -> NodeSignature,
) -> SignedBlock {
    let header = Signed { signature: sign(&header), body: header };
    // A block is its header followed by its transactions: concatenation is its canonical encoding.
    let mut bytes = header.to_bytes();
    bytes.extend_from_slice(transactions);
    SignedBlock { header, bytes }
}
