// A browser for the tests: Chromium of this machine, or the one that npm brings. Prints SKIPPED and
// ends with 0 where there is none.
import { existsSync, readFileSync } from "node:fs";
import { createServer, request } from "node:http";
import { createRequire } from "node:module";
import { text as body } from "node:stream/consumers";
import chromium from "@sparticuz/chromium";
import puppeteer from "puppeteer-core";

const SYSTEM = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/** Tries while another test unpacks the browser. */
const TRIES = 60;
const AGAIN_MS = 1000;
/** Arguments of npm's Chromium that would switch off what the tests rely on. */
const UNSAFE = ["--disable-web-security", "--allow-running-insecure-content"];

export async function launch() {
  const system = SYSTEM.find((path) => existsSync(path));
  for (let tries = 1; ; tries += 1) {
    try {
      const executablePath = system ?? (await chromium.executablePath());
      const args = system ? ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        : chromium.args.filter((one) => !UNSAFE.includes(one));
      return await puppeteer.launch({ executablePath, args, headless: system ? true : "shell" });
    } catch (error) {
      if (tries < TRIES && /ETXTBSY/.test(String(error))) {
        await new Promise((done) => setTimeout(done, AGAIN_MS));
        continue;
      }
      console.log(`SKIPPED: no Chromium runs here (${String(error).split("\n")[0]})`);
      process.exit(0);
    }
  }
}

/** A check with its name: printed, and an error if it fails. */
export function check(name, holds, detail = "") {
  if (!holds) {
    throw new Error(`${name}: ${detail}`);
  }
  console.log(`ok ${name}`);
}

/** The address and the text of a page. */
async function shown(page) {
  const text = await Promise.race([
    page.evaluate(() => document.getElementById("main")?.innerText ?? "").catch(String),
    new Promise((done) => setTimeout(done, 5000, "(no answer)")),
  ]);
  return `${page.url()}:\n${text}`;
}

/** Plays a test in a browser: an error, or a fault behind the views, fails the script. */
export async function play(steps) {
  const faults = [];
  const browser = await launch();
  try {
    await steps(browser, faults);
    check("nothing failed behind the views", faults.length === 0, faults.join("\n"));
  } catch (error) {
    console.log(`not ok ${error.message}`);
    console.log([...faults, ...await Promise.all((await browser.pages()).map(shown))].join("\n"));
    process.exitCode = 1;
  } finally {
    await browser.close();
  }
}

/** Opens a page that fails on errors of its scripts and on requests to another host. */
export async function open(browser, origin, faults) {
  const page = await browser.newPage();
  page.on("pageerror", (error) => faults.push(`script error: ${error}`));
  page.on("console", (message) => {
    if (message.type() === "error" && !/Failed to load resource/.test(message.text())) {
      faults.push(`console: ${message.text()}`);
    }
  });
  page.on("dialog", async (dialog) => {
    faults.push(`a dialog: ${dialog.message()}`);
    await dialog.dismiss();
  });
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.origin !== origin && url.protocol !== "data:") {
      faults.push(`a request to another host: ${url}`);
    }
  });
  return page;
}

/** Opens a page of an honest market, on which any alert and any red mark is a fault, however short it stands. */
export async function honest(browser, origin, faults) {
  const page = await open(browser, origin, faults);
  await page.exposeFunction("sawAlert", (text) => faults.push(`an alert on an honest market: ${text}`));
  await page.evaluateOnNewDocument(() => {
    const seen = new Set();
    const look = () => {
      for (const { textContent } of document.querySelectorAll("[role=alert], .mark.bad")) {
        if (!seen.has(textContent)) {
          seen.add(textContent);
          window.sawAlert(textContent);
        }
      }
    };
    new MutationObserver(look).observe(document, { subtree: true, childList: true, characterData: true });
  });
  return page;
}

/** Waits until the view of an address is drawn. */
export async function drawn(page, path) {
  await page.waitForFunction((path) => document.getElementById("main")?.getAttribute("data-drawn") === path, { timeout: 30_000 }, path);
}

/** Goes to a view, and waits until it is drawn. */
export async function visit(page, origin, path) {
  await page.goto((page.served ?? origin) + path, { waitUntil: "domcontentloaded" });
  await drawn(page, path);
}

/**
 * Serves the page of a market on an address of its own; JSON answers pass through `change(path, json)`, of which undefined changes nothing. Requests
 * for which `isLost(path)` is "dropped" get no answer, those for which it is a status get that.
 */
export async function proxy(origin, change, isLost = () => undefined) {
  const server = createServer((asked, answer) => {
    const lost = isLost(new URL(asked.url, origin).pathname);
    if (lost === "dropped") {
      answer.destroy();
      return;
    }
    if (lost) {
      answer.writeHead(lost, { "content-type": "application/json" });
      answer.end(JSON.stringify({ code: "BUSY", message: "come again" }));
      return;
    }
    const headers = { ...asked.headers, "accept-encoding": "identity" };
    delete headers["if-none-match"];
    const passed = request(origin + asked.url, { method: asked.method, headers }, async (found) => {
      const { pathname } = new URL(asked.url, origin);
      if (asked.method !== "GET" || pathname === "/v1/events" || !/json/.test(found.headers["content-type"] ?? "")) {
        answer.writeHead(found.statusCode, found.headers);
        found.pipe(answer);
        return;
      }
      const text = await body(found);
      let next;
      try {
        next = await change(pathname, JSON.parse(text));
      } catch {
        next = undefined;
      }
      answer.writeHead(found.statusCode, { "content-type": "application/json" });
      answer.end(next === undefined ? text : JSON.stringify(next));
    });
    passed.on("error", () => answer.destroy());
    answer.on("close", () => passed.destroy());
    asked.pipe(passed);
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  server.unref();
  return `http://127.0.0.1:${server.address().port}`;
}

/** Opens a page of a market whose answers pass through `change`; `visit` leads to it. */
export async function changing(browser, origin, faults, change) {
  const served = await proxy(origin, change);
  const page = await open(browser, served, faults);
  page.served = served;
  return page;
}

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Serious findings of axe-core. */
export async function accessible(page, view, scheme) {
  // The policy of the page allows no added script, and this one is evaluated by the test.
  await page.evaluate(axe);
  const serious = await page.evaluate(async () => {
    // Contrast is not computed on the gradients that show where a table goes on.
    document.querySelectorAll(".scroll").forEach((frame) => (frame.style.background = "none"));
    const { violations } = await window.axe.run(document, { resultTypes: ["violations"] });
    return violations.filter(({ impact }) => impact === "serious" || impact === "critical")
      .map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => node.html).join(" | ")}`);
  });
  check(`${view} has no serious finding in ${scheme}`, serious.length === 0, serious.join("\n"));
}

/** No view is wider than the screen, and no figure breaks across lines. */
export async function fits(page, view, width) {
  const found = await page.evaluate(() => {
    const wide = document.documentElement.scrollWidth - window.innerWidth;
    const broken = [...document.querySelectorAll("#main .amount, #main .figure, #main td.n")]
      .filter((element) => getComputedStyle(element).display === "inline")
      .filter((element) => new Set([...element.getClientRects()].map(({ top }) => Math.round(top))).size > 1)
      .map((element) => element.textContent);
    return { wide, broken };
  });
  const tallest = await page.evaluate(() => Math.max(0, ...[...document.querySelectorAll("#main tr")].map((row) => row.getBoundingClientRect().height)));
  check(`${view} has no row of a screen's height at ${width} px`, tallest < 400, `${tallest} px`);
  check(`${view} fits ${width} px`, found.wide <= 0, `${found.wide} px too wide`);
  check(`${view} breaks no figure at ${width} px`, found.broken.length === 0, found.broken.join(", "));
}
