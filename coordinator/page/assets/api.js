// @ts-check
// The public HTTP interface: the only source of the page.
import { setBounded } from "./bounded.js";
import { redraw } from "./frame.js";

/** Documents in memory, and their characters; the oldest goes first. */
const DOCUMENTS_MAX = 4000;
const DOCUMENT_CHARACTERS_MAX = 64e6;
/** Requests at the same time. */
const REQUESTS_MAX = 6;
/** Longest wait for an answer, and for that of a long poll, in milliseconds. */
const ANSWER_MS = 15000;
const LONG_ANSWER_MS = 40000;
/** Time for which a view waits for an answer before it is drawn without, in milliseconds. */
const AWAITED_MS = 3000;
/** Time after which a path without an answer is withheld, in milliseconds. */
const WITHHELD_MS = 60000;
/** How long an event stream lasts before the page opens the next one, in milliseconds. */
const STREAM_MS = 30000;
/** Time between two polls where there is no event stream, in milliseconds. */
const POLL_MS = 2000;
/** Least time between two polls, in milliseconds. */
const POLL_PAUSE_MS = 250;
/** How long a poll of one task waits for its next change, in milliseconds. */
const LONG_POLL_MS = 10000;
/** Failed streams in a row before the page polls. */
const FAILURES_MAX = 2;
/** Time until the page tries a stream again, in milliseconds. */
const STREAM_AGAIN_MS = 60000;
/** Time without a sign of a stream after which the page opens another one, in milliseconds. */
const SILENCE_MS = 40000;
/** Views of a task that changes while it is read. */
const VIEW_TRIES_MAX = 3;
/** Rounds of a task that the page counts; no task has more. */
export const ROUNDS_COUNTED_MAX = 100000;

/** A refusal of the interface, with its stable code. */
export class Refused extends Error {
  /** @param {number} status @param {string} code @param {string} message */
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** An answer that did not come, behind which nothing is known of the coordinator. */
export class Unanswered extends Error {}

/** Whether an error is a lost, late or postponed request, and no answer of the coordinator. @param {unknown} error */
export function isUnreached(error) {
  return error instanceof Unanswered || (error instanceof Refused && (error.status >= 500 || error.status === 429));
}

/** The promise, or an error if it takes longer than a view waits. @template T @param {Promise<T>} promise @returns {Promise<T>} */
export function soon(promise) {
  return Promise.race([promise, new Promise((_, fail) => window.setTimeout(() => fail(new Unanswered("no answer yet")), AWAITED_MS))]);
}

/** The first and the last lost request of each question since its last answer. @type {Map<string, { since: number, last: number }>} */
const lost = new Map();
/** When the market answered anything last. */
let lastAnswer = 0;

/** Notes an answer of the market to a question, or to none. @param {string} [question] */
function noteAnswer(question) {
  const now = Date.now();
  if (now - lastAnswer > SILENCE_MS) {
    // The market, or this browser, was away.
    lost.clear();
  }
  lastAnswer = now;
  lost.delete(question ?? "");
}

/**
 * The error of a question that was asked at a moment. One whose answers stay lost for long, while others come, is withheld.
 * @param {string} question
 * @param {number} begun
 * @param {unknown} error
 */
function patient(question, begun, error) {
  if (!isUnreached(error)) {
    noteAnswer(question);
    return error;
  }
  const now = Date.now();
  const before = lost.get(question);
  const since = before && now - before.last < SILENCE_MS ? before.since : begun;
  setBounded(lost, DOCUMENTS_MAX, question, { since, last: now });
  return now - since > WITHHELD_MS && lastAnswer > since && now - lastAnswer < SILENCE_MS
    ? new Refused(400, "WITHHELD", `${question.slice(0, 200)} has had no answer for a minute, while others came`) : error;
}

document.addEventListener("visibilitychange", () => lost.clear());
window.addEventListener("online", () => lost.clear());

/** @typedef {{ text: string, json: any }} Document */

/** @type {Map<string, Promise<Document>>} */
const documents = new Map();
/** @type {(() => void)[]} */
const waiting = [];
let running = 0;

/** @template T @param {() => Promise<T>} request @returns {Promise<T>} */
async function limited(request) {
  while (running >= REQUESTS_MAX) {
    await new Promise((go) => waiting.push(() => go(undefined)));
  }
  running += 1;
  try {
    return await request();
  } finally {
    running -= 1;
    waiting.shift()?.();
  }
}

/** @param {string} path @param {RequestInit} [init] @returns {Promise<Document>} */
async function request(path, init) {
  const question = `${path}${typeof init?.body === "string" ? ` ${init.body}` : ""}`;
  const begun = Date.now();
  try {
    const found = await asked(path, init);
    noteAnswer(question);
    return found;
  } catch (error) {
    throw init?.signal ? error : patient(question, begun, error);
  }
}

/** @param {string} path @param {RequestInit} [init] @returns {Promise<Document>} */
async function asked(path, init) {
  return limited(async () => {
    const late = AbortSignal.timeout(init?.signal ? LONG_ANSWER_MS : ANSWER_MS);
    // Older browsers join no signals: the wait of a long poll ends by itself.
    const signal = init?.signal && "any" in AbortSignal ? AbortSignal.any([init.signal, late]) : late;
    let response;
    let text;
    try {
      response = await fetch(path, { ...init, signal, headers: { accept: "application/json", ...init?.headers } });
      text = await response.text();
    } catch (error) {
      // Each browser has its own words for a lost connection.
      throw init?.signal?.aborted ? error : new Unanswered(error instanceof Error ? error.message : String(error));
    }
    /** @type {any} */
    let json = null;
    try {
      json = JSON.parse(text);
    } catch {
      throw new Refused(response.status, "NOT_JSON", `${path} answered ${response.status} without a document`);
    }
    if (!response.ok) {
      throw new Refused(response.status, String(json?.code ?? "REFUSED"), String(json?.message ?? response.statusText));
    }
    return { text, json };
  });
}

/** A document that may change. @param {string} path */
export function get(path) {
  return request(path);
}

/** A document that never changes, such as a report. @param {string} path */
export function fixed(path) {
  const known = documents.get(path);
  if (known) {
    return known;
  }
  const loading = request(path);
  documents.set(path, loading);
  loading.then(({ text }) => remember(path, text.length), () => documents.delete(path));
  return loading;
}

/** The characters of each document in memory, in the order in which they came. @type {Map<string, number>} */
const lengths = new Map();
let characters = 0;

/** Counts a document, and forgets the oldest ones beyond the limits. @param {string} path @param {number} length */
function remember(path, length) {
  lengths.set(path, length);
  characters += length;
  for (const [oldest, size] of lengths) {
    if (characters <= DOCUMENT_CHARACTERS_MAX && lengths.size <= DOCUMENTS_MAX || oldest === path) {
      return;
    }
    lengths.delete(oldest);
    documents.delete(oldest);
    characters -= size;
  }
}

/**
 * A document, or null where the interface has none.
 * @param {Promise<Document>} document
 */
export async function optional(document) {
  try {
    return await document;
  } catch (error) {
    if (error instanceof Refused && !isUnreached(error) && error.code !== "WITHHELD") {
      return null;
    }
    throw error;
  }
}

/**
 * A query to the embedded chain; null on another ledger.
 * @param {unknown} query
 * @param {string} expected The variant of the answer.
 * @returns {Promise<any>}
 */
export async function ledger(query, expected) {
  const init = { method: "POST", body: JSON.stringify(query), headers: { "content-type": "application/json" } };
  const answer = await optional(request("/v1/ledger", init));
  if (answer === null) {
    const { json: market } = await marketDocument();
    if (market.ledger?.kind === "embedded") {
      throw new Refused(400, "LEDGER_WITHHELD", "the embedded ledger answers no query");
    }
    return null;
  }
  const result = answer.json;
  if (result === null || typeof result !== "object" || !(expected in result)) {
    throw new Refused(400, "LEDGER_ANSWER_WRONG", `the ledger answers ${JSON.stringify(result).slice(0, 200)}`);
  }
  return result[expected];
}

/** The description of the market. @returns {Promise<Document>} */
export function marketDocument() {
  return fixed("/v1/market");
}

/**
 * The address for commands: that of the market, which a relay states, and else that of this page.
 * @param {any} market
 */
export function addressOf(market) {
  const stated = String(market?.url ?? "");
  return /^https?:\/\/[A-Za-z0-9.:\[\]-]{1,200}$/.test(stated) ? stated : location.origin;
}

/** The id of a task. */
const TASK_ID = /^[0-9a-f]{64}$/;

/** Refuses what is no id of a task: ids stand in commands, too. @param {string} id */
export function checkId(id) {
  if (!TASK_ID.test(id)) {
    throw new Refused(400, "MALFORMED", "the id of a task has 64 hexadecimal digits");
  }
}

/**
 * The progress of each task by the last events; empty while the page polls.
 * @type {Map<string, any>}
 */
const latest = new Map();
/** The version of each task's view that the page saw last. @type {Map<string, number>} */
const sequences = new Map();
/** The wait of a long poll. @type {AbortController | null} */
let longWait = null;

/** Ends the wait of a long poll: the reader went to another view. */
export function endWait() {
  longWait?.abort();
}

/** @param {string} path @returns {Promise<Document>} */
async function longPoll(path) {
  longWait = new AbortController();
  return request(path, { signal: longWait.signal });
}

/** @type {Map<string, { key: string, document: Promise<Document> }>} */
const views = new Map();
/** @type {Map<string, { key: string, state: Promise<any> }>} */
const states = new Map();

/** The part of a task's progress, or of its view, that changes more than counts. @param {any} progress */
export function stage(progress) {
  if (progress.phase === "awaiting_blobs" || progress.phase === "enrolling") {
    return String(progress.sequence);
  }
  return [progress.phase, progress.round, progress.reported, progress.finalised].join("/");
}

/** Phases in which the ledger's state of a task changes without a report. */
const LEDGER_PHASES = ["settling", "closing", "done"];

/** The part of a task's progress with which its money changes: reports settle, become final, and at the end the task is closed. @param {any} progress */
function settled(progress) {
  return [progress.reported, progress.finalised, LEDGER_PHASES.includes(progress.phase) ? progress.phase : ""].join("/");
}

/**
 * A value that is fetched again only when a part of the task's progress by the events changes.
 * @template T
 * @param {Map<string, { key: string } & T>} cache
 * @param {string} id
 * @param {(progress: any) => string} part
 * @param {() => T} load
 * @returns {T}
 */
function cached(cache, id, part, load) {
  const progress = latest.get(id);
  const known = cache.get(id);
  if (progress && known && known.key === part(progress)) {
    return known;
  }
  const loaded = { key: progress ? part(progress) : "", ...load() };
  cache.set(id, loaded);
  return loaded;
}

/**
 * The view of a task, with the counts of the last event, and with `skew`: the coordinator's clock less
 * that of the browser, in milliseconds.
 * @param {string} id
 * @returns {Promise<Document>}
 */
export async function taskDocument(id) {
  for (let tries = 1; ; tries += 1) {
    const { text, json } = await taskView(id);
    const progress = latest.get(id);
    if (!progress || progress.sequence <= json.sequence) {
      return { text, json };
    }
    if (stage(progress) === stage(json)) {
      const { enrolled, committed, revealed, sequence } = progress;
      return { text, json: { ...json, enrolled, committed, revealed, sequence } };
    }
    if (tries >= VIEW_TRIES_MAX) {
      return { text, json };
    }
    // An event came while this view was under way: its model and its reports are older ones.
    views.delete(id);
  }
}

/** The view of a task, as it was when it reached its stage. @param {string} id @returns {Promise<Document>} */
async function taskView(id) {
  const { document } = cached(views, id, stage, () => {
    const document = get(`/v1/tasks/${encodeURIComponent(id)}`).then(({ text, json }) => {
      sequences.set(id, Number(json.sequence));
      return { text, json: { ...json, skew: Number(json.now) - Date.now() } };
    });
    document.catch(() => views.delete(id));
    return { document };
  });
  return document;
}

/** The state of a task on the embedded chain; null on another ledger. @param {string} id */
export function taskOnLedger(id) {
  return cached(states, id, settled, () => {
    const state = ledger({ task: { task: id } }, "task");
    state.catch(() => states.delete(id));
    return { state };
  }).state;
}

/** The list of all tasks, and the tasks and reports by the events before it was fetched. @type {{ key: string, tasks: any[] }} */
let list = { key: "", tasks: [] };

/** The list of all tasks, with the progress of the last event. It is fetched again with each task and each report. @returns {Promise<any[]>} */
export async function taskList() {
  const reports = [...latest.values()].reduce((all, { reported }) => all + Number(reported), 0);
  const reached = latest.size === 0 ? "" : `${latest.size}/${reports}`;
  if (reached === "" || reached !== list.key) {
    const { json } = await get("/v1/tasks");
    list = { key: reached, tasks: (Array.isArray(json) ? json : []).filter((task) => TASK_ID.test(String(task?.id))) };
  }
  return list.tasks.map((task) => {
    const { phase, round, enrolled } = latest.get(task.id) ?? task;
    return { ...task, phase, round, enrolled };
  });
}

/**
 * The report of a round, if it has the parts that every report has.
 * @param {string} task
 * @param {number} round
 * @returns {Promise<Document>}
 */
export async function reportDocument(task, round) {
  const document = await fixed(roundPath(task, round, "report"));
  const body = document.json?.body;
  const lists = [body?.lines, body?.final_lines, body?.entries, body?.missing, body?.infrastructure, body?.holdout?.rows];
  if (!lists.every(Array.isArray)) {
    throw new Refused(400, "REPORT_MALFORMED", `the report of round ${round} lacks parts that every report has`);
  }
  return document;
}

/**
 * A report in the list of a task's rounds.
 * @typedef {{ round: number, report: string, outcome: any, model: string, root: string, accepted: number, missing: number, metrics: any,
 *   data: string, infrastructure: string, data_total: string, infrastructure_total: string }} Summary
 */

/** Tasks whose list of rounds is in memory. */
const LISTS_MAX = 16;
/** Rounds that a view waits for; it is drawn again with the older ones. */
const AWAITED_MAX = 40;
/** Time until a list that failed is asked for again, in milliseconds. */
const LIST_AGAIN_MS = 5000;
/** Requests for one list. */
const LIST_REQUESTS_MAX = 40;
/**
 * The rounds that were listed. The older ones are complete up to `until`; `asking` while a request for more of them is under way.
 * @typedef {{ known: Map<number, Summary>, until: number, asking: boolean, failed: unknown }} RoundList
 */
/** @type {Map<string, RoundList>} */
const lists = new Map();

/** Fetches the rounds of a list that are not known yet. @param {string} task @param {RoundList} list @param {number} first @param {number} last */
async function fillList(task, list, first, last) {
  let next = first;
  for (let requests = 0; next <= last && requests < LIST_REQUESTS_MAX;) {
    if (list.known.has(next)) {
      next += 1;
      continue;
    }
    requests += 1;
    const { json } = await get(`/v1/tasks/${encodeURIComponent(task)}/rounds?from=${next}`);
    for (const one of Array.isArray(json) ? json : []) {
      if (Number.isSafeInteger(one?.round) && one.round >= next && one.round <= last) {
        list.known.set(one.round, one);
      }
    }
    if (!list.known.has(next)) {
      return;
    }
  }
}

/**
 * The reports of a task from a round to another one, in short, without those that are not listed. The last ones are awaited; the older ones come
 * later, and `complete` is false until then.
 * @param {string} task
 * @param {number} first
 * @param {number} last
 * @returns {Promise<{ rows: Summary[], complete: boolean }>}
 */
export async function roundList(task, first, last) {
  /** @type {RoundList} */
  const list = lists.get(task) ?? { known: new Map(), until: first - 1, asking: false, failed: null };
  setBounded(lists, LISTS_MAX, task, list);
  const awaited = Math.max(first, last - AWAITED_MAX + 1);
  await fillList(task, list, awaited, last);
  const older = awaited - 1;
  while (list.until < older && list.known.has(list.until + 1)) {
    list.until += 1;
  }
  if (list.until < older && !list.asking) {
    list.asking = true;
    fillList(task, list, Math.max(first, list.until + 1), older)
      .then(() => {
        list.until = Math.max(list.until, older);
        list.failed = null;
      }, (error) => {
        list.failed = error;
        return new Promise((done) => window.setTimeout(done, LIST_AGAIN_MS));
      })
      .then(() => (list.asking = false))
      .then(redraw);
  }
  if (list.failed && !isUnreached(list.failed)) {
    throw list.failed;
  }
  const rows = [];
  for (let round = first; round <= last; round += 1) {
    const one = list.known.get(round);
    if (one) {
      rows.push(one);
    }
  }
  return { rows, complete: list.until >= older };
}

/** The paths of a round's documents. @param {string} task @param {number} round @param {string} what */
export function roundPath(task, round, what) {
  return `/v1/tasks/${encodeURIComponent(task)}/rounds/${round}/${what}`;
}

/**
 * Calls `changed` after each change of a task. Server-sent events bring the changes; where there are
 * none, the page polls. A hidden page has no stream.
 * @param {() => void} changed
 * @param {(state: "live" | "polling" | "away") => void} state
 */
export function follow(changed, state) {
  let failures = 0;
  let polls = 0;
  /** Distinguishes attempts: a timer or an answer of an earlier one does nothing. */
  let attempt = 0;
  /** @type {EventSource | null} */
  let stream = null;
  /** @type {number | undefined} */
  let silence;

  const close = () => {
    attempt += 1;
    stream?.close();
    stream = null;
    window.clearTimeout(silence);
  };

  /** @param {number} mine */
  const poll = async (mine) => {
    if (mine !== attempt) {
      return;
    }
    latest.clear();
    let wait = POLL_MS;
    try {
      const task = /^\/tasks\/([0-9a-f]{64})/.exec(location.pathname)?.[1] ?? "";
      // The first poll shows that the market answers.
      const seen = polls === 0 ? undefined : sequences.get(task);
      polls += 1;
      if (seen === undefined) {
        await get("/v1/market");
      } else {
        // The task answers when it changes; a reader who goes elsewhere ends the wait.
        const { json } = await longPoll(`/v1/tasks/${task}?after=${seen}&wait_ms=${LONG_POLL_MS}`);
        sequences.set(task, Number(json.sequence));
        wait = json.sequence > seen ? 0 : POLL_MS;
      }
      if (mine === attempt) {
        state("polling");
        changed();
      }
    } catch (error) {
      // A wait that ended because the reader went elsewhere is no failure.
      const ended = error instanceof DOMException && error.name === "AbortError";
      wait = ended ? 0 : POLL_MS;
      if (mine === attempt && !ended) {
        state("away");
      }
    }
    if (mine === attempt) {
      window.setTimeout(() => void poll(mine), Math.max(wait, POLL_PAUSE_MS));
    }
  };

  const startPolling = () => {
    close();
    const mine = attempt;
    failures = 0;
    polls = 0;
    void poll(mine);
    window.setTimeout(() => mine === attempt && open(), STREAM_AGAIN_MS);
  };

  const watch = () => {
    window.clearTimeout(silence);
    silence = window.setTimeout(open, SILENCE_MS);
  };

  const open = () => {
    close();
    const opened = new EventSource(`/v1/events?wait_ms=${STREAM_MS}`);
    stream = opened;
    watch();
    opened.addEventListener("tasks", (event) => {
      failures = 0;
      noteAnswer();
      watch();
      for (const [id, progress] of Object.entries(JSON.parse(event.data))) {
        latest.set(id, progress);
      }
      state("live");
      changed();
    });
    opened.addEventListener("error", () => {
      failures += 1;
      // A stream that was refused does not come again by itself.
      if (failures > FAILURES_MAX || opened.readyState === EventSource.CLOSED) {
        startPolling();
      } else if (failures > 1) {
        state("away");
      }
    });
  };

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  if (!document.hidden) {
    open();
  }
}
