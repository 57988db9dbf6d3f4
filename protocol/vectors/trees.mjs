// One random tree, held against OpenZeppelin's own from npm: JSON {leaves, root, proofs: [{index, proof}]} on standard
// input, their {root, proofs} for the same leaves on standard output. Exit code 1 if theirs refuses one of ours.
//
// usage: node trees.mjs < tree.json

import { readFileSync } from "node:fs";
import { StandardMerkleTree } from "@openzeppelin/merkle-tree";

const types = ["address", "uint256", "uint256"]; // account, paid, debited

const { leaves, root, proofs } = JSON.parse(readFileSync(0, "utf8"));
for (const { index, proof } of proofs) {
  const ours = proof.map((hash) => `0x${hash}`);
  if (StandardMerkleTree.verify(`0x${root}`, types, leaves[index], ours)) continue;
  console.error(`proof ${index} of ${leaves.length} leaves is refused under 0x${root}`);
  process.exit(1);
}
const tree = StandardMerkleTree.of(leaves, types);
const theirs = proofs.map(({ index }) => ({ index, proof: tree.getProof(index).map((hash) => hash.slice(2)) }));
console.log(JSON.stringify({ root: tree.root.slice(2), proofs: theirs }));
