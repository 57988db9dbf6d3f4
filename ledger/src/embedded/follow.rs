//! Following a chain that another machine serves: every block is verified and replayed from the
//! genesis, and heads that were signed at other moments, or shown to other clients, are compared
//! with it. An operator that shows two chains, or rewrites one, contradicts its own signature.

use florin_protocol::{Canonical, Digest, Signed};

use super::block::{Block, BlockHeader, ChainHead, Genesis};
use super::replay::{LoadedChain, SignatureChecks, replay_block};
use super::{ChainError, Verification};
use crate::api::LedgerError;

/// A block's header with its operator's signature: evidence of the whole chain up to this block.
pub type SignedHead = Signed<BlockHeader>;

/// A chain that is read block by block.
pub trait BlockSource {
    /// The genesis, whose digest is the market's.
    ///
    /// # Errors
    /// [`LedgerError`].
    fn genesis(&self) -> Result<Genesis, LedgerError>;
    /// The newest block.
    ///
    /// # Errors
    /// [`LedgerError`].
    fn head(&self) -> Result<ChainHead, LedgerError>;
    /// A block; `None` for a number beyond the newest.
    ///
    /// # Errors
    /// [`LedgerError`].
    fn block(&self, number: u64) -> Result<Option<Block>, LedgerError>;
}

/// The errors of following a chain.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The operator signed another chain before, or for another client.
    #[error(
        "the ledger's operator signed block {number} with digest {signed}, but {}: it has \
         rewritten its ledger, or shows different clients different ledgers [LEDGER_FORK]",
        match served {
            Some(digest) => format!("now serves a block {number} with digest {digest}"),
            None => "its ledger ends before that block".to_owned(),
        }
    )]
    Fork {
        /// The block's number.
        number: u64,
        /// The digest that the operator signed.
        signed: Digest,
        /// The digest of the block that is served now; `None` for a chain that is too short.
        served: Option<Digest>,
    },
    /// A head that the chain's operator has not signed.
    #[error(
        "the head of block {number} is not signed by this ledger's operator: it belongs to another \
         market, or was changed [INVALID_HEAD]"
    )]
    InvalidHead {
        /// The block's number.
        number: u64,
    },
    /// A block violates a rule of the chain.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The chain could not be read.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Replays a served chain from its genesis: verifies every account signature, every operator
/// signature and every link, and that each of `heads` is a block of it. `on_block` receives the
/// number of verified blocks and of all blocks.
///
/// # Errors
/// [`FollowError`].
pub fn verify_served_chain(
    source: &dyn BlockSource,
    heads: &[SignedHead],
    on_block: &mut dyn FnMut(u64, u64),
) -> Result<Verification, FollowError> {
    let end = source.head()?;
    let mut loaded = LoadedChain::from_genesis(source.genesis()?)?;
    for head in heads {
        check_signature(head, &loaded.genesis)?;
    }
    for number in 1..=end.number {
        let block = served_block(source, number)?;
        replay_block(&mut loaded, number, &block.to_bytes(), SignatureChecks::All)?;
        for head in heads.iter().filter(|head| head.body.number == number) {
            compare(head, Some(loaded.head.digest))?;
        }
        on_block(number, end.number);
    }
    for head in heads.iter().filter(|head| head.body.number > end.number) {
        compare(head, None)?;
    }
    check_end(loaded.head, end)?;
    Ok(loaded.verification()?)
}

/// The newest signed head of a served chain, after a check that `seen` is still a block of it;
/// `None` for a chain without blocks. The blocks between the two are not read:
/// [`verify_served_chain`] reads them all.
///
/// # Errors
/// [`FollowError`].
pub fn follow_head(
    source: &dyn BlockSource,
    seen: Option<&SignedHead>,
) -> Result<Option<SignedHead>, FollowError> {
    let genesis = source.genesis()?;
    let end = source.head()?;
    if let Some(seen) = seen {
        check_signature(seen, &genesis)?;
        compare(seen, source.block(seen.body.number)?.map(|block| block.header.digest()))?;
    }
    if end.number == 0 {
        return Ok(None);
    }
    let header = served_block(source, end.number)?.header;
    check_signature(&header, &genesis)?;
    check_end(ChainHead::from_header(&header), end)?;
    Ok(Some(header))
}

/// A block that the ledger has, by its own account.
fn served_block(source: &dyn BlockSource, number: u64) -> Result<Block, FollowError> {
    let absent = || ChainError::in_block(number, "it is not served");
    Ok(source.block(number)?.ok_or_else(absent)?)
}

/// Refuses a newest block that is not the one that the ledger names.
fn check_end(found: ChainHead, named: ChainHead) -> Result<(), ChainError> {
    if found == named {
        return Ok(());
    }
    let what = format!("it is not the block {} that the ledger names", named.digest);
    Err(ChainError::in_block(named.number, what))
}

fn check_signature(head: &SignedHead, genesis: &Genesis) -> Result<(), FollowError> {
    let invalid = |_| FollowError::InvalidHead { number: head.body.number };
    head.verify(genesis.operator_key).map(|_| ()).map_err(invalid)
}

fn compare(head: &SignedHead, served: Option<Digest>) -> Result<(), FollowError> {
    let signed = head.digest();
    match served == Some(signed) {
        true => Ok(()),
        false => Err(FollowError::Fork { number: head.body.number, signed, served }),
    }
}

#[cfg(test)]
mod tests {
    use florin_protocol::{Address, Amount, ChainId, NodeSigner, Timestamp, WalletSigner};

    use super::*;
    use crate::action::Action;
    use crate::conformance::TestSigner;
    use crate::embedded::block::{sign_block, transactions_digest};
    use crate::state::{Draft, changes_digest};
    use crate::transaction::Transaction;

    /// A chain in memory whose blocks a test may change.
    struct Served {
        genesis: Genesis,
        blocks: Vec<Block>,
    }

    impl BlockSource for Served {
        fn genesis(&self) -> Result<Genesis, LedgerError> {
            Ok(self.genesis.clone())
        }

        fn head(&self) -> Result<ChainHead, LedgerError> {
            let genesis = ChainHead::from_genesis(&self.genesis);
            Ok(self.blocks.last().map_or(genesis, |block| ChainHead::from_header(&block.header)))
        }

        fn block(&self, number: u64) -> Result<Option<Block>, LedgerError> {
            let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
            Ok(index.and_then(|index| self.blocks.get(index)).cloned())
        }
    }

    fn operator() -> NodeSigner {
        NodeSigner::from_seed(&[3; 32])
    }

    /// Blocks of one transfer each, of the given numbers of units.
    fn served(transfers: &[u64]) -> Served {
        let owner = TestSigner::new(0).unwrap();
        let operator = operator();
        let genesis = Genesis {
            chain_id: ChainId(5),
            operator: Address([1; 20]),
            operator_key: operator.key(),
            allocations: vec![(owner.address(), Amount::from_units(1_000))],
            created: Timestamp(1_000),
        };
        let market = genesis.market();
        let mut chain = Served { genesis: genesis.clone(), blocks: Vec::new() };
        let mut loaded = LoadedChain::from_genesis(genesis).unwrap();
        for (nonce, units) in transfers.iter().enumerate() {
            let action = Action::Transfer {
                to: Address([9; 20]),
                amount: Amount::from_units((*units).into()),
            };
            let transaction = Transaction {
                market,
                from: owner.address(),
                nonce: u64::try_from(nonce).unwrap(),
                action,
            };
            let signed = transaction.sign(&owner).unwrap();
            let time = Timestamp(2_000);
            let mut draft = Draft::new(&loaded.state);
            draft.apply(&signed.transaction, time).unwrap();
            let changes = draft.into_changes();
            let transactions = vec![signed];
            let bytes = borsh::to_vec(&transactions).unwrap();
            let header = BlockHeader {
                number: loaded.head.number + 1,
                parent: loaded.head.digest,
                time,
                transactions: transactions_digest(&bytes),
                changes: changes_digest(&changes.rows().unwrap()),
            };
            let signed = sign_block(header, &bytes, |header| operator.sign(*header).signature);
            let block = Block { header: signed.header, transactions };
            replay_block(&mut loaded, header.number, &block.to_bytes(), SignatureChecks::All)
                .unwrap();
            chain.blocks.push(block);
        }
        chain
    }

    fn verify(chain: &Served, heads: &[SignedHead]) -> Result<Verification, FollowError> {
        verify_served_chain(chain, heads, &mut |_, _| {})
    }

    #[test]
    fn an_honest_chain_replays_and_has_the_heads_that_were_signed() {
        let chain = served(&[1, 2, 3]);
        let heads: Vec<SignedHead> =
            chain.blocks.iter().map(|block| block.header.clone()).collect();
        let found = verify(&chain, &heads).unwrap();
        assert_eq!((found.blocks, found.transactions), (3, 3));
        assert_eq!(follow_head(&chain, None).unwrap(), heads.last().cloned());
        assert_eq!(follow_head(&chain, heads.first()).unwrap(), heads.last().cloned());
        assert_eq!(follow_head(&served(&[]), None).unwrap(), None);
    }

    #[test]
    fn another_chain_of_the_same_operator_contradicts_a_head() {
        let seen = served(&[1, 2, 3]).blocks[1].header.clone();
        for other in [served(&[1, 7, 3]), served(&[1])] {
            let fork = |error| matches!(error, FollowError::Fork { number: 2, .. });
            assert!(fork(verify(&other, std::slice::from_ref(&seen)).unwrap_err()));
            assert!(fork(follow_head(&other, Some(&seen)).unwrap_err()));
        }
    }

    #[test]
    fn a_head_of_another_operator_proves_nothing() {
        let chain = served(&[1]);
        let head = NodeSigner::from_seed(&[4; 32]).sign(chain.blocks[0].header.body);
        for error in [
            verify(&chain, std::slice::from_ref(&head)).unwrap_err(),
            follow_head(&chain, Some(&head)).unwrap_err(),
        ] {
            assert!(matches!(error, FollowError::InvalidHead { number: 1 }), "{error}");
        }
    }

    #[test]
    fn a_changed_block_is_found_at_its_number() {
        let mut chain = served(&[1, 2, 3]);
        chain.blocks[1].transactions = served(&[1, 7]).blocks[1].transactions.clone();
        let error = verify(&chain, &[]).unwrap_err().to_string();
        assert!(error.contains("block 2") && error.contains("signed digest"), "{error}");
        // The head alone does not show it.
        follow_head(&chain, None).unwrap();
    }
}
