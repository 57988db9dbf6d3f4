// Compares slither's findings with the accepted ones in findings.json: each finding needs an
// explanation, and each explanation a finding.
//
// usage: node scripts/findings.mjs SLITHER_JSON     exit code 1 if a finding is unexplained or an
// explanation stale

import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const folder = dirname(fileURLToPath(import.meta.url));
const report = JSON.parse(readFileSync(process.argv[2], "utf8"));
if (!report.success) {
  console.error(`error: slither stopped: ${report.error}`);
  process.exit(1);
}
// A finding is identified by its detector and its first element, such as
// `Market.claim(bytes32,...)`.
const name = ({ name, type_specific_fields: { parent } = {} }) => (parent ? `${parent.name}.${name}` : name);
const found = new Map();
for (const { check, elements, description } of report.results.detectors ?? []) {
  found.set(`${check} ${name(elements[0])}`, description.trim());
}
const explained = new Map();
for (const { check, where, why } of JSON.parse(readFileSync(join(folder, "findings.json"), "utf8"))) {
  for (const place of where) explained.set(`${check} ${place}`, why);
}

let wrong = 0;
for (const [finding, description] of found) {
  if (explained.has(finding)) continue;
  console.error(`error: ${finding}: this finding has no explanation in findings.json:\n${description}`);
  wrong += 1;
}
for (const finding of explained.keys()) {
  if (found.has(finding)) continue;
  console.error(`error: ${finding}: slither no longer reports this finding: remove its explanation from findings.json`);
  wrong += 1;
}
if (wrong === 0) console.log(`${found.size} findings, all explained in findings.json`);
process.exit(wrong === 0 ? 0 : 1);
