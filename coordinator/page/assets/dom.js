// @ts-check
// Elements of the page. Text from a market is always the text of a node: never markup.

import { isUnreached } from "./api.js";

/** @typedef {Node | string | number | null | undefined | false | Child[]} Child */
/** @typedef {Record<string, string | number | boolean | null | undefined>} Attributes */

/**
 * Creates an element. An attribute that is null or false is left out.
 * @param {string} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {HTMLElement}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  append(element, children);
  return element;
}

/** @param {Node} parent @param {Child[]} children */
function append(parent, children) {
  for (const child of children) {
    if (Array.isArray(child)) {
      append(parent, child);
    } else if (child instanceof Node) {
      parent.appendChild(child);
    } else if (child !== null && child !== undefined && child !== false) {
      parent.appendChild(document.createTextNode(String(child)));
    }
  }
}

/** @typedef {{ createHTML(text: string): string, createScriptURL(path: string): string }} Policy */

const same = (/** @type {string} */ text) => text;
const rules = { createHTML: same, createScriptURL: same };
/** The only text that becomes markup or a script's address: charts of the page's own WebAssembly, which escapes names, and the path of its worker. */
const policy = /** @type {Policy} */ (/** @type {any} */ (window).trustedTypes?.createPolicy("florin-page", rules) ?? rules);

/** The address of a script of the page. @param {"/page/worker.js"} path */
export function scriptAddress(path) {
  return policy.createScriptURL(path);
}

/**
 * A chart with its caption.
 * @param {string} svg
 * @param {...Child} caption
 */
export function figure(svg, ...caption) {
  const drawn = h("div", { class: "drawn" }, svg ? null : h("p", { class: "bad" }, "These numbers cannot be drawn."));
  if (svg) {
    drawn.innerHTML = policy.createHTML(svg);
  }
  return h("figure", {}, drawn, h("figcaption", {}, ...caption));
}

/**
 * A section with a heading.
 * @param {string} title
 * @param {...Child} children
 */
export function section(title, ...children) {
  return h("section", { "data-name": title }, h("h2", {}, title), ...children);
}

/**
 * A section, or a line about its malformed data: one wrong document blanks no view.
 * @template {Node | null | Promise<Node | null>} T
 * @param {string} title
 * @param {() => T} draw
 * @returns {Promise<Node | null>}
 */
export async function safely(title, draw) {
  try {
    return await draw();
  } catch (error) {
    if (isUnreached(error)) {
      return section(title, h("p", { class: "soft", role: "status" }, "An answer is missing here: ", String(error instanceof Error ? error.message : error).slice(0, 200), ". The page asks again."));
    }
    return section(title, h("p", { class: "problem", role: "alert" }, "The market serves malformed data here: ", String(error instanceof Error ? error.message : error).slice(0, 200)));
  }
}

/**
 * A table that scrolls in its frame. A column that begins with `#` has figures; the first cell of
 * each row is its head.
 * @param {string} caption
 * @param {string[]} columns
 * @param {Child[][]} rows
 */
export function table(caption, columns, rows) {
  const kind = columns.map((column) => (column.startsWith("#") ? "n" : null));
  const head = columns.map((column, at) =>
    h("th", { scope: "col", class: kind[at] }, column.replace(/^#/, "")));
  const body = rows.map((cells) => {
    const row = h("tr", {}, cells.map((cell, at) =>
      h(at === 0 ? "th" : "td", { scope: at === 0 ? "row" : null, class: kind[at], "data-column": columns[at]?.replace(/^#/, "") }, cell)));
    const head = row.firstElementChild;
    row.setAttribute("data-name", head?.querySelector("a[href]")?.getAttribute("href") ?? head?.querySelector("[title]")?.getAttribute("title") ?? head?.textContent ?? "");
    return row;
  });
  return h("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": caption },
    h("table", { class: "rows" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

/**
 * Facts: a name and a value for each.
 * @param {[string, Child][]} rows
 */
export function facts(rows) {
  return h("dl", { class: "kv" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/**
 * Cards with one figure each.
 * @param {([Child, Child] | null)[]} cards
 */
export function cards(cards) {
  return h("div", { class: "cards" }, cards.map((card) =>
    card && h("div", { class: "card" }, h("b", {}, card[0]), h("span", {}, card[1]))));
}

/**
 * A command with a button that copies it.
 * @param {string} text
 */
export function command(text) {
  return h("div", { class: "command" }, h("code", {}, text),
    h("button", { type: "button", "data-copy": text }, "Copy"));
}

/**
 * Makes `from` equal to `to`, and keeps the elements that are equal: focus, scrolling and opened
 * details stay.
 * @param {Node} from
 * @param {Node} to
 */
export function morph(from, to) {
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
    from.parentNode?.replaceChild(to, from);
    return;
  }
  if (!(from instanceof Element) || !(to instanceof Element)) {
    if (from.nodeValue !== to.nodeValue) {
      from.nodeValue = to.nodeValue;
    }
    return;
  }
  if (from.id !== to.id) {
    // Another thing at the same place: a field takes no text of its predecessor.
    from.replaceWith(to);
    return;
  }
  if (from.classList.contains("drawn")) {
    if (!from.isEqualNode(to)) {
      from.replaceWith(to);
    }
    return;
  }
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && !(name === "open" && from.nodeName === "DETAILS")) {
      from.removeAttribute(name);
    }
  }
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value) {
      from.setAttribute(name, value);
    }
  }
  morphChildren(from, to);
}

/** The name of a child that keeps its element wherever it stands: a section's title, a row's first cell. @param {Node} node */
function nameOf(node) {
  return node instanceof Element ? node.getAttribute("data-name") ?? "" : "";
}

/** As `morph`, for the children: those with a name are found by it, the others by their order. @param {Element} from @param {Element} to */
function morphChildren(from, to) {
  /** @type {Map<string, Node>} */
  const named = new Map();
  /** @type {Node[]} */
  const others = [];
  for (const child of from.childNodes) {
    const name = nameOf(child);
    if (name && !named.has(name)) {
      named.set(name, child);
    } else {
      others.push(child);
    }
  }
  /** The old child of each new one. @type {(Node | undefined)[]} */
  const matches = [...to.childNodes].map((child) => {
    const name = nameOf(child);
    const known = name ? named.get(name) : others.shift();
    named.delete(name);
    return known;
  });
  const stays = new Set(matches);
  [...from.childNodes].filter((child) => !stays.has(child)).forEach((child) => child.remove());
  // An element that moves loses its focus: those in order stay where they are.
  let place = from.firstChild;
  [...to.childNodes].forEach((child, at) => {
    const known = matches[at];
    if (!known) {
      from.insertBefore(child, place);
      return;
    }
    if (known === place) {
      place = place.nextSibling;
    } else {
      const focused = known.contains(document.activeElement) ? document.activeElement : null;
      from.insertBefore(known, place);
      if (focused instanceof HTMLElement) {
        focused.focus({ preventScroll: true });
      }
    }
    morph(known, child);
  });
}
