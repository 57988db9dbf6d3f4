//! The coordinator's page in a browser, and the module that it runs there. The scripts in tests/page
//! drive Chromium; where none runs, they print SKIPPED.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};

use florin_protocol::{Canonical as _, ReportSummary, RoundNumber, TaskId};
use serde_json::{Value, json};

use crate::support::market::words;
use crate::support::page::{document, equal_answers, node, run, scripts};
use crate::support::process::{florin, free_port, until};
use crate::support::{On, Process, TestMarket, TestPlan};

/// A page that is open in a browser.
struct OpenPage {
    script: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl OpenPage {
    /// Runs a script until it prints that its pages are drawn. `None` without a browser.
    fn open(arguments: &[&str]) -> Option<Self> {
        let mut script = node(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(script.stdout.take().unwrap());
        let mut page = Self { script, lines };
        let (mut line, mut seen) = (String::new(), String::new());
        while line.trim() != "open" {
            seen += &line;
            line.clear();
            assert!(page.lines.read_line(&mut line).unwrap() > 0, "{arguments:?}: {seen}");
            if line.starts_with("SKIPPED") {
                println!("{line}");
                page.script.wait().unwrap();
                return None;
            }
        }
        Some(page)
    }

    /// Waits for the end of the script, and returns what it printed.
    fn finish(mut self) -> String {
        let mut text = String::new();
        self.lines.read_to_string(&mut text).unwrap();
        assert!(self.script.wait().unwrap().success(), "{text}");
        println!("{text}");
        text
    }
}

#[test]
fn a_round_appears_in_an_open_page_and_lies_are_named() {
    let market = TestMarket::open(TestPlan::honest(On::Embedded, 2));
    let task = market.publish();
    let at = market.url.clone();
    let relay = Process::start(
        market.folder(),
        "page",
        &words(&["page", "--market", &at, "--listen", "127.0.0.1:0"]),
    );
    let polled = until("the page's address", || {
        let log = relay.log();
        let line = log.lines().find(|line| line.starts_with("page"))?;
        Some(line.split_whitespace().nth(1)?.trim_end_matches('/').to_owned())
    });
    let id = task.to_string();
    let live = OpenPage::open(&["live.mjs", &at, &id, "1"]);
    let polling = OpenPage::open(&["live.mjs", &polled, &id, "2"]);
    market.start_all(task).iter_mut().for_each(Process::finish);
    for page in [live, polling].into_iter().flatten() {
        page.finish();
    }
    let account = market.account("ann").to_string();
    let pictures = market.file("");
    run(&["walk.mjs", &at, &id, &account, &pictures]);
    run(&["hostile.mjs", &at, &id]);
    run(&["crowd.mjs", &at, &id]);
    run(&["stages.mjs", &at, &id]);
}

#[test]
fn a_buyer_a_participant_and_an_auditor_use_the_page_while_a_task_runs() {
    let market = TestMarket::open(TestPlan::honest(On::Embedded, 2));
    let task = market.publish();
    let (id, account) = (task.to_string(), market.account("ann").to_string());
    let Some(people) = OpenPage::open(&["roles.mjs", &market.url, &id, &account]) else {
        return;
    };
    market.start_all(task).iter_mut().for_each(Process::finish);
    let text = people.finish();
    // The commands that they copied work as they are, but for the files of a wallet and of rows.
    let model = market.file("model.safetensors");
    let mut ran = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("command florin ")) {
        if line.contains("wallet.json") {
            continue;
        }
        let line = line.replace("model.safetensors", &model);
        let output = florin(&words(&line.split(' ').collect::<Vec<_>>())).expect(0);
        eprintln!("florin {line}: {}", output.out);
        ran += 1;
    }
    assert_eq!(ran, 4, "{text}");
    assert!(std::fs::metadata(model).unwrap().len() > 0);
}

#[test]
fn a_long_task_is_recomputed_when_a_reader_asks() {
    let mut plan = TestPlan::honest(On::Embedded, 51);
    (plan.target, plan.participants) = (1, vec![("ann", None)]);
    let market = TestMarket::open(plan);
    let task = market.run();
    run(&["long.mjs", &market.url, &task.to_string()]);
}

#[test]
fn the_operators_page_needs_its_token_and_shows_alerts() {
    let mut market = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    let listen = format!("127.0.0.1:{}", free_port());
    let settings = market.folder().join("settings.toml");
    let text = std::fs::read_to_string(&settings).unwrap();
    std::fs::write(&settings, format!("metrics_listen = \"{listen}\"\n{text}")).unwrap();
    market.restart_coordinator();
    let token = market.folder().join("coordinator/operator-token");
    let token = until("the operator's token", || std::fs::read_to_string(&token).ok());
    run(&["operator.mjs", &format!("http://{listen}"), token.trim()]);
}

/// A request for the check of a round, with one replacement in its report.
fn check_of_round(market: &TestMarket, task: TaskId, change: Option<(&str, &str)>) -> String {
    check_as(market, task, 2, change)
}

/// A request for the check of round 2 under the address of another round.
fn check_as(market: &TestMarket, task: TaskId, round: u32, change: Option<(&str, &str)>) -> String {
    let [info, view, offer, report, before] = [
        "market".to_owned(),
        format!("tasks/{task}"),
        format!("tasks/{task}/rounds/2/offer"),
        format!("tasks/{task}/rounds/2/report"),
        format!("tasks/{task}/rounds/1/report"),
    ]
    .map(|path| document(market, &path));
    let rows =
        serde_json::from_str::<Value>(&before).unwrap()["body"]["holdout"]["rows"].to_string();
    let report = match change {
        None => report,
        Some((from, to)) => {
            assert!(report.contains(from), "{from} is in {report}");
            report.replacen(from, to, 1)
        }
    };
    format!(
        "{{\"call\":\"check_round\",\"task\":\"{task}\",\"round\":{round},\"market\":{info},\"view\":{view},\"offer\":{offer},\
         \"report\":{report},\"before\":{before},\"disclosed\":{rows}}}"
    )
}

/// Requests for charts, and one that is none.
fn charts() -> Vec<Value> {
    let axis =
        |name: &str, unit: &str, range: &str| json!({"name": name, "unit": unit, "range": range});
    vec![
        json!({"call": "line_plot", "title": "a<b", "x": axis("round", "number", "counting"),
            "y": axis("loss", "nats", "covering"),
            "lines": [{"name": "<one>", "points": [[1, 0.5], [2, 0.25], [3, 1e9]]}, {"name": "two", "points": []}]}),
        json!({"call": "stacked_bars", "title": "pay", "x": axis("round", "number", "counting"),
            "y": axis("paid", "florins", "from_zero"), "names": ["a", "b"], "bars": [[1.5, 2], [0, 1e-3]]}),
        json!({"call": "share_bar", "title": "money", "parts": [{"name": "a", "value": 1}, {"name": "b", "value": 2.5}]}),
        json!({"call": "error_bars", "title": "scores", "quantity": axis("score", "nats", "covering"),
            "rows": [{"name": "a", "mean": 1, "bounds": [-1, 2]}, {"name": "b", "mean": 2, "bounds": null}]}),
        json!({"call": "scatter_plot", "title": "prices", "x": axis("day", "number", "covering"),
            "y": axis("price", "florins", "from_zero"), "names": ["<a>", "b"],
            "dots": [{"at": [0, 1.5], "series": 0}, {"at": [1e9, 2], "series": 1}, {"at": [3, 1], "series": 999}]}),
        json!({"call": "unknown"}),
    ]
}

/// Requests about a claim: an honest one, and one with a larger sum.
fn claims(market: &TestMarket, task: TaskId) -> [String; 2] {
    let account = market.account("ann");
    let proof: Value =
        serde_json::from_str(&document(market, &format!("tasks/{task}/proof/{account}"))).unwrap();
    let mut dearer = proof["totals"].clone();
    dearer["paid"] = json!("99.9");
    [&proof["totals"], &dearer].map(|totals| {
        let (root, proof) = (&proof["root"], &proof["proof"]);
        let call = json!({"call": "check_claim", "root": root, "account": account, "totals": totals, "proof": proof});
        call.to_string()
    })
}

#[test]
fn the_module_answers_as_the_program_does() {
    let market = TestMarket::open(TestPlan::honest(On::Embedded, 2));
    let task = market.run();
    let text = document(&market, &format!("tasks/{task}/rounds/2/report"));
    let report: Value = serde_json::from_str(&text).unwrap();
    let field = |name: &str| format!("\"{name}\":{}", report["body"][name]);
    let statement = |account: &str| {
        format!("{{\"call\":\"statement\",\"account\":\"{account}\",\"report\":{text}}}")
    };
    let other_root = format!("\"root\":\"{}\"", "1".repeat(64));
    let mut requests = vec![
        check_of_round(&market, task, None),
        check_of_round(&market, task, Some((&field("root"), &other_root))),
        check_of_round(&market, task, Some((&field("pool"), "\"pool\":\"7\""))),
        statement(&market.account("ann").to_string()),
        statement("0x0000000000000000000000000000000000000001"),
    ];
    let other_place = check_as(&market, task, 1, None);
    requests.extend(claims(&market, task));
    requests.extend(charts().iter().map(Value::to_string));
    requests.insert(7, other_place);
    let ours = equal_answers(&requests);
    assert_eq!(ours[0]["mismatches"], json!([]), "an honest report is equal");
    for changed in &ours[1..3] {
        let lines = changed["mismatches"].as_array().unwrap();
        assert!(
            lines.iter().any(|line| line["line"] == "signature"),
            "it is not signed: {lines:?}"
        );
        let computed = lines.iter().filter(|line| line["line"] != "signature").count();
        assert!(computed > 0, "and it does not follow from its scores: {lines:?}");
    }
    assert!(ours[3]["statement"]["explanation"].as_str().unwrap().contains("nats"));
    assert!(ours[4]["statement"].is_null());
    assert_eq!((&ours[5]["valid"], &ours[6]["valid"]), (&json!(true), &json!(false)));
    assert_eq!(ours[7]["mismatches"][0]["line"], "scope.round", "it is another round's report");
    assert!(ours[8]["svg"].as_str().unwrap().contains("&lt;one&gt;"), "names are escaped");
    assert!(ours.last().unwrap()["error"].is_string());
    let view = document(&market, &format!("tasks/{task}"));
    let terms =
        |view: &str| format!("{{\"call\":\"check_task\",\"task\":\"{task}\",\"view\":{view}}}");
    let dearer = view.replacen("\"debit_max\":\"0.5\"", "\"debit_max\":\"0\"", 1);
    assert_ne!(dearer, view);
    let ours = equal_answers(&[terms(&view), terms(&dearer)]);
    assert_eq!((&ours[0]["valid"], &ours[1]["valid"]), (&json!(true), &json!(false)));
}

#[test]
fn the_list_of_rounds_is_that_of_the_reports() {
    let market = TestMarket::open(TestPlan::honest(On::Embedded, 2));
    let task = market.run();
    let list = |query: &str| -> Vec<ReportSummary> {
        serde_json::from_str(&document(&market, &format!("tasks/{task}/rounds{query}"))).unwrap()
    };
    let all = list("");
    assert_eq!((all.len(), list("?from=1"), list("?from=2").len()), (2, all.clone(), 1));
    assert_eq!(list("?from=3"), []);
    for (round, summary) in (1..).zip(&all) {
        let report = market.client().report(task, RoundNumber(round)).unwrap().body;
        assert_eq!(*summary, ReportSummary::from_report(&report).unwrap());
        assert_eq!((summary.report, summary.round), (report.digest(), RoundNumber(round)));
        assert_eq!(summary.data, report.data_paid().unwrap());
    }
    assert_eq!(all[1].data_total, all[0].data.plus(all[1].data).unwrap());
    let unknown = market.client().public_document("tasks/00/rounds");
    assert!(unknown.is_err(), "an id is whole");
}

#[test]
fn the_scripts_of_the_page_have_no_type_errors() {
    let output =
        node(&["node_modules/typescript/bin/tsc", "-p", "tsconfig.json"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
}

#[test]
fn a_wallet_claims_bonds_and_withdraws() {
    let mut plan = TestPlan::honest(On::Ethereum, 1);
    plan.others.push("dora");
    let market = TestMarket::open(plan);
    let task = market.publish();
    let mut members: Vec<Process> =
        ["ann", "ben", "cy"].into_iter().map(|name| market.participant(task, name)).collect();
    let _provider = market.provider(task);
    // The members stop before they claim: their updates are in.
    until("all updates", || {
        (market.view(task).revealed == 3 || market.view(task).reported == 1).then_some(())
    });
    members.iter_mut().for_each(Process::kill);
    let account = |name: &str| market.account(name).to_string();
    market.change_task(&[("salt = 1", "salt = 2")]);
    let open = market.publish();
    until("a final settlement", || {
        let account = market.account("ann");
        let proof = market.client().proof(task, account).ok()?;
        (!proof.totals.paid.is_zero()).then_some(())
    });
    let rpc = &market.chain().anvil.rpc;
    run(&["wallet.mjs", &market.url, rpc, &open.to_string(), &account("ann"), &account("dora")]);
}

#[test]
fn the_selectors_are_those_of_the_contracts() {
    let text = std::fs::read_to_string(scripts().join("../../coordinator/page/assets/ethereum.js"))
        .unwrap();
    let mut seen = 0;
    for line in text.lines().filter(|line| line.contains("\": \"0x")) {
        let (name, selector) = line.trim().trim_end_matches(',').split_once(": ").unwrap();
        let name = name.trim_matches('"');
        let hash = florin_protocol::keccak256(name.as_bytes());
        let hex: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(selector.trim_matches('"'), format!("0x{hex}"), "{name}");
        let abi = ["Market", "FlorinToken"].map(|file| {
            std::fs::read_to_string(scripts().join(format!("../../contracts/abi/{file}.json")))
                .unwrap()
        });
        let function = name.split('(').next().unwrap();
        assert!(abi.iter().any(|abi| abi.contains(&format!("\"name\": \"{function}\""))), "{name}");
        seen += 1;
    }
    assert_eq!(seen, 13);
}

#[test]
fn the_operators_page_has_the_alerts_of_the_rules() {
    let read = |path: &str| std::fs::read_to_string(scripts().join(path)).unwrap();
    let page = read("../../coordinator/page/assets/operator.js");
    let rules = read("../../docs/grafana/alerts.yml");
    let rules: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    assert!(rules.len() > 10);
    for rule in rules {
        let name = rule.lines().next().unwrap();
        let held = rule.lines().find_map(|line| line.trim().strip_prefix("for: "));
        let minutes = held.map_or(0, |held| {
            let (number, unit) = held.split_at(held.len() - 1);
            number.parse::<u32>().unwrap() * if unit == "h" { 60 } else { 1 }
        });
        // The page is not a metric: it names this one when it has no answer.
        let entry = if name == "CoordinatorDown" {
            format!("\"{name}\"")
        } else {
            format!("[\"{name}\", {minutes}, ")
        };
        assert!(page.contains(&entry), "{entry} is not on the operator's page");
    }
}
