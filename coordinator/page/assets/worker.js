// @ts-check
// The worker of the page: it runs the WebAssembly, so that a long check delays no click.

/** @typedef {{ memory: WebAssembly.Memory, reserve(length: number): number, call(): number, answer_address(): number }} Exports */

/** Longest wait for the WebAssembly, in milliseconds. */
const LOAD_MS = 20000;
/** @type {Promise<Exports> | null} */
let loading = null;

async function load() {
  const response = await fetch("/page/florin.wasm", { signal: AbortSignal.timeout(LOAD_MS) });
  if (!response.ok) {
    throw new Error(`the WebAssembly of this page is not served (${response.status})`);
  }
  const { instance } = await WebAssembly.instantiate(await response.arrayBuffer(), {});
  return /** @type {Exports} */ (/** @type {unknown} */ (instance.exports));
}

/** The answer to a request in JSON. @param {string} request @returns {Promise<any>} */
async function answer(request) {
  loading ??= load();
  let code;
  try {
    code = await loading;
  } catch (error) {
    loading = null;
    throw error;
  }
  try {
    const bytes = new TextEncoder().encode(request);
    const address = code.reserve(bytes.length);
    if (address === 0) {
      return { error: "the documents are larger than any honest ones" };
    }
    new Uint8Array(code.memory.buffer, address, bytes.length).set(bytes);
    const length = code.call();
    return JSON.parse(new TextDecoder().decode(new Uint8Array(code.memory.buffer, code.answer_address(), length)));
  } catch (error) {
    // Documents that the module cannot bear: it begins anew.
    loading = null;
    return { error: String(error instanceof Error ? error.message : error) };
  }
}

globalThis.addEventListener("message", (event) => {
  answer(String(event.data)).then(
    (found) => self.postMessage({ answer: found }),
    (error) => self.postMessage({ failed: String(error instanceof Error ? error.message : error) }));
});

export {};
