// The operator's page: node operator.mjs ORIGIN TOKEN.
import { accessible, changing, check, fits, open, play } from "./browser.mjs";

const [origin, token] = process.argv.slice(2);

await play(async (browser, faults) => {
  const text = (page) => page.$eval("#main", (main) => main.textContent);
  const shows = (page, part) => page.waitForFunction((part) => document.getElementById("main").textContent.includes(part), { timeout: 30_000 }, part);
  /** Opens the page, and sends a token. */
  async function enter(page, value) {
    await page.goto(page.served ?? origin, { waitUntil: "domcontentloaded" });
    await page.waitForSelector("input[name=value]");
    await page.type("input[name=value]", value);
    await page.keyboard.press("Enter");
  }

  const stranger = await open(browser, origin, faults);
  await enter(stranger, "0".repeat(32));
  await shows(stranger, "[OPERATOR_TOKEN_WRONG]");
  check("a wrong token shows nothing", !/Queues|Ready/.test(await text(stranger)));
  await stranger.close();
  const bare = await fetch(`${origin}/operator/state`);
  check("a request without a token is refused", bare.status === 401 && (await bare.json()).metrics === undefined);
  const elsewhere = await browser.newPage();
  await elsewhere.goto("about:blank");
  const read = await elsewhere.evaluate((origin, token) =>
    fetch(`${origin}/operator/state`, { headers: { authorization: `Bearer ${token}` } }).then(() => "read", () => "refused"), origin, token);
  check("a page of another origin reads nothing, even with the token", read === "refused", read);
  await elsewhere.close();

  const page = await open(browser, origin, faults);
  await enter(page, token);
  await shows(page, "✓ Ready");
  await shows(page, "None of ");
  for (const scheme of ["light", "dark"]) {
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    for (const width of [360, 768, 1440, 3840]) {
      await page.setViewport({ width, height: 900 });
      await fits(page, "the operator's page", width);
    }
    await accessible(page, "the operator's page", scheme);
  }
  check("it has no cookie", (await page.evaluate(() => document.cookie)) === "");
  await page.setOfflineMode(true);
  await shows(page, "The coordinator does not answer");
  await page.setOfflineMode(false);
  await shows(page, "✓ Ready");
  check("it goes on when the coordinator answers again", true);
  await page.close();

  // Metrics of a disk that fills, from the third look on.
  let looks = 0;
  const full = await changing(browser, origin, faults, (path, json) => {
    if (path !== "/operator/state") {
      return undefined;
    }
    looks += 1;
    return { ...json, metrics: `${json.metrics}\nflorin_rejections_total{code="STORAGE_FULL"} ${looks > 2 ? 3 : 0}\n` };
  });
  await enter(full, token);
  await shows(full, "DiskFull");
  check("an alert fires, with what to do", /DiskFull\s*fires\s*Free space on the data folder/.test(await text(full)), await text(full));
  await full.close();
});
