#!/usr/bin/env node
// A wrapper that presents solc-js as the native `solc` that forge requires: npm has no native
// compiler.
//
// usage: solc.mjs --version | solc.mjs --standard-json < input.json

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const solc = createRequire(import.meta.url)("solc");

if (process.argv.includes("--version")) {
  console.log("solc, the solidity compiler commandline interface");
  console.log(`Version: ${solc.version()}`);
} else if (process.argv.includes("--standard-json")) {
  // forge includes the content of every source in the input, so no import callback is needed.
  process.stdout.write(solc.compile(readFileSync(0, "utf8")));
} else {
  console.error("error: usage: solc.mjs --version | --standard-json");
  process.exit(2);
}
