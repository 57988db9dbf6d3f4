// Looks at every view of a market with a finished task: node walk.mjs ORIGIN TASK ACCOUNT FOLDER. FOLDER receives screenshots.
import { join } from "node:path";
import { accessible, check, drawn, fits, honest, open, play, visit } from "./browser.mjs";

const [origin, task, account, folder] = process.argv.slice(2);
const views = ["/", `/tasks/${task}`, `/tasks/${task}/rounds/1`, `/accounts/${account}`, "/accounts", "/compute"];
const nameOf = (view) => (view === "/" ? "market" : view.slice(1).split("/").filter((_, at) => at !== 1).join("-"));

await play(async (browser, faults) => {
  const page = await honest(browser, origin, faults);
  for (const scheme of ["light", "dark"]) {
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    for (const width of [360, 768, 1440, 3840]) {
      await page.setViewport({ width, height: width === 3840 ? 2160 : 900 });
      for (const view of views) {
        await visit(page, origin, view);
        await fits(page, view, width);
        await page.waitForFunction(() => !/recomputing|recomputes the round/.test(document.getElementById("main").textContent), { timeout: 30_000 });
        const file = `${nameOf(view)}${view === `/accounts/${account}` ? "-one" : ""}-${width}-${scheme}.png`;
        await page.screenshot({ path: join(folder, file), fullPage: true });
        if (width === 360 || width === 1440) {
          await accessible(page, view, scheme);
        }
      }
    }
  }

  await visit(page, origin, "/");
  await page.evaluate(() => (window.sameDocument = true));
  const link = `a[href="/tasks/${task}"]`;
  await page.click(link);
  await drawn(page, `/tasks/${task}`);
  await page.goBack();
  await drawn(page, "/");
  await page.goForward();
  await drawn(page, `/tasks/${task}`);
  await page.setViewport({ width: 360, height: 640 });
  await page.evaluate(() => window.scrollTo(0, 400));
  await page.waitForFunction(() => history.state?.scroll === 400, { timeout: 10_000 });
  await page.evaluate(() => document.querySelector("#main h1 ~ section a[href*='/rounds/']").click());
  await page.waitForFunction(() => location.pathname.includes("/rounds/") && window.scrollY === 0, { timeout: 10_000 });
  await page.goBack();
  await drawn(page, `/tasks/${task}`);
  await page.waitForFunction(() => window.scrollY === 400, { timeout: 10_000 });
  check("back returns to the place of the view", true);
  await page.setViewport({ width: 1440, height: 900 });
  check("back and forward work in one document", await page.evaluate(() => window.sameDocument === true));
  check("a view has a title", (await page.title()).endsWith(" – Florin") && (await page.title()).length > 12, await page.title());

  await visit(page, origin, `/tasks/${task}/rounds/1`);
  await page.waitForSelector(".passed, .problem", { timeout: 30_000 });
  check("an honest report is equal", (await page.$(".passed")) !== null && (await page.$(".problem")) === null,
    await page.$eval("#main", (main) => main.textContent));

  await visit(page, origin, "/");
  await page.keyboard.press("Tab");
  const first = await page.evaluate(() => document.activeElement?.className);
  check("the first stop of the keyboard skips to the content", first === "skip", String(first));
  const stops = new Set();
  for (let stop = 0; stop < 60; stop += 1) {
    await page.keyboard.press("Tab");
    stops.add(await page.evaluate(() => document.activeElement?.getAttribute("href") ?? document.activeElement?.tagName));
  }
  for (const href of ["/compute", "/accounts", `/tasks/${task}`, "BUTTON"]) {
    check(`the keyboard reaches ${href}`, stops.has(href), [...stops].join(" "));
  }

  await visit(page, origin, "/accounts");
  await page.type("input[name=value]", account);
  await page.keyboard.press("Enter");
  await drawn(page, `/accounts/${account}`);
  check("a form leads to an address", true);

  const lost = await open(browser, origin, faults);
  for (const [address, code] of [["/tasks/0x00", /\[[A-Z_]+\]/], ["/accounts/%E0%A4%A", /is not an address/]]) {
    await lost.goto(origin + address, { waitUntil: "domcontentloaded" });
    await lost.waitForSelector("[role=alert]");
    check(`${address} is refused with a reason`, code.test(await lost.$eval("[role=alert]", (p) => p.textContent)));
  }
});
