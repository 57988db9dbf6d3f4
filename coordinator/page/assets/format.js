// @ts-check
// Texts of values.
import { h } from "./dom.js";

/** Longest name that is shown whole, in characters. */
const NAME_MAX = 120;

/**
 * A name that a stranger chose, without control and direction marks, and not too long.
 * @param {unknown} text
 */
export function clean(text) {
  const letters = [...String(text ?? "").replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cn}]/gu, "").trim()];
  const shown = letters.length > NAME_MAX ? `${letters.slice(0, NAME_MAX).join("")}…` : letters.join("");
  return shown || "(no name)";
}

/** A clean name in its own direction. @param {unknown} text */
export function named(text) {
  return h("bdi", { class: "name" }, clean(text));
}

/**
 * An address or a digest: its first and last digits, with the whole as its title.
 * @param {unknown} text
 */
export function short(text) {
  const whole = String(text ?? "");
  const cut = whole.length > 16 ? `${whole.slice(0, 8)}…${whole.slice(-4)}` : whole;
  return h("code", { title: whole, class: "figure" }, cut);
}

/** A link to an account. @param {unknown} address */
export function account(address) {
  const text = String(address ?? "");
  return h("a", { href: `/accounts/${encodeURIComponent(text)}` }, short(text));
}

/** Nano-units as a decimal. @param {unknown} nano @param {number} [digits] */
export function nano(nano, digits = 4) {
  if (!Number.isSafeInteger(nano)) {
    return "–";
  }
  // Towards zero, as the program's own words are.
  const whole = BigInt(/** @type {number} */ (nano));
  const size = whole < 0n ? -whole : whole;
  const cut = size / 10n ** BigInt(9 - digits);
  const text = cut.toString().padStart(digits + 1, "0");
  return `${whole < 0n && cut > 0n ? "−" : ""}${text.slice(0, -digits)}.${text.slice(-digits)}`;
}

/** @param {number} part @param {number} whole */
export function percent(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : "–";
}

/** A count with groups of three. @param {unknown} value */
export function count(value) {
  const number = Number(value);
  return Number.isFinite(number) ? grouped(String(Math.trunc(number))) : "–";
}

/** @param {string} digits */
export function grouped(digits) {
  return digits.replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

/** A time of day with its date. @param {unknown} ms */
export function time(ms) {
  const at = new Date(Number(ms));
  if (Number.isNaN(at.getTime()) || Number(ms) <= 0) {
    return "–";
  }
  const text = at.toISOString();
  return h("time", { datetime: text, class: "figure", title: text }, `${text.slice(0, 10)} ${text.slice(11, 19)} UTC`);
}

/** A duration in words. @param {number} ms */
export function duration(ms) {
  if (ms > 0 && ms < 1000) {
    return `${ms} ms`;
  }
  const seconds = Math.max(0, Math.round(ms / 1000));
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  if (days > 0) {
    return `${grouped(String(days))} d ${hours} h`;
  }
  return hours > 0 ? `${hours} h ${two(minutes)} min` : minutes > 0 ? `${minutes} min ${two(seconds % 60)} s` : `${seconds} s`;
}

/** A snake_case word as words. @param {unknown} word */
export function words(word) {
  return String(word ?? "").replaceAll("_", " ");
}

/**
 * The name of a tagged value of the interface: `"x"`, `{"x": "reason"}`, `{"x": …}` or `{"kind": "x", …}`.
 * @param {unknown} value
 */
export function tag(value) {
  if (value === null || typeof value !== "object") {
    return words(value);
  }
  if ("kind" in value) {
    return words(value.kind);
  }
  const [[name = "", why] = []] = Object.entries(value);
  return typeof why === "string" ? `${words(name)}: ${words(why)}` : words(name);
}
