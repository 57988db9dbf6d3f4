// @ts-check
// The view of an account: what it has, what it may claim, and why.
import { addressOf, get, isUnreached, ledger, marketDocument, optional, reportDocument, soon, stage, taskDocument, taskList } from "./api.js";
import { setBounded } from "./bounded.js";
import { checkedOrders, leasesOf } from "./compute.js";
import { taskOnChain } from "./contracts.js";
import { session } from "./ethereum.js";
import { cards, command, figure, h, safely, section, table } from "./dom.js";
import { clean, count, named, nano, time } from "./format.js";
import { approximate, florins, sum, units, whole } from "./money.js";
import { isRecomputed, mark } from "./round.js";
import { checkClaim, checkContracts, draw, statement } from "./wasm.js";
import { connectSection, onChain, walletSection } from "./wallet.js";

/** Tasks that are searched, the open ones first. */
const TASKS_MAX = 100;
/** Time after which the part of an account in a task is fetched again, in milliseconds. */
const PART_MS = 15000;
/** Time between two looks at leases, and at a proof whose round the ledger has not, in milliseconds. */
const LEASES_MS = 5000;
/** Parts in memory. */
const PARTS_MAX = 1000;
/** Tasks whose claims have a command. */
const COMMANDS_MAX = 5;
/** Time for which a coordinator may take to prove what is final on the ledger, in milliseconds. */
const STALE_MS = 60000;
/** Looks at a proof and the ledger, until both are of one round. */
const PROOF_TRIES_MAX = 3;
/** Rounds from which on their pay is drawn. */
const DRAWN_MIN = 3;
/** Rounds of each task in the statement. */
const ROUNDS_MAX = 20;

/** @type {import("./main.js").ViewFunction} */
export async function accountView([address = ""]) {
  const form = h("form", { "data-to": "/accounts/VALUE" },
    h("label", {}, "Address of an account", h("input", { name: "value", pattern: "0x[0-9a-fA-F]{40}", required: true, value: address, autocomplete: "off", spellcheck: "false", placeholder: "0x…" })),
    h("button", {}, "Show"));
  const { json: market, text } = await marketDocument();
  if (!/^0x[0-9a-fA-F]{40}$/.test(address)) {
    return {
      title: "Account",
      nodes: [
        h("h1", {}, "Account"),
        h("p", { class: "lead" }, "Balances, bonds, claims and the reasons of each payout of one account."),
        address ? h("p", { class: "problem", role: "alert" }, named(address), " is not an address: 0x and 40 hexadecimal digits.") : null,
        connectSection(market),
        section("Which account?", form, h("p", { class: "note" }, "Your own address:"), command("florin wallet show wallet.json")),
      ],
    };
  }
  const tasks = await taskList();
  const at = addressOf(market);
  const ethereum = market.ledger?.kind === "ethereum";
  const recent = [...tasks].sort((a, b) => Number(a.phase === "done") - Number(b.phase === "done")).slice(0, TASKS_MAX);
  const contracts = { token: String(market.ledger?.token), market: String(market.ledger?.market) };
  const valid = ethereum && (await checkContracts(text));
  const [balance, stake, chain] = await Promise.all([
    ethereum ? null : soon(ledger({ balance: { account: address } }, "amount")).catch(() => null),
    ethereum ? null : soon(ledger({ stake: { account: address } }, "stake")).catch(() => null),
    valid ? onChain(contracts, address, recent.map((task) => task.id)) : null,
  ]);
  let unread = 0;
  let refused = "";
  const [found, orders] = await Promise.all([
    Promise.all(recent.map((task) => remembered(task, address, ethereum, chain).catch((error) => {
      refused = isUnreached(error) ? refused : String(error instanceof Error ? error.message : error);
      unread += 1;
      return null;
    }))), soon(checkedOrders(market)).catch((error) => {
      refused = isUnreached(error) ? refused : String(error instanceof Error ? error.message : error);
      unread += 1;
      return { listed: [], ordered: [], verdicts: new Map() };
    }),
  ]);
  const missing = ethereum ? "connect a wallet" : "unknown";
  const parts = found.filter((one) => one !== null);
  const claimable = parts.map((one) => one.claimable).filter((one) => one !== null);
  const wrong = parts.filter((one) => one.proven === "wrong");
  return {
    title: `Account ${address}`,
    again: unread > 0 || orders.ordered.length > 0 || session.unread || parts.some((one) => one.proven === null || one.lost > 0) ? LEASES_MS : undefined,
    nodes: [
      h("h1", {}, "Account"),
      h("p", { class: "lead" }, h("code", { class: "whole" }, address)),
      ...wrong.map((one) => h("p", { class: "problem", role: "alert" }, "The totals that the coordinator serves for ", named(one.task.name), " are not in its claim tree: do not believe them.")),
      refused ? h("p", { class: "problem", role: "alert" }, `A part of this account cannot be read: ${refused}`) : null,
      unread > 0 && !refused ? h("p", { class: "soft", role: "status" }, `${count(unread)} parts of this account are not here yet. The page asks again.`) : null,
      cards([
        [typeof balance === "string" ? florins(units(balance)) : chain ? florins(chain.balance) : missing, "balance"],
        [stake ? florins(units(stake.amount)) : chain ? florins(chain.stake) : missing, "stake"],
        [(ethereum && !chain) || unread > 0 || parts.some((one) => one.claimable === null) ? "unknown" : florins(claimable.reduce((all, one) => all + one, 0n)), "may be claimed now"],
        [count(parts.length), "tasks"],
      ]),
      ethereum ? walletSection(market, address, parts, recent, chain, valid) : null,
      parts.length > 0 || unread === 0 ? await safely("Tasks", () => bonds(parts, address, at, recent.length, tasks.length)) : null,
      await safely("Leases", () => leasesOf(orders, address, at)),
      ...(await Promise.all(parts.map((one) => safely("Statement", () => explained(one))))),
      section("Another account", form),
    ],
  };
}

/**
 * @typedef {{ task: any, bond: bigint | null, release: number, totals: any, proof: string[], proven: Proven, claimable: bigint | null, reported: number, lost: number,
 *   lines: { round: number, found: import("./wasm.js").Statement }[] }} Part
 */

/** @type {Map<string, { stage: string, at: number, part: Promise<Part | null> }>} */
const loadedParts = new Map();

/**
 * As `part`, fetched again when the task reaches another stage, or after a while: bonds change without
 * an event.
 * @param {any} task
 * @param {string} address
 * @param {boolean} ethereum
 * @param {import("./wallet.js").OnChain | null} chain
 */
async function remembered(task, address, ethereum, chain) {
  if (ethereum) {
    return part(task, address, ethereum, chain);
  }
  const { json: view } = await taskDocument(task.id);
  const reached = stage(view);
  const key = `${task.id}/${address}`;
  const known = loadedParts.get(key);
  if (known && known.stage === reached && Date.now() - known.at < PART_MS) {
    return known.part;
  }
  const loading = part(task, address, ethereum, chain);
  setBounded(loadedParts, PARTS_MAX, key, { stage: reached, at: Date.now(), part: loading });
  loading.catch(() => loadedParts.delete(key));
  return loading;
}

/**
 * The part of an account in a task; null if it has none.
 * @param {any} task
 * @param {string} address
 * @param {boolean} ethereum
 * @param {import("./wallet.js").OnChain | null} chain
 * @returns {Promise<Part | null>}
 */
async function part(task, address, ethereum, chain) {
  const [{ proof, proven }, embedded, claimed, { json: view }] = await Promise.all([
    provenTotals(task.id, address, ethereum),
    ethereum ? null : soon(ledger({ bond: { task: task.id, account: address } }, "bond")),
    ethereum ? null : soon(ledger({ claimed: { task: task.id, account: address } }, "totals")),
    soon(taskDocument(task.id)),
  ]);
  const { lines, lost } = await history(task.id, address, view.reported);
  const totals = proof?.json.totals ?? null;
  const paid = totals ? units(totals.paid) : proven === "none" ? 0n : null;
  const before = claimed ? units(claimed.paid) : chain?.claimed.get(task.id) ?? null;
  const bond = embedded ? units(embedded.amount) : chain?.bonds.get(task.id)?.amount ?? null;
  const release = Number(embedded?.release ?? Number(chain?.bonds.get(task.id)?.release ?? 0n));
  const has = lines.length > 0 || lost > 0 || proven === "wrong" || (paid ?? 0n) > 0n || (bond ?? 0n) > 0n;
  if (!has) {
    return null;
  }
  const isSure = proven === "ledger" || proven === "report" || proven === "none";
  const claimable = paid !== null && before !== null && isSure ? (paid > before ? paid - before : 0n) : null;
  return { task, bond, release, totals, proof: proof?.json.proof ?? [], proven, claimable, lines, lost, reported: Number(view.reported) };
}

/**
 * The totals of an account in a task, with the part that confirms them: the ledger's root, or a report alone. "none" is that of an account without
 * final pay, and null is unknown: the ledger has another round than the proof.
 * @typedef {"ledger" | "report" | "none" | "wrong" | null} Proven
 */

/**
 * The proof of an account's totals, and whether it leads to the root of the ledger, or without one to that of the round's report.
 * @param {string} task
 * @param {string} address
 * @param {boolean} ethereum
 * @returns {Promise<{ proof: import("./api.js").Document | null, proven: Proven }>}
 */
async function provenTotals(task, address, ethereum) {
  for (let tries = 1; ; tries += 1) {
    const proof = await soon(optional(get(`/v1/tasks/${encodeURIComponent(task)}/proof/${address}`)));
    const state = await soon(ethereum ? taskOnChain(task) : ledger({ task: { task } }, "task"));
    // Before the first final settlement there is no proof.
    if (proof === null && !(state?.round)) {
      return { proof, proven: state ? "none" : null };
    }
    // A settlement may become final in between: proof and root are those of one round.
    if (proof !== null && (!state || Number(state.round) === Number(proof.json.round))) {
      return { proof, proven: await compared(task, address, proof.json, state) };
    }
    if (tries >= PROOF_TRIES_MAX) {
      // The state was read after the proof: no embedded ledger is behind it. A wallet's node may be.
      const isAhead = !ethereum && proof !== null && Number(proof.json.round) > Number(state.round);
      return { proof, proven: isAhead || isStale(`${task}/${address}/${state.round}`) ? "wrong" : null };
    }
  }
}

/** When a round of the ledger had no proof first. @type {Map<string, number>} */
const staleSince = new Map();

/** Whether the proofs of a round of the ledger have been missing for long. @param {string} key */
function isStale(key) {
  const since = staleSince.get(key) ?? Date.now();
  setBounded(staleSince, PARTS_MAX, key, since);
  return Date.now() - since > STALE_MS;
}

/** @param {string} task @param {string} address @param {any} proof @param {any} state @returns {Promise<Proven>} */
async function compared(task, address, proof, state) {
  const report = (await optional(reportDocument(task, Number(proof.round))))?.json.body;
  const root = state ? state.root : report?.root;
  if (root === undefined) {
    return null;
  }
  const isZero = units(proof.totals?.paid) === 0n && units(proof.totals?.debited) === 0n && proof.proof?.length === 0;
  if (/^0*$/.test(String(root))) {
    return isZero ? "none" : "wrong";
  }
  if (isZero) {
    const [, own] = Object.entries(report?.account_totals ?? {}).find(([one]) => one.toLowerCase() === address.toLowerCase()) ?? [];
    // A claim tree has no leaf for totals of zero.
    const isUnpaid = own === undefined || sum([own.data, own.infrastructure, own.debited]) === 0n;
    return report !== undefined && report.root === root && isUnpaid ? "none" : "wrong";
  }
  const inTree = await checkClaim({
    root: String(proof.root), account: address, totals: JSON.stringify(proof.totals), proof: JSON.stringify(proof.proof ?? []),
  });
  return inTree && proof.root === root ? (state ? "ledger" : "report") : "wrong";
}

/** The mark of a claim. @param {Proven} proven */
function claimMark(proven) {
  const [kind, text] = proven === "ledger" ? ["good", "✓ proven"] : proven === "report" ? ["soft", "as reported"]
    : proven === "wrong" ? ["bad", "✗ wrong proof"] : ["", proven === "none" ? "no final pay" : "not final yet"];
  return h("span", { class: kind ? `mark ${kind}` : "soft" }, text);
}

/** The statements of an account by the last reports, and how many of those are not here. @param {string} task @param {string} address @param {number} reported */
async function history(task, address, reported) {
  const loading = [];
  for (let round = reported; round > Math.max(0, reported - ROUNDS_MAX); round -= 1) {
    loading.push(soon(reportDocument(task, round)).then(({ text }) => ({ round, text }), () => null));
  }
  const lines = [];
  const documents = (await Promise.all(loading)).filter((one) => one !== null);
  for (const { round, text } of documents) {
    const found = await statement(text, address);
    if (found) {
      lines.push({ round, found });
    }
  }
  return { lines, lost: loading.length - documents.length };
}

/** @param {Part[]} parts @param {string} address @param {string} at @param {number} searched @param {number} all */
function bonds(parts, address, at, searched, all) {
  if (parts.length === 0) {
    return section("Tasks", h("p", { class: "soft" }, `This account has no bond, no pay and no update in the last ${ROUNDS_MAX} rounds of ${count(searched)} of ${count(all)} tasks.`));
  }
  const rows = parts.map((one) => [
    h("a", { href: `/tasks/${encodeURIComponent(one.task.id)}` }, named(one.task.name)),
    one.bond === null ? "–" : whole(one.bond),
    one.release > 0 ? time(one.release) : "–",
    one.totals && one.proven !== null && one.proven !== "wrong" ? whole(units(one.totals.paid)) : "–",
    one.totals && one.proven !== null && one.proven !== "wrong" ? whole(units(one.totals.debited)) : "–",
    one.claimable === null ? "–" : whole(one.claimable),
    claimMark(one.proven),
  ]);
  return section("Tasks",
    table("Tasks of the account", ["task", "#bond", "bond leaves", "#earned, final", "#debited", "#claimable", "claim"], rows),
    h("p", { class: "note" }, "Earnings are claimable when the challenge window of their round is over. Their owner claims them with a wallet:"),
    parts.slice(0, COMMANDS_MAX).map(({ task, claimable }) => [
      claimable === null || claimable > 0n ? command(`florin claim ${task.id} --wallet wallet.json --market ${at}`) : null,
      command(`florin statement ${task.id} ${address} --market ${at}`),
    ]),
    command(`florin balance ${address} --market ${at}`));
}

/** The pay of each round that is explained. @param {Part} one */
async function earnedPlot({ lines }) {
  const isPaid = lines.some(({ found }) => sum([found.payout, found.infrastructure, found.debit]) !== 0n);
  if (lines.length < DRAWN_MIN || !isPaid) {
    return null;
  }
  /** @type {(name: string, of: (found: import("./wasm.js").Statement) => bigint | null) => { name: string, points: [number, number][] }} */
  const line = (name, of) => ({ name, points: [...lines].reverse().map(({ round, found }) => [round, approximate(of(found))]) });
  const plot = await draw({
    call: "line_plot", title: "Pay by round",
    x: { name: "round", unit: "number", range: "covering" },
    y: { name: "amount", unit: "florins", range: "from_zero" },
    lines: [line("for data", ({ payout }) => units(payout)), line("for infrastructure", ({ infrastructure }) => units(infrastructure)), line("debited", ({ debit }) => units(debit))],
  });
  return figure(plot, `The last ${count(lines.length)} rounds of the account in this task.`);
}

/** @param {Part} one */
async function explained(one) {
  const lost = one.lost > 0 ? h("p", { class: "soft", role: "status" }, `${count(one.lost)} of the last ${count(Math.min(ROUNDS_MAX, one.reported))} reports are withheld, malformed or not here yet: the view of the task names them.`) : null;
  if (one.lines.length === 0) {
    return lost && section(`Statement: ${clean(one.task.name)}`, lost);
  }
  // The amounts are those of reports that this browser recomputes.
  const isMarked = isRecomputed(one.task.id, one.reported);
  const rows = one.lines.map(({ round, found }) => [
    [h("a", { href: `/tasks/${encodeURIComponent(one.task.id)}/rounds/${round}` }, `round ${count(round)}`), isMarked ? [" ", mark(one.task.id, round, one.reported)] : null],
    found.score_nano === null ? "–" : h("span", { class: "figure" }, `${nano(found.score_nano, 6)} ± ${nano(found.error_nano, 6)}`),
    whole(sum([found.payout, found.infrastructure])),
    whole(units(found.debit)),
    h("span", { class: "text" }, found.explanation),
  ]);
  return section(`Statement: ${clean(one.task.name)}`,
    lost,
    await earnedPlot(one),
    isMarked ? null : h("p", { class: "note" }, "By the reports of the coordinator. The view of the task, or of a round, recomputes them here."),
    h("div", { class: "spoken" }, table("Statement", ["round", "#score, nats", "#paid", "#debited", "in words"], rows)));
}
