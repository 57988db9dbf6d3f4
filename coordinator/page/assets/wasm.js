// @ts-check
// The protocol's own code and the charts, compiled to WebAssembly, which a worker runs.
import { Unanswered } from "./api.js";
import { setBounded } from "./bounded.js";
import { scriptAddress } from "./dom.js";

/**
 * A request to the worker, as JSON text.
 * @typedef {{ request: string, done: (answer: any) => void, failed: (error: Error) => void }} Call
 */

/** The worker computes one request at a time. @type {Worker | null} */
let worker = null;
/** @type {Call | null} */
let current = null;
/** Charts, which a reader waits for, go before checks. @type {Call[]} */
const charts = [];
/** @type {Call[]} */
const checks = [];

/** Starts the worker. */
function start() {
  const started = new Worker(scriptAddress("/page/worker.js"), { type: "module" });
  /** @param {(call: Call) => void} end */
  const finish = (end) => {
    const call = current;
    current = null;
    if (call) {
      end(call);
    }
    next();
  };
  started.addEventListener("message", ({ data }) => finish(({ done, failed }) => {
    if (data.failed === undefined) {
      done(data.answer);
    } else {
      // The page's own part failed: nothing follows for the coordinator.
      failed(new Unanswered(data.failed));
    }
  }));
  started.addEventListener("error", () => {
    started.terminate();
    worker = null;
    finish(({ failed }) => failed(new Unanswered("the worker of this page does not run")));
  });
  return started;
}

/** Sends the next request. */
function next() {
  const call = current ? undefined : charts.shift() ?? checks.shift();
  if (call) {
    try {
      worker ??= start();
      current = call;
      worker.postMessage(call.request);
    } catch (error) {
      current = null;
      call.failed(new Unanswered(String(error)));
      next();
    }
  }
}

/**
 * Sends a request as JSON text, and returns the answer.
 * @param {string} request
 * @param {Call[]} [queue]
 * @returns {Promise<any>}
 */
function call(request, queue = checks) {
  return new Promise((done, failed) => {
    queue.push({ request, done, failed });
    next();
  });
}

/** The end of the last check. @type {Promise<unknown>} */
let queue = Promise.resolve();

/**
 * Begins a check after all earlier ones: each fetches its documents, and no two compete for them.
 * @template T
 * @param {() => Promise<T>} check
 * @returns {Promise<T>}
 */
export function inTurn(check) {
  const done = queue.then(check);
  queue = done.catch(() => undefined);
  return done;
}

/** @typedef {{ line: string, reported: string, recomputed: string }} Mismatch */
/**
 * `failed` is the reason for which there is no recomputation.
 * @typedef {{ digest?: string, mismatches: Mismatch[], failed?: string, unreached?: boolean }} Verdict `unreached` marks one that lacks a lost answer alone.
 */

/**
 * Recomputes weights, payouts, running totals and the claim root of a round from its documents, in
 * the text in which the coordinator served them.
 * @param {{ task: string, round: number, market: string, view: string, offer: string, report: string, before: string | null, disclosed: number[] }} round
 * @returns {Promise<Verdict>}
 */
export async function checkRound({ task, round, market, view, offer, report, before, disclosed }) {
  const request = `{"call":"check_round","task":${JSON.stringify(task)},"round":${round},"market":${market},"view":${view},"offer":${offer},` +
    `"report":${report},"before":${before ?? "null"},"disclosed":${JSON.stringify(disclosed)}}`;
  const answer = await call(request);
  if (answer.error !== undefined) {
    return { mismatches: [], failed: `a document is none of this protocol: ${String(answer.error)}` };
  }
  return answer;
}

/** The last checked view of each task. @type {Map<string, { view: string, valid: boolean }>} */
const terms = new Map();
/** Tasks whose checked view is in memory. */
const TERMS_MAX = 64;

/** Whether the terms of a task are those of its id. @param {string} task @param {string} view As the coordinator served it. */
export async function checkTask(task, view) {
  const known = terms.get(task);
  if (known?.view === view) {
    return known.valid;
  }
  const answer = await call(`{"call":"check_task","task":${JSON.stringify(task)},"view":${view}}`, charts);
  setBounded(terms, TERMS_MAX, task, { view, valid: answer.valid === true });
  return answer.valid === true;
}

/** Whether the identity of a market is that of the contracts that it names. @param {string} market */
export async function checkContracts(market) {
  const answer = await call(`{"call":"check_contracts","market":${market}}`);
  return answer.valid === true;
}

/**
 * Whether an account's totals are in the claim tree of a root.
 * @param {{ root: string, account: string, totals: string, proof: string }} claim `totals` and `proof` as JSON text
 */
export async function checkClaim({ root, account, totals, proof }) {
  const request = `{"call":"check_claim","root":${JSON.stringify(root)},"account":${JSON.stringify(account)},` +
    `"totals":${totals},"proof":${proof}}`;
  const answer = await call(request);
  return answer.valid === true;
}

/** @typedef {{ score_nano: number | null, error_nano: number | null, payout: string, infrastructure: string, debit: string, explanation: string }} Statement */

/**
 * The statement of an account by a report, in the words of the program; null if it does not name it.
 * @param {string} report As the coordinator served it.
 * @param {string} account
 * @returns {Promise<Statement | null>}
 */
export async function statement(report, account) {
  const answer = await call(`{"call":"statement","account":${JSON.stringify(account)},"report":${report}}`);
  if (answer.error !== undefined) {
    throw new Error(`a report is malformed: ${String(answer.error)}`);
  }
  return answer.statement ?? null;
}

/**
 * The award of an order, as its records prove it.
 * @typedef {{ provider: string, at: number, price: string, useful_us: number, per_hour: string | null, earned: string, delivered: number,
 *   ran: [number, number] | null }} Award
 */
/**
 * The facts that the records of an order prove; null before its bids begin. `wrong` is the reason for which they prove nothing.
 * @typedef {{ opened: number, last: number, award: Award | null, lost: [string, string][], audited: number, outcome: any, cancelled: boolean }} Facts
 * @typedef {{ facts?: Facts | null, wrong?: string }} OrderVerdict
 */

/**
 * Performs all records of an order again, from the text in which the coordinator served them.
 * @param {{ order: string, market: string, view: string, records: string[] }} documents `order` is the id that was asked for, `market` the identity as JSON.
 * @returns {Promise<OrderVerdict>}
 */
export async function checkOrder({ order, market, view, records }) {
  const answer = await call(`{"call":"check_order","order":${JSON.stringify(order)},"market":${market},"view":${view},"records":[${records.join(",")}]}`);
  return answer.error === undefined ? answer : { wrong: String(answer.error) };
}

/**
 * The statistics of a market.
 * @typedef {{ provider: string, won: number, delivered: number, defaulted: number, slashed: number, earned: string, lost: string,
 *   per_hour: string | null, utilisation_ppm: number }} Provider
 */

/**
 * Prices, and providers with their time at work, of leases as their records prove them.
 * @param {Facts[]} leases
 * @returns {Promise<{ providers: Provider[], median: string | null, utilisation_ppm: number }>}
 */
export async function marketStatistics(leases) {
  const answer = await call(JSON.stringify({ call: "market_statistics", leases }));
  if (answer.error !== undefined) {
    throw new Error(String(answer.error));
  }
  return answer;
}

/** @typedef {{ name: string, unit: "number" | "percent" | "florins" | "nats" | "seconds", range: "covering" | "from_zero" | "counting" }} Axis */

/**
 * Draws a chart, and returns SVG.
 * @param {{ call: "line_plot", title: string, x: Axis, y: Axis, lines: { name: string, points: [number, number][] }[] }
 *   | { call: "scatter_plot", title: string, x: Axis, y: Axis, names: string[], dots: { at: [number, number], series: number }[] }
 *   | { call: "stacked_bars", title: string, x: Axis, y: Axis, names: string[], bars: number[][] }
 *   | { call: "share_bar", title: string, parts: { name: string, value: number }[] }
 *   | { call: "error_bars", title: string, quantity: Axis, rows: { name: string, mean: number, bounds: [number, number] | null }[] }} chart
 * @returns {Promise<string>}
 */
export async function draw(chart) {
  const answer = await call(JSON.stringify(chart), charts);
  return answer.svg ?? "";
}
