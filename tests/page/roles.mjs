// Three people in a market whose task runs: node roles.mjs ORIGIN TASK MEMBER. Prints `open` when their pages are drawn, then the
// commands that they copied, and ends when the task is done.
import { check, drawn, honest, play, visit } from "./browser.mjs";

const [origin, task, member] = process.argv.slice(2);
const address = `/tasks/${task}`;

await play(async (browser, faults) => {
  const text = (page) => page.$eval("#main", (main) => main.textContent);
  const shows = (page, part) => page.waitForFunction((part) => document.getElementById("main").textContent.includes(part), { timeout: 120_000 }, part);
  /** The amount in a line of the table of the deposit. */
  const amount = (page, line) => page.evaluate((line) =>
    [...document.querySelectorAll("#main tr")].find((row) => row.querySelector("th[scope=row]")?.textContent === line)?.querySelector("td")?.textContent ?? "", line);
  /** The command with this beginning, as its button copies it. */
  const copied = async (page, beginning) => {
    const found = await page.$$eval("button[data-copy]", (buttons) => buttons.map((button) => button.getAttribute("data-copy")));
    const one = found.find((command) => command.startsWith(beginning));
    check(`there is the command ${beginning}`, one !== undefined, found.join("\n"));
    console.log(`command ${one}`);
  };

  /** Follows a link: a live table may move it from under the mouse. */
  const press = (page, href) => page.$eval(`a[href="${href}"]`, (link) => link.click());

  const buyer = await honest(browser, origin, faults);
  await visit(buyer, origin, address);
  const participant = await honest(browser, origin, faults);
  await visit(participant, origin, "/");
  const auditor = await honest(browser, origin, faults);
  await visit(auditor, origin, address);
  check("the phase of an open task is marked", (await buyer.$eval("[aria-current=step]", (step) => step.textContent)) === "enrolling");
  const clock = await buyer.$eval("[data-until]", (clock) => clock.textContent);
  check("an open task has a clock", /^\d+:\d\d$|^\d+ h \d+ min$/.test(clock), clock);
  await shows(buyer, "paid for data0\u00a0FLN");
  check("nothing is paid yet", true);
  await shows(participant, "no round yet");
  check("the market names the open task", true);
  // The participant wants to know what rows earn, and how to take part.
  await participant.$eval("input[name=value]", (input) => (input.value = ""));
  await participant.type("input[name=value]", "500");
  await participant.keyboard.press("Enter");
  await drawn(participant, "/?rows=500");
  await shows(participant, "of 500 rows");
  await press(participant, address);
  await drawn(participant, address);
  await copied(participant, "florin participate");
  // Its account is open all the time.
  const account = await honest(browser, origin, faults);
  await visit(account, origin, `/accounts/${member}`);
  console.log("open");

  // The auditor waits for a report, opens it, and checks it.
  await auditor.waitForSelector(`a[href="${address}/rounds/1"]`, { timeout: 120_000 });
  await press(auditor, `${address}/rounds/1`);
  await drawn(auditor, `${address}/rounds/1`);
  await auditor.waitForSelector(".passed", { timeout: 60_000 });
  check("the report is equal to its recomputation", !/is wrong|differ from/.test(await text(auditor)));
  await copied(auditor, "florin audit");

  // The buyer looks at its money until the task is done.
  await buyer.waitForFunction(() => document.querySelector("[aria-current=step]")?.textContent === "done", { timeout: 180_000 });
  await buyer.waitForFunction(() => [...document.querySelectorAll("#main tr")].some((row) => /^locked0\u00a0FLN$/.test(row.textContent)), { timeout: 60_000 });
  check("members were paid", !/^0\u00a0FLN$|^$/.test(await amount(buyer, "paid for data")), await amount(buyer, "paid for data"));
  check("the rest returned", !/^0\u00a0FLN$|^$/.test(await amount(buyer, "refunded")), await amount(buyer, "refunded"));
  await copied(buyer, "florin task model");

  // The participant looks at its account.
  await visit(participant, origin, `/accounts/${member}`);
  await shows(participant, "✓ proven");
  check("pay is explained in words", /nats/.test(await text(participant)), await text(participant));
  await copied(participant, "florin statement");
  await copied(participant, "florin balance");
  await visit(participant, origin, "/");
  check("the volume of the market is the pay of its task", !/0\u00a0FLN\s*paid by all tasks/.test(await text(participant)), await text(participant));
});
