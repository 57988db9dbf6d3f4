// @ts-check
// The view of a task: its phase, its rounds, and its money to the last unit.
import { ROUNDS_COUNTED_MAX, addressOf, checkId, isUnreached, marketDocument, reportDocument, roundList, soon, taskDocument, taskOnLedger } from "./api.js";
import { taskOnChain } from "./contracts.js";
import { cards, command, facts, figure, h, safely, section, table } from "./dom.js";
import { account, clean, count, duration, named, nano, percent, short, tag, words } from "./format.js";
import { approximate, exact, florins, sum, units, whole } from "./money.js";
import { CHECKED_MAX, isRecomputed, known, mark, paidData, paidInfrastructure, updatesOf } from "./round.js";
import { checkTask, draw } from "./wasm.js";

/** Rounds in the table without `?all`. */
const ROUNDS_MAX = 40;
/** Rounds in the plots, and with `?all` in the table. */
const LISTED_MAX = 2000;
/** Points of a line. */
const POINTS_MAX = 400;
/** Time until missing answers are asked for again, in milliseconds. */
const AGAIN_MS = 3000;
/** Rounds in the table of scores. */
const SCORED_MAX = 12;
/** The normal quantile of intervals of 95 %. */
const Z = 1.96;
/** Thousandths of a nat below which a score has more digits. */
const SMALL_SCORE = 1;
/** Members in the table of scores. */
const MEMBERS_MAX = 100;

const PHASES = ["awaiting_blobs", "enrolling", "committing", "revealing", "valuing", "settling", "closing", "done"];

/** @typedef {{ round: number, report: any }} Reported */
/** @typedef {import("./api.js").Summary} Summary */

/**
 * The reports of a task, from a round on, without those that are not served or malformed. `unreached` counts those whose answer is lost, or
 * does not come in time.
 * @param {string} id
 * @param {number} first
 * @param {number} last
 * @returns {Promise<{ whole: Reported[], unreached: number }>}
 */
async function reports(id, first, last) {
  let unreached = 0;
  /** @type {Promise<Reported | null>[]} */
  const loading = [];
  for (let round = first; round <= last; round += 1) {
    loading.push(soon(reportDocument(id, round)).then(
      (document) => ({ round, report: document.json.body }),
      (error) => {
        unreached += isUnreached(error) ? 1 : 0;
        return null;
      }));
  }
  return { whole: (await Promise.all(loading)).filter((one) => one !== null), unreached };
}

/** @type {import("./main.js").ViewFunction} */
export async function taskView([id = ""], query) {
  checkId(id);
  const [{ json: market }, { json: view, text }] = await Promise.all([marketDocument(), taskDocument(id)]);
  const at = addressOf(market);
  const { spec } = view;
  const reported = Math.min(Number(view.reported), Number(spec.rounds.count), ROUNDS_COUNTED_MAX);
  const first = Math.max(1, reported - LISTED_MAX + 1);
  // Where a reader sees marks, every line of the list is compared with its report.
  const firstWhole = reported <= CHECKED_MAX ? 1 : reported - SCORED_MAX + 1;
  const [{ rows: list, complete, unlisted }, { whole, unreached }, ledger, isOwn] = await Promise.all([
    soon(roundList(id, first, reported)).then((found) => ({ ...found, unlisted: null }),
      (error) => ({ rows: [], complete: true, unlisted: error })),
    reports(id, firstWhole, reported),
    soon(taskOnLedger(id).then((state) => state ?? taskOnChain(id))).then((state) => ({ state, failed: null }), (error) => ({ state: null, failed: error })),
    soon(checkTask(id, text)).catch(() => null),
  ]);
  const money = ledger.state;
  const expected = /** @type {[number, number]} */ ([unlisted || !complete ? 0 : reported - first + 1, reported - firstWhole + 1 - unreached]);
  const wrong = contradictions(id, view, { list, whole, expected }, money);
  if (isOwn === false) {
    wrong.push("The terms are not those of this task: their digest is another id. Do not deposit anything.");
  }
  /** Answers that did not come, which accuse no coordinator. @type {string[]} */
  const awaited = isOwn === null ? ["the check of the terms"] : [];
  if (unreached > 0) {
    awaited.push(`${count(unreached)} of the last ${count(reported - firstWhole + 1)} reports`);
  }
  if (unlisted) {
    if (isUnreached(unlisted)) {
      awaited.push("the list of rounds");
    } else {
      wrong.push(`The list of rounds cannot be read: ${String(unlisted.message)}`);
    }
  }
  if (ledger.failed) {
    if (isUnreached(ledger.failed)) {
      awaited.push("the ledger");
    } else {
      wrong.push(`The ledger does not answer: ${String(ledger.failed.message)}`);
    }
  }
  const isListed = reported === 0 || list.length > 0;
  const shown = query.has("all") ? list : list.slice(-ROUNDS_MAX);
  return {
    title: clean(spec.name),
    again: awaited.length > 0 ? AGAIN_MS : undefined,
    nodes: [
      h("h1", {}, named(spec.name)),
      h("p", { class: "lead" }, "A task of ", account(spec.buyer), ": ", h("code", { class: "whole" }, id)),
      ...wrong.map((line) => h("p", { class: "problem", role: "alert" }, line)),
      awaited.length > 0 ? h("p", { class: "soft", role: "status" }, `Not here yet: ${awaited.join(", ")}. The page asks again.`) : null,
      await safely("Now", () => phase(view, money, at)),
      await safely("Members that are asked and waited for", () => waiting(view, at)),
      isListed ? await safely("Accuracy and loss", () => plots(list, spec, reported - firstWhole + 1)) : null,
      isListed || money ? await safely("Money", () => flow(view, list.at(-1), money)) : null,
      await safely("Scores", () => scores(whole)),
      isListed ? await safely("Rounds", () => rounds(id, shown, list.length, reported, at))
        : section("Rounds", h("p", { class: "soft" }, `The list of ${count(reported)} reports is not here.`)),
      await safely("Terms", () => terms(view)),
    ],
  };
}

/**
 * The statements of this market that contradict each other.
 * @param {string} id The task of the address.
 * @param {any} view
 * @param {{ list: Summary[], whole: Reported[], expected: [number, number] }} reported The list of rounds, the last reports, and how many
 *   of each there should be.
 * @param {any} money The task on the ledger; null where the page cannot read it.
 * @returns {string[]}
 */
function contradictions(id, view, { list, whole, expected }, money) {
  const wrong = [];
  const last = list.at(-1);
  if (view.id !== id) {
    wrong.push("The coordinator answers with another task.");
  }
  if (Number(view.reported) > Number(view.spec.rounds.count) + 1) {
    wrong.push("The coordinator states more reports than the task has rounds.");
  }
  if (list.length < expected[0]) {
    wrong.push(`The coordinator states ${count(view.reported)} reports, and lists ${count(list.length)} of the last ${count(expected[0])}.`);
  }
  if (whole.length < expected[1]) {
    wrong.push(`The coordinator states ${count(view.reported)} reports, and ${count(expected[1] - whole.length)} of the last ${count(expected[1])} are withheld or malformed.`);
  }
  const summaries = new Map(list.map((one) => [one.round, one]));
  for (const { round, report } of whole) {
    if (report.scope?.round !== round) {
      wrong.push(`The report of round ${round} is one of round ${String(report.scope?.round)}.`);
    }
    const before = summaries.get(round - 1);
    if (before && (report.previous_root !== before.root || report.previous_report !== before.report)) {
      wrong.push(`The report of round ${round} does not continue the report of the round before, or its claim root.`);
    }
    const listed = summaries.get(round);
    const digest = known(id, round)?.digest;
    if (listed && (!agrees(listed, report) || (digest !== undefined && digest !== listed.report))) {
      wrong.push(`The list of rounds states another report of round ${round} than the coordinator serves.`);
    }
  }
  if (last && view.reported === last.round && view.model !== last.model) {
    wrong.push("The model that the coordinator names is not that of its last report.");
  }
  if (money && last) {
    const settled = summaries.get(money.round);
    if (settled && settled.root !== money.root) {
      wrong.push(`The ledger settled another claim root for round ${money.round} than the report states.`);
    }
    if (settled && units(settled.data_total) !== units(money.data_paid)) {
      wrong.push(`The ledger paid ${exact(units(money.data_paid) ?? 0n)} FLN for data up to round ${money.round}, and the report states ${exact(units(settled.data_total) ?? 0n)} FLN.`);
    }
  }
  return wrong;
}

/**
 * The moment for which a task waits, and its meaning.
 * @param {any} view
 * @param {any} money The task on the ledger; null where the page cannot read it.
 * @returns {[number | null, string]}
 */
function clock(view, money) {
  const latest = "until this phase ends at the latest";
  if (view.phase_ends) {
    return [Number(view.phase_ends), latest];
  }
  if (view.phase === "valuing") {
    return [null, "the coordinator computes the scores, without a deadline"];
  }
  if (view.phase === "settling") {
    const last = Math.max(0, ...(money?.pending ?? []).map((/** @type {any} */ one) => Number(one.final_at)));
    return last > 0 ? [last, "until the last settlement is final"] : [null, "until all settlements are final on the ledger"];
  }
  return view.phase === "closing" && money?.closes_at
    ? [Number(money.closes_at), "until any account may close the task"] : [null, "until the ledger has closed the task"];
}

/** @param {any} view @param {any} money @param {string} at */
function phase(view, money, at) {
  const offer = view.offer?.body;
  const id = String(view.id);
  const [until, meaning] = clock(view, money);
  const cohort = offer?.cohort?.length ?? 0;
  return section("Now",
    h("ol", { class: "steps", "aria-label": "Phases" }, PHASES.map((name) =>
      h("li", { "aria-current": name === view.phase ? "step" : null }, words(name)))),
    cards([
      [`${count(view.round)} of ${count(view.spec.rounds.count)}`, "round"],
      view.phase === "done" ? null : [until ? h("span", { class: "figure", "data-until": until, "data-skew": view.skew }, "") : "–", meaning],
      [count(view.enrolled), "members"],
      cohort > 0 ? [`${count(view.committed)} of ${count(cohort)}`, "committed in this round"] : null,
      cohort > 0 ? [`${count(view.revealed)} of ${count(cohort)}`, "updates in this round"] : null,
    ]),
    view.end ? h("p", {}, "The task ended: ", words(view.end), ".") : null,
    view.phase === "done"
      ? [h("p", { class: "note" }, "Its trained model:"), command(`florin task model ${id} --out model.safetensors --market ${at}`)]
      : [h("p", { class: "note" }, "To take part with rows of your own, in the form that the terms below state:"),
        command(`florin participate --task ${id} --data rows.csv --wallet wallet.json --market ${at}`)]);
}

/** @param {any} view @param {string} at */
function waiting(view, at) {
  const parts = [];
  if (view.waiting) {
    const { needed, eligible, bond_too_small: poor, inactive } = view.waiting;
    parts.push(h("p", {}, `The next round needs ${count(needed)} eligible members and has ${count(eligible)}.`,
      poor > 0 ? ` ${count(poor)} have too small a bond.` : "", inactive > 0 ? ` ${count(inactive)} sit out.` : ""));
  }
  if ((view.missing_blobs ?? []).length > 0 || view.holdout_missing) {
    parts.push(h("p", {}, "The task waits for the files of its buyer: ", command(`florin task publish task.toml --wallet buyer.json --market ${at}`)));
  }
  const offer = view.offer?.body;
  if (offer && offer.cohort.length > 0 && ["committing", "revealing"].includes(view.phase)) {
    const rows = offer.cohort.slice(0, MEMBERS_MAX).map((/** @type {string} */ member, /** @type {number} */ at) =>
      [account(member), words(offer.reasons[at] ?? "drawn")]);
    parts.push(table("Members that are asked", ["member", "why it was asked"], rows),
      h("p", { class: "note" }, `The round is worth at most ${exact(units(offer.pool) ?? 0n)} FLN. `,
        view.phase === "committing" ? `It waits for ${count(offer.cohort.length - view.committed)} of them` : `It waits for ${count(view.committed - view.revealed)} of ${count(view.committed)} updates`,
        "; from whom, is not public before the report, so that no member learns of the others' work."));
  }
  return parts.length > 0 ? section("Members that are asked and waited for", ...parts) : null;
}

/** Whether a line of the list is that of a report. @param {Summary} listed @param {any} report */
function agrees(listed, report) {
  const same = (/** @type {unknown} */ left, /** @type {unknown} */ right) => JSON.stringify(left) === JSON.stringify(right);
  return report.root === listed.root && report.model === listed.model
    && report.entries.length === listed.accepted && report.missing.length === listed.missing
    && same(report.outcome, listed.outcome) && same(report.metrics, listed.metrics)
    && paidData(report) === units(listed.data) && paidInfrastructure(report) === units(listed.infrastructure)
    && units(report.data_total) === units(listed.data_total) && units(report.infrastructure_total) === units(listed.infrastructure_total);
}

/**
 * A bound of the mean of independent values between 0 and 1, by the score interval of 95 % (Wilson, 1927). It is that of a share; values with the
 * same mean that are not 0 or 1 have a smaller variance (Bhatia and Davis, 2000).
 * @param {number} mean
 * @param {number} rows
 * @param {1 | -1} side
 */
function bound(mean, rows, side) {
  const n = Math.max(1, rows);
  const half = Z * Math.sqrt((mean * (1 - mean)) / n + (Z * Z) / (4 * n * n));
  return (mean + (Z * Z) / (2 * n) + side * half) / (1 + (Z * Z) / n);
}

/** @param {any} metrics @param {1 | -1} side */
function accuracyBound(metrics, side) {
  return 100 * bound(metrics.correct_after / Math.max(1, metrics.rows), metrics.rows, side);
}

/**
 * The same for the mean loss: a report has no variance of the losses of its rows, which are between 0 and 2 ln C.
 * @param {any} metrics
 * @param {number} largest 2 ln C, for C classes
 * @param {1 | -1} side
 */
function lossBound(metrics, largest, side) {
  const mean = Math.min(1, Math.max(0, metrics.loss_after_nano / 1e9 / largest));
  return largest * bound(mean, metrics.rows, side);
}

/** @param {Summary[]} list @param {any} spec @param {number} compared Rounds whose line was compared with the report. */
async function plots(list, spec, compared) {
  const valued = list.filter(({ metrics }) => metrics);
  if (valued.length === 0) {
    return section("Accuracy and loss", h("p", { class: "soft" }, "No round has been valued yet."));
  }
  // Evenly spaced, and always the last one.
  const every = Math.ceil(valued.length / POINTS_MAX);
  const drawn = valued.filter((_, at) => (valued.length - 1 - at) % every === 0);
  /** @type {import("./wasm.js").Axis} */
  const x = { name: "round", unit: "number", range: "counting" };
  /** @type {(name: string, of: (metrics: any) => number) => { name: string, points: [number, number][] }} */
  const line = (name, of) => ({ name, points: drawn.map(({ round, metrics }) => [round, of(metrics)]) });
  const accuracy = await draw({
    call: "line_plot", title: "Accuracy by round", x,
    y: { name: "accuracy", unit: "percent", range: "covering" },
    lines: [
      line("accuracy", (metrics) => (100 * metrics.correct_after) / Math.max(1, metrics.rows)),
      line("lower 95 % bound", (metrics) => accuracyBound(metrics, -1)),
      line("upper 95 % bound", (metrics) => accuracyBound(metrics, 1)),
    ],
  });
  // The losses of a graph may have other bounds.
  const largest = spec.model?.kind === "graph" ? 0 : 2 * Math.log(Math.max(2, Number(spec.data?.classes)));
  const loss = await draw({
    call: "line_plot", title: "Loss by round", x,
    y: { name: "bounded loss", unit: "nats", range: "covering" },
    lines: [
      line("loss of the model", (metrics) => metrics.loss_after_nano / 1e9),
      ...(largest > 0 ? [
        line("lower 95 % bound", (metrics) => lossBound(metrics, largest, -1)),
        line("upper 95 % bound", (metrics) => lossBound(metrics, largest, 1)),
      ] : []),
    ],
  });
  const { metrics: last } = /** @type {Summary} */ (valued.at(-1));
  const stated = list.length > compared ? ` Rounds before the last ${count(compared)} are those of the coordinator's list, which is not signed.` : "";
  const left = every > 1 ? ` Every ${every === 2 ? "second" : `${every}th`} round is drawn.` : "";
  return section("Accuracy and loss",
    h("div", { class: "plots" },
      figure(accuracy, `On the rows that were drawn for each round: ${percent(last.correct_after, last.rows)} of ${count(last.rows)} in the last one.${left}${stated}`),
      figure(loss, `${nano(last.loss_after_nano)} nats in the last round.${largest > 0 ? " The bounds suppose the largest variance that losses with such a mean can have." : ""}`)));
}

/** @param {any} view @param {Summary | undefined} last @param {any} money */
async function flow(view, last, money) {
  const { budget } = view.spec;
  const deposit = sum([budget.data, budget.infrastructure]);
  const data = units(money ? money.data_paid : last?.data_total ?? "0");
  const infrastructure = units(money ? money.infrastructure_paid : last?.infrastructure_total ?? "0");
  if (!money) {
    return section("Money",
      table("Spending by the last report", ["part", "#amount"], [
        ["deposit", whole(deposit)],
        ["paid for data", whole(data)],
        ["paid for infrastructure", whole(infrastructure)],
        ["locked or refunded", whole(deposit !== null && data !== null && infrastructure !== null ? deposit - data - infrastructure : null)],
      ]),
      h("p", { class: "note" }, "By the last report, whose settlement may not be final. The contracts have the rest: connect a wallet in the view ", h("a", { href: "/accounts" }, "Account"), ", or use florin ledger verify."));
  }
  const refunded = units(money.refunded);
  const rest = deposit !== null && data !== null && infrastructure !== null && refunded !== null
    ? deposit - data - infrastructure - refunded : null;
  const locked = sum([money.data_locked, money.infrastructure_locked]);
  const balanced = rest !== null && rest === locked;
  const parts = [
    { name: "paid for data", value: approximate(data) },
    { name: "paid for infrastructure", value: approximate(infrastructure) },
    { name: "refunded", value: approximate(refunded) },
    { name: "locked", value: approximate(locked) },
  ];
  const bar = await draw({ call: "share_bar", title: "Where the deposit is", parts });
  return section("Money",
    figure(bar, "On the ledger now."),
    h("div", { class: "narrow" }, table("Where the deposit is", ["part", "#amount"], [
      ["deposit", whole(deposit)],
      ["paid for data", whole(data)],
      ["paid for infrastructure", whole(infrastructure)],
      ["refunded", whole(refunded)],
      ["locked", whole(locked)],
    ])),
    h("p", { class: balanced ? "passed" : "problem", role: balanced ? null : "alert" }, balanced
      ? "Deposit = paid + refunded + locked, to the last unit."
      : `The parts differ from the deposit by ${rest === null || locked === null ? "an unreadable amount" : `${exact(rest - locked)} FLN`}.`));
}

/** @param {Reported[]} shown */
function scores(shown) {
  const all = shown.filter(({ report }) => report.valuation);
  const valued = all.slice(-SCORED_MAX).reverse();
  if (valued.length === 0) {
    return null;
  }
  /** @type {Map<string, Map<number, any>>} */
  const members = new Map();
  for (const { round, report } of valued) {
    for (const score of report.valuation.scores) {
      const line = members.get(score.account) ?? new Map();
      line.set(round, score);
      members.set(score.account, line);
    }
  }
  const rows = [...members].slice(0, MEMBERS_MAX).map(([member, line]) => [
    account(member),
    ...valued.map(({ round }) => cell(line.get(round))),
  ]);
  return section("Scores",
    h("p", { class: "note" }, "The worth of each update, in thousandths of a nat of validation loss, ± its standard error. An update with a clearly negative score is excluded.",
      all.length > valued.length ? ` The last ${count(valued.length)} valued rounds, the newest first.` : " The newest round first."),
    table("Scores by member and round", ["member", ...valued.map(({ round }) => `#round ${round}`)], rows),
    members.size > MEMBERS_MAX ? h("p", { class: "note" }, `${count(members.size - MEMBERS_MAX)} more members: see each round.`) : null);
}

/** @param {any} score */
function cell(score) {
  if (!score) {
    return h("span", { class: "soft" }, "–");
  }
  const value = score.score_nano / 1e6;
  const error = score.error_nano / 1e6;
  // Late rounds have scores of some millionths.
  const digits = Math.max(Math.abs(value), error) < SMALL_SCORE ? 4 : 2;
  const text = `${value < 0 ? "−" : ""}${Math.abs(value).toFixed(digits)} ± ${error.toFixed(digits)}`;
  return h("span", { class: value < 0 ? "figure down" : value > 0 ? "figure up" : "figure" }, text, score.excluded ? " excluded" : "");
}

/** @param {string} id @param {Summary[]} shown @param {number} listed @param {number} reported @param {string} at */
function rounds(id, shown, listed, reported, at) {
  if (shown.length === 0) {
    return section("Rounds", h("p", { class: "soft" }, "No round has a report yet."));
  }
  const rows = [...shown].reverse().map((one) => [
    h("a", { href: `/tasks/${encodeURIComponent(id)}/rounds/${one.round}` }, `round ${count(one.round)}`),
    mark(id, one.round, reported),
    tag(one.outcome),
    updatesOf(one.accepted, one.missing),
    one.metrics ? percent(one.metrics.correct_after, one.metrics.rows) : "–",
    florins(units(one.data)),
    florins(units(one.infrastructure)),
    short(one.report),
  ]);
  return section("Rounds",
    h("p", { class: "note" }, "Your browser recomputes pools, weights, payouts, running totals and the claim root of each report from its scores, with the code of the protocol. The scores themselves follow from rows and models:"),
    command(`florin audit ${id} --market ${at}`),
    table("Rounds", ["round", "recomputed here", "outcome", "#updates", "#accuracy", "#for data", "#for infrastructure", "digest"], rows),
    isRecomputed(id, reported) ? null : h("p", {}, h("button", { type: "button", "data-action": "recompute", "data-of": id }, "Recompute these rounds"),
      h("span", { class: "soft" }, ` reads all ${count(reported)} reports, because no row of the holdout may be drawn twice`)),
    shown.length < listed ? h("p", {}, h("a", { href: `/tasks/${encodeURIComponent(id)}?all=1` }, `Show the last ${count(listed)} rounds`)) : null);
}

/** The form of the rows that a member needs. @param {any} spec */
function needs(spec) {
  const { width, classes, encoding } = spec.data ?? {};
  return `${count(width)} numbers${encoding ? " after the task's encoding" : ""}, of one of ${count(classes)} classes`;
}

/** @param {any} view */
function terms(view) {
  const { spec } = view;
  const { budget, rounds: rules } = spec;
  return section("Terms",
    facts([
      ["buyer", account(spec.buyer)],
      ["coordinator", account(spec.coordinator)],
      ["arbiter", account(spec.arbiter)],
      ["model", tag(spec.model)],
      ["a row", needs(spec)],
      ["selection", tag(rules.selection?.knob ?? rules.selection)],
      ["members of a round", `${count(rules.cohort_min)} to ${count(rules.cohort_target)}`],
      ["holdout", `${count(spec.holdout.rows)} rows, ${count(spec.holdout.rows_per_round)} for each round`],
      ["time to train", duration(rules.train_ms)],
      ["at most for a nat", florins(units(budget.per_nat_max))],
      ["bond", [florins(units(budget.bond_min)), " or more, ", florins(units(budget.bond_per_row)), " a row"]],
      ["largest debit in a round", florins(units(budget.debit_max))],
      ["price of a unit of work", florins(units(budget.per_unit))],
      ["challenge window", duration(budget.challenge_ms)],
      ["last model", h("code", { class: "whole" }, view.model)],
    ]),
    h("details", {}, h("summary", {}, "The words of this page"), facts([
      ["nat", "the unit of the loss: natural logarithm"],
      ["holdout", "rows of the buyer on which updates are judged; each round draws some of them"],
      ["commit, reveal", "a member first binds itself to its update by a digest, then uploads it, so that no member copies another's"],
      ["score", "the Shapley value of an update: its part in what the round improved the loss by"],
      ["void", "a round whose updates did not improve the model: it pays no scores. The last round also pays what earlier ones withheld"],
      ["bond, debit", "florins that a member deposits; a harmful update is debited from them"],
      ["challenge window", "the time in which the arbiter may cancel a settlement before it is final"],
      ["claim root", "the root of the Merkle tree of all running totals: a claim is proven against it"],
    ])));
}
