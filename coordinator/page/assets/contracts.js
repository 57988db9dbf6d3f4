// @ts-check
// The contracts of a market on Ethereum, read through the connected wallet.
import { marketDocument } from "./api.js";
import { setBounded } from "./bounded.js";
import { encode, read, session } from "./ethereum.js";
import { decimal } from "./money.js";
import { checkContracts } from "./wasm.js";

/** Time for which an answer of the chain is not asked for again, in milliseconds. */
const FRESH_MS = 4000;
/** Answers in memory. */
const ANSWERS_MAX = 200;
/** Words of a task's state before `dataLocked`: its terms. */
const TERMS_WORDS = 15;
/** The words of a task's state. */
const STATE_WORDS = TERMS_WORDS + 16;

/** @type {Map<string, { at: number, answer: Promise<any> }>} */
const answers = new Map();

/** The answer to a question, which stays for a while. @template T @param {string} key @param {() => Promise<T>} ask @returns {Promise<T>} */
function remembered(key, ask) {
  const known = answers.get(key);
  if (known && Date.now() - known.at < FRESH_MS) {
    return known.answer;
  }
  const answer = ask();
  setBounded(answers, ANSWERS_MAX, key, { at: Date.now(), answer });
  answer.catch(() => answers.delete(key));
  return answer;
}

/** The contracts of the market's identity; null without a wallet, on another ledger, and where the market names other contracts. */
async function contracts() {
  if (!session.provider) {
    return null;
  }
  const { json: market, text } = await marketDocument();
  if (market.ledger?.kind !== "ethereum" || !(await checkContracts(text))) {
    return null;
  }
  return { token: String(market.ledger.token), market: String(market.ledger.market) };
}

/**
 * The state of a task in the contract, in the form of the embedded chain; null where it cannot be read.
 * @param {string} id
 * @returns {Promise<any>}
 */
export async function taskOnChain(id) {
  const known = await contracts();
  return known && remembered(`${known.market}/${id}`, async () => {
    const words = await read(known.market, encode("task(bytes32)", [id]));
    if (words.length < STATE_WORDS) {
      throw new Error("the contract answers without the state of a task");
    }
    const challenge = words[12] ?? 0n;
    const [data_locked, infrastructure_locked, data_paid, infrastructure_paid, refunded, owed, root = 0n, round, , pending = 0n, last = 0n, closes_at, closed] = words.slice(TERMS_WORDS);
    const amount = (/** @type {bigint | undefined} */ value) => decimal(value ?? 0n);
    return {
      data_locked: amount(data_locked), infrastructure_locked: amount(infrastructure_locked), data_paid: amount(data_paid),
      infrastructure_paid: amount(infrastructure_paid), refunded: amount(refunded), owed: amount(owed),
      root: root.toString(16).padStart(64, "0"), round: Number(round) || null,
      // The contract has the moment of the newest settlement alone.
      pending: pending > 0n ? [{ final_at: Number(last + challenge) }] : [],
      closes_at: Number(closes_at) || null, closed: closed === 1n,
    };
  });
}

/** The treasury and all florins, in base units; null where they cannot be read. @returns {Promise<{ treasury: bigint, supply: bigint } | null>} */
export async function totalsOnChain() {
  const known = await contracts();
  return known && remembered(`${known.market}/totals`, async () => {
    const [[treasury = 0n], [supply = 0n]] = await Promise.all([
      read(known.market, encode("treasury()", [])), read(known.token, encode("totalSupply()", [])),
    ]);
    return { treasury, supply };
  });
}
