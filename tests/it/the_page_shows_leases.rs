//! The page of the market for compute: the browser performs the records of a lease again.

use florin_compute::LeaseOutcome;
use serde_json::{Value, json};

use crate::support::On;
use crate::support::lease_run::{LeaseRun, PATIENT};
use crate::support::page::{document, equal_answers, run};

/// A request for the check of an order, with one replacement in its documents.
fn check(market: &str, view: &str, records: &str, change: Option<(&str, &str)>) -> String {
    let order = serde_json::from_str::<Value>(view).unwrap()["id"].clone();
    let text = format!(
        "{{\"call\":\"check_order\",\"order\":{order},\"market\":{market},\"view\":{view},\"records\":[{records}]}}"
    );
    match change {
        None => text,
        Some((from, to)) => {
            assert!(text.contains(from), "{from} is in {text}");
            text.replacen(from, to, 1)
        }
    }
}

#[test]
fn a_lease_is_proven_in_a_browser_and_a_lie_is_named() {
    let lease = LeaseRun::open(On::Embedded);
    lease.write_order(1, PATIENT);
    let _all = (lease.helpers(), lease.daemon("provider", "bid.toml"));
    let id = lease.place(None);
    let settled = lease.wait_for_pay(id);
    assert_eq!(settled.lease().outcome(), Some(LeaseOutcome::Settled));
    let at = &lease.market;
    let info: Value = serde_json::from_str(&document(at, "market")).unwrap();
    let (market, view) = (info["market"].to_string(), document(at, &format!("orders/{id}")));
    let records = document(at, &format!("orders/{id}/records?after=0"));
    let list: Vec<Value> = serde_json::from_str(&records).unwrap();
    let ends = list.iter().position(|record| record["action"]["beacon"].is_string()).unwrap();
    let beacon = list[ends]["action"]["beacon"].as_str().unwrap().to_owned();
    let cut = serde_json::to_string(&list[..list.len() - 1]).unwrap();
    let (other, lower) = ("7".repeat(64), "\"delivered\":10");
    let mut requests = vec![
        check(&market, &view, &records, None),
        check(&market, &view, &records, Some((&beacon, &other))),
        check(&market, &view, &cut, None),
        check(&market, &view, &records, Some((lower, "\"delivered\":9"))),
        check("{\"chain\":1,\"genesis\":\"00\"}", &view, &records, None),
        check(&market, &view, &records, Some((&id.to_string(), &other))),
    ];
    let facts = florin_page::answer(requests[0].as_bytes())["facts"].clone();
    requests.push(json!({ "call": "market_statistics", "leases": [facts, facts] }).to_string());
    let mut cancelled = facts.clone();
    cancelled["cancelled"] = json!(true);
    requests.push(json!({ "call": "market_statistics", "leases": [cancelled] }).to_string());
    let answers = equal_answers(&requests);
    let provider = at.account("provider").to_string();
    assert_eq!(facts["award"]["provider"], json!(provider));
    assert_eq!((&facts["award"]["delivered"], &facts["outcome"]), (&json!(10), &json!("settled")));
    for (request, wrong) in [(1, "action"), (2, "states another"), (3, "states another")] {
        assert!(
            answers[request]["wrong"].as_str().unwrap().contains(wrong),
            "{}",
            answers[request]
        );
    }
    assert!(answers[4]["error"].is_string(), "a market without an identity: {}", answers[4]);
    let another = answers[5]["wrong"].as_str().unwrap();
    assert!(another.contains("another one"), "the documents of another order: {another}");
    let statistics = &answers[6]["providers"][0];
    assert_eq!((&statistics["won"], &statistics["delivered"]), (&json!(2), &json!(2)));
    assert!(answers[6]["median"].is_string() && answers[6]["median"] == facts["award"]["per_hour"]);
    let paid = |at: usize| answers[at]["providers"][0]["earned"].as_str().unwrap().to_owned();
    assert!(paid(6) != "0" && paid(7) == "0", "a cancelled settlement pays no account");
    run(&["leases.mjs", &at.url, &id.to_string(), &provider, &at.file("")]);
}
