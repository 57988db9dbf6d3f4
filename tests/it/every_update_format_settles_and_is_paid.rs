//! Tasks in every update format settle and are paid, the audit has no mismatch, and updates have
//! the size of the format.

use crate::support::{On, TestMarket, TestPlan};

/// Runs a task in one format; returns the size of its updates in bytes.
fn run_task(format: &'static str) -> u64 {
    let market = TestMarket::open(TestPlan { format, ..TestPlan::honest(On::Embedded, 2) });
    let task = market.run();
    let view = market.view(task);
    for round in 1..=2 {
        let report = market.report(task, round);
        assert_eq!(report.entries.len(), 3, "{format}, round {round}: {report:?}");
        let valuation = report.valuation.expect("the round was valued");
        assert!(valuation.total_nano > 0, "{format}, round {round}: {valuation:?}");
    }
    let last = market.report(task, 2);
    assert!(
        last.metrics.unwrap().correct_after * 2 > last.metrics.unwrap().rows,
        "the model must learn"
    );
    for name in ["ann", "ben", "cy"] {
        let account = market.account(name);
        let earned = last.account_totals[&account].data;
        assert!(!earned.is_zero(), "{format}: {name} earned nothing");
        assert_eq!(market.ledger().claimed_totals(task, account).unwrap().paid, earned, "{format}");
    }
    let audit = ["audit", &task.to_string(), "--engine", "reference", "--json"];
    let audit_json = market.run_command(&audit).expect(0).json();
    assert_eq!(
        (&audit_json["rounds"], &audit_json["mismatches"]),
        (&2.into(), &serde_json::json!([]))
    );
    let entry = &market.report(task, 1).entries[0];
    let length = florin_work::update_bytes(&view.spec);
    let bytes = market.client().blob(entry.update, length).unwrap();
    assert_eq!(bytes.len() as u64, length, "{format}");
    length
}

#[test]
fn updates_in_bf16_int8_and_top_k_are_trained_paid_and_audited() {
    // 650 parameters: 2600 bytes as f32.
    let lengths =
        ["{ kind = \"bf16\" }", "{ kind = \"int8\" }", "{ kind = \"top_k\", permille = 50 }"]
            .map(run_task);
    let [bf16, int8, top_k] = lengths;
    assert!(bf16 > 1300 && bf16 < 1600, "{lengths:?}");
    assert!(int8 > 650 && int8 < 1100, "{lengths:?}");
    assert!(top_k > 8 * 33 && top_k < 500, "{lengths:?}");
}
