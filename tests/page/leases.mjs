// The view of the market for compute: node leases.mjs ORIGIN ORDER PROVIDER FOLDER. FOLDER receives screenshots.
import { join } from "node:path";
import { changing, check, fits, open, play, visit } from "./browser.mjs";

const [origin, order, provider, folder] = process.argv.slice(2);
const text = (page) => page.$eval("#main", (main) => main.textContent);

await play(async (browser, faults) => {
  const page = await open(browser, origin, faults);
  for (const [width, scheme] of [[360, "light"], [768, "dark"], [1440, "light"]]) {
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    await page.setViewport({ width, height: 900 });
    await visit(page, origin, "/compute");
    await page.waitForSelector(".mark.good", { timeout: 30_000 });
    await page.waitForSelector("figure svg", { timeout: 30_000 });
    await fits(page, "/compute", width);
    await page.screenshot({ path: join(folder, `leases-${width}-${scheme}.png`), fullPage: true });
  }
  const shown = await text(page);
  check("the records of the lease are proven", /records of 1 of 1 orders again/.test(shown), shown);
  const row = await page.evaluate((provider) => document.querySelector(`section a[href="/accounts/${provider}"]`)?.closest("tr")?.textContent ?? "", provider);
  check("the provider has a row with its pay", /5\u00a0FLN/.test(row), row);
  check("three charts are drawn", (await page.$$("figure")).length === 3);
  check("no record is wrong", (await page.$(".problem")) === null, shown);
  await page.close();

  const lies = [
    ["an action is changed", (path, json) => (path === `/v1/orders/${order}/records` ? json.map((one, at) => (at === 2 ? { ...one, at: 1 } : one)) : undefined)],
    ["the last action is withheld", (path, json) => (path === `/v1/orders/${order}/records` ? json.slice(0, -1) : undefined)],
    ["the end is another one", (path, json) => (path === `/v1/orders/${order}` ? { ...json, outcome: { slashed: { segment: 1 } } } : undefined)],
  ];
  for (const [name, change] of lies) {
    const lying = await changing(browser, origin, faults, change);
    await visit(lying, origin, "/compute");
    await lying.waitForSelector(".mark.bad", { timeout: 30_000 });
    check(`${name}: the order is named`, /records of order .* are wrong/.test(await text(lying)), await text(lying));
    check(`${name}: it is in no price`, (await lying.$$("figure")).length === 0);
    await lying.close();
  }

  const listed = await changing(browser, origin, faults, (path, json) =>
    (path === "/v1/orders" ? json.map((one) => ({ ...one, outcome: { slashed: { segment: 3 } }, delivered: 3, money: "locked" })) : undefined));
  await visit(listed, origin, "/compute");
  await listed.waitForSelector(".mark.good", { timeout: 30_000 });
  check("a lie in the list stands beside no mark", !/slashed, segment/.test(await text(listed)) && /10 of 10/.test(await text(listed)), await text(listed));
  await listed.close();

  const copies = await changing(browser, origin, faults, async (path, json) =>
    (path === "/v1/orders" ? [...json, ...json, { ...json[0], id: "ab".repeat(32) }] : path.startsWith(`/v1/orders/${"ab".repeat(32)}`)
      ? (await fetch(origin + path.replace("ab".repeat(32), order))).json() : undefined));
  await visit(copies, origin, "/compute");
  await copies.waitForSelector(".mark.good", { timeout: 30_000 });
  await copies.waitForSelector(".mark.bad", { timeout: 30_000 });
  check("another order's records prove one order alone", (await copies.$$(".mark.good")).length === 1, await text(copies));
  await copies.close();

  const unopened = await changing(browser, origin, faults, (path, json) =>
    (path === `/v1/orders/${order}` ? { ...json, opened: null, records: 0 } : undefined));
  await visit(unopened, origin, "/compute");
  await unopened.waitForFunction(() => /records of 0 of 1 orders/.test(document.getElementById("main").textContent) && !/checking/.test(document.getElementById("main").textContent), { timeout: 30_000 });
  check("an order without records is not proven", (await unopened.$(".mark.good")) === null, await text(unopened));
  await unopened.close();

  const endless = await changing(browser, origin, faults, (path, json) =>
    (path === `/v1/orders/${order}` ? { ...json, records: 4e9 } : undefined));
  await visit(endless, origin, "/compute");
  await endless.waitForSelector(".mark.bad", { timeout: 30_000 });
  check("an endless record is not read", /not checked/.test(await text(endless)), await text(endless));
  await endless.close();
});
