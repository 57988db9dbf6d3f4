// Differential test of one tree against OpenZeppelin's implementation from npm. Standard input: JSON {leaves, root,
// proofs: [{index, proof}]}. Standard output: OpenZeppelin's {root, proofs} for the same leaves. Exit code 1 if
// OpenZeppelin rejects one of the given proofs.
//
// usage: node trees.mjs < tree.json

import { readFileSync } from "node:fs";
import { StandardMerkleTree } from "@openzeppelin/merkle-tree";

const types = ["address", "uint256", "uint256"]; // account, paid, debited

const { leaves, root, proofs } = JSON.parse(readFileSync(0, "utf8"));
for (const { index, proof } of proofs) {
  const ours = proof.map((hash) => `0x${hash}`);
  if (StandardMerkleTree.verify(`0x${root}`, types, leaves[index], ours)) continue;
  console.error(`proof ${index} of ${leaves.length} leaves does not verify against 0x${root}`);
  process.exit(1);
}
const tree = StandardMerkleTree.of(leaves, types);
const theirs = proofs.map(({ index }) => ({ index, proof: tree.getProof(index).map((hash) => hash.slice(2)) }));
console.log(JSON.stringify({ root: tree.root.slice(2), proofs: theirs }));
