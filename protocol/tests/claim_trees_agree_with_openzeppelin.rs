//! Differential test against OpenZeppelin with random trees of 1 to 5,000 accounts: OpenZeppelin's
//! `verify` accepts this crate's roots and proofs, and this crate accepts OpenZeppelin's, but no
//! other amount.

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use florin_protocol::merkle::{self, ClaimTotals, ClaimTree};
use florin_protocol::{Address, Amount, Digest};
use serde::Deserialize;
use serde_json::json;

/// The longest proof here: 2^13 is more than 5,000.
const LEVELS_MAX: usize = 13;
const PROOFS_PER_TREE: usize = 25;

/// SplitMix64: deterministic on every platform.
struct SplitMix64(u64);

impl SplitMix64 {
    /// Seeded from FLORIN_TEST_SEED, or randomly; prints the seed in either case.
    fn from_env() -> Self {
        let seed = match std::env::var("FLORIN_TEST_SEED") {
            Ok(seed) => seed.parse().expect("FLORIN_TEST_SEED is a number"),
            Err(_) => RandomState::new().hash_one("seed"),
        };
        println!("FLORIN_TEST_SEED={seed}");
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn account(&mut self) -> (Address, ClaimTotals) {
        let mut address = [0; 20];
        address.iter_mut().for_each(|byte| *byte = self.next() as u8);
        // Amounts of every magnitude, including the largest.
        let mut amount = || {
            let units = (u128::from(self.next()) << 64) | u128::from(self.next());
            Amount::from_units(units >> (self.next() % 128))
        };
        let (paid, debited) = (amount(), amount());
        (Address(address), ClaimTotals { paid, debited })
    }
}

#[derive(Deserialize)]
struct IndexedProof {
    index: usize,
    proof: Vec<Digest>,
}

/// Root and proofs that OpenZeppelin's library computes for the same leaves, after it accepted this
/// crate's proofs.
#[derive(Deserialize)]
struct OpenZeppelinTree {
    root: Digest,
    proofs: Vec<IndexedProof>,
}

fn openzeppelin_tree(input: &str) -> OpenZeppelinTree {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors");
    let mut child = Command::new("node")
        .arg(vectors.join("trees.mjs"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("node is missing: `cargo xtask setup` lists what this test needs");
    // The child reads all input before it writes, so that the pipes cannot deadlock.
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "trees.mjs failed (see above); was `cargo xtask setup` run?");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn assert_trees_agree(accounts: &[(Address, ClaimTotals)], random: &mut SplitMix64) {
    let tree = ClaimTree::new(accounts.iter().copied());
    let some: Vec<usize> =
        (0..PROOFS_PER_TREE.min(accounts.len())).map(|_| random.below(accounts.len())).collect();
    let leaves: Vec<_> = accounts
        .iter()
        .map(|(a, t)| {
            let account = format!("0x{}", hex(&a.0));
            json!([account, t.paid.units().to_string(), t.debited.units().to_string()])
        })
        .collect();
    let proofs: Vec<_> = some
        .iter()
        .map(|&index| {
            let (account, totals) = accounts[index];
            json!({ "index": index, "proof": tree.proof(account, totals).unwrap() })
        })
        .collect();
    let theirs = openzeppelin_tree(
        &json!({ "leaves": leaves, "root": tree.root(), "proofs": proofs }).to_string(),
    );
    assert_eq!(theirs.root, tree.root(), "{} accounts", accounts.len());
    assert_eq!(theirs.proofs.len(), some.len());
    for IndexedProof { index, proof } in theirs.proofs {
        let (account, totals) = accounts[index];
        assert!(proof.len() <= LEVELS_MAX);
        assert!(merkle::verify(tree.root(), account, totals, &proof), "their proof {index}");
        let units = totals.paid.units();
        let more = ClaimTotals { paid: Amount::from_units(units ^ 1), ..totals };
        assert!(!merkle::verify(tree.root(), account, more, &proof), "another amount {index}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn random_trees_and_proofs_agree_with_openzeppelin() {
    let mut random = SplitMix64::from_env();
    let mut sizes = vec![1, 2, 3, 5_000];
    sizes.extend((0..3).map(|_| 1 + random.below(5_000)));
    for size in sizes {
        let accounts: Vec<_> = (0..size).map(|_| random.account()).collect();
        assert_trees_agree(&accounts, &mut random);
    }
}
