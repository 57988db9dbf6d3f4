//! The claim tree: a Merkle tree of running totals, in the form of OpenZeppelin's `standard-v1`
//! trees. Its roots and proofs equal those of `@openzeppelin/merkle-tree` and verify with
//! `MerkleProof.sol`.
//!
//! A leaf is `keccak256(keccak256(abi.encode(address account, uint256 paid, uint256 debited)))`.
//! The double hash prevents an inner node from passing for a leaf. Leaves are sorted by hash; inner
//! nodes hash their two children in ascending order.
//!
//! Source: <https://github.com/OpenZeppelin/merkle-tree#standard-merkle-trees>.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::amount::Amount;
use crate::bytes::{keccak256, write_word};
use crate::id::{Address, Digest};
use crate::limits::PROOF_LEN_MAX;

/// Running totals of one account in a task. Both are non-decreasing.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ClaimTotals {
    /// Total owed to it, for data and infrastructure together.
    pub paid: Amount,
    /// Total to debit from its bond.
    pub debited: Amount,
}

impl ClaimTotals {
    /// Whether both are zero. Such an account has no leaf.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        self.paid.is_zero() && self.debited.is_zero()
    }
}

/// The leaf of one account's totals.
#[must_use]
pub fn leaf(account: Address, totals: ClaimTotals) -> Digest {
    let mut encoded = [0u8; 96];
    let (paid, debited) = (totals.paid.units().to_be_bytes(), totals.debited.units().to_be_bytes());
    let fields: [&[u8]; 3] = [&account.0, &paid, &debited];
    encoded.chunks_exact_mut(32).zip(fields).for_each(|(word, field)| write_word(word, field));
    Digest(keccak256(&keccak256(&encoded)))
}

fn parent(a: Digest, b: Digest) -> Digest {
    let (low, high) = if a <= b { (a, b) } else { (b, a) };
    let mut both = Vec::with_capacity(64);
    both.extend_from_slice(&low.0);
    both.extend_from_slice(&high.0);
    Digest(keccak256(&both))
}

/// Index of a child in the heap layout: the root is 0, the children of `i` are `2i + 1` and `2i +
/// 2`.
fn child(i: usize, second: bool) -> usize {
    i.saturating_mul(2).saturating_add(if second { 2 } else { 1 })
}

/// A Merkle tree of running totals.
#[derive(Clone, Debug)]
pub struct ClaimTree {
    /// Heap layout, root first; empty without accounts.
    nodes: Vec<Digest>,
}

impl ClaimTree {
    /// Builds the tree. The order of `totals` does not matter; duplicate leaves are retained.
    pub fn new(totals: impl IntoIterator<Item = (Address, ClaimTotals)>) -> Self {
        let mut leaves: Vec<Digest> = totals.into_iter().map(|(a, t)| leaf(a, t)).collect();
        leaves.sort_unstable();
        let inner = leaves.len().saturating_sub(1);
        let mut nodes = vec![Digest::default(); inner];
        // The heap's last position holds the smallest leaf.
        nodes.extend(leaves.into_iter().rev());
        for i in (0..inner).rev() {
            let pair = (nodes.get(child(i, false)), nodes.get(child(i, true)));
            if let (Some(a), Some(b)) = pair {
                let hash = parent(*a, *b);
                if let Some(node) = nodes.get_mut(i) {
                    *node = hash;
                }
            }
        }
        Self { nodes }
    }

    /// The root; all zeros for a tree without accounts, for which no proof verifies.
    #[must_use]
    pub fn root(&self) -> Digest {
        self.nodes.first().copied().unwrap_or_default()
    }

    /// The sibling hashes from the leaf of `account` and `totals` to the root; `None` if the tree
    /// does not contain the leaf.
    #[must_use]
    pub fn proof(&self, account: Address, totals: ClaimTotals) -> Option<Vec<Digest>> {
        let hash = leaf(account, totals);
        let inner = self.nodes.len().checked_div(2)?;
        let mut i = self
            .nodes
            .iter()
            .enumerate()
            .skip(inner)
            .find_map(|(i, node)| (*node == hash).then_some(i))?;
        let mut proof = Vec::new();
        while i > 0 {
            let sibling =
                if i.checked_rem(2) == Some(1) { i.checked_add(1) } else { i.checked_sub(1) };
            proof.push(*self.nodes.get(sibling?)?);
            i = i.checked_sub(1)?.checked_div(2)?;
        }
        Some(proof)
    }
}

/// Verifies that `proof` leads from the leaf of `account` and `totals` to `root`. False for the
/// all-zero root of an empty tree and for proofs longer than [`PROOF_LEN_MAX`].
#[must_use]
pub fn verify(root: Digest, account: Address, totals: ClaimTotals, proof: &[Digest]) -> bool {
    root != Digest::default()
        && proof.len() <= PROOF_LEN_MAX
        && proof.iter().fold(leaf(account, totals), |node, sibling| parent(node, *sibling)) == root
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn totals(paid: u128, debited: u128) -> ClaimTotals {
        ClaimTotals { paid: Amount::from_units(paid), debited: Amount::from_units(debited) }
    }

    fn all(n: u8) -> Vec<(Address, ClaimTotals)> {
        let of = |i| (Address([i; 20]), totals(u128::from(i) * 1_000, u128::from(i % 3)));
        (0..n).map(of).collect()
    }

    #[test]
    fn every_account_can_prove_its_own_totals_and_no_others() {
        for n in 1..=33 {
            let all = all(n);
            let tree = ClaimTree::new(all.clone());
            for (account, own) in &all {
                let proof = tree.proof(*account, *own).unwrap();
                assert!(verify(tree.root(), *account, *own, &proof));
                let (paid, debited) = (own.paid.units(), own.debited.units());
                // More paid, more debited, and the two swapped.
                for wrong in [(paid + 1, debited), (paid, debited + 1), (debited, paid)] {
                    let wrong = totals(wrong.0, wrong.1);
                    assert!(wrong == *own || !verify(tree.root(), *account, wrong, &proof));
                }
                assert!(!verify(tree.root(), Address([99; 20]), *own, &proof));
            }
        }
    }

    #[test]
    fn an_empty_tree_proves_nothing() {
        let tree = ClaimTree::new([]);
        assert_eq!(tree.root(), Digest::default());
        assert_eq!(tree.proof(Address::default(), ClaimTotals::default()), None);
        assert!(!verify(tree.root(), Address::default(), ClaimTotals::default(), &[]));
    }

    #[test]
    fn a_node_hashes_its_smaller_child_first() {
        let (low, high) = (Digest([1; 32]), Digest([2; 32]));
        let expected = Digest(keccak256(&[low.0, high.0].concat()));
        assert_eq!((parent(low, high), parent(high, low)), (expected, expected));
    }

    #[test]
    fn an_overlong_or_empty_proof_does_not_verify() {
        let tree = ClaimTree::new(all(4));
        let too_long = vec![Digest::default(); PROOF_LEN_MAX + 1];
        let own = totals(1_000, 1);
        assert!(!verify(tree.root(), Address([1; 20]), own, &too_long));
        assert!(!verify(tree.root(), Address([1; 20]), own, &[]));
    }

    proptest! {
        #[test]
        fn the_order_of_the_accounts_does_not_matter(n in 1u8..60, turn in 0usize..60) {
            let mut all = all(n);
            let root = ClaimTree::new(all.clone()).root();
            let turn = turn % all.len();
            all.rotate_left(turn);
            prop_assert_eq!(ClaimTree::new(all).root(), root);
        }
    }
}
