// @ts-check
// The frame of the page: addresses, navigation, live changes.
import { Refused, endWait, follow, isUnreached } from "./api.js";
import { command, h, morph } from "./dom.js";
import { actions, onRedraw } from "./frame.js";
import { accountView } from "./account.js";
import { computeView } from "./compute.js";
import { marketView } from "./market.js";
import { roundView } from "./round.js";
import { taskView } from "./task.js";

/** Time between two drawings at least, in milliseconds. */
const REDRAW_MS = 400;
/** Time until a view that failed is tried again, in milliseconds. */
const RETRY_MS = 5000;
/** Time between two ticks of the clocks, in milliseconds. */
const CLOCK_MS = 1000;
/** Longest time that a clock shows, in seconds. */
const CLOCK_S_MAX = 31_536_000;

/**
 * A view; `again` is the time in milliseconds after which it is drawn anew, for what no event announces.
 * @typedef {{ title: string, nodes: (Node | null | false)[], again?: number }} View
 * @typedef {(parts: string[], query: URLSearchParams) => Promise<View>} ViewFunction
 */

/** @type {[RegExp, ViewFunction][]} */
const VIEWS = [
  [/^\/$/, marketView],
  [/^\/tasks\/([^/]+)$/, taskView],
  [/^\/tasks\/([^/]+)\/rounds\/(\d{1,9})$/, roundView],
  [/^\/accounts(?:\/([^/]+))?$/, accountView],
  [/^\/compute$/, computeView],
];

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const live = /** @type {HTMLElement} */ (document.getElementById("live"));
let drawing = 0;
let again = false;
let busy = false;
let last = 0;
/** @type {number | undefined} */
let later;
/** The question that has been shown. */
let asked = "";

/** A part of an address; as it stands where it is malformed. @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** @returns {Promise<View>} */
async function view() {
  const path = location.pathname.replace(/(.)\/$/, "$1");
  for (const [pattern, draw] of VIEWS) {
    const match = pattern.exec(path);
    if (match) {
      const parts = match.slice(1).map((part) => decoded(part ?? ""));
      return draw(parts, new URLSearchParams(location.search));
    }
  }
  return { title: "Not found", nodes: [h("h1", {}, "There is no such view"), h("p", {}, h("a", { href: "/" }, "To the market"))] };
}

/** @param {unknown} error @returns {View} */
function failure(error) {
  const refused = error instanceof Refused;
  const code = refused ? error.code : "UNREACHABLE";
  const text = refused ? error.message : !isUnreached(error)
    ? `a document of the market is malformed (${error instanceof Error ? error.message : String(error)})` : `the market does not answer (${error instanceof Error ? error.message : String(error)})`;
  return {
    title: "No answer",
    again: refused && !isUnreached(error) ? undefined : RETRY_MS,
    nodes: [
      h("h1", {}, "The market gives no answer to this"),
      h("p", { class: "problem", role: "alert" }, text, " ", h("code", {}, `[${code}]`)),
      h("p", {}, h("a", { href: "/" }, "To the market"), refused ? null : " – the page tries again by itself."),
      refused ? null : command(`curl -sS ${location.origin}/v1/market`),
    ],
  };
}

/** Draws the view of the address. @param {boolean} fresh Whether the address changed. */
async function draw(fresh) {
  if (busy && !fresh) {
    again = true;
    return;
  }
  busy = true;
  drawing += 1;
  const mine = drawing;
  if (fresh) {
    for (const link of document.querySelectorAll(".bar nav a:not(.brand)")) {
      const own = link.getAttribute("href") ?? "";
      const here = own === "/" ? location.pathname === "/" || location.pathname.startsWith("/tasks") : location.pathname.startsWith(own);
      if (here) {
        link.setAttribute("aria-current", "page");
      } else {
        link.removeAttribute("aria-current");
      }
    }
  }
  /** @type {View} */
  let shown;
  try {
    shown = await view();
  } catch (error) {
    shown = failure(error);
  }
  if (mine === drawing) {
    busy = false;
    last = Date.now();
    document.title = `${shown.title} – Florin`;
    const next = h("main", { id: "main", tabindex: -1, "data-drawn": location.pathname + location.search }, ...shown.nodes);
    if (fresh) {
      main.replaceChildren(...next.childNodes);
      main.setAttribute("data-drawn", location.pathname + location.search);
      if (mine > 1) {
        // After a step to another view, not after the first one.
        main.focus({ preventScroll: true });
      }
    } else {
      morph(main, next);
    }
    const dialog = main.querySelector("[role=alertdialog]");
    if (dialog instanceof HTMLElement && dialog.id !== asked) {
      dialog.focus();
    }
    asked = dialog?.id ?? "";
    tick();
    window.clearTimeout(later);
    if (shown.again) {
      later = window.setTimeout(schedule, shown.again);
    }
  }
  if (again && mine === drawing) {
    again = false;
    schedule();
  }
}

/** @type {number | undefined} */
let scheduled;

function schedule() {
  window.clearTimeout(scheduled);
  const wait = Math.max(0, REDRAW_MS - (Date.now() - last));
  scheduled = window.setTimeout(() => void draw(false), wait);
}

onRedraw(schedule);

/** Updates the clocks: elements with `data-until`, a time of the coordinator. */
function tick() {
  for (const clock of main.querySelectorAll("[data-until]")) {
    const left = Number(clock.getAttribute("data-until")) - Date.now() - Number(clock.getAttribute("data-skew"));
    const seconds = Math.max(0, Math.ceil(left / 1000));
    const text = seconds > CLOCK_S_MAX ? "over a year" : seconds >= 3600 ? `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`
      : `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
    if (clock.textContent !== text) {
      clock.textContent = text;
    }
  }
}

history.scrollRestoration = "manual";
/** Remembers the place in the view of the address. */
function rememberPlace() {
  history.replaceState({ scroll: window.scrollY }, "");
}

window.addEventListener("scrollend", rememberPlace);
window.addEventListener("pagehide", rememberPlace);

/** @param {string} address */
function go(address) {
  rememberPlace();
  history.pushState(null, "", address);
  window.scrollTo(0, 0);
  endWait();
  void draw(true);
}

document.addEventListener("click", (event) => {
  const target = event.target instanceof Element ? event.target : null;
  const link = target?.closest("a[href]");
  const href = link?.getAttribute("href") ?? "";
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (link && plain && href.startsWith("/") && VIEWS.some(([pattern]) => pattern.test(href.replace(/\?.*$/, "")))) {
    event.preventDefault();
    go(href);
    return;
  }
  const acting = target?.closest("button[data-action]");
  if (acting) {
    const field = document.getElementById(acting.getAttribute("data-field") ?? "");
    const value = field instanceof HTMLInputElement ? field.value.trim() : "";
    actions.get(acting.getAttribute("data-action") ?? "")?.(acting.getAttribute("data-of") ?? "", value);
    return;
  }
  const button = target?.closest("button[data-copy]");
  if (button instanceof HTMLButtonElement) {
    const text = button.getAttribute("data-copy") ?? "";
    const done = () => {
      button.textContent = "Copied";
      window.setTimeout(() => (button.textContent = "Copy"), 1500);
    };
    navigator.clipboard?.writeText(text).then(done, () => select(button));
    if (!navigator.clipboard) {
      select(button);
    }
  }
});

/** Selects a command where the browser copies nothing. @param {Element} button */
function select(button) {
  const code = button.parentElement?.querySelector("code");
  if (code) {
    getSelection()?.selectAllChildren(code);
  }
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form instanceof HTMLFormElement) {
    event.preventDefault();
    const value = String(new FormData(form).get("value") ?? "").trim();
    const target = form.getAttribute("data-to") ?? "/";
    go(target.replace("VALUE", encodeURIComponent(value)));
  }
});

window.addEventListener("popstate", (event) => {
  endWait();
  void draw(true).then(() => window.scrollTo(0, Number(event.state?.scroll ?? 0)));
});
window.setInterval(tick, CLOCK_MS);

/** @param {"live" | "polling" | "away"} state */
function state(state) {
  const text = { live: "live", polling: "polling", away: "no connection, trying again" }[state];
  if (live.textContent !== text) {
    live.textContent = text;
    live.classList.toggle("on", state === "live");
  }
}

void draw(true).then(() => window.scrollTo(0, Number(history.state?.scroll ?? 0)));
follow(schedule, state);
