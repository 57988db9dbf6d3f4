//! An auditor finds no mismatch with an honest coordinator, and names the forged line of a
//! dishonest one, even if the forgery is signed.

use florin_protocol::{Amount, Digest, DisclosedRows, Report, RoundNumber, Signed, TaskPhase};

use crate::support::market::words;
use crate::support::proxy::Proxy;
use crate::support::{CommandOutput, On, TestMarket, TestPlan, florin, on_both};

on_both!(
    anyone_can_recompute_a_payout,
    a_spot_check_recomputes_a_random_part_of_a_task,
    a_round_is_audited_while_the_next_one_runs_and_later_holdout_rows_stay_secret,
    a_report_without_the_coordinators_signature_is_refused,
);

fn audit(market: &TestMarket, url: &str, task: &str) -> CommandOutput {
    let mut call = words(&["audit", task, "--engine", "reference", "--json", "--market"]);
    call.push(url.to_owned());
    let output = florin(&call);
    assert!(output.code == 0 || output.code == 1, "{output:?}; {}", market.coordinator.log());
    output
}

/// A forgery of the last report, and the line that reveals it.
type LineForgery = (&'static str, fn(&mut Report));

const FORGERIES: [LineForgery; 7] = [
    ("lines[0].payout", |report| {
        let more = report.lines[0].payout.plus(Amount::from_units(1)).unwrap();
        report.lines[0].payout = more;
    }),
    ("valuation.scores[0].score_nano", |report| {
        report.valuation.as_mut().unwrap().scores[0].score_nano += 1_000_000;
    }),
    ("holdout.seed", |report| report.holdout.seed = Digest([7; 32])),
    ("holdout.rows[1]", |report| report.holdout.rows[1] += 1),
    ("entries[0].rows_counted", |report| report.entries[0].rows_counted += 1),
    ("root", |report| report.root = Digest([7; 32])),
    ("entries", |report| {
        report.entries.pop();
        report.lines.pop();
        report.valuation.as_mut().unwrap().scores.pop();
    }),
];

fn anyone_can_recompute_a_payout(on: On) {
    let market = TestMarket::open(TestPlan::honest(on, 2));
    let task = market.run().to_string();
    let honest = audit(&market, &market.url, &task).expect(0).json();
    assert_eq!((&honest["rounds"], &honest["mismatches"]), (&2.into(), &serde_json::json!([])));

    let node = market.wallet("coordinator").node_signer();
    for (line, forge) in FORGERIES {
        let node = node.clone();
        let liar = Proxy::before(&market.url, "/rounds/2/report", move |body| {
            let mut report: Signed<Report> = serde_json::from_slice(body).unwrap();
            forge(&mut report.body);
            serde_json::to_vec(&node.sign(report.body)).unwrap()
        });
        let found = audit(&market, &liar.url, &task).expect(1).json();
        let first = &found["mismatches"][0];
        assert_eq!(first["round"], 2, "{line}: {found:#}");
        let named = first["line"].as_str().unwrap();
        assert!(named.contains(line), "{line} was forged, but the audit named {named}: {found:#}");
        assert_ne!(first["reported"], first["recomputed"]);
    }
}

fn a_spot_check_recomputes_a_random_part_of_a_task(on: On) {
    let market = TestMarket::open(TestPlan::honest(on, 2));
    let task = market.run().to_string();
    let look = |url: &str, more: &[&str]| {
        let mut call = words(&["audit", &task, "--engine", "reference", "--market", url]);
        call.extend(more.iter().map(|word| (*word).to_owned()));
        florin(&call)
    };
    let one = ["--spot-check", "1", "--seed", "7", "--json"];
    let honest = look(&market.url, &one).expect(0).json();
    assert_eq!(honest["mismatches"], serde_json::json!([]));
    let spot = &honest["spot_check"];
    assert_eq!((&spot["draws"], &spot["seed"]), (&1.into(), &7.into()), "{honest:#}");
    assert_eq!(spot["rounds"].as_array().unwrap().len(), 2, "{honest:#}");
    assert_eq!(spot["rounds"][0]["scores"][0], 1, "{honest:#}");
    // One draw of three scores, of which at least two are forged.
    assert_eq!(
        spot["escape_probabilities"][2],
        serde_json::json!({ "forged": 0.5, "probability": 1.0 / 3.0 })
    );
    let output = look(&market.url, &["--spot-check", "1", "--seed", "7"]).expect(0);
    assert!(output.out.contains("50 % forged: 33.3 %. Seed 7."), "{output:?}");

    let node = market.wallet("coordinator").node_signer();
    let liar = Proxy::before(&market.url, "/rounds/2/report", move |body| {
        let mut report: Signed<Report> = serde_json::from_slice(body).unwrap();
        for score in &mut report.body.valuation.as_mut().unwrap().scores {
            score.score_nano += 1_000_000;
        }
        serde_json::to_vec(&node.sign(report.body)).unwrap()
    });
    let found = look(&liar.url, &one).expect(1).json();
    let named = found["mismatches"][0]["line"].as_str().unwrap();
    assert!(named.ends_with(".score_nano"), "{found:#}");
    let output = look(&market.url, &["--seed", "7"]);
    assert!(output.code == 2 && output.err.contains("--spot-check"), "{output:?}");
}

fn a_round_is_audited_while_the_next_one_runs_and_later_holdout_rows_stay_secret(on: On) {
    let market = TestMarket::open(TestPlan::honest(on, 30));
    let task = market.publish();
    let mut all = market.start_all(task);
    market.wait_for(task, 2, TaskPhase::Committing);
    // Without the last participant, this round or the next waits for its commit or upload.
    all.last_mut().unwrap().kill();
    let name = task.to_string();
    let found = audit(&market, &market.url, &name).expect(0).json();
    assert!(found["audited"].as_u64().unwrap() >= 1, "{found:#}");
    assert_eq!(found["audited"], found["rounds"], "every audited round is recomputed");
    let view = market.view(task);
    assert!(view.reported < 29, "the task is almost over: {view:?}");
    let early = market.client().disclosed_rows(task, RoundNumber(30), 1_000_000).unwrap_err();
    assert_eq!(early.code(), "NOT_YET_PUBLIC");
    // Disclosed rows that do not match the commitment are reported, even if a proxy changed them.
    let bent = Proxy::before(&market.url, "/rounds/1/holdout", |body| {
        let mut shown = DisclosedRows::from_bytes(body).unwrap();
        shown.rows[1].row[0] ^= 1;
        shown.to_bytes()
    });
    let found = audit(&market, &bent.url, &name).expect(1).json();
    assert_eq!(found["mismatches"][0]["line"], "holdout.rows[1]", "{found:#}");
}

fn a_report_without_the_coordinators_signature_is_refused(on: On) {
    let market = TestMarket::open(TestPlan::honest(on, 1));
    let task = market.run().to_string();
    let liar = Proxy::before(&market.url, "/rounds/1/report", |body| {
        let mut report: Signed<Report> = serde_json::from_slice(body).unwrap();
        report.body.lines[0].payout = Amount::ZERO;
        serde_json::to_vec(&report).unwrap()
    });
    let call = ["audit", &task, "--engine", "reference", "--market", &liar.url];
    florin(&call).refused(3, "INVALID_SIGNATURE");
}
