// Writes ABI and bytecode of the deployed contracts to abi/*.json for clients, or compares them
// with a fresh compilation.
//
// usage: node scripts/artifacts.mjs write | check     (after `forge build`)

import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const NAMES = ["FlorinToken", "Market", "Registry"];
const CODE_BYTES_MAX = 24_576; // EIP-170
const folder = join(dirname(fileURLToPath(import.meta.url)), "..");
const mode = process.argv[2];
if (mode !== "write" && mode !== "check") {
  console.error("error: usage: node scripts/artifacts.mjs write | check");
  process.exit(2);
}

let differing = 0;
for (const name of NAMES) {
  const built = JSON.parse(readFileSync(join(folder, "out", `${name}.sol`, `${name}.json`), "utf8"));
  const bytes = (built.deployedBytecode.object.length - 2) / 2;
  if (bytes > CODE_BYTES_MAX) {
    console.error(`error: ${name} has ${bytes} bytes of code; the limit is ${CODE_BYTES_MAX} (EIP-170)`);
    differing += 1;
  }
  const text = `${JSON.stringify({ contractName: name, abi: built.abi, bytecode: built.bytecode.object }, null, 1)}\n`;
  const path = join(folder, "abi", `${name}.json`);
  if (mode === "write") {
    writeFileSync(path, text);
    console.log(`wrote abi/${name}.json: ${bytes} bytes of code`);
  } else if (readFileSync(path, "utf8") !== text) {
    console.error(`error: abi/${name}.json differs from the compilation of src/: run \`cargo xtask contracts build\` and commit it`);
    differing += 1;
  } else {
    console.log(`abi/${name}.json equals the compilation of src/: ${bytes} bytes of code`);
  }
}
process.exit(differing === 0 ? 0 : 1);
