//! Genesis and blocks: what is hashed, linked and signed.

use std::collections::BTreeSet;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{
    Address, Amount, Canonical, ChainId, Digest, Market, NodeKey, NodeSignature, Signed, Tick,
};
use serde::{Deserialize, Serialize};

use crate::limits::ALLOCATIONS_MAX;
use crate::transaction::SignedTransaction;

/// What a chain begins with. Its digest is the genesis of the chain's [`Market`].
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Genesis {
    /// The chain's id; transactions are signed for it.
    pub chain_id: ChainId,
    /// The account of whoever runs the chain. It has no rights on the ledger: it is named so that people know whom to
    /// ask.
    pub operator: Address,
    /// The key that signs every block.
    pub operator_key: NodeKey,
    /// Who holds how much. No other money is ever made.
    pub allocations: Vec<(Address, Amount)>,
    /// The time of block 0.
    pub created: Tick,
}

impl Canonical for Genesis {
    const DOMAIN: &'static str = "florin v1 genesis";
}

impl Genesis {
    /// The market that this genesis begins.
    #[must_use]
    pub fn market(&self) -> Market {
        Market { chain: self.chain_id, genesis: self.digest() }
    }

    /// What is wrong with it, if anything.
    pub(crate) fn fault(&self) -> Option<String> {
        if self.allocations.len() > ALLOCATIONS_MAX {
            return Some(format!(
                "{} allocations: at most {ALLOCATIONS_MAX}",
                self.allocations.len()
            ));
        }
        if let Some((owner, _)) = self.allocations.iter().find(|(_, amount)| amount.is_zero()) {
            return Some(format!("{owner} is given 0 FLN: leave it out"));
        }
        let mut seen = BTreeSet::new();
        if let Some((owner, _)) = self.allocations.iter().find(|(owner, _)| !seen.insert(*owner)) {
            return Some(format!("{owner} is listed twice: give it one amount"));
        }
        Amount::total(self.allocations.iter().map(|(_, amount)| *amount))
            .err()
            .map(|error| error.to_string())
    }
}

/// What the operator signs of a block.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = BlockHeader))]
pub struct Header {
    /// 1 for the first block.
    pub number: u64,
    /// Digest of the block before, its signature included; of the genesis for block 1.
    pub parent: Digest,
    /// When it was made; never before its parent.
    pub time: Tick,
    /// Digest of the transactions with their signatures.
    pub transactions: Digest,
    /// Digest of every row that the transactions changed.
    pub changes: Digest,
}

impl Canonical for Header {
    const DOMAIN: &'static str = "florin v1 block";
}

/// Transactions that were carried out together, and became durable together.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Block {
    /// Signed by the operator.
    pub header: Signed<Header>,
    /// In the order in which they were carried out; refused ones are not among them.
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

/// The newest block.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Head {
    /// Its number; 0 for a chain that has only its genesis.
    pub number: u64,
    /// What the next block names as its parent.
    pub digest: Digest,
    /// Its time.
    pub time: Tick,
}

impl Head {
    /// The head of a chain without blocks.
    pub(crate) fn genesis(genesis: &Genesis) -> Self {
        Self { number: 0, digest: genesis.digest(), time: genesis.created }
    }

    /// The head once this block stands.
    pub(crate) fn of(header: &Signed<Header>) -> Self {
        Self { number: header.body.number, digest: header.digest(), time: header.body.time }
    }

    /// Checks that a header continues this head and that the operator signed it.
    pub(crate) fn check(&self, header: &Signed<Header>, operator: NodeKey) -> Result<(), String> {
        self.check_link(&header.body)?;
        header
            .verify(operator)
            .map(|_| ())
            .map_err(|error| format!("the operator's signature: {error}"))
    }

    /// Checks number, parent and time.
    pub(crate) fn check_link(&self, header: &Header) -> Result<(), String> {
        let expected = self.number.checked_add(1);
        if Some(header.number) != expected {
            return Err(format!("it calls itself block {}", header.number));
        }
        if header.parent != self.digest {
            return Err(format!("its parent is {}, not {}", header.parent, self.digest));
        }
        if header.time < self.time {
            return Err(format!(
                "its time {} lies before its parent's, {}",
                header.time, self.time
            ));
        }
        Ok(())
    }
}

/// The parts of a block before its signature: the bytes are encoded once, for hashing and for storing.
pub(crate) struct Sealed {
    pub(crate) header: Signed<Header>,
    pub(crate) bytes: Vec<u8>,
}

/// Builds the stored bytes of a block from the canonical bytes of its transactions.
pub(crate) fn seal(
    header: Header,
    transactions: &[u8],
    sign: impl FnOnce(&Header) -> NodeSignature,
) -> Sealed {
    let header = Signed { signature: sign(&header), body: header };
    // A block is its header followed by its transactions: concatenation is its canonical encoding.
    let mut bytes = header.to_bytes();
    bytes.extend_from_slice(transactions);
    Sealed { header, bytes }
}
