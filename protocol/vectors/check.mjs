// Checks the Merkle vectors with OpenZeppelin's reference implementation from npm.
//
// usage: node check.mjs FOLDER     prints one line per vector; exit code 1 if any differs, or if none was read

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { StandardMerkleTree } from "@openzeppelin/merkle-tree";

const types = ["address", "uint256", "uint256"]; // account, paid, debited

const vectors = JSON.parse(readFileSync(join(process.argv[2], "trees.json"), "utf8"));
let done = 0;
for (const { name, leaves, root, proofs } of vectors) {
  const tree = StandardMerkleTree.of(leaves, types);
  const differs = (what) => {
    console.log(`DIFFERS  trees: ${name}: ${what}`);
    process.exit(1);
  };
  if (tree.root !== `0x${root}`) differs(`root ${tree.root}`);
  for (const [index, leaf] of leaves.entries()) {
    const ours = proofs[index].map((hash) => `0x${hash}`);
    if (JSON.stringify(tree.getProof(index)) !== JSON.stringify(ours)) differs(`proof ${index}`);
    if (!StandardMerkleTree.verify(`0x${root}`, types, leaf, ours)) {
      differs(`proof ${index} does not verify`);
    }
  }
  console.log(`agrees   trees: ${name}`);
  done += 1;
}
console.log(`${done} trees agree`);
process.exit(done > 0 ? 0 : 1);
