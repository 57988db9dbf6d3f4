// Answers requests by the committed module, as a browser does: a JSON array of request texts on
// standard input, and one of answers on standard output.
import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";

const bytes = gunzipSync(readFileSync(new URL("../../coordinator/page/assets/florin.wasm.gz", import.meta.url)));
const { instance } = await WebAssembly.instantiate(bytes, {});
const { memory, reserve, call, answer_address: addressOf } = instance.exports;
const answers = JSON.parse(readFileSync(0, "utf8")).map((request) => {
  const text = new TextEncoder().encode(request);
  const address = reserve(text.length);
  new Uint8Array(memory.buffer, address, text.length).set(text);
  const length = call();
  return JSON.parse(new TextDecoder().decode(new Uint8Array(memory.buffer, addressOf(), length)));
});
process.stdout.write(JSON.stringify(answers));
