// @ts-check
// The view of the market for compute: prices, providers, listings with their cards, orders. The browser performs the records of the
// orders again, and shows of prices and providers what they prove.
import { Unanswered, addressOf, get, isUnreached, marketDocument } from "./api.js";
import { cards, command, figure, h, safely, section, table } from "./dom.js";
import { account, count, percent, short, tag, time, words } from "./format.js";
import { redraw } from "./frame.js";
import { approximate, florins, sum, units, whole } from "./money.js";
import { checkOrder, draw, inTurn, marketStatistics } from "./wasm.js";

/** Rows of a table, the newest first. */
const ROWS_MAX = 200;
/** Orders whose records are performed again, the newest first. */
const CHECKED_MAX = 100;
/** Providers in a plot, those with the most leases. */
const DRAWN_MAX = 24;
/** Time between two looks at orders and listings, in milliseconds. */
const EVERY_MS = 5000;
/** Time until a check that failed may be tried again, in milliseconds. */
const AGAIN_MS = 30000;
/** Time for which the lists of orders and listings are not fetched again, in milliseconds. */
const FRESH_MS = 4000;
/** Actions of an order that is checked here. */
const RECORDS_MAX = 2000;
/** Views of an order that changes while it is read. */
const TRIES_MAX = 4;
/** Devices of a card whose times are shown. */
const DEVICES_SHOWN = 4;
/** The ends of leases, in the plots. */
const ENDS = ["settled", "running", "stopped", "slashed"];

/** The end of a check whose reader went to another view. */
class ReaderLeft extends Error {}

/** @typedef {import("./wasm.js").Facts} Facts */
/** @typedef {import("./wasm.js").Provider} Provider */
/** @typedef {import("./wasm.js").OrderVerdict & { failed?: string, unreached?: boolean, view?: any }} Verdict `view` is the view that was
 *   checked, and `unreached` marks a check that lacks a lost answer alone. */

/**
 * The records of an order that were fetched, and the verdict on them; null until they are checked. `asked` is the state of the order by the
 * list that began the last check.
 * @typedef {{ asked: string, busy: boolean, parts: string[], length: number, found: Verdict | null }} Checked
 * @type {Map<string, Checked>}
 */
const checked = new Map();

/**
 * The verdict on the records of an order, as far as they were checked. A changed order is checked again.
 * @param {any} order
 * @param {string} market The identity of the market as JSON.
 * @returns {Verdict | null}
 */
function verdictOf(order, market) {
  const id = String(order.id);
  const state = [order.records, order.opened, order.delivered, order.money, JSON.stringify(order.outcome)].join("/");
  const known = checked.get(id) ?? { asked: "", busy: false, parts: [], length: 0, found: null };
  checked.set(id, known);
  if (known.busy || known.asked === state) {
    return known.found;
  }
  known.asked = state;
  known.busy = true;
  inTurn(() => check(id, market, known)).then(
    (found) => (known.found = found),
    (error) => {
      if (error instanceof ReaderLeft) {
        // The check begins anew when the reader comes back.
        known.asked = "";
        return;
      }
      known.found = { failed: error instanceof Error ? error.message : String(error), unreached: isUnreached(error) };
      window.setTimeout(() => {
        known.asked = "";
        redraw();
      }, AGAIN_MS);
    }).then(() => {
    known.busy = false;
    if (known.found?.facts === undefined || known.found.facts?.outcome) {
      // It begins anew after an error, and an order that is over changes no more.
      known.parts = [];
      known.length = 0;
    }
    redraw();
  });
  return known.found;
}

/** @param {string} id @param {string} market @param {Checked} known @returns {Promise<Verdict>} */
async function check(id, market, known) {
  const path = `/v1/orders/${encodeURIComponent(id)}`;
  for (let tries = 0; tries < TRIES_MAX; tries += 1) {
    const { text, json: view } = await get(path);
    if (Number(view.records) > RECORDS_MAX) {
      return { failed: `it has more than ${count(RECORDS_MAX)} actions: use florin market` };
    }
    while (known.length < Number(view.records)) {
      if (!/^\/(compute|accounts\/)/.test(location.pathname)) {
        throw new ReaderLeft("the reader left the views of leases");
      }
      const { text: part, json: actions } = await get(`${path}/records?after=${known.length}`);
      if (!Array.isArray(actions) || actions.length === 0) {
        return { wrong: `the record ends after ${known.length} of ${Number(view.records)} actions` };
      }
      known.parts.push(part);
      known.length += actions.length;
    }
    if (known.length === Number(view.records)) {
      return { ...(await checkOrder({ order: id, market, view: text, records: known.parts })), view };
    }
    // An action was recorded in between: a later view has it.
  }
  throw new Unanswered("it changes faster than it can be read");
}

/** Orders and listings, and when they were fetched. @type {{ at: number, listed: any[], ordered: any[] }} */
let lists = { at: 0, listed: [], ordered: [] };

/** Whether a line of a list has the parts that every order, or every listing, has. @param {any} one */
function isWhole(one) {
  const part = one?.order ?? one?.listing?.terms;
  return part !== null && typeof part === "object";
}

/** Fetches orders and listings, unless they were just fetched: each finished check draws the view anew. */
export async function orderLists() {
  if (Date.now() - lists.at < FRESH_MS) {
    return lists;
  }
  const [listings, orders] = await Promise.all([get("/v1/listings"), get("/v1/orders")]);
  /** @type {(document: any) => any[]} */
  const items = (document) => (Array.isArray(document?.json) ? document.json : []).filter((/** @type {any} */ one) => isWhole(one));
  // An order stands once, under its first line.
  /** @type {Map<string, any>} */
  const byId = new Map();
  for (const order of items(orders)) {
    if (!byId.has(String(order?.id))) {
      byId.set(String(order?.id), order);
    }
  }
  const ordered = [...byId.values()];
  lists = { at: Date.now(), listed: items(listings), ordered };
  return lists;
}

/**
 * Listings and orders, and the verdicts on the records of the newest orders, as far as they were checked.
 * @param {any} market
 * @returns {Promise<{ listed: any[], ordered: any[], verdicts: Map<any, Verdict | null> }>}
 */
export async function checkedOrders(market) {
  const { listed, ordered: stated } = await orderLists();
  const examined = new Set(stated.slice(0, CHECKED_MAX).filter((order) => order.opened).map((order) => String(order.id)));
  [...checked.keys()].filter((id) => !examined.has(id)).forEach((id) => checked.delete(id));
  /** @type {Map<any, Verdict | null>} */
  const verdicts = new Map();
  // The checked view takes the place of the line of the list: a mark stands beside what was checked.
  const ordered = stated.map((order) => {
    const verdict = examined.has(String(order.id)) ? verdictOf(order, JSON.stringify(market.market)) : undefined;
    const shown = verdict?.view ?? order;
    if (verdict !== undefined) {
      verdicts.set(shown, verdict);
    }
    return shown;
  });
  return { listed, ordered, verdicts };
}

/** @type {import("./main.js").ViewFunction} */
export async function computeView() {
  const { json: market } = await marketDocument();
  const { listed, ordered, verdicts } = await checkedOrders(market);
  const at = addressOf(market);
  const open = ordered.filter((order) => !order.outcome && !order.refused);
  const facts = [...verdicts.values()].flatMap((verdict) => (verdict?.facts ? [verdict.facts] : []));
  const wrong = [...verdicts].filter(([, verdict]) => verdict?.wrong);
  const left = [...verdicts.values()].filter((verdict) => verdict === null).length;
  const failures = [...verdicts.values()].filter((verdict) => verdict?.failed).length;
  /** @type {Awaited<ReturnType<typeof marketStatistics>> | null} */
  let statistics = null;
  let failed = "";
  try {
    statistics = facts.length > 0 ? await marketStatistics(facts) : null;
  } catch (error) {
    failed = String(error instanceof Error ? error.message : error);
  }
  return {
    title: "Compute",
    again: EVERY_MS,
    nodes: [
      h("h1", {}, "Market for compute"),
      h("p", { class: "lead" }, "Providers stake florins, compute segments of trainings, and are audited by drawn re-execution."),
      failed ? h("p", { class: "problem", role: "alert" }, "The checked leases have no statistics: ", failed.slice(0, 200)) : null,
      ...wrong.slice(0, ROWS_MAX).map(([order, verdict]) => h("p", { class: "problem", role: "alert" },
        "The records of order ", short(order.id), " are wrong: ", String(verdict?.wrong).slice(0, 200), ". Do not believe it.")),
      cards([
        [statistics?.median ? florins(units(statistics.median)) : "–", "for a useful device-hour (median)"],
        [statistics ? percent(statistics.utilisation_ppm, 1e6) : "–", "of the time a lease ran"],
        [statistics ? florins(sum(statistics.providers.map(({ earned }) => earned))) : "–", "earned by providers"],
        [count(listed.filter(({ listing }) => listing.phase === "listed").length), "proven listings"],
        [count(open.length), "open orders"],
        [count(ordered.filter(({ outcome }) => outcome === "settled").length), "orders settled"],
        [count(ordered.filter(isSlashed).length), "leases slashed"],
        [count(ordered.filter(({ outcome }) => outcome?.defaulted !== undefined).length), "leases given up"],
        [count(ordered.filter(({ outcome, refused }) => outcome === "unawarded" || refused).length), "orders without a provider"],
      ]),
      h("p", { class: "note", role: "status" }, checkedLine(facts.length, [left, failures], ordered.length)),
      statistics ? await safely("Prices", () => prices(facts)) : null,
      await safely("Providers", () => providers(statistics?.providers ?? [], ordered.length, at)),
      await safely("Listings", () => cardsOf(listed, at)),
      await safely("Orders", () => leases(ordered, verdicts, at)),
      section("All records",
        h("p", { class: "note" }, "The command performs the records of all orders again, and those of listings, and compares both:"),
        command(`florin market --market ${at}`),
        command(`florin market --market ${at} --out market.html`)),
    ],
  };
}

/** @param {number} proven @param {[number, number]} others Orders that are being checked, and that could not be. @param {number} all */
function checkedLine(proven, [left, failures], all) {
  if (all === 0) {
    return "No order was placed.";
  }
  const rest = `${left > 0 ? ` ${count(left)} more are being checked.` : ""}${failures > 0 ? ` ${count(failures)} could not be checked yet.` : ""}`;
  return `Your browser has performed the signed records of ${count(proven)} of ${count(all)} orders again. Prices, pay and ends follow from them; the moments of actions are the coordinator's statements.${rest}`;
}

/** The end of a lease, as an index of `ENDS`. @param {Facts} lease */
function endOf({ outcome }) {
  return outcome === null ? 1 : outcome === "settled" ? 0 : outcome?.slashed !== undefined ? 3 : 2;
}

/** @param {Facts[]} facts */
async function prices(facts) {
  const awards = facts.flatMap((lease) =>
    (lease.award?.per_hour && lease.outcome !== "unawarded" ? [{ award: lease.award, series: endOf(lease) }] : []));
  if (awards.length === 0) {
    return null;
  }
  const times = awards.map(({ award }) => award.at);
  const first = Math.min(...times);
  const span = Math.max(...times) - first;
  const [name, ms] = span > 4 * 86.4e6 ? ["days", 86.4e6] : span > 3 * 3.6e6 ? ["hours", 3.6e6] : ["minutes", 6e4];
  const plot = await draw({
    call: "scatter_plot", title: "Price of each award", names: ENDS,
    x: { name: `${name} since the first award`, unit: "number", range: "from_zero" },
    y: { name: "price of a useful device-hour", unit: "florins", range: "from_zero" },
    dots: awards.map(({ award, series }) => ({ at: [(award.at - first) / Number(ms), approximate(units(award.per_hour))], series })),
  });
  return section("Prices", figure(plot, "Each point is an award: the agreed price, and how its lease ended."));
}

/** @param {any} order */
function isSlashed(order) {
  return order.outcome?.slashed !== undefined && order.money !== "cancelled";
}

/** @param {Provider[]} all @param {number} orders @param {string} at */
async function providers(all, orders, at) {
  if (all.length === 0) {
    return section("Providers",
      h("p", { class: "soft" }, orders > 0 ? "No checked record has an award." : "No provider has a lease."),
      command(`florin provide --orders policy.toml --wallet wallet.json --market ${at}`));
  }
  const shown = [...all].sort((left, right) => right.won - left.won).slice(0, ROWS_MAX);
  const drawn = shown.slice(0, DRAWN_MAX);
  const bars = await draw({
    call: "stacked_bars", title: "Leases of providers", names: ENDS,
    x: { name: "provider", unit: "number", range: "counting" },
    y: { name: "leases", unit: "number", range: "from_zero" },
    bars: drawn.map((one) => [one.delivered, Math.max(0, one.won - one.delivered - one.defaulted - one.slashed), one.defaulted, one.slashed]),
  });
  const busy = await draw({
    call: "error_bars", title: "Time at work",
    quantity: { name: "of the time with a lease", unit: "percent", range: "from_zero" },
    rows: drawn.map((one, at) => ({ name: `${at + 1}. ${one.provider.slice(0, 8)}…`, mean: one.utilisation_ppm / 1e4, bounds: null })),
  });
  const rows = shown.map((one) => [
    account(one.provider),
    count(one.won),
    count(one.delivered),
    count(one.defaulted),
    h("span", { class: one.slashed > 0 ? "bad" : null }, count(one.slashed)),
    florins(units(one.earned)),
    florins(units(one.lost)),
    one.per_hour ? florins(units(one.per_hour)) : "–",
    percent(one.utilisation_ppm, 1e6),
  ]);
  return section("Providers",
    h("div", { class: "plots" },
      figure(bars, "Leases of each provider, by how they ended; the numbers are those of the other plot."),
      figure(busy, "The part of the market's time in which a provider computed a lease.")),
    table("Providers by their leases", ["provider", "#won", "#settled", "#given up", "#slashed", "#earned", "#lost", "#for a device-hour", "#at work"], rows));
}

/** @param {any[]} listed @param {string} at */
function cardsOf(listed, at) {
  if (listed.length === 0) {
    return section("Listings", h("p", { class: "soft" }, "No provider has listed devices."), command(`florin provide --list listing.toml --wallet wallet.json --market ${at}`));
  }
  const rows = listed.slice(0, ROWS_MAX).map(({ listing, opened }) => {
    const { terms, probes, passed, phase, outcome } = listing;
    const times = Array.isArray(terms.card?.links) ? terms.card.links : [];
    return [
      account(terms.provider),
      outcome ? tag(outcome) : words(phase),
      count(terms.probe.devices),
      times.slice(0, DEVICES_SHOWN).map((/** @type {number} */ us) => `${(us / 1000).toFixed(1)}\u00a0ms`).join(", "),
      percent(terms.card?.variation ?? 0, 1e6),
      `${count(passed)} of ${count(probes)}`,
      florins(units(terms.stake)),
      time(opened),
    ];
  });
  return section("Listings",
    h("p", { class: "note" }, "A card has the time of a link of the probe on each device while 1, 2, … devices work, as the provider measured it; probes demand it."),
    table("Listings", ["provider", "state", "#devices", "#link on 1, 2, … devices", "#variation", "#probes passed", "#stake", "opened"], rows));
}

/** The mark of an order's records. @param {Verdict | null | undefined} verdict */
function checkMark(verdict) {
  if (verdict === undefined) {
    return h("span", { class: "soft" }, "–");
  }
  if (verdict === null) {
    return h("span", { class: "mark soft" }, "checking");
  }
  return verdict.unreached ? h("span", { class: "mark soft", title: verdict.failed }, "not reached")
    : verdict.failed ? h("span", { class: "mark bad", title: verdict.failed }, "✗ not checked")
    : verdict.wrong ? h("span", { class: "mark bad" }, "✗ wrong")
      : verdict.facts ? h("span", { class: "mark good" }, "✓ proven") : h("span", { class: "soft" }, "–");
}

/** @param {any[]} ordered @param {Map<any, Verdict | null>} verdicts @param {string} at */
function leases(ordered, verdicts, at) {
  if (ordered.length === 0) {
    return section("Orders", h("p", { class: "soft" }, "No order was placed."), command(`florin rent order order.toml --wallet renter.json --market ${at}`));
  }
  const rows = ordered.slice(0, ROWS_MAX).map((order) => {
    const verdict = verdicts.get(order);
    const award = verdict?.facts?.award;
    return [
      short(order.id),
      stateOf(order),
      checkMark(verdict),
      account(order.order.renter),
      order.provider ? account(order.provider) : h("span", { class: "soft" }, order.outcome || order.refused ? "none" : "none yet"),
      words(order.order.data_class),
      `${count(order.delivered)} of ${count(order.order.segments)}`,
      verdict?.facts ? count(verdict.facts.audited) : "–",
      award ? florins(units(award.price)) : "–",
      florins(units(order.order.price_max)),
      words(order.money),
      order.opened ? time(order.opened) : "–",
    ];
  });
  return section("Orders",
    h("p", { class: "note" }, "The newest orders, at most ", florins(sum(ordered.map((order) => order.order.price_max))), " in all. Rows with a mark are the checked ones, all others the coordinator's list. The winner of an order is paid the second price, which is at most the largest one. Accounts that are drawn after the delivery compute the audited segments again."),
    table("Orders", ["order", "state", "records", "renter", "provider", "data", "#segments", "#audited", "#price", "#largest price", "money", "opened"], rows),
    ordered.length > ROWS_MAX ? h("p", { class: "note" }, `${count(ordered.length - ROWS_MAX)} older orders are left out.`) : null);
}

/** The state of an order in words. @param {any} order */
function stateOf(order) {
  return order.refused ? "refused" : order.money === "cancelled" ? "cancelled by its referee" : order.outcome ? outcome(order.outcome) : words(order.phase);
}

/**
 * The leases and listings of an account; null if it has none.
 * @param {{ listed: any[], ordered: any[], verdicts: Map<any, Verdict | null> }} checked
 * @param {string} address
 * @param {string} at
 */
export function leasesOf({ listed, ordered, verdicts }, address, at) {
  const is = (/** @type {unknown} */ other) => String(other ?? "").toLowerCase() === address.toLowerCase();
  /** @type {string[]} */
  const ids = [];
  const rows = ordered.flatMap((order) => {
    const facts = verdicts.get(order)?.facts;
    const provides = is(facts?.award?.provider ?? order.provider);
    const lost = (facts?.lost ?? []).filter(([who]) => is(who)).map(([, amount]) => amount);
    if (!provides && !is(order.order?.renter) && lost.length === 0) {
      return [];
    }
    ids.push(String(order.id));
    return [[
      short(order.id),
      provides ? "provider" : is(order.order?.renter) ? "renter" : "bidder",
      stateOf(order),
      checkMark(verdicts.get(order)),
      `${count(order.delivered)} of ${count(order.order.segments)}`,
      provides && facts?.award && order.money !== "cancelled" ? whole(units(facts.award.earned)) : "–",
      facts ? whole(sum(lost)) : "–",
      order.opened ? time(order.opened) : "–",
    ]];
  });
  const own = listed.filter(({ listing }) => is(listing?.terms?.provider));
  if (rows.length === 0 && own.length === 0) {
    return null;
  }
  return h("div", {},
    rows.length > 0 ? section("Leases",
      h("p", { class: "note" }, `Of the newest ${count(ordered.length)} orders. Pay and losses follow from the records that this browser has performed again; audits and the reasons are in the statement of an order:`),
      table("Leases of the account", ["order", "as", "state", "records", "#segments", "#earned", "#lost", "opened"], rows.slice(0, ROWS_MAX)),
      command(`florin rent statement ${ids[0]} --market ${at}`)) : null,
    own.length > 0 ? cardsOf(own, at) : null);
}

/** @param {any} outcome */
function outcome(outcome) {
  return outcome?.slashed !== undefined
    ? h("span", { class: "bad" }, `slashed, segment ${count(outcome.slashed.segment)}`)
    : tag(outcome);
}
