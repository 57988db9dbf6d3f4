// @ts-check
// The operator's page: health, queues and the alerts of docs/operations.md, from the metrics of one
// coordinator. Rates are over the time that the page has been open, at most five minutes.
import { cards, facts, h, morph, section, table } from "./dom.js";
import { count, words } from "./format.js";

/** Time between two looks, in milliseconds. */
const EVERY_MS = 3000;
/** Time between two looks from which on the page was asleep, in milliseconds. */
const GAP_MS = 30000;
/** The window of rates, in milliseconds. */
const WINDOW_MS = 300000;
/** The window of the rules that look at an hour, and the time between two looks of its older part, in milliseconds. */
const HOUR_MS = 3600000;
const SPARSE_MS = 60000;

/** @typedef {Map<string, number>} Sample One value by series: name and labels. */
/** @typedef {{ at: number, sample: Sample }} Look */

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const live = /** @type {HTMLElement} */ (document.getElementById("live"));
/** @type {Look[]} */
let looks = [];
let token = sessionStorage.getItem("florin operator token") ?? "";
let refused = "";

/** Reads the text format. @param {string} text @returns {Sample} */
export function parse(text) {
  /** @type {Sample} */
  const sample = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][^ {]*(?:\{.*\})?) (\S+)/.exec(line);
    if (match && !line.startsWith("#")) {
      sample.set(match[1] ?? "", Number(match[2]));
    }
  }
  return sample;
}

/** The sum of the series of a name whose labels have a text. @param {Sample} sample @param {string} name @param {string | RegExp} [label] */
function total(sample, name, label) {
  let all = 0;
  for (const [series, value] of sample) {
    if ((series === name || series.startsWith(`${name}{`)) && (!label || (typeof label === "string" ? series.includes(label) : label.test(series)))) {
      all += value;
    }
  }
  return all;
}

/** The first look of a window. @param {number} ms */
function firstOf(ms) {
  const end = looks.at(-1)?.at ?? 0;
  return looks.find(({ at }) => at >= end - ms);
}

/** How much a sum grew in the window. @param {string} name @param {string | RegExp} [label] */
function growth(name, label) {
  const [first, last] = [firstOf(WINDOW_MS), looks.at(-1)];
  return first && last ? Math.max(0, total(last.sample, name, label) - total(first.sample, name, label)) : 0;
}

/** How much a gauge changed in an hour. @param {string} name */
function change(name) {
  const [first, last] = [firstOf(HOUR_MS), looks.at(-1)];
  return first && last ? total(last.sample, name) - total(first.sample, name) : 0;
}

/** Growth for each second. @param {string} name @param {string | RegExp} [label] */
function rate(name, label) {
  const [first, last] = [firstOf(WINDOW_MS), looks.at(-1)];
  const seconds = first && last ? (last.at - first.at) / 1000 : 0;
  return seconds > 0 ? growth(name, label) / seconds : 0;
}

/** A quantile of a histogram, by its growth in the window, in seconds. @param {number} share @param {string} name @param {string} [label] */
function quantile(share, name, label) {
  const last = looks.at(-1)?.sample ?? new Map();
  const steps = new Map();
  for (const series of last.keys()) {
    const le = series.startsWith(`${name}_bucket{`) && (!label || series.includes(label)) ? /le="([^"]+)"/.exec(series)?.[1] : undefined;
    if (le) {
      const edge = le === "+Inf" ? Infinity : Number(le);
      const before = firstOf(WINDOW_MS)?.sample.get(series) ?? 0;
      steps.set(edge, (steps.get(edge) ?? 0) + (last.get(series) ?? 0) - before);
    }
  }
  const edges = [...steps.keys()].sort((a, b) => a - b);
  const all = steps.get(Infinity) ?? 0;
  return all > 0 ? edges.find((edge) => steps.get(edge) >= share * all) ?? Infinity : 0;
}

/**
 * The alerts of docs/grafana/alerts.yml, by the same limits: name, minutes for which the condition must hold, condition, and what to do.
 * @type {[name: string, minutes: number, holds: () => boolean, todo: string][]}
 */
export const ALERTS = [
  ["InternalErrors", 2, () => growth("florin_rejections_total", 'code="INTERNAL"') > 0, "The log has the cause with the request's id. If the ledger does not respond, check the chain's node first."],
  ["DiskFull", 0, () => growth("florin_rejections_total", 'code="STORAGE_FULL"') > 0, "Free space on the data folder's disk. Restart the coordinator if its embedded ledger has stopped."],
  ["BucketRequestsFail", 1, () => growth("florin_bucket_requests_total", 'outcome="failed"') > 0, "The log has the first failure with its code: check network and credentials."],
  ["BucketBlobCorrupt", 0, () => growth("florin_bucket_requests_total", 'outcome="digest_mismatch"') > 0, "Restore the named blob in the bucket, or upload it again."],
  ["JournalWritesFail", 0, () => growth("florin_journal_failures_total") > 0, "The disk fails: stop, copy the data folder to another disk, and start there."],
  ["JournalSlow", 10, () => quantile(0.99, "florin_journal_commit_seconds") > 0.1, "Receipts wait for the journal: another program writes heavily, or the disk is worn."],
  ["EngineQueueLong", 1, () => total(now(), "florin_engine_queue_length") > 512, "The engine does not keep up: check for a slow journal, then for a flood."],
  ["SettlementsNotFinal", 360, () => total(now(), "florin_settlements_pending") > 0 && change("florin_settlements_pending") >= 0, "Settlements do not become final: a long challenge window is no fault; on Ethereum the account may need ether; or its bond is not covered."],
  ["RoundsAbandoned", 0, () => change("florin_rounds_abandoned") > 0, "A round had too few updates: its report has the reason."],
  ["UploadsSlow", 10, () => quantile(0.99, "florin_http_duration_seconds", 'route="/v1/tasks/{id}/updates"') > 5, "Compare the memory of uploads with in_flight_mib, then check the disk."],
  ["ConnectionLimitReached", 5, () => rate("florin_connections_refused_total", 'reason="evicted"') > 1, "Lower idle_ms or connections_per_address_max, or raise connections_max."],
  ["RateLimitExceeded", 5, () => rate("florin_rejections_total", 'code="RATE_LIMITED"') > 50, "Block the addresses upstream; behind a proxy add it to trusted_proxies."],
  ["InvalidSignatures", 10, () => rate("florin_rejections_total", /code="(INVALID_SIGNATURE|WEAK_KEY|WRONG_MARKET)"/) > 1, "An outdated program, a wallet with another key, or an attack."],
];

/** When the condition of an alert began to hold. @type {Map<string, number>} */
const since = new Map();

/**
 * The alerts whose condition holds: for how long, and whether that is long enough.
 * @returns {{ name: string, held: number, minutes: number, fires: boolean, todo: string }[]}
 */
function alerts() {
  const at = looks.at(-1)?.at ?? 0;
  // A page that slept knows nothing of the time between.
  const gap = at - (looks.at(-2)?.at ?? at);
  return ALERTS.flatMap(([name, minutes, holds, todo]) => {
    if (!holds()) {
      since.delete(name);
      return [];
    }
    const began = gap > GAP_MS ? at : since.get(name) ?? at;
    since.set(name, began);
    const held = Math.floor((at - began) / 60000);
    if (minutes > 0 && held < 1) {
      // It may be over at the next look.
      return [];
    }
    return [{ name, held, minutes, fires: at - began >= minutes * 60000, todo }];
  });
}

/** @returns {Sample} */
function now() {
  return looks.at(-1)?.sample ?? new Map();
}

/** @param {any} state */
function view(state) {
  const raised = alerts();
  const sample = now();
  const phases = [...sample].filter(([series]) => series.startsWith("florin_tasks{"));
  const used = total(sample, "florin_connections_open");
  const slowest = quantile(0.99, "florin_journal_commit_seconds");
  return [
    h("h1", {}, "Coordinator"),
    state.not_ready
      ? h("p", { class: "problem", role: "alert" }, "Not ready: ", String(state.not_ready))
      : h("p", { class: "passed" }, h("span", { class: "good" }, "✓ Ready. "), "Engine, journal and ledger respond."),
    section("Alerts",
      raised.length === 0
        ? h("p", {}, looks.length < 2 ? "The alerts need a second look at the metrics." : `None of ${ALERTS.length} alerts is pending or fires, since ${Math.round(((looks.at(-1)?.at ?? 0) - (looks[0]?.at ?? 0)) / 1000)} s.`)
        : table("Alerts", ["alert", "state", "what to do"], raised.map(({ name, held, minutes, fires, todo }) => [
          h("strong", { class: fires ? "bad" : null }, name),
          fires ? "fires" : `pending, ${held} of ${minutes} minutes`,
          h("span", { class: "text" }, todo),
        ])),
      h("p", { class: "note" }, "By the rules of docs/grafana/alerts.yml; a rule sees the time that this page is open, at most its own window. A monitoring service watches longer, and while the page is closed: docs/operations.md.")),
    section("Queues",
      cards([
        [count(total(sample, "florin_engine_queue_length")), "commands in the engine's queue"],
        [count(total(sample, "florin_pending_effects")), "effects under way"],
        [count(total(sample, "florin_uploads_in_flight")), "uploads"],
        [count(total(sample, "florin_settlements_pending")), "settlements that are not final"],
        [`${count(used)} of ${count(state.connections_max)}`, "connections"],
        [slowest > 0 && Number.isFinite(slowest) ? `${(1000 * slowest).toFixed(0)} ms` : "–", "commit of the journal, 99th percentile"],
      ])),
    section("Requests",
      facts([
        ["responses", `${rate("florin_http_responses_total").toFixed(1)} a second`],
        ["rejections", `${rate("florin_rejections_total").toFixed(1)} a second`],
        ["in flight", count(total(sample, "florin_http_in_flight"))],
        ["rounds reported", count(total(sample, "florin_rounds_reported"))],
        ["rounds abandoned", count(total(sample, "florin_rounds_abandoned"))],
        ["program", state.version],
      ])),
    section("Tasks",
      phases.length > 0
        ? table("Tasks by phase", ["phase", "#tasks"], phases.map(([series, value]) => [words(/phase="([^"]*)"/.exec(series)?.[1] ?? series), count(value)]))
        : h("p", { class: "soft" }, "There is no task.")),
  ];
}

function form() {
  return [
    h("h1", {}, "Coordinator"),
    refused ? h("p", { class: "problem", role: "alert" }, refused) : null,
    section("Token",
      h("form", {},
        h("label", {}, "Content of the file operator-token in the data folder", h("input", { name: "value", type: "password", autocomplete: "off", required: true })),
        h("button", {}, "Show"))),
  ];
}

/** @param {(Node | null)[]} nodes */
function show(nodes) {
  morph(main, h("main", { id: "main", tabindex: -1 }, nodes));
}

/** @param {string} text @param {boolean} on */
function connection(text, on) {
  live.textContent = text;
  live.classList.toggle("on", on);
}

async function look() {
  if (!token) {
    show(form());
    return;
  }
  try {
    const response = await fetch("/operator/state", { headers: { authorization: `Bearer ${token}` } });
    const state = await response.json();
    if (response.status === 503) {
      throw new Error(String(state.message));
    }
    if (!response.ok) {
      token = "";
      sessionStorage.removeItem("florin operator token");
      refused = `${String(state.message)} [${String(state.code)}]`;
      connection("not connected", false);
      show(form());
      return;
    }
    const at = Date.now();
    looks.push({ at, sample: parse(String(state.metrics)) });
    // Of the older part of the hour one look a minute stays.
    let before = -Infinity;
    looks = looks.filter((one) => {
      const stays = one.at >= at - WINDOW_MS || (one.at >= at - HOUR_MS && one.at - before >= SPARSE_MS);
      before = stays ? one.at : before;
      return stays;
    });
    connection("live", true);
    show(view(state));
  } catch (error) {
    connection("CoordinatorDown", false);
    show([
      h("h1", {}, "Coordinator"),
      h("p", { class: "problem", role: "alert" }, "The coordinator does not answer: ", String(error instanceof Error ? error.message : error), ". Read its log, and start it again: it continues where it stopped."),
    ]);
    looks = [];
  }
  window.setTimeout(() => void look(), EVERY_MS);
}

document.addEventListener("submit", (event) => {
  event.preventDefault();
  if (event.target instanceof HTMLFormElement) {
    token = String(new FormData(event.target).get("value") ?? "").trim();
    sessionStorage.setItem("florin operator token", token);
    refused = "";
    looks = [];
    since.clear();
    void look();
  }
});

void look();
