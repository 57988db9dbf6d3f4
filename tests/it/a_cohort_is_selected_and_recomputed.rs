//! Cohorts by a knob: each participant reads its reason, an auditor recomputes every cohort, and a
//! signed offer with another cohort is a mismatch.

use std::collections::BTreeMap;

use florin_protocol::{
    Address, Candidates, Canonical, Offer, Report, SelectionReason, Signed, TaskId,
};
use serde_json::json;

use crate::support::market::words;
use crate::support::proxy::Proxy;
use crate::support::{CommandOutput, On, TestMarket, TestPlan, florin};

fn audit(url: &str, task: &str) -> CommandOutput {
    let mut call = words(&["audit", task, "--engine", "reference", "--json", "--market"]);
    call.push(url.to_owned());
    florin(&call)
}

/// Six rounds of two are twelve updates of four members: with equal work three of each. Two enrolled members start
/// the task, so the others may miss its first rounds.
fn assert_equal_work(
    market: &TestMarket,
    task: TaskId,
    cohort: &dyn Fn(&str, &[&str]) -> CommandOutput,
) {
    let mut updates: BTreeMap<Address, u32> = BTreeMap::new();
    let mut without_all = 0;
    for round in 1..=6 {
        for entry in market.report(task, round).entries {
            *updates.entry(entry.sender).or_default() += 1;
        }
        let found = cohort(&round.to_string(), &["--json"]).expect(0).json();
        let candidates = found["candidates"].as_array().unwrap();
        let can_be_drawn = |one: &&serde_json::Value| one["standing"] == "eligible";
        without_all += u32::from(candidates.iter().filter(can_be_drawn).count() < 4);
    }
    let most = updates.values().copied().max().unwrap();
    assert!(most <= 3 + without_all, "{updates:?}, {without_all} rounds without all members");
}

fn assert_no_cohort_before_the_first_round(market: &TestMarket) {
    let task = market.publish().to_string();
    let output = florin(&["task", "cohort", &task, "--market", &market.url]);
    assert!(output.err.contains("no round of the task has been offered yet"), "{}", output.err);
    output.refused(2, "ROUNDS_OUT_OF_RANGE");
}

#[test]
fn a_cohort_is_selected_and_recomputed() {
    let plan = TestPlan {
        participants: vec![("ann", None), ("ben", None), ("cy", None), ("di", None)],
        target: 2,
        selection: r#"{ knob = "fair_work", explore = 0.0 }"#,
        ..TestPlan::honest(On::Embedded, 6)
    };
    let market = TestMarket::open(plan);
    assert_no_cohort_before_the_first_round(&market);
    let id = market.run();
    let task = id.to_string();
    let honest = audit(&market.url, &task).expect(0).json();
    assert_eq!((&honest["rounds"], &honest["mismatches"]), (&6.into(), &json!([])));

    let call = |round: &str, more: &[&str]| {
        let call = ["task", "cohort", &task, "--round", round, "--market", &market.url];
        florin(&[&call, more].concat())
    };
    assert_equal_work(&market, id, &call);
    let shown = call("4", &[]).expect(0).out;
    assert!(shown.contains("the offer has this cohort"), "{shown}");
    let found = call("4", &["--json"]).expect(0).json();
    assert_eq!(found["agrees"], true);
    let reasons: Vec<&str> = found["candidates"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["reason"].as_str())
        .collect();
    assert_eq!(reasons.len(), 2, "{found}");
    assert!(shown.contains("score = 4 × reliability + 12 × work"), "{shown}");
    assert_eq!(found["stalled"], false);
    let scored = found["candidates"].as_array().unwrap().iter().find(|one| !one["score"].is_null());
    let (levels, score) = (&scored.unwrap()["levels"], scored.unwrap()["score"].as_u64());
    let part = |name: &str, weight: u64| {
        assert_eq!(levels[name]["weight"], weight, "{levels}");
        weight * levels[name]["level"].as_u64().unwrap()
    };
    assert_eq!(Some(part("reliability", 4) + part("work", 12)), score, "{levels}");
    assert!(levels["speed"].is_null(), "{levels}");
    let code = call("9", &["--json"]).expect(2).json_error().unwrap()["code"].clone();
    assert_eq!(code, "ROUNDS_OUT_OF_RANGE");

    let node = market.wallet("coordinator").node_signer();
    let liar = Proxy::before(&market.url, "/rounds/5/offer", move |body| {
        let mut offer: Signed<Offer> = serde_json::from_slice(body).unwrap();
        offer.body.reasons[0] = SelectionReason::Reserve;
        serde_json::to_vec(&node.sign(offer.body)).unwrap()
    });
    let found = audit(&liar.url, &task).expect(1).json();
    let lines: Vec<&str> = found["mismatches"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line["line"].as_str().unwrap())
        .collect();
    assert!(lines.contains(&"offer.reasons"), "{lines:?}");

    let dropped = Proxy::before(&market.url, "/rounds/5/candidates", |body| {
        let mut candidates: Candidates = serde_json::from_slice(body).unwrap();
        let before = candidates.digest();
        candidates.accounts.pop_last();
        assert_ne!(candidates.digest(), before);
        serde_json::to_vec(&candidates).unwrap()
    });
    let found = audit(&dropped.url, &task).expect(1).json();
    assert_eq!(found["mismatches"][0]["line"], "candidates", "{found}");
}

/// The provider values the rounds and sends transcripts; the coordinator replays them.
#[test]
fn a_cohort_complements_itself_by_proven_classes() {
    let plan = TestPlan {
        participants: vec![("ann", None), ("ben", None), ("cy", None), ("di", None)],
        target: 2,
        selection: r#"{ knob = "performance", explore = 0.0 }"#,
        ..TestPlan::honest(On::Embedded, 6)
    };
    let market = TestMarket::open(plan);
    let id = market.run();
    let task = id.to_string();
    let honest = audit(&market.url, &task).expect(0).json();
    assert_eq!((&honest["rounds"], &honest["mismatches"]), (&6.into(), &json!([])));
    for round in 1..=6 {
        let report = market.report(id, round);
        let effects = report.valuation.unwrap().evidence.class_effects.unwrap();
        assert_eq!((effects.losses_nano.len(), effects.shares.len()), (10, report.entries.len()));
    }
    let call = |more: &[&str]| {
        let call = ["task", "cohort", &task, "--round", "6", "--market", &market.url];
        florin(&[&call, more].concat())
    };
    let found = call(&["--json"]).expect(0).json();
    assert_eq!(found["agrees"], true);
    assert_eq!(found["class_losses_nano"].as_array().unwrap().len(), 10);
    let candidates = found["candidates"].as_array().unwrap();
    let complements = candidates.iter().filter(|one| one["reason"] == "complements");
    assert_eq!(complements.count(), 2, "{found}");
    let shown = call(&[]).expect(0).out;
    assert!(shown.contains("improves") && shown.contains(" %"), "{shown}");

    let node = market.wallet("coordinator").node_signer();
    let liar = Proxy::before(&market.url, "/rounds/3/report", move |body| {
        let mut report: Signed<Report> = serde_json::from_slice(body).unwrap();
        let evidence = &mut report.body.valuation.as_mut().unwrap().evidence;
        evidence.class_effects.as_mut().unwrap().shares[0] = vec![25; 10];
        serde_json::to_vec(&node.sign(report.body)).unwrap()
    });
    let found = audit(&liar.url, &task).expect(1).json();
    let lines = found["mismatches"].as_array().unwrap();
    let line = "valuation.evidence.class_effects.shares[0]";
    let names = |one: &serde_json::Value| one["line"].as_str().unwrap().ends_with(line);
    assert!(lines.iter().any(names), "{found}");
}
