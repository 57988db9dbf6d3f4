// A browser wallet on a market of Ethereum: node wallet.mjs ORIGIN RPC TASK EARNER BONDER. EARNER has
// pay to claim in TASK, BONDER has florins and no bond. The chain is a development chain, which signs
// for both.
import { check, open, play, visit } from "./browser.mjs";

const [origin, rpc, task, earner, bonder] = process.argv.slice(2);
const sent = [];
const { ledger: contracts } = await (await fetch(`${origin}/v1/market`)).json();

async function call(method, params) {
  const response = await fetch(rpc, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ jsonrpc: "2.0", id: 1, method, params }) });
  const { result, error } = await response.json();
  if (error) {
    throw new Error(error.message);
  }
  return result;
}

await play(async (browser, faults) => {
  /** Opens a view in a browser whose wallet is a mock, and connects it. `lie` changes what it answers. */
  async function withWallet(account, lie = {}, path = `/accounts/${account}`) {
    const page = await open(browser, origin, faults);
    await page.exposeFunction("walletCall", async (method, params) => {
      if (method in lie) {
        return lie[method](params);
      }
      if (method === "eth_requestAccounts") {
        return [account];
      }
      if (method === "eth_sendTransaction") {
        await call("anvil_impersonateAccount", [account]);
        sent.push(params[0]);
      }
      return call(method, params ?? []);
    });
    await page.evaluateOnNewDocument(() => {
      const provider = { request: ({ method, params }) => window.walletCall(method, params) };
      const detail = Object.freeze({ info: { uuid: "one", name: "<b>Mock</b>\u202e wallet", icon: "https://tracker.example/x.png", rdns: "mock" }, provider });
      const announce = () => window.dispatchEvent(new CustomEvent("eip6963:announceProvider", { detail }));
      window.addEventListener("eip6963:requestProvider", announce);
    });
    await visit(page, origin, path);
    await press(page, "Connect");
    return page;
  }

  /** Presses a button by the beginning of its text. */
  async function press(page, text) {
    await page.waitForFunction((text) => [...document.querySelectorAll("#main button")].some((button) => button.textContent.startsWith(text)), { timeout: 60_000 }, text);
    await page.evaluate((text) => [...document.querySelectorAll("#main button")].find((button) => button.textContent.startsWith(text)).click(), text);
  }

  const shows = (page, text) => page.waitForFunction((text) => document.getElementById("main").textContent.includes(text), { timeout: 30_000 }, text);
  const balance = async (page) => page.$eval(".card b", (b) => b.textContent);

  const plain = await open(browser, origin, faults);
  for (const path of [`/tasks/${task}`, `/accounts/${earner}`, "/", "/compute"]) {
    await visit(plain, origin, path);
    const { wide, alerts } = await plain.evaluate(() => ({
      wide: document.documentElement.scrollWidth - window.innerWidth,
      alerts: [...document.querySelectorAll("[role=alert]")].map((alert) => alert.textContent),
    }));
    check(`${path} without a wallet shows no alert`, wide <= 0 && alerts.length === 0, alerts.join("\n"));
  }
  await plain.close();

  const claimer = await withWallet(earner);
  await shows(claimer, "proven");
  const before = await balance(claimer);
  await press(claimer, "Claim ");
  const words = await claimer.waitForSelector("[role=alertdialog]").then((dialog) => dialog.evaluate((node) => node.textContent));
  check("a claim is shown in words first", words.includes(`to ${earner}`) && /pay [\d.\u202f]+ FLN/.test(words) && sent.length === 0, words);
  await press(claimer, "Do nothing");
  await claimer.waitForFunction(() => !document.querySelector("[role=alertdialog]"));
  check("nothing is sent without a confirmation", sent.length === 0);
  await press(claimer, "Claim ");
  await press(claimer, "Ask the wallet");
  await shows(claimer, "Done: 0x");
  await claimer.waitForFunction((before) => document.querySelector(".card b").textContent !== before, { timeout: 60_000 }, before);
  check("a claim pays", sent.length === 1 && sent[0].data.startsWith("0x099eb904"), JSON.stringify(sent));
  await claimer.close();

  const bonding = await withWallet(bonder);
  await bonding.waitForSelector("input[id^=bond-]", { timeout: 60_000 });
  await bonding.type("input[id^=bond-]", "x");
  await press(bonding, "Deposit a bond");
  await shows(bonding, "an amount is a number of florins");
  await bonding.$eval("input[id^=bond-]", (input) => (input.value = ""));
  await bonding.type("input[id^=bond-]", "3");
  await press(bonding, "Deposit a bond");
  await press(bonding, "Ask the wallet");
  await shows(bonding, "deposit 3 FLN as a bond");
  await press(bonding, "Ask the wallet");
  await shows(bonding, "Done: 0x");
  await shows(bonding, "3\u00a0FLN");
  check("a bond takes two transactions", sent.length === 3, JSON.stringify(sent));
  await press(bonding, "Ask for the bond back");
  await press(bonding, "Ask the wallet");
  await press(bonding, "Withdraw the bond");
  await press(bonding, "Ask the wallet");
  await shows(bonding, "The wallet did nothing");
  check("a bond within its delay stays", true);
  await bonding.close();

  const reader = await withWallet(earner, {}, "/accounts");
  await shows(reader, "Connected: ");
  check("a wallet is connected before an address is known", (await reader.$(`a[href="/accounts/${earner}"]`)) !== null);
  await reader.click(".bar a[href='/']");
  await shows(reader, "in the treasury");
  await reader.$eval(`a[href="/tasks/${task}"]`, (link) => link.click());
  await shows(reader, "Deposit = paid + refunded + locked");
  check("the contract's money of a task balances", (await reader.$("[role=alert]")) === null);
  await reader.close();
  // Another chain's state: the money of the contract contradicts the reports.
  const forged = await withWallet(earner, { eth_call: ([{ data }]) => (data.startsWith("0xcf66151b") ? `0x${"11".repeat(32 * 31)}` : call("eth_call", [{ to: contracts.token, data: "0x313ce567" }, "latest"])) }, "/accounts");
  await shows(forged, "Connected: ");
  await forged.evaluate((task) => { const link = document.createElement("a"); link.href = `/tasks/${task}`; document.getElementById("main").append(link); link.click(); }, task);
  await shows(forged, "The parts differ from the deposit");
  check("money that does not balance is named", true);
  await forged.close();

  // A wallet whose node is gone.
  const silent = await withWallet(earner, { eth_call: () => new Promise(() => {}) }, "/accounts");
  await shows(silent, "Connected: ");
  await silent.click(".bar a[href='/']");
  await shows(silent, "Open tasks");
  check("a wallet that does not answer holds up no view", true);
  await silent.close();

  const liar = await withWallet(bonder, { eth_chainId: () => "0x1", wallet_switchEthereumChain: () => null });
  await shows(liar, "not on the chain");
  check("a wallet of another chain is refused", true);
  await liar.close();
  const fake = await withWallet(bonder, { eth_requestAccounts: () => ["<img src=x onerror=alert(1)>"] });
  await shows(fake, "names no account");
  check("a fake wallet is text", (await fake.$("#main img")) === null);
});
