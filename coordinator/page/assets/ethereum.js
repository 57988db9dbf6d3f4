// @ts-check
// A browser wallet on a market of Ethereum: wallets announce themselves (EIP-6963), and each
// transaction is shown in words before a wallet is asked for it.
import { Unanswered } from "./api.js";
import { redraw } from "./frame.js";

/** Wallets that are listed. */
const WALLETS_MAX = 8;
/** Time between two looks for a receipt, in milliseconds. */
const RECEIPT_MS = 1000;
/** Time for which a wallet may take to read, in milliseconds. */
const ANSWER_MS = 4000;
/** Looks for a receipt. */
const RECEIPT_TRIES_MAX = 300;

/** The first four bytes of a call; a test compares them with the contracts. */
export const SELECTORS = {
  "approve(address,uint256)": "0x095ea7b3",
  "balanceOf(address)": "0x70a08231",
  "bond(bytes32,uint128)": "0x1e5715cb",
  "bondOf(bytes32,address)": "0x9bad31c6",
  "claim(bytes32,address,uint256,uint256,bytes32[])": "0x099eb904",
  "decimals()": "0x313ce567",
  "claimed(bytes32,address)": "0xdfcae622",
  "stakeOf(address)": "0x42623360",
  "task(bytes32)": "0xcf66151b",
  "totalSupply()": "0x18160ddd",
  "treasury()": "0x61d027b3",
  "unbond(bytes32)": "0x2fd1c2cd",
  "withdrawBond(bytes32)": "0x7285e1ac",
};

/** @typedef {{ request(call: { method: string, params?: unknown[] }): Promise<any> }} Provider */
/** @typedef {{ name: string, provider: Provider }} BrowserWallet */
/** @typedef {{ token: string, market: string }} Contracts */
/**
 * A transaction in words, and as the wallet gets it.
 * @typedef {{ words: string[], to: string, data: string }} Transaction
 */

/** @type {Map<string, BrowserWallet>} */
const wallets = new Map();

window.addEventListener("eip6963:announceProvider", (event) => {
  const { info, provider } = /** @type {any} */ (event).detail ?? {};
  if (typeof info?.uuid === "string" && !wallets.has(info.uuid) && typeof provider?.request === "function" && wallets.size < WALLETS_MAX) {
    wallets.set(info.uuid, { name: String(info.name ?? ""), provider });
    redraw();
  }
});
window.dispatchEvent(new Event("eip6963:requestProvider"));

/** The wallets of this browser: id and name. */
export function found() {
  return [...wallets].map(([id, { name }]) => ({ id, name }));
}

/**
 * The connected wallet, and what it was asked for.
 * `number` counts the proposals: a button of an earlier one does nothing. `sending` is true until the
 * receipt of a transaction.
 * @type {{ provider: Provider | null, account: string, chain: number, number: number, asked: Transaction | null, after: Transaction[], sending: boolean, state: string, failed: string, unread: string }}
 */
export const session = { provider: null, account: "", chain: 0, number: 0, asked: null, after: [], sending: false, state: "", failed: "", unread: "" };

/** @param {unknown} error */
function failure(error) {
  session.sending = false;
  session.state = "";
  session.failed = String(/** @type {any} */ (error)?.message ?? error);
  redraw();
}

/** Connects a wallet for a chain. @param {string} id @param {number} chain */
export function connect(id, chain) {
  const provider = wallets.get(id)?.provider;
  if (!provider) {
    return;
  }
  session.state = "The wallet is asked for an account.";
  session.failed = "";
  redraw();
  void (async () => {
    const accounts = await provider.request({ method: "eth_requestAccounts" });
    const account = String(accounts?.[0] ?? "");
    if (!/^0x[0-9a-fA-F]{40}$/.test(account)) {
      throw new Error("the wallet names no account");
    }
    const wanted = `0x${chain.toString(16)}`;
    if (Number(await provider.request({ method: "eth_chainId" })) !== chain) {
      await provider.request({ method: "wallet_switchEthereumChain", params: [{ chainId: wanted }] });
    }
    if (Number(await provider.request({ method: "eth_chainId" })) !== chain) {
      throw new Error(`the wallet is not on the chain ${chain} of this market`);
    }
    Object.assign(session, { provider, account, chain, state: "" });
    redraw();
  })().catch(failure);
}

/** A word of 32 bytes. @param {bigint | string} value A number, an address or a digest. */
function word(value) {
  const digits = typeof value === "bigint" ? value.toString(16) : value.replace(/^0x/, "").toLowerCase();
  if (!/^[0-9a-f]{0,64}$/.test(digits)) {
    throw new Error("a value does not fit into a word");
  }
  return digits.padStart(64, "0");
}

/**
 * Encodes a call whose last argument may be a list of digests.
 * @param {keyof typeof SELECTORS} name
 * @param {(bigint | string)[]} values
 * @param {string[]} [list]
 */
export function encode(name, values, list) {
  const tail = list ? [word(BigInt(32 * (values.length + 1))), word(BigInt(list.length)), ...list.map(word)] : [];
  return SELECTORS[name] + values.map(word).join("") + tail.join("");
}

/**
 * The answer of a wallet that asks its user nothing, within a time.
 * @param {Provider} provider
 * @param {{ method: string, params?: unknown[] }} question
 */
function inTime(provider, question) {
  const late = new Promise((_, fail) => window.setTimeout(() => fail(new Unanswered("the wallet does not answer")), ANSWER_MS));
  return Promise.race([provider.request(question), late]);
}

/**
 * Reads words from a contract, through the connected wallet, which must be on the market's chain.
 * @param {string} to
 * @param {string} data
 * @returns {Promise<bigint[]>}
 */
export async function read(to, data) {
  if (!session.provider) {
    return [];
  }
  if (Number(await inTime(session.provider, { method: "eth_chainId" })) !== session.chain) {
    throw new Unanswered(`the wallet has left the chain ${session.chain} of this market`);
  }
  const answer = await inTime(session.provider, { method: "eth_call", params: [{ to, data }, "latest"] });
  const words = (String(answer).replace(/^0x/, "").match(/[0-9a-fA-F]{64}/g) ?? []).map((one) => BigInt(`0x${one}`));
  if (words.length === 0) {
    throw new Error(`there is no contract of this market at ${to}`);
  }
  return words;
}

/** Shows transactions in words, the first one now. @param {Transaction[]} transactions */
export function propose(transactions) {
  if (session.sending) {
    session.failed = "a transaction waits for its block: propose the next one after it";
    redraw();
    return;
  }
  session.number += 1;
  session.asked = transactions[0] ?? null;
  session.after = transactions.slice(1);
  session.state = "";
  session.failed = "";
  redraw();
}

/** Forgets the proposed transactions. */
export function cancel() {
  propose([]);
}

/** Sends the transaction that was shown under this number, and waits for its receipt. @param {number} number */
export function confirm(number) {
  const { provider, account, asked, after, chain } = session;
  if (!provider || !asked || number !== session.number) {
    return;
  }
  session.asked = null;
  session.sending = true;
  session.state = "The wallet asks you to confirm.";
  redraw();
  void (async () => {
    if (Number(await inTime(provider, { method: "eth_chainId" })) !== chain) {
      throw new Error(`the wallet has left the chain ${chain} of this market`);
    }
    const hash = String(await provider.request({
      method: "eth_sendTransaction", params: [{ from: account, to: asked.to, data: asked.data }],
    }));
    session.state = `Sent: ${hash}. The page waits for its block.`;
    redraw();
    for (let tries = 0; tries < RECEIPT_TRIES_MAX; tries += 1) {
      const receipt = await inTime(provider, { method: "eth_getTransactionReceipt", params: [hash] }).catch(() => null);
      if (receipt) {
        if (Number(receipt.status) !== 1) {
          throw new Error(`the contract refused the transaction ${hash}: nothing was changed`);
        }
        session.sending = false;
        propose(after);
        session.state = after.length > 0 ? "" : `Done: ${hash}.`;
        redraw();
        return;
      }
      await new Promise((go) => window.setTimeout(go, RECEIPT_MS));
    }
    throw new Error(`no block has the transaction ${hash} yet: look for it in the wallet before you repeat it`);
  })().catch(failure);
}
