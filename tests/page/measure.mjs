// Times of the page in a browser: node measure.mjs ORIGIN. A server of this script passes the page's
// files on and answers for a task of 1,000 rounds with 100 members. Prints JSON.
import { createServer } from "node:http";
import { launch } from "./browser.mjs";

const [origin] = process.argv.slice(2);
const [ROUNDS, MEMBERS, TRIES] = [1000, 100, 7];
const ID = "ab".repeat(32);
const digest = (n) => n.toString(16).padStart(64, "0");
const address = (n) => `0x${n.toString(16).padStart(40, "0")}`;
const members = Array.from({ length: MEMBERS }, (_, at) => address(at + 1));

const budget = { data: "100000", infrastructure: "1000", per_nat_max: "500", floor_share: "0.2", confidence_z: "1", bond_min: "2", bond_per_row: "0.1", debit_max: "0.5", stake_min: "20", per_unit: "0.1", challenge_ms: 200, unbond_ms: 300000 };
const spec = { name: "A thousand rounds", buyer: address(7), coordinator: address(8), arbiter: address(8), model: { kind: "mlp" }, holdout: { rows: 60000, rows_per_round: 60 }, budget, rounds: { count: 2000, cohort_min: 10, cohort_target: MEMBERS, train_ms: 60000, selection: { knob: "random" } } };
const view = { sequence: 9, now: Date.now(), id: ID, spec, phase: "committing", round: ROUNDS + 1, reported: ROUNDS, finalised: ROUNDS, enrolled: MEMBERS, committed: 40, revealed: 0, offer: { body: { cohort: members, reasons: members.map(() => "drawn"), pool: "50", commit_by: Date.now() + 60000 } }, model: digest(ROUNDS), missing_blobs: [], holdout_missing: false, waiting: null, end: null };

function report(round) {
  return { body: {
    scope: { round }, outcome: "settled", base_model: digest(round - 1), model: digest(round), pool: "50",
    holdout: { rows: [] }, missing: [], final_lines: [], times: {}, commits: [],
    entries: members.map((sender) => ({ sender, rows_counted: 100 })),
    valuation: { loss_before_nano: 2e8, loss_after_nano: 1e8, total_nano: 1e8, gap_nano: 0, scores: members.map((account, at) => ({ account, score_nano: 1e6 * (at - 20), error_nano: 1e5, excluded: at < 5 })) },
    metrics: { rows: 60, correct_before: 50, correct_after: 50 + (round % 10), loss_after_nano: Math.round(1e9 / Math.sqrt(round)) },
    lines: members.map((account) => ({ account, payout: "0.333333333333333333", floor: "0.1", debit: "0", reason: "paid" })),
    infrastructure: [{ provider: address(9), units: 27, amount: "2.7", record: digest(1) }],
    data_total: String(50 * round), infrastructure_total: "1", previous_root: digest(round - 1), root: digest(round),
  } };
}

const listed = Array.from({ length: ROUNDS }, (_, at) => {
  const { body } = report(at + 1);
  return {
    round: at + 1, report: digest(at + 1), outcome: body.outcome, model: body.model, root: body.root, accepted: MEMBERS, missing: 0,
    metrics: body.metrics, data: "33.3333333333333333", infrastructure: "2.7", data_total: body.data_total, infrastructure_total: body.infrastructure_total,
  };
});

const files = new Map();
async function file(path) {
  if (!files.has(path)) {
    const response = await fetch(origin + path);
    const headers = Object.fromEntries([...response.headers].filter(([name]) => /^content-(type|security)/.test(name)));
    files.set(path, { headers, body: Buffer.from(await response.arrayBuffer()) });
  }
  return files.get(path);
}

const texts = new Map();
const server = createServer(async (request, response) => {
  const { pathname } = new URL(request.url, origin);
  const known = /\/rounds\/(\d+)\/report$/.exec(pathname);
  const answers = { "/v1/market": { node_key: digest(1), ledger: { kind: "ethereum" }, market: { chain: 1 }, coordinator: address(8), version: "bench" }, "/v1/tasks": [{ id: ID, name: spec.name, phase: "committing", round: ROUNDS + 1, rounds: 2000, enrolled: MEMBERS, data: "100000", infrastructure: "1000" }], [`/v1/tasks/${ID}`]: view, [`/v1/tasks/${ID}/rounds`]: listed };
  if (pathname.startsWith("/v1/")) {
    const json = known ? report(Number(known[1])) : answers[pathname];
    if (!texts.has(pathname)) {
      texts.set(pathname, JSON.stringify(json ?? { code: "NOT_FOUND", message: "none" }));
    }
    response.writeHead(json ? 200 : 404, { "content-type": "application/json" });
    response.end(texts.get(pathname));
    return;
  }
  const { headers, body } = await file(pathname);
  response.writeHead(200, headers);
  response.end(body);
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const local = `http://127.0.0.1:${server.address().port}`;

const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
const browser = await launch();

/** Milliseconds from the navigation to the first paint with content, and to the drawn view. */
async function times(base, path, tries) {
  const [paints, draws] = [[], []];
  for (let at = 0; at < tries; at += 1) {
    const page = await browser.newPage();
    await page.setViewport({ width: 1440, height: 900 });
    await page.evaluateOnNewDocument(() => {
      new MutationObserver(() => {
        const main = document.getElementById("main");
        if (main?.hasAttribute("data-drawn") && !window.drawnAt) {
          window.drawnAt = performance.now();
        }
      }).observe(document, { subtree: true, attributes: true, childList: true });
    });
    await page.goto(base + path, { waitUntil: "load" });
    await page.waitForFunction(() => window.drawnAt, { timeout: 120_000 });
    await page.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length > 0);
    paints.push(await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime));
    draws.push(await page.evaluate(() => window.drawnAt));
    await page.close();
  }
  return { paint: median(paints), drawn: median(draws) };
}

/** The longest frame while the view of a long task scrolls, in milliseconds. */
async function longestFrame(path) {
  const page = await browser.newPage();
  await page.setViewport({ width: 1440, height: 900 });
  await page.goto(local + path, { waitUntil: "load" });
  await page.waitForFunction(() => document.getElementById("main")?.hasAttribute("data-drawn"), { timeout: 120_000 });
  const longest = await page.evaluate(() => new Promise((done) => {
    const frames = [];
    let before = performance.now();
    const step = (now) => {
      frames.push(now - before);
      before = now;
      window.scrollBy(0, 120);
      if (frames.length < 60) {
        requestAnimationFrame(step);
      } else {
        frames.sort((a, b) => a - b);
        done(frames[56]);
      }
    };
    requestAnimationFrame(step);
  }));
  await page.close();
  return longest;
}

try {
  await times(origin, "/", 1);
  const market = await times(origin, "/", TRIES);
  await times(local, `/tasks/${ID}`, 1);
  const task = await times(local, `/tasks/${ID}`, TRIES);
  const all = await times(local, `/tasks/${ID}?all=1`, 1);
  const frame = await longestFrame(`/tasks/${ID}`);
  console.log(JSON.stringify({ paint: market.paint, market: market.drawn, task: task.drawn, all: all.drawn, frame }));
} finally {
  await browser.close();
  server.close();
}
