// @ts-check
// The view of a round: its report, and its recomputation in the browser.
import { ROUNDS_COUNTED_MAX, Refused, addressOf, checkId, fixed, isUnreached, marketDocument, reportDocument, roundPath, taskDocument } from "./api.js";
import { setBounded } from "./bounded.js";
import { cards, command, facts, h, safely, section, table } from "./dom.js";
import { account, clean, count, named, nano, percent, tag, time, words } from "./format.js";
import { actions, redraw } from "./frame.js";
import { florins, sum, units, whole } from "./money.js";
import { checkRound, inTurn } from "./wasm.js";

/** Lines of a recomputation that are shown. */
const MISMATCHES_MAX = 50;
/** Reports of a task up to which all of them are recomputed without being asked for. */
export const CHECKED_MAX = 50;
/** Tasks whose drawn rows are in memory. */
const TASKS_MAX = 16;
/** Time until a recomputation that failed may be tried again, in milliseconds. */
const AGAIN_MS = 30000;
/** Members of a table. */
const MEMBERS_MAX = 1000;

/** @typedef {import("./wasm.js").Verdict} Verdict */

/** Long tasks whose rounds a reader wants recomputed. @type {Set<string>} */
const wanted = new Set();
actions.set("recompute", (task) => {
  wanted.add(task);
  redraw();
});

/** @type {Map<string, Verdict | null>} */
const verdicts = new Map();

/**
 * The recomputation of a round; null until it is done. The first call begins it.
 * @param {string} task
 * @param {number} round
 * @returns {Verdict | null}
 */
export function verdict(task, round) {
  const key = `${task}/${round}`;
  const before = verdicts.get(key);
  if (before !== undefined) {
    return before;
  }
  verdicts.set(key, null);
  inTurn(() => check(task, round)).then(
    (found) => {
      verdicts.set(key, found);
      redraw();
    },
    (error) => {
      verdicts.set(key, { mismatches: [], failed: error instanceof Error ? error.message : String(error), unreached: isUnreached(error) });
      window.setTimeout(() => {
        verdicts.delete(key);
        redraw();
      }, AGAIN_MS);
      redraw();
    });
  return null;
}

/** Whether the rounds of a task are recomputed where they are listed. @param {string} task @param {number} reported */
export function isRecomputed(task, reported) {
  return reported <= CHECKED_MAX || wanted.has(task);
}

/**
 * The mark of a round: whether its report is equal to its recomputation. A task with many reports is
 * recomputed only where a reader opens a round or asks for all: the recomputation needs all earlier ones.
 * @param {string} id
 * @param {number} round
 * @param {number} reported
 */
export function mark(id, round, reported) {
  if (!isRecomputed(id, reported)) {
    return h("span", { class: "soft" }, "open the round");
  }
  const found = verdict(id, round);
  if (!found) {
    return h("span", { class: "mark soft" }, "recomputing");
  }
  if (found.unreached) {
    return h("span", { class: "mark soft", title: found.failed }, "not reached");
  }
  if (found.failed) {
    return h("span", { class: "mark bad" }, "✗ cannot be checked");
  }
  return found.mismatches.length === 0
    ? h("span", { class: "mark good" }, "✓ equal")
    : h("span", { class: "mark bad" }, `✗ ${found.mismatches.length} ${found.mismatches.length === 1 ? "line differs" : "lines differ"}`);
}

/** The recomputation of a round, if it is done. @param {string} task @param {number} round */
export function known(task, round) {
  return verdicts.get(`${task}/${round}`) ?? null;
}

/** @param {string} task @param {number} round @returns {Promise<Verdict>} */
async function check(task, round) {
  if (round > ROUNDS_COUNTED_MAX) {
    throw new Error("no task has so large a round");
  }
  const lost = (/** @type {unknown} */ error) => ({ error });
  const [market, view, offer, report, before, disclosed] = await Promise.all([
    marketDocument(),
    taskDocument(task),
    fixed(roundPath(task, round, "offer")),
    reportDocument(task, round),
    round > 1 ? reportDocument(task, round - 1).catch(lost) : null,
    rowsBefore(task, round).catch(lost),
  ]);
  const [isAlone, isUndrawn] = [before !== null && "error" in before, "error" in disclosed];
  const found = await checkRound({
    task, round, market: market.text, view: view.text, offer: offer.text, report: report.text,
    before: before !== null && !("error" in before) ? before.text : null, disclosed: "error" in disclosed ? [] : disclosed,
  });
  if (found.failed) {
    return found;
  }
  // Without an earlier report, identity and signatures are checked; the other lines wait for it.
  const mismatches = found.mismatches.filter(({ line }) => !(isUndrawn && line.startsWith("holdout.rows")) && !(isAlone && line === "scope.round"));
  if (mismatches.length === 0 && before !== null && "error" in before) {
    throw before.error;
  }
  if (mismatches.length === 0 && "error" in disclosed) {
    throw disclosed.error;
  }
  return { ...found, mismatches };
}

/** The holdout rows that each round of a task drew, by its reports. @type {Map<string, Map<number, number[]>>} */
const drawnRows = new Map();

/**
 * The holdout rows of all rounds before this one. They stay in memory when their reports do not.
 * @param {string} task
 * @param {number} round
 */
async function rowsBefore(task, round) {
  /** @type {Map<number, number[]>} */
  const known = drawnRows.get(task) ?? new Map();
  setBounded(drawnRows, TASKS_MAX, task, known);
  const loading = [];
  for (let before = 1; before < round; before += 1) {
    if (!known.has(before)) {
      loading.push(reportDocument(task, before).then(({ json }) => known.set(before, json.body.holdout.rows)));
    }
  }
  await Promise.all(loading);
  const all = [];
  for (let before = 1; before < round; before += 1) {
    all.push(...known.get(before) ?? []);
  }
  return all;
}

/** The updates of a round, of the members that were asked. @param {any} report */
export function updates(report) {
  return updatesOf(report.entries.length, report.missing.length);
}

/** @param {number} accepted @param {number} missing */
export function updatesOf(accepted, missing) {
  return `${count(accepted)} of ${count(accepted + missing)}`;
}

/** The pay of a round for data. @param {any} report */
export function paidData(report) {
  return sum([...report.lines, ...report.final_lines].map((/** @type {any} */ line) => line.payout));
}

/** The pay of a round for infrastructure. @param {any} report */
export function paidInfrastructure(report) {
  return sum(report.infrastructure.map((/** @type {any} */ line) => line.amount));
}

/** @type {import("./main.js").ViewFunction} */
export async function roundView([id = "", text = ""]) {
  checkId(id);
  const round = Number(text);
  if (round < 1 || round > ROUNDS_COUNTED_MAX) {
    throw new Refused(400, "MALFORMED", "a round is a number from 1 on");
  }
  const [{ json: market }, { json: view }, { json: signed }] = await Promise.all([
    marketDocument(),
    taskDocument(id),
    reportDocument(id, round),
  ]);
  const report = signed.body;
  const task = `/tasks/${encodeURIComponent(id)}`;
  return {
    title: `Round ${round} of ${clean(view.spec.name)}`,
    nodes: [
      h("h1", {}, `Round ${count(round)} of `, h("a", { href: task }, named(view.spec.name))),
      h("p", { class: "lead" },
        round > 1 ? h("a", { href: `${task}/rounds/${round - 1}` }, "← round before") : null, " ",
        round < view.reported ? h("a", { href: `${task}/rounds/${round + 1}` }, "next round →") : null),
      recomputation(id, round, addressOf(market)),
      await safely("Result", () => summary(report)),
      await safely("Pay", () => pay(report)),
      await safely("Asked and missing", () => missing(report)),
      await safely("Infrastructure", () => infrastructure(report)),
    ],
  };
}

/** @param {string} id @param {number} round @param {string} at */
function recomputation(id, round, at) {
  const found = verdict(id, round);
  const lines = found?.mismatches ?? [];
  return section("Recomputed in this browser",
    found === null
      ? h("p", { class: "soft", role: "status" }, "The browser recomputes the round.")
      : found.unreached
        ? h("p", { class: "soft", role: "status" }, `An answer of the market is missing (${found.failed}); the browser asks again.`)
      : found.failed
        ? h("p", { class: "problem", role: "alert" }, h("span", { class: "bad" }, "✗ It cannot be checked. "), "A document that the recomputation needs is missing or malformed: ", found.failed)
      : lines.length === 0
        ? h("p", { class: "passed" }, h("span", { class: "good" }, "✓ Equal. "), "The coordinator's signatures, drawn rows, pool, weights, payouts, debits, running totals and claim root follow from the report's own scores.")
        : h("p", { class: "problem", role: "alert" }, h("span", { class: "bad" }, "✗ The report is wrong. "), `${count(lines.length)} of its lines differ from their recomputation: no claim of it should be believed.`),
    lines.length > 0
      ? table("Lines that differ", ["line", "reported", "recomputed"],
        lines.slice(0, MISMATCHES_MAX).map((line) => [h("code", {}, line.line), h("code", { class: "whole" }, line.reported), h("code", { class: "whole" }, line.recomputed)]))
      : null,
    found?.digest ? facts([["digest of the report", h("code", { class: "whole" }, found.digest)]]) : null,
    h("p", { class: "note" }, "Scores, models, the members' signatures, the selection and the work behind infrastructure pay need the published rows and updates:"),
    command(`florin audit ${id} --round ${round} --market ${at}`));
}

/** @param {any} report */
function summary(report) {
  const { valuation, metrics } = report;
  return section("Result",
    cards([
      [tag(report.outcome), "outcome"],
      [florins(units(report.pool)), "could be spent on data"],
      [florins(paidData(report)), "paid for data"],
      [florins(paidInfrastructure(report)), "paid for infrastructure"],
    ]),
    facts([
      ["accuracy", metrics ? `${percent(metrics.correct_before, metrics.rows)} before, ${percent(metrics.correct_after, metrics.rows)} after, of ${count(metrics.rows)} rows` : "not valued"],
      ["loss", valuation && metrics ? `${nano(valuation.loss_before_nano)} before, ${nano(metrics.loss_after_nano)} after, in nats` : "not valued"],
      ["scores and total", valuation ? `${nano(valuation.total_nano)} nats, gap ${nano(valuation.gap_nano, 6)}` : "not valued"],
      ["opened", time(report.times?.opened)],
      ["commits closed", time(report.times?.commits_closed)],
      ["model before", h("code", { class: "whole" }, report.base_model)],
      ["model after", h("code", { class: "whole" }, report.model)],
      ["claim root", h("code", { class: "whole" }, report.root)],
    ]));
}

/** @param {any} report */
function pay(report) {
  const scores = new Map((report.valuation?.scores ?? []).map((/** @type {any} */ score) => [score.account, score]));
  const entries = new Map(report.entries.map((/** @type {any} */ entry) => [entry.sender, entry]));
  const rows = [...report.lines, ...report.final_lines].slice(0, MEMBERS_MAX).map((/** @type {any} */ line) => {
    const score = scores.get(line.account);
    const entry = entries.get(line.account);
    return [
      account(line.account),
      tag(line.reason),
      whole(units(line.payout)),
      whole(units(line.debit)),
      score ? `${nano(score.score_nano, 6)} ± ${nano(score.error_nano, 6)}` : "–",
      entry ? count(entry.rows_counted) : "–",
    ];
  });
  return section("Pay",
    rows.length > 0
      ? table("Pay of each member", ["member", "why", "#paid", "#debited", "#score, nats", "#rows"], rows)
      : h("p", { class: "soft" }, "The round paid no member."));
}

/** @param {any} report */
function missing(report) {
  if (report.missing.length === 0) {
    return null;
  }
  return section("Asked and missing",
    table("Members without an update", ["member", "why"],
      report.missing.slice(0, MEMBERS_MAX).map((/** @type {[string, any]} */ [member, why]) => [account(member), tag(why)])));
}

/** @param {any} report */
function infrastructure(report) {
  if (report.infrastructure.length === 0) {
    return null;
  }
  return section("Infrastructure",
    table("Paid work", ["provider", "#units", "#paid", "record"],
      report.infrastructure.map((/** @type {any} */ line) => [account(line.provider), count(line.units), whole(units(line.amount)), h("code", {}, words(line.record))])));
}
