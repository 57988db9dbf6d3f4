// @ts-check
// The view of the market: tasks, what they pay, need and risk, and where the money is.
import { addressOf, isUnreached, ledger, marketDocument, reportDocument, soon, taskDocument, taskList } from "./api.js";
import { orderLists } from "./compute.js";
import { totalsOnChain } from "./contracts.js";
import { cards, command, facts, h, safely, section, table } from "./dom.js";
import { clean, count, duration, named, short, tag, words } from "./format.js";
import { florins, plus, sum, units } from "./money.js";
import { mark, paidData, paidInfrastructure, updates } from "./round.js";
import { checkTask } from "./wasm.js";

/** Open tasks of which details are shown. */
const DETAILS_MAX = 30;
/** Refused tasks that are named. */
const REFUSED_MAX = 5;
/** Tasks in the table. */
const TASKS_MAX = 500;
/** Time until missing answers are asked for again, in milliseconds. */
const RETRY_MS = 5000;
/** Reports from which earnings are estimated. */
const SAMPLE = 5;

/**
 * A task with its last reports. `isOwn` is false for terms that are not those of its id.
 * @typedef {{ view: any, reports: { round: number, report: any }[], isOwn: boolean | null }} Detail
 */

/** @param {any} summary @returns {Promise<Detail>} */
async function detail(summary) {
  const id = String(summary.id);
  const { json: view, text } = await soon(taskDocument(id));
  const isOwn = await soon(checkTask(id, text)).catch(() => null);
  const loading = [];
  for (let round = view.reported; round > Math.max(0, view.reported - SAMPLE); round -= 1) {
    loading.push(soon(reportDocument(id, round)).then(({ json }) => ({ round, report: json.body }), () => null));
  }
  const reports = (await Promise.all(loading)).filter((one) => one !== null);
  return { view, reports, isOwn };
}

/**
 * The pay of a further member for its rows in a round, by the last reports: as much of a round's pay as its rows are of all rows then.
 * @param {Detail} task
 * @param {number} rows
 */
function earnings({ reports }, rows) {
  let paid = 0n;
  let counted = 0n;
  for (const { report } of reports) {
    paid += paidData(report) ?? 0n;
    for (const entry of report.entries) {
      counted += BigInt(Number.isSafeInteger(entry.rows_counted) ? entry.rows_counted : 0);
    }
  }
  if (counted === 0n) {
    return h("span", { class: "soft" }, "no round yet");
  }
  // Pay and rows of n rounds: p / n · r / (c / n + r).
  return [florins((paid * BigInt(rows)) / (counted + BigInt(reports.length) * BigInt(rows))), " a round"];
}

/** The bond for rows: at least `bond_min`. @param {any} budget @param {number} rows */
function bond(budget, rows) {
  const least = units(budget.bond_min);
  const row = units(budget.bond_per_row);
  if (least === null || row === null) {
    return null;
  }
  const needed = row * BigInt(rows);
  return needed > least ? needed : least;
}

/**
 * All florins of the embedded chain: it creates none after its genesis. Null on another ledger.
 * @type {Promise<bigint | null> | null}
 */
let supply = null;

/** @returns {Promise<bigint | null>} */
function supplyOfChain() {
  supply ??= ledger("genesis", "genesis").then((genesis) =>
    genesis ? sum(genesis.allocations.map((/** @type {[string, string]} */ [, amount]) => amount)) : null);
  supply.catch(() => (supply = null));
  return supply;
}

/** @type {import("./main.js").ViewFunction} */
export async function marketView(_, query) {
  const asked = Number(query.get("rows") ?? 1000);
  const rows = Number.isSafeInteger(asked) && asked > 0 && asked <= 1e9 ? asked : 1000;
  const [{ json: market }, list, embedded, genesis, chain, lists] = await Promise.all([
    marketDocument(), taskList(), soon(ledger("treasury", "amount")).catch((error) => ({ error })), soon(supplyOfChain()).catch(() => null), totalsOnChain().catch(() => null), soon(orderLists()).catch((error) => ({ error, listed: [], ordered: [] })),
  ]);
  const treasury = typeof embedded === "string" ? units(embedded) : chain?.treasury;
  const all = genesis ?? chain?.supply ?? null;
  const open = list.filter((task) => task.phase !== "done");
  // A task that cannot be read is in the list below; it blanks no other one.
  /** @type {string[]} */
  const refused = [];
  const loading = open.slice(0, DETAILS_MAX).map((task) => detail(task).catch((error) => {
    if (!isUnreached(error)) {
      refused.push(`The terms of the task ${clean(task.name)} cannot be read: ${String(error.message)}`);
    }
    return null;
  }));
  const details = (await Promise.all(loading)).filter((one) => one !== null);
  const at = addressOf(market);
  const deposited = sum(list.flatMap((task) => [task.data, task.infrastructure]));
  const reported = new Map(details.flatMap(({ view, reports: [last] }) =>
    (last?.round === Number(view.reported) ? [[String(view.id), [last.report.data_total, last.report.infrastructure_total]]] : [])));
  /** The pay of a task so far: by its last report where it is here, and else as the coordinator lists it. @type {(task: any) => bigint | null} */
  const paid = (task) => sum(reported.get(String(task.id)) ?? [task.data_paid, task.infrastructure_paid]);
  const isWithheld = embedded?.error && !isUnreached(embedded.error);
  return {
    title: "Market",
    again: embedded?.error || "error" in lists || details.length < Math.min(open.length, DETAILS_MAX) ? RETRY_MS : undefined,
    nodes: [
      h("h1", {}, "Market"),
      h("p", { class: "lead" }, "Buyers lock florins behind tasks; members train on their own rows and are paid for what their updates improve."),
      ...refused.slice(0, REFUSED_MAX).map((line) => h("p", { class: "problem", role: "alert" }, line)),
      isWithheld ? h("p", { class: "problem", role: "alert" }, `The ledger does not answer: ${String(embedded.error.message)}`) : null,
      cards([
        [count(open.length), "open tasks"],
        [count(list.length), "tasks in all"],
        [florins(deposited), "deposited for all tasks"],
        [florins(list.reduce((/** @type {bigint | null} */ volume, task) => plus(volume, paid(task)), 0n)), "paid by all tasks"],
        all === null ? null : [florins(all), "supply"],
        treasury !== undefined ? [florins(treasury), "in the treasury"] : [words(market.ledger?.kind), "ledger"],
      ]),
      await safely("Open tasks", () => openTasks(details, rows, open.length)),
      await safely("Audits of the last rounds", () => lastRounds(details)),
      await safely("Compute", () => {
        if ("error" in lists) {
          throw lists.error;
        }
        return compute(lists);
      }),
      await safely("All tasks", () => allTasks(list, paid)),
      section("Take part",
        h("p", { class: "note" }, "Any account with florins can take part with rows that fit a task, offer devices, or check what was paid."),
        command(`florin participate --all --policy policy.toml --wallet wallet.json --market ${at}`),
        command(`florin provide --max-stake 20 --wallet wallet.json --market ${at}`),
        facts([
          ["coordinator", h("code", {}, market.coordinator)],
          ["its key", short(market.node_key)],
          ["ledger", words(market.ledger?.kind)],
          ["program", market.version],
        ])),
    ],
  };
}

/** @param {Detail[]} details @param {number} rows @param {number} all */
function openTasks(details, rows, all) {
  if (details.length === 0 && all > 0) {
    return section("Open tasks", h("p", { class: "soft", role: "status" }, `The terms of ${count(all)} open tasks are not here yet. The page asks again.`));
  }
  if (details.length === 0) {
    return section("Open tasks", h("p", { class: "soft" }, "No task is open now."), command("florin task new task.toml"));
  }
  const lines = details.map((task) => {
    const { view } = task;
    const { spec } = view;
    return [
      [h("a", { href: `/tasks/${encodeURIComponent(view.id)}` }, named(spec.name)), task.isOwn !== false ? null : [" ", h("span", { class: "mark bad" }, "✗ other terms")]],
      words(view.phase),
      [tag(spec.model), h("br"), h("span", { class: "soft" }, `${count(spec.data?.width)} numbers a row, of ${count(spec.data?.classes)} classes; ${count(spec.rounds.cohort_target)} members a round`)],
      earnings(task, rows),
      florins(bond(spec.budget, rows)),
      [florins(units(spec.budget.debit_max)), " a round"],
      duration(spec.rounds.train_ms),
    ];
  });
  return section("Open tasks",
    h("form", { "data-to": "/?rows=VALUE" },
      h("label", {}, "Rows that you have", h("input", { name: "value", inputmode: "numeric", pattern: "[0-9]{1,9}", value: rows, required: true })),
      h("button", {}, "Estimate")),
    h("p", { class: "note" }, `Earnings: the pay of the last ${SAMPLE} rounds of a task, shared with a further member of ${count(rows)} rows by the number of rows. Rows that improve the model less are paid less. The bond returns; a debit is taken from it for an update that does harm.`),
    table("Open tasks", ["task", "phase", "model and rows", "#expected pay", "#bond", "#at risk", "#time to train"], lines),
    all > details.length ? h("p", { class: "note" }, `${all - details.length} more open tasks are in the list below.`) : null);
}

/** The last round of each open task. @param {Detail[]} details */
function lastRounds(details) {
  const rows = details.filter(({ reports }) => reports.length > 0).map(({ view, reports }) => {
    // Of the round before, where the last report is not here yet.
    const [{ round, report } = { round: 0, report: null }] = reports;
    return [
      h("a", { href: `/tasks/${view.id}/rounds/${round}` }, named(view.spec.name), `, round ${count(round)}`),
      mark(String(view.id), round, Number(view.reported)),
      tag(report.outcome),
      updates(report),
      florins(paidData(report)),
      florins(paidInfrastructure(report)),
    ];
  });
  return rows.length === 0 ? null : section("Audits of the last rounds",
    h("p", { class: "note" }, "Your browser recomputes the pay of each from its scores; the command in the view of a round recomputes the scores, too."),
    table("The last round of each open task", ["round", "recomputed here", "outcome", "#updates", "#for data", "#for infrastructure"], rows));
}

/** The market for compute in short. @param {{ listed: any[], ordered: any[] }} lists */
function compute({ listed, ordered }) {
  return section("Compute",
    cards([
      [count(listed.filter(({ listing }) => listing.phase === "listed").length), "providers' proven listings"],
      [count(ordered.filter((order) => !order.outcome && !order.refused).length), "open orders"],
      [count(ordered.filter(({ outcome }) => outcome?.slashed !== undefined).length), "leases slashed"],
    ]),
    h("p", { class: "note" }, h("a", { href: "/compute" }, "Providers with their cards, prices, time at work, slashes and audits")));
}

/** @param {any[]} list @param {(task: any) => bigint | null} paid */
function allTasks(list, paid) {
  const rows = list.slice(0, TASKS_MAX).map((task) => [
    h("a", { href: `/tasks/${encodeURIComponent(task.id)}` }, named(task.name)),
    words(task.phase),
    `${count(task.round)} of ${count(task.rounds)}`,
    count(task.enrolled),
    florins(units(task.data)),
    florins(units(task.infrastructure)),
    florins(paid(task)),
  ]);
  const columns = ["task", "phase", "#round", "#members", "#for data", "#for infrastructure", "#paid"];
  return section("All tasks",
    rows.length > 0 ? table("All tasks", columns, rows) : h("p", { class: "soft" }, "No task was ever published here."),
    rows.length > 0 ? h("p", { class: "note" }, "Deposits, and what was paid from them: of open tasks by their last reports, of others as the coordinator lists it.") : null,
    list.length > TASKS_MAX ? h("p", { class: "note" }, `${list.length - TASKS_MAX} tasks are left out.`) : null);
}
