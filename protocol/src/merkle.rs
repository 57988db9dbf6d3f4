//! The tree of running totals, in the form of OpenZeppelin's `standard-v1` trees, so that
//! `@openzeppelin/merkle-tree` and `MerkleProof.sol` agree with it hash for hash.
//!
//! A leaf is `keccak256(keccak256(abi.encode(address account, uint256 total)))`: hashed twice so that no inner node
//! can pass for a leaf. Leaves are sorted by hash; inner nodes hash their two children in ascending order.

use alloy_primitives::keccak256;

use crate::id::{Address, Digest};
use crate::limits::PROOF_LEN_MAX;
use crate::money::Amount;

/// The hash of one account's running total.
#[must_use]
pub fn leaf(account: Address, total: Amount) -> Digest {
    let mut encoded = [0u8; 64];
    let (first, second) = encoded.split_at_mut(32);
    first.iter_mut().rev().zip(account.0.iter().rev()).for_each(|(to, from)| *to = *from);
    second
        .iter_mut()
        .rev()
        .zip(total.units().to_be_bytes().iter().rev())
        .for_each(|(to, from)| *to = *from);
    Digest(keccak256(keccak256(encoded)).0)
}

fn parent(a: Digest, b: Digest) -> Digest {
    let (low, high) = if a <= b { (a, b) } else { (b, a) };
    let mut both = Vec::with_capacity(64);
    both.extend_from_slice(&low.0);
    both.extend_from_slice(&high.0);
    Digest(keccak256(both).0)
}

/// Position arithmetic of the heap layout: the root is 0, the children of `i` are `2i + 1` and `2i + 2`.
fn child(i: usize, second: bool) -> usize {
    i.saturating_mul(2).saturating_add(if second { 2 } else { 1 })
}

/// A tree over running totals, ready to give proofs.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Heap layout, root first; empty for no accounts.
    nodes: Vec<Digest>,
}

impl Tree {
    /// Builds the tree. The order of `totals` does not matter; equal leaves are kept as often as they come.
    pub fn new(totals: impl IntoIterator<Item = (Address, Amount)>) -> Self {
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

    /// The root; all zeros for a tree without accounts, which proves nothing.
    #[must_use]
    pub fn root(&self) -> Digest {
        self.nodes.first().copied().unwrap_or_default()
    }

    /// The sibling hashes from the leaf of `account` and `total` to the root; `None` if it is not in the tree.
    #[must_use]
    pub fn proof(&self, account: Address, total: Amount) -> Option<Vec<Digest>> {
        let hash = leaf(account, total);
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

/// Whether `proof` leads from the leaf of `account` and `total` to `root`. False for the all-zero root of an empty
/// tree and for proofs longer than [`PROOF_LEN_MAX`].
#[must_use]
pub fn verify(root: Digest, account: Address, total: Amount, proof: &[Digest]) -> bool {
    root != Digest::default()
        && proof.len() <= PROOF_LEN_MAX
        && proof.iter().fold(leaf(account, total), |node, sibling| parent(node, *sibling)) == root
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn totals(n: u8) -> Vec<(Address, Amount)> {
        (0..n).map(|i| (Address([i; 20]), Amount::from_units(u128::from(i) * 1_000))).collect()
    }

    #[test]
    fn every_account_can_prove_its_own_total_and_no_other() {
        for n in 1..=33 {
            let all = totals(n);
            let tree = Tree::new(all.clone());
            for (account, total) in &all {
                let proof = tree.proof(*account, *total).unwrap();
                assert!(verify(tree.root(), *account, *total, &proof));
                let more = total.plus(Amount::from_units(1)).unwrap();
                assert!(!verify(tree.root(), *account, more, &proof));
                assert!(!verify(tree.root(), Address([99; 20]), *total, &proof));
            }
        }
    }

    #[test]
    fn an_empty_tree_proves_nothing() {
        let tree = Tree::new([]);
        assert_eq!(tree.root(), Digest::default());
        assert_eq!(tree.proof(Address::default(), Amount::ZERO), None);
        assert!(!verify(tree.root(), Address::default(), Amount::ZERO, &[]));
    }

    #[test]
    fn an_inner_node_is_not_a_leaf() {
        let tree = Tree::new(totals(4));
        let too_long = vec![Digest::default(); PROOF_LEN_MAX + 1];
        assert!(!verify(tree.root(), Address([1; 20]), Amount::from_units(1_000), &too_long));
        assert!(!verify(tree.root(), Address([1; 20]), Amount::from_units(1_000), &[]));
    }

    proptest! {
        #[test]
        fn the_order_of_the_accounts_does_not_matter(n in 1u8..60, turn in 0usize..60) {
            let mut all = totals(n);
            let root = Tree::new(all.clone()).root();
            let turn = turn % all.len();
            all.rotate_left(turn);
            prop_assert_eq!(Tree::new(all).root(), root);
        }
    }
}
