// A browser for the tests: Chromium of this machine, or the one that npm brings. Prints SKIPPED and
// ends with 0 where there is none.
import { existsSync } from "node:fs";
import chromium from "@sparticuz/chromium";
import puppeteer from "puppeteer-core";

const SYSTEM = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

export async function launch() {
  const system = SYSTEM.find((path) => existsSync(path));
  try {
    const executablePath = system ?? (await chromium.executablePath());
    const args = system ? ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"] : chromium.args;
    return await puppeteer.launch({ executablePath, args, headless: system ? true : "shell" });
  } catch (error) {
    console.log(`SKIPPED: no Chromium runs here (${String(error).split("\n")[0]})`);
    process.exit(0);
  }
}

/** A check with its name: printed, and an error if it fails. */
export function check(name, holds, detail = "") {
  if (!holds) {
    throw new Error(`${name}: ${detail}`);
  }
  console.log(`ok ${name}`);
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
    if (faults.length > 0) {
      console.log(faults.join("\n"));
    }
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

/** Waits until the view of an address is drawn. */
export async function drawn(page, path) {
  await page.waitForFunction((path) => document.getElementById("main")?.getAttribute("data-drawn") === path, { timeout: 30_000 }, path);
}

/** Goes to a view, and waits until it is drawn. */
export async function visit(page, origin, path) {
  await page.goto(origin + path, { waitUntil: "domcontentloaded" });
  await drawn(page, path);
}

/** Opens a page of a market whose answers pass through `change(path, json)`; undefined changes nothing. */
export async function changing(browser, origin, faults, change) {
  const page = await open(browser, origin, faults);
  await page.setRequestInterception(true);
  page.on("request", async (request) => {
    const { pathname, search } = new URL(request.url());
    if (!pathname.startsWith("/v1/") || pathname === "/v1/events" || request.method() !== "GET") {
      await request.continue();
      return;
    }
    const response = await fetch(origin + pathname + search);
    const text = await response.text();
    let next;
    try {
      next = await change(pathname, JSON.parse(text));
    } catch {
      next = undefined;
    }
    await request.respond({ status: response.status, contentType: "application/json", body: next === undefined ? text : JSON.stringify(next) });
  });
  return page;
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
