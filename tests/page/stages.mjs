// The requests of a page after each event, with events of this script: node stages.mjs ORIGIN TASK, of
// a task that has ended.
import { check, honest, play, visit } from "./browser.mjs";

const [origin, task] = process.argv.slice(2);
const view = `/v1/tasks/${task}`;

await play(async (browser, faults) => {
  const page = await honest(browser, origin, faults);
  await page.evaluateOnNewDocument(() => {
    window.EventSource = class extends EventTarget {
      constructor() {
        super();
        window.emit = (progress) => this.dispatchEvent(new MessageEvent("tasks", { data: JSON.stringify(progress) }));
      }
      close() {}
    };
  });
  const asked = { [view]: 0, "/v1/ledger": 0 };
  page.on("request", (request) => {
    const { pathname } = new URL(request.url());
    asked[pathname] = (asked[pathname] ?? 0) + 1;
  });
  await visit(page, origin, `/tasks/${task}`);
  const { reported, sequence } = await page.evaluate(async (path) => (await fetch(path)).json(), view);
  /** The requests for the view and for the money that an event causes. */
  const fetched = async (phase, finalised) => {
    const before = { ...asked };
    const answered = page.waitForResponse((response) => new URL(response.url()).pathname === view);
    await page.evaluate((progress) => window.emit(progress), { [task]: { sequence, phase, round: reported + 1, reported, finalised } });
    await answered;
    await page.waitForNetworkIdle({ idleTime: 600 });
    return [asked[view] - before[view], asked["/v1/ledger"] - before["/v1/ledger"]].join();
  };
  const expect = async (name, phase, finalised, requests) => {
    const found = await fetched(phase, finalised);
    check(name, found === requests, `${found} requests for the task and its money, not ${requests}`);
  };
  await expect("the first event fetches both", "committing", reported - 1, "1,1");
  await expect("another phase fetches the task alone", "revealing", reported - 1, "1,0");
  await expect("and so does the next one", "valuing", reported - 1, "1,0");
  await expect("a final report fetches the money, too", "valuing", reported, "1,1");
  await expect("so does a task that settles", "settling", reported, "1,1");
  await expect("and one that is done", "done", reported, "1,1");
});
