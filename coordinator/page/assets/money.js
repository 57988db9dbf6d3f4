// @ts-check
// Exact amounts of florins: base units of 10⁻¹⁸ as BigInt. No amount is ever a floating number.
import { h } from "./dom.js";
import { grouped } from "./format.js";

const DIGITS = 18;
const FLORIN = 10n ** 18n;

/**
 * The base units of an amount of the interface: a decimal number of florins, as a string. Anything
 * else is null: it is shown as a fault of the market, never as zero.
 * @param {unknown} text
 * @returns {bigint | null}
 */
export function units(text) {
  const match = /^(\d{1,39})(?:\.(\d{1,18}))?$/.exec(String(text));
  if (!match) {
    return null;
  }
  return BigInt(match[1] ?? "0") * FLORIN + BigInt((match[2] ?? "").padEnd(DIGITS, "0"));
}

/** The sum of two amounts; null if one of them is none. @param {bigint | null} left @param {bigint | null} right */
export function plus(left, right) {
  return left === null || right === null ? null : left + right;
}

/** The sum of amounts of the interface; null if one of them is none. @param {unknown[]} amounts */
export function sum(amounts) {
  let all = 0n;
  for (const amount of amounts) {
    const one = units(amount);
    if (one === null) {
      return null;
    }
    all += one;
  }
  return all;
}

/** An amount in the form of the interface. @param {bigint} amount Of base units, not negative. */
export function decimal(amount) {
  const part = (amount % FLORIN).toString().padStart(DIGITS, "0").replace(/0+$/, "");
  return `${amount / FLORIN}${part ? `.${part}` : ""}`;
}

/** All digits of an amount. @param {bigint} amount */
export function exact(amount) {
  const sign = amount < 0n ? "−" : "";
  const [whole = "0", part] = decimal(amount < 0n ? -amount : amount).split(".");
  return `${sign}${grouped(whole)}${part ? `.${part}` : ""}`;
}

/**
 * An amount rounded down to four decimals, with all of its digits as the title.
 * @param {bigint | null} amount
 */
export function florins(amount) {
  if (amount === null) {
    return h("span", { class: "amount bad" }, "not an amount");
  }
  const all = exact(amount);
  const [whole = "0", part = ""] = all.split(".");
  const cut = part.length > 4 ? `${whole}.${part.slice(0, 4)}…` : all;
  return h("span", { class: "amount", title: `${all} FLN` }, `${cut}\u00a0FLN`);
}

/** All digits of an amount, as an element. @param {bigint | null} amount */
export function whole(amount) {
  return amount === null
    ? h("span", { class: "amount bad" }, "not an amount")
    : h("span", { class: "amount" }, `${exact(amount)}\u00a0FLN`);
}

/** A number for a chart alone. @param {bigint | null} amount */
export function approximate(amount) {
  return amount === null ? 0 : Number(amount) / 1e18;
}
