// A coordinator that states a million members: node crowd.mjs ORIGIN TASK. The market is honest, but for
// the members that were asked and that are missing.
import { changing, check, fits, play, visit } from "./browser.mjs";

const [origin, task] = process.argv.slice(2);
const MEMBERS = 1_000_000;
const crowd = Array.from({ length: MEMBERS }, (_, at) => `0x${at.toString(16).padStart(40, "0")}`);

const changes = {
  [`/v1/tasks/${task}`]: (view) => {
    const offer = { cohort: crowd, reasons: crowd.map(() => "drawn"), pool: "1e400", commit_by: 8e15, reveal_by: 8e15 };
    return { ...view, phase: "committing", phase_ends: 1e300, enrolled: MEMBERS, committed: -1, offer: { body: offer } };
  },
  [`/v1/tasks/${task}/rounds/1/report`]: (report) => ({ ...report, body: { ...report.body, missing: crowd.map((member) => [member, "no_commit"]) } }),
};

await play(async (browser, faults) => {
  const page = await changing(browser, origin, faults, (path, json) => changes[path]?.(json));
  await page.setViewport({ width: 360, height: 900 });
  for (const [path, text] of [[`/tasks/${task}`, "committing"], [`/tasks/${task}/rounds/1`, "Asked and missing"]]) {
    const begun = Date.now();
    await visit(page, origin, path);
    await page.waitForFunction((text) => document.getElementById("main").textContent.includes(text), { timeout: 60_000 }, text);
    const rows = await page.$$eval("#main tr", (all) => all.length);
    check(`a million members are at most some rows of ${path}`, rows > 0 && rows < 1500, `${rows} rows`);
    console.log(`drawn after ${Date.now() - begun} ms`);
    await fits(page, path, 360);
  }
  await page.waitForSelector(".problem", { timeout: 60_000 });
  check("a report with a million members is red", (await page.$(".passed")) === null);
  await page.click("a[href='/']");
  await page.waitForFunction(() => document.getElementById("main").getAttribute("data-drawn") === "/", { timeout: 30_000 });
  check("the reader goes on to another view", true);
});
