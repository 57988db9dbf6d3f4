//! Merkle proofs of holdout rows: valid proofs verify, forged ones do not.

use super::*;
use proptest::prelude::*;

const DATASET_DIGEST: Digest = Digest([7; 32]);

fn row(index: u32) -> Vec<u8> {
    let mut bytes = (index as f32 / 3.0).to_le_bytes().to_vec();
    bytes.extend_from_slice(&(index % 10).to_le_bytes());
    bytes
}

fn tree(rows: u32) -> HoldoutTree {
    HoldoutTree::new(
        (0..rows).map(|i| leaf(i, blinding_factor(DATASET_DIGEST, i), &row(i))).collect(),
    )
}

fn disclosed(tree: &HoldoutTree, index: u32) -> DisclosedRow {
    let proof = tree.proof(index).unwrap();
    DisclosedRow {
        index,
        blinding_factor: blinding_factor(DATASET_DIGEST, index),
        row: row(index),
        proof,
    }
}

#[test]
fn every_row_verifies_at_its_own_index_only() {
    for rows in (1..=33).chain([64, 65, 100]) {
        let tree = tree(rows);
        for index in 0..rows {
            let honest = disclosed(&tree, index);
            assert!(honest.verify(tree.root(), rows), "row {index} of {rows}");
            for other in (0..rows + 2).filter(|other| *other != index) {
                let moved = DisclosedRow { index: other, ..honest.clone() };
                assert!(!moved.verify(tree.root(), rows), "{index} as {other} of {rows}");
            }
        }
        assert_eq!(tree.proof(rows), None);
    }
}

#[test]
fn forged_rows_swapped_rows_and_altered_proofs_do_not_verify() {
    let tree = tree(13);
    let (root, honest, other) = (tree.root(), disclosed(&tree, 5), disclosed(&tree, 6));
    let mut bent = honest.proof.clone();
    bent.swap(0, 1);
    let mut longer = honest.proof.clone();
    longer.push(Digest::default());
    let forgeries = [
        ("a changed feature", DisclosedRow { row: row(6), ..honest.clone() }),
        ("a longer row", DisclosedRow { row: [row(5), vec![0]].concat(), ..honest.clone() }),
        (
            "another blinding factor",
            DisclosedRow { blinding_factor: blinding_factor(DATASET_DIGEST, 6), ..honest.clone() },
        ),
        ("a swapped row", DisclosedRow { index: 5, ..other.clone() }),
        ("a proof of another row", DisclosedRow { proof: other.proof, ..honest.clone() }),
        ("a truncated proof", DisclosedRow { proof: honest.proof[1..].to_vec(), ..honest.clone() }),
        (
            "a proof without its top",
            DisclosedRow { proof: honest.proof[..3].to_vec(), ..honest.clone() },
        ),
        ("a longer proof", DisclosedRow { proof: longer, ..honest.clone() }),
        ("a proof in another order", DisclosedRow { proof: bent, ..honest.clone() }),
    ];
    for (what, forged) in forgeries {
        assert!(!forged.verify(root, 13), "{what}");
    }
    assert!(honest.verify(root, 13));
    // The size of the tree is part of the statement that a proof proves.
    assert!(!honest.verify(root, 3) && !honest.verify(Digest::default(), 13));
}

#[test]
fn an_inner_node_does_not_verify_as_a_leaf() {
    // The hash over two leaves, presented as a row of a tree with half as many rows.
    let (a, b) = (leaf(0, DATASET_DIGEST, b"a"), leaf(1, DATASET_DIGEST, b"b"));
    let all = [a, b, leaf(2, DATASET_DIGEST, b"c"), leaf(3, DATASET_DIGEST, b"d")];
    let root = HoldoutTree::new(all.to_vec()).root();
    let both = [a.0, b.0].concat();
    assert!(!verify(root, 2, 0, leaf(0, DATASET_DIGEST, &both), &[node(all[2], all[3])]));
    assert_ne!(leaf(0, Digest::default(), &both), node(a, b));
}

#[test]
fn an_empty_tree_has_a_zero_root_and_verifies_nothing() {
    let empty = HoldoutTree::new(Vec::new());
    assert_eq!((empty.root(), empty.proof(0)), (Digest::default(), None));
    assert!(!verify(Digest::default(), 0, 0, Digest::default(), &[]));
    assert!(!verify(Digest::default(), 1, 0, Digest::default(), &[]));
}

#[test]
fn equal_rows_at_different_indices_have_different_leaves() {
    // The hashes in a proof do not reveal whether two secret rows are equal to each other or to a
    // known row.
    assert_ne!(
        leaf(0, blinding_factor(DATASET_DIGEST, 0), &row(1)),
        leaf(1, blinding_factor(DATASET_DIGEST, 1), &row(1))
    );
    assert_ne!(blinding_factor(DATASET_DIGEST, 0), blinding_factor(Digest([8; 32]), 0));
    assert_ne!(
        leaf(0, DATASET_DIGEST, &row(1)),
        leaf(1, DATASET_DIGEST, &row(1)),
        "even without a blinding factor"
    );
}

#[test]
fn disclosed_rows_round_trip_and_trailing_bytes_are_refused() {
    let tree = tree(100);
    let all = DisclosedRows { rows: [3, 50, 99].map(|i| disclosed(&tree, i)).to_vec() };
    let bytes = all.to_bytes();
    assert_eq!(DisclosedRows::from_bytes(&bytes).unwrap(), all);
    assert!(bytes.len() as u64 <= DisclosedRows::bytes_max(3, 1, 100));
    for bad in [&bytes[..bytes.len() - 1], &[bytes.as_slice(), &[0]].concat(), &[255; 4]] {
        assert!(DisclosedRows::from_bytes(bad).is_err());
    }
}

proptest! {
    #[test]
    fn encoded_disclosed_rows_stay_within_their_size_bound(rows in 2u32..300, width in 1u32..9) {
        let row = vec![0; (width as usize + 1) * 4];
        let tree = HoldoutTree::new((0..rows).map(|i| leaf(i, DATASET_DIGEST, &row)).collect());
        let one = |index| {
            let proof = tree.proof(index).unwrap();
            DisclosedRow { index, blinding_factor: DATASET_DIGEST, row: row.clone(), proof }
        };
        let all = DisclosedRows { rows: (0..rows).map(one).collect() };
        prop_assert!(all.to_bytes().len() as u64 <= DisclosedRows::bytes_max(rows, width, rows));
    }
}
