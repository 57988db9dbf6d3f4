// A coordinator that lies and names that attack: node hostile.mjs ORIGIN TASK. The market is honest;
// the test changes its answers on their way.
import { changing, check, honest, open, play, proxy, visit } from "./browser.mjs";

const [origin, task] = process.argv.slice(2);
const NAME = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202egpj.exe\u0000\u2066";

await play(async (browser, faults) => {
  const changed = (change) => changing(browser, origin, faults, change);

  /** An amount with one base unit more. */
  function oneUnitMore(amount) {
    const [whole, part = ""] = amount.split(".");
    const units = (BigInt(whole) * 10n ** 18n + BigInt(part.padEnd(18, "0")) + 1n).toString().padStart(19, "0");
    return `${units.slice(0, -18)}.${units.slice(-18)}`.replace(/\.?0+$/, "");
  }

  /** Waits until a view has a text. */
  const shows = (page, pattern) => page.waitForFunction((source) => new RegExp(source).test(document.getElementById("main").textContent), { timeout: 30_000 }, pattern.source);
  const deep = (json) => JSON.parse(JSON.stringify(json));

  const unit = await changed((path, json) => {
    if (path.endsWith("/rounds/1/report")) {
      const next = deep(json);
      const line = next.body.lines.find(({ payout }) => payout !== "0") ?? next.body.lines[0];
      line.payout = oneUnitMore(line.payout);
      return next;
    }
    return undefined;
  });
  await visit(unit, origin, `/tasks/${task}/rounds/1`);
  await unit.waitForSelector(".passed, .problem", { timeout: 30_000 });
  check("a report with one changed payout turns red", (await unit.$(".problem")) !== null && (await unit.$(".passed")) === null);
  const lines = await unit.$$eval("#main th[scope=row]", (heads) => heads.map((head) => head.textContent));
  check("the changed payout is named beside the signature", lines.includes("signature") && lines.some((line) => /payout/.test(line)), lines.join(" "));
  await visit(unit, origin, `/tasks/${task}`);
  await unit.waitForSelector(".mark.bad", { timeout: 30_000 });
  check("the task marks the wrong report", true);
  await unit.close();

  const terms = await changed((path, json) => {
    if (path === `/v1/tasks/${task}`) {
      const next = deep(json);
      next.spec.budget.debit_max = "0";
      return next;
    }
    return undefined;
  });
  await visit(terms, origin, `/tasks/${task}`);
  await terms.waitForFunction(() => /not those of this task/.test(document.getElementById("main").textContent), { timeout: 30_000 });
  check("terms of another id are named", true);
  await terms.close();

  // An answer that is lost accuses no coordinator.
  const { body: first } = await (await fetch(`${origin}/v1/tasks/${task}/rounds/1/report`)).json();
  const earner = first.lines.find(({ payout }) => payout !== "0").account;
  const parts = { report: /rounds\/2\/report$/, list: /\/rounds$/, ledger: /^\/v1\/ledger$/, proof: /\/proof\//, module: /florin\.wasm$/, orders: /^\/v1\/orders$/ };
  for (const [part, pattern] of Object.entries(parts)) {
    for (const how of ["dropped", 503]) {
      const lossy = await proxy(origin, () => undefined, (path) => (pattern.test(path) ? how : undefined));
      const page = await honest(browser, lossy, faults);
      for (const path of [`/tasks/${task}`, `/tasks/${task}/rounds/2`, `/accounts/${earner}`, "/"]) {
        if (part === "report" && path.includes("/rounds/2")) {
          continue;
        }
        await visit(page, lossy, path);
        await page.waitForFunction((title) => document.querySelector("h1")?.textContent !== title, { timeout: 30_000 }, "The market gives no answer to this");
      }
      await page.close();
      check(`a lost ${part} (${how}) accuses no coordinator`, faults.length === 0, faults.join("\n"));
    }
  }

  // A lost report hides no report that the coordinator has not signed so.
  const hidden = await proxy(origin, (path, json) => {
    if (!path.endsWith("/rounds/2/report")) {
      return undefined;
    }
    const next = deep(json);
    next.body.lines[0].payout = oneUnitMore(next.body.lines[0].payout);
    return next;
  }, (path) => (path.endsWith("/rounds/1/report") ? 503 : undefined));
  const liar = await open(browser, hidden, faults);
  await liar.goto(`${hidden}/tasks/${task}/rounds/2`, { waitUntil: "domcontentloaded" });
  await liar.waitForSelector(".problem", { timeout: 30_000 });
  check("an unsigned lie is red beside a lost report", (await liar.$(".passed")) === null);
  await liar.close();

  const dearer = await changed((path, json) => (path === `/v1/tasks/${task}/proof/${earner}` ? { ...json, round: 999, totals: { ...json.totals, paid: "1000000" } } : undefined));
  await visit(dearer, origin, `/accounts/${earner}`);
  await shows(dearer, /do not believe/);
  const claim = await dearer.$eval("#main", (main) => main.textContent);
  check("totals of no round are not claimable", !/1.000.000/.test(claim), claim);
  await dearer.close();

  const orders = await changed((path) => (path === "/v1/orders" ? [null, 7, { order: null }] : undefined));
  await visit(orders, origin, "/compute");
  check("orders that are none blank no view", /Market for compute/.test(await orders.$eval("h1", (h) => h.textContent)));
  await orders.close();

  const root = await changed((path, json) => {
    if (path === `/v1/tasks/${task}`) {
      return { ...json, model: "00".repeat(32) };
    }
    return undefined;
  });
  await visit(root, origin, `/tasks/${task}`);
  await root.waitForSelector("[role=alert]", { timeout: 30_000 });
  await shows(root, /not that of its last report/);
  check("a view that contradicts its reports is named", true);
  await root.close();

  for (const [key, value] of [["data", "1"], ["metrics", null], ["report", "00".repeat(32)]]) {
    const listed = await changed((path, json) =>
      (path === `/v1/tasks/${task}/rounds` ? json.map((one, at) => (at === json.length - 1 ? { ...one, [key]: value } : one)) : undefined));
    await visit(listed, origin, `/tasks/${task}`);
    await listed.waitForFunction(() => /states another report/.test(document.getElementById("main").textContent), { timeout: 30_000 });
    check(`a list of rounds with another ${key} than the report is named`, true);
    await listed.close();
  }
  const early = await changed((path, json) =>
    (path === `/v1/tasks/${task}/rounds` ? json.map((one) => (one.round === 1 ? { ...one, accepted: 99 } : one)) : undefined));
  await visit(early, origin, `/tasks/${task}`);
  await early.waitForFunction(() => /states another report of round 1/.test(document.getElementById("main").textContent), { timeout: 30_000 });
  check("a wrong line of an early round is named", true);
  await early.close();
  const unlisted = await changed((path) => {
    if (path === `/v1/tasks/${task}/rounds`) {
      return "no list";
    }
    return undefined;
  });
  await visit(unlisted, origin, `/tasks/${task}`);
  await shows(unlisted, /lists 0 of the last/);
  await shows(unlisted, /Deposit = paid/);
  check("a task without its list of rounds is shown", true);
  await unlisted.close();
  const withheld = await changed((path, json) => (path === `/v1/tasks/${task}/rounds` ? json.slice(0, -1) : undefined));
  await visit(withheld, origin, `/tasks/${task}`);
  await shows(withheld, /lists \d+ of the last/);
  check("a round that is not listed is named", true);
  await withheld.close();

  const names = await changed((path, json) => {
    if (path === "/v1/tasks") {
      return json.map((one) => ({ ...one, name: NAME, data: "999999999999999999999999999999999999999", enrolled: 1e6 }))
        .concat(Array.from({ length: 3000 }, (_, at) => ({ ...json[0], id: at.toString(16).padStart(64, "0"), name: `${NAME}${at}`, data: "1e99", phase: "done", rounds: 4294967295 })));
    }
    if (path === `/v1/tasks/${task}`) {
      const next = deep(json);
      next.spec.name = NAME;
      next.enrolled = 4294967295;
      return next;
    }
    return undefined;
  });
  for (const [path, width] of [["/", 360], ["/", 1440], [`/tasks/${task}`, 360]]) {
    await names.setViewport({ width, height: 800 });
    await visit(names, origin, path);
    const found = await names.evaluate(() => ({
      images: document.querySelectorAll("#main img, #main script").length,
      wide: document.documentElement.scrollWidth - window.innerWidth,
      marks: /[\u202a-\u202e\u2066-\u2069\u0000]/.test(document.getElementById("main").textContent),
      title: document.title,
    }));
    check(`hostile names are text at ${path} and ${width} px`, found.images === 0 && found.wide <= 0 && !found.marks, JSON.stringify(found));
  }
  await names.close();

  const cut = await changed((path, json) => {
    if (path.endsWith("/rounds/1/report")) {
      const { lines, ...body } = json.body;
      return { ...json, body };
    }
    return undefined;
  });
  await visit(cut, origin, "/");
  check("a malformed report blanks no list", (await cut.$(`a[href="/tasks/${task}"]`)) !== null);
  await visit(cut, origin, `/tasks/${task}`);
  await cut.waitForSelector("[role=alert]", { timeout: 30_000 });
  await shows(cut, /withheld or malformed/);
  check("a malformed report is named", true);
  await cut.close();

  const broken = await changed((path) => (path === "/v1/tasks" ? { not: "a list" } : undefined));
  await visit(broken, origin, "/");
  check("a list that is none shows no task", /No task/.test(await broken.$eval("#main", (main) => main.textContent)));
  await broken.close();

  // Zero totals are honest where the report has no amount of the account, and a lie where it has.
  const { body: last } = await (await fetch(`${origin}/v1/tasks/${task}/rounds/2/report`)).json();
  const [member] = Object.entries(last.account_totals).find(([, totals]) => totals.data !== "0");
  for (const [isUnpaid, wrong] of [[true, false], [false, true]]) {
    const zero = await changed((path, json) => {
      if (path === `/v1/tasks/${task}/proof/${member}`) {
        return { ...json, totals: { paid: "0", debited: "0" }, proof: [] };
      }
      if (isUnpaid && path.endsWith("/rounds/2/report")) {
        const next = deep(json);
        Object.assign(next.body.account_totals[member], { data: "0", infrastructure: "0", debited: "0" });
        return next;
      }
      return undefined;
    });
    await visit(zero, origin, `/accounts/${member}`);
    await shows(zero, wrong ? /do not believe/ : /no final pay/);
    const text = await zero.$eval("#main", (main) => main.textContent);
    check(`zero totals of ${isUnpaid ? "an unpaid" : "a paid"} account are ${wrong ? "named" : "believed"}`, /do not believe/.test(text) === wrong, text);
    await zero.close();
  }

  const framed = await fetch(origin);
  check("no page frames this one", framed.headers.get("x-frame-options") === "DENY" && /frame-ancestors 'none'/.test(framed.headers.get("content-security-policy")));
  check("no cookie is set", framed.headers.get("set-cookie") === null);
});
