// A task with more reports than are recomputed unasked: node long.mjs ORIGIN TASK.
import { changing, check, open, play, visit } from "./browser.mjs";

const [origin, task] = process.argv.slice(2);
const address = `/tasks/${task}`;
const marks = (page, kind) => page.$$eval(`.mark.${kind}`, (all) => all.length);

await play(async (browser, faults) => {
  const page = await open(browser, origin, faults);
  await visit(page, origin, address);
  check("no round is recomputed unasked", (await marks(page, "good")) === 0);
  await page.$eval("button[data-action=recompute]", (button) => button.click());
  await page.waitForFunction(() => document.querySelectorAll(".mark.good").length === 40, { timeout: 60_000 });
  check("all rounds of the table are recomputed", (await marks(page, "bad")) === 0 && (await page.$("button[data-action=recompute]")) === null);
  await page.close();

  // Rows that an early round has drawn already, in a report that stands in no table.
  const early = await changing(browser, origin, faults, (path, json) => {
    if (!path.endsWith("/rounds/3/report")) {
      return undefined;
    }
    const next = JSON.parse(JSON.stringify(json));
    next.body.holdout.rows = next.body.holdout.rows.slice(1);
    return next;
  });
  await visit(early, origin, address);
  await early.$eval("button[data-action=recompute]", (button) => button.click());
  await early.waitForSelector(".mark.bad", { timeout: 60_000 });
  check("an early report that lies makes later rounds red", true);
  await early.close();
});
