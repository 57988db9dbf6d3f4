// @ts-check
// The wallet's part of an account's view on a market of Ethereum: claim, bond, and withdraw.
import { h, section } from "./dom.js";
import { cancel, confirm, connect, encode, found, propose, read, session } from "./ethereum.js";
import { named } from "./format.js";
import { actions } from "./frame.js";
import { exact, units } from "./money.js";

/** @typedef {import("./ethereum.js").Contracts} Contracts */
/** Tasks whose bonds and claims are read from the contracts. */
const READ_MAX = 30;

/** @typedef {{ balance: bigint, stake: bigint, bonds: Map<string, { amount: bigint, release: bigint }>, claimed: Map<string, bigint> }} OnChain */
/** @typedef {{ task: any, totals: any, proof: string[], claimable: bigint | null }} Claimable */

/** Open tasks without a part of the account to which it may deposit a bond. */
const OPEN_MAX = 10;

/** The actions of the buttons of the drawn view. @type {Map<string, (value: string) => void>} */
const offered = new Map();

actions.set("connect", (id) => connect(id.split(" ")[0] ?? "", Number(id.split(" ")[1])));
actions.set("offer", (of, value) => offered.get(of)?.(value));
actions.set("confirm", (number) => confirm(Number(number)));
actions.set("cancel", cancel);

/**
 * The state of an account on the chain, through the connected wallet; null without one.
 * @param {Contracts} contracts
 * @param {string} account
 * @param {string[]} tasks
 * @returns {Promise<OnChain | null>}
 */
export async function onChain(contracts, account, tasks) {
  if (!session.provider || session.account.toLowerCase() !== account.toLowerCase()) {
    return null;
  }
  try {
    const found = await readAll(contracts, account, tasks.slice(0, READ_MAX));
    session.unread = "";
    return found;
  } catch (error) {
    session.unread = String(error instanceof Error ? error.message : error);
    return null;
  }
}

/** @param {Contracts} contracts @param {string} account @param {string[]} tasks @returns {Promise<OnChain>} */
async function readAll(contracts, account, tasks) {
  const [decimals] = await read(contracts.token, encode("decimals()", []));
  if (decimals !== 18n) {
    throw new Error(`the token ${contracts.token} of this market has no 18 decimals: it is not one of florins`);
  }
  const [balance] = await read(contracts.token, encode("balanceOf(address)", [account]));
  const [stake] = await read(contracts.market, encode("stakeOf(address)", [account]));
  const bonds = new Map();
  const claimed = new Map();
  for (const task of tasks) {
    const [bond, paid] = await Promise.all([
      read(contracts.market, encode("bondOf(bytes32,address)", [task, account])),
      read(contracts.market, encode("claimed(bytes32,address)", [task, account])),
    ]);
    bonds.set(task, { amount: bond[0] ?? 0n, release: bond[1] ?? 0n });
    claimed.set(task, paid[0] ?? 0n);
  }
  return { balance: balance ?? 0n, stake: stake ?? 0n, bonds, claimed };
}

/** @param {string} key @param {string} text @param {(value: string) => void} act @param {string} [field] */
function button(key, text, act, field) {
  offered.set(key, act);
  return h("button", { type: "button", "data-action": "offer", "data-of": key, "data-field": field }, text);
}

/**
 * The section of the wallet.
 * @param {any} market
 * @param {string} account
 * @param {Claimable[]} parts
 * @param {any[]} tasks
 * @param {OnChain | null} chain
 * @param {boolean} valid Whether the market's identity is that of its contracts.
 */
export function walletSection(market, account, parts, tasks, chain, valid) {
  offered.clear();
  const contracts = { token: String(market.ledger.token), market: String(market.ledger.market) };
  const own = session.account.toLowerCase() === account.toLowerCase();
  const open = tasks.filter((task) => task.phase !== "done" && !parts.some((part) => part.task.id === task.id)).slice(0, OPEN_MAX);
  const others = open.map((task) => ({ task, totals: null, proof: [], claimable: null }));
  if (!valid) {
    return section("Wallet of this browser",
      h("p", { class: "problem", role: "alert" }, "The market names contracts that are not those of its identity. The page asks no wallet for them."));
  }
  return section("Wallet of this browser",
    session.failed ? h("p", { class: "problem", role: "alert" }, "The wallet did nothing: ", named(session.failed)) : null,
    session.unread ? h("p", { class: "problem", role: "alert" }, "The contracts cannot be read: ", named(session.unread)) : null,
    session.state ? h("p", { role: "status" }, named(session.state)) : null,
    session.asked ? question(session.asked) : null,
    !session.provider
      ? connecting(market)
      : !own
        ? h("p", {}, "The wallet has another account: ", h("a", { href: `/accounts/${session.account}` }, h("code", {}, session.account)))
        : [...parts, ...others].map((part) => offers(contracts, account, part, chain)));
}

/** The buttons that connect a wallet. @param {any} market */
function connecting(market) {
  const known = found();
  return [
    h("p", { class: "note" }, known.length > 0
      ? "A connected wallet lets this page read the contracts, and asks you before each transaction."
      : "This browser has no wallet that announces itself (EIP-6963). The commands below do the same."),
    h("p", {}, known.map(({ id, name }) => h("button", { type: "button", "data-action": "connect", "data-of": `${id} ${Number(market.market.chain)}` }, "Connect ", named(name)))),
  ];
}

/** The section of a wallet without an account's view; null on another ledger than Ethereum. @param {any} market */
export function connectSection(market) {
  if (market.ledger?.kind !== "ethereum") {
    return null;
  }
  return section("Wallet of this browser",
    session.failed ? h("p", { class: "problem", role: "alert" }, "The wallet did nothing: ", named(session.failed)) : null,
    session.unread ? h("p", { class: "problem", role: "alert" }, "The contracts cannot be read: ", named(session.unread)) : null,
    session.state ? h("p", { role: "status" }, named(session.state)) : null,
    session.provider
      ? h("p", {}, "Connected: ", h("a", { href: `/accounts/${session.account}` }, h("code", {}, session.account)), ". Every view reads the contracts through it.")
      : connecting(market));
}

/** @param {import("./ethereum.js").Transaction} asked */
function question(asked) {
  return h("div", { class: "problem", role: "alertdialog", tabindex: -1, id: `question-${session.number}`, "aria-label": "A transaction" },
    h("p", {}, h("strong", {}, "Your wallet will be asked for one transaction. It must show the same:")),
    h("ul", {}, asked.words.map((line) => h("li", {}, line)),
      h("li", {}, "to the contract ", h("code", { class: "whole" }, asked.to), ", with no ether")),
    h("details", {}, h("summary", {}, "Data of the call"), h("p", {}, h("code", { class: "whole" }, asked.data))),
    h("p", {}, h("button", { type: "button", "data-action": "confirm", "data-of": session.number }, "Ask the wallet"), " ",
      h("button", { type: "button", "data-action": "cancel" }, "Do nothing")));
}

/** @param {Contracts} contracts @param {string} account @param {Claimable} part @param {OnChain | null} chain */
function offers(contracts, account, part, chain) {
  const { task, totals, proof, claimable } = part;
  const id = `0x${String(task.id).replace(/^0x/, "")}`;
  const bond = chain?.bonds.get(task.id);
  const field = `bond-${id.slice(2, 12)}`;
  const buttons = [];
  if (claimable !== null && claimable > 0n && totals) {
    const paid = units(totals.paid) ?? 0n;
    const debited = units(totals.debited) ?? 0n;
    buttons.push(button(`claim ${id}`, `Claim ${exact(claimable)} FLN`, () => propose([{
      words: [`pay ${exact(claimable)} FLN of the task ${id} to ${account}, or to the members of its split if it has one`, `after this, ${exact(paid)} FLN were claimed and ${exact(debited)} FLN debited from its bond, in all`],
      to: contracts.market,
      data: encode("claim(bytes32,address,uint256,uint256,bytes32[])", [id, account, paid, debited], proof),
    }])));
  }
  if (bond && bond.amount > 0n && bond.release === 0n) {
    buttons.push(button(`unbond ${id}`, "Ask for the bond back", () => propose([{
      words: [`ask for the bond of ${exact(bond.amount)} FLN in the task ${id}`, "it stays at risk during the unbonding delay, and the account takes part in no further round"],
      to: contracts.market, data: encode("unbond(bytes32)", [id]),
    }])));
  }
  if (bond && bond.amount > 0n && (bond.release > 0n || task.phase === "done")) {
    buttons.push(button(`withdraw ${id}`, "Withdraw the bond", () => propose([{
      words: [`withdraw the bond of ${exact(bond.amount)} FLN in the task ${id} to ${account}`, "the contract refuses before the delay, and the challenge windows of settlements in it, are over"],
      to: contracts.market, data: encode("withdrawBond(bytes32)", [id]),
    }])));
  }
  const add = [
    h("label", { for: field }, "Add to the bond, in FLN"),
    h("input", { id: field, inputmode: "decimal", pattern: "[0-9]+([.][0-9]{1,18})?", placeholder: "2" }),
    button(`bond ${id}`, "Deposit a bond", (value) => {
      const amount = units(value);
      if (amount === null || amount === 0n) {
        propose([]);
        session.failed = "an amount is a number of florins, such as 2.5";
        return;
      }
      propose([
        { words: [`allow the contract ${contracts.market} to take ${exact(amount)} FLN, by the token ${contracts.token}, of ${account}`, "the wallet must show this token and this amount: refuse any other one"], to: contracts.token, data: encode("approve(address,uint256)", [contracts.market, amount]) },
        { words: [`deposit ${exact(amount)} FLN as a bond in the task ${id}`, "it returns after the unbonding delay; a harmful update is debited from it; a request for the bond that runs is cancelled"], to: contracts.market, data: encode("bond(bytes32,uint128)", [id, amount]) },
      ]);
    }, field),
  ];
  return h("div", { class: "offers" }, h("h3", {}, named(task.name)), h("p", {}, buttons.map((one) => [one, " "])),
    task.phase === "done" ? null : h("p", {}, add));
}
