// The pictures of the README: node pictures.mjs ORIGIN FOLDER, while a demonstration runs
// (`florin demo --rounds 40 --keep DIR`; its address is in DIR/address).
import { join } from "node:path";
import { launch, open, visit } from "./browser.mjs";

const [origin, folder] = process.argv.slice(2);
/** Rounds with a report in the pictures, at least. */
const ROUNDS = 12;
const faults = [];
const browser = await launch();
try {
  const page = await open(browser, origin, faults);
  await page.setViewport({ width: 1100, height: 860, deviceScaleFactor: 1 });
  const json = async (path) => (await fetch(origin + path)).json();
  const [{ id }] = await json("/v1/tasks");
  let reported = 0;
  while (reported < ROUNDS) {
    const view = await json(`/v1/tasks/${id}`);
    if (view.phase === "done") {
      throw new Error("the task is over: take the pictures while it runs");
    }
    reported = view.reported;
    await new Promise((done) => setTimeout(done, 100));
  }
  for (const [name, path] of [["market", "/"], ["task", `/tasks/${id}`], ["round", `/tasks/${id}/rounds/${Math.max(1, reported)}`]]) {
    await visit(page, origin, path);
    // The last round of a market may be a new one again and again.
    await (path === "/" ? new Promise((done) => setTimeout(done, 500)) : page.waitForSelector(".mark.good, .passed", { timeout: 30_000 }));
    await page.screenshot({ path: join(folder, `page-${name}.webp`), type: "webp", quality: 82 });
  }
} finally {
  await browser.close();
}
console.log(faults.join("\n"));
