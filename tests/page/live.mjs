// A round appears in an open page: node live.mjs ORIGIN TASK ROUND. Prints `open` when the page is
// drawn, and ends when the round is in its table and recomputed.
import { check, honest, play, visit } from "./browser.mjs";

const [origin, task, round] = process.argv.slice(2);
await play(async (browser, faults) => {
  const page = await honest(browser, origin, faults);
  await visit(page, origin, `/tasks/${task}`);
  const row = `a[href="/tasks/${task}/rounds/${round}"]`;
  const before = await page.$(row);
  await page.evaluate(() => (window.sameDocument = true));
  console.log("open");
  const earlier = `a[href="/tasks/${task}/rounds/${round - 1}"]`;
  if (round > 1) {
    await page.waitForSelector(earlier, { timeout: 120_000 });
    await page.focus(earlier);
  }
  await page.waitForSelector(row, { timeout: 120_000 });
  check("the focus stays on its round", round === "1" || (await page.evaluate(() => document.activeElement?.getAttribute("href"))) === `/tasks/${task}/rounds/${round - 1}`);
  check(`round ${round} appears`, before === null, "it was there before");
  await page.waitForFunction((row) => document.querySelector(row)?.closest("tr")?.querySelector(".mark.good"), { timeout: 60_000 }, row);
  check("it is recomputed", true);
  check("the page was not loaded again", await page.evaluate(() => window.sameDocument === true));
});
