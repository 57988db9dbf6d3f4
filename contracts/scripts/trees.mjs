// Differential test of the claim tree in both directions: OpenZeppelin's proofs lead to its root by
// the hashing of `Claims`, and OpenZeppelin accepts the roots and proofs that this script builds.
//
// usage: node scripts/trees.mjs [SEED]     prints the seed; exit code 1 if anything differs

import { createRequire } from "node:module";
import { StandardMerkleTree } from "@openzeppelin/merkle-tree";

const { keccak256 } = createRequire(createRequire(import.meta.url).resolve("solc"))("js-sha3");
const TYPES = ["address", "uint256", "uint256"];
const SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 100, 1_000, 4_999, 5_000];
const PROOFS_PER_TREE = 20;

const seed = BigInt(process.argv[2] ?? Math.floor(Math.random() * 2 ** 32));
console.log(`seed ${seed}`);
let state = seed;
// A linear congruential generator (Knuth's MMIX constants); sufficient to vary the trees.
const random = () => {
  state = (state * 6364136223846793005n + 1442695040888963407n) & (2n ** 64n - 1n);
  return state >> 16n;
};

const word = (value) => BigInt(value).toString(16).padStart(64, "0");
const hash = (hex) => keccak256(Buffer.from(hex, "hex"));
const leafOf = ([account, paid, debited]) => hash(hash(word(account) + word(paid) + word(debited)));
const parent = (a, b) => (a < b ? hash(a + b) : hash(b + a));

// The heap of the standard tree: the root first, the smallest leaf last.
function build(leaves) {
  const sorted = [...leaves].sort().reverse();
  const heap = [...Array(leaves.length - 1), ...sorted];
  for (let i = leaves.length - 2; i >= 0; i--) heap[i] = parent(heap[2 * i + 1], heap[2 * i + 2]);
  return heap;
}

function proofIn(heap, leaf) {
  const proof = [];
  for (let i = heap.indexOf(leaf, (heap.length - 1) / 2); i > 0; i = (i - 1) >> 1) {
    proof.push(heap[i % 2 === 1 ? i + 1 : i - 1]);
  }
  return proof;
}

function must(what, holds) {
  if (holds) return;
  console.error(`error: ${what} (seed ${seed})`);
  process.exit(1);
}

let proofs = 0;
for (const size of SIZES) {
  const values = Array.from({ length: size }, (_, i) => [
    `0x${word(random() * 65_536n + BigInt(i)).slice(24)}`,
    (random() * random()).toString(),
    (i % 3 === 0 ? random() : 0n).toString(),
  ]);
  const theirs = StandardMerkleTree.of(values, TYPES);
  const heap = build(values.map(leafOf));
  must(`${size} leaves: root 0x${heap[0]}, OpenZeppelin's ${theirs.root}`, theirs.root === `0x${heap[0]}`);
  for (let n = 0; n < Math.min(size, PROOFS_PER_TREE); n++) {
    const i = Number(random() % BigInt(size));
    const leaf = leafOf(values[i]);
    const folded = theirs.getProof(i).reduce((node, sibling) => parent(node, sibling.slice(2)), leaf);
    must(`${size} leaves: OpenZeppelin's proof ${i}, verified by this script`, folded === heap[0]);
    const ours = proofIn(heap, leaf).map((node) => `0x${node}`);
    must(`${size} leaves: proof ${i}, verified by OpenZeppelin`, StandardMerkleTree.verify(theirs.root, TYPES, values[i], ours));
    const more = [values[i][0], (BigInt(values[i][1]) + 1n).toString(), values[i][2]];
    must(`${size} leaves: a proof of one unit more must not verify`, !StandardMerkleTree.verify(theirs.root, TYPES, more, ours));
    proofs += 1;
  }
}
console.log(`${SIZES.length} trees and ${proofs} proofs agree in both directions`);
