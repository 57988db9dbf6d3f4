#!/usr/bin/env node
// solc-js, dressed as the native `solc` that forge asks for: there is no native compiler in the npm registry.
//
// usage: solc.mjs --version | solc.mjs --standard-json < input.json

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const solc = createRequire(import.meta.url)("solc");

if (process.argv.includes("--version")) {
  console.log("solc, the solidity compiler commandline interface");
  console.log(`Version: ${solc.version()}`);
} else if (process.argv.includes("--standard-json")) {
  // forge puts every source's content into the input: nothing is left to be read or fetched.
  process.stdout.write(solc.compile(readFileSync(0, "utf8")));
} else {
  console.error("error: usage: solc.mjs --version | --standard-json");
  process.exit(2);
}
